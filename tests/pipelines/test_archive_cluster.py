"""`archive` on a standalone cluster with speculation: a task runs twice, its messages count once."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.pipelines.test_clusters import run
from tests.support.pipeline_cluster import PipelineCluster
from tests.support.spark_cluster import SparkCluster


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_task_that_runs_twice_counts_once(shared_cluster: PipelineCluster, tmp_path: Path) -> None:
    shared_cluster.create_topic("speculation", 4)
    for queue_id in range(4):
        shared_cluster.send("speculation", [b"x" * 100] * 500, queue_id)
    with SparkCluster(tmp_path / "spark") as spark:
        found = run("archive_session.py", spark.master, shared_cluster.namesrv, "speculation", str(tmp_path))
    assert found["messages"] == 2000
    attempts = found["attempts"]
    assert isinstance(attempts, list)
    assert {"0-0", "0-1"} <= set(attempts)  # the slow task was run a second time
    table = DeltaTable(tmp_path / "table")
    rows = table.to_pyarrow_table(columns=["queueId", "queueOffset"])
    assert rows.num_rows == 2000
    assert len(set(zip(*[rows[name].to_pylist() for name in rows.column_names], strict=True))) == 2000
    on_disk = {path.name for path in (tmp_path / "table").rglob("*-*-*-*.parquet")}
    assert len(on_disk) == len(table.file_uris()) + 1  # what the copy that lost had written
