"""Rows of an Arrow table as batches of messages: encoded by columns, sent with several requests in flight.

Imported on first use: it needs pyarrow and numpy, which the extra `skylarkmq[arrow]` installs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skylark.arrow.batch_elements import (
    Elements,
    Texts,
    encode_elements,
    map_items,
    parts,
    property_maps,
    property_texts,
    text_values,
    unique_key_texts,
    unsafe_rows,
    value_bytes,
)
from skylark.arrow.record_layout import Flags, Ints
from skylark.client.namespace import with_namespace
from skylark.client.producer.async_sender import AsyncSender
from skylark.client.producer.message_encoder import (
    RESERVED_PROPERTIES,
    UNSAFE_REASON,
    UNSAFE_TEXT,
    EncodedBatch,
    MessageEncoder,
    property_text,
    tags_fault,
)
from skylark.client.producer.queue_selectors import ROUND_ROBIN, SendTarget, hash_index
from skylark.client.producer.sent_rows import SentRange, SentRows
from skylark.errors import BadMessage, ClientError, MessageTooLarge, SettingsError
from skylark.model.message import (
    PROPERTIES_BYTES_MAX,
    PROPERTY_INSTANCE,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    RETRY_TOPIC_PREFIX,
    Message,
    decode_properties,
    split_keys,
)
from skylark.model.record import split_batch
from skylark.protocol.bodies import MessageQueue

REQUEST_BYTES_MAX = 256 << 10
REQUEST_ROWS_MAX = 1024
REQUESTS_IN_FLIGHT_MAX = 32
SLICE_BYTES_MAX = 8 << 20
"""Rows are encoded in slices of about this many bytes, while the requests of earlier slices are in flight."""
SLICE_ROWS_MAX = 16 << 10


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Which columns make a message. Those in `properties` become properties, or bring them as maps."""

    body: str
    keys: str | None = None
    tags: str | None = None
    sharding_key: str | None = None
    properties: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RowRequest:
    """Rows in one request."""

    rows: Sequence[int]
    encoded: EncodedBatch
    target: SendTarget


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Consecutive rows of a table, as texts. Properties are in the order in which they are sent."""

    first_row: int
    bodies: pa.Array
    before_key: list[tuple[str, Texts]]
    after_key: list[tuple[str, Texts]]
    maps: list[pa.Array]
    """Columns of maps; their texts are among the properties."""
    tags: pa.Array | None
    sharding_keys: pa.Array | None

    def __len__(self) -> int:
        return len(self.bodies)

    def row(self, index: Any) -> int:
        return self.first_row + int(index)

    def taken(self, indexes: Ints) -> RowSlice:
        """Some of the rows, only for encoding."""
        if len(indexes) == len(self):
            return self
        some = pa.array(indexes)
        before, after = (
            [(name, values if isinstance(values, bytes) else values.take(some)) for name, values in named]
            for named in (self.before_key, self.after_key)
        )
        return RowSlice(self.first_row, self.bodies.take(some), before, after, [], None, None)


class RowEncoder:
    """Encodes the rows of one table for one topic, to the bytes that `MessageEncoder` makes of messages."""

    def __init__(
        self, encoder: MessageEncoder, topic: str, columns: RowColumns, *, wait_for_store: bool = True
    ) -> None:
        """Raises BadName and BadMessage: a topic or properties that cannot be sent."""
        self._topic = topic
        self.wire_topic = with_namespace(encoder.namespace, topic)
        self._encoder = encoder
        self._columns = columns
        self._wait = wait_for_store
        encoder.tail(Message(topic, b"any"))  # checks the topic
        if topic.startswith(RETRY_TOPIC_PREFIX):
            raise BadMessage(topic, "Retry Group is not supported for batching")
        for name in columns.properties:
            self._check_property(name)

    def _check_property(self, name: str) -> None:
        if name in RESERVED_PROPERTIES:
            raise BadMessage(self._topic, f"The Property<{name}> is used by system, input another please")
        if not name.strip() or UNSAFE_TEXT.search(name):
            raise BadMessage(self._topic, f"{name!r} cannot be the name of a property")

    def slices(self, table: pa.Table) -> Iterator[RowSlice]:
        """The rows in slices that can be encoded at once. Raises SettingsError for columns of no use."""
        first_row = 0
        for batch in table.to_batches():
            sizes = value_bytes(self._texts(batch, self._columns.body))
            bounds = np.concatenate([[0], np.cumsum(sizes)])
            for rows in parts(bounds, SLICE_BYTES_MAX, SLICE_ROWS_MAX):
                yield self._slice(batch.slice(rows.start, len(rows)), first_row + rows.start)
            first_row += batch.num_rows

    def _slice(self, batch: pa.RecordBatch, first_row: int) -> RowSlice:
        columns, namespace = self._columns, self._encoder.namespace
        before: list[tuple[str, Texts]] = []
        maps = []
        for name in columns.properties:
            column = self._column(batch, name)
            if pa.types.is_map(column.type):
                maps.append(column)
                before.append(("", property_maps(column)))
            else:
                before.append((name, self._texts(batch, name)))
        shards = None
        if columns.sharding_key is not None:
            shards = self._texts(batch, columns.sharding_key)
            before.append((PROPERTY_SHARDING_KEY, shards))
        if namespace:
            before.append((PROPERTY_INSTANCE, namespace.encode()))
        if columns.keys is not None:
            before.append((PROPERTY_KEYS, self._texts(batch, columns.keys)))
        after: list[tuple[str, Texts]] = [(PROPERTY_WAIT, b"true" if self._wait else b"false")]
        tags = None
        if columns.tags is not None:
            tags = self._texts(batch, columns.tags)
            after.append((PROPERTY_TAGS, tags))
        return RowSlice(first_row, self._texts(batch, columns.body), before, after, maps, tags, shards)

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if name not in batch.schema.names:
            known = ", ".join(batch.schema.names)
            raise SettingsError("send_arrow", f"there is no column {name!r}; columns are {known}")
        return batch.column(name)

    def _texts(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = self._column(batch, name)
        try:
            return text_values(column)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = f"column {name!r} of type {column.type} cannot be sent: {error}"
            raise SettingsError("send_arrow", reason) from None

    # --- Checks ---

    def check(self, rows: RowSlice) -> None:
        """Raises BadMessage, MessageTooLarge for a row that cannot be sent."""
        sizes, bytes_max = value_bytes(rows.bodies), self._encoder.settings.message_bytes_max
        self._refuse(rows, sizes == 0, "the message body length is zero")
        if (sizes > bytes_max).any():
            error = MessageTooLarge(int(sizes.max()), bytes_max)
            error.add_note(f"row {rows.row(sizes.argmax())}")
            raise error
        text_bytes = np.full(len(rows), len(PROPERTY_UNIQUE_KEY) + 2 + self._encoder.keys.chars)
        for name, values in (*rows.before_key, *rows.after_key):
            lengths = len(values) if isinstance(values, bytes) else value_bytes(values)
            text_bytes += lengths + np.where(lengths > 0, len(name.encode()) + 2, 0) if name else lengths
            if name and not isinstance(values, bytes):
                self._refuse(rows, unsafe_rows(values), UNSAFE_REASON)
        self._refuse(
            rows, text_bytes > PROPERTIES_BYTES_MAX, f"more than {PROPERTIES_BYTES_MAX} bytes of properties"
        )
        for column in rows.maps:
            self._check_maps(rows, column)
        for tags in () if rows.tags is None else pc.unique(rows.tags).to_pylist():
            if tags and (fault := tags_fault(tags.decode(errors="replace"))) is not None:
                self._refuse(rows, pc.equal(rows.tags, tags).to_numpy(zero_copy_only=False) == 1, fault)

    def _check_maps(self, rows: RowSlice, column: pa.Array) -> None:
        places, names, values = map_items(column)
        for name in pc.unique(names).to_pylist():
            self._check_property(name.decode())
        unsafe = unsafe_rows(values)
        self._refuse(rows, places.to_numpy()[unsafe[:1]], UNSAFE_REASON)

    def _refuse(self, rows: RowSlice, bad: Ints | Flags, reason: str) -> None:
        """Raises BadMessage if there is a bad row; `bad` are flags or indexes."""
        indexes = np.flatnonzero(bad) if bad.dtype == np.bool_ else bad
        if len(indexes):
            raise BadMessage(self._topic, f"row {rows.row(indexes[0])}: {reason}")

    # --- Requests ---

    def requests(
        self,
        rows: RowSlice,
        queues: Sequence[MessageQueue],
        target: SendTarget,
        *,
        with_messages: bool = False,
    ) -> Iterator[RowRequest]:
        """Encode rows; those with a sharding key go to the queue of `by_hash`, others to `target`.

        `with_messages` adds the messages, which only hooks read.
        """
        limit = min(REQUEST_BYTES_MAX, self._encoder.settings.message_bytes_max)
        for place, indexes in _placed(rows, queues, target):
            keys = unique_key_texts(self._encoder.keys.stems(len(indexes)))
            elements = self._elements(rows.taken(indexes), keys)
            for part in elements.parts(limit, REQUEST_ROWS_MAX):
                sent = indexes[part.start : part.stop] + rows.first_row
                first, last = int(sent[0]), int(sent[-1])
                is_range = last - first == len(sent) - 1
                named = keys[part.start : part.stop if with_messages else part.start + 1]
                encoded = self._batch(elements.part(part), named, with_messages)
                yield RowRequest(range(first, last + 1) if is_range else sent.tolist(), encoded, place)

    def _elements(self, rows: RowSlice, keys: pa.Array) -> Elements:
        return encode_elements(
            rows.bodies, property_texts([*rows.before_key, ("", keys), *rows.after_key], len(rows))
        )

    def _batch(self, data: memoryview, keys: pa.Array, with_messages: bool) -> EncodedBatch:
        """A batch of which only the rows of these keys get receipts: the others follow in the same queue.

        The batch has no unique key of its own, which would hide those of its rows.
        """
        messages = _messages(self._topic, data, self._wait) if with_messages else ()
        properties = property_text([(PROPERTY_WAIT, "true" if self._wait else "false")])
        named = [key.decode()[len(PROPERTY_UNIQUE_KEY) + 1 : -1] for key in keys.to_pylist()]
        return EncodedBatch(messages, named, self.wire_topic, data, properties)


def _placed(
    rows: RowSlice, queues: Sequence[MessageQueue], target: SendTarget
) -> Iterator[tuple[SendTarget, Ints]]:
    """Which rows go where."""
    everything = np.arange(len(rows))
    if rows.sharding_keys is None:
        yield target, everything
        return
    coded = pc.dictionary_encode(rows.sharding_keys)
    chosen = [hash_index(key.decode(), len(queues)) if key else -1 for key in coded.dictionary.to_pylist()]
    places = np.array([*chosen, -1])[pc.fill_null(coded.indices, len(chosen)).to_numpy()]
    for place in np.unique(places).tolist():
        yield (target if place < 0 else SendTarget(queues[place])), everything[places == place]


def _messages(topic: str, data: memoryview, wait: bool) -> list[Message]:
    messages = []
    for element in split_batch(data):
        properties = decode_properties(bytes(element.properties))
        own = {name: value for name, value in properties.items() if name not in RESERVED_PROPERTIES}
        sharding_key = own.pop(PROPERTY_SHARDING_KEY, None)
        keys = split_keys(properties.get(PROPERTY_KEYS, ""))
        message = Message(
            topic, bytes(element.body), properties.get(PROPERTY_TAGS), keys, own, sharding_key,
            wait_for_store=wait,
        )  # fmt: skip
        messages.append(message)
    return messages


class RowSends:
    """The requests of one `send_arrow`. Rows for a chosen queue are sent in order, one request at a time."""

    def __init__(self, sender: AsyncSender, timeout_ms: float | None) -> None:
        self._sender = sender
        self._timeout_ms = timeout_ms
        self._slots = asyncio.Semaphore(REQUESTS_IN_FLIGHT_MAX)
        self._last: dict[MessageQueue, asyncio.Task[bool]] = {}
        self._ranges: list[SentRange] = []

    async def send(self, encoder: RowEncoder, table: pa.Table, topic: str, target: SendTarget) -> SentRows:
        """Send all rows, once all are checked. Raises BadMessage, MessageTooLarge, NoRoute, RemotingError."""
        slices = list(encoder.slices(table))
        for rows in slices:
            encoder.check(rows)
        found = await self._sender.find_topic(encoder.wire_topic)
        hooked = bool(self._sender.policy.hooks)
        async with asyncio.TaskGroup() as tasks:
            for rows in slices:
                for request in encoder.requests(rows, found.route.write_queues, target, with_messages=hooked):
                    await self._slots.acquire()
                    queue = request.target.queue
                    before = None if queue is None else self._last.get(queue)
                    task = tasks.create_task(self._send(request, before))
                    if queue is not None:
                        self._last[queue] = task
        ordered = sorted(self._ranges, key=lambda each: each.rows[0])
        return SentRows(topic, tuple(ordered))

    async def _send(self, request: RowRequest, before: asyncio.Task[bool] | None) -> bool:
        """Send one request after another has been acknowledged; return whether this one was."""
        try:
            sent = await self._sent(request) if before is None or await before else _not_sent(request)
        except Exception as error:  # noqa: BLE001 (every error belongs to its rows)
            sent = SentRange(request.rows, error=error)
        finally:
            self._slots.release()
        self._ranges.append(sent)
        return sent.error is None

    async def _sent(self, request: RowRequest) -> SentRange:
        receipts = await (await self._sender.send(request.encoded, request.target, self._timeout_ms))
        first = receipts[0]
        return SentRange(request.rows, first.queue, first.queue_offset, first.status)


def _not_sent(request: RowRequest) -> SentRange:
    reason = "not sent, to keep the order: the request before it to this queue failed"
    return SentRange(request.rows, error=ClientError(reason))


async def send_rows(
    sender: AsyncSender,
    data: Any,
    topic: str,
    columns: RowColumns,
    target: SendTarget = ROUND_ROBIN,
    *,
    timeout_ms: float | None = None,
    wait_for_store: bool = True,
) -> SentRows:
    """Send a table: a RecordBatch, a Table, or what pyarrow makes one of. Raises as `Producer.send_arrow`."""
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else pa.table(data)
    encoder = RowEncoder(sender.encoder, topic, columns, wait_for_store=wait_for_store)
    sent = await RowSends(sender, timeout_ms).send(encoder, table, topic, target)
    sent.check()
    return sent
