"""`delivery=exactly-once` in Spark whose Python processes are killed: consumers see each row once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.pipelines import mortal_sink as mortal
from tests.pipelines.messages import stored
from tests.pipelines.streams import until
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITS = "skylark-spark-commits"


class CopiedTopic:
    """A topic with some batches of rows, and the one that a query copies it to."""

    def __init__(self, cluster: PipelineCluster, directory: Path, batches: int) -> None:
        self.cluster = cluster
        self.directory = directory
        self.topic, self.copy = fresh_name("rows"), fresh_name("copy")
        for name, queues in ((self.topic, 2), (self.copy, 4), (COMMITS, 1)):
            cluster.create_topic(name, queues)
        rows = mortal.ROWS_PER_BATCH * batches // 2
        self.bodies = [b"%d" % number for number in range(2 * rows)]
        for queue in range(2):
            cluster.send(self.topic, self.bodies[queue * rows : (queue + 1) * rows], queue)

    def seen(self) -> Counter[bytes]:
        """How often a consumer sees each body, once it sees all."""
        until(lambda: len(stored(self.cluster, self.copy)) >= len(self.bodies), "all rows")
        return Counter(message.body for message in stored(self.cluster, self.copy))

    def tries(self) -> Counter[tuple[str, str]]:
        """How often each task of each batch was started."""
        lines = (self.directory / mortal.TRIES).read_text().splitlines()
        return Counter((batch, part) for batch, part in map(str.split, lines))


def once(copied: CopiedTopic) -> Counter[bytes]:
    return Counter(copied.bodies)


@pytest.mark.timeout(300)
def test_a_killed_task_and_a_killed_commit_show_each_row_once(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    copied = CopiedTopic(shared_cluster, tmp_path, batches=2)
    namesrv = shared_cluster.namesrv
    spark.dataSource.register(mortal.mortal_source(mortal.TASK_SENT, 1, tmp_path))
    mortal.copying(spark, namesrv, copied.topic, copied.copy, tmp_path).start().awaitTermination()
    assert copied.seen() == once(copied)
    assert copied.tries()[("1", "0")] > 1, "a task was tried again"
    rows = mortal.ROWS_PER_BATCH // 2
    copied.bodies += [b"more %d" % number for number in range(2 * rows)]
    for queue in range(2):
        shared_cluster.send(copied.topic, copied.bodies[-rows * (2 - queue) :][:rows], queue)
    spark.dataSource.register(mortal.mortal_source(mortal.COMMITTING, 2, tmp_path))
    with pytest.raises(StreamingQueryException):
        mortal.copying(spark, namesrv, copied.topic, copied.copy, tmp_path).start().awaitTermination()
    mortal.copying(spark, namesrv, copied.topic, copied.copy, tmp_path).start().awaitTermination()
    assert copied.seen() == once(copied)
