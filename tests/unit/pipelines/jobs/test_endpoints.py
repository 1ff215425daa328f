"""Inputs and outputs of jobs, as they are written and as messages name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.pipelines.jobs.endpoints import Input, parse_output, state_directory
from skylark.pipelines.options import SourceOptions, load


def test_directories_are_named_without_steps_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = tmp_path.resolve() / "lake"
    (tmp_path / "moved").mkdir()
    monkeypatch.chdir(tmp_path.resolve() / "moved")
    assert str(parse_output("delta:../lake")) == f"delta:{lake}"
    assert state_directory(Path("../lake/state"), "archive", "orders") == lake / "state"
    source = Input(store=Path("../moved"), topic="orders").source_options(is_stream=False)
    assert source["path"] == str(lake.with_name("moved"))
    options = load(SourceOptions, {"path": "x", "topic": "orders", "history": "delta:../lake"})
    assert options.history == f"delta:{lake}"


def test_a_link_to_a_directory_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "lake").symlink_to(tmp_path / "disk")
    assert parse_output(f"parquet:{tmp_path}/lake/orders").where == f"{tmp_path}/lake/orders"
