"""The source where driver, tasks and client are different processes: Connect, and a standalone cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pipeline_cluster import PipelineCluster
from tests.support.spark_cluster import SparkCluster

HERE = Path(__file__).parent
SCRIPT_TIMEOUT_S = 300


def run(script: str, *arguments: str) -> dict[str, object]:
    """Run a script and return the JSON of its last line."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        timeout=SCRIPT_TIMEOUT_S,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.timeout(420)
def test_spark_connect(shared_cluster: PipelineCluster, tmp_path: Path) -> None:
    shared_cluster.create_topic("connect", 2)
    shared_cluster.send("connect", [b"x"] * 50, 1, properties={"TAGS": "A"})
    found = run("connect_session.py", shared_cluster.namesrv, "connect", str(tmp_path))
    assert found == {"rows": 50, "streamed": 50, "columns": ["queueOffset", "tags"]}
    queue = shared_cluster.queue("connect", 1)
    # The listener runs in the client and knows the last batch; the reader is one batch behind.
    assert shared_cluster.wire.group_offset("connect-listener", queue) == 50
    assert shared_cluster.wire.group_offset("connect-reader", queue) == 40


@pytest.mark.timeout(420)
def test_standalone_cluster(shared_cluster: PipelineCluster, tmp_path: Path) -> None:
    shared_cluster.create_topic("standalone", 2)
    shared_cluster.send("standalone", [b"x" * 100] * 200, 0)
    shared_cluster.send("standalone", [b"x" * 100] * 100, 1)
    with SparkCluster(tmp_path / "spark") as spark:
        found = run("cluster_session.py", spark.master, shared_cluster.namesrv, "standalone", str(tmp_path))
    assert found == {"rows": 300, "streamed": 300, "executors": 2}
