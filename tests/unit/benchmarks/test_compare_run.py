"""A comparison whose systems are small stand-ins: turns, void rounds, reasons, and that nothing stays."""

from __future__ import annotations

import sys
from pathlib import Path
from signal import Signals
from typing import ClassVar

import pytest

from benchmarks.compare import run
from benchmarks.compare.cells import APACHE, KAFKA, OURS, PER_S, Cell
from benchmarks.compare.figures import Comparison
from benchmarks.compare.measures import Effort, Measures, Round
from benchmarks.compare.systems import SYSTEMS, System
from benchmarks.peers.java import MissingToolchain
from skylark.processes import PortReservation, ProcessFailed, Server

EFFORT = Effort(rounds=3, seconds=1.0, warm_up_s=0.0)
CELL = "java-async-64-1KiB"


class Sleeper(Server):
    """A process that does nothing."""

    title = "sleeper"

    def command(self, start: int) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    def wait_until_serving(self) -> None:
        assert self._running().running


class StandIn(System):
    """A system around it that remembers what was done to it."""

    events: ClassVar[list[str]] = []
    made: ClassVar[list[StandIn]] = []

    def __init__(self, directory: Path, flush: str, heap_mb: int) -> None:
        super().__init__(directory, flush, heap_mb)
        self.server = Sleeper(directory / "home", PortReservation(0))
        self.made.append(self)

    @classmethod
    def fetch(cls) -> None:
        cls.events.append(f"fetch {cls.name}")

    def try_first_send(self, timeout_s: float) -> bool:
        return True

    def signal(self, number: Signals) -> None:
        self.events.append(f"{number.name} {self.name}")


class StandInOurs(StandIn):
    name, title, client = OURS, "Ours", "none"


class StandInApache(StandIn):
    name, title, client = APACHE, "Apache", "none"
    stops_when_idle = True


class AbsentKafka(StandIn):
    name, title, client = KAFKA, "Kafka", "none"

    @classmethod
    def fetch(cls) -> None:
        raise MissingToolchain("Maven (mvn) is not installed")


@pytest.fixture
def systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[StandIn]:
    """Stand-ins for the systems; temporary directories lie in `tmp_path`."""
    StandIn.events.clear()
    StandIn.made.clear()
    stand_ins = {each.name: each for each in (StandInOurs, StandInApache, AbsentKafka)}
    monkeypatch.setattr(run, "SYSTEMS", stand_ins)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(run, "LoadClient", lambda: type("Client", (), {"kind": "none"}))
    return StandIn


def assert_nothing_stays(tmp_path: Path) -> None:
    assert StandIn.made
    assert all(system.server._process is None for system in StandIn.made)
    assert list(tmp_path.iterdir()) == []


def test_systems_take_turns_and_what_cannot_run_is_listed(
    systems: type[StandIn], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[str] = []

    def measure(_: Measures, system: System, cell: Cell, seconds: float) -> Round:
        measured.append(system.name)
        if system.name == APACHE and len(measured) == 2:
            raise ProcessFailed("the driver ended\n  at line 3")
        return Round({PER_S.name: 100.0 if system.name == APACHE else 150.0})

    monkeypatch.setattr(Measures, "measure", measure)
    said: list[str] = []

    kept: list[int] = []

    def keep(so_far: Comparison) -> None:
        kept.append(len(so_far.outcomes))

    found = run.compare([APACHE, KAFKA], [CELL, "send-async-64-1KiB"], EFFORT, say=said.append, keep=keep)

    assert kept == list(range(1, 13)), "after every round"

    assert measured == [OURS, APACHE] * 6
    (row,) = [row for row in found.rows if row.peer == APACHE and row.cell == CELL]
    assert row.ratio is not None
    assert (row.ratio.median, row.ratio.rounds) == (1.5, 3)
    missing = {(each.cell, each.system): each.reason for each in found.not_run}
    assert missing[CELL, KAFKA] == "Maven (mvn) is not installed"
    assert "RocketMQ's protocol only" in missing["send-async-64-1KiB", KAFKA]
    assert missing["send-async-64-1KiB", APACHE] == "1 of 3 rounds: the driver ended at line 3"
    assert any("VOID" in line for line in said)
    assert [facts.title for facts in found.systems] == ["Ours", "Apache", "Kafka"]
    assert systems.events.count("SIGSTOP apache") == systems.events.count("SIGCONT apache") == 7
    assert "SIGSTOP ours" not in systems.events
    assert_nothing_stays(tmp_path)


def test_an_interruption_ends_the_servers_and_removes_their_files(
    systems: type[StandIn], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(*_: object) -> Round:
        assert all((system.server.home / "sleeper-1.log").exists() for system in StandIn.made)
        raise KeyboardInterrupt

    monkeypatch.setattr(Measures, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        run.compare([APACHE], [CELL], EFFORT)
    assert_nothing_stays(tmp_path)


def test_a_peer_that_does_not_start_is_void_and_ours_goes_on(
    systems: type[StandIn], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(self: System) -> None:
        raise ProcessFailed("no memory for the heap")

    monkeypatch.setattr(Measures, "measure", lambda *_: Round({PER_S.name: 5.0}))
    monkeypatch.setattr(StandInApache, "start", fail)
    found = run.compare([APACHE], [CELL], EFFORT)
    assert [(each.system, each.reason) for each in found.not_run] == [(APACHE, "no memory for the heap")]
    assert [outcome.system for outcome in found.outcomes if not outcome.wrong] == [OURS] * 3
    assert_nothing_stays(tmp_path)


def test_start_memory_and_end_come_from_one_start(
    systems: type[StandIn], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = {
        "start to first acknowledged send": 0.5,
        "anonymous memory idle": 40.0,
        "anonymous memory under load": 50.0,
        "SIGTERM to the end of the process": 0.1,
    }
    wanted: list[tuple[bool, bool]] = []

    def fresh(_: Measures, system: System, *, memory: bool, stop: bool) -> Round:
        wanted.append((memory, stop))
        return Round(dict(figures))

    monkeypatch.setattr(Measures, "fresh", fresh)
    found = run.compare([APACHE], ["start", "stop", "memory"], Effort(rounds=2))
    assert wanted == [(True, True)] * 4
    assert len(StandIn.made) == 4
    assert [outcome.figures.keys() for outcome in found.outcomes[:3]] == [
        {"start to first acknowledged send"},
        {"SIGTERM to the end of the process"},
        {"anonymous memory idle", "anonymous memory under load"},
    ]
    assert found.not_run == []
    assert_nothing_stays(tmp_path)


def test_quick_names_what_it_leaves_out(systems: type[StandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "choose", lambda *_, **__: [])
    found = run.compare([APACHE], [], Effort.quick(), quick=True)
    assert {each.cell for each in found.not_run} == {"topics-10000", "spark"}


def test_a_system_that_cannot_be_prepared_for_a_cell_is_ended_at_once(
    systems: type[StandIn], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make_topics(_: Measures, system: System, cell: Cell) -> None:
        if system.name == APACHE:
            raise ProcessFailed("topic 512 was refused")

    def measure(_: Measures, system: System, cell: Cell, seconds: float) -> Round:
        assert system.name == OURS
        assert [each.server._process is None for each in StandIn.made] == [False, True]
        return Round({PER_S.name: 5.0})

    monkeypatch.setattr(Measures, "make_topics", make_topics)
    monkeypatch.setattr(Measures, "measure", measure)
    found = run.compare([APACHE], ["topics-1000"], EFFORT)
    assert [(each.system, each.reason) for each in found.not_run] == [
        (APACHE, "the topics: topic 512 was refused")
    ]
    assert_nothing_stays(tmp_path)


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_every_system_says_how_it_flushes_its_files_and_its_heap(system: type[System]) -> None:
    settings = system.facts(["async", "sync"], 1234).settings
    for word in ("async: ", "sync: ", "log files of ", "heap"):
        assert word in settings
