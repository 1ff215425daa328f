"""`python -m benchmarks compare` with real peers: short rounds, and nothing of them is left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from benchmarks.compare.figures import Comparison
from benchmarks.compare.systems import SYSTEMS
from benchmarks.peers.java import MissingToolchain
from tests.support.java import missing

LIMIT_S = 600
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(1200)


def fetched(name: str) -> None:
    """Before the clock of the command runs: the first time, jars come from afar."""
    try:
        SYSTEMS[name].fetch()
    except MissingToolchain as error:
        missing(str(error))


def command(directory: Path, *words: str) -> list[str]:
    out = ["--out", str(directory / "found.json"), "--report", str(directory / "found.html")]
    return [sys.executable, "-m", "benchmarks", "compare", "--quick", *out, *words]


def environment(directory: Path) -> dict[str, str]:
    """Everything temporary of the command and its servers lies in a place of its own."""
    place = directory / "temporary"
    place.mkdir()
    return {**os.environ, "TMPDIR": str(place)}


def processes_in(directory: Path) -> list[str]:
    """The command lines of processes that were started with files in a directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if f"{directory / 'temporary'}/" in words:
            found.append(words)
    return found


def keys_of_servers() -> set[Path]:
    """Keys that Apache's servers make and leave where a JVM puts what is temporary, whatever TMPDIR says."""
    return set(Path("/tmp").glob("keyutil_*"))  # noqa: S108 - a JVM's choice


def assert_nothing_stays(directory: Path) -> None:
    deadline = time.monotonic() + 60
    while (left := processes_in(directory)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []
    assert list((directory / "temporary").glob("skylark-bench-*")) == []


def compared(directory: Path, *words: str) -> Comparison:
    done = subprocess.run(
        command(directory, *words),
        cwd=ROOT,
        env=environment(directory),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_nothing_stays(directory)
    assert "Conditions" in (directory / "found.html").read_text()
    return msgspec.json.decode((directory / "found.json").read_bytes(), type=Comparison)


def rates(found: Comparison, peer: str, cell: str) -> tuple[float, float]:
    """Of ours and of the peer; a row without a ratio would say why it is missing."""
    (row,) = [row for row in found.rows if (row.peer, row.cell, row.metric) == (peer, cell, "messages")]
    assert row.ours is not None, found.not_run
    assert row.theirs is not None, found.not_run
    assert row.ratio is not None
    return row.ours.median, row.theirs.median


@pytest.mark.nightly
@pytest.mark.interop("java", "javac", "mvn")
def test_apache_is_measured_beside_ours_and_nothing_stays(tmp_path: Path) -> None:
    fetched("apache")
    keys_before = keys_of_servers()
    cells = ["--cell", "send-async-64-1KiB", "--cell", "start", "--cell", "stop"]
    found = compared(tmp_path, "--peer", "apache", *cells, "--warm-up", "1", "--seconds", "3")
    assert keys_of_servers() <= keys_before
    ours, theirs = rates(found, "apache", "send-async-64-1KiB")
    assert ours > 0
    assert theirs > 0
    assert found.not_run == []
    assert [facts.title for facts in found.systems][1] == "Apache RocketMQ 5.3.3"
    assert {outcome.cell for outcome in found.outcomes} == {"send-async-64-1KiB", "start", "stop"}


@pytest.mark.nightly
@pytest.mark.interop("java", "javac", "mvn", "go")
@pytest.mark.parametrize("peer", ["kafka", "nats"])
def test_others_are_measured_by_their_own_clients(tmp_path: Path, peer: str) -> None:
    fetched(peer)
    cells = ["--cell", "java-async-64-1KiB", "--cell", "consume-1KiB", "--cell", "start"]
    found = compared(tmp_path, "--peer", peer, *cells, "--warm-up", "1", "--seconds", "3")
    for cell in ("java-async-64-1KiB", "consume-1KiB"):
        assert all(rate > 0 for rate in rates(found, peer, cell))
    assert found.not_run == []


def test_an_interruption_takes_our_server_along(tmp_path: Path) -> None:
    """By SIGINT, as a person does, while the servers run. The peer cannot be had on this machine: no PATH."""
    words = command(
        tmp_path, "--peer", "kafka", "--cell", "java-sync-1-128B", "--cell", "start", "--rounds", "500"
    )
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env={**environment(tmp_path), "PATH": "", "JAVA_HOME": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            deadline = time.monotonic() + 120
            while not any("serve" in line for line in processes_in(tmp_path)):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
        finally:
            process.kill()
        assert process.stderr is not None
        assert "interrupted" in process.stderr.read()
    assert_nothing_stays(tmp_path)
