"""Push consumers: `AsyncPushConsumer` (`skylark.aio.PushConsumer`) and the blocking `PushConsumer`."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import ClassVar, Self, TypeVar

from skylark.client.blocking_client import BlockingClient, blocking, on_loop
from skylark.client.callback import check_callback
from skylark.client.consumer.allocation_strategies import Strategy
from skylark.client.consumer.broker_requests import (
    BrokerRequests,
    common_properties,
    push_properties,
    thread_stacks,
)
from skylark.client.consumer.concurrent_consumption import ConcurrentConsumption
from skylark.client.consumer.consume_rates import SAMPLE_INTERVAL_MS, ConsumeRates
from skylark.client.consumer.consumption import ConsumptionParts, is_worker_thread
from skylark.client.consumer.fetcher import PushFetchLoop
from skylark.client.consumer.group_consumer import GroupConsumer
from skylark.client.consumer.listeners import Listener, Listeners, Middleware
from skylark.client.consumer.offset_store import OffsetStore, open_offset_store
from skylark.client.consumer.orderly_consumption import OrderlyConsumption, OrderlyLocks
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.pull_policy import PullRequest
from skylark.client.consumer.rebalancer import PushQueues, Rebalancer, check_expression
from skylark.client.consumer.send_back import SendBack
from skylark.client.consumer.start_offsets import StartOffsets, offset_at
from skylark.client.consumer.subscription import TopicSubscription
from skylark.client.message_trace import ConsumeTrace
from skylark.client.namespace import with_namespace
from skylark.client.producer.message_encoder import check_group
from skylark.client.session.session import Session, join
from skylark.clock import Clock
from skylark.errors import AlreadyStarted, ClientClosed, NoRoute, SettingsError
from skylark.model import names
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import ConsumerRunningInfo, MessageQueue
from skylark.settings.client import ClientSettings, MessageModel, PushConsumerSettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

QueueListener = Callable[[str, Sequence[MessageQueue], Sequence[MessageQueue]], Awaitable[None] | None]
"""Takes a topic, all its queues and those of this consumer. May be a coroutine function."""
F = TypeVar("F", bound=Listener)
M = TypeVar("M", bound=Middleware)
Q = TypeVar("Q", bound=QueueListener)

UNNAMED_GROUP = "DEFAULT_CONSUMER"
SIGNAL_CHECK_S = 1.0
"""How often a waiting program checks for an interrupt, on platforms where signals do not wake it."""


@contextmanager
def on_termination(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` on SIGTERM while the block runs. Does nothing outside the main thread."""
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


class AsyncPushConsumer(GroupConsumer[PushConsumerSettings]):
    """`skylark.aio.PushConsumer`: consumes topics for one group. Use it only on the loop where it was
    started.

    >>> consumer = PushConsumer("billing", namesrv="127.0.0.1:9876")
    >>> @consumer.subscribe("orders", "created || paid")
    ... async def handle(messages):
    ...     ...
    >>> await consumer.run()

    A listener that returns has consumed its messages; if it raises or returns `ConsumeResult.LATER`, they are
    redelivered later. Coroutine functions run on this loop, plain functions in threads. Every message is
    delivered at least once, and may be delivered again: see the page on duplicates.
    """

    consume_type: ClassVar[str] = "CONSUME_PASSIVELY"

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
        """`namesrv` is `a:9876;b:9876`; if empty, `client` or the variable NAMESRV_ADDR provides it.

        `strategy` is a name (see `allocation_strategies.BUILDERS`) or a function; all members of a group need
        the same one. Raises BadName for an invalid group, SettingsError.
        """
        super().__init__(group, namesrv, settings or PushConsumerSettings(), client, strategy, clock)
        if group == UNNAMED_GROUP:
            raise SettingsError("group", f"consumerGroup can not equal {group}, please specify another one.")
        check_group(self._group)
        self._own_offset_store = offset_store
        self._renewed: dict[str, TopicSubscription] = {}
        self._listeners = Listeners()
        self._queue_listeners: list[QueueListener] = []
        self._resetting = asyncio.Lock()
        self._ended = asyncio.Event()
        self._runtime: PushRuntime | None = None

    # --- Subscriptions and listeners ---

    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        listener: Listener | None = None,
        *,
        sql: str | None = None,
        filter_class: str | None = None,
    ) -> Callable[[F], F]:
        """Consume a topic: all messages, those with tags (`a || b`), or those that match an SQL92 condition.

        The listener given here, or the decorated function, gets the messages of this topic; without either,
        the listener set by `listen` does. Call it before the start or while running. `filter_class` names a
        class of filter servers, for clusters that still run them. Raises SettingsError for an invalid topic
        or expression.
        """
        subscription = self._subscription(topic, expression, sql, filter_class)
        self._subscriptions[subscription.topic] = subscription
        if listener is not None:
            self._listeners.set(listener, topic)
        if self._runtime is not None:
            self._runtime.tasks.spawn(self._announce(subscription.topic), f"announce {topic}")

        def decorate(function: F) -> F:
            self._listeners.set(function, topic)
            return function

        return decorate

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic: its queues are released in the next rebalancing round."""
        self._subscriptions.pop(self._wire(topic), None)
        self._listeners.remove(topic)
        if self._runtime is not None:
            self._runtime.tasks.spawn(self._announce(), "announce subscriptions")

    def listen(self, listener: F) -> F:
        """Set the listener of all topics without their own; usable as a decorator.

        A function, a `MessageListenerConcurrently` or a `MessageListenerOrderly`.
        """
        self._listeners.set(listener)
        return listener

    def use(self, middleware: M) -> M:
        """Wrap every listener call, for tracing, metrics or transactions.

        >>> @consumer.use
        ... def timed(handle):
        ...     def around(messages, context):
        ...         with timer(context.queue.topic):
        ...             return handle(messages, context)
        ...     return around
        """
        self._listeners.use(middleware)
        return middleware

    def on_queues_changed(self, listener: Q) -> Q:
        """Call a function with `(topic, all_queues, my_queues)` when queues change. It runs on the loop.

        Raises SettingsError for a function that cannot be called so.
        """
        check_callback("on_queues_changed", listener, "topic", "all_queues", "my_queues")
        self._queue_listeners.append(listener)
        return listener

    # --- Lifecycle ---

    async def start(self) -> Self:
        """Start consuming. A consumer can be started only once.

        Raises AlreadyStarted, GroupInUse, SettingsError for a missing or invalid listener, RemotingError if
        no name server is reachable, BrokerError if a broker refuses an SQL92 expression.
        """
        if self._state != "CREATE_JUST":
            raise AlreadyStarted("PushConsumer", self._state)
        self._check_listeners()
        self._state = "START_FAILED"
        broadcasting = self.settings.model is MessageModel.BROADCASTING
        retry_topic = names.retry_topic(self._group)
        if not broadcasting:
            self._subscriptions[retry_topic] = TopicSubscription(
                retry_topic, "*", "TAG", self._clock.now_ms()
            )
        session = await join(self, self._client, self._name_servers, keep_default_name=broadcasting)
        log.debug("start group=%s step=session client_id=%s", self._group, session.client_id)
        runtime = self._runtime = PushRuntime(self, session)
        self._broker_requests = BrokerRequests(self, self._listeners, orderly=self.settings.orderly)
        try:
            await runtime.offsets.load()
            log.debug("start group=%s step=offsets-loaded", self._group)
            for topic in list(self._subscriptions):
                await self._check_topic(topic)
            await session.heartbeat()  # before the first round: brokers list only members they know
            log.debug("start group=%s step=heartbeat", self._group)
            runtime.begin()
        except BaseException:
            await runtime.end()
            self._runtime = self._broker_requests = None
            await session.leave(self)
            raise
        runtime.rebalancer.wake()
        self._state = "RUNNING"
        log.debug("start group=%s step=running", self._group)
        return self

    async def stop(self) -> None:
        """Wait for running listeners (`stop_wait_ms`), persist offsets, and unregister.

        Does nothing unless the consumer runs.
        """
        if self._state != "RUNNING" or self._runtime is None:
            return
        runtime = self._runtime
        runtime.session.check_process()
        self._state = "SHUTDOWN_ALREADY"
        try:
            await runtime.end()
        finally:
            try:
                await runtime.session.leave(self)
            finally:
                runtime.queues.release_all()
                self._runtime = self._broker_requests = None
                self._ended.set()

    async def run(self) -> None:
        """Start, consume until SIGTERM, Ctrl-C, cancellation or `stop`, and stop."""
        loop = asyncio.get_running_loop()
        await self.start()
        try:
            # asyncio turns Ctrl-C into a cancellation.
            with on_termination(lambda: loop.call_soon_threadsafe(self._ended.set)):
                await self._ended.wait()
        finally:
            await self.stop()

    def suspend(self) -> None:
        """Stop pulling until `resume`; pulled messages are still consumed."""
        self._running().set_paused(True)

    def resume(self) -> None:
        """Pull again after `suspend`."""
        self._running().set_paused(False)

    # --- State and corrections ---

    @property
    def client_id(self) -> str:
        """The client id that brokers see. Raises ClientClosed unless the consumer runs."""
        return self._running().session.client_id

    def queues(self) -> list[MessageQueue]:
        """Return the queues of this consumer, including its retry topic."""
        held = self._running().queues.process_queues
        return sorted(queue for queue, process_queue in held.items() if not process_queue.dropped)

    def running_info(self, *, with_stacks: bool = False) -> ConsumerRunningInfo:
        """Return what tools show about this consumer (code 307)."""
        properties = common_properties(self._group, self.consume_type, self._name_servers)
        return self._started().running_info(self._subscriptions, properties, with_stacks=with_stacks)

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """Return the consumed offsets of a topic's queues."""
        return self._started().offsets.table.of_topic(topic)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Move queues of a topic that this consumer owns to other offsets.

        Results of listeners that still run may have no effect.
        """
        # One at a time: brokers send their resets in parallel, and a round in between would release queues
        # that another reset has only started to move.
        async with self._resetting:
            runtime = self._running()
            was_suspended = runtime.fetch_loop.paused
            self.suspend()
            try:
                moved = {queue: number for queue, number in offsets.items() if queue.topic == topic}
                await runtime.reset(moved)
            finally:
                if self._runtime is runtime and not was_suspended:
                    self.resume()

    async def reset_to_time(self, timestamp_ms: int) -> None:
        """Move all queues of this consumer to a time. Raises RocketMQError if a broker does not reply."""
        session = self._running().session
        offsets: dict[str, dict[MessageQueue, int]] = {}
        for queue in self.queues():
            if not queue.topic.startswith(RETRY_TOPIC_PREFIX):
                offsets.setdefault(queue.topic, {})[queue] = await offset_at(session, queue, timestamp_ms)
        for topic, of_topic in offsets.items():
            await self.reset_offsets(topic, of_topic)

    def _started(self) -> PushRuntime:
        """Also while starting and stopping, when brokers may send requests. Raises ClientClosed."""
        if self._runtime is None:
            raise ClientClosed(f"push consumer {self._group}")
        return self._runtime

    def _running(self) -> PushRuntime:
        if self._state != "RUNNING" or self._runtime is None:
            raise ClientClosed(f"push consumer {self._group}")
        return self._runtime

    # --- Starting ---

    def _check_listeners(self) -> None:
        """Decide by the listeners whether to consume in order. Raises SettingsError."""
        if not self._subscriptions:
            raise SettingsError("subscriptions", "nothing is subscribed: call subscribe(topic) before start")
        namespace = self._client.namespace
        bare = {with_namespace(namespace, topic): topic for topic in self._listeners.topics()}
        for topic in self._subscriptions:
            if self._listeners.find(bare.get(topic, topic)) is None:
                raise SettingsError(
                    "listener", f"messageListener is null: topic {topic} is subscribed but has no listener"
                )
        kinds = {handler.is_orderly for handler in self._listeners.all()} - {None}
        if len(kinds) == 2 or (False in kinds and self.settings.orderly):
            raise SettingsError("listener", "a consumer is either orderly or concurrent, for all its topics")
        if True in kinds:
            self.settings = replace(self.settings, orderly=True)

    async def _check_topic(self, topic: str) -> None:
        """Query a topic's route; let one of its brokers check an SQL92 expression."""
        assert self._runtime is not None
        session = self._runtime.session
        try:
            await session.refresh_route(topic)
        except NoRoute:
            return  # rebalancing retries and logs it
        await check_expression(session, self._group, self._subscriptions[topic])

    async def _announce(self, topic: str | None = None) -> None:
        """Announce changed subscriptions to the brokers."""
        runtime = self._running()
        if topic is not None:
            await self._check_topic(topic)
        await runtime.session.heartbeat()
        runtime.rebalancer.wake()

    # --- For the session and the rebalancer ---

    def wake_rebalancer(self) -> None:
        if self._runtime is not None:
            self._runtime.rebalancer.wake()

    def _announced_subscriptions(self) -> Iterable[TopicSubscription]:
        return [self._renewed.get(topic, wanted) for topic, wanted in self._subscriptions.items()]

    def queue_taken(self, request: PullRequest) -> None:
        if self._runtime is not None:
            self._runtime.fetch_loop.begin(request)

    def queue_released(self, process_queue: ProcessQueue) -> None:
        if self._runtime is not None:
            self._runtime.fetch_loop.end(process_queue)

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        if self._runtime is None:
            return
        subscription = self._subscriptions.get(topic)
        if all_queues and subscription is not None:
            runtime = self._runtime
            runtime.fetch_loop.thresholds.share(self.settings, len(runtime.queues.process_queues))
            # The new version is announced first: brokers refuse pulls with a version ahead of theirs.
            renewed = self._renewed[topic] = subscription.renewed(self._clock.now_ms())
            await runtime.session.heartbeat()
            del self._renewed[topic]
            if self._subscriptions.get(topic) is subscription:
                self._subscriptions[topic] = renewed
        for listener in self._queue_listeners:
            try:
                waiting = listener(topic, all_queues, mine)
                if isinstance(waiting, Awaitable):
                    await waiting
            except Exception:
                log.exception("queue listener failed topic=%s", topic)


class PushRuntime:
    """What exists while a push consumer runs: created, started and stopped together. Loop thread."""

    def __init__(self, consumer: AsyncPushConsumer, session: Session) -> None:
        settings, group = consumer.settings, consumer.group
        clustering = settings.model is MessageModel.CLUSTERING
        self.session = session
        self.offsets = consumer._own_offset_store or open_offset_store(session, group, settings)
        log.debug("start group=%s step=offset-store kind=%s", group, type(self.offsets).__name__)
        self.tasks = Tasks()
        self._settings = settings
        self._clock = consumer._clock
        self._started_ms = self._clock.now_ms()
        self._rates = ConsumeRates()
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
        start_offsets = StartOffsets(session, self.offsets, settings.consume_from, consumer._timestamp_ms)
        table = self.offsets.table
        self.fetch_loop = PushFetchLoop(
            session, group, settings, consumer._subscriptions, table, start_offsets, self._rates,
            self._restart,
        )  # fmt: skip
        log.debug("start group=%s step=fetcher", group)
        self._trace = ConsumeTrace(session, group, settings) if settings.trace else None
        parts = ConsumptionParts(
            group, settings, consumer._listeners, table, send_back, self._rates, self.fetch_loop.made_room,
            self._trace,
        )  # fmt: skip
        self.consumption: ConcurrentConsumption | OrderlyConsumption
        if settings.orderly:
            self.consumption = OrderlyConsumption(parts, self.locks)
        else:
            self.consumption = ConcurrentConsumption(parts)
        self.fetch_loop.submit = self.consumption.submit
        wait_until_free = (
            self.consumption.wait_until_free if isinstance(self.consumption, OrderlyConsumption) else None
        )
        self.queues = PushQueues(
            session, group, settings, consumer, self.offsets, start_offsets, self.locks, wait_until_free,
            self._wake,
        )  # fmt: skip
        self.rebalancer = Rebalancer(session, group, settings, consumer._strategy, self.queues)
        log.debug(
            "start group=%s step=rebalancer model=%s strategy=%s",
            group, settings.model.value, getattr(consumer._strategy, "__name__", consumer._strategy),
        )  # fmt: skip

    def begin(self) -> None:
        """Start the periodic tasks."""
        every, settings, process_queues = self.tasks.every, self._settings, self.queues.process_queues
        self.tasks.spawn(self.rebalancer.run(), "rebalance")
        every(
            settings.offset_persist_interval_ms,
            lambda: self.offsets.persist_all(list(process_queues)),
            "persist offsets",
            first_ms=settings.offset_persist_first_ms,
        )
        every(SAMPLE_INTERVAL_MS, lambda: self._rates.take_sample(time.monotonic()), "sample")
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

    def set_paused(self, paused: bool) -> None:
        self.fetch_loop.paused = self.rebalancer.paused = paused
        if not paused:
            self.rebalancer.wake()

    def _wake(self) -> None:
        self.rebalancer.wake()

    def _restart(self, queue: MessageQueue, queue_offset: int) -> None:
        self.tasks.spawn(self._restart_queue(queue, queue_offset), f"restart {queue}")

    async def _restart_queue(self, queue: MessageQueue, queue_offset: int) -> None:
        async with self.rebalancer.round_lock:
            await self.queues.restart(queue, queue_offset)
        self.rebalancer.wake()

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Move queues to other offsets. The consumer must be paused during the call."""
        async with self.rebalancer.round_lock:  # a round in progress would take the queues back
            dropped = self.queues.drop(offsets.keys())
        await asyncio.sleep(self._settings.reset_wait_ms / 1000)
        async with self.rebalancer.round_lock:
            await self.queues.move(dropped, offsets)

    def running_info(
        self, subscriptions: Mapping[str, TopicSubscription], properties: dict[str, str], *, with_stacks: bool
    ) -> ConsumerRunningInfo:
        now, table = time.monotonic(), self.offsets.table
        wall_minus_monotonic = self._clock.now_ms() - now * 1000
        return ConsumerRunningInfo(
            properties=properties
            | push_properties(self._settings, self.consumption.threads.thread_count, self._started_ms),
            subscription_set=[wanted.data() for wanted in subscriptions.values()],
            mq_table={
                queue: held.info(-1 if (at := table.get(queue)) is None else at, wall_minus_monotonic)
                for queue, held in self.queues.process_queues.items()
            },
            status_table={topic: self._rates.status(topic, now) for topic in subscriptions},
            jstack=thread_stacks() if with_stacks else None,
        )

    async def end(self) -> None:
        """Stop in order: no new messages, listeners finish, offsets are persisted.

        When cancelled, it does not wait for listeners any more, but still stops everything.
        """
        try:
            await self.rebalancer.finish_round()
            await self._end(self._settings.stop_wait_ms)
        except BaseException:
            await self._end(0)
            raise

    async def _end(self, listeners_wait_ms: int) -> None:
        await self.tasks.close()
        await self.fetch_loop.stop()
        await self.consumption.stop(listeners_wait_ms)
        queues = list(self.queues.process_queues)
        await self.offsets.persist_all(queues)
        if self.locks is not None:
            await self.locks.unlock_all(queues)
        if self._trace is not None:
            await self._trace.queue.close(self.session.settings.stop_timeout_ms / 1000)


class PushConsumer(BlockingClient[AsyncPushConsumer]):
    """`skylark.PushConsumer`: consumes topics for one group, in threads. Any thread may call.

    >>> consumer = PushConsumer("billing", namesrv="127.0.0.1:9876")
    >>> @consumer.subscribe("orders", "created || paid")
    ... def handle(messages):
    ...     ...
    >>> consumer.run()

    A listener that returns has consumed its messages; if it raises or returns `ConsumeResult.LATER`, they are
    redelivered later. Every message is delivered at least once, and may be delivered again: see the page on
    duplicates. Listeners may be coroutine functions, too; they run on the client's own loop.
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
    ) -> None:
        """As `skylark.aio.PushConsumer`. Raises BadName, SettingsError."""
        inner = AsyncPushConsumer(
            group,
            namesrv=namesrv,
            settings=settings,
            client=client,
            strategy=strategy,
            offset_store=offset_store,
        )
        super().__init__(inner, f"push consumer {group}")
        self._ended = threading.Event()

    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        listener: Listener | None = None,
        *,
        sql: str | None = None,
        filter_class: str | None = None,
    ) -> Callable[[F], F]:
        """See `skylark.aio.PushConsumer.subscribe`.

        Raises SettingsError for an invalid topic or expression.
        """

        async def subscribe() -> Callable[[F], F]:
            return self._inner.subscribe(topic, expression, listener, sql=sql, filter_class=filter_class)

        if self._thread is not None:
            return self._wait(subscribe())
        return self._inner.subscribe(topic, expression, listener, sql=sql, filter_class=filter_class)

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic: its queues are released in the next rebalancing round."""
        if self._thread is not None:
            self._call(lambda: self._inner.unsubscribe(topic))
        else:
            self._inner.unsubscribe(topic)

    def listen(self, listener: F) -> F:
        """Set the listener of all topics without their own; usable as a decorator.

        A function, a `MessageListenerConcurrently` or a `MessageListenerOrderly`.
        """
        return self._inner.listen(listener)

    def use(self, middleware: M) -> M:
        """Wrap every listener call; see `skylark.aio.PushConsumer.use`."""
        return self._inner.use(middleware)

    def on_queues_changed(self, listener: Q) -> Q:
        """Call a function with `(topic, all_queues, my_queues)` when queues change, on the client's loop.

        It must not block.
        """
        return self._inner.on_queues_changed(listener)

    def stop(self) -> None:
        """Wait for running listeners, persist offsets, and unregister.

        When called inside a listener, it returns at once; the consumer stops after that listener has
        returned.
        """
        if is_worker_thread():
            threading.Thread(target=self.stop, name=f"stop {self._name}").start()
            return
        try:
            super().stop()
        finally:
            self._ended.set()

    def run(self) -> None:
        """Start, consume until Ctrl-C, SIGTERM or `stop`, and stop."""
        with on_termination(self._ended.set):
            self.start()
            try:
                while not self._ended.wait(SIGNAL_CHECK_S):
                    pass
            except KeyboardInterrupt:
                pass
            finally:
                self.stop()

    @property
    def client_id(self) -> str:
        """The client id that brokers see. Raises ClientClosed unless the consumer runs."""
        self._running()
        return self._inner.client_id

    suspend = on_loop(AsyncPushConsumer.suspend)
    resume = on_loop(AsyncPushConsumer.resume)
    queues = on_loop(AsyncPushConsumer.queues)
    running_info = on_loop(AsyncPushConsumer.running_info)
    reset_offsets = blocking(AsyncPushConsumer.reset_offsets)
    reset_to_time = blocking(AsyncPushConsumer.reset_to_time)
