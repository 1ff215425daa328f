"""Commits a batch of files to a table of either kind, without messages that were seen before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from skylark.errors import SettingsError
from skylark.pipelines.dedup import KEY_BYTES, SeenKeys
from skylark.pipelines.lake.delta_log import DeltaLog
from skylark.pipelines.lake.file_store import DirectoryFiles, FileStore
from skylark.pipelines.lake.location import open_files
from skylark.pipelines.lake.parquet_files import TableFile, without_rows
from skylark.pipelines.lake.parquet_log import ParquetLog
from skylark.pipelines.lake.progress import CommitProgress
from skylark.pipelines.lake.table_log import PRIVATE, BatchName, TableLog


def open_log(layout: str, where: str | Path) -> TableLog:
    """The log of a table: `delta`, `parquet` or `iceberg`. Raises SettingsError."""
    if layout == "iceberg":
        try:
            from skylark.pipelines.lake.iceberg_log import IcebergLog  # noqa: PLC0415  needs pyiceberg
        except ImportError as error:
            raise SettingsError("to", f"{error}: install skylarkmq[iceberg]") from None
        return IcebergLog(str(where))
    return DeltaLog(where) if layout == "delta" else ParquetLog(open_files(where))


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
        assert isinstance(log.store, DirectoryFiles)  # the sink refuses it for object stores
        with SeenKeys(seen_keys_max, log.store.root / PRIVATE / "seen.sqlite") as seen:
            # If the process ends between the two commits, the batch is repeated and its keys are discarded.
            seen.begin(f"{batch.application}:{batch.number}")
            found = [_without_duplicates(log.written, file, seen) for file in files]
            seen.commit()
        kept = [msgspec.structs.replace(file, keys=b"") for file in found if file.rows]
    if progress is not None:
        written = sum(file.rows for file in kept)
        progress = msgspec.structs.replace(progress, read=read, written=written)
    return log.add(batch, kept, progress)


def _without_duplicates(files: FileStore, file: TableFile, seen: SeenKeys) -> TableFile:
    duplicates = []
    for row in range(file.rows):
        key = file.keys[row * KEY_BYTES : (row + 1) * KEY_BYTES]
        if any(key) and not seen.add_digest(key):
            duplicates.append(row)
    return without_rows(files, file, duplicates) if duplicates else file
