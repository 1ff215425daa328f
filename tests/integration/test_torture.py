"""`skylark torture` as a person runs it: minutes of faults, and the checker finds every promise kept."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Seeds whose plans hold many kinds of faults; the whole takes about three minutes.
RUNS = {"async": 11, "sync": 5, "orderly": 21, "delay": 4}
MINUTES = 0.6
TIMEOUT_S = 280


def torture(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "skylark.cli.main", "torture", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.parametrize(("mode", "seed"), RUNS.items())
def test_nothing_acknowledged_is_lost(mode: str, seed: int) -> None:
    done = torture("--mode", mode, "--seed", str(seed), "--minutes", str(MINUTES), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    [report] = json.loads(done.stdout)
    assert report["clean"]
    assert len(report["faults"]) >= 3
    assert report["verdict"]["acknowledged"] > 1000
    assert report["verdict"]["received"] >= report["verdict"]["acknowledged"]


def test_a_mode_that_there_is_not_is_a_mistake() -> None:
    done = torture("--mode", "gently")
    assert done.returncode == 2
    assert "--mode gently: async, sync, orderly, delay are possible" in done.stderr
