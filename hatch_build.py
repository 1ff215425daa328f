"""The package's long description: README.md with absolute links, as a package index has no other files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
NOT_SHOWN = re.compile(r"```mermaid\n.*?```\n+|<!--.*?-->\n+", re.DOTALL)
"""Drawings that only the repository's pages show, and comments."""


def absolute(readme: str, repository: str) -> str:
    """Return the text with links to files of the repository's main branch, and without mermaid drawings."""

    def link(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        return f"{mark}[{text}]({repository}/{'raw' if mark else 'blob'}/main/{target})"

    return LINK.sub(link, NOT_SHOWN.sub("", readme))


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute(readme, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
