"""The sink `skylark-table`: Delta tables and Parquet directories, each batch committed once, without any jar.

Tasks write Parquet with pyarrow and list their files in the commit message; the driver commits them under the
query's id and the batch number, and skips a batch that was committed before.

Input rows are either data, or, on the fast path of `archive`, ranges (the source's `mode=ranges`): then the
tasks read the messages themselves, and no message passes through the JVM.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from skylark.errors import SettingsError
from skylark.pipelines.lake.parquet_files import (
    BATCH_ID_DIGITS,
    DATE,
    ROW_GROUP_BYTES,
    FileLayout,
    PartitionedFiles,
    TableFile,
    table_schema,
)
from skylark.pipelines.lake.progress import CommitProgress, batch_progress, read_checkpoint
from skylark.pipelines.lake.table_commit import commit_batch, open_log
from skylark.pipelines.lake.table_log import BatchName, TableLog
from skylark.pipelines.lake.table_reader import FileChoice, TableReader, schema_of
from skylark.pipelines.options import BYTES, COUNT, TEXT, OptionKind, choice, load, option
from skylark.pipelines.schema import COLUMNS, arrow_schema
from skylark.pipelines.sink import SPARKS_OWN
from skylark.settings.object_store import check_uri, is_uri

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT = "skylark-table"
RANGE = "range"


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


NAMES = OptionKind("names", _parse_names)


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of the sink."""

    table: str | None = option(
        TEXT, None, "both", "The table: a directory mounted on every worker, or s3://BUCKET/PATH. Required."
    )
    layout: str = option(
        choice("delta", "parquet", "iceberg"), "delta", "both", "A Delta table, Parquet files, or Iceberg."
    )
    columns: tuple[str, ...] = option(NAMES, "", "both", "Columns to keep; default all.")
    partition_by: tuple[str, ...] = option(NAMES, "", "both", "Partition columns.")
    codec: str = option(choice("zstd", "snappy", "lz4", "none"), "zstd", "both", "Compression.")
    row_group_bytes: int = option(BYTES, str(ROW_GROUP_BYTES), "both", "Row groups are closed at this size.")
    dedup_keys: int | None = option(
        COUNT, None, "both", "Drop messages whose `uniqKey` is among the last N keys."
    )
    run_id: str | None = option(TEXT, None, "both", "Part of file names; unique per run.")
    batch_name: str | None = option(
        TEXT, None, "batch", "A name that commits this batch once, even if it is written again."
    )
    progress: str | None = option(TEXT, None, "batch", "What the commit records, as JSON.")
    job: str | None = option(TEXT, None, "stream", "What is run, recorded with each commit.")
    checkpoint_location: str | None = option(TEXT, None, "stream", "Set by Spark.")
    source: str | None = option(TEXT, None, "stream", "For ranges: the source's options, as JSON.")
    topics: str | None = option(
        TEXT, None, "batch", "Read: topics whose files are read, a regular expression."
    )
    first_day: str | None = option(TEXT, None, "batch", "Read: the first day whose files are read.")
    last_day: str | None = option(TEXT, None, "batch", "Read: the last day whose files are read.")

    def __post_init__(self) -> None:
        if not self.table:
            raise SettingsError("table", "no table given; use a directory or s3://BUCKET/PATH")
        if is_uri(self.table):
            check_uri("table", self.table)
        if self.dedup_keys is not None and (is_uri(self.table) or self.layout == "iceberg"):
            raise SettingsError("dedup", f"not supported for {self.table}; use a Delta table in a directory")

    def log(self) -> TableLog:
        assert self.table is not None
        return open_log(self.layout, self.table)

    def file_layout(self, columns: Sequence[str]) -> FileLayout:
        return FileLayout(
            columns=self.columns or tuple(columns),
            partition_by=self.partition_by,
            codec=self.codec,
            row_group_bytes=self.row_group_bytes,
            with_keys=self.dedup_keys is not None,
            hive_names=self.layout == "parquet",
            keeps_partitions=self.layout == "iceberg",
        )


def read_options(given: Mapping[str, Any]) -> TableOptions:
    """Raises SettingsError."""
    ignored = SPARKS_OWN - {"checkpointlocation"}
    return load(TableOptions, {name: text for name, text in given.items() if name.lower() not in ignored})


def prepare(options: TableOptions, schema: StructType) -> None:
    """Create the table, or check that it has these columns. Raises SettingsError."""
    arrow = arrow_schema(schema)
    layout = options.file_layout(arrow.names)
    known = {*arrow.names, DATE}
    if unknown := [name for name in [*layout.columns, *layout.partition_by] if name not in known]:
        there = ", ".join(arrow.names)
        raise SettingsError("columns", f"unknown column {', '.join(unknown)}; columns are {there}")
    options.log().prepare(table_schema(layout, arrow), layout.partition_by)


@dataclass(frozen=True, slots=True)
class WrittenFiles(WriterCommitMessage):
    """A task's commit message: its files, encoded, so that no other class is pickled."""

    query: str
    files: bytes

    def decoded(self) -> list[TableFile]:
        return msgspec.msgpack.decode(self.files, type=list[TableFile])


class _TableWriting:
    """Tasks write, the driver commits, each with its own copy of this object."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self.options = options
        self.has_ranges = options.source is not None
        if self.has_ranges and RANGE not in schema.fieldNames():
            raise SettingsError(FORMAT, "with source, the input must be format rocketmq with mode=ranges")
        names = tuple(COLUMNS) if self.has_ranges else tuple(schema.fieldNames())
        self.layout = options.file_layout(names)
        self.run_id = options.run_id or uuid.uuid4().hex[:12]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        # Attempt numbers restart at 0 in every run; the run id keeps file names unique.
        place = f"{context.partitionId():04d}-{context.taskAttemptId()}"
        name = f"{self.run_id}-{batch_id:0{BATCH_ID_DIGITS}d}-{place}"
        files = PartitionedFiles(self.options.log().written, name, self.layout)
        try:
            for batch in self._messages(iterator) if self.has_ranges else iterator:
                files.write(batch)
            done = files.finish()
        except BaseException:
            files.abandon()
            raise
        query = context.getLocalProperty("sql.streaming.queryId") or self.run_id
        return WrittenFiles(query, msgspec.msgpack.encode(done))

    def _messages(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from skylark.pipelines.planner import read_range  # noqa: PLC0415  needed for ranges only

        source = msgspec.json.decode(self.options.source or "{}", type=dict[str, str])
        columns = self.layout.read_columns()
        for batch in iterator:
            for where in batch.column(RANGE).to_pylist():
                yield from read_range(source, where, columns)

    def _add(self, messages: Sequence[WriterCommitMessage | None], query: str | None, number: int) -> None:
        written = [message for message in messages if isinstance(message, WrittenFiles)]
        query = query or (written[0].query if written else self._query())
        if query is None:
            return
        files = [file for message in written for file in message.decoded()]
        batch, keys_max = BatchName(query, number), self.options.dedup_keys
        progress = self._progress(batch)
        commit_batch(self.options.log(), batch, files, seen_keys_max=keys_max, progress=progress)

    def _query(self) -> str | None:
        """The id of a stream's query."""
        checkpoint = self.options.checkpoint_location
        return read_checkpoint(Path(checkpoint)).query if checkpoint else None

    def _progress(self, batch: BatchName) -> CommitProgress | None:
        checkpoint, job = self.options.checkpoint_location, self.options.job
        if self.options.progress is not None:
            return msgspec.json.decode(self.options.progress, type=CommitProgress)
        if checkpoint is None or job is None:
            return None
        return batch_progress(Path(checkpoint), batch.application, batch.number, job)

    def _remove(self, messages: Sequence[WriterCommitMessage | None], query: str | None, number: int) -> None:
        """Delete the files of an aborted batch, unless it is committed: Spark also aborts failed commits."""
        log = self.options.log()
        for message in messages:
            if isinstance(message, WrittenFiles) and not log.has(BatchName(query or message.query, number)):
                for file in message.decoded():
                    log.written.delete(file.path)


class TableStreamWriter(_TableWriting, DataSourceStreamArrowWriter):
    """`df.writeStream.format("skylark-table")`."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._add(messages, None, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._remove(messages, None, batchId)


class TableBatchWriter(_TableWriting, DataSourceArrowWriter):
    """`df.write.format("skylark-table")`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._add(messages, self.options.batch_name, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._remove(messages, self.options.batch_name, 0)


class TableSource(DataSource):
    """Writes tables in batches and streams, and reads them in batches."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return schema_of(read_options(self.options).log())

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        choice = FileChoice(options.topics, options.first_day, options.last_day)
        return TableReader(options.log(), choice, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise SettingsError("mode", "use mode append")
        return TableBatchWriter(read_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return TableStreamWriter(read_options(self.options), schema)
