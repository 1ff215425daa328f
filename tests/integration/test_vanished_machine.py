"""A master whose machine vanishes is replaced: nothing closes its connections, and no packet is answered."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.java import missing

NAMESPACE = ["unshare", "--map-root-user", "--net"]
TIMEOUT_S = 300
WANTED_MS = 5000


@pytest.mark.nightly
def test_a_vanished_master_is_replaced_within_five_seconds() -> None:
    if subprocess.run([*NAMESPACE, "ip", "link"], capture_output=True, check=False).returncode:
        missing("network namespaces cannot be made here, or there is no `ip`")
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-m", "benchmarks.failover", "--vanish", "2"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["vanished_to_send_ok"]
    assert found["count"] == 2
    assert found["max_ms"] < WANTED_MS
