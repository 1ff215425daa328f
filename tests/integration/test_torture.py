"""`skylark torture` as a person runs it: minutes of faults, and the checker finds every promise kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skylark.torture.faults import ALL_FAULTS
from skylark.torture.plan import MODES, plan
from tests.support.signals import heeded

# Seeds whose plans hold what matters most to the mode, and all kinds of faults together; about three minutes.
RUNS = {
    "async": 233, "sync": 233, "sync-master": 19363, "transactions": 348, "orderly": 165, "failover": 1,
    "failover-etcd": 12,
    "delay": 165, "pop": 165, "pop-orderly": 165,
}  # fmt: skip
MINUTES = dict.fromkeys(RUNS, 0.5) | {"failover": 2.0, "failover-etcd": 2.0}
TIMEOUT_S = 400
COMMAND = [sys.executable, "-m", "skylark", "torture"]


def torture(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def test_these_runs_play_every_fault_there_is() -> None:
    planned = [each for mode, seed in RUNS.items() for each in plan(seed, MODES[mode], MINUTES[mode] * 60)]
    assert {fault.name for sequence in planned for fault in sequence} == set(ALL_FAULTS)


def test_nothing_acknowledged_is_lost_in_a_quarter_of_a_minute() -> None:
    done = torture("--mode", "async", "--seed", "233", "--minutes", "0.25", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    [report] = json.loads(done.stdout)
    assert report["clean"]
    assert len(report["faults"]) >= 2
    assert report["verdict"]["acknowledged"] > 100


def test_masters_that_a_controller_chooses_lose_nothing_in_twenty_seconds() -> None:
    """Among others masters are killed, lost with their disk and cut off with their own tail."""
    done = torture("--mode", "failover", "--seed", "14180", "--minutes", "0.33", "--json", "--members", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    [report] = json.loads(done.stdout)
    assert report["clean"]
    wanted = {"kill-elected", "lose-elected", "cut-both", "kill-controller"}
    assert wanted <= {fault["name"] for fault in report["faults"]}
    assert report["verdict"]["acknowledged"] > 100
    assert report["verdict"]["faults"]["two masters in an epoch"]["count"] == 0


@pytest.mark.nightly
def test_nothing_popped_is_lost_in_a_quarter_of_a_minute() -> None:
    """Among others members are killed between receipt and acknowledgement, and brokers in between."""
    done = torture("--mode", "pop", "--seed", "165", "--minutes", "0.25", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    [report] = json.loads(done.stdout)
    assert report["clean"]
    assert report["verdict"]["acknowledged"] > 100


@pytest.mark.nightly
def test_nothing_acknowledged_is_lost_with_tls_and_users(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    arguments = ("--secure", "--mode", "sync-master", "--seed", "5", "--minutes", "0.25", "--json")
    done = torture(*arguments, "--keep", str(keep))
    assert done.returncode == 0, done.stdout + done.stderr
    [report] = json.loads(done.stdout)
    assert report["clean"]
    assert report["verdict"]["acknowledged"] > 100
    secret = (keep / "secure" / "admin.credentials").read_text().split("secretKey=")[1].strip()
    logs = [file.read_text() for file in keep.rglob("*.log")]
    assert logs
    assert not any(secret in text for text in logs)


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "seed"), RUNS.items())
def test_nothing_acknowledged_is_lost(mode: str, seed: int) -> None:
    done = torture("--mode", mode, "--seed", str(seed), "--minutes", str(MINUTES[mode]), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    [report] = json.loads(done.stdout)
    verdict = report["verdict"]
    assert report["clean"]
    assert len(report["faults"]) >= 5
    assert verdict["acknowledged"] > 100
    assert verdict["received"] >= verdict["acknowledged"] - verdict["rolled_back"]
    assert (verdict["rolled_back"] > 0) == (mode == "transactions")


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param(signal.SIGHUP, marks=pytest.mark.nightly),
    ],
)
def test_whoever_interrupts_it_finds_everything_cleaned_up(tmp_path: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "200"}
    with heeded(number):
        started = subprocess.Popen(
            [*COMMAND, "--mode", "async", "--minutes", "10", "--seed", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
    with started as process:
        assert process.stdout is not None
        for line in process.stdout:  # until everything runs, and something was done to it
            if " s  " in line:
                break
        assert children(tmp_path)
        process.send_signal(number)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    deadline = time.monotonic() + 60
    while children(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())


def children(directory: Path) -> list[str]:
    """The command lines of living processes that work in a directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if str(directory) in command:
            found.append(command)
    return found
