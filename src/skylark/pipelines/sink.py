"""The sink `rocketmq`: rows of a DataFrame become messages, in batch and in Structured Streaming.

Columns: `body` (required), `topic`, `tags`, `keys`, `shardingKey`, `queueId`, `delayLevel`, `deliverAt`,
`properties`. Rows read from the source may keep `brokerName` and `queueOffset`: these identify the row, and
`queueId` is then its origin, not its target.

Delivery is at least once: a task ends when all of its rows are acknowledged. `exactlyOnce=keys` gives every
row a unique key that stays the same when the row is sent again, so that consumers can drop the copy (see
`pipelines.dedup`). With `delivery=exactly-once` no consumer sees a copy (see `row_transactions`).
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from skylark.arrow.batch_elements import (
    encode_elements,
    property_texts,
    text_values,
    unsafe_rows,
    value_bytes,
)
from skylark.arrow.record_layout import Flags
from skylark.errors import RocketMQError, SettingsError
from skylark.model.message import (
    PROPERTIES_BYTES_MAX,
    PROPERTY_CRC32,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    encode_properties,
)
from skylark.model.names import topic_name_error
from skylark.pipelines.cluster_client import ClusterClient, shared_client
from skylark.pipelines.options import (
    ADDRESSES,
    COUNT,
    DURATION,
    FLAG,
    RATE,
    TEXT,
    access_key,
    choice,
    credentials_file,
    load,
    option,
    secret_key,
    tls,
    tls_certificate,
    tls_key,
    tls_server_name,
    tls_trusted,
)
from skylark.pipelines.planner import settle_worker
from skylark.pipelines.row_sender import OutMessage, PlainRows, RowSender, is_batchable
from skylark.pipelines.row_transactions import HALF, BatchTransaction, CommitTopic, SentHalves, Staged
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.send import SendResult
from skylark.protocol.requests.transaction import ROLLBACK
from skylark.settings.credentials import Credentials, client_credentials
from skylark.settings.tls import ClientTlsSettings, client_tls_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"


TYPES: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "shardingKey": ("string",),
    "queueId": ("int", "bigint", "smallint", "tinyint"),
    "delayLevel": ("int", "bigint", "smallint", "tinyint"),
    "deliverAt": ("timestamp", "bigint"),
    "properties": ("map<string,string>",),
}
"""The columns that the sink uses, with their allowed types."""
ORIGIN = ("topic", "brokerName", "queueId", "queueOffset")
"""Together these identify one message of a cluster."""
SINGLED_OUT = frozenset({"shardingKey", "delayLevel", "deliverAt", "properties"})
"""Columns that are looked at row by row: they choose a queue or hold any property."""
ENCODED_BYTES_MAX = 1 << 30
"""Arrow's columns hold up to 2 GiB, and encoded rows have some bytes more."""
PASSENGERS = frozenset(
    "brokerName queueOffset physicalOffset msgId uniqKey bodyText bornTimestamp storeTimestamp"
    " bornHost storeHost reconsumeTimes sysFlag flag".split()
)
"""Columns of the source that the sink ignores."""
BROKERS_OWN = frozenset(
    {
        PROPERTY_CRC32,
        PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_WAIT,
        PROPERTY_DELAY_LEVEL,
        PROPERTY_TIMER_DELIVER_MS,
        *(
            "MSG_REGION",
            "TRACE_ON",
            "CLUSTER",
            "MIN_OFFSET",
            "MAX_OFFSET",
            "PGROUP",
            "TRAN_MSG",
            "POP_CK",
            "1ST_POP_TIME",
        ),
    }
)
"""Properties set during an earlier delivery; they are not sent again."""


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Options of the sink."""

    namesrv: str | None = option(
        ADDRESSES, None, "both", "Name servers, `host:port`, several separated by `;`. Required."
    )
    topic: str | None = option(
        TEXT, None, "both", "Topic of all rows. Default: the column `topic` of each row."
    )
    delivery: str = option(
        choice(AT_LEAST_ONCE, EXACTLY_ONCE),
        AT_LEAST_ONCE,
        "both",
        "`exactly-once`: rows are half messages until the driver commits their batch; slower.",
    )
    commit_topic: str = option(
        TEXT,
        "skylark-spark-commits",
        "both",
        "With `delivery=exactly-once`: topic with one queue where batches are decided. Create it first.",
    )
    exactly_once: str | None = option(
        choice("keys"),
        None,
        "both",
        "`keys`: a row that is sent again has the same unique key and goes to the same queue.",
    )
    exactly_once_id: str | None = option(
        TEXT,
        None,
        "both",
        "With `exactlyOnce` and `delivery=exactly-once`: a name for this batch job, so that it is known when "
        "it is run again after a failure. Streams use the query's id.",
    )
    rows_per_second: float | None = option(RATE, None, "both", "Maximum rows per second of each task.")
    in_flight_max: int = option(COUNT, "32", "both", "Requests in flight per task.")
    attempts_max: int = option(COUNT, "5", "both", "Attempts per request before the task fails.")
    keep_times: bool = option(FLAG, "false", "both", "Send the column `bornTimestamp` as the born timestamp.")
    producer_group: str = option(TEXT, "skylark-spark-sink", "both", "Producer group shown on brokers.")
    request_timeout_ms: int = option(DURATION, "10s", "both", "Timeout of one request.")
    access_key: str | None = access_key()
    secret_key: str | None = secret_key()
    credentials_file: str | None = credentials_file()
    security_token: ClassVar[str | None] = None
    tls: bool | None = tls()
    tls_trusted: str | None = tls_trusted()
    tls_server_name: str | None = tls_server_name()
    tls_certificate: str | None = tls_certificate()
    tls_key: str | None = tls_key()
    # Not options: what the driver finds, for the tasks.
    credentials: Credentials | None = field(default=None, init=False, repr=False)
    tls_settings: ClientTlsSettings | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "credentials", client_credentials(self))
        object.__setattr__(self, "tls_settings", client_tls_settings(self))
        if not self.namesrv:
            raise SettingsError("namesrv", "no name server given; use host:port")
        if self.topic is not None and (fault := topic_name_error(self.topic)):
            raise SettingsError("topic", f"{self.topic!r}: {fault}")
        if self.is_exactly_once and self.exactly_once:
            raise SettingsError("exactlyOnce", f"is not needed with delivery={EXACTLY_ONCE}; remove it")

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery == EXACTLY_ONCE


SPARKS_OWN = frozenset({"checkpointlocation", "path", "queryname"})
"""Spark's own options, which it also passes to the sink."""


def read_options(given: Mapping[str, str]) -> SinkOptions:
    """Raises SettingsError for an unknown name or an invalid value."""
    return load(SinkOptions, {name: text for name, text in given.items() if name.lower() not in SPARKS_OWN})


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """A task's commit message: all of its rows are acknowledged."""

    rows: int
    bytes: int


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises SettingsError for missing or unknown columns and wrong types."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    there = ", ".join(types) or "none"
    if "body" not in types:
        raise SettingsError("body", f"missing column body (binary or string); columns are {there}")
    if options.topic is None and "topic" not in types:
        raise SettingsError("topic", f"set the option topic or add a column topic; columns are {there}")
    for name, type_name in types.items():
        if name in TYPES:
            if type_name not in TYPES[name]:
                wanted = " or ".join(TYPES[name])
                raise SettingsError(name, f"the column is {type_name}; the sink needs {wanted}")
        elif name not in PASSENGERS:
            known = ", ".join(TYPES)
            raise SettingsError(
                name,
                f"unknown column; drop it, or move it into body or properties. The sink takes {known}",
            )
    if options.is_exactly_once and "shardingKey" in types:
        raise SettingsError(
            "shardingKey", f"delivery={EXACTLY_ONCE} does not keep order; remove the column or the option"
        )
    if options.keep_times and types.get("bornTimestamp") != "timestamp":
        raise SettingsError("keepTimes", "needs the column bornTimestamp (timestamp)")


# --- Rows to messages. Pure ---


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies a task's rows across retries of the task."""

    scope: str
    batch_id: str
    partition: int


def row_key(identity: Identity, origin: tuple[Any, ...] | None, row: int, topic: str, body: bytes) -> str:
    """The unique key of a row, 32 characters like those of other clients.

    With an origin the key survives shuffles and repartitioning; without, it depends on the row's position in
    its task. The body is part of the key, as one message may become several rows.
    """
    place = origin if origin is not None else (identity.batch_id, identity.partition, row)
    name = msgspec.json.encode([identity.scope, topic, *place])
    return hashlib.blake2b(body, key=hashlib.sha256(name).digest(), digest_size=16).hexdigest().upper()


class RowReader:
    """Turns record batches with checked columns into messages, one by one or as encoded columns."""

    def __init__(self, names: Sequence[str], options: SinkOptions, identity: Identity) -> None:
        self._options = options
        self._identity = identity
        self._names = frozenset(names)
        self._has_origin = all(name in self._names for name in ORIGIN)
        self._is_placed = "queueId" in self._names and not {"brokerName", "queueOffset"} <= self._names
        self._row = 0

    @property
    def is_plain(self) -> bool:
        """Whether any queue may take every row, so that rows are encoded column by column."""
        options = self._options
        return not (
            self._is_placed
            or self._names & SINGLED_OUT
            or options.exactly_once
            or options.is_exactly_once
            or options.keep_times
            or options.rows_per_second
        )

    def encoded(self, batch: pa.RecordBatch, new_keys: Callable[[int], pa.Array]) -> Iterator[PlainRows]:
        """Yield the rows of each topic in a batch of plain rows; `new_keys` makes properties with keys."""
        if batch.nbytes > ENCODED_BYTES_MAX and batch.num_rows > 1:
            half = batch.num_rows // 2
            yield from self.encoded(batch.slice(0, half), new_keys)
            yield from self.encoded(batch.slice(half), new_keys)
            return
        first, self._row = self._row, self._row + batch.num_rows
        for topic, rows, numbers in self._by_topic(batch, first):
            bodies = text_values(rows.column("body"))
            body_bytes = value_bytes(bodies)
            _refuse(body_bytes == 0, numbers, "body", "has an empty body; a message needs at least one byte")
            columns = [("", new_keys(rows.num_rows))]
            # Tags last: brokers then see at once that all rows have the same.
            for name, column in ((PROPERTY_KEYS, "keys"), (PROPERTY_TAGS, "tags")):
                if column in self._names:
                    values = text_values(rows.column(column))
                    for row in unsafe_rows(values):
                        raise SettingsError(
                            column, f"row {numbers[row]} holds \\x00, \\x01 or \\x02; remove it"
                        )
                    columns.append((name, values))
            texts = property_texts(columns, rows.num_rows)
            sentence = f"has more than {PROPERTIES_BYTES_MAX} bytes of properties"
            _refuse(value_bytes(texts) > PROPERTIES_BYTES_MAX, numbers, "properties", sentence)
            yield PlainRows(topic, encode_elements(bodies, texts), numbers, int(body_bytes.sum()))

    def _by_topic(
        self, batch: pa.RecordBatch, first: int
    ) -> Iterator[tuple[str, pa.RecordBatch, Sequence[int]]]:
        numbers = range(first, first + batch.num_rows)
        if not numbers:
            return
        if self._options.topic is not None:
            yield self._options.topic, batch, numbers
            return
        topics = batch.column("topic").fill_null("")
        for topic in pc.unique(topics).to_pylist():
            places = np.flatnonzero(pc.equal(topics, topic).to_numpy(zero_copy_only=False))
            if not topic:
                raise _no_topic(numbers[int(places[0])])
            if len(places) == len(numbers):
                yield topic, batch, numbers
            else:
                yield topic, batch.take(pa.array(places)), (places + first).tolist()

    def messages(self, batch: pa.RecordBatch, new_key: Callable[[], str]) -> Iterator[OutMessage]:
        """Yield the messages of one batch; `new_key` makes keys for rows without `exactlyOnce`."""
        read = {*TYPES, *ORIGIN, *(["bornTimestamp"] if self._options.keep_times else [])}
        wanted = [name for name in batch.schema.names if name in read]
        columns = [batch.column(name).to_pylist() for name in wanted]
        for values in zip(*columns, strict=True):
            yield self._message(dict(zip(wanted, values, strict=True)), new_key)
            self._row += 1

    def _message(self, row: dict[str, Any], new_key: Callable[[], str]) -> OutMessage:
        body = row["body"]
        if isinstance(body, str):
            body = body.encode()
        topic = self._options.topic or row["topic"]
        if not topic:
            raise _no_topic(self._row)
        properties = self._properties(row)
        unique_key = None
        if self._options.exactly_once:
            origin = tuple(row[name] for name in ORIGIN) if self._has_origin else None
            unique_key = row_key(self._identity, origin, self._row, topic, body or b"")
            properties[PROPERTY_UNIQUE_KEY] = unique_key
        elif PROPERTY_UNIQUE_KEY not in properties:
            properties[PROPERTY_UNIQUE_KEY] = new_key()
        try:
            text = encode_properties(properties)
        except ValueError as error:
            raise SettingsError("properties", f"row {self._row}: {error}") from None
        is_delayed = PROPERTY_DELAY_LEVEL in properties or PROPERTY_TIMER_DELIVER_MS in properties
        return OutMessage(
            topic=topic,
            body=body or b"",
            properties=text,
            sharding_key=properties.get(PROPERTY_SHARDING_KEY),
            queue_id=row["queueId"] if self._is_placed else None,
            spread_key=unique_key,
            born_ms=_milliseconds(row["bornTimestamp"]) if self._options.keep_times else None,
            is_single=is_delayed or self._options.is_exactly_once or not is_batchable(topic),
            row=self._row,
        )

    def _properties(self, row: dict[str, Any]) -> dict[str, str]:
        given = row.get("properties")
        properties = {
            name: value
            for name, value in (given.items() if isinstance(given, dict) else given or ())
            if name not in BROKERS_OWN and value
        }
        if row.get("tags"):
            properties[PROPERTY_TAGS] = row["tags"]
        if keys := row.get("keys"):
            properties[PROPERTY_KEYS] = (
                keys if isinstance(keys, str) else " ".join(key for key in keys if key)
            )
        if row.get("shardingKey"):
            properties[PROPERTY_SHARDING_KEY] = row["shardingKey"]
        if row.get("delayLevel"):
            properties[PROPERTY_DELAY_LEVEL] = str(row["delayLevel"])
        if (deliver_at := row.get("deliverAt")) is not None:
            properties[PROPERTY_TIMER_DELIVER_MS] = str(_milliseconds(deliver_at))
        if self._options.is_exactly_once:
            properties[PROPERTY_TRANSACTION] = "true"
            properties[PROPERTY_PRODUCER_GROUP] = self._options.producer_group
        return properties


def _no_topic(row: int) -> SettingsError:
    return SettingsError("topic", f"row {row}: the column is null; fill it or set the option topic")


def _refuse(is_bad: Flags, numbers: Sequence[int], name: str, sentence: str) -> None:
    if is_bad.any():
        raise SettingsError(name, f"row {numbers[int(is_bad.argmax())]} {sentence}")


def _milliseconds(moment: datetime | int | None) -> int | None:
    if isinstance(moment, datetime):
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)
    return moment


# --- Spark's writer classes ---


class _Writing:
    """Shared by both writers. Created and checked on the driver, pickled to the tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self.options = read_options(options)
        if overwrite:
            raise SettingsError("mode", "a topic cannot be overwritten; use mode append")
        check_columns(schema, self.options)
        self.scope = self.options.exactly_once_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        settle_worker()
        scope, batch_id = self.scope, "0"
        if query_id := context.getLocalProperty("sql.streaming.queryId"):
            scope = self.options.exactly_once_id or query_id
            batch_id = context.getLocalProperty("streaming.sql.batchId") or "0"
        identity = Identity(scope, batch_id, context.partitionId())
        write = stage_rows if self.options.is_exactly_once else write_rows
        return write(iterator, self.options, identity, _brokers(self.options))


def write_rows(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, identity: Identity, brokers: ClusterClient
) -> Sent:
    """Send the rows of one task. Raises RocketMQError unless all of them are acknowledged."""
    sender = _sender(options, brokers)
    _send_all(batches, options, identity, sender)
    return Sent(sender.rows, sender.bytes)


def stage_rows(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, identity: Identity, brokers: ClusterClient
) -> Staged:
    """Send the rows of one task as half messages. Raises RocketMQError unless all are acknowledged."""
    topic = _commit_topic(options, brokers)
    sent = SentHalves()
    sender = _sender(options, brokers, sys_flag=HALF, on_stored=sent.note)
    try:
        _send_all(batches, options, identity, sender)
        manifests = tuple(topic.append(manifest) for manifest in sent.manifests())
    except RocketMQError:
        # The driver never hears of these rows, so nothing can commit them.
        with contextlib.suppress(RocketMQError):
            _transaction(options, brokers).end(sent.halves(), ROLLBACK)
        raise
    return Staged(sender.rows, sender.bytes, identity.scope, int(identity.batch_id), manifests)


def _sender(
    options: SinkOptions,
    brokers: ClusterClient,
    sys_flag: int = 0,
    on_stored: Callable[[MessageQueue, SendResult], None] | None = None,
) -> RowSender:
    return RowSender(
        brokers,
        group=options.producer_group,
        rows_per_second=options.rows_per_second,
        requests_in_flight_max=options.in_flight_max,
        attempts_max=options.attempts_max,
        timeout_s=options.request_timeout_ms / 1000,
        sys_flag=sys_flag,
        on_stored=on_stored,
    )


def _send_all(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, identity: Identity, sender: RowSender
) -> None:
    reader: RowReader | None = None
    for batch in batches:
        if reader is None:
            reader = RowReader(batch.schema.names, options, identity)
        if reader.is_plain:
            for rows in reader.encoded(batch, sender.next_unique_keys):
                sender.send_encoded(rows)
            continue
        for message in reader.messages(batch, sender.next_unique_key):
            sender.send(message)
    sender.finish()


def _commit_topic(options: SinkOptions, brokers: ClusterClient) -> CommitTopic:
    return CommitTopic(brokers, options.commit_topic, options.producer_group)


def _transaction(options: SinkOptions, brokers: ClusterClient) -> BatchTransaction:
    return BatchTransaction(brokers, _commit_topic(options, brokers), options.producer_group)


def _brokers(options: SinkOptions) -> ClusterClient:
    assert options.namesrv is not None
    return shared_client(
        options.namesrv,
        request_timeout_s=options.request_timeout_ms / 1000,
        credentials=options.credentials,
        tls=options.tls_settings,
    )


class BatchSink(_Writing, DataSourceArrowWriter):
    """`df.write.format("rocketmq")`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """At least once there is nothing to do: a finished task has its rows acknowledged."""
        if self.options.is_exactly_once:
            commit_batch(messages, self.options, is_stream=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """At least once sent rows stay sent."""
        if self.options.is_exactly_once:
            abort_batch(messages, self.options)


class StreamSink(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream.format("rocketmq")`."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """As `BatchSink.commit`."""
        if self.options.is_exactly_once:
            commit_batch(messages, self.options, is_stream=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """As `BatchSink.abort`; the batch is retried."""
        if self.options.is_exactly_once:
            abort_batch(messages, self.options)


def commit_batch(
    messages: Sequence[WriterCommitMessage | None], options: SinkOptions, *, is_stream: bool
) -> None:
    """Make the rows of a batch visible, once. Raises RocketMQError."""
    staged = [message for message in messages if isinstance(message, Staged)]
    _transaction(options, _brokers(options)).commit(staged, is_stream=is_stream)


def abort_batch(messages: Sequence[WriterCommitMessage | None], options: SinkOptions) -> None:
    """Roll back the rows of a failed batch. Raises RocketMQError."""
    staged = [message for message in messages if isinstance(message, Staged)]
    _transaction(options, _brokers(options)).abort(staged)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Raises SettingsError for columns and options that cannot be used."""
    return BatchSink(options, schema, overwrite)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Raises SettingsError for columns and options that cannot be used."""
    return StreamSink(options, schema, overwrite)


def each_batch(name: str, **options: str) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that sends every batch to topics; works with output mode `update`.

    `name` must stay the same for the query: with `exactlyOnce` a repeated batch has the same keys.
    """

    def write(df: DataFrame, batch_id: int) -> None:
        writer = df.write.format("rocketmq").mode("append")
        writer.options(**{**options, "exactlyOnceId": f"{name}/{batch_id}"}).save()

    return write
