"""The demonstration's last screen, and what it answers when counts do not agree."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skylark.cli.main import app
from skylark.demo import scenario
from skylark.demo.scenario import Archive, DemoOptions, DemoResult, Say


def outcome(found: int) -> DemoResult:
    made = DemoResult(rates=[("sent", 1000, 0.5)], places={"store": Path("here/store")})
    made.check("orders acknowledged", 10, 10)
    made.check("orders billed", 10, found)
    return made


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def pretend(monkeypatch: pytest.MonkeyPatch, found: int) -> list[DemoOptions]:
    asked: list[DemoOptions] = []

    async def run(wanted: DemoOptions, say: Say, archive: Archive | None) -> DemoResult:
        assert archive is None
        asked.append(wanted)
        say("working")
        return outcome(found)

    monkeypatch.setattr(scenario, "run", run)
    return asked


def test_all_agrees(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend(monkeypatch, 10)
    result = CliRunner().invoke(app, ["demo", "--no-spark", "--fast"])
    assert result.exit_code == 0
    assert [wanted.orders for wanted in asked] == [1000]
    assert "- working" in result.output
    assert "\t2000\n" in result.output
    assert "All counts agree" in result.output
    assert "skylark demo --keep ./demo" in result.output
    assert list(temporary.iterdir()) == []


def test_a_count_that_is_wrong_is_exit_code_1(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 3)
    result = CliRunner().invoke(app, ["demo", "--no-spark"])
    assert result.exit_code == 1
    assert "orders billed\t10\t3\tWRONG" in result.output
    assert "Some counts are wrong." in result.output
    assert "All counts agree" not in result.output
    assert list(temporary.iterdir()) == []


def test_what_is_kept_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 10)
    result = CliRunner().invoke(app, ["demo", "--no-spark", "--keep", str(tmp_path / "kept")])
    assert result.exit_code == 0
    assert "skylark store dump here/store -t orders --key order-42" in result.output


def test_a_directory_that_is_there_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    result = CliRunner().invoke(app, ["demo", "--keep", str(tmp_path)])
    assert result.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_orders_are_told_apart_and_some_are_special() -> None:
    messages = [scenario.order(number) for number in range(1000)]
    assert len({message.body for message in messages}) == 1000
    assert {message.tags for message in messages} == set(scenario.STATES)
    assert sum(message.delay_level == 1 for message in messages) == 10
    assert sum(b'"bad":true' in message.body for message in messages) == 2


def test_somebody_without_the_command_on_the_path_is_told_how_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, 10)
    script = tmp_path / ".venv" / "bin" / "activate"
    script.parent.mkdir(parents=True)
    script.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    assert "  . .venv/bin/activate\n" in CliRunner().invoke(app, ["demo", "--no-spark"]).output
    (tmp_path / "skylark").touch(mode=0o755)
    assert "activate" not in CliRunner().invoke(app, ["demo", "--no-spark"]).output
