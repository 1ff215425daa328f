"""The plans on the page about performance are what the command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skylark.cli.main import app

PAGE = Path(__file__).parents[3] / "docs" / "performance.md"
PLANS = re.findall(r"```sh\n(skylark plan .*)\n```\n\n((?:\|.*\n)+)", PAGE.read_text())


def test_the_page_goes_up_to_a_million_messages_and_100000_topics() -> None:
    assert any("1M" in command and "100k" in command for command, _ in PLANS)


@pytest.mark.parametrize(("command", "table"), PLANS, ids=[command for command, _ in PLANS])
def test_a_plan_of_the_page_is_the_commands(command: str, table: str) -> None:
    printed = CliRunner().invoke(app, shlex.split(command)[1:]).output
    wanted = [line.split("\t") for line in printed.splitlines() if "\t" in line]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert [shown[0], *shown[2:]] == wanted, f"run: {command}"
