"""The source where driver, tasks and client are different processes: Spark Connect, YARN."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support import spark_program
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster
from tests.support.spark_cluster import ConnectServer
from tests.support.yarn_cluster import SPARK_CONF, YarnCluster

HERE = Path(__file__).parent
SCRIPT_TIMEOUT_S = 600


def run(directory: Path, script: str, *arguments: str) -> dict[str, Any]:
    """Run a script and return the JSON that it prints."""
    environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [sys.executable, str(HERE / script), *arguments, str(directory)]
    output = spark_program.run(command, directory / "script.log", SCRIPT_TIMEOUT_S, environment)
    return spark_program.last_object(output)


def submit(directory: Path, cluster: str, namesrv: str, topic: str, **environment: str) -> str:
    """Submit a pipeline that writes a topic's messages to files; return what is printed."""
    file = directory / "pipeline.yml"
    file.write_text(
        f"source: {{namesrv: '{namesrv}', topic: {topic}}}\n"
        f"sinks: [{{parquet: {{path: {directory / 'files'}}}}}]\ncluster: {{{cluster}}}\n"
    )
    command = [sys.executable, "-m", "skylark", "spark", "submit", str(file), "--once"]
    return spark_program.run(command, directory / "submit.log", SCRIPT_TIMEOUT_S, environment)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_spark_connect(shared_cluster: PipelineCluster, tmp_path: Path) -> None:
    topic = fresh_name("connect")
    shared_cluster.create_topic(topic, 2)
    bodies = [*[b'{"n": %d}' % number for number in range(40)], *[b"x"] * 10]
    shared_cluster.send(topic, bodies, 1, properties={"TAGS": "A"})
    with ConnectServer(tmp_path / "spark") as server:
        found = run(tmp_path, "connect_session.py", server.remote, shared_cluster.namesrv, topic)
        submitted = submit(tmp_path, f"remote: '{server.remote}'", shared_cluster.namesrv, topic)
    assert "on the server and its workers, Python 3" in submitted
    assert spark_program.last_object(submitted)["counts"]["written"] == 50
    # Read, added, written, filtered, rejected, duplicates.
    assert found.pop("etl") == [50, 0, 3, 37, 10, 0]
    assert found.pop("replay") == [50, 0, 0, 50, 0, 0]
    assert found == {"rows": 50, "streamed": 50, "columns": ["queueOffset", "tags"], "archived": 50}
    assert DeltaTable(tmp_path / "lake").to_pyarrow_table(columns=["queueOffset"]).num_rows == 50
    queue = shared_cluster.queue(topic, 1)
    # The listener runs in the client and knows the last batch; the reader is one batch behind.
    assert shared_cluster.wire.group_offset("connect-listener", queue) == 50
    assert shared_cluster.wire.group_offset("connect-reader", queue) == 40


@pytest.mark.nightly
@pytest.mark.interop("java", "mvn")
@pytest.mark.timeout(1200)
def test_yarn(shared_cluster: PipelineCluster, tmp_path: Path) -> None:
    topic = fresh_name("yarn")
    shared_cluster.create_topic(topic, 2)
    shared_cluster.send(topic, [b"x"] * 50, 1)
    with YarnCluster(tmp_path / "yarn") as yarn:
        cluster = f"master: yarn, conf: {json.dumps(SPARK_CONF)}"
        where = {"HADOOP_CONF_DIR": str(yarn.configuration), "PYSPARK_PYTHON": sys.executable}
        submitted = submit(tmp_path, cluster, shared_cluster.namesrv, topic, **where)
        [application] = yarn.ask("apps")["app"]
    assert "on every worker, Python 3" in submitted
    assert spark_program.last_object(submitted)["counts"]["written"] == 50
    assert application["finalStatus"] == "SUCCEEDED"
