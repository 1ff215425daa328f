"""Check that every relative link in the project's Markdown pages leads to a file and a heading that exist."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Return the names under which a page's headings can be linked to."""
    titles = (re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(FENCE.sub("", text)))
    return {title.replace(" ", "-") for title in titles}


def broken_links(page: Path) -> Iterator[str]:
    """Yield every link of the page that leads nowhere; links to other sites are not followed."""
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = page.parent / target if target else page
        if not file.exists():
            yield f"{link}: no such file"
        elif anchor and anchor not in anchors(file.read_text()):
            yield f"{link}: no such heading"


def main() -> int:
    """Print the broken links and return the exit code."""
    folders = (ROOT / name for name in ("docs", "examples", "benchmarks", "changes", "tests"))
    pages = [*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))]
    broken = [f"{page.relative_to(ROOT)}: {fault}" for page in sorted(pages) for fault in broken_links(page)]
    sys.stdout.write("".join(f"{fault}\n" for fault in broken))
    sys.stdout.write(f"{len(pages)} pages, {len(broken)} broken links\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
