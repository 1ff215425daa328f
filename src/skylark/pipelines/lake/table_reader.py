"""Reads tables by tasks in Python: Spark's own readers need a jar for every kind of object store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import DateType, StringType, StructField, StructType

from skylark.pipelines.lake.delta_log import DeltaLog, open_delta
from skylark.pipelines.lake.file_store import FileStore
from skylark.pipelines.lake.location import open_files
from skylark.pipelines.lake.parquet_files import DATE, TableFile
from skylark.pipelines.lake.table_log import TableLog
from skylark.pipelines.schema import COLUMNS, arrow_schema

BATCH_ROWS = 32 * 1024
TASK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Files of a table by their partition values; None means any."""

    topics: str | None = None
    """A regular expression for the whole name."""
    first_day: str | None = None
    last_day: str | None = None

    def accepts(self, partition: Mapping[str, Any]) -> bool:
        """Return whether files with these values may hold what is wanted."""
        day, topic = partition.get(DATE), partition.get("topic")
        if topic is not None and self.topics is not None and not re.fullmatch(self.topics, str(topic)):
            return False
        if day is None:
            return True
        return (self.first_day or "") <= str(day) <= (self.last_day or "9999")


def schema_of(log: TableLog) -> StructType:
    """The columns of a table, as Spark has them. Raises OSError and the table's errors."""
    if isinstance(log, DeltaLog):
        return StructType.fromJson(msgspec.json.decode(open_delta(log.where).schema().to_json()))
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  slow to import

    if (columns := getattr(log, "columns", None)) is not None:
        return from_arrow_schema(columns())
    first = next(iter(log.files()), None)
    if first is None:
        return StructType([StructField(name, kind) for name, kind in COLUMNS.items()])
    with log.store.input(first.path) as source:
        stored = from_arrow_schema(pq.read_schema(source)).fields
    kinds = {DATE: DateType(), **COLUMNS}
    parts = [StructField(name, kinds.get(name, StringType())) for name in first.partition]
    return StructType([*[StructField(each.name, each.dataType) for each in stored], *parts])


def read_file(
    files: FileStore, path: str, partition: Mapping[str, str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with these columns, those of its partition included. Raises OSError."""
    with files.input(path) as source:
        parquet = pq.ParquetFile(source)
        there = set(parquet.schema_arrow.names)
        names = [name for name in schema.names if name in there]
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=names):
            columns = [_column(batch, field, partition) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field, partition: Mapping[str, str]) -> pa.Array:
    if field.name in batch.schema.names:
        column = batch.column(field.name)
        return column if column.type == field.type else column.cast(field.type)
    if (text := partition.get(field.name)) is None:
        return pa.nulls(batch.num_rows, field.type)  # a column that was added later
    return pa.repeat(pa.scalar(text).cast(field.type), batch.num_rows)


class FilesPartition(InputPartition):
    """The files of one task: paths and partition values."""

    def __init__(self, files: list[tuple[str, dict[str, str]]]) -> None:
        super().__init__(None)
        self.files = files


def file_tasks(files: Iterable[TableFile], task_bytes: int = TASK_BYTES) -> list[FilesPartition]:
    """Distribute files over tasks; small ones are packed."""
    tasks: list[FilesPartition] = []
    room = 0
    for file in files:
        if room <= 0:
            tasks.append(FilesPartition([]))
            room = task_bytes
        tasks[-1].files.append((file.path, file.partition))
        room -= file.size
    return tasks


class TableReader(DataSourceReader):
    """`spark.read.format("skylark-table")`: the newest version of a table."""

    def __init__(self, log: TableLog, choice: FileChoice, schema: StructType) -> None:
        self._where = log.store.where
        # Chosen when the query is planned: the reader is pickled to the tasks, the log cannot be.
        self._tasks = file_tasks(file for file in log.files() if choice.accepts(file.partition))
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return self._tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FilesPartition):
            return  # Spark's placeholder for no partitions
        files, schema = open_files(self._where), arrow_schema(self._schema)
        for path, values in partition.files:
            yield from read_file(files, path, values, schema)
