"""`python -m benchmarks growth` in small: each point is measured on a real broker, charts are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app


@pytest.mark.nightly
def test_growth_with_connections_and_log_in_small(tmp_path: Path) -> None:
    out = tmp_path / "growth.json"
    result = CliRunner().invoke(
        app,
        ["growth", "-d", "connections", "-d", "log", "--scale", "0.003", "--rounds", "1",
         "--messages", "500", "--out", str(out), "--svg", str(tmp_path / "charts")],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    cells = json.loads(out.read_bytes())["cells"]
    points = [(cell["settings"]["dimension"], cell["settings"]["point"]) for cell in cells]
    assert points == [
        ("connections", 0), ("connections", 1), ("connections", 3), ("connections", 15),
        ("log", 0), ("log", 1), ("log", 3), ("log", 12),
    ]  # fmt: skip
    assert all(0 < cell["operations"] <= 500 and cell["wrong"] == [] for cell in cells)
    assert {path.name for path in (tmp_path / "charts").iterdir()} == {
        "growth-connections.svg",
        "growth-log.svg",
    }


def test_an_unknown_dimension_is_one_sentence() -> None:
    result = CliRunner().invoke(app, ["growth", "-d", "height"])
    assert result.exit_code == 2
    assert result.stderr == (
        "benchmarks: invalid --dimension 'height'; choose messages, topics, queues, connections, log\n"
    )
