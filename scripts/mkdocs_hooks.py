"""Hooks of mkdocs: the site's table of contents, and links that lead out of `docs`."""

import posixpath
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
FRONT = ["index.md", "tutorial.md"]
"""Pages that come first, by themselves."""
EXPLANATION = "Explanation"
SECTIONS = {
    "How-to": "howto",
    "Spark": "spark",
    "Reference": "reference",
    EXPLANATION: "design",
    "中文": "zh",
}
RUNNING = ["operations.md", "security.md", "migration.md"]


def on_config(config: Any) -> Any:
    """Give every page a place: those of a folder in its section, the others among the explanations."""
    sections: dict[str, list[str]] = {"Running it": RUNNING}
    for title, folder in SECTIONS.items():
        sections[title] = sorted(page.relative_to(DOCS).as_posix() for page in (DOCS / folder).glob("*.md"))
    others = {page.name for page in DOCS.glob("*.md")} - {*FRONT, *RUNNING}
    sections[EXPLANATION] = [*sorted(others), *sections[EXPLANATION]]
    config.nav = [*FRONT, *({title: pages} for title, pages in sections.items())]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make plain text of links that lead out of `docs`: on the site there is nothing at their end."""
    folder = posixpath.dirname(page.file.src_uri)

    def plain(found: re.Match[str]) -> str:
        leaves = posixpath.normpath(posixpath.join(folder, found[2])).startswith("..")
        return found[1] if leaves else found[0]

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(plain, part) for part in parts)
