"""`skylark torture`: what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from skylark.cli.main import app
from skylark.torture import report, run
from skylark.torture.checker import check
from skylark.torture.history import BrokerQueue, History, QueuePosition, Receipt, Send, SendOutcome
from skylark.torture.plan import MODES


class Played:
    """A run that is over at once; in mode `sync`, a message is lost."""

    def __init__(self, wanted: report.TortureOptions, say: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._say = say

    async def run(self) -> report.TortureReport:
        place = QueuePosition(BrokerQueue("broker-a", 0), 0)
        history = History(sends={0: Send(0, "k", 0, SendOutcome.OK, place)}, stored=[(place, 0)])
        if self._wanted.mode != "sync":
            history.receipts.append(Receipt(0, place, 1, "m"))
        self._say("something was done")
        fault = report.Inflicted(at_s=1.0, name="flood", words="500 connections")
        return report.TortureReport(
            wanted=self._wanted, verdict=check(history), faults=[fault], skipped={"jump-clock": 2},
            elapsed_s=2.0, drained_s=0.5,
        )  # fmt: skip


@pytest.fixture
def torture(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(run, "Torture", Played)
    return lambda *arguments: CliRunner().invoke(app, ["torture", *arguments])


def test_a_clean_run_ends_with_0_and_says_its_seed(torture: Callable[..., Result]) -> None:
    done = torture("--mode", "async", "--mode", "delay", "--seed", "7")
    assert done.exit_code == 0
    assert "- something was done" in done.stdout
    rows = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") > 5]
    assert [row[0] for row in rows] == ["mode", "async", "delay"]
    assert all(row[-1] == "clean" for row in rows[1:])
    assert "Seed 7." in done.stdout


def test_a_broken_promise_ends_with_1_and_is_told(torture: Callable[..., Result]) -> None:
    done = torture("--seed", "7")
    assert done.exit_code == 1
    assert "sync: lost, 1" in done.stdout
    assert "message 0, acknowledged at broker-a/0 offset 0" in done.stdout
    assert "Repeat with --seed 7" in done.stdout


def test_json_is_one_document(torture: Callable[..., Result]) -> None:
    done = torture("--mode", "async", "--mode", "sync", "--minutes", "1", "--seed", "3", "--json")
    assert done.exit_code == 1
    first, second = json.loads(done.stdout)
    assert (first["clean"], second["clean"]) == (True, False)
    assert first["wanted"]["seconds"] == 30.0
    assert first["faults"] == [{"at_s": 1.0, "name": "flood", "words": "500 connections"}]
    assert first["skipped"] == {"jump-clock": 2}
    assert second["verdict"]["faults"]["lost"]["count"] == 1


def test_the_page_has_runs_faults_and_broken_promises(torture: Callable[..., Result], tmp_path: Path) -> None:
    done = torture("--seed", "3", "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 1
    page = (tmp_path / "page.html").read_text()
    assert "message 0, acknowledged at broker-a/0 offset 0" in page
    assert "500 connections" in page
    assert "Seed 3, 3 minutes of faults in total." in page
    assert page.count("<h2>") == 3 + sum(not mode.needs_etcd for mode in MODES.values())


def test_without_a_seed_one_is_chosen(torture: Callable[..., Result]) -> None:
    reports = [json.loads(torture("--mode", "async", "--json").stdout)[0] for _ in range(2)]
    assert reports[0]["wanted"]["seed"] != reports[1]["wanted"]["seed"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--mode", "gently"],
            "invalid --mode 'gently'; choose async, sync, sync-master, transactions, orderly, failover, "
            "failover-etcd, delay, pop, pop-orderly",
        ),
        (["--minutes", "0"], "invalid --minutes 0; choose more than 0 and less than 100000"),
        (["--minutes", "nan"], "invalid --minutes nan; choose"),
        (["--minutes", "inf"], "invalid --minutes inf; choose"),
        (["--seed", "-1"], "--seed"),
        (["--brokers", "9"], "--brokers"),
        (["--senders", "many"], "--senders"),
    ],
)
def test_what_cannot_be_is_a_mistake(
    torture: Callable[..., Result], arguments: list[str], sentence: str
) -> None:
    done = torture(*arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_a_directory_with_something_in_it_is_not_written_to(
    torture: Callable[..., Result], tmp_path: Path
) -> None:
    assert torture("--mode", "async", "--keep", str(tmp_path / "new")).exit_code == 0
    (tmp_path / "file").touch()
    done = torture("--keep", str(tmp_path))
    assert done.exit_code == 2
    assert "is not empty: choose a new directory" in done.stderr


def test_files_that_cannot_be_written_are_told_before_the_work(
    torture: Callable[..., Result], tmp_path: Path
) -> None:
    done = torture("--html", str(tmp_path / "none" / "page.html"))
    assert (done.exit_code, "something was done" in done.stdout) == (2, False)
    assert "no directory" in done.stderr
    (tmp_path / "file").touch()
    done = torture("--keep", str(tmp_path / "file"))
    assert (done.exit_code, "something was done" in done.stdout) == (2, False)
    assert "is not a directory" in done.stderr
