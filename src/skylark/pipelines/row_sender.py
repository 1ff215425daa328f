"""Sends the rows of one task: batches messages per queue, with several requests in flight.

`finish` returns once the brokers have acknowledged every message, or raises.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from skylark.errors import BrokerError, MessageIllegal, NoRoute, RocketMQError, SettingsError
from skylark.model.java import java_hash
from skylark.model.message import PROPERTIES_BYTES_MAX, RETRY_TOPIC_PREFIX
from skylark.model.message_id import UniqueIds
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.model.record import BATCH_ELEMENT, LENGTH
from skylark.protocol.bodies import MASTER_ID, PERM_WRITE, TopicRouteData
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.send import SendBatchMessage, SendMessageV2, SendResult
from skylark.remoting.blocking_connection import BlockingConnection, PendingReply

log = logging.getLogger(__name__)

REQUESTS_IN_FLIGHT_MAX = 32
BATCH_BYTES_MAX = 256 << 10
BATCH_MESSAGES_MAX = 256
SEND_TIMEOUT_S = 10.0
ATTEMPTS_MAX = 5
ATTEMPT_PAUSE_S = 0.2
PAUSE_MIN_S = 0.01
"""Shorter waits are accumulated, so that rows still travel in batches at high rates."""
AUTO_CREATE_QUEUES = 4


class BrokerConnections(Protocol):
    """Routes and connections; implemented by `ClusterClient`."""

    def route(self, topic: str, *, refresh: bool = False) -> TopicRouteData:
        """Raises NoRoute."""

    def connection(self, address: str) -> BlockingConnection:
        """The connection of this process to a server."""


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
class SendTarget:
    """A writable queue."""

    broker_name: str
    queue_id: int


@dataclass(slots=True)
class RowBatch:
    """Messages of one queue, sent in one request."""

    topic: str
    target: SendTarget
    is_ordered: bool
    is_pinned: bool
    born_ms: int | None
    messages: list[OutMessage] = field(default_factory=list)
    size: int = 0
    attempts: int = 0


def targets(route: TopicRouteData) -> tuple[list[SendTarget], dict[str, str]]:
    """Writable queues in a fixed order, and the masters' addresses. Pure."""
    masters = {
        data.broker_name: data.broker_addrs[MASTER_ID]
        for data in route.broker_datas
        if MASTER_ID in data.broker_addrs
    }
    queues = [
        SendTarget(data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & PERM_WRITE and data.broker_name in masters
        for queue_id in range(data.write_queue_nums)
    ]
    return queues, masters


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
class _InFlightBatch:
    """A batch in flight: its pending reply, or the error that kept it from being sent."""

    batch: RowBatch
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


class _SendRoute:
    """Writable queues of one topic, with the round-robin position."""

    def __init__(self, route: TopicRouteData) -> None:
        self.queues, self.masters = targets(route)
        self.turn = int.from_bytes(os.urandom(2), "big")


class RowSender:
    """Sends the rows of one task. Not thread-safe. Raises RocketMQError if a message cannot be delivered."""

    def __init__(
        self,
        brokers: BrokerConnections,
        *,
        group: str,
        rows_per_second: float | None = None,
        requests_in_flight_max: int = REQUESTS_IN_FLIGHT_MAX,
        attempts_max: int = ATTEMPTS_MAX,
        timeout_s: float = SEND_TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._brokers = brokers
        self._group = group
        self._pace = RowPace(rows_per_second, time.monotonic()) if rows_per_second else None
        self._in_flight_max = requests_in_flight_max
        self._attempts_max = attempts_max
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._routes: dict[str, _SendRoute] = {}
        self._open: dict[tuple[str, SendTarget], RowBatch] = {}
        self._spreading: dict[str, RowBatch] = {}
        self._flying: deque[_InFlightBatch] = deque()
        # Random bytes instead of the host address: unique per worker.
        self._ids = UniqueIds(os.urandom(4), _now_ms())
        self.rows = 0
        self.bytes = 0

    def next_unique_key(self) -> str:
        return self._ids.next(_now_ms())

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

    def _route(self, topic: str, *, refresh: bool = False) -> _SendRoute:
        known = self._routes.get(topic)
        if known is not None and not refresh:
            return known
        try:
            found = _SendRoute(self._brokers.route(topic, refresh=refresh))
        except NoRoute:
            found = known or self._route_of_a_new_one(topic)
        # Keep the known queues while the broker is away.
        route = found if found.queues else known
        if route is None:
            raise SettingsError("topic", f"topic {topic} has no writable queue")
        self._routes[topic] = route
        return route

    def _route_of_a_new_one(self, topic: str) -> _SendRoute:
        """The route of a topic that the broker will create with the first message."""
        try:
            route = _SendRoute(self._brokers.route(AUTO_CREATE_TOPIC))
        except NoRoute:
            raise SettingsError(
                "topic", f"unknown topic {topic}, and automatic creation is off; create it first"
            ) from None
        route.queues = [queue for queue in route.queues if queue.queue_id < AUTO_CREATE_QUEUES]
        return route

    def _batch_for(self, message: OutMessage) -> RowBatch:
        topic = message.topic
        is_free = message.sharding_key is None and message.queue_id is None and message.spread_key is None
        if is_free and not message.is_single and message.born_ms is None:
            batch = self._spreading.get(topic)
            if batch is None:
                batch = self._spreading[topic] = RowBatch(topic, self._next_target(topic), False, False, None)
            return batch
        target = self._next_target(topic) if is_free else self._target(message)
        is_ordered = message.sharding_key is not None
        if message.is_single:
            self._flush_queue(topic, target)
            return RowBatch(topic, target, is_ordered, not is_free, message.born_ms)
        batch = self._open.get((topic, target))
        if batch is not None and batch.born_ms != message.born_ms:
            self._close(batch)  # a request has a single born timestamp
            batch = None
        if batch is None:
            batch = self._open[topic, target] = RowBatch(topic, target, False, False, message.born_ms)
        batch.is_ordered |= is_ordered
        batch.is_pinned |= not is_free
        return batch

    def _next_target(self, topic: str) -> SendTarget:
        route = self._route(topic)
        route.turn += 1
        return route.queues[route.turn % len(route.queues)]

    def _target(self, message: OutMessage) -> SendTarget:
        queues = self._route(message.topic).queues
        if message.queue_id is not None:
            queues = [queue for queue in queues if queue.queue_id == message.queue_id]
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

    def _flush_queue(self, topic: str, target: SendTarget) -> None:
        """Send earlier messages of the queue before a single one."""
        for batch in self._batches():
            if (batch.topic, batch.target) == (topic, target):
                self._close(batch)

    def _close(self, batch: RowBatch) -> None:
        if self._open.get((batch.topic, batch.target)) is batch:
            del self._open[batch.topic, batch.target]
        if self._spreading.get(batch.topic) is batch:
            del self._spreading[batch.topic]
        if not batch.messages:
            return
        while len(self._flying) >= self._in_flight_max or (
            # Keeps order: a retried batch must not be stored after its successors.
            batch.is_ordered
            and any(
                (flight.batch.topic, flight.batch.target) == (batch.topic, batch.target)
                for flight in self._flying
            )
        ):
            self._land()
        self._start(batch)

    def _start(self, batch: RowBatch) -> None:
        batch.attempts += 1
        try:
            address = self._route(batch.topic).masters.get(batch.target.broker_name)
            if address is None:
                raise NoRoute(batch.topic)
            connection = self._brokers.connection(address)
            asked = connection.ask(self._request(batch), timeout_s=self._timeout_s)
        except RocketMQError as error:
            self._flying.append(_InFlightBatch(batch, error))
        else:
            self._flying.append(_InFlightBatch(batch, (connection, asked)))

    def _request(self, batch: RowBatch) -> SendMessageV2:
        first = batch.messages[0]
        is_batch = len(batch.messages) > 1
        kind = SendBatchMessage if is_batch else SendMessageV2
        return kind(
            producer_group=self._group,
            topic=batch.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=AUTO_CREATE_QUEUES,
            queue_id=batch.target.queue_id,
            sys_flag=0,
            born_timestamp=batch.born_ms if batch.born_ms is not None else _now_ms(),
            flag=0,
            properties="" if is_batch else first.properties.decode(),
            batch=is_batch,
            broker_name=batch.target.broker_name,
            body=encode_batch(batch.messages) if is_batch else first.body,
        )

    def _land(self) -> None:
        """Wait for the oldest request; retry it if it failed."""
        flight = self._flying.popleft()
        batch = flight.batch
        if isinstance(flight.asked, RocketMQError):
            self._again(batch, flight.asked)
            return
        connection, asked = flight.asked
        try:
            result = connection.answer(asked)
        except RocketMQError as error:
            self._again(batch, error)
            return
        if result.code != ResponseCode.SUCCESS:
            self._again(batch, BrokerError(result.code, "stored, but not confirmed by disk or replica"))

    def _again(self, batch: RowBatch, error: RocketMQError) -> None:
        """Retry a batch, or raise if a retry cannot help."""
        if isinstance(error, MessageIllegal) and len(batch.messages) > 1:
            for message in batch.messages:  # find the illegal one
                self._start(
                    RowBatch(batch.topic, batch.target, batch.is_ordered, True, batch.born_ms, [message])
                )
            return
        is_stored = isinstance(error, BrokerError) and error.code in SendMessageV2.good_codes
        is_retriable = error.retriable or error.refresh_route or is_stored
        if not is_retriable or batch.attempts >= self._attempts_max:
            rows = f"rows {batch.messages[0].row} to {batch.messages[-1].row}"
            log.error("send failed topic=%s rows=%s attempts=%d", batch.topic, rows, batch.attempts)
            error.add_note(f"{rows} for topic {batch.topic}, after {batch.attempts} attempts")
            raise error
        self._sleep(ATTEMPT_PAUSE_S * batch.attempts)
        self._route(batch.topic, refresh=True)
        if not batch.is_pinned:
            batch.target = self._next_target(batch.topic)
        self._start(batch)


def is_batchable(topic: str) -> bool:
    """Return whether brokers accept batches for a topic: not for retry topics."""
    return not topic.startswith(RETRY_TOPIC_PREFIX)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
