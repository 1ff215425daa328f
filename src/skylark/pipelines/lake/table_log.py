"""The commit log of a table: adds files batch by batch, each batch once.

`DeltaLog` and `ParquetLog` keep one, in a directory or an object store. Both allow one writer at a time
(Spark allows one per checkpoint).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from skylark.pipelines.lake.file_store import FileStore
from skylark.pipelines.lake.parquet_files import TableFile
from skylark.pipelines.lake.progress import CommitProgress

PRIVATE = "_skylark"
"""Private directory inside the table, which readers of tables ignore."""
COMPACT_BYTES = 256 << 20
APPLICATION_PREFIX = "skylark-archive-"


@dataclass(frozen=True, slots=True)
class BatchName:
    """A batch of a query; committed once."""

    query: str
    number: int

    @property
    def application(self) -> str:
        return f"{APPLICATION_PREFIX}{self.query}"


class TableTotals(msgspec.Struct, frozen=True):
    """Size of a table; for a Parquet directory everything ever added."""

    rows: int = 0
    files: int = 0
    bytes: int = 0


class TableLog(Protocol):
    """The commit log of a table."""

    @property
    def store(self) -> FileStore: ...

    @property
    def written(self) -> FileStore:
        """Where tasks write to."""

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Create the table, or check its columns and partitions. Raises SettingsError."""

    def exists(self) -> bool:
        """Whether the table was made."""

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

    def replace(self, old: Sequence[TableFile], new: Sequence[TableFile]) -> None:
        """Replace files by others that hold the same rows, or fewer; all or nothing.

        Raises SettingsError if the table cannot, OSError and the table's errors also if an old file was
        removed meanwhile.
        """

    def add_columns(self, columns: pa.Schema) -> None:
        """Add those of the columns that the table lacks. Raises SettingsError if it cannot."""

    def expire(self, older_than_hours: int, now: datetime) -> None:
        """Forget versions of the table that are older than this; the sweep then deletes their files."""

    def compact(self, target_bytes: int = COMPACT_BYTES) -> dict[str, Any]:
        """Merge small files; return the counts."""

    def keep_days(self, days: int, now: datetime) -> int:
        """Drop days older than this; return the number of files removed."""

    def files(self) -> list[TableFile]:
        """Committed files."""

    def facts(self) -> TableTotals:
        """Rows, files and bytes of the table."""
