"""`delivery=exactly-once` in Spark whose tasks and drivers are killed: consumers see each row once."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.pipelines import mortal_sink as mortal
from tests.pipelines.messages import stored
from tests.pipelines.streams import until
from tests.support import spark_program
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster
from tests.support.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = Path(mortal.__file__)
SCRIPT_TIMEOUT_S = 600
COMMITS = "skylark-spark-commits"
BATCHES = 8


class CopiedTopic:
    """A topic with some batches of rows, and the one that a query copies it to."""

    def __init__(self, cluster: PipelineCluster, directory: Path, batches: int = BATCHES) -> None:
        self.cluster = cluster
        self.directory = directory
        self.topic, self.copy = fresh_name("rows"), fresh_name("copy")
        for name, queues in ((self.topic, 2), (self.copy, 4), (COMMITS, 1)):
            cluster.create_topic(name, queues)
        rows = mortal.ROWS_PER_BATCH * batches // 2
        self.bodies = [b"%d" % number for number in range(2 * rows)]
        for queue in range(2):
            cluster.send(self.topic, self.bodies[queue * rows : (queue + 1) * rows], queue)
        self._runs = 0

    def run(self, master: str, step: str, batch: int = 0) -> bool:
        """Run the query as a program until it ends or is killed; return whether it ended."""
        self._runs += 1
        where = (self.cluster.namesrv, self.topic, self.copy, str(self.directory))
        command = [sys.executable, str(SCRIPT), master, *where, step, str(batch)]
        env = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(SCRIPT.parents[2])}
        with spark_program.started(command, self.directory / f"run-{self._runs}.log", env) as program:
            until(lambda: not program.running, "the end of the query", SCRIPT_TIMEOUT_S)
            return '{"is_done": true}' in program.log_text()

    def seen(self) -> Counter[bytes]:
        """How often a consumer sees each body, once it sees all."""
        until(lambda: len(stored(self.cluster, self.copy)) >= len(self.bodies), "all rows")
        return Counter(message.body for message in stored(self.cluster, self.copy))

    def tries(self) -> Counter[tuple[str, str]]:
        """How often each task of each batch was started."""
        lines = (self.directory / mortal.TRIES).read_text().splitlines()
        return Counter((batch, part) for batch, part, _ in map(str.split, lines))


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
    spark.dataSource.register(mortal.mortal_source(mortal.DRIVER_BETWEEN, 2, tmp_path))
    with pytest.raises(StreamingQueryException):
        mortal.copying(spark, namesrv, copied.topic, copied.copy, tmp_path).start().awaitTermination()
    assert (tmp_path / "killed").exists()
    mortal.copying(spark, namesrv, copied.topic, copied.copy, tmp_path).start().awaitTermination()
    assert copied.seen() == once(copied)


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_a_driver_killed_at_each_step_shows_each_row_once(
    shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    copied = CopiedTopic(shared_cluster, tmp_path)
    for batch, step in enumerate(mortal.DRIVER_STEPS):
        assert not copied.run("local[2,4]", step, batch), f"not killed: {step}"
    assert copied.run("local[2,4]", mortal.NONE)
    assert copied.seen() == once(copied)
    assert all(copied.tries()[(str(batch), "0")] > 1 for batch in range(len(mortal.DRIVER_STEPS)))


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_speculative_task_shows_each_row_once(shared_cluster: PipelineCluster, tmp_path: Path) -> None:
    copied = CopiedTopic(shared_cluster, tmp_path, batches=2)
    with SparkCluster(tmp_path / "spark") as cluster:
        assert copied.run(cluster.master, mortal.TASK_SLOW, 1)
    assert copied.seen() == once(copied)
    assert copied.tries()[("1", "0")] > 1, "a copy of the task ran"


@pytest.mark.nightly
@pytest.mark.interop("java", "mvn")
@pytest.mark.timeout(2400)
def test_apaches_broker_shows_a_row_again_only_if_the_driver_dies_while_it_commits(
    apache_cluster: PipelineCluster, tmp_path: Path
) -> None:
    copied = CopiedTopic(apache_cluster, tmp_path)
    steps = (mortal.DRIVER_SENDS, mortal.DRIVER_SENT, mortal.DRIVER_BEFORE, mortal.DRIVER_DECIDED)
    for batch, step in enumerate(steps):
        assert not copied.run("local[2,4]", step, batch), f"not killed: {step}"
    assert not copied.run("local[2,4]", mortal.DRIVER_BETWEEN, len(steps))
    assert copied.run("local[2,4]", mortal.NONE)
    again = {body: count for body, count in copied.seen().items() if count > 1}
    assert copied.seen().keys() == once(copied).keys()
    assert 0 < len(again) <= 4, "only rows committed before the kill"
