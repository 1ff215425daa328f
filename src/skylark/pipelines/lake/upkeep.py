"""Maintenance of a table: small files joined and ordered, old days and versions dropped, orphans deleted."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

import msgspec
import pyarrow as pa

from skylark.errors import SettingsError
from skylark.pipelines.lake.parquet_files import DATE, FileLayout, PartitionedFiles, TableFile
from skylark.pipelines.lake.table_log import TableLog
from skylark.pipelines.lake.table_reader import read_file, schema_of
from skylark.pipelines.schema import arrow_schema, table_columns

TARGET_BYTES = 128 << 20
MEMORY_BYTES = 256 << 20
"""Rows that are ordered at a time; a group of files may be smaller than the target because of it."""
FULL = "full-"
"""Begins the names of joined files with as many rows as are ordered at a time, however small they are."""
ORDER = ("topic", "brokerName", "queueId", "queueOffset")
VACUUM_HOURS = 7 * 24


@dataclass(frozen=True, kw_only=True)
class UpkeepRules:
    """What is maintained."""

    target_bytes: int = TARGET_BYTES
    memory_bytes: int = MEMORY_BYTES
    keep_days: int | None = None
    vacuum_hours: int = VACUUM_HOURS

    def __post_init__(self) -> None:
        if self.keep_days is not None and self.keep_days < 0:
            raise SettingsError("keep_days", f"invalid number of days {self.keep_days}; use 0 or more")


class UpkeepReport(msgspec.Struct):
    """What was done."""

    joined: int = 0
    """Small files that were replaced."""
    made: int = 0
    """Files that replace them, ordered by queue and offset."""
    expired: int = 0
    """Files of days that were dropped."""
    deleted: int = 0
    """Files that belonged to no version of the table."""


def maintain(log: TableLog, layout: FileLayout, rules: UpkeepRules, now: datetime) -> UpkeepReport:
    """Readers are not disturbed; a kill at any point leaves files to the next vacuum.

    Raises SettingsError for Parquet directories, OSError and the table's errors.
    """
    report = UpkeepReport()
    columns = arrow_schema(schema_of(log))
    layout = FileLayout(
        columns=tuple(name for name in columns.names if name != DATE),
        partition_by=layout.partition_by,
        codec=layout.codec,
        row_group_bytes=layout.row_group_bytes,
        keeps_partitions=layout.keeps_partitions,
    )
    if rules.keep_days is not None:
        report.expired = log.keep_days(rules.keep_days, now)
    for files, rows, is_full in _groups(log, table_columns(columns), rules):
        name = f"{FULL if is_full else 'joined-'}{uuid.uuid4().hex[:12]}"
        made = PartitionedFiles(log.written, name, layout)
        for batch in _ordered(rows).to_batches():
            made.write(batch)
        done = made.finish()
        log.replace(files, done)
        report.joined += len(files)
        report.made += len(done)
    log.expire(rules.vacuum_hours, now)
    report.deleted = len(log.sweep(rules.vacuum_hours))
    return report


def small_files(files: Sequence[TableFile], target_bytes: int) -> list[list[TableFile]]:
    """The files of each partition that are worth joining, in the order of their messages. Pure."""
    parts: dict[tuple[tuple[str, str], ...], list[TableFile]] = {}
    for file in files:
        if file.size < target_bytes // 2 and not PurePosixPath(file.path).name.startswith(FULL):
            parts.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    return [
        sorted(found, key=lambda file: str(file.minima.get("storeTimestamp", "")))
        for _, found in sorted(parts.items())
        if len(found) > 1
    ]


def _groups(
    log: TableLog, schema: pa.Schema, rules: UpkeepRules
) -> Iterator[tuple[list[TableFile], pa.Table, bool]]:
    """Files that become one, with their rows, and whether more did not fit: `memory_bytes` and one file."""
    for files in small_files(log.files(), rules.target_bytes):
        taken: list[TableFile] = []
        batches: list[pa.RecordBatch] = []
        for file in files:
            taken.append(file)
            batches += read_file(log.store, file.path, file.partition, schema)
            is_full = sum(each.size for each in taken) >= rules.target_bytes
            if is_full or sum(batch.nbytes for batch in batches) >= rules.memory_bytes:
                if len(taken) > 1:
                    yield taken, pa.Table.from_batches(batches, schema), True
                taken, batches = [], []
        if len(taken) > 1:
            yield taken, pa.Table.from_batches(batches, schema), False


def _ordered(rows: pa.Table) -> pa.Table:
    keys = [(name, "ascending") for name in ORDER if name in rows.column_names]
    return rows.sort_by(keys) if keys else rows
