"""The commit log of a table: adds files batch by batch, each batch once.

`DeltaLog` keeps a Delta table: the batch number is part of the table's transaction. `ParquetLog` keeps a
plain directory of Parquet files: a batch is committed when its manifest exists; its files are then moved into
place, if necessary by the next writer. Both allow one writer at a time (Spark allows one per checkpoint).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from deltalake.transaction import AddAction

from skylark.atomic_file import write_file
from skylark.errors import SettingsError
from skylark.pipelines.dedup import KEY_BYTES, SeenKeys
from skylark.pipelines.lake.parquet_files import DATE, TableFile, without_rows
from skylark.pipelines.lake.progress import CommitProgress

PRIVATE = "_skylark"
"""Private directory inside the table, which readers of tables ignore."""
STAGING = f"{PRIVATE}/staging"
BATCHES = f"{PRIVATE}/batches"
COMPACT_BYTES = 256 << 20
APPLICATION_PREFIX = "skylark-archive-"
PROGRESS = "skylarkProgress"
"""Key of the progress in a Delta commit."""


@dataclass(frozen=True, slots=True)
class BatchName:
    """A batch of a query; committed once."""

    query: str
    number: int

    @property
    def application(self) -> str:
        return f"{APPLICATION_PREFIX}{self.query}"


class BatchManifest(msgspec.Struct, frozen=True):
    """The files of one committed batch of a Parquet table."""

    files: list[TableFile]
    progress: CommitProgress | None = None


class TableTotals(msgspec.Struct, frozen=True):
    """Size of a table; for a Parquet directory everything ever added."""

    rows: int = 0
    files: int = 0
    bytes: int = 0


class TableLog(Protocol):
    """The commit log of a table."""

    root: Path
    written_root: Path
    """Directory that tasks write to."""

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Create the table, or check its columns and partitions. Raises SettingsError."""

    def has(self, batch: BatchName) -> bool: ...

    def add(
        self, batch: BatchName, files: Sequence[TableFile], progress: CommitProgress | None = None
    ) -> bool:
        """Commit a batch's files; return False if the batch was committed before."""

    def last_batch(self, application: str) -> int | None:
        """The last committed batch of a query; None if there is no table or no batch."""

    def commits(self, application: str) -> list[CommitProgress]:
        """The recorded commits of a query."""

    def progress(self) -> list[CommitProgress]:
        """The last recorded progress of every query."""

    def sweep(self, older_than_hours: int, *, dry_run: bool = False) -> list[str]:
        """Delete uncommitted files older than this; return their names."""

    def compact(self, target_bytes: int = COMPACT_BYTES) -> dict[str, Any]:
        """Merge small files; return the counts."""

    def keep_days(self, days: int, now: datetime) -> int:
        """Drop days older than this; return the number of files removed."""

    def files(self) -> list[TableFile]:
        """Committed files, without minima and maxima."""

    def facts(self) -> TableTotals:
        """Rows, files and bytes of the table."""


# --- Delta ---


class DeltaLog:
    """A Delta table. One commit per batch, with the batch number as application transaction."""

    def __init__(self, root: Path) -> None:
        self.root = self.written_root = root

    def _table(self) -> DeltaTable:
        return DeltaTable(self.root)

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        if not DeltaTable.is_deltatable(str(self.root)):
            DeltaTable.create(self.root, schema, mode="ignore", partition_by=list(partition_by))
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
            sentence = f"the table in {self.root} has {'; '.join(differences)}"
            raise SettingsError("to", f"{sentence}; use its columns and partitions, or another directory")

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
            append(table, [_add_action(file) for file in files], properties)
        return True

    def last_batch(self, application: str) -> int | None:
        if not DeltaTable.is_deltatable(str(self.root)):
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
        if DeltaTable.is_deltatable(str(self.root)):
            for commit in self._table().history():
                if text := commit.get(PROGRESS):
                    yield msgspec.json.decode(text, type=CommitProgress)

    def sweep(self, older_than_hours: int, *, dry_run: bool = False) -> list[str]:
        return self._table().vacuum(
            retention_hours=older_than_hours, dry_run=dry_run, enforce_retention_duration=False, full=True
        )

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
                minima={},
                maxima={},
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
        app_transactions=[Transaction(application, number, _now_ms())],
        custom_metadata={**(metadata or {}), **recorded},
    )


def append(table: DeltaTable, actions: Sequence[AddAction], properties: CommitProperties) -> None:
    """Commit files, or with none only the properties."""
    table.create_write_transaction(
        list(actions),
        mode="append",
        schema=table.schema(),
        partition_by=list(table.metadata().partition_columns),
        commit_properties=properties,
    )


def _add_action(file: TableFile) -> AddAction:
    stats = {"numRecords": file.rows, "minValues": file.minima, "maxValues": file.maxima, "nullCount": {}}
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=file.partition,
        modification_time=_now_ms(),
        data_change=True,
        stats=msgspec.json.encode(stats).decode(),
    )


# --- Parquet ---


class ParquetLog:
    """A directory of Parquet files in Hive layout. All visible files are committed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.written_root = root / STAGING

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        if DeltaTable.is_deltatable(str(self.root)):
            raise SettingsError("to", f"{self.root} holds a Delta table; use delta:{self.root}")
        self.written_root.mkdir(parents=True, exist_ok=True)
        wanted = {"columns": sorted(schema.names), "partition_by": list(partition_by)}
        path = self.root / PRIVATE / "table.json"
        if not path.exists():
            write_file(path, msgspec.json.encode(wanted))
        elif msgspec.json.decode(path.read_bytes()) != wanted:
            raise SettingsError(
                "to",
                f"the table in {self.root} has other columns or partitions ({path}); use another directory",
            )

    def _manifest(self, batch: BatchName) -> Path:
        return self.root / BATCHES / batch.query / f"{batch.number:010d}.json"

    def has(self, batch: BatchName) -> bool:
        return self._manifest(batch).exists()

    def last_batch(self, application: str) -> int | None:
        return max((int(path.stem) for path in self._manifests(application)), default=None)

    def commits(self, application: str) -> list[CommitProgress]:
        return _recorded(self._manifests(application))

    def progress(self) -> list[CommitProgress]:
        folders = (self.root / BATCHES).glob("*")
        return _recorded(path for folder in folders for path in sorted(folder.glob("[0-9]*.json"))[-1:])

    def _manifests(self, application: str) -> Iterator[Path]:
        return (self.root / BATCHES / application.removeprefix(APPLICATION_PREFIX)).glob("[0-9]*.json")

    def add(
        self, batch: BatchName, files: Sequence[TableFile], progress: CommitProgress | None = None
    ) -> bool:
        path = self._manifest(batch)
        if is_new := not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, msgspec.json.encode(BatchManifest(list(files), progress)))
        # An earlier attempt may have stopped between writing the manifest and moving the last file.
        for file in msgspec.json.decode(path.read_bytes(), type=BatchManifest).files:
            target = self.root / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # already moved
                (self.written_root / file.path).rename(target)
        return is_new

    def sweep(self, older_than_hours: int, *, dry_run: bool = False) -> list[str]:
        limit = time.time() - older_than_hours * 3600
        decided = {file.path for file in self._files()}
        found = []
        for path in sorted(self.written_root.rglob("*.parquet")):
            name = str(path.relative_to(self.written_root))
            if path.stat().st_mtime < limit and name not in decided:
                found.append(name)
                if not dry_run:
                    path.unlink(missing_ok=True)
        return found

    def _files(self) -> Iterator[TableFile]:
        for path in (self.root / BATCHES).glob("*/*.json"):
            yield from msgspec.json.decode(path.read_bytes(), type=BatchManifest).files

    def compact(self, target_bytes: int = COMPACT_BYTES) -> dict[str, Any]:
        raise SettingsError(
            "compact", "not supported for Parquet, whose readers may have files open; use a Delta table"
        )

    def keep_days(self, days: int, now: datetime) -> int:
        first = (now.astimezone(UTC) - timedelta(days=days)).date().isoformat()
        removed = 0
        for folder in self.root.rglob(f"{DATE}=*"):
            if PRIVATE not in folder.parts and folder.name.partition("=")[2] < first:
                for path in sorted(folder.rglob("*.parquet")):
                    path.unlink()
                    removed += 1
        return removed

    def files(self) -> list[TableFile]:
        return [file for file in self._files() if (self.root / file.path).exists()]

    def facts(self) -> TableTotals:
        files = list(self._files())
        return TableTotals(sum(file.rows for file in files), len(files), sum(file.size for file in files))


def _recorded(manifests: Iterable[Path]) -> list[CommitProgress]:
    found = [msgspec.json.decode(path.read_bytes(), type=BatchManifest) for path in manifests]
    return [manifest.progress for manifest in found if manifest.progress is not None]


def open_log(layout: str, root: Path) -> TableLog:
    return DeltaLog(root) if layout == "delta" else ParquetLog(root)


# --- Commit ---


def commit_batch(
    log: TableLog,
    batch: BatchName,
    files: Sequence[TableFile],
    *,
    seen_keys_max: int | None = None,
    progress: CommitProgress | None = None,
) -> bool:
    """Commit a batch once; with `seen_keys_max` drop messages whose unique key was seen before.

    Returns False if the batch was committed before. Raises OSError and the table's errors.
    """
    read, kept = sum(file.rows for file in files), files
    if seen_keys_max is not None and not log.has(batch):
        with SeenKeys(seen_keys_max, log.root / PRIVATE / "seen.sqlite") as seen:
            # If the process ends between the two commits, the batch is repeated and its keys are discarded.
            seen.begin(f"{batch.application}:{batch.number}")
            found = [_without_duplicates(log.written_root, file, seen) for file in files]
            seen.commit()
        kept = [msgspec.structs.replace(file, keys=b"") for file in found if file.rows]
    if progress is not None:
        written = sum(file.rows for file in kept)
        progress = msgspec.structs.replace(progress, read=read, written=written)
    return log.add(batch, kept, progress)


def _without_duplicates(root: Path, file: TableFile, seen: SeenKeys) -> TableFile:
    duplicates = []
    for row in range(file.rows):
        key = file.keys[row * KEY_BYTES : (row + 1) * KEY_BYTES]
        if any(key) and not seen.add_digest(key):
            duplicates.append(row)
    return without_rows(root, file, duplicates) if duplicates else file


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
