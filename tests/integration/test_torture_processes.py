"""Processes of a torture run: killed, frozen and started again; knobs, journals and disks that they share."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skylark.processes import HOST, ProcessFailed, free_ports
from skylark.torture.child import Journal, Knob, Tail
from skylark.torture.cluster import FakeClock, Process, find_faketime
from skylark.torture.faults import Targets
from skylark.torture.plan import Planned, inflict
from skylark.torture.server import SlowDisk
from tests.support.java import missing

WAIT_S = 60.0
LISTEN = """
import socket, sys
print("started", flush=True)
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    server.accept()[0].close()
"""
SHOW_TIME = """
import threading, time
while True:
    print(time.time(), flush=True)
    threading.Event().wait(0.02)
"""
SLEEP = "import time; time.sleep(600)"
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def listener(tmp_path: Path) -> tuple[Process, int]:
    port = free_ports()
    command = [sys.executable, "-c", LISTEN, HOST, str(port)]
    return Process("listener", command, tmp_path / "log", port), port


def state_of(pid: int) -> str:
    """R, S, T for a stopped one, Z for a dead one that nobody has buried; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


async def test_a_process_comes_back_on_its_port_after_a_kill(tmp_path: Path) -> None:
    process, port = listener(tmp_path)
    pids = set()
    for _ in range(2):
        await process.start()
        pids.add(process.pid)
        _, writer = await asyncio.open_connection(HOST, port)
        writer.close()
        await process.kill()
        assert not process.is_running
    assert len(pids) == 2
    assert process.log.read_text() == "started\n" * 2


async def test_a_frozen_process_can_be_stopped(tmp_path: Path) -> None:
    process, _ = listener(tmp_path)
    await process.start()
    process.signal(signal.SIGSTOP)
    await asyncio.to_thread(until, lambda: state_of(process.pid) == "T")
    await process.terminate()
    assert not process.is_running


async def test_a_process_that_ends_at_its_start_is_told(tmp_path: Path) -> None:
    process = Process("short", [sys.executable, "-c", "print('oh no')"], tmp_path / "log", free_ports())
    with pytest.raises(ProcessFailed, match=r"short: ended at startup; see .*log"):
        await process.start()
    assert process.log.read_text() == "oh no\n"


async def test_a_process_that_does_not_stop_is_killed_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.torture.cluster.STOP_TIMEOUT_S", 0.2)
    process = Process("deaf", [sys.executable, "-c", DEAF], tmp_path / "log")
    await process.start()
    await asyncio.to_thread(until, lambda: process.log.read_text() == "deaf\n")
    with pytest.raises(ProcessFailed, match="not ended after"):
        await process.terminate()
    assert not process.is_running


async def test_what_was_never_started_can_be_killed(tmp_path: Path) -> None:
    process, _ = listener(tmp_path)
    await process.kill()
    assert not process.is_running


def at_once(*names: str) -> list[Planned]:
    return [Planned(name, 0, 0.01, seed) for seed, name in enumerate(names)]


async def test_faults_are_done_side_by_side_and_healed(tmp_path: Path) -> None:
    processes = [Process(name, [sys.executable, "-c", SLEEP], tmp_path / name) for name in ("n", "m", "s")]
    for process in processes:
        await process.start()
    knob = Knob(tmp_path / "knob")
    targets = Targets(processes[0], [], [processes[1]], [processes[2]], [knob])
    done: list[tuple[str, str]] = []
    servers = at_once("freeze-namesrv", "jump-clock", "kill-namesrv")
    clients = at_once("slow-member", "kill-member", "stop-member", "freeze-sender")
    await inflict(targets, [servers, clients], lambda name, words: done.append((name, words)))
    assert sorted(words for name, words in done if name != "slow-member") == [
        "freeze n", "freeze s", "kill -9 m", "kill -9 n", "stop m",
    ]  # fmt: skip
    assert knob.value == 0
    for process in processes:
        assert process.is_running
        await asyncio.to_thread(until, lambda pid=process.pid: state_of(pid) == "S")  # type: ignore[misc]
        await process.kill()
    knob.close()


async def test_a_process_that_does_not_come_back_ends_the_run(tmp_path: Path) -> None:
    process = Process("once", [sys.executable, "-c", SLEEP], tmp_path / "log")
    await process.start()
    lost = Process("lost", [sys.executable, "-c", "raise SystemExit(1)"], tmp_path / "log", free_ports())
    targets = Targets(lost, [], [process], [process], [])
    endless = [Planned("freeze-member", 0, 600, 1)]
    with pytest.raises(ProcessFailed, match="lost: ended at startup"):
        await inflict(targets, [at_once("kill-namesrv"), endless], lambda name, words: None)
    await process.kill()


def test_a_knob_is_turned_here_and_seen_there(tmp_path: Path) -> None:
    here, there = Knob(tmp_path / "knob"), Knob(tmp_path / "knob")
    assert there.value == 0
    here.turn(250)
    assert there.value == 250
    assert Knob(tmp_path / "knob").value == 250  # whoever comes later sees it, too
    here.close()
    there.close()


def test_a_journal_goes_on_after_a_line_that_a_kill_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    tail = Tail(file)
    assert tail.read() == []
    file.write_bytes(b"one\ntw")
    assert tail.read() == [b"one"]
    journal = Journal(file)
    journal.write(b"three\nfour\n")
    journal.close()
    assert tail.read() == [b"tw", b"three", b"four"]
    assert tail.read() == []


def test_a_clock_is_set_in_one_step(tmp_path: Path) -> None:
    clock = FakeClock(tmp_path / "clock", Path("lib.so"))
    assert (tmp_path / "clock").read_text() == "+0s\n"
    clock.set(-3600)
    assert (tmp_path / "clock").read_text() == "-3600s\n"
    assert clock.environment["LD_PRELOAD"] == "lib.so"
    assert clock.environment["FAKETIME_TIMESTAMP_FILE"] == str(tmp_path / "clock")


async def test_a_process_sees_its_clock_move_while_it_runs(tmp_path: Path) -> None:
    library = find_faketime()
    if library is None:
        missing("libfaketime is not installed; apt-get install libfaketime")
    clock = FakeClock(tmp_path / "clock", library)
    log = tmp_path / "log"
    process = Process("clock", [sys.executable, "-c", SHOW_TIME], log, clock=clock)

    def sees(moved_s: int) -> bool:
        lines = log.read_text().splitlines()
        return bool(lines) and abs(float(lines[-1]) - time.time() - moved_s) < WAIT_S

    process.spawn()
    try:
        await asyncio.to_thread(until, lambda: sees(0))
        clock.set(3600)
        await asyncio.to_thread(until, lambda: sees(3600))
        clock.set(-3600)
        await asyncio.to_thread(until, lambda: sees(-3600))
    finally:
        await process.kill()


def test_a_slow_disk_is_a_disk(tmp_path: Path) -> None:
    knob = Knob(tmp_path / "knob")
    disk = SlowDisk(knob)
    for delay_ms in (0, 1):
        knob.turn(delay_ms)
        file = disk.create(tmp_path / f"file-{delay_ms}", 8192)
        file.allocate(0, 8192)
        file.write([b"abc", b"def"], 4096)
        file.sync()
        disk.sync_directory(tmp_path)
        assert file.read(6, 4096) == bytes(file.view()[4096:4102]) == b"abcdef"
        assert file.read_resident(6, 4096) == b"abcdef"
        assert file.is_resident(6, 4096)
        assert file.is_zero_from(4102)
        file.close()
        assert disk.open(tmp_path / f"file-{delay_ms}").read(3, 4099) == b"def"
    knob.close()


def test_a_slow_disk_makes_syncs_wait_and_reads_not(tmp_path: Path) -> None:
    knob = Knob(tmp_path / "knob")
    waits: list[float] = []
    file = SlowDisk(knob, waits.append).create(tmp_path / "file", os.sysconf("SC_PAGE_SIZE"))
    file.sync()
    assert waits == []
    knob.turn(500)
    file.read(10, 0)
    assert waits == []
    file.sync()
    assert len(waits) == 1
    assert 0 <= waits[0] <= 0.5
    for _ in range(1000):
        file.write([b"x"], 0)
    assert 1 < len(waits) < 200  # a few writes in a hundred
    file.close()
    knob.close()
