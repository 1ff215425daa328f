"""The two matrices, of benchmarks and of faults: every row is there, and what it names to run it exists."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from benchmarks.__main__ import app
from benchmarks.compare.cells import PEERS, choose
from benchmarks.survey.run import steps
from skylark.torture.faults import ALL_FAULTS
from skylark.torture.plan import MODES
from tests.unit.cli.test_reference import check_line

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"`([^`]+)`")
BENCHMARKS, FAULTS = range(1, 23), range(1, 25)


def rows(page: str, section: str) -> list[list[str]]:
    """The cells of the table below a heading, without its header."""
    text = (ROOT / "docs" / page).read_text().partition(f"\n## {section}\n")[2]
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def numbers(cells: list[list[str]], letter: str) -> list[int]:
    return [int(number) for row in cells for number in re.findall(rf"{letter}(\d+)", row[0])]


CELLS = rows("performance.md", "Every cell, and how to measure it")
PLAYED = rows("guarantees.md", "Every fault and its tests")


def test_every_benchmark_and_every_fault_has_its_row_in_order() -> None:
    assert numbers(CELLS, "B") == list(BENCHMARKS)
    assert numbers(PLAYED, "X") == list(FAULTS)


@pytest.mark.parametrize("row", CELLS, ids=[f"{row[0]} {row[1]}" for row in CELLS])
def test_a_benchmark_is_run_by_commands_that_there_are_or_says_why_not(row: list[str]) -> None:
    _, _, command, stands = row
    named = CODE.findall(command)
    if not named:
        assert stands.startswith("not here: ")
        return
    before = ""
    for words in named:
        if re.fullmatch(r"[\d.]+", words):
            assert before, "another value of the option before it"
            continue
        before = whole(words, before)
        check(before)


def whole(words: str, before: str) -> str:
    """A command. Options alone belong to the one before, `compare` to `python -m benchmarks`."""
    if words.startswith("compare "):
        return f"python -m benchmarks {words}"
    if words.startswith("-"):
        return f"{before.partition(' -')[0]} {words}"
    return words


def check(command: str) -> None:
    if command.startswith("skylark "):
        check_line(command)
        return
    if command.startswith("python -m benchmarks "):
        check_benchmark(shlex.split(command)[3:])
        return
    found = re.match(r"python -m benchmarks\.(\w+)", command)
    assert found is not None, f"{command} is nothing that can be run"
    source = (ROOT / "benchmarks" / f"{found[1]}.py").read_text()
    for option in re.findall(r"(--[a-z-]+)", command):
        assert f'"{option}"' in source, f"benchmarks.{found[1]} has no {option}"


def check_benchmark(words: list[str]) -> None:
    """That the command exists, its options, and the cells or steps that it names."""
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    options = {option for param in command.params for option in param.opts}
    assert {word for word in words if word.startswith("-")} <= options
    assert choose([word for option, word in pairwise(words) if option == "--cell"], PEERS)
    assert {word for option, word in pairwise(words) if option == "--step"} <= set(steps(1.0))


@pytest.mark.parametrize("row", PLAYED, ids=[row[0] for row in PLAYED])
def test_a_fault_is_played_by_tests_and_faults_that_there_are(row: list[str]) -> None:
    played = row[2]
    tests = re.findall(r"`(tests/[\w/]+(?:\.py)?)`", played)
    commands = re.findall(r"`(skylark [^`]+)`", played)
    faults = [word for word in CODE.findall(played) if re.fullmatch(r"[a-z]+(-[a-z]+)*", word)]
    assert tests or commands or faults or played.startswith("the same two")
    for name in tests:
        path = ROOT / name
        source = "".join(each.read_text() for each in ([path] if path.is_file() else path.rglob("test_*.py")))
        assert re.search(r"^ *(async )?def test_|\.TestCase$", source, re.MULTILINE), f"{name} has no test"
    for command in commands:
        check_line(command)
    assert set(faults) <= {*ALL_FAULTS, *MODES}


def test_every_fault_that_torture_knows_stands_in_the_matrix() -> None:
    named = {word for row in PLAYED for word in CODE.findall(row[2])}
    assert set(ALL_FAULTS) - named == set()
