"""Parquet files of a table: written by tasks, one per partition value, with row groups limited by bytes.

A file becomes part of the table when a commit names it (`lake.table_log`), so a task may fail at any point.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from skylark.pipelines.dedup import KEY_BYTES, digest
from skylark.pipelines.lake.file_store import FileStore
from skylark.pipelines.schema import table_columns

DATE = "dt"
"""Derived partition column: the day, in UTC, on which a message was stored."""
DICTIONARY_COLUMNS = ("topic", "brokerName", "tags", "bornHost", "storeHost")
"""Other columns rarely repeat: a dictionary would cost time and space."""
STATISTICS_COLUMNS = ("queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp")
"""Columns with minimum and maximum in the log; numbers among them are delta-encoded."""
ROW_GROUP_BYTES = 64 << 20
FILE_BYTES_MAX = 1 << 30
"""Arrow bytes per file; the file itself is smaller."""
FILES_OPEN_MAX = 8
VALUES_AT_ONCE = 16 << 10
"""Between two looks at the size of a page: the default of 1024 takes a sixth longer."""
WAITING_GROUPS_MAX = 2
"""Row groups buffered in memory; above this the largest is written early."""
BATCH_ID_DIGITS = 8
NO_KEY = bytes(KEY_BYTES)
_EPOCH = datetime(1970, 1, 1)
"""Arrow's epoch."""


class TableFile(msgspec.Struct, frozen=True):
    """A complete file, as a commit needs it."""

    path: str
    """Relative to the table's directory."""
    rows: int
    size: int
    partition: dict[str, str]
    minima: dict[str, int | str]
    maxima: dict[str, int | str]
    keys: bytes = b""
    """Digests of the rows' unique keys, in row order, for deduplication."""


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """Columns, partitions and encoding of files."""

    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    codec: str = "zstd"
    row_group_bytes: int = ROW_GROUP_BYTES
    with_keys: bool = False
    hive_names: bool = False
    keeps_partitions: bool = False
    """Whether the files have the columns by which they are partitioned, with minima and maxima."""

    def file_columns(self) -> list[str]:
        """Columns in the files; otherwise partition values are in the log and the paths."""
        return [name for name in self.columns if self.keeps_partitions or name not in self.partition_by]

    def counted_columns(self) -> list[str]:
        """Columns of the files with minima and maxima."""
        return [name for name in self.file_columns() if name in (*STATISTICS_COLUMNS, *self.partition_by)]

    def read_columns(self) -> list[str]:
        """Columns that must be read to write the files."""
        needed = list(self.columns)
        needed += [name for name in self.partition_by if name != DATE and name not in needed]
        if DATE in self.partition_by and "storeTimestamp" not in needed:
            needed.append("storeTimestamp")
        return needed + (["uniqKey"] if self.with_keys and "uniqKey" not in needed else [])


def table_schema(layout: FileLayout, columns: pa.Schema) -> pa.Schema:
    """The table's schema: the kept columns, plus the day if it is a partition."""
    names = [name for name in dict.fromkeys([*layout.columns, *layout.partition_by]) if name != DATE]
    fields = [table_columns(columns).field(name) for name in names]
    return pa.schema(fields + ([pa.field(DATE, pa.date32())] if DATE in layout.partition_by else []))


def directory(partition: Mapping[str, str], *, hive_names: bool) -> str:
    """`dt=2026-11-15/topic=orders`. Hive readers unescape `%`; Delta reads values from its log."""
    if hive_names:
        return "/".join(f"{name}={quote(value, safe='')}" for name, value in partition.items())
    return "/".join(f"{name}={_plain(value)}" for name, value in partition.items())


def _plain(value: str) -> str:
    return re.sub(r"[^\w.-]", lambda match: f"~{ord(match[0]):x}", value, flags=re.ASCII)


@dataclass(slots=True)
class _OpenFile:
    """A file being written, with the buffer of its next row group."""

    sink: Any
    writer: pq.ParquetWriter
    path: str
    partition: dict[str, str]
    schema: pa.Schema
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    rows: int = 0
    arrow_bytes: int = 0
    minima: dict[str, Any] = field(default_factory=dict)
    maxima: dict[str, Any] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)


class PartitionedFiles:
    """The files of one task. `name` must be unique among all attempts."""

    def __init__(self, files: FileStore, name: str, layout: FileLayout) -> None:
        self._files = files
        self._name = name
        self._layout = layout
        self._open: dict[tuple[str, ...], _OpenFile] = {}
        self._done: list[TableFile] = []
        self._count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write messages. Raises OSError, pa.ArrowException."""
        for values, part in self._parts(batch):
            file = self._file(values, part.schema)
            self._note(file, part)
            kept = part.select(self._layout.file_columns())
            file.waiting.append(kept)
            file.waiting_bytes += kept.nbytes
            if file.waiting_bytes >= self._layout.row_group_bytes:
                self._write_group(file)
            if self.waiting_bytes > WAITING_GROUPS_MAX * self._layout.row_group_bytes:
                self._write_group(max(self._open.values(), key=lambda each: each.waiting_bytes))
            if file.arrow_bytes >= FILE_BYTES_MAX:
                self._finish_file(values)

    @property
    def waiting_bytes(self) -> int:
        """Bytes buffered for incomplete row groups."""
        return sum(file.waiting_bytes for file in self._open.values())

    def finish(self) -> list[TableFile]:
        """Close all files and return them."""
        for values in list(self._open):
            self._finish_file(values)
        return self._done

    def abandon(self) -> None:
        """Close and delete all files."""
        for file in self._open.values():
            file.writer.close()
            file.sink.close()
            self._files.delete(file.path)
        for done in self._done:
            self._files.delete(done.path)
        self._open.clear()

    def _parts(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
        """Split a batch by partition values. Most batches have a single one."""
        columns = [self._partition_column(name, batch) for name in self._layout.partition_by]
        if all(_is_constant(column) for column in columns):
            if batch.num_rows:
                yield tuple(str(column[0].as_py()) for column in columns), batch
            return
        rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
        for values in dict.fromkeys(rows):
            mask = pa.array([row == values for row in rows])
            yield tuple(str(value) for value in values), batch.filter(mask)

    def _partition_column(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        if name == DATE and DATE not in batch.schema.names:
            return batch.column("storeTimestamp").cast(pa.timestamp("us")).cast(pa.date32())
        return batch.column(name)

    def _file(self, values: tuple[str, ...], schema: pa.Schema) -> _OpenFile:
        file = self._open.pop(values, None)
        if file is None:
            if len(self._open) >= FILES_OPEN_MAX:
                self._finish_file(next(iter(self._open)))
            file = self._start_file(values, schema)
        self._open[values] = file  # most recently used last
        return file

    def _start_file(self, values: tuple[str, ...], schema: pa.Schema) -> _OpenFile:
        partition = dict(zip(self._layout.partition_by, values, strict=True))
        folder = directory(partition, hive_names=self._layout.hive_names)
        path = f"{folder}/{self._name}-{self._count}.parquet".removeprefix("/")
        self._count += 1
        sink = self._files.output(path)
        names = self._layout.file_columns()
        known = self._layout.counted_columns()
        numbers = [name for name in known if _is_number(schema.field(name).type)]
        writer = pq.ParquetWriter(
            sink,
            pa.schema([schema.field(name) for name in names]),
            compression=self._layout.codec,
            use_dictionary=[name for name in DICTIONARY_COLUMNS if name in names],
            write_statistics=known,
            column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
            write_batch_size=VALUES_AT_ONCE,
        )
        return _OpenFile(sink, writer, path, partition, schema)

    def _note(self, file: _OpenFile, part: pa.RecordBatch) -> None:
        file.rows += part.num_rows
        for name in STATISTICS_COLUMNS:
            if name in part.schema.names and name in self._layout.columns:
                extremes = pc.min_max(_countable(part.column(name))).as_py()
                if extremes["min"] is not None:
                    file.minima[name] = min(file.minima.get(name, extremes["min"]), extremes["min"])
                    file.maxima[name] = max(file.maxima.get(name, extremes["max"]), extremes["max"])
        if self._layout.with_keys:
            keys = part.column("uniqKey").to_pylist()
            file.keys += [NO_KEY if key is None else digest(key) for key in keys]

    def _write_group(self, file: _OpenFile) -> None:
        if file.waiting:
            table = pa.Table.from_batches(file.waiting)
            file.writer.write_table(table, row_group_size=max(table.num_rows, 1))
        file.arrow_bytes += file.waiting_bytes
        file.waiting, file.waiting_bytes = [], 0

    def _finish_file(self, values: tuple[str, ...]) -> None:
        file = self._open.pop(values)
        self._write_group(file)
        file.writer.close()
        size = file.sink.tell()
        file.sink.close()
        self._done.append(
            TableFile(
                path=file.path,
                rows=file.rows,
                size=size,
                partition=file.partition,
                minima=_bounds(file.minima, file.schema),
                maxima=_bounds(file.maxima, file.schema),
                keys=b"".join(file.keys),
            )
        )


def _is_constant(column: pa.Array) -> bool:
    extremes = pc.min_max(column)
    return len(column) == 0 or (column.null_count == 0 and extremes["min"] == extremes["max"])


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


def _countable(column: pa.Array) -> pa.Array:
    """Times as numbers: a client's timestamp may lie outside Python's range of years."""
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _bounds(values: dict[str, Any], schema: pa.Schema) -> dict[str, int | str]:
    """Minima or maxima in Delta's format, without unsupported values."""
    plain = {name: _plain_value(value, schema.field(name).type) for name, value in values.items()}
    return {name: value for name, value in plain.items() if value is not None}


def _plain_value(value: Any, kind: pa.DataType) -> int | str | None:
    if pa.types.is_timestamp(kind):
        try:
            return f"{(_EPOCH + timedelta(microseconds=value)).isoformat(timespec='microseconds')}Z"
        except OverflowError:
            return None
    return value.isoformat() if isinstance(value, date) else value


def without_rows(
    files: FileStore, file: TableFile, dropped: Sequence[int], suffix: str = "deduplicated"
) -> TableFile:
    """Rewrite a file without some rows; the old file is left to the sweep. Raises OSError."""
    with files.input(file.path) as source:
        table = pq.read_table(source)
    mask = [True] * table.num_rows
    for row in dropped:
        mask[row] = False
    kept = table.filter(pa.array(mask))
    path = file.path.removesuffix(".parquet") + f"-{suffix}.parquet"
    with files.output(path) as sink:
        pq.write_table(
            kept,
            sink,
            compression="zstd",
            use_dictionary=[name for name in DICTIONARY_COLUMNS if name in kept.column_names],
        )
        size = sink.tell()
    # Minima and maxima remain valid bounds.
    return msgspec.structs.replace(file, path=path, rows=kept.num_rows, size=size)
