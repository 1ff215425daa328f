"""The log of an Iceberg table in a catalog of pyiceberg: one snapshot per batch, which names the batch.

`raw.orders` is a table of the catalog `default`, `prod/raw.orders` one of the catalog `prod`. Catalogs and
their credentials are configured as for pyiceberg, by `.pyiceberg.yaml` or `PYICEBERG_CATALOG__…` variables.
The last batch of each query is also a property of the table, changed by the same commit: snapshots expire.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, IdentityTransform, Transform
from pyiceberg.types import IntegerType, LongType, NestedField, TimestamptzType

from skylark.errors import SettingsError
from skylark.pipelines.lake.file_store import FileStore
from skylark.pipelines.lake.location import open_files
from skylark.pipelines.lake.parquet_files import DATE, STATISTICS_COLUMNS, TableFile
from skylark.pipelines.lake.progress import CommitProgress
from skylark.pipelines.lake.table_log import COMPACT_BYTES, BatchName, TableTotals
from skylark.settings.object_store import client_settings

DATA = "data"
DAY_OF = "storeTimestamp"
"""The column whose day is the hidden partition `dt`."""
APPLICATION, BATCH, PROGRESS = "skylark-application", "skylark-batch", "skylark-progress"
"""Properties of a snapshot."""
LAST_BATCH, LAST_PROGRESS = "skylark.batch.", "skylark.progress."
"""Beginnings of properties of the table; the name of the query follows."""
NO_RETRIES = {"commit.retry.num-retries": "0"}
"""pyiceberg would repeat a commit behind that of another writer, who may have committed the same batch."""
ATTEMPTS_MAX = 5
S3_SETTINGS = {
    "s3.endpoint": "aws_endpoint",
    "s3.region": "aws_region",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
}
"""Properties of a catalog, and our names."""


def parse_name(where: str) -> tuple[str, str]:
    """Catalog and table of `[CATALOG/]NAMESPACE.TABLE`. Raises SettingsError."""
    catalog, slash, name = where.rpartition("/")
    if "." not in name.strip(".") or "/" in catalog or (slash and not catalog):
        raise SettingsError("to", f"invalid Iceberg table {where!r}; use iceberg:[CATALOG/]NAMESPACE.TABLE")
    return catalog or "default", name


class IcebergLog:
    """An Iceberg table."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._catalog_name, self._name = parse_name(where)

    @cached_property
    def _catalog(self) -> Catalog:
        try:
            catalog = load_catalog(self._catalog_name)
        except ValueError as error:
            raise SettingsError("to", f"cannot open the catalog {self._catalog_name!r}: {error}") from error
        # pyiceberg does not read AWS_ENDPOINT_URL, AWS_REGION and profiles; what it is told goes before.
        settings = client_settings("s3://")
        for name, key in S3_SETTINGS.items():
            if key in settings:
                catalog.properties.setdefault(name, settings[key])
        return catalog

    def _table(self) -> Table:
        return self._catalog.load_table(self._name)

    @cached_property
    def store(self) -> FileStore:
        location = self._table().location()
        return open_files(unquote(urlsplit(location).path) if location.startswith("file:") else location)

    @cached_property
    def written(self) -> FileStore:
        return self.store.below(DATA)

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        try:
            self._check(self._table(), schema, partition_by)
        except NoSuchTableError:
            self._create(schema, partition_by)

    def _create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        kept = pa.schema([field for field in schema if field.name != DATE])
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        # Fields get their numbers from the catalog, so the partitions follow in the same transaction.
        with self._catalog.create_table_transaction(
            self._name, schema=kept, properties={"format-version": "2", **NO_RETRIES}
        ) as creation:
            with creation.update_spec() as spec:
                for name in partition_by:
                    source, transform = _partition(name)
                    spec.add_field(source, transform, name)

    def _check(self, table: Table, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        names, wanted = set(table.schema().column_names), {name for name in schema.names if name != DATE}
        there = {field.name for field in table.schema().fields}
        differences = [
            *(f"no column {name}" for name in sorted(wanted - names)),
            *(f"an extra column {name}" for name in sorted(there - wanted)),
        ]
        parts = [field.name for field in table.spec().fields]
        if parts != list(partition_by):
            differences.append(
                f"partitions {','.join(parts) or 'none'} instead of {','.join(partition_by) or 'none'}"
            )
        if differences:
            raise SettingsError(
                "to",
                f"the table {self.where} has {'; '.join(differences)}; use its columns and partitions, or "
                "another table",
            )
        if not NO_RETRIES.items() <= table.properties.items():
            with table.transaction() as change:
                change.set_properties(NO_RETRIES)

    def exists(self) -> bool:
        return self._catalog.table_exists(self._name)

    def has(self, batch: BatchName) -> bool:
        last = self.last_batch(batch.application)
        return last is not None and last >= batch.number

    def last_batch(self, application: str) -> int | None:
        text = self._properties().get(f"{LAST_BATCH}{application}")
        return None if text is None else int(text)

    def _properties(self) -> dict[str, str]:
        try:
            return self._table().properties
        except NoSuchTableError:
            return {}

    def add(
        self, batch: BatchName, files: Sequence[TableFile], progress: CommitProgress | None = None
    ) -> bool:
        for attempt in range(ATTEMPTS_MAX):
            if self.has(batch):
                return attempt > 0  # an earlier attempt was done although its reply was lost
            try:
                self._commit(batch, files, progress)
            except CommitFailedException:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise
            except Exception:
                if not self.has(batch):
                    raise
            else:
                break
        return True

    def _commit(self, batch: BatchName, files: Sequence[TableFile], progress: CommitProgress | None) -> None:
        named = {APPLICATION: batch.application, BATCH: str(batch.number)}
        last = {f"{LAST_BATCH}{batch.application}": str(batch.number)}
        if progress is not None:
            text = msgspec.json.encode(progress).decode()
            named[PROGRESS] = last[f"{LAST_PROGRESS}{batch.application}"] = text
        with self._table().transaction() as change:
            change.set_properties(last)
            if files:
                # Names are new in every attempt, so the table's files need not be searched for them.
                paths = [self._uri(f"{DATA}/{file.path}") for file in files]
                change.add_files(paths, snapshot_properties=named, check_duplicate_files=False)

    def _uri(self, name: str) -> str:
        return f"{self._table().location()}/{name}"

    def commits(self, application: str) -> list[CommitProgress]:
        found = [
            _decoded(summary) for summary in self._summaries() if summary.get(APPLICATION) == application
        ]
        return [progress for progress in found if progress is not None]

    def _summaries(self) -> Iterator[dict[str, str]]:
        try:
            snapshots = self._table().metadata.snapshots
        except NoSuchTableError:
            return
        for snapshot in snapshots:
            if snapshot.summary is not None:
                yield snapshot.summary.additional_properties

    def progress(self) -> list[CommitProgress]:
        return [
            msgspec.json.decode(text, type=CommitProgress)
            for name, text in self._properties().items()
            if name.startswith(LAST_PROGRESS)
        ]

    def sweep(self, older_than_hours: int, *, dry_run: bool = False) -> list[str]:
        limit = time.time() - older_than_hours * 3600
        # The list before the snapshots: a file that is committed meanwhile is in one of them.
        waiting = [file for file in self.written.list() if file.modified_at < limit]
        known = set(self._table().inspect.all_files()["file_path"].to_pylist())
        found = [file.name for file in waiting if self._uri(f"{DATA}/{file.name}") not in known]
        for name in [] if dry_run else found:
            self.written.delete(name)
        return found

    def replace(self, old: Sequence[TableFile], new: Sequence[TableFile]) -> None:
        table = self._table()
        prefix = f"{table.location()}/"
        there = {task.file.file_path.removeprefix(prefix): task.file for task in table.scan().plan_files()}
        if gone := [file.path for file in old if file.path not in there]:
            raise FileNotFoundError(f"{self.where}: {gone[0]} is not in the table any more")
        paths = [self._uri(f"{DATA}/{file.path}") for file in new]
        with table.transaction() as change:
            made = list(parquet_files_to_data_files(table.io, change.table_metadata, iter(paths)))
            with change.update_snapshot().overwrite() as snapshot:
                for file in old:
                    snapshot.delete_data_file(there[file.path])
                for each in made:
                    snapshot.append_data_file(each)

    def add_columns(self, columns: pa.Schema) -> None:
        table = self._table()
        known = set(table.schema().column_names)
        missing = pa.schema([each for each in columns if each.name not in known])
        if missing.names:
            with table.update_schema() as change:
                change.union_by_name(missing)

    def expire(self, older_than_hours: int, now: datetime) -> None:
        limit = now.astimezone(UTC) - timedelta(hours=older_than_hours)
        self._table().maintenance.expire_snapshots().older_than(limit.replace(tzinfo=None)).commit()

    def compact(self, target_bytes: int = COMPACT_BYTES) -> dict[str, Any]:
        raise SettingsError("compact", "not supported for Iceberg; use the procedures of your engine")

    def keep_days(self, days: int, now: datetime) -> int:
        first = (now.astimezone(UTC) - timedelta(days=days)).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        before = self.facts().files
        self._table().delete(f"{DAY_OF} < '{first.isoformat()}'")
        return before - self.facts().files

    def files(self) -> list[TableFile]:
        table = self._table()
        schema, prefix = table.schema(), f"{table.location()}/"
        names = [field.name for field in table.spec().fields]
        found = []
        for task in table.scan().plan_files():
            file = task.file
            values = dict(zip(names, (file.partition[at] for at in range(len(names))), strict=True))
            found.append(
                TableFile(
                    path=file.file_path.removeprefix(prefix),
                    rows=file.record_count,
                    size=file.file_size_in_bytes,
                    partition={name: _text(name, value) for name, value in values.items()},
                    minima=_bounds(schema, file.lower_bounds),
                    maxima=_bounds(schema, file.upper_bounds),
                )
            )
        return found

    def facts(self) -> TableTotals:
        snapshot = self._table().current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return TableTotals()
        names = ("total-records", "total-data-files", "total-files-size")
        return TableTotals(*(int(snapshot.summary.additional_properties.get(name, 0)) for name in names))

    def snapshots(self) -> list[Snapshot]:
        """The table's versions, oldest first. Raises NoSuchTableError."""
        return list(self._table().metadata.snapshots)

    def columns(self) -> pa.Schema:
        """The table's columns. Raises NoSuchTableError."""
        return self._table().schema().as_arrow()


def _partition(name: str) -> tuple[str, Transform[Any, Any]]:
    return (DAY_OF, DayTransform()) if name == DATE else (name, IdentityTransform())


def _text(name: str, value: Any) -> str:
    """A partition value as our paths have it; Iceberg counts days."""
    return (datetime(1970, 1, 1) + timedelta(days=value)).date().isoformat() if name == DATE else str(value)


def _bounds(schema: Schema, bounds: dict[int, bytes] | None) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for name in STATISTICS_COLUMNS:
        field: NestedField | None = next((each for each in schema.fields if each.name == name), None)
        if field is None or (data := (bounds or {}).get(field.field_id)) is None:
            continue
        kind = field.field_type
        if isinstance(kind, IntegerType | LongType):
            found[name] = int(from_bytes(kind, data))
        elif isinstance(kind, TimestamptzType):
            moment = datetime(1970, 1, 1) + timedelta(microseconds=int(from_bytes(kind, data)))
            found[name] = f"{moment.isoformat(timespec='microseconds')}Z"
    return found


def _decoded(summary: dict[str, str]) -> CommitProgress | None:
    text = summary.get(PROGRESS)
    return None if text is None else msgspec.json.decode(text, type=CommitProgress)
