"""The demonstration's last screen, and what it answers when counts do not agree."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skylark import demo
from skylark.cli.main import app
from skylark.demo import Outcome


def outcome(found: int) -> Outcome:
    made = Outcome(rates=[("written", 1000, 0.5)])
    made.check("messages in all queues", 10, 10)
    made.check("acknowledged orders lost by the kill", 0, found)
    return made


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_all_agrees(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(directory: Path, say: demo.Say) -> Outcome:
        directory.mkdir()
        say("working")
        return outcome(0)

    monkeypatch.setattr(demo, "run", run)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0
    assert "- working" in result.output
    assert "2,000/s" in result.output
    assert "Everything agrees" in result.output
    assert "--keep DIR" in result.output
    assert list(temporary.iterdir()) == []


def test_a_count_that_is_wrong_is_exit_code_1(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "run", lambda directory, say: outcome(3))
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    assert "acknowledged orders lost by the kill\t0\t3\tWRONG" in result.output
    assert "Some counts are wrong." in result.output
    assert "Everything agrees" not in result.output
    assert list(temporary.iterdir()) == []


def test_nothing_checked_is_nothing_agreed() -> None:
    assert not Outcome().agrees


def test_orders_are_told_apart_by_number_and_place() -> None:
    sent = {demo.message(number).body for number in range(200)}
    assert len(sent) == 200
    assert {demo.place(number) for number in range(200)} == {
        (topic, queue_id) for topic in demo.TOPICS for queue_id in range(demo.QUEUES)
    }
