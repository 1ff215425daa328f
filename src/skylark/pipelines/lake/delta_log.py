"""The log of a Delta table: one commit per batch, with the batch number as application transaction.

In an object store a commit is a conditional put, so no table of locks is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from skylark.clock import now_ms
from skylark.errors import SettingsError
from skylark.pipelines.lake.location import open_files
from skylark.pipelines.lake.parquet_files import DATE, STATISTICS_COLUMNS, TableFile
from skylark.pipelines.lake.progress import CommitProgress
from skylark.pipelines.lake.table_log import COMPACT_BYTES, BatchName, TableTotals
from skylark.settings.object_store import client_settings, is_uri

PROGRESS = "skylarkProgress"
"""Key of the progress in a Delta commit."""


def open_delta(where: str | Path) -> DeltaTable:
    """A Delta table in a directory or an object store. Raises TableNotFoundError."""
    return DeltaTable(str(where), storage_options=storage_options(where))


def has_delta(where: str | Path) -> bool:
    return DeltaTable.is_deltatable(str(where), storage_options=storage_options(where))


def storage_options(where: str | Path) -> dict[str, str] | None:
    """Settings of the table's client, from the environment of this process. Raises SettingsError."""
    return client_settings(str(where)) if is_uri(str(where)) else None


class DeltaLog:
    """A Delta table."""

    def __init__(self, where: str | Path) -> None:
        self.where = str(where)
        self.store = self.written = open_files(where)

    def _table(self) -> DeltaTable:
        return open_delta(self.where)

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        if not has_delta(self.where):
            if not is_uri(self.where):
                Path(self.where).mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                self.where,
                schema,
                mode="ignore",
                partition_by=list(partition_by),
                storage_options=storage_options(self.where),
            )
            return
        table = self._table()
        names, parts = {field.name for field in table.schema().fields}, table.metadata().partition_columns
        differences = [
            *(f"no column {name}" for name in schema.names if name not in names),
            *(f"an extra column {name}" for name in sorted(names - set(schema.names))),
        ]
        if parts != list(partition_by):
            wanted = ",".join(partition_by) or "none"
            differences.append(f"partitions {','.join(parts) or 'none'} instead of {wanted}")
        if differences:
            sentence = f"the table in {self.where} has {'; '.join(differences)}"
            raise SettingsError("to", f"{sentence}; use its columns and partitions, or another directory")

    def exists(self) -> bool:
        return has_delta(self.where)

    def has(self, batch: BatchName) -> bool:
        version = self._table().transaction_version(batch.application)
        return version is not None and version >= batch.number

    def add(
        self, batch: BatchName, files: Sequence[TableFile], progress: CommitProgress | None = None
    ) -> bool:
        table = self._table()
        version = table.transaction_version(batch.application)
        if version is not None and version >= batch.number:
            return False
        if files or progress is not None:
            rows = sum(file.rows for file in files)
            metadata = {"skylarkBatch": str(batch.number), "skylarkRows": str(rows)}
            properties = commit_properties(batch.application, batch.number, progress, metadata)
            try:
                append(table, [_add_action(file) for file in files], properties)
            except (DeltaError, OSError):
                # The store may have done it although the reply was lost.
                if not self.has(batch):
                    raise
        return True

    def last_batch(self, application: str) -> int | None:
        if not has_delta(self.where):
            return None
        return self._table().transaction_version(application)

    def commits(self, application: str) -> list[CommitProgress]:
        return [entry for entry in self._history() if entry.application == application]

    def progress(self) -> list[CommitProgress]:
        found: dict[str, CommitProgress] = {}
        for entry in self._history():
            found.setdefault(entry.application, entry)
        return list(found.values())

    def _history(self) -> Iterator[CommitProgress]:
        """Newest first."""
        if has_delta(self.where):
            for commit in self._table().history():
                if text := commit.get(PROGRESS):
                    yield msgspec.json.decode(text, type=CommitProgress)

    def sweep(self, older_than_hours: int, *, dry_run: bool = False) -> list[str]:
        return self._table().vacuum(
            retention_hours=older_than_hours, dry_run=dry_run, enforce_retention_duration=False, full=True
        )

    def replace(self, old: Sequence[TableFile], new: Sequence[TableFile]) -> None:
        table = self._table()
        # In the log a name may be written with %, as other writers do.
        names = {unquote(name): name for name in pa.table(table.get_add_actions())["path"].to_pylist()}
        if gone := [file.path for file in old if file.path not in names]:
            raise FileNotFoundError(f"{self.where}: {gone[0]} is not in the table any more")
        is_change = sum(file.rows for file in old) != sum(file.rows for file in new)
        removals = [
            RemoveAction(names[file.path], is_change, now_ms(), file.size, dict(file.partition))
            for file in old
        ]
        additions = [_add_action(file, is_change=is_change) for file in new]
        append(table, [*removals, *additions], CommitProperties())

    def add_columns(self, columns: pa.Schema) -> None:
        table = self._table()
        known = {field.name for field in table.schema().fields}
        missing = Schema.from_arrow(pa.schema([each for each in columns if each.name not in known])).fields
        if missing:
            table.alter.add_columns(missing)

    def expire(self, older_than_hours: int, now: datetime) -> None:
        table = self._table()
        table.create_checkpoint()
        table.cleanup_metadata()

    def compact(self, target_bytes: int = COMPACT_BYTES) -> dict[str, Any]:
        properties = WriterProperties(compression="ZSTD")
        metrics = self._table().optimize.compact(target_size=target_bytes, writer_properties=properties)
        return {"removed": metrics["numFilesRemoved"], "added": metrics["numFilesAdded"]}

    def keep_days(self, days: int, now: datetime) -> int:
        table = self._table()
        if DATE not in table.metadata().partition_columns:
            raise SettingsError("keep", f"not supported: the table is not partitioned by {DATE}")
        first = (now.astimezone(UTC) - timedelta(days=days)).date().isoformat()
        return int(table.delete(f"{DATE} < '{first}'")["num_removed_files"])

    def files(self) -> list[TableFile]:
        return [
            TableFile(
                path=unquote(action["path"]),
                rows=action["num_records"] or 0,
                size=action["size_bytes"],
                partition={name: str(value) for name, value in (action.get("partition") or {}).items()},
                minima=_known(action.get("min")),
                maxima=_known(action.get("max")),
            )
            for action in pa.table(self._table().get_add_actions()).to_pylist()
        ]

    def facts(self) -> TableTotals:
        actions = pa.table(self._table().get_add_actions())
        rows, sizes = actions.column("num_records").to_pylist(), actions.column("size_bytes").to_pylist()
        return TableTotals(sum(number or 0 for number in rows), len(rows), sum(sizes))


def commit_properties(
    application: str,
    number: int,
    progress: CommitProgress | None,
    metadata: Mapping[str, str] | None = None,
) -> CommitProperties:
    """Batch number and progress of a commit."""
    recorded = {} if progress is None else {PROGRESS: msgspec.json.encode(progress).decode()}
    return CommitProperties(
        app_transactions=[Transaction(application, number, now_ms())],
        custom_metadata={**(metadata or {}), **recorded},
    )


def append(
    table: DeltaTable, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties
) -> None:
    """Commit files, or with none only the properties."""
    table.create_write_transaction(
        list(actions),
        mode="append",
        schema=table.schema(),
        partition_by=list(table.metadata().partition_columns),
        commit_properties=properties,
    )


def _known(bounds: Mapping[str, Any] | None) -> dict[str, int | str]:
    """The bounds that a file has, as `TableFile` has them."""
    found: dict[str, int | str] = {}
    for name in STATISTICS_COLUMNS:
        value = (bounds or {}).get(name)
        if isinstance(value, datetime):
            found[name] = f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
        elif isinstance(value, int):
            found[name] = value
    return found


def _add_action(file: TableFile, *, is_change: bool = True) -> AddAction:
    stats = {"numRecords": file.rows, "minValues": file.minima, "maxValues": file.maxima, "nullCount": {}}
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=file.partition,
        modification_time=now_ms(),
        data_change=is_change,
        stats=msgspec.json.encode(stats).decode(),
    )
