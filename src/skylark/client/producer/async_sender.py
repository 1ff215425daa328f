"""Sender: carries messages to brokers on a session's loop. Producers are made of it, consumers use it too.

A send that finds its route and its connection costs neither a task nor a timer: it is written at once, and
the broker's answer completes its future. Only what has to wait or to be tried again gets a task.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from contextvars import copy_context
from typing import Any

from skylark.client.producer.message_encoder import EncodedBatch, EncodedMessage, MessageEncoder
from skylark.client.producer.queue_selectors import RoundRobin, Selector
from skylark.client.producer.send_policy import PendingSend, SendPolicy, vip_address
from skylark.client.producer.send_receipt import SendReceipt
from skylark.client.producer.unique_keys import UniqueKeys
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
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.remoting.connection_pool import ClientConnection
from skylark.settings.client import ProducerSettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

TICKS_PER_TIMEOUT = 50  # a send is given up at most that fraction of its timeout too late
TICK_S_MAX = 0.1
_REQUEST = RequestCode.SEND_MESSAGE_V2.name


class InFlightSend(PendingSend, ABC):
    """A send that is on its way. It is its own waiter: the connection hands it the answer.

    What becomes of the outcome is for those who inherit to say.
    """

    def __init__(
        self,
        sender: AsyncSender,
        prepared: EncodedMessage | EncodedBatch,
        *,
        started: float,
        deadline: float,
        attempts: int,
    ) -> None:
        super().__init__(prepared, started=started, deadline=deadline, attempts=attempts)
        self.sender = sender
        self.connection: ClientConnection | None = None
        self.opaque = -1
        self.attempt_deadline = deadline

    def done(self) -> bool:
        return self.connection is None

    def withdraw(self) -> ClientConnection | None:
        """Want no answer to what was written; return the connection on which one was awaited."""
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
        """Does nobody wait any more?"""

    @abstractmethod
    def deliver(self, receipts: list[SendReceipt]) -> None:
        """Give the receipts, one per member, to who waits."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Give the error to who waits."""


class _FutureSend(InFlightSend):
    """One message, or one batch, and the future of its receipt or receipts."""

    future: asyncio.Future[Any]

    @property
    def is_abandoned(self) -> bool:
        return self.future.cancelled()

    def deliver(self, receipts: list[SendReceipt]) -> None:
        if not self.future.done():
            self.future.set_result(receipts if self.prepared.is_batch else receipts[0])

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class SendTopic:
    """A topic that was sent to: its route and whose turn it is."""

    __slots__ = ("robin", "route")

    def __init__(self, route: TopicRoute) -> None:
        self.route = route
        self.robin = RoundRobin()


class AsyncSender:
    """Sends of one group. Loop thread only."""

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
        self._tasks = Tasks()
        self._topics: dict[str, SendTopic] = {}
        self._flights: dict[InFlightSend, None] = {}
        self._flight_bytes = 0
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._tick: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self.rules = SendPolicy(group, session.client_id, namespace, settings)
        self.preparation = MessageEncoder(settings, namespace, group, UniqueKeys(self._clock))

    # --- Routes ---

    def topics(self) -> Iterable[str]:
        """Return the topics that were sent to."""
        return self._topics

    def on_route_change(self, route: TopicRoute) -> None:
        """Take in a route; of a topic that was never sent to it is of no interest."""
        topic = self._topics.get(route.topic)
        if topic is not None:
            topic.route = route

    def known_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic that was sent to. Any thread."""
        known = self._topics.get(topic)
        return None if known is None else known.route

    async def find_topic(self, name: str) -> SendTopic:
        """Return a topic with its route, the default topic's if it does not exist yet.

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
        prepared: EncodedMessage | EncodedBatch,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout_ms: float | None = None,
    ) -> asyncio.Future[Any]:
        """Send and return the future of the receipt (of a batch: of the list of receipts).

        Waits only for room, when too much is in flight. Raises SendFailed if there is none in time.
        """
        started = self._loop.time()
        deadline = started + (self.settings.send_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        pinned = queue is not None or selector is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        flight = _FutureSend(
            self,
            prepared,
            started=started,
            deadline=deadline,
            attempts=1 if pinned else 1 + self.settings.retries,
        )
        flight.future = future
        if self.rules.hooks:
            flight.caller = copy_context()
        flight.fixed_queue, flight.selector, flight.argument = queue, selector, argument
        if self._room_waiters or not self.has_room(flight.bytes):
            await self.wait_for_room(flight.topic, flight.bytes, deadline)
        self.launch(flight)
        return future

    def launch(self, flight: InFlightSend) -> None:
        """Let a send take off. One that comes too late fails with ClientClosed."""
        if self._closed:
            flight.fail(ClientClosed("producer"))
            return
        self._flights[flight] = None
        self._flight_bytes += flight.bytes
        self._start(flight)
        if self._tick is None:
            self._tick = self._loop.call_later(self._tick_s(), self._check_deadlines)
            self._idle.clear()

    async def send_oneway(
        self,
        prepared: EncodedMessage,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> None:
        """Send without wanting an answer. Raises NoRoute, BrokerUnknown, ConnectFailed; one attempt."""
        now = self._loop.time()
        sending = PendingSend(
            prepared, started=now, deadline=now + self.settings.send_timeout_ms / 1000, attempts=1
        )
        sending.fixed_queue, sending.selector, sending.argument = queue, selector, argument
        topic = self._topics.get(sending.topic) or await self.find_topic(sending.topic)
        self._begin(sending, topic)
        connection = await self._session.connection(sending.address)
        if not connection.is_writable:
            await connection.wait_writable()
        head, body = self.rules.frame(sending, 0, self._clock.now_ms(), is_oneway=True)
        connection.write_parts((head, body), len(head) + len(body))
        self.rules.sent_oneway(sending, self._loop.time())

    def _start(self, flight: InFlightSend) -> None:
        topic = self._topics.get(flight.topic)
        if topic is None:
            self._tasks.spawn(self._start_slowly(flight), "find route")
            return
        try:
            self._begin(flight, topic)
        except BrokerUnknown:
            self._tasks.spawn(self._start_slowly(flight, refresh=True), "find broker")
            return
        except Exception as error:  # noqa: BLE001 (whatever a hook or a selector raises is the sender's)
            self._end(flight, error)
            return
        connection = self._session.pool.open_connection(flight.address)
        if connection is None or not connection.is_writable:
            self._tasks.spawn(self._connect(flight), "connect")
        else:
            self._write(flight, connection)

    def _begin(self, sending: PendingSend, topic: SendTopic) -> None:
        """Choose a queue, note the attempt. Raises BrokerUnknown, NoRoute, BadMessage, what checks raise."""
        now = self._loop.time()
        queue = self.rules.choose(sending, topic.route, topic.robin, now)
        address = self._session.routes.master(queue.broker_name)
        if self._session.settings.vip_channel:
            address = vip_address(address)
        self.rules.begin(sending, queue, address, now)

    async def _start_slowly(self, flight: InFlightSend, *, refresh: bool = False) -> None:
        """Start a send for which a name server must be asked first."""
        try:
            async with asyncio.timeout_at(flight.deadline):
                if refresh:
                    await self.refresh(flight.topic)
                topic = await self.find_topic(flight.topic)
                self._begin(flight, topic)
        except TimeoutError:
            self._end(flight, self.rules.without_route(flight, self._loop.time()))
        except Exception as error:  # noqa: BLE001 (as above)
            self._end(flight, error)
        else:
            await self._connect(flight)

    async def refresh(self, topic: str) -> None:
        """Ask for a route again; a failure is logged, and the old one stays."""
        try:
            self.on_route_change(await self._session.refresh_route(topic))
        except RocketMQError as error:
            log.info("route was not refreshed topic=%s error=%s", topic, error)

    async def _connect(self, flight: InFlightSend) -> None:
        connection: ClientConnection | None = None
        try:
            async with asyncio.timeout_at(self.rules.attempt_deadline(flight, flight.tried_at)):
                connection = await self._session.connection(flight.address)
                await connection.wait_writable()
        except TimeoutError:
            late = self._timed_out(flight)
            if connection is not None:
                self._retry(flight, late)
            else:  # nothing has left
                failure = ConnectFailed(flight.address, f"not within {late.timeout_ms} ms")
                self._retry(flight, self._session.explained(failure))
        except RocketMQError as error:
            self._retry(flight, error)
        else:
            self._write(flight, connection)

    def _write(self, flight: InFlightSend, connection: ClientConnection) -> None:
        try:
            opaque = connection.reserve(flight)
        except LocalProtocolError as error:
            self._end(flight, error)
            return
        try:
            head, body = self.rules.frame(flight, opaque, self._clock.now_ms())
        except RocketMQError as error:
            connection.forget(opaque)
            self._end(flight, error)
            return
        flight.opaque = opaque
        flight.connection = connection
        flight.attempt_deadline = self.rules.attempt_deadline(flight, flight.tried_at)
        connection.write_parts((head, body), len(head) + len(body))

    # --- What comes of it ---

    def _answered(self, flight: InFlightSend, reply: RemotingCommand) -> None:
        now = self._loop.time()
        try:
            receipts = self.rules.answered(flight, reply, now)
        except RocketMQError as error:
            self._retry(flight, error)
            return
        if self.rules.wants_better(flight, receipts, now):
            self._start(flight)
            return
        self._land(flight)
        flight.deliver(receipts)

    def _retry(self, flight: InFlightSend, error: RocketMQError) -> None:
        """Try again elsewhere, or give up; a send that nobody waits for any more is not tried again."""
        if isinstance(error, GoAway):
            self._session.pool.retire(flight.address)
        try:
            step = self.rules.failed(flight, error, self._loop.time())
        except SendFailed as failure:
            self._end(flight, failure)
            return
        if flight.is_abandoned:
            self._end(flight, error)
            return
        wait_s = self.rules.pause_s(flight, self.known_route(flight.topic), self._loop.time())
        if wait_s or step.refresh_route:
            self._tasks.spawn(self._start_later(flight, wait_s, refresh=step.refresh_route), "retry")
        else:
            self._start(flight)

    async def _start_later(self, flight: InFlightSend, wait_s: float, *, refresh: bool) -> None:
        await asyncio.sleep(wait_s)
        await self._start_slowly(flight, refresh=refresh)

    def _end(self, flight: InFlightSend, error: Exception) -> None:
        self.rules.ended(flight, error, self._loop.time())
        self._land(flight)
        if flight.stored is None:
            flight.fail(error)
        else:
            flight.deliver(flight.stored)

    def _land(self, flight: InFlightSend) -> None:
        if flight not in self._flights:
            return  # it has landed before
        del self._flights[flight]
        self._flight_bytes -= flight.bytes
        if not self._flights:
            self._idle.set()
        self._wake_for_room()

    def _wake_for_room(self) -> None:
        """Let the next one who waits for room look again."""
        while self._room_waiters:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break

    # --- Time and room ---

    def _tick_s(self) -> float:
        return min(self.settings.send_timeout_ms / 1000 / TICKS_PER_TIMEOUT, TICK_S_MAX)

    def _check_deadlines(self) -> None:
        """Give up attempts whose time is over. Looks at all sends in flight, which are never very many."""
        now = self._loop.time()
        for flight in [each for each in self._flights if each.attempt_deadline <= now]:
            connection = flight.withdraw()
            if connection is not None:
                connection.suspect(flight.tried_at)
                self._retry(flight, self._timed_out(flight))
        again = bool(self._flights)
        self._tick = self._loop.call_later(self._tick_s(), self._check_deadlines) if again else None

    def _timed_out(self, flight: InFlightSend) -> RequestTimeout:
        timeout_ms = round((self._loop.time() - flight.tried_at) * 1000)
        return RequestTimeout(flight.address, _REQUEST, timeout_ms)

    @property
    def is_crowded(self) -> bool:
        """Do others wait for room already? Then it is their turn first."""
        return bool(self._room_waiters)

    def has_room(self, message_bytes: int) -> bool:
        """Say whether a message may be sent now. A large one may always if it is the only one."""
        flights = len(self._flights)
        return not flights or (
            flights < self.settings.in_flight_max
            and self._flight_bytes + message_bytes <= self.settings.in_flight_bytes_max
        )

    async def wait_for_room(self, topic: str, message_bytes: int, deadline: float) -> None:
        """Wait until a message may be sent; first come, first served. Raises SendFailed at the deadline."""
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
                self._wake_for_room()  # the room that was ours is for the next one
            elif waiter in self._room_waiters:
                self._room_waiters.remove(waiter)  # who comes later looks whether somebody waits
            if not isinstance(error, TimeoutError):
                raise
            elapsed_ms = round((self._loop.time() - started) * 1000)
            reason = (
                f"no room in flight in time: {len(self._flights)} sends of {self._flight_bytes} bytes are "
                f"({self.settings.in_flight_max} and {self.settings.in_flight_bytes_max} are allowed)"
            )
            raise SendFailed(topic, (), elapsed_ms, reason) from None
        self._loop.call_soon(self._share_room)  # when this one has taken off

    def _share_room(self) -> None:
        """What has landed may have left room for several of those who wait, if it was large."""
        if self._room_waiters and self.has_room(1):
            self._wake_for_room()

    @property
    def in_flight(self) -> int:
        """How many sends are on their way."""
        return len(self._flights)

    async def close(self, timeout_s: float) -> None:
        """Wait for what is in flight; what has no answer in that time is reported as unknown."""
        self._closed = True
        try:
            async with asyncio.timeout(timeout_s):
                while self._flights:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            log.warning("sends have no answer at the end in_flight=%d", len(self._flights))
        finally:
            for flight in list(self._flights):
                flight.withdraw()
                self._end(flight, SendUnknown(flight.topic, "the producer was stopped before its answer"))
            if self._tick is not None:
                self._tick.cancel()
            await self._tasks.close()
