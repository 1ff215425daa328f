"""The data source `rocketmq`: Spark's reader and writer classes, over `planner` and `sink`.

Spark creates these objects in several processes: in planner workers, which pickle them to tasks, and for a
stream in a separate process that answers offset requests as long as the query runs. So connections are opened
lazily, and everything that a task needs is in its partition. A query waits until that process has started, so
what only some queries need is imported by those.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from skylark.arrow.columns import BODY_TEXT, REJECTS, VALUE
from skylark.errors import RocketMQError, SettingsError
from skylark.pipelines.message_source import LossPolicy, OffsetRange
from skylark.pipelines.offsets import Nested, Offsets, from_nested, to_nested
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import (
    Planner,
    RangeRow,
    end_of,
    range_batch,
    ranges_between,
    read_archived,
    read_ranges,
    sample_bodies,
)
from skylark.pipelines.pushdown import Restrictions
from skylark.pipelines.schema import COLUMNS, RANGE_COLUMNS, arrow_schema, check_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skylark.pipelines.history import HistoryTask

log = logging.getLogger(__name__)

COMMIT_TIMEOUT_S = 3.0
CATALOG_OPTION = "provider"
"""An option that Spark adds when a table is created in its catalog."""
TABLE_OPTION_PREFIX = "option."
"""Spark puts this before the names of a table's options."""
TABLE_OPTIONS = "rocketmq.options"
"""Metadata of a table's first column: Spark passes the schema of a table to its readers, not its options."""


class RangesPartition(InputPartition):
    """The ranges of one task."""

    def __init__(self, ranges: list[OffsetRange], rows: list[RangeRow] | None = None) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.rows = rows


class HistoryPartition(InputPartition):
    """What one task reads from the history's table."""

    def __init__(self, task: HistoryTask) -> None:
        super().__init__(None)
        self.task = task


class RocketMQSource(DataSource):
    """Format `rocketmq`: read and write, batch and streaming."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType | str:
        given = dict(self.options)
        return _table_schema(given) if CATALOG_OPTION in given else _schema(given)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = _checked_options(self.options, schema)
        return (PushingReader if options.pushdown else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = _checked_options(self.options, schema)
        if options.ending_offsets not in (None, "latest"):
            raise SettingsError("endingOffsets", "not supported for streams; read a batch, or stop the query")
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from skylark.pipelines.sink import batch_writer  # noqa: PLC0415

        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from skylark.pipelines.sink import stream_writer  # noqa: PLC0415

        return stream_writer(dict(self.options), schema, overwrite)


def register(spark: SparkSession) -> None:
    """Register `format("rocketmq")` in a session."""
    spark.dataSource.register(RocketMQSource)


def _schema(given: Mapping[str, str]) -> StructType | str:
    """The columns of a topic. Raises SettingsError."""
    options = load(SourceOptions, given)
    if options.mode == "ranges":
        return spark_schema(RANGE_COLUMNS)
    schema = spark_schema(_known_columns(options))
    if options.decode in (None, "text"):
        return schema
    if options.body_schema is not None:
        from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415  slow to import

        value_type = from_arrow_type(options.body_schema.format().kind)
        return StructType([*schema.fields[:-1], StructField(VALUE, value_type), schema.fields[-1]])
    if options.decode_schema not in (None, "auto"):
        # Only the JVM parses DDL.
        columns = [
            f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
            for field in schema.fields
        ]
        value = f"{VALUE} STRUCT<{options.decode_schema}>"
        return ", ".join([*columns[:-1], value, columns[-1]])
    from skylark.pipelines.json_schema import infer_schema  # noqa: PLC0415

    inferred = infer_schema(sample_bodies(options, options.sample_rows))
    if not inferred.fields:
        raise SettingsError("decodeSchema", "no sampled body is a JSON object; set the fields as DDL")
    return StructType([*schema.fields[:-1], StructField(VALUE, inferred), schema.fields[-1]])


def _table_schema(properties: Mapping[str, str]) -> StructType:
    """The columns of a table in Spark's catalog, which bring its options along. Raises SettingsError."""
    given = {
        name.removeprefix(TABLE_OPTION_PREFIX): value
        for name, value in properties.items()
        if name.startswith(TABLE_OPTION_PREFIX)
    }
    if "secretkey" in {name.lower() for name in given}:
        raise SettingsError("secretKey", "a table would show it; use credentialsFile or the environment")
    schema = _schema(given)
    if isinstance(schema, str):
        raise SettingsError("decodeSchema", "is not possible for a table; use a temporary view")
    first, *others = schema.fields
    metadata = {TABLE_OPTIONS: json.dumps(given)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def _table_options(schema: StructType) -> dict[str, str]:
    """The options that `_table_schema` has put into the schema of a table; none for other schemas."""
    texts = [field.metadata[TABLE_OPTIONS] for field in schema.fields if TABLE_OPTIONS in field.metadata]
    return dict(json.loads(texts[0])) if texts else {}


def _known_columns(options: SourceOptions) -> dict[str, DataType]:
    """The default columns, without `value` for JSON, whose type depends on the bodies."""
    columns = dict(COLUMNS)
    if options.body_text:
        columns[BODY_TEXT] = StringType()
    if options.decode == "text":
        columns[VALUE] = StringType()
    if options.decode is not None:
        columns[REJECTS] = BinaryType()
    return columns


def _checked_options(given: Any, schema: StructType) -> SourceOptions:
    """Parse options and check the schema, before any task starts. Raises SettingsError."""
    options = load(SourceOptions, {**_table_options(schema), **given})
    if options.mode == "ranges":
        check_schema(schema, RANGE_COLUMNS)
        if schema.fieldNames() != list(RANGE_COLUMNS):
            raise SettingsError("schema", f"columns of mode=ranges are fixed: {', '.join(RANGE_COLUMNS)}")
        return options
    known = {**_known_columns(options), BODY_TEXT: StringType()}
    check_schema(schema, known, free=[VALUE] if options.decode not in (None, "text") else [])
    return options


class _Rows:
    """Reads partitions; shared by batch and stream."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._tags: frozenset[str] | None = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, HistoryPartition):
            return read_archived(self._options, partition.task, arrow_schema(self._schema), tags=self._tags)
        if not isinstance(partition, RangesPartition):
            return iter(())  # Spark's placeholder for no partitions
        if partition.rows is not None:
            return iter([range_batch(partition.rows)])
        return read_ranges(self._options, partition.ranges, arrow_schema(self._schema), tags=self._tags)

    def _partitions(
        self, planner: Planner, archived: Sequence[OffsetRange], ranges: Sequence[OffsetRange]
    ) -> list[InputPartition]:
        is_rows = self._options.mode == "rows"
        old: list[InputPartition] = []
        if archived and planner.history is not None:
            planner.history.check_columns(self._schema.fieldNames())
            old += [HistoryPartition(task) for task in planner.history.tasks(archived)]
        return old + [
            RangesPartition(task, None if is_rows else planner.rows(task)) for task in planner.tasks(ranges)
        ]


class BatchReader(_Rows, DataSourceReader):
    """Reads from `startingOffsets` to `endingOffsets`, resolved when the query is planned."""

    _restrictions: Restrictions | None = None

    def partitions(self) -> Sequence[InputPartition]:
        planner = Planner(self._options, self._restrictions)
        return self._partitions(planner, *planner.batch())


class PushingReader(BatchReader):
    """Accepts filters. A separate class, as Spark rejects `pushFilters` while its setting is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._restrictions = Restrictions()
        left = self._restrictions.take(filters)
        self._tags = self._restrictions.tags
        return left


class StreamReader(_Rows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers Spark's offset requests. Stateless: the content of a batch is in Spark's offset log."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._planner: Planner | None = None
        self._initial: Nested | None = None
        self._target: Offsets | None = None
        self._latest: Offsets = {}
        self._looked_at = float("-inf")
        self._waiting_since: float | None = None

    @property
    def planner(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            self._initial = to_nested(self.planner.starting("latest"))
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._latest = self.planner.highs()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Any limit except `ReadAllAvailable`; `latestOffset` applies the options."""
        return ReadMaxBytes(self._options.max_bytes_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = from_nested(start)
        ranges = self._waiting(begin)
        if moved := self.planner.cut_short(begin, self._latest, LossPolicy(self._options)):
            return to_nested({**begin, **moved})  # an empty batch; the next one starts there
        if not ranges:
            return start
        if not isinstance(limit, ReadAllAvailable):
            if self._should_wait(ranges):
                return start
            ranges = self.planner.limited(ranges)
        self._waiting_since = None
        return to_nested(end_of(begin, ranges))

    def _waiting(self, begin: Offsets) -> list[OffsetRange]:
        if self._target is None:
            if not ranges_between(begin, self._latest):
                self._rest()
            self._latest = self.planner.highs()
        return self.planner.from_beginning(ranges_between(begin, self._latest), begin)

    def _rest(self) -> None:
        """Wait for the poll interval: otherwise Spark asks a hundred times a second."""
        due = self._looked_at + self._options.poll_interval_ms / 1000
        time.sleep(max(0.0, due - time.monotonic()))
        self._looked_at = time.monotonic()

    def _should_wait(self, ranges: Sequence[OffsetRange]) -> bool:
        """Return whether to wait for more rows, within `maxTriggerDelay`."""
        rows_min = self._options.min_rows_per_trigger
        if rows_min is None or self._target is not None:
            return False
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        waited_ms = (now - self._waiting_since) * 1000
        if (
            sum(item.messages for item in ranges) >= rows_min
            or waited_ms >= self._options.max_trigger_delay_ms
        ):
            return False
        self._rest()
        return True

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_nested(self._latest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = from_nested(start)
        ranges = self.planner.from_beginning(ranges_between(begin, from_nested(end)), begin)
        archived, rest = self.planner.split(ranges)
        rest = self.planner.still_there(rest, LossPolicy(self._options))
        return self._partitions(self.planner, archived, rest)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the group's offsets. Never raises: Spark's checkpoint is authoritative."""
        options = self._options
        if options.group_id is None or options.namesrv is None or not options.commit_offsets:
            return
        from skylark.pipelines.cluster_client import shared_client  # noqa: PLC0415

        try:
            client = shared_client(
                options.namesrv, COMMIT_TIMEOUT_S, 0.0, options.credentials, options.tls_settings
            )
            client.advance_offsets(options.group_id, from_nested(end))
        except (RocketMQError, ValueError) as error:
            log.warning("cannot commit offsets group=%s error=%s", options.group_id, error)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the planner, which holds connections."""
        return {**self.__dict__, "_planner": None}
