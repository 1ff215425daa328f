"""Sends the rows of one task: batches messages per queue, with several requests in flight.

`finish` returns once the brokers have acknowledged every message, or raises.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from skylark.arrow.batch_elements import unique_key_texts
from skylark.client import retry
from skylark.client.producer.queue_selectors import RoundRobin
from skylark.client.session.routes import TopicRoute, limited
from skylark.clock import now_ms
from skylark.errors import BrokerError, BrokerUnknown, MessageIllegal, NoRoute, RocketMQError, SettingsError
from skylark.model.java import java_hash
from skylark.model.message import PROPERTIES_BYTES_MAX, RETRY_TOPIC_PREFIX
from skylark.model.message_id import UniqueIds
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.model.record import BATCH_ELEMENT, LENGTH, split_batch
from skylark.pipelines.cluster_client import ClusterClient, masters
from skylark.protocol.bodies import MessageQueue, TopicRouteData
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import Buffer
from skylark.protocol.requests.send import SendBatchMessage, SendMessageV2, SendResult
from skylark.remoting.blocking_connection import BlockingConnection, PendingReply

if TYPE_CHECKING:
    from skylark.arrow.batch_elements import Elements

log = logging.getLogger(__name__)

REQUESTS_IN_FLIGHT_MAX = 32
BATCH_BYTES_MAX = 256 << 10
BATCH_MESSAGES_MAX = 256
ENCODED_ROWS_MAX = 1024
SEND_TIMEOUT_S = 10.0
ATTEMPTS_MAX = 5
PAUSE_MIN_S = 0.01
"""Shorter waits are accumulated, so that rows still travel in batches at high rates."""
AUTO_CREATE_QUEUES = 4


@dataclass(frozen=True, slots=True)
class OutMessage:
    """A row to send. With `queue_id` None the sender chooses the queue; a sharding key keeps order."""

    topic: str
    body: bytes
    properties: bytes
    sharding_key: str | None = None
    queue_id: int | None = None
    spread_key: str | None = None
    """Rows with the same key go to the same queue, in any order."""
    born_ms: int | None = None
    is_single: bool = False
    """Sent alone: delayed messages cannot be part of a batch."""
    row: int = 0
    """Row number within the task, for error messages."""


@dataclass(frozen=True, slots=True)
class PlainRows:
    """Rows of one topic that any queue may take, with their numbers within the task."""

    topic: str
    elements: Elements
    numbers: Sequence[int]
    body_bytes: int


@dataclass(slots=True)
class RowBatch:
    """Messages of one queue that are gathered for one request."""

    queue: MessageQueue
    is_ordered: bool
    is_pinned: bool
    born_ms: int | None
    messages: list[OutMessage] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True)
class SinkRequest:
    """Encoded rows of one request. The body of several rows is that of a batch, and has their properties."""

    queue: MessageQueue
    is_ordered: bool
    is_pinned: bool
    born_ms: int | None
    rows: Sequence[int]
    body: Buffer
    properties: bytes = b""
    attempts: int = 0

    @classmethod
    def of(cls, batch: RowBatch) -> SinkRequest:
        messages = batch.messages
        place = batch.queue, batch.is_ordered, batch.is_pinned, batch.born_ms
        rows = [message.row for message in messages]
        if len(messages) == 1:
            return cls(*place, rows, messages[0].body, messages[0].properties)
        return cls(*place, rows, encode_batch(messages))

    @classmethod
    def of_encoded(cls, queue: MessageQueue, rows: Sequence[int], body: memoryview) -> SinkRequest:
        """Rows that any queue may take."""
        if len(rows) > 1:
            return cls(queue, False, False, None, rows, body)
        (element,) = split_batch(body)
        return cls(queue, False, False, None, rows, element.body, element.properties)

    def single_rows(self) -> Iterator[SinkRequest]:
        """One request for each row of a batch."""
        for row, element in zip(self.rows, split_batch(memoryview(self.body)), strict=True):
            yield SinkRequest(
                self.queue, self.is_ordered, True, self.born_ms, [row], element.body, element.properties
            )


def encode_batch(messages: list[OutMessage]) -> bytes:
    pieces = []
    for message in messages:
        size = BATCH_ELEMENT.size + len(message.body) + LENGTH.size + len(message.properties)
        pieces.append(BATCH_ELEMENT.pack(size, 0, 0, 0, len(message.body)))
        pieces.append(message.body)
        pieces.append(LENGTH.pack(len(message.properties)))
        pieces.append(message.properties)
    return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A request in flight: its pending reply, or the error that kept it from being sent."""

    request: SinkRequest
    asked: tuple[BlockingConnection, PendingReply[SendResult]] | RocketMQError


class RowPace:
    """Limits rows per second. Pure: `now` is monotonic time."""

    def __init__(self, rows_per_second: float, now: float) -> None:
        self._interval_s = 1 / rows_per_second
        self._next = now

    def wait_s(self, now: float) -> float:
        """Reserve the next slot; return the seconds until it."""
        start = max(self._next, now)
        self._next = start + self._interval_s
        return start - now


class SendRoute:
    """Writable queues of one topic, the masters' addresses, and the round-robin position."""

    def __init__(self, topic: str, route: TopicRouteData) -> None:
        self.masters = masters(route)
        self.queues = TopicRoute.of(topic, route).write_queues
        self._robin = RoundRobin()

    def next(self) -> MessageQueue:
        return self._robin.next(self.queues)


class RowSender:
    """Sends the rows of one task. Not thread-safe. Raises RocketMQError if a message cannot be delivered."""

    def __init__(
        self,
        brokers: ClusterClient,
        *,
        group: str,
        rows_per_second: float | None = None,
        requests_in_flight_max: int = REQUESTS_IN_FLIGHT_MAX,
        attempts_max: int = ATTEMPTS_MAX,
        timeout_s: float = SEND_TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
        sys_flag: int = 0,
        on_stored: Callable[[MessageQueue, SendResult], None] | None = None,
    ) -> None:
        """`on_stored` hears of every request that a broker has confirmed."""
        self._brokers = brokers
        self._group = group
        self._pace = RowPace(rows_per_second, time.monotonic()) if rows_per_second else None
        self._in_flight_max = requests_in_flight_max
        self._attempts_max = attempts_max
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._sys_flag = sys_flag
        self._on_stored = on_stored
        self._routes: dict[str, SendRoute] = {}
        self._open: dict[MessageQueue, RowBatch] = {}
        self._spreading: dict[str, RowBatch] = {}
        self._flying: deque[_InFlight] = deque()
        # Random bytes instead of the host address: unique per worker.
        self._ids = UniqueIds(os.urandom(4), now_ms())
        self.rows = 0
        self.bytes = 0

    def next_unique_key(self) -> str:
        return self._ids.next(now_ms())

    def next_unique_keys(self, count: int) -> pa.Array:
        """The property texts of new unique keys."""
        return unique_key_texts(self._ids.stems(count, now_ms()))

    def send(self, message: OutMessage) -> None:
        """Queue a message; it is sent when its batch is full, and acknowledged after `finish`."""
        if self._pace is not None and (wait_s := self._pace.wait_s(time.monotonic())) > PAUSE_MIN_S:
            self._flush()
            self._sleep(wait_s)
        self._check(message)
        batch = self._batch_for(message)
        batch.messages.append(message)
        batch.size += len(message.body) + len(message.properties) + BATCH_ELEMENT.size + LENGTH.size
        self.rows += 1
        self.bytes += len(message.body)
        if message.is_single or batch.size >= BATCH_BYTES_MAX or len(batch.messages) >= BATCH_MESSAGES_MAX:
            self._close(batch)

    def send_encoded(self, rows: PlainRows) -> None:
        """Send rows; they are acknowledged after `finish`."""
        rows_max = ENCODED_ROWS_MAX if is_batchable(rows.topic) else 1
        for part in rows.elements.parts(BATCH_BYTES_MAX, rows_max):
            queue = self._route(rows.topic).next()
            numbers = rows.numbers[part.start : part.stop]
            self._dispatch(SinkRequest.of_encoded(queue, numbers, rows.elements.part(part)))
        self.rows += len(rows.elements)
        self.bytes += rows.body_bytes

    def finish(self) -> None:
        """Send the rest and wait until everything is acknowledged."""
        self._flush()
        while self._flying:
            self._land()

    # --- Queue selection ---

    def _check(self, message: OutMessage) -> None:
        if not message.body:
            raise SettingsError(
                "body", f"row {message.row} has an empty body; a message needs at least one byte"
            )
        if len(message.properties) > PROPERTIES_BYTES_MAX:
            size = len(message.properties)
            raise SettingsError(
                "properties",
                f"row {message.row} has {size} bytes of properties; the limit is {PROPERTIES_BYTES_MAX}",
            )

    def _route(self, topic: str, *, refresh: bool = False) -> SendRoute:
        known = self._routes.get(topic)
        if known is not None and not refresh:
            return known
        try:
            found = SendRoute(topic, self._brokers.route(topic, refresh=refresh))
        except NoRoute:
            found = known or self._route_of_a_new_one(topic)
        # Keep the known queues while the broker is away.
        route = found if found.queues else known
        if route is None:
            raise SettingsError("topic", f"topic {topic} has no writable queue")
        self._routes[topic] = route
        return route

    def _route_of_a_new_one(self, topic: str) -> SendRoute:
        """The route of a topic that the broker will create with the first message."""
        try:
            route = self._brokers.route(AUTO_CREATE_TOPIC)
        except NoRoute:
            raise SettingsError(
                "topic", f"unknown topic {topic}, and automatic creation is off; create it first"
            ) from None
        return SendRoute(topic, limited(route, AUTO_CREATE_QUEUES))

    def _batch_for(self, message: OutMessage) -> RowBatch:
        topic = message.topic
        is_free = message.sharding_key is None and message.queue_id is None and message.spread_key is None
        if is_free and not message.is_single and message.born_ms is None:
            batch = self._spreading.get(topic)
            if batch is None:
                batch = self._spreading[topic] = RowBatch(self._route(topic).next(), False, False, None)
            return batch
        queue = self._route(topic).next() if is_free else self._queue_of(message)
        is_ordered = message.sharding_key is not None
        if message.is_single:
            self._flush_queue(queue)
            return RowBatch(queue, is_ordered, not is_free, message.born_ms)
        batch = self._open.get(queue)
        if batch is not None and batch.born_ms != message.born_ms:
            self._close(batch)  # a request has a single born timestamp
            batch = None
        if batch is None:
            batch = self._open[queue] = RowBatch(queue, False, False, message.born_ms)
        batch.is_ordered |= is_ordered
        batch.is_pinned |= not is_free
        return batch

    def _queue_of(self, message: OutMessage) -> MessageQueue:
        queues = self._route(message.topic).queues
        if message.queue_id is not None:
            queues = tuple(queue for queue in queues if queue.queue_id == message.queue_id)
            if not queues:
                raise SettingsError(
                    "queueId", f"row {message.row}: topic {message.topic} has no queue {message.queue_id}"
                )
        key = message.sharding_key if message.sharding_key is not None else message.spread_key
        return queues[abs(java_hash(key)) % len(queues)] if key is not None else queues[0]

    # --- Batches in flight ---

    def _flush(self) -> None:
        for batch in self._batches():
            self._close(batch)

    def _batches(self) -> Iterator[RowBatch]:
        yield from [*self._open.values(), *self._spreading.values()]

    def _flush_queue(self, queue: MessageQueue) -> None:
        """Send earlier messages of the queue before a single one."""
        for batch in self._batches():
            if batch.queue == queue:
                self._close(batch)

    def _close(self, batch: RowBatch) -> None:
        if self._open.get(batch.queue) is batch:
            del self._open[batch.queue]
        if self._spreading.get(batch.queue.topic) is batch:
            del self._spreading[batch.queue.topic]
        if not batch.messages:
            return
        self._dispatch(SinkRequest.of(batch))

    def _dispatch(self, request: SinkRequest) -> None:
        """Send a request as soon as there is room in flight."""
        while len(self._flying) >= self._in_flight_max or (
            # Keeps order: a retried request must not be stored after its successors.
            request.is_ordered and any(flight.request.queue == request.queue for flight in self._flying)
        ):
            self._land()
        self._start(request)

    def _start(self, request: SinkRequest) -> None:
        request.attempts += 1
        try:
            address = self._route(request.queue.topic).masters.get(request.queue.broker_name)
            if address is None:
                raise BrokerUnknown(request.queue.broker_name)
            connection = self._brokers.connection(address)
            asked = connection.ask(self._command(request), timeout_s=self._timeout_s)
        except RocketMQError as error:
            self._flying.append(_InFlight(request, error))
        else:
            self._flying.append(_InFlight(request, (connection, asked)))

    def _command(self, request: SinkRequest) -> SendMessageV2:
        is_batch = len(request.rows) > 1
        kind = SendBatchMessage if is_batch else SendMessageV2
        return kind(
            producer_group=self._group,
            topic=request.queue.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=AUTO_CREATE_QUEUES,
            queue_id=request.queue.queue_id,
            sys_flag=self._sys_flag,
            born_timestamp=request.born_ms if request.born_ms is not None else now_ms(),
            flag=0,
            properties=request.properties.decode(),
            batch=is_batch,
            broker_name=request.queue.broker_name,
            body=request.body,
        )

    def _land(self) -> None:
        """Wait for the oldest request; retry it if it failed."""
        flight = self._flying.popleft()
        if isinstance(flight.asked, RocketMQError):
            self._again(flight.request, flight.asked)
            return
        connection, asked = flight.asked
        try:
            result = connection.answer(asked)
        except RocketMQError as error:
            self._again(flight.request, error)
            return
        if result.code != ResponseCode.SUCCESS:
            unconfirmed = BrokerError(result.code, "stored, but not confirmed by disk or replica")
            self._again(flight.request, unconfirmed)
        elif self._on_stored is not None:
            self._on_stored(flight.request.queue, result)

    def _again(self, request: SinkRequest, error: RocketMQError) -> None:
        """Retry a request, or raise if a retry cannot help."""
        if isinstance(error, MessageIllegal) and len(request.rows) > 1:
            for single in request.single_rows():  # find the illegal one
                self._start(single)
            return
        topic = request.queue.topic
        is_stored = isinstance(error, BrokerError) and error.code in SendMessageV2.good_codes
        is_retriable = error.retriable or error.refresh_route or is_stored
        if not is_retriable or request.attempts >= self._attempts_max:
            rows = f"rows {request.rows[0]} to {request.rows[-1]}"
            log.error("send failed topic=%s rows=%s attempts=%d", topic, rows, request.attempts)
            error.add_note(f"{rows} for topic {topic}, after {request.attempts} attempts")
            raise error
        # A broker may be restarting: longer pauses than a client's, whose user is waiting.
        self._sleep(retry.pause_s(request.attempts + 2, has_other_broker=False))
        route = self._route(topic, refresh=True)
        if not request.is_pinned:
            request.queue = route.next()
        self._start(request)


def is_batchable(topic: str) -> bool:
    """Return whether brokers accept batches for a topic: not for retry topics."""
    return not topic.startswith(RETRY_TOPIC_PREFIX)
