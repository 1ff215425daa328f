"""What a worker of Spark has loaded is not looked through after every task; elsewhere nothing is frozen.

And memory that was freed there is used again, where the C library can be told so.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import gc, resource, sys
from pyspark import TaskContext
from skylark.pipelines.planner import settle_worker
if sys.argv[1] == "worker":
    TaskContext._getOrCreate()
settle_worker()
frozen = gc.get_freeze_count()
settle_worker()
assert gc.get_freeze_count() == frozen

def touch():
    pieces = [bytearray(b"x") * (9 << 20) for _ in range(4)]

touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    touch()
print(frozen, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES_TOUCHED = 10 * 4 * 9 * 256
TIMEOUT_S = 120


@pytest.mark.parametrize("place", ["worker", "driver"])
def test_only_a_worker_is_settled_and_once(place: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, place], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    frozen, faults = map(int, done.stdout.split())
    assert (frozen > 10_000) == (place == "worker")
    if place == "worker" and platform.libc_ver()[0] == "glibc":
        assert faults < PAGES_TOUCHED // 20
