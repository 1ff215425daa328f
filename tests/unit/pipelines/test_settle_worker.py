"""What a worker of Spark has loaded is not looked through after every task; elsewhere nothing is frozen."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import gc, sys
from pyspark import TaskContext
from skylark.pipelines.ranges import settle_worker
if sys.argv[1] == "worker":
    TaskContext._getOrCreate()
settle_worker()
frozen = gc.get_freeze_count()
settle_worker()
assert gc.get_freeze_count() == frozen
print(frozen)
"""
TIMEOUT_S = 120


@pytest.mark.parametrize("place", ["worker", "driver"])
def test_only_a_worker_is_frozen_and_once(place: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, place], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    assert (int(done.stdout) > 10_000) == (place == "worker")
