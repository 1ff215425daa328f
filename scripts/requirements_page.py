"""Write docs/requirements.md: every numbered behaviour with the test files that prove it, and its mutant.

python -m scripts.requirements_page

Behaviours are listed in requirements.toml beside this script. A test proves those whose numbers follow
`sf_` in its name: `test_sf_003_045_…` proves SF-003 and SF-045. Mutants are listed in tests/mutants/table.py.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from scripts.mutation import Target, targets
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "requirements.md"
TABLE = Path(__file__).with_name("requirements.toml")
TEST = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)
NUMBERS = re.compile(r"sf_(\d{3}(?:_(?:and_)?\d{3}(?=_))*)")
NO_MUTANT = ""
INTRODUCTION = """# Requirements

Skylark implements these behaviours of RocketMQ. Each row links to the test files that prove it. The tests
have the number of the row in their names, for example `test_sf_005_…` for SF-005. The mutant is a change of
the code that takes the behaviour away: applied to a copy of the package, it makes these tests fail
(`python -m tests.mutants.runner 5`).

This page is generated: change `scripts/requirements.toml` or the names of tests, then run
`python -m scripts.requirements_page`.
"""
MODULES = """## Decision modules

These modules decide and do hardly anything else. `python -m scripts.mutation` changes each in one place at a
time: a comparison, a number, a statement left out. The table shows how many changes were tried in the last
run, drawn by lot, and how many the unit tests noticed; some cannot be noticed.
"""


def numbers(test: str) -> set[str]:
    """Return the ids of the requirements that a test proves, judged by its name."""
    return {f"SF-{digits}" for run in NUMBERS.findall(test) for digits in re.findall(r"\d{3}", run)}


def proofs(root: Path) -> dict[str, set[Path]]:
    """Return the test files, relative to `root`, by the id of each requirement that they prove."""
    found: dict[str, set[Path]] = {}
    for path in (root / "tests").rglob("test_*.py"):
        for test in TEST.findall(path.read_text()):
            for number in numbers(test):
                found.setdefault(number, set()).add(path.relative_to(root))
    return found


def page(
    sections: Iterable[Mapping[str, str]], proved: Mapping[str, set[Path]], mutants: Mapping[str, str]
) -> str:
    """Return the page. Raises ValueError for a row without a test and for a test without a row."""
    unknown = set(proved) - {number for section in sections for number in section}
    if unknown:
        raise ValueError(f"{min(unknown)} is in the name of a test, not in {TABLE.name}: add a row")
    lines = [INTRODUCTION]
    for section in sections:
        lines += [f"## {section['title']}\n", "| Id | Behaviour | Tests | Mutant |", "|---|---|---|---|"]
        for number, behaviour in section.items():
            if number == "title":
                continue
            if number not in proved:
                raise ValueError(
                    f"{number} has no test: put sf_{number[-3:]} into the name of one that proves it"
                )
            links = ", ".join(f"[{name(path)}](../{path.as_posix()})" for path in sorted(proved[number]))
            lines.append(f"| {number} | {behaviour} | {links} | {mutants.get(number, NO_MUTANT)} |")
        lines.append("")
    return "\n".join(lines)


def modules_section(modules: Iterable[Target]) -> str:
    """Return the table of the modules that are changed in every place, with the figures of the last run."""
    lines = [MODULES, "| Module | Tried | Noticed | Cannot be noticed |", "|---|---:|---:|---|"]
    for each in modules:
        reasons = "; ".join(dict.fromkeys(each.explained.values()))
        lines.append(f"| `{each.module}` | {each.tried} | {each.noticed} | {reasons} |")
    return "\n".join([*lines, ""])


def name(path: Path) -> str:
    """`unit/store/recovery` for tests/unit/store/test_recovery.py."""
    return path.relative_to("tests").with_name(path.stem.removeprefix("test_")).as_posix()


def generated() -> str:
    """Return the page as the table and the tests of this checkout define it."""
    mutants = {f"SF-{mutant.row:03}": mutant.what for mutant in MUTANTS}
    sections = tomllib.loads(TABLE.read_text())["section"]
    return "\n".join([page(sections, proofs(ROOT), mutants), modules_section(targets())])


if __name__ == "__main__":
    PAGE.write_text(generated())
