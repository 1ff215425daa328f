"""The pages on pipelines say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skylark.cli.main import app, load_command
from skylark.pipelines.options import option_table
from skylark.pipelines.sink import TYPES, SinkOptions

DOCS = Path(__file__).parents[2] / "docs" / "spark"
PIPELINES = ["archive", "etl", "cdc", "agg", "dlq", "replay", "report", "sql", "run"]


def test_the_page_on_the_sink_has_its_options_and_columns() -> None:
    text = (DOCS / "sink.md").read_text()
    assert option_table(SinkOptions) in text
    assert all(f"| `{name}` |" in text for name in TYPES)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_pipeline_has_a_page_that_begins_with_its_command(pipeline: str) -> None:
    text = (DOCS / f"{pipeline}.md").read_text()
    assert re.match(rf"# .+\n\n```\nskylark spark {pipeline} ", text)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_options_in_the_pages_exist(pipeline: str) -> None:
    text = (DOCS / f"{pipeline}.md").read_text()
    commands = [load_command("spark").commands[pipeline]]
    commands += list(getattr(commands[0], "commands", {}).values())
    known = {name for command in commands for parameter in command.params for name in parameter.opts}
    known |= {"--once", "--archive", "--dedup"}  # other pipelines' that a page mentions
    assert set(re.findall(r"--[a-z][a-z0-9-]*", text)) <= known


def test_help_lists_every_pipeline() -> None:
    text = CliRunner().invoke(app, ["spark", "--help"]).output
    assert all(re.search(rf"\b{pipeline}\b", text) for pipeline in PIPELINES)
