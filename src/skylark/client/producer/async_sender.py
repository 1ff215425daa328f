"""AsyncSender: sends messages to brokers on a session's loop, with limits, deadlines and retries.

A send whose route and connection are known costs neither a task nor a timer: it is written at once, and the
broker's reply completes its future. Only sends that wait or are retried get a task.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from skylark.client.producer.message_encoder import EncodedBatch, EncodedMessage, MessageEncoder
from skylark.client.producer.queue_selectors import ROUND_ROBIN, RoundRobin, SendTarget
from skylark.client.producer.send_policy import PendingSend, SendPolicy, vip_address
from skylark.client.producer.send_receipt import SendReceipt
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import Session
from skylark.clock import Clock, SystemClock
from skylark.errors import (
    BrokerUnknown,
    ClientClosed,
    ConnectFailed,
    GoAway,
    LocalProtocolError,
    NoRoute,
    RequestTimeout,
    RocketMQError,
    SendFailed,
    SendUnknown,
)
from skylark.model.message import pack_host
from skylark.model.message_id import UniqueIds
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.remoting.address import local_ip
from skylark.remoting.connection_pool import ClientConnection
from skylark.settings.client import ProducerSettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

TICKS_PER_TIMEOUT = 50  # deadlines are checked that often: a send times out at most 1/50 of its timeout late
TICK_S_MAX = 0.1
_REQUEST = RequestCode.SEND_MESSAGE_V2.name


_ids_by_pid: dict[int, UniqueIds] = {}


def unique_ids() -> UniqueIds:
    """Return this process's source of unique ids; a forked child gets its own. Any thread may call it."""
    pid = os.getpid()
    ids = _ids_by_pid.get(pid)
    if ids is None:
        made = UniqueIds(pack_host(local_ip(), 0)[:-4], SystemClock().now_ms(), process_id=pid)
        ids = _ids_by_pid.setdefault(pid, made)  # the first of several threads wins
    return ids


class UniqueKeys:
    """Unique keys of this process, with the time of a clock."""

    def __init__(self, clock: Clock) -> None:
        ids = unique_ids()
        self.chars = ids.chars
        self._ids, self._next, self._now_ms = ids, ids.next, clock.now_ms

    def next(self) -> str:
        return self._next(self._now_ms())

    def several(self, count: int) -> list[str]:
        return self._ids.several(count, self._now_ms())

    def stems(self, count: int) -> list[tuple[str, Sequence[int]]]:
        return self._ids.stems(count, self._now_ms())


class InFlightSend(PendingSend, ABC):
    """A send in flight. It is its own reply waiter: the connection passes it the reply.

    Subclasses decide where the outcome goes.
    """

    def __init__(
        self,
        sender: AsyncSender,
        encoded: EncodedMessage | EncodedBatch,
        now: float,
        target: SendTarget = ROUND_ROBIN,
        timeout_ms: float | None = None,
    ) -> None:
        super().__init__(encoded, sender.settings, now, target, timeout_ms)
        self.sender = sender
        self.connection: ClientConnection | None = None
        self.opaque = -1
        self.attempt_deadline = self.deadline

    def done(self) -> bool:
        return self.connection is None

    def withdraw(self) -> ClientConnection | None:
        """Stop waiting for the reply; return the connection on which it was expected."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.forget(self.opaque)
        return connection

    def set_result(self, reply: RemotingCommand, /) -> None:
        self.connection = None
        self.sender._answered(self, reply)

    def set_exception(self, error: BaseException, /) -> None:
        self.connection = None
        assert isinstance(error, RocketMQError)
        self.sender._retry(self, error)

    @property
    @abstractmethod
    def is_abandoned(self) -> bool:
        """Whether the caller has cancelled the send."""

    @abstractmethod
    def deliver(self, receipts: list[SendReceipt]) -> None:
        """Complete the send with one receipt per message."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Complete the send with an error."""


class _FutureSend(InFlightSend):
    """One message or one batch, with the future of its receipt or receipts."""

    future: asyncio.Future[Any]

    @property
    def is_abandoned(self) -> bool:
        return self.future.cancelled()

    def deliver(self, receipts: list[SendReceipt]) -> None:
        if not self.future.done():
            self.future.set_result(receipts if self.encoded.is_batch else receipts[0])

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class SendTopic:
    """A topic that was sent to: its route and its round-robin position."""

    __slots__ = ("robin", "route")

    def __init__(self, route: TopicRoute) -> None:
        self.route = route
        self.robin = RoundRobin()


class AsyncSender:
    """Sends messages of one group. Loop thread only."""

    def __init__(
        self,
        session: Session,
        group: str,
        settings: ProducerSettings,
        *,
        clock: Clock | None = None,
    ) -> None:
        namespace = session.settings.namespace
        self._clock = clock or SystemClock()
        self._session = session
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self.new_future: Callable[[], asyncio.Future[Any]] = partial(asyncio.Future, loop=self._loop)
        self._tasks = Tasks()
        self._topics: dict[str, SendTopic] = {}
        self._sends: dict[InFlightSend, None] = {}
        self._bytes_in_flight = 0
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._tick: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self.policy = SendPolicy(group, session.client_id, namespace, settings, session.signer)
        self.encoder = MessageEncoder(settings, namespace, group, UniqueKeys(self._clock))

    # --- Routes ---

    def topics(self) -> Iterable[str]:
        return self._topics

    def on_route_change(self, route: TopicRoute) -> None:
        """Store the new route, if messages were sent to its topic."""
        topic = self._topics.get(route.topic)
        if topic is not None:
            topic.route = route

    def known_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic that was sent to. Any thread may call it."""
        known = self._topics.get(topic)
        return None if known is None else known.route

    async def find_topic(self, name: str) -> SendTopic:
        """Return a topic with its route; for a topic that does not exist yet, the auto-create topic's route.

        Raises NoRoute, RemotingError, BrokerError.
        """
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        try:
            route = await self._session.find_route(name)
        except NoRoute as error:
            try:
                route = await self._session.default_route(name, self.settings.new_topic_queues)
            except NoRoute:
                raise error from None
        return self._topics.setdefault(name, SendTopic(route))

    # --- Sending ---

    async def send(
        self,
        encoded: EncodedMessage | EncodedBatch,
        target: SendTarget = ROUND_ROBIN,
        timeout_ms: float | None = None,
    ) -> asyncio.Future[Any]:
        """Send and return the future of the receipt; for a batch, of the list of receipts.

        Waits only while too much is in flight. Raises SendFailed if there is no room in time.
        """
        future = self.new_future()
        send = _FutureSend(self, encoded, self._loop.time(), target, timeout_ms)
        send.future = future
        if self.policy.hooks:
            send.caller = copy_context()
        if self._room_waiters or not self.has_room(send.bytes):
            await self.wait_for_room(send.topic, send.bytes, send.deadline)
        self.launch(send)
        return future

    def launch(self, send: InFlightSend) -> None:
        """Start a send. After `close` it fails with ClientClosed."""
        if self._closed:
            send.fail(ClientClosed("producer"))
            return
        self._sends[send] = None
        self._bytes_in_flight += send.bytes
        self._start(send)
        if self._tick is None:
            self._tick = self._loop.call_later(self._tick_s(), self._check_deadlines)
            self._idle.clear()

    async def send_oneway(self, encoded: EncodedMessage, target: SendTarget = ROUND_ROBIN) -> None:
        """Send without waiting for a reply, in one attempt. Raises NoRoute, BrokerUnknown, ConnectFailed."""
        send = PendingSend(encoded, self.settings, self._loop.time(), target)
        topic = self._topics.get(send.topic) or await self.find_topic(send.topic)
        self._begin(send, topic)
        connection = await self._session.connection(send.address)
        if not connection.is_writable:
            await connection.wait_writable()
        head, body = self.policy.frame(send, 0, self._clock.now_ms(), is_oneway=True)
        connection.write_parts((head, body), len(head) + len(body))
        self.policy.sent_oneway(send, self._loop.time())

    def _start(self, send: InFlightSend) -> None:
        topic = self._topics.get(send.topic)
        if topic is None:
            self._tasks.spawn(self._start_slowly(send), "find route")
            return
        try:
            self._begin(send, topic)
        except BrokerUnknown:
            self._tasks.spawn(self._start_slowly(send, refresh=True), "find broker")
            return
        except Exception as error:  # noqa: BLE001 (errors of hooks and selectors go to the caller)
            self._end(send, error)
            return
        connection = self._session.pool.open_connection(send.address)
        if connection is None or not connection.is_writable:
            self._tasks.spawn(self._connect(send), "connect")
        else:
            self._write(send, connection)

    def _begin(self, send: PendingSend, topic: SendTopic) -> None:
        """Choose a queue and begin an attempt. Raises BrokerUnknown, NoRoute, BadMessage, errors of hooks."""
        now = self._loop.time()
        queue = self.policy.choose(send, topic.route, topic.robin, now)
        address = self._session.routes.master(queue.broker_name)
        if self._session.settings.vip_channel:
            address = vip_address(address)
        self.policy.begin(send, queue, address, now)

    async def _start_slowly(self, send: InFlightSend, *, refresh: bool = False) -> None:
        """Start a send that needs a route from a name server first."""
        try:
            async with asyncio.timeout_at(send.deadline):
                if refresh:
                    await self.refresh(send.topic)
                await self._begin_with_master(send)
        except TimeoutError:
            self._end(send, self.policy.without_route(send, self._loop.time()))
        except Exception as error:  # noqa: BLE001 (as above)
            self._end(send, error)
        else:
            await self._connect(send)

    async def _begin_with_master(self, send: InFlightSend) -> None:
        """Begin an attempt, after the election if the broker has no master. Raises as `_begin`."""
        tries = 0
        while True:
            topic = await self.find_topic(send.topic)
            try:
                self._begin(send, topic)
            except BrokerUnknown as error:
                if tries and not self._session.routes.awaits_master(error.broker):
                    raise
                await self.refresh(send.topic)
                if self._session.routes.awaits_master(error.broker):
                    await asyncio.sleep(self.policy.master_pause_s(send, tries, self._loop.time()))
                tries += 1
            else:
                return

    async def refresh(self, topic: str) -> None:
        """Refresh a route; on failure, log it and keep the old route."""
        try:
            self.on_route_change(await self._session.refresh_route(topic))
        except RocketMQError as error:
            log.info("route was not refreshed topic=%s error=%s", topic, error)

    async def _connect(self, send: InFlightSend) -> None:
        connection: ClientConnection | None = None
        try:
            async with asyncio.timeout_at(self.policy.attempt_deadline(send, send.tried_at)):
                connection = await self._session.connection(send.address)
                await connection.wait_writable()
        except TimeoutError:
            late = self._timed_out(send)
            if connection is not None:
                self._retry(send, late)
            else:  # nothing was written
                failure = ConnectFailed(send.address, f"not within {late.timeout_ms} ms")
                self._retry(send, self._session.explained(failure))
        except RocketMQError as error:
            self._retry(send, error)
        else:
            self._write(send, connection)

    def _write(self, send: InFlightSend, connection: ClientConnection) -> None:
        try:
            opaque = connection.reserve(send)
        except LocalProtocolError as error:
            self._end(send, error)
            return
        try:
            head, body = self.policy.frame(send, opaque, self._clock.now_ms())
        except RocketMQError as error:
            connection.forget(opaque)
            self._end(send, error)
            return
        send.opaque = opaque
        send.connection = connection
        send.attempt_deadline = self.policy.attempt_deadline(send, send.tried_at)
        connection.write_parts((head, body), len(head) + len(body))

    # --- Outcomes ---

    def _answered(self, send: InFlightSend, reply: RemotingCommand) -> None:
        now = self._loop.time()
        try:
            receipts = self.policy.answered(send, reply, now)
        except RocketMQError as error:
            self._retry(send, error)
            return
        if self.policy.wants_better(send, receipts, now):
            self._start(send)
            return
        self._complete(send)
        send.deliver(receipts)

    def _retry(self, send: InFlightSend, error: RocketMQError) -> None:
        """Retry or fail. A send that its caller has cancelled is not retried."""
        if isinstance(error, GoAway):
            self._session.pool.retire(send.address)
        try:
            step = self.policy.failed(send, error, self._loop.time())
        except SendFailed as failure:
            self._end(send, failure)
            return
        if send.is_abandoned:
            self._end(send, error)
            return
        wait_s = self.policy.pause_s(send, self.known_route(send.topic), self._loop.time())
        if wait_s or step.refresh_route:
            self._tasks.spawn(self._start_later(send, wait_s, refresh=step.refresh_route), "retry")
        else:
            self._start(send)

    async def _start_later(self, send: InFlightSend, wait_s: float, *, refresh: bool) -> None:
        await asyncio.sleep(wait_s)
        await self._start_slowly(send, refresh=refresh)

    def _end(self, send: InFlightSend, error: Exception) -> None:
        self.policy.ended(send, error, self._loop.time())
        self._complete(send)
        if send.stored is None:
            if isinstance(error, RocketMQError):
                error.shorten()
            send.fail(error)
        else:
            send.deliver(send.stored)

    def _complete(self, send: InFlightSend) -> None:
        if send not in self._sends:
            return  # completed already
        del self._sends[send]
        self._bytes_in_flight -= send.bytes
        if not self._sends:
            self._idle.set()
        self._wake_for_room()

    def _wake_for_room(self) -> None:
        """Wake the next waiter."""
        while self._room_waiters:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break

    # --- Time and room ---

    def _tick_s(self) -> float:
        return min(self.settings.send_timeout_ms / 1000 / TICKS_PER_TIMEOUT, TICK_S_MAX)

    def _check_deadlines(self) -> None:
        """Time out attempts past their deadline. Scans all sends in flight (at most `in_flight_max`)."""
        now = self._loop.time()
        for send in [each for each in self._sends if each.attempt_deadline <= now]:
            connection = send.withdraw()
            if connection is not None:
                connection.suspect(send.tried_at)
                self._retry(send, self._timed_out(send))
        again = bool(self._sends)
        self._tick = self._loop.call_later(self._tick_s(), self._check_deadlines) if again else None

    def _timed_out(self, send: InFlightSend) -> RequestTimeout:
        timeout_ms = round((self._loop.time() - send.tried_at) * 1000)
        return RequestTimeout(send.address, _REQUEST, timeout_ms)

    def now(self) -> float:
        """The loop's time, that of deadlines."""
        return self._loop.time()

    @property
    def is_crowded(self) -> bool:
        """Whether other sends wait for room already."""
        return bool(self._room_waiters)

    @property
    def takes_more(self) -> bool:
        """Whether a message may be sent now, without overtaking others that wait for room."""
        return not self._room_waiters and self.has_room(1)

    async def drain(self) -> None:
        """Let the loop work, and wait until `takes_more`. Raises SendFailed after the timeout of a send."""
        await asyncio.sleep(0)
        if not self.takes_more:
            deadline = self._loop.time() + self.settings.send_timeout_ms / 1000
            await self.wait_for_room("", 1, deadline)

    def has_room(self, message_bytes: int) -> bool:
        """Return whether a message may be sent now; a large one always may if nothing else is in flight."""
        count = len(self._sends)
        return not count or (
            count < self.settings.in_flight_max
            and self._bytes_in_flight + message_bytes <= self.settings.in_flight_bytes_max
        )

    async def wait_for_room(self, topic: str, message_bytes: int, deadline: float) -> None:
        """Wait until a message may be sent, in FIFO order. Raises SendFailed at the deadline."""
        started = self._loop.time()
        waiter = self._loop.create_future()
        self._room_waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
                while not self.has_room(message_bytes):
                    waiter = self._loop.create_future()
                    self._room_waiters.appendleft(waiter)
                    await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self._wake_for_room()  # pass the room on
            elif waiter in self._room_waiters:
                self._room_waiters.remove(waiter)  # `is_crowded` checks the queue
            if not isinstance(error, TimeoutError):
                raise
            elapsed_ms = round((self._loop.time() - started) * 1000)
            reason = (
                f"no room in flight in time: {len(self._sends)} sends of {self._bytes_in_flight} bytes, "
                f"limits in_flight_max={self.settings.in_flight_max} and "
                f"in_flight_bytes_max={self.settings.in_flight_bytes_max}"
            )
            raise SendFailed(topic, (), elapsed_ms, reason) from None
        self._loop.call_soon(self._share_room)  # after this send has been launched

    def _share_room(self) -> None:
        """Wake another waiter: a large send may have left room for several."""
        if self._room_waiters and self.has_room(1):
            self._wake_for_room()

    @property
    def in_flight(self) -> int:
        return len(self._sends)

    async def close(self, timeout_s: float) -> None:
        """Wait for the sends in flight; those without a reply in that time fail with SendUnknown."""
        self._closed = True
        try:
            async with asyncio.timeout(timeout_s):
                while self._sends:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            log.warning("stopped with unanswered sends in_flight=%d", len(self._sends))
        finally:
            for send in list(self._sends):
                send.withdraw()
                self._end(send, SendUnknown(send.topic, "the producer was stopped before the broker replied"))
            if self._tick is not None:
                self._tick.cancel()
            await self._tasks.close()
