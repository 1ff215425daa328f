"""The code blocks of the project's pages, and what a comment before one says about running it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "zh"),
]
"""Without translations: their blocks are those of the originals, as tests/unit/test_docs.py checks."""
FENCE = re.compile(
    r"^(?: *<!-- (?P<kind>not run|run by): (?P<word>[^>]*?) -->\n+)?"
    r"(?P<indent> *)```(?P<language>[^\n]*)\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
SHELL = ("", "sh", "bash")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, what it holds, and what the comment before it says."""

    page: str
    line: int
    language: str
    code: str
    not_run: str | None
    run_by: str | None

    @property
    def is_shell(self) -> bool:
        return self.language in SHELL

    def commands(self) -> list[str]:
        """The lines of a shell block, continued ones joined, without comments and prompts."""
        lines = self.code.replace("\\\n", " ").splitlines()
        commands = [re.sub(r"(^|\s{2,})#.*", "", line).removeprefix("$ ").strip() for line in lines]
        return [line for line in commands if line]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        word, kind = found["word"], found["kind"]
        yield Block(
            page.relative_to(ROOT).as_posix(),
            text.count("\n", 0, found.start("indent")) + 1,
            found["language"],
            re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE),
            word if kind == "not run" else None,
            word if kind == "run by" else None,
        )
