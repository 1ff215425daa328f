"""Where the files of a batch are written: in this process, or by the tasks of a Spark cluster.

Either way the bytes take the same road (`write_ranges`): broker, Arrow, Parquet; and the caller commits.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa

from skylark.pipelines.lake.json_columns import JsonColumns
from skylark.pipelines.lake.parquet_files import PartitionedFiles, TableFile
from skylark.pipelines.lake.table_sink import read_options
from skylark.pipelines.message_source import OffsetRange
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import TaskLimits, read_ranges, tasks_of
from skylark.pipelines.schema import COLUMNS, arrow_schema, columns_schema, table_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = "files"


class WriteOrder(msgspec.Struct, frozen=True):
    """Messages and the table to whose store they are written. `name` begins the names of the files."""

    table: dict[str, str]
    source: dict[str, str]
    name: str
    ranges: list[OffsetRange]
    sizes: list[float]
    """Mean bytes of a record of each range."""


class Engine(Protocol):
    """Writes the files of a batch."""

    def write(self, order: WriteOrder) -> list[TableFile]:
        """Raises RocketMQError, OSError; files of a failed attempt are left to the sweep."""


def write_ranges(table: Mapping[str, str], source: Mapping[str, str], name: str,
                 ranges: Sequence[OffsetRange]) -> list[TableFile]:  # fmt: skip
    """Write messages to files that no commit names yet."""
    settings = read_options(table)
    layout = settings.file_layout(tuple(COLUMNS))
    schema = table_columns(arrow_schema(columns_schema(layout.read_columns())))
    attempt = f"{name}-{uuid.uuid4().hex[:8]}"  # of two attempts one is committed
    files = PartitionedFiles(settings.log().written, attempt, layout)
    try:
        for batch in read_ranges(load(SourceOptions, source), ranges, schema):
            files.write(batch)
        return files.finish()
    except BaseException:
        files.abandon()
        raise


def write_decoded(order: WriteOrder, columns: JsonColumns) -> list[TableFile]:
    """As `write_ranges`, with the fields of JSON bodies as columns, which may grow."""
    settings = read_options(order.table)
    schema = table_columns(arrow_schema(columns_schema(settings.file_layout(tuple(COLUMNS)).read_columns())))
    done: list[TableFile] = []
    files: PartitionedFiles | None = None
    names: tuple[str, ...] = ()
    try:
        for batch in read_ranges(load(SourceOptions, order.source), order.ranges, schema):
            added = columns.decode(batch.column("body"))
            if files is None or names != tuple(added):
                done += files.finish() if files is not None else []
                names = tuple(added)
                attempt = f"{order.name}-{uuid.uuid4().hex[:8]}"
                layout = settings.file_layout((*COLUMNS, *names))
                files = PartitionedFiles(settings.log().written, attempt, layout)
            fields = [*batch.schema, *(pa.field(name, array.type) for name, array in added.items())]
            arrays = [*batch.columns, *added.values()]
            files.write(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
        return done + (files.finish() if files is not None else [])
    except BaseException:
        if files is not None:
            files.abandon()
        raise


class LocalEngine:
    """This process: no JVM, one core."""

    def write(self, order: WriteOrder) -> list[TableFile]:
        return write_ranges(order.table, order.source, order.name, order.ranges)


class SparkEngine:
    """The tasks of a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        context = getattr(spark, "sparkContext", None)
        self._limits = TaskLimits(
            max_tasks=64, tasks_at_once=context.defaultParallelism if context is not None else None
        )

    def write(self, order: WriteOrder) -> list[TableFile]:
        tasks = tasks_of(order.ranges, order.sizes, self._limits)
        rows = [(number, msgspec.json.encode(task)) for number, task in enumerate(tasks)]
        planned = self._spark.createDataFrame(rows, "number int, ranges binary")
        written = planned.repartitionByRange(len(rows), "number").mapInArrow(
            _work_of(order), f"{FILES} binary"
        )
        return [
            file
            for row in written.collect()
            for file in msgspec.msgpack.decode(bytes(row[0]), type=list[TableFile])
        ]


def _work_of(order: WriteOrder) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does with its ranges."""
    table, source, name = order.table, order.source, order.name

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column("ranges").to_pylist():
                ranges = msgspec.json.decode(text, type=list[OffsetRange])
                done = msgspec.msgpack.encode(write_ranges(table, source, name, ranges))
                yield pa.RecordBatch.from_pydict({FILES: pa.array([done], pa.binary())})

    return work
