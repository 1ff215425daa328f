"""Fill the tables of docs/performance.md from what commands wrote.

python -m scripts.performance_page FILE...

Files are written by `--out` of `python -m benchmarks survey`, `growth`, `compare` and `soak`, or printed by
`benchmarks.broker --peer apache`, `.client`, `.store` and `.spark`, in any order; they are recognised
by their content, and of two that tell the same the later one counts. A table stands between
`<!-- table: NAME -->` and `<!-- end -->`; what no file tells stays as it is. Figures in sentences follow the
tables, the plans are made from the shipped costs.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner

from benchmarks._common import ProgramResult
from benchmarks.compare.figures import Comparison
from benchmarks.soak.run import SoakReport
from benchmarks.survey.run import Survey
from scripts.peer_tables import TABLES, compare_tables, program_tables
from scripts.performance_figures import with_figures
from scripts.performance_tables import growth_tables, soak_tables, survey_tables, table
from skylark.bench.results import Document
from skylark.cli.main import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
TABLE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
PLAN = re.compile(r"(```sh\n(skylark plan .*)\n```\n\n)((?:\|.*\n)+)")

Kind = tuple[type[Any], Callable[[Sequence[Any]], dict[str, str]]]


def each(make: Callable[[Any], dict[str, str]]) -> Callable[[Sequence[Any]], dict[str, str]]:
    """Tables of several results, of which the later ones replace those of the earlier."""

    def tables(parts: Sequence[Any]) -> dict[str, str]:
        return {name: text for part in parts for name, text in make(part).items()}

    return tables


KINDS: dict[str, Kind] = {
    "survey": (Survey, each(survey_tables)),
    "growth": (Document, each(growth_tables)),
    "soak": (SoakReport, each(soak_tables)),
    "compare": (Comparison, compare_tables),
    **dict.fromkeys(TABLES, (ProgramResult, program_tables)),
}
"""By the member `benchmark`: what such a file is, and what is made of all of them."""


def tables_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """What files tell, by their names. Raises ValueError with the name of one that is no such result."""
    found: dict[str, list[Any]] = {}
    for name, data in files.items():
        try:
            benchmark = msgspec.json.decode(data)["benchmark"]
            shape, _ = KINDS[benchmark]
            found.setdefault(benchmark, []).append(msgspec.json.decode(data, type=shape))
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise ValueError(f"{name} is the result of none of {', '.join(KINDS)}: {error}") from error
    for parts in found.values():
        parts.sort(key=lambda part: str(part.made_at))
    made: dict[str, str] = {}
    for benchmark, parts in sorted(found.items(), key=lambda item: str(item[1][-1].made_at)):
        made |= KINDS[benchmark][1](parts)
    return made


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with these tables, what its sentences say of them, and plans of the shipped costs."""
    page = TABLE.sub(lambda found: found[1] + tables.get(found[2], found[3]) + found[4], page)
    page = with_figures(page, {name: text for _, name, text, _ in TABLE.findall(page)})
    return PLAN.sub(lambda found: found[1] + _planned(found[2]), page)


def _planned(command: str) -> str:
    printed = CliRunner().invoke(app, shlex.split(command)[1:]).output
    columns, *rows = [line.split("\t") for line in printed.splitlines() if "\t" in line]
    return table(columns, rows, "r" * (len(columns) - 1))


def main(files: Iterable[str]) -> None:
    try:
        tables = tables_of({file: Path(file).read_bytes() for file in files})
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    PAGE.write_text(filled(PAGE.read_text(), tables))
    sys.stderr.write(f"tables written: {', '.join(sorted(tables)) or 'the plans alone'}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
