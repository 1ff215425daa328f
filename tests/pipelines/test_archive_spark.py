"""`archive` in a real session: every message once, whatever fails, and files that belong to nothing swept."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from skylark.errors import SettingsError
from skylark.model.archived_topics import LAKE_RULES, ArchivedTopics
from skylark.pipelines.jobs import archive as job
from skylark.pipelines.jobs.endpoints import Input, Output, parse_output
from skylark.pipelines.jobs.queries import QueryProgress
from skylark.pipelines.jobs.session import register
from skylark.pipelines.lake import table_sink
from skylark.pipelines.lake.table_commit import open_log
from skylark.pipelines.schema import COLUMNS
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def formats(spark: SparkSession) -> Iterator[SparkSession]:
    register(spark)
    yield spark
    register(spark)


@pytest.fixture
def topic(shared_cluster: PipelineCluster) -> str:
    name = f"A{uuid.uuid4().hex[:10]}"
    shared_cluster.create_topic(name, 3)
    return name


class Archive:
    """An archive of one topic in a test's directory."""

    def __init__(self, spark: SparkSession, source: Input, directory: Path, to: str = "delta") -> None:
        self.spark = spark
        self.source = source
        self.directory = directory
        self.output = parse_output(f"{to}:{directory / 'table'}")

    def run(self, output: Output | None = None, **changes: Any) -> Any:
        return job.archive(
            self.spark,
            self.source,
            output or self.output,
            state=self.directory / "state",
            once=True,
            **changes,
        )

    def rows(self) -> list[tuple[int, int]]:
        if self.output.kind == "delta":
            table = DeltaTable(self.output.where).to_pyarrow_table()
        else:
            table = ds.dataset(self.output.where, format="parquet", partitioning="hive").to_table()
        pairs = zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True)
        return sorted(pairs)

    def files(self) -> set[str]:
        """The names of all data files on disk, whether they belong or not."""
        return {
            path.name for path in Path(self.output.where).rglob("*.parquet") if "_delta_log" not in path.parts
        }

    def forget_last_commit(self) -> None:
        """As if the process had ended before Spark wrote down that its last batch was done."""
        commits = self.directory / "state" / "checkpoints" / "archive" / "commits"
        last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


def send(cluster: PipelineCluster, topic: str, count: int, queues: int = 3) -> None:
    for queue_id in range(queues):
        bodies = [b"%d/%d" % (queue_id, number) for number in range(count)]
        cluster.send(
            topic,
            bodies,
            queue_id,
            properties={"TAGS": "t{n}", "KEYS": "k{n} all", "UNIQ_KEY": f"{topic}{queue_id}-{{n}}"},
        )


def expected(count: int, queues: int = 3) -> list[tuple[int, int]]:
    return [(queue_id, number) for queue_id in range(queues) for number in range(count)]


def test_an_archive_with_a_group_registers_its_topics_with_the_broker(
    formats: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    """Retention keeps topics that the pattern chooses, and the archive has not met yet."""
    send(shared_cluster, topic, 3)
    group, pattern = f"group-{topic}", f"{topic}.*"
    source = Input(namesrv=shared_cluster.namesrv, topic=pattern, group=group)
    assert Archive(formats, source, tmp_path).run().counts.written == 9
    wire = shared_cluster.wire
    [config] = [wire.group_config(address, group) for address in wire.masters()]
    assert config is not None
    assert ArchivedTopics.decode(config.attributes[LAKE_RULES]) == ArchivedTopics(topics=(pattern,))


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_an_archive_holds_what_the_source_reads(
    formats: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path, kind: str
) -> None:
    send(shared_cluster, topic, 700)
    source = Input(namesrv=shared_cluster.namesrv, topic=topic)
    archive = Archive(formats, source, tmp_path, kind)
    seen: list[QueryProgress] = []
    summary = archive.run(watch=seen.append)
    assert summary.counts.written == 2100
    assert [(progress.batch, progress.messages) for progress in seen] == [(0, 2100)]
    if kind == "delta":
        table = DeltaTable(archive.output.where).to_pyarrow_table()
        assert all(field.nullable for field in DeltaTable(archive.output.where).schema().fields)
    else:
        table = ds.dataset(archive.output.where, format="parquet", partitioning="hive").to_table()
    order = [("queueId", "ascending"), ("queueOffset", "ascending")]
    archived = table.select(list(COLUMNS)).sort_by(order)
    read = source.read(formats).select(*COLUMNS).toArrow().sort_by(order)
    assert archived.to_pylist() == read.to_pylist()


def test_an_archive_from_store_files_equals_one_from_the_broker(
    formats: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    send(shared_cluster, topic, 300)
    seven = "topic,queueId,queueOffset,storeTimestamp,tags,keys,body"
    tables = []
    for name, source in {
        "broker": Input(namesrv=shared_cluster.namesrv, topic=topic),
        "files": Input(store=Path(shared_cluster.files_of(topic)), topic=topic),
    }.items():
        archive = Archive(formats, source, tmp_path / name)
        output = parse_output(str(archive.output), columns=seven, partitionBy="dt")
        archive.run(output)
        order = [("queueId", "ascending"), ("queueOffset", "ascending")]
        tables.append(DeltaTable(output.where).to_pyarrow_table().sort_by(order))
    assert tables[0].column_names == [*seven.split(","), "dt"]
    assert tables[0].num_rows == 900
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize("kind", ["delta", pytest.param("parquet", marks=pytest.mark.nightly)])
def test_a_restart_whose_first_batch_is_a_replay_adds_nothing_twice(
    formats: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path, kind: str
) -> None:
    archive = Archive(formats, Input(namesrv=shared_cluster.namesrv, topic=topic), tmp_path, kind)
    send(shared_cluster, topic, 200)
    archive.run()
    before = archive.files()
    archive.forget_last_commit()
    send(shared_cluster, topic, 100)
    archive.run()
    assert archive.rows() == expected(300)
    # The replay wrote its own files; none of them has a name of the first try.
    after = archive.files()
    assert before < after
    orphans = open_log(kind, archive.output.where).sweep(0)
    assert len(orphans) == len(before)
    assert archive.rows() == expected(300)


def test_a_task_that_fails_after_its_file_is_complete_leaves_only_that_file(
    formats: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    mark = str(tmp_path / "failed")

    class FailsOnce(table_sink.TableStreamWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            from pathlib import Path as P

            done = super().write(iterator)
            if not P(mark).exists():
                P(mark).touch()
                raise RuntimeError("after the file was complete")
            return done

    class FailingSource(table_sink.TableSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return FailsOnce(table_sink.read_options(self.options), schema)

    send(shared_cluster, topic, 200)
    formats.dataSource.register(FailingSource)
    archive = Archive(formats, Input(namesrv=shared_cluster.namesrv, topic=topic), tmp_path)
    archive.run()
    assert Path(mark).exists()
    assert archive.rows() == expected(200)
    living = {Path(path).name for path in DeltaTable(archive.output.where).file_uris()}
    assert len(archive.files() - living) == 1


def test_messages_with_a_known_key_are_dropped_on_demand(
    formats: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    send(shared_cluster, topic, 100)
    send(shared_cluster, topic, 50)  # the same keys once more
    archive = Archive(formats, Input(namesrv=shared_cluster.namesrv, topic=topic), tmp_path)
    output = parse_output(str(archive.output), dedupKeys="10000")
    archive.run(output)
    send(shared_cluster, topic, 20)
    archive.run(output)
    assert archive.rows() == expected(100)


def test_files_are_joined_and_old_days_forgotten(
    formats: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    archive = Archive(formats, Input(namesrv=shared_cluster.namesrv, topic=topic), tmp_path)
    for _ in range(2):
        send(shared_cluster, topic, 50)
        archive.run()
    send(shared_cluster, topic, 50)
    summary = archive.run(upkeep=job.Upkeep(compact_every_s=3600, keep_days=2))
    assert summary.details["compacted"]["added"] == 1
    assert summary.details["files_expired"] == 0
    assert archive.rows() == expected(150)


def test_what_cannot_be_archived_is_refused(tmp_path: Path) -> None:
    source = Input(namesrv="h:1", topic="orders")
    table, files = parse_output(f"delta:{tmp_path}"), parse_output(f"parquet:{tmp_path}")
    by_topic = parse_output(f"delta:{tmp_path}", partitionBy="topic")
    for output, upkeep, sentence in (
        (parse_output("topic:other"), {}, "use delta:DIR or parquet:DIR"),
        (parse_output(f"delta:{tmp_path}", columns="body,colour"), {}, "unknown column colour"),
        (parse_output(f"delta:{tmp_path}", partitionBy="dt,colour"), {}, "unknown column colour"),
        (parse_output(f"delta:{tmp_path}", dedupKeys="0"), {}, "dedupKeys: invalid count '0'"),
        (files, {"compact_every_s": 1.0}, "only Delta tables are compacted"),
        (by_topic, {"keep_days": 3}, "not partitioned by dt"),
        (table, {"keep_days": -1}, "invalid number of days -1"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            job.options(source, output, job.Upkeep(**upkeep))
    assert list(tmp_path.iterdir()) == []  # all of it before anything is made
