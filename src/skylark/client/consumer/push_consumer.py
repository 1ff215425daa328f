"""PushConsumer for asyncio: hands messages to listeners as they arrive."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, Self, TypeVar

from skylark.client.consumer import subscription as subscribing
from skylark.client.consumer.allocation_strategies import Strategy, strategy_named
from skylark.client.consumer.broker_requests import ControlledConsumer, PushBrokerRequests
from skylark.client.consumer.concurrent_consumption import ConcurrentConsumption
from skylark.client.consumer.consume_rates import SAMPLE_INTERVAL_MS, ConsumeRates
from skylark.client.consumer.consumption import ConsumptionParts
from skylark.client.consumer.fetcher import PushFetcher
from skylark.client.consumer.listeners import Listener, Listeners, Middleware
from skylark.client.consumer.offset_store import (
    BrokerOffsetStore,
    LocalOffsetStore,
    OffsetStore,
    local_offsets_path,
)
from skylark.client.consumer.orderly_consumption import OrderlyConsumption
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.pull_policy import PullRequest
from skylark.client.consumer.queue_locks import OrderlyLocks
from skylark.client.consumer.rebalancer import Owner, PushRebalancer, check_expression
from skylark.client.consumer.send_back import SendBack
from skylark.client.consumer.start_offsets import StartOffsets, offset_at
from skylark.client.consumer.subscription import TopicSubscription
from skylark.client.message_trace import ConsumeTrace
from skylark.client.namespace import with_namespace
from skylark.client.producer.message_encoder import check_group
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import CONSUMER, BrokerHandler, Session, join
from skylark.clock import Clock, SystemClock
from skylark.errors import AlreadyStarted, ClientClosed, NoRoute, SettingsError
from skylark.model import names
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import ConsumerData, ConsumerRunningInfo, MessageQueue
from skylark.settings.client import (
    OFFSET_DIRECTORY,
    ClientSettings,
    MessageModel,
    PushConsumerSettings,
    consume_timestamp_ms,
    name_server_list,
)
from skylark.tasks import Tasks


@contextmanager
def on_termination(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` on SIGTERM, while the block runs. Only the main thread has signals: others just run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        stop()

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Consumer(Owner, ControlledConsumer, Protocol):
    """The consumer whose parts these are."""

    strategy: Strategy
    offset_store: OffsetStore | None
    clock: Clock
    name_servers: tuple[str, ...]
    timestamp_ms: int


class PushRuntime:
    """Everything that works for one consumer on one session. Loop thread."""

    def __init__(self, consumer: Consumer, session: Session, settings: PushConsumerSettings) -> None:
        group = consumer.group
        clustering = settings.model is MessageModel.CLUSTERING
        self.session = session
        self._stop_wait_ms = settings.stop_wait_ms
        self.offsets = consumer.offset_store or _offset_store(session, group, settings)
        self.stats = ConsumeRates()
        self.tasks = Tasks()
        self.locks = (
            OrderlyLocks(session, group, settings.lock_timeout_ms)
            if clustering and settings.orderly
            else None
        )
        send_back = None
        if clustering:
            send_back = SendBack(
                session, group, attempts_max=settings.attempts_max, timeout_ms=settings.send_back_timeout_ms
            )
        start_offsets = StartOffsets(session, self.offsets, settings.consume_from, consumer.timestamp_ms)
        table = self.offsets.table
        self.pulls = PushFetcher(
            session, group, settings, consumer.subscriptions, table, start_offsets, self.stats, self._repair,
        )  # fmt: skip
        self.trace = ConsumeTrace(session, group, settings) if settings.trace else None
        parts = ConsumptionParts(
            group, settings, consumer.listeners, table, send_back, self.stats, self.pulls.made_room,
            self.trace,
        )  # fmt: skip
        self.consumption: ConcurrentConsumption | OrderlyConsumption
        if settings.orderly:
            self.consumption = OrderlyConsumption(parts, self.locks)
        else:
            self.consumption = ConcurrentConsumption(parts)
        self.pulls.submit = self.consumption.submit
        self.assignment = PushRebalancer(
            session, group, settings, consumer.strategy, consumer, self.offsets, start_offsets, self.locks,
            self.consumption.wait_until_free if isinstance(self.consumption, OrderlyConsumption) else None,
        )  # fmt: skip
        self.control = PushBrokerRequests(
            consumer, self.assignment, table, self.stats, consumer.clock, consumer.name_servers,
            lambda: self.consumption.threads.thread_count,
        )  # fmt: skip

    def begin(self, settings: PushConsumerSettings) -> None:
        """Start what happens regularly."""
        every, process_queues = self.tasks.every, self.assignment.process_queues
        self.tasks.spawn(self.assignment.run(), "rebalance")
        every(
            settings.offset_persist_interval_ms,
            lambda: self.offsets.persist_all(list(process_queues)),
            "keep offsets",
            first_ms=settings.offset_persist_first_ms,
        )
        every(SAMPLE_INTERVAL_MS, lambda: self.stats.take_sample(time.monotonic()), "sample")
        locks, consumption = self.locks, self.consumption
        if locks is not None:
            every(
                settings.lock_interval_ms,
                lambda: locks.renew(process_queues.values(), time.monotonic()),
                "renew locks",
                first_ms=settings.lock_first_ms,
            )
        if isinstance(consumption, ConcurrentConsumption):
            every(
                settings.consume_timeout_ms,
                lambda: consumption.clean_expired(process_queues.values()),
                "clean expired messages",
            )

    def _repair(self, queue: MessageQueue, queue_offset: int) -> None:
        self.tasks.spawn(self.assignment.repair(queue, queue_offset), f"repair {queue}")

    async def end(self) -> None:
        """Stop in order: no new messages, listeners finish, progress is kept.

        Cancelled, it waits for no listener any more, but leaves nothing behind that goes on.
        """
        try:
            await self.assignment.finish_round()
            await self._end(self._stop_wait_ms)
        except BaseException:
            await self._end(0)
            raise

    async def _end(self, listeners_wait_ms: int) -> None:
        await self.tasks.close()
        await self.pulls.stop()
        await self.consumption.stop(listeners_wait_ms)
        queues = list(self.assignment.process_queues)
        await self.offsets.persist_all(queues)
        if self.locks is not None:
            await self.locks.unlock_all(queues)
        if self.trace is not None:
            await self.trace.line.close(self.session.settings.stop_timeout_ms / 1000)


def _offset_store(session: Session, group: str, settings: PushConsumerSettings) -> OffsetStore:
    if settings.model is MessageModel.CLUSTERING:
        return BrokerOffsetStore(session, group, settings.offset_timeout_ms)
    directory = settings.offset_directory or Path.home() / OFFSET_DIRECTORY
    return LocalOffsetStore(local_offsets_path(directory, session.client_id, group))


log = logging.getLogger(__name__)

F = TypeVar("F", bound=Listener)
QueueListener = Callable[[str, Sequence[MessageQueue], Sequence[MessageQueue]], Any]
"""Takes a topic, all its queues and those that are ours. May be a coroutine function."""

UNNAMED_GROUP = "DEFAULT_CONSUMER"
HALF_AN_HOUR_MS = 1_800_000


class AsyncPushConsumer:
    """Consumes topics for one group. All methods belong to the loop on which it was started.

    >>> consumer = PushConsumer("billing", namesrv="127.0.0.1:9876")
    >>> @consumer.subscribe("orders", "created || paid")
    ... async def handle(messages):
    ...     ...
    >>> await consumer.run()

    A listener that returns is done with its messages; one that raises, or returns `ConsumeResult.LATER`, gets
    them again later. Listeners may be coroutine functions, which run on this loop, or plain functions, which
    run in threads. Every message is delivered at least once, and may come again: see the page on duplicates.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = "",
        settings: PushConsumerSettings | None = None,
        client: ClientSettings | None = None,
        strategy: str | Strategy = "AVG",
        offset_store: OffsetStore | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`namesrv` is `a:9876;b:9876`; empty: as `client` or the variable NAMESRV_ADDR say.

        `strategy` is a name (see `skylark.client.consumer.allocation_strategies.BUILDERS`) or a function; all
        members of a group need the same. Raises BadName for a group that cannot be one, SettingsError.
        """
        self._client = client or ClientSettings()
        self.settings = settings or PushConsumerSettings()
        self.name_servers = name_server_list(namesrv, self._client)
        check_group(group)
        if group == UNNAMED_GROUP:
            raise SettingsError("group", f"consumerGroup can not equal {group}, please specify another one.")
        self._group = with_namespace(self._client.namespace, group)
        check_group(self._group)
        self.strategy = strategy_named(strategy) if isinstance(strategy, str) else strategy
        self.offset_store = offset_store
        self.clock = clock or SystemClock()
        self.timestamp_ms = (
            consume_timestamp_ms(self.settings.consume_timestamp)
            if self.settings.consume_timestamp
            else self.clock.now_ms() - HALF_AN_HOUR_MS
        )
        self.subscriptions: dict[str, TopicSubscription] = {}
        self._renewed: dict[str, TopicSubscription] = {}
        self.listeners = Listeners()
        self._queue_listeners: list[QueueListener] = []
        self._state = "CREATE_JUST"
        self._resetting = asyncio.Lock()
        self._ended = asyncio.Event()
        self._parts: PushRuntime | None = None

    # --- What to consume, and with what ---

    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        listener: Listener | None = None,
        *,
        sql: str | None = None,
        filter_class: str | None = None,
    ) -> Callable[[F], F]:
        """Consume a topic: all messages, those with tags (`a || b`), or those that an SQL92 condition takes.

        A listener given here, or the function that this decorates, gets the messages of this topic; without
        either they go to the one that `listen` set. Before the start or while running. `filter_class` names a
        class for clusters that still run filter servers; their messages are then pulled from those.
        Raises SettingsError for a topic or an expression that cannot be one.
        """
        wire_topic = with_namespace(self._client.namespace, topic)
        now_ms = self.clock.now_ms()
        if sql is not None:
            self.subscriptions[wire_topic] = subscribing.by_sql(wire_topic, sql, now_ms=now_ms)
        elif filter_class is not None:
            self.subscriptions[wire_topic] = subscribing.by_class(wire_topic, filter_class, now_ms=now_ms)
        else:
            self.subscriptions[wire_topic] = subscribing.by_tags(wire_topic, expression, now_ms=now_ms)
        if listener is not None:
            self.listeners.set(listener, topic)
        if self._parts is not None:
            self._parts.tasks.spawn(self._announce(wire_topic), f"announce {topic}")

        def decorate(function: F) -> F:
            self.listeners.set(function, topic)
            return function

        return decorate

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more: its queues are given up in the next round."""
        wire_topic = with_namespace(self._client.namespace, topic)
        self.subscriptions.pop(wire_topic, None)
        self.listeners.remove(topic)
        if self._parts is not None:
            self._parts.tasks.spawn(self._announce(), "announce subscriptions")

    def listen(self, listener: F) -> F:
        """Give a listener the messages of all topics that have none of their own. Also as a decorator.

        A function, or a Java-shaped object: a `MessageListenerConcurrently` or a `MessageListenerOrderly`.
        """
        self.listeners.set(listener)
        return listener

    def use(self, middleware: Middleware) -> Middleware:
        """Put something around every call of a listener, for tracing, metrics, or transactions.

        >>> @consumer.use
        ... def timed(handle):
        ...     def around(messages, context):
        ...         with timer(context.queue.topic):
        ...             return handle(messages, context)
        ...     return around
        """
        self.listeners.use(middleware)
        return middleware

    def on_queues_changed(self, listener: QueueListener) -> QueueListener:
        """Be told `(topic, all_queues, my_queues)` whenever queues come or go."""
        self._queue_listeners.append(listener)
        return listener

    # --- Life ---

    async def start(self) -> Self:
        """Start consuming. A consumer is started once only.

        Raises AlreadyStarted, GroupInUse, SettingsError for a missing or wrong listener, RemotingError if no
        name server can be reached, BrokerError if a broker does not take an SQL92 expression.
        """
        if self._state != "CREATE_JUST":
            raise AlreadyStarted("AsyncPushConsumer", self._state)
        self._check_listeners()
        self._state = "START_FAILED"
        broadcasting = self.settings.model is MessageModel.BROADCASTING
        retry_topic = names.retry_topic(self._group)
        if not broadcasting:
            self.subscriptions[retry_topic] = TopicSubscription(retry_topic, "*", "TAG", self.clock.now_ms())
        session = await join(self, self._client, self.name_servers, keep_default_name=broadcasting)
        parts = self._parts = PushRuntime(self, session, self.settings)
        try:
            await parts.offsets.load()
            for topic in list(self.subscriptions):
                await self._check_topic(topic)
            await session.heartbeat()  # before the first round: brokers count only whom they have heard of
            parts.begin(self.settings)
        except BaseException:
            await parts.end()
            self._parts = None
            await session.leave(self)
            raise
        parts.assignment.wake()
        self._state = "RUNNING"
        return self

    async def stop(self) -> None:
        """Stop: listeners that run may finish (`stop_wait_ms`), progress is kept, brokers are told.

        A consumer that does not run is left alone.
        """
        if self._state != "RUNNING" or self._parts is None:
            return
        parts = self._parts
        parts.session.check_process()
        self._state = "SHUTDOWN_ALREADY"
        try:
            await parts.end()
        finally:
            try:
                await parts.session.leave(self)
            finally:
                await parts.assignment.release()
                self._parts = None
                self._ended.set()

    async def run(self) -> None:
        """Start, consume until SIGTERM, Ctrl-C, cancellation or `stop`, and stop."""
        loop = asyncio.get_running_loop()
        await self.start()
        try:
            # Ctrl-C comes as a cancellation, as asyncio has it.
            with on_termination(lambda: loop.call_soon_threadsafe(self._ended.set)):
                await self._ended.wait()
        finally:
            await self.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def suspend(self) -> None:
        """Pull no more until `resume`; what is here is consumed."""
        parts = self._running()
        parts.pulls.paused = parts.assignment.paused = True

    def resume(self) -> None:
        """Go on after `suspend`."""
        parts = self._running()
        parts.pulls.paused = parts.assignment.paused = False
        parts.assignment.wake()

    # --- Looking and correcting ---

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client. Raises ClientClosed unless it runs."""
        return self._running().session.client_id

    def queues(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, retry topic included."""
        held = self._running().assignment.process_queues
        return sorted(queue for queue, process_queue in held.items() if not process_queue.dropped)

    def running_info(self) -> ConsumerRunningInfo:
        """What tools are told about this consumer (code 307)."""
        return self._running().control.running_info()

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Move queues of a topic that are ours to other offsets, back or forth."""
        # One after the other: brokers tell of theirs at the same time, and a round in between would give up
        # what another reset has only begun to move.
        async with self._resetting:
            parts = self._running()
            was_suspended = parts.pulls.paused
            self.suspend()
            try:
                await parts.assignment.reset(topic, offsets, self.settings.reset_wait_ms)
            finally:
                if self._parts is parts and not was_suspended:
                    self.resume()

    async def reset_to_time(self, timestamp_ms: int) -> None:
        """Move all queues that are ours to a time. Raises RocketMQError if a broker does not answer."""
        session = self._running().session
        offsets: dict[str, dict[MessageQueue, int]] = {}
        for queue in self.queues():
            if not queue.topic.startswith(RETRY_TOPIC_PREFIX):
                offsets.setdefault(queue.topic, {})[queue] = await offset_at(session, queue, timestamp_ms)
        for topic, of_topic in offsets.items():
            await self.reset_offsets(topic, of_topic)

    def _running(self) -> PushRuntime:
        if self._state != "RUNNING" or self._parts is None:
            raise ClientClosed(f"push consumer {self._group}")
        return self._parts

    # --- Starting ---

    def _check_listeners(self) -> None:
        """Decide how to consume, by the listeners. Raises SettingsError."""
        if not self.subscriptions:
            raise SettingsError("subscriptions", "nothing is subscribed: call subscribe(topic) before start")
        namespace = self._client.namespace
        bare = {with_namespace(namespace, topic): topic for topic in self.listeners.topics()}
        for topic in self.subscriptions:
            if self.listeners.find(bare.get(topic, topic)) is None:
                raise SettingsError(
                    "listener", f"messageListener is null: topic {topic} is subscribed but has no listener"
                )
        kinds = {handler.is_orderly for handler in self.listeners.all()} - {None}
        if len(kinds) == 2 or (False in kinds and self.settings.orderly):
            raise SettingsError("listener", "a consumer is either orderly or concurrent, for all its topics")
        if True in kinds:
            self.settings = replace(self.settings, orderly=True)

    async def _check_topic(self, topic: str) -> None:
        """Ask for a topic's route; have one of its brokers check an SQL92 expression."""
        assert self._parts is not None
        session = self._parts.session
        try:
            await session.refresh_route(topic)
        except NoRoute:
            return  # rebalancing asks again, and says so
        await check_expression(session, self._group, self.subscriptions[topic])

    async def _announce(self, topic: str | None = None) -> None:
        """Make a changed subscription known."""
        parts = self._running()
        if topic is not None:
            await self._check_topic(topic)
        await parts.session.heartbeat()
        parts.assignment.wake()

    # --- For the session, and for the assignment ---

    @property
    def kind(self) -> str:
        return CONSUMER

    @property
    def group(self) -> str:
        """The group as brokers know it, with its namespace."""
        return self._group

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self._group,
            consume_type="CONSUME_PASSIVELY",
            message_model=self.settings.model.value,
            consume_from_where=self.settings.consume_from.value,
            subscription_data_set=[
                self._renewed.get(topic, subscription).data()
                for topic, subscription in self.subscriptions.items()
            ],
        )

    def topics(self) -> Iterable[str]:
        return list(self.subscriptions)

    def on_route_change(self, route: TopicRoute) -> None:
        if self._parts is not None and route.topic in self.subscriptions:
            self._parts.assignment.wake()

    def on_connected(self, address: str) -> None:
        if self._parts is not None:
            self._parts.assignment.wake()

    def handlers(self) -> Mapping[int, BrokerHandler]:
        return {} if self._parts is None else self._parts.control.handlers()

    def queue_taken(self, request: PullRequest) -> None:
        if self._parts is not None:
            self._parts.pulls.begin(request)

    def queue_given_up(self, process_queue: ProcessQueue) -> None:
        if self._parts is not None:
            self._parts.pulls.end(process_queue)

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        if self._parts is None:
            return
        subscription = self.subscriptions.get(topic)
        if all_queues and subscription is not None:
            self._parts.pulls.thresholds.share(self.settings, len(self._parts.assignment.process_queues))
            # Brokers hear of the new version first: they refuse pulls that are ahead of them.
            renewed = self._renewed[topic] = subscription.renewed(self.clock.now_ms())
            await self._parts.session.heartbeat()
            del self._renewed[topic]
            if self.subscriptions.get(topic) is subscription:
                self.subscriptions[topic] = renewed
        for listener in self._queue_listeners:
            try:
                waiting = listener(topic, all_queues, mine)
                if isinstance(waiting, Awaitable):
                    await waiting
            except Exception:
                log.exception("queue listener failed topic=%s", topic)
