"""Fill the table of docs/guarantees.md from a long run of `skylark torture`.

python -m scripts.guarantees_page REPORT.html

The report is what `--html` wrote. It stands between `<!-- table: torture -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from html import unescape
from pathlib import Path

from scripts.performance_tables import table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guarantees.md"
TABLE = re.compile(r"(<!-- table: torture -->\n)(.*?)(<!-- end -->)", re.DOTALL)
RUNS = re.compile(r'<section id="runs">.*?<p class="note">(.*?)</p>(.*?)</section>', re.DOTALL)
MADE = re.compile(r'<p class="made">([\d-]+ [\d:]{5})')
LINE = re.compile(r"<tr>(.*?)</tr>")
CELL = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>")
MODE_AND_VERDICT = 2


def torture_table(report: str) -> str:
    """What a run came to. Raises ValueError for a page that is no such report."""
    made, runs = MADE.search(report), RUNS.search(report)
    if made is None or runs is None:
        raise ValueError("this is no page that `skylark torture --html` wrote")
    columns, *rows = [[unescape(cell) for cell in CELL.findall(line)] for line in LINE.findall(runs[2])]
    numbers = " " + "r" * (len(columns) - MODE_AND_VERDICT)
    return f"*Ended on {made[1]} UTC. {unescape(runs[1])}*\n\n{table(columns, rows, numbers)}"


def main(file: str) -> None:
    try:
        made = torture_table(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"{file}: {error}")
    PAGE.write_text(TABLE.sub(lambda found: found[1] + made + found[3], PAGE.read_text()))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m scripts.guarantees_page REPORT.html")
    main(sys.argv[1])
