"""Source, archive and sink on a standalone cluster with speculation: a task runs twice, its rows count once.

The workers have the driver's environment at the driver's path: one of two ways to get the package there.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.pipelines.messages import stored
from tests.pipelines.test_clusters import run
from tests.support.pipeline_cluster import PipelineCluster
from tests.support.spark_cluster import SparkCluster


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_task_that_runs_twice_counts_once(shared_cluster: PipelineCluster, tmp_path: Path) -> None:
    topic = f"speculation-{uuid.uuid4().hex[:8]}"  # the cluster is shared, with another try of this test too
    shared_cluster.create_topic(topic, 4)
    for queue_id in range(4):
        shared_cluster.send(topic, [b"x" * 100] * 500, queue_id)
    shared_cluster.create_topic(f"{topic}_copy", 4)
    with SparkCluster(tmp_path / "spark") as spark:
        found = run(tmp_path, "archive_session.py", spark.master, shared_cluster.namesrv, topic)
    assert (found["rows"], found["streamed"], found["messages"], found["executors"]) == (2000, 2000, 2000, 2)
    for job in ("archive", "copy"):
        assert {f"{job}-0-0", f"{job}-0-1"} <= set(found["attempts"])  # the slow task was run a second time
    table = DeltaTable(tmp_path / "table")
    rows = table.to_pyarrow_table(columns=["queueId", "queueOffset"])
    assert rows.num_rows == 2000
    assert len(set(zip(*[rows[name].to_pylist() for name in rows.column_names], strict=True))) == 2000
    on_disk = {path.name for path in (tmp_path / "table").rglob("*-*-*-*.parquet")}
    assert len(on_disk) > len(table.file_uris())  # what the copy that lost had written
    copies = stored(shared_cluster, f"{topic}_copy")
    assert len(copies) > 2000  # both have sent
    assert len({message.unique_key for message in copies}) == 2000
