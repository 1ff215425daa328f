"""The log of a plain directory of Parquet files: a batch is committed when its manifest exists.

Its files are then moved into place, if necessary by the next writer. So all visible files are committed, and
any reader of Parquet may read them. In an object store the manifest is a conditional put, and a move is a
copy, which may be repeated.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

import msgspec
import pyarrow as pa

from skylark.errors import SettingsError
from skylark.pipelines.lake.delta_log import has_delta
from skylark.pipelines.lake.file_store import FileStore
from skylark.pipelines.lake.parquet_files import DATE, TableFile
from skylark.pipelines.lake.progress import CommitProgress
from skylark.pipelines.lake.table_log import (
    APPLICATION_PREFIX,
    COMPACT_BYTES,
    PRIVATE,
    BatchName,
    TableTotals,
)

STAGING = f"{PRIVATE}/staging"
BATCHES = f"{PRIVATE}/batches"
SHAPE = f"{PRIVATE}/table.json"
_MANIFEST = re.compile(r"\d+\.json")


class BatchManifest(msgspec.Struct, frozen=True):
    """The files of one committed batch of a Parquet table."""

    files: list[TableFile]
    progress: CommitProgress | None = None


class ParquetLog:
    """A directory of Parquet files in Hive layout."""

    def __init__(self, store: FileStore) -> None:
        self.store = store
        self.written = store.below(STAGING)

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        if has_delta(self.store.where):
            raise SettingsError("to", f"{self.store.where} holds a Delta table; use delta:{self.store.where}")
        wanted = {"columns": sorted(schema.names), "partition_by": list(partition_by)}
        if self.store.create(SHAPE, msgspec.json.encode(wanted)):
            return
        if msgspec.json.decode(self.store.read(SHAPE)) != wanted:
            raise SettingsError(
                "to",
                f"the table in {self.store.where} has other columns or partitions ({SHAPE}); use another "
                "directory",
            )

    def exists(self) -> bool:
        return self.store.exists(SHAPE)

    def has(self, batch: BatchName) -> bool:
        return self.store.exists(_manifest(batch))

    def last_batch(self, application: str) -> int | None:
        return max((int(PurePosixPath(name).stem) for name in self._manifests(application)), default=None)

    def commits(self, application: str) -> list[CommitProgress]:
        return self._recorded(self._manifests(application))

    def progress(self) -> list[CommitProgress]:
        last: dict[str, str] = {}
        for name in sorted(self._manifests()):
            last[PurePosixPath(name).parent.name] = name
        return self._recorded(last.values())

    def _manifests(self, application: str | None = None) -> Iterator[str]:
        folder = BATCHES if application is None else f"{BATCHES}/{_query(application)}"
        for file in self.store.list(folder):
            if _MANIFEST.fullmatch(PurePosixPath(file.name).name):
                yield file.name

    def _recorded(self, names: Iterable[str]) -> list[CommitProgress]:
        found = [self._decoded(name).progress for name in names]
        return [progress for progress in found if progress is not None]

    def _decoded(self, name: str) -> BatchManifest:
        return msgspec.json.decode(self.store.read(name), type=BatchManifest)

    def add(
        self, batch: BatchName, files: Sequence[TableFile], progress: CommitProgress | None = None
    ) -> bool:
        name = _manifest(batch)
        decided = BatchManifest(list(files), progress)
        is_new = self.store.create(name, msgspec.json.encode(decided))
        # An earlier attempt may have stopped between writing the manifest and moving the last file.
        for file in (decided if is_new else self._decoded(name)).files:
            self.store.move(f"{STAGING}/{file.path}", file.path)
        return is_new

    def sweep(self, older_than_hours: int, *, dry_run: bool = False) -> list[str]:
        limit = time.time() - older_than_hours * 3600
        decided = {file.path for file in self._files()}
        found = []
        for file in list(self.written.list()):
            if file.modified_at < limit and file.name.endswith(".parquet") and file.name not in decided:
                found.append(file.name)
                if not dry_run:
                    self.written.delete(file.name)
        return found

    def _files(self) -> Iterator[TableFile]:
        for name in self._manifests():
            yield from self._decoded(name).files

    def replace(self, old: Sequence[TableFile], new: Sequence[TableFile]) -> None:
        raise SettingsError(
            "table", "not supported for Parquet, whose readers may have files open; use a Delta table"
        )

    def add_columns(self, columns: pa.Schema) -> None:
        raise SettingsError("decode", "not supported for Parquet directories; use a Delta or Iceberg table")

    def expire(self, older_than_hours: int, now: datetime) -> None:
        """Nothing: it has no versions."""

    def compact(self, target_bytes: int = COMPACT_BYTES) -> dict[str, Any]:
        raise SettingsError(
            "compact", "not supported for Parquet, whose readers may have files open; use a Delta table"
        )

    def keep_days(self, days: int, now: datetime) -> int:
        first = (now.astimezone(UTC) - timedelta(days=days)).date().isoformat()
        removed = 0
        for file in list(self.store.list()):
            folders = PurePosixPath(file.name).parts
            days_of = [part.partition("=")[2] for part in folders if part.startswith(f"{DATE}=")]
            if (
                folders[0] != PRIVATE
                and file.name.endswith(".parquet")
                and any(day < first for day in days_of)
            ):
                self.store.delete(file.name)
                removed += 1
        return removed

    def files(self) -> list[TableFile]:
        there = {file.name for file in self.store.list()}
        return [file for file in self._files() if file.path in there]

    def facts(self) -> TableTotals:
        files = list(self._files())
        return TableTotals(sum(file.rows for file in files), len(files), sum(file.size for file in files))


def _query(application: str) -> str:
    return application.removeprefix(APPLICATION_PREFIX)


def _manifest(batch: BatchName) -> str:
    return f"{BATCHES}/{batch.query}/{batch.number:010d}.json"
