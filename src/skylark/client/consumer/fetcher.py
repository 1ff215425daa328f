"""Fetcher: pulls messages from brokers for push and pull consumers, within flow-control limits.

`Fetcher` makes one pull. `PushFetchLoop` and `PullFetchLoop` repeat it, in one task per queue.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from skylark.client.consumer.consume_rates import ConsumeRates
from skylark.client.consumer.offset_store import OffsetTable
from skylark.client.consumer.process_queue import (
    MEBIBYTE,
    MessageRows,
    ProcessQueue,
    PulledBatch,
    PulledQueue,
    Rows,
)
from skylark.client.consumer.pull_policy import (
    FLOW_CONTROL,
    FLOW_CONTROL_LOGGED_EVERY,
    PullRequest,
    PullStatus,
    SuggestedBrokers,
    Thresholds,
    Wait,
    bulk_bytes,
    pull_flags,
    pull_status,
    wait_before_pull,
)
from skylark.client.consumer.start_offsets import StartOffsets
from skylark.client.consumer.subscription import TopicSubscription
from skylark.client.namespace import without_namespace
from skylark.client.received_message import ReceivedMessage, decode_pull, find_retry_topic
from skylark.client.session.routes import FoundBroker
from skylark.client.session.session import Session
from skylark.errors import (
    BrokerError,
    BrokerUnknown,
    CorruptRecord,
    NoRoute,
    RemotingError,
    RocketMQError,
)
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.model.record import UNWRAPPED_BY_CLIENTS
from skylark.protocol.bodies import MASTER_ID, MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import LitePullMessage, PullMessage, PullResult
from skylark.settings.client import MessageModel, PullConsumerSettings, PushConsumerSettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

ANY_BYTES = (1 << 31) - 1
"""No limit for the bytes of a reply, as the Java client expresses it."""
BULK_BYTES = 1 << 20
"""Limit for the reply to a pull for more messages than brokers usually return."""
FAILURES_LOGGED_EVERY = 60
"""Failed pulls of an unreachable broker are logged once a minute per queue, not every second."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull: messages if FOUND, and always the next offset and the limits of the queue."""

    status: PullStatus
    messages: Sequence[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    took_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How a consumer pulls. With `hold`, the broker waits for a message if there is none.

    With `units`, Skylark's brokers return the queue entries of a large pull, too, and do not compare them
    with the records.
    """

    messages_max: int
    bytes_max: int = ANY_BYTES
    bulk_bytes_max: int = BULK_BYTES
    units: bool = False
    hold_ms: int
    timeout_ms: int
    hold: bool = True
    lite: bool = False
    post_subscription: bool = True
    post_tag_version: bool = False


class Fetcher:
    """Pulls for one group, from the replicas that brokers suggest. Loop thread."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._suggested = SuggestedBrokers()
        self._without_lite: set[str] = set()  # addresses of brokers that do not support that code

    async def fetch(
        self,
        queue: MessageQueue,
        subscription: TopicSubscription,
        queue_offset: int,
        options: FetchOptions,
        *,
        committed: int | None = 0,
    ) -> Pulled:
        """Pull once and decode the messages; arguments and errors as for `ask`."""
        result, took_ms = await self.ask(queue, subscription, queue_offset, options, committed=committed)
        reply, status = result.reply, pull_status(result.code)
        messages: Sequence[ReceivedMessage] = []
        if status is PullStatus.FOUND:
            messages = decode_messages(queue, subscription, queue_offset, result)
        return Pulled(status, messages, reply.next_begin_offset, reply.min_offset, reply.max_offset, took_ms)

    async def ask(
        self,
        queue: MessageQueue,
        subscription: TopicSubscription,
        queue_offset: int,
        options: FetchOptions,
        *,
        committed: int | None = 0,
    ) -> tuple[PullResult, float]:
        """Pull once; return the undecoded result and the milliseconds it took.

        A positive `committed` offset is committed with the pull, except at a slave. If a suggested replica
        fails, the master is asked at once.

        Raises BrokerError, RemotingError, NoRoute without a filter server for a filter class.
        """
        broker_id = self._suggested.get(queue, time.monotonic())
        broker = await self._find_broker(queue, broker_id)
        pull = partial(self._pull, queue, subscription, queue_offset, options, committed)
        started = time.monotonic()
        try:
            result = await pull(broker)
        except (RemotingError, BrokerError) as error:
            if broker_id == MASTER_ID or _is_busy(error):
                raise
            broker = await self._leave_replica(queue, broker_id, broker, error)
            started = time.monotonic()
            result = await pull(broker)
        took_ms = (time.monotonic() - started) * 1000
        self._suggested.note(queue, result.reply.suggest_which_broker_id)
        return result, took_ms

    async def _find_broker(self, queue: MessageQueue, broker_id: int) -> FoundBroker:
        routes = self._session.routes
        try:
            return routes.readable(queue.broker_name, broker_id)
        except BrokerUnknown:
            await self._session.refresh_route(queue.topic)
            return routes.readable(queue.broker_name, broker_id)

    async def _leave_replica(
        self, queue: MessageQueue, broker_id: int, replica: FoundBroker, error: RocketMQError
    ) -> FoundBroker:
        """Return the master, because a suggested replica failed. Raises the error if there is no other."""
        log.warning(
            "replica failed, pulling from the master queue=%s address=%s error=%s",
            queue, replica.address, error,
        )  # fmt: skip
        self._suggested.avoid(queue.broker_name, broker_id, time.monotonic())
        self._session.tasks.spawn(self._refresh_route(queue.topic), f"refresh route {queue.topic}")
        master = await self._find_broker(queue, MASTER_ID)
        if master.address == replica.address:
            raise error
        return master

    async def _refresh_route(self, topic: str) -> None:
        try:
            await self._session.refresh_route(topic)
        except RocketMQError as error:
            log.info("route was not refreshed topic=%s error=%s", topic, error)

    async def _pull(
        self,
        queue: MessageQueue,
        subscription: TopicSubscription,
        queue_offset: int,
        options: FetchOptions,
        committed: int | None,
        broker: FoundBroker,
    ) -> PullResult:
        by_class = subscription.by_class
        posted = options.post_subscription and not by_class
        commit = committed is not None and committed > 0 and not broker.is_slave

        bulk = bulk_bytes(options.messages_max, options.bulk_bytes_max)

        def request(kind: type[PullMessage]) -> PullMessage:
            return kind(
                consumer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=queue_offset,
                max_msg_nums=options.messages_max,
                sys_flag=pull_flags(
                    commit=commit,
                    suspend=options.hold,
                    subscription=posted,
                    class_filter=by_class,
                    lite=options.lite,
                ),
                commit_offset=-1 if committed is None else committed,
                suspend_timeout_ms=options.hold_ms,
                sub_version=subscription.version
                if options.post_tag_version or not subscription.is_tag_type
                else 0,
                subscription=subscription.expression if posted else None,
                expression_type=subscription.expression_type,
                max_msg_bytes=options.bytes_max,
                broker_name=queue.broker_name,
                bulk_bytes=bulk,
                bulk_units=(options.units and bulk is not None) or None,
            )

        address = self._filter_server(queue.topic, broker) if by_class else broker.address
        return await self._call(address, request, options)

    def _filter_server(self, topic: str, broker: FoundBroker) -> str:
        route = self._session.routes.get(topic)
        found = route.data.filter_server_table.get(broker.address) if route is not None else None
        if not found:
            raise NoRoute(topic, f"the broker at {broker.address} has no filter server for a filter class")
        return random.choice(found)  # noqa: S311

    async def _call(
        self, address: str, request: Callable[[type[PullMessage]], PullMessage], options: FetchOptions
    ) -> PullResult:
        """Pull with the code of lite pulls if wanted; brokers before 5.0 support only the other one."""
        if options.lite and address not in self._without_lite:
            try:
                return await self._session.call(
                    address, request(LitePullMessage), timeout_ms=options.timeout_ms
                )
            except BrokerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
            self._without_lite.add(address)
        return await self._session.call(address, request(PullMessage), timeout_ms=options.timeout_ms)


def decode_messages(
    queue: MessageQueue, subscription: TopicSubscription, queue_offset: int, result: PullResult
) -> Sequence[ReceivedMessage]:
    """Return the matching messages of a result. Raises CorruptRecord."""
    reply = result.reply
    pulled = decode_pull(
        result.records,
        queue,
        min_offset=reply.min_offset,
        max_offset=reply.max_offset,
        offset_delta=reply.offset_delta or 0,
    )
    if pulled and pulled.first_offset < queue_offset:
        if pulled[0].sys_flag & UNWRAPPED_BY_CLIENTS:  # the offset is inside of a batch
            return subscription.filtered([each for each in pulled if each.queue_offset >= queue_offset])
        log.error(
            "broker returned an offset before the requested one queue=%s requested=%d got=%d",
            queue, queue_offset, pulled.first_offset,
        )  # fmt: skip
    return subscription.filtered(pulled)


def _is_busy(error: RocketMQError) -> bool:
    return isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL


# --- Push consumers ---

Submit = Callable[[ProcessQueue, Sequence[ReceivedMessage]], None]


class PushFetchLoop:
    """Pulls all queues of a push consumer, each in its own task. Loop thread.

    `restart(queue, offset)` is called when a broker reports an offset outside the queue: the queue is then
    released and taken again at the broker's offset. `submit` gets the pulled messages.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        settings: PushConsumerSettings,
        subscriptions: Mapping[str, TopicSubscription],
        offsets: OffsetTable,
        start_offsets: StartOffsets,
        rates: ConsumeRates,
        restart: Callable[[MessageQueue, int], None],
    ) -> None:
        self._fetcher = Fetcher(session, group)
        self._settings = settings
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._start_offsets = start_offsets
        self._rates = rates
        self._restart = restart
        self._options = FetchOptions(
            messages_max=settings.pull_batch_max,
            bytes_max=settings.pull_batch_bytes_max,
            bulk_bytes_max=settings.pull_batch_bytes_max,
            hold_ms=settings.hold_ms,
            timeout_ms=settings.pull_timeout_ms,
            post_subscription=settings.post_subscription,
            post_tag_version=True,
        )
        self._clustering = settings.model is MessageModel.CLUSTERING
        self._must_lock = settings.orderly and self._clustering
        self._namespace = session.settings.namespace
        self._tasks = Tasks()
        self._stopped = False
        self._pulls: dict[ProcessQueue, tuple[PullRequest, asyncio.Task[None]]] = {}
        self._room_events: dict[ProcessQueue, asyncio.Event] = {}
        self.thresholds = Thresholds(settings.queue_messages_max, settings.queue_mib_max)
        self.paused = False
        self.submit: Submit | None = None

    @property
    def requests(self) -> list[PullRequest]:
        return [request for request, _ in self._pulls.values()]

    def begin(self, request: PullRequest) -> None:
        """Start to pull a queue, after `first_pull_delay_ms`. Refused and logged after `stop`."""
        if self._stopped:
            log.warning("queue is not pulled because the consumer has stopped queue=%s", request.queue)
            return
        task = self._tasks.spawn(self._run(request), f"pull {request.queue}")
        self._pulls[request.process_queue] = request, task
        task.add_done_callback(lambda _: self._pulls.pop(request.process_queue, None))

    def end(self, process_queue: ProcessQueue) -> None:
        """Stop to pull a queue and cancel the pull in flight."""
        _, task = self._pulls.pop(process_queue, (None, None))
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def stop(self) -> None:
        self._stopped = True
        await self._tasks.close()

    def made_room(self, process_queue: ProcessQueue) -> None:
        """Wake the pull of a queue that holds fewer messages than before."""
        event = self._room_events.get(process_queue)
        if event is not None and process_queue.message_count <= self.thresholds.messages_max // 2:
            event.set()

    async def _run(self, request: PullRequest) -> None:
        await asyncio.sleep(self._settings.first_pull_delay_ms / 1000)
        process_queue = request.process_queue
        while not process_queue.dropped:
            process_queue.last_pull_at = time.monotonic()
            try:
                delay_ms = await self._step(request)
                request.failures = 0
            except RocketMQError as error:
                delay_ms = self._delay_after(error, request)
            except Exception:
                log.exception("pull failed and is retried queue=%s", request.queue)
                delay_ms = self._settings.pull_failure_delay_ms
            if delay_ms:
                await asyncio.sleep(delay_ms / 1000)

    async def _step(self, request: PullRequest) -> float:
        """Wait for room or pull once; return the milliseconds until the next step."""
        subscription = self._subscriptions.get(request.queue.topic)
        wait = wait_before_pull(
            request.process_queue,
            self.thresholds,
            self._settings,
            paused=self.paused,
            must_lock=self._must_lock,
            subscription=subscription,
        )
        if wait is not None:
            return await self._wait(request, wait)
        if self._must_lock and not request.was_locked:
            await self._begin_locked(request)
        assert subscription is not None
        committed = self._offsets.get(request.queue) if self._clustering else 0
        pulled = await self._fetcher.fetch(
            request.queue, subscription, request.next_offset, self._options, committed=committed
        )
        return self._take(request, pulled)

    async def _wait(self, request: PullRequest, wait: Wait) -> float:
        if wait.reason not in FLOW_CONTROL:
            return wait.delay_ms
        request.waits += 1
        process_queue = request.process_queue
        if request.waits % FLOW_CONTROL_LOGGED_EVERY == 1:
            log.warning(
                "queue is not pulled because %s queue=%s messages=%d bytes=%d span=%d waits=%d",
                wait.reason.value, request.queue, process_queue.message_count, process_queue.message_bytes,
                process_queue.span, request.waits,
            )  # fmt: skip
        event = self._room_events[process_queue] = asyncio.Event()
        try:
            async with asyncio.timeout(wait.delay_ms / 1000):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            del self._room_events[process_queue]
        return 0

    async def _begin_locked(self, request: PullRequest) -> None:
        """Query the start offset again, now that no other member can commit."""
        stored = await self._start_offsets.find(request.queue)
        if stored < request.next_offset:
            log.warning(
                "queue starts before the expected offset queue=%s stored=%d expected=%d",
                request.queue, stored, request.next_offset,
            )  # fmt: skip
        request.next_offset = stored
        request.was_locked = True

    def _delay_after(self, error: RocketMQError, request: PullRequest) -> float:
        if _is_busy(error):
            return self._settings.broker_busy_delay_ms
        if not request.queue.topic.startswith(RETRY_TOPIC_PREFIX):
            if request.failures % FAILURES_LOGGED_EVERY == 0:
                log.warning(
                    "pull failed and is retried queue=%s failures=%d error=%s",
                    request.queue, request.failures + 1, error,
                )  # fmt: skip
            request.failures += 1
        return self._settings.pull_failure_delay_ms

    def _take(self, request: PullRequest, pulled: Pulled) -> float:
        """Process a result; return the milliseconds until the next pull."""
        process_queue, messages = request.process_queue, pulled.messages
        if process_queue.dropped:
            return 0
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "offset is outside the queue and is corrected queue=%s requested=%d next=%d min=%d max=%d",
                request.queue, request.next_offset, pulled.next_offset, pulled.min_offset, pulled.max_offset,
            )  # fmt: skip
            request.next_offset = pulled.next_offset
            process_queue.dropped = True
            self._restart(request.queue, pulled.next_offset)
            return 0
        request.next_offset = pulled.next_offset
        if pulled.status is PullStatus.FOUND:
            self._rates.pulled(request.queue.topic, len(messages), pulled.took_ms, time.monotonic())
            if not messages:
                return 0
            self._restore_topics(request.queue, messages)
            must_begin = process_queue.put(messages)
            if must_begin or not self._settings.orderly:
                assert self.submit is not None
                self.submit(process_queue, messages)
            return self._settings.pull_interval_ms
        if not process_queue.message_count:
            # Otherwise messages that do not match would count as unconsumed forever.
            self._offsets.update(request.queue, pulled.next_offset, increase_only=True)
        return 0

    def _restore_topics(self, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Set the topic of retried messages to the original one, and remove namespaces."""
        if queue.topic.startswith(RETRY_TOPIC_PREFIX):
            for message in messages:
                original = find_retry_topic(message.properties_text)
                if original is not None:
                    message.topic = original.decode(errors="replace")
        if self._namespace:
            for message in messages:
                message.topic = without_namespace(self._namespace, message.topic)


# --- Pull consumers ---

DecodeRows = Callable[[MessageQueue, TopicSubscription, int, PullResult], Rows]
NO_ROWS = MessageRows(())


def message_rows(
    queue: MessageQueue, subscription: TopicSubscription, queue_offset: int, result: PullResult
) -> Rows:
    """`DecodeRows` of messages. Raises CorruptRecord."""
    return MessageRows(decode_messages(queue, subscription, queue_offset, result))


class PullFetchLoop:
    """The queues that a pull consumer holds, and the tasks that fetch ahead. Loop thread."""

    def __init__(
        self,
        fetcher: Fetcher,
        settings: PullConsumerSettings,
        *,
        subscription_of: Callable[[str], TopicSubscription],
        start_of: Callable[[MessageQueue], Awaitable[int]],
    ) -> None:
        """`start_of` returns the start offset of a queue; its errors are retried."""
        self.held: dict[MessageQueue, PulledQueue] = {}
        self._fetcher = fetcher
        self._settings = settings
        self._options = FetchOptions(
            messages_max=settings.pull_batch_max,
            hold_ms=settings.hold_ms,
            timeout_ms=settings.pull_timeout_ms,
            lite=True,
        )
        self._decode: DecodeRows = message_rows
        self._subscription_of = subscription_of
        self._start_of = start_of
        self._tasks = Tasks()
        self._pulls: dict[MessageQueue, asyncio.Task[None]] = {}
        self._message_count = 0
        self._closed = False
        self._robin: deque[PulledQueue] = deque()  # the next batch comes from the first that has one
        self._unfinished: set[PulledQueue] = set()
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()  # a queue may be pulled again

    # --- Queues ---

    def hold(self, wanted: Collection[MessageQueue]) -> list[PulledQueue]:
        """Fetch exactly these queues; returns those that were released."""
        released = [held for queue, held in self.held.items() if queue not in wanted]
        for held in released:
            del self.held[held.queue]
            self._pulls.pop(held.queue).cancel()
            self._robin.remove(held)
            self._message_count -= held.message_count
            held.generation += 1
        for queue in sorted(set(wanted) - self.held.keys()):
            held = self.held[queue] = PulledQueue(queue)
            self._robin.append(held)
            self._begin(held)
        self._changed.set()
        return released

    def seek(self, held: PulledQueue, queue_offset: int) -> None:
        """Continue at an offset. The result of a pull in flight is dropped."""
        self._message_count -= held.message_count
        held.seek(queue_offset)
        self._pulls[held.queue].cancel()
        self._begin(held)
        self._changed.set()

    def set_paused(self, held: PulledQueue, paused: bool) -> None:
        held.paused = paused
        self._changed.set()
        self._arrived.set()

    async def close(self) -> None:
        self._closed = True
        self._arrived.set()
        await self._tasks.close()

    def decode_as(self, decode: DecodeRows, messages_max: int, *, units: bool = False) -> None:
        """Decode replies by another function, and pull up to this many messages at once.

        Rows that were fetched, but not handed out, are fetched again.
        """
        if decode is self._decode:
            return
        self._decode = decode
        self._options = replace(self._options, messages_max=messages_max, units=units)
        for held in self.held.values():
            if held.position is not None:
                self.seek(held, held.position)

    # --- Fetched messages ---

    async def take(self, timeout_s: float | None) -> PulledBatch | None:
        """Return the next batch, round robin over the queues; None at the timeout.

        Earlier batches are done.
        """
        for unfinished in self._unfinished:
            unfinished.finish()
        self._unfinished.clear()
        held = await self._wait_for_batch(timeout_s)
        if held is None:
            return None
        batch = held.take()
        self._message_count -= len(batch.rows)
        self._changed.set()
        self._unfinished.add(held)
        return batch

    async def _wait_for_batch(self, timeout_s: float | None) -> PulledQueue | None:
        found = self._next()
        try:
            async with asyncio.timeout(timeout_s):
                while found is None and not self._closed:
                    self._arrived.clear()
                    await self._arrived.wait()
                    found = self._next()
        except TimeoutError:
            pass
        return found

    def _next(self) -> PulledQueue | None:
        for _ in range(len(self._robin)):
            held = self._robin[0]
            self._robin.rotate(-1)
            if held.has_batch and not held.paused:
                return held
        return None

    # --- Fetching ---

    def _begin(self, held: PulledQueue) -> None:
        self._pulls[held.queue] = self._tasks.spawn(self._run(held), f"fetch {held.queue}")

    async def _run(self, held: PulledQueue) -> None:
        generation = held.generation
        while generation == held.generation:
            try:
                if held.next_offset is None:
                    await self._find_start(held)
            except RocketMQError as error:
                await asyncio.sleep(self._delay_ms(held, error) / 1000)
                continue
            await self._wait_for_room(held)
            pull = self._tasks.spawn(self._pull(held, generation), f"pull {held.queue}")
            failure = await asyncio.shield(pull)
            if failure is not None:
                await asyncio.sleep(self._delay_ms(held, failure) / 1000)

    async def _find_start(self, held: PulledQueue) -> None:
        generation = held.generation
        start = await self._start_of(held.queue)
        if generation == held.generation:
            held.begin(start)

    async def _wait_for_room(self, held: PulledQueue) -> None:
        while held.paused or self._is_full(held):
            self._changed.clear()
            await self._changed.wait()

    def _is_full(self, held: PulledQueue) -> bool:
        settings = self._settings
        return (
            self._message_count > settings.messages_max
            or held.message_count > settings.queue_messages_max
            or held.message_bytes // MEBIBYTE > settings.queue_mib_max
            or held.span > settings.span_max
        )

    async def _pull(self, held: PulledQueue, generation: int) -> RocketMQError | None:
        """Pull once and store the result; return the error if it failed.

        A seek does not cancel it: the broker would keep holding the pull, and report a reset only to it.
        """
        asked = held.next_offset
        assert asked is not None
        try:
            try:
                result, rows = await self._ask(held.queue, asked, self._options)
            except CorruptRecord:
                if not self._options.units:
                    raise
                # The broker leaves out what does not match its queue entry, if it has to compare.
                result, rows = await self._ask(held.queue, asked, replace(self._options, units=False))
            status, next_offset = pull_status(result.code), result.reply.next_begin_offset
        except RocketMQError as error:
            return error
        if self.held.get(held.queue) is not held:
            return None
        if status is PullStatus.OFFSET_ILLEGAL:
            # The broker decides: the queue was reset, or has lost the requested messages.
            log.warning("offset was corrected queue=%s from=%d to=%d", held.queue, asked, next_offset)
            self.seek(held, next_offset)
        elif held.put(generation, rows, next_offset) and len(rows):
            self._message_count += len(rows)
            self._arrived.set()
        return None

    async def _ask(self, queue: MessageQueue, asked: int, options: FetchOptions) -> tuple[PullResult, Rows]:
        subscription = self._subscription_of(queue.topic)
        result, _ = await self._fetcher.ask(queue, subscription, asked, options)
        found = pull_status(result.code) is PullStatus.FOUND
        return result, self._decode(queue, subscription, asked, result) if found else NO_ROWS

    def _delay_ms(self, held: PulledQueue, error: RocketMQError) -> int:
        settings = self._settings
        if _is_busy(error):
            return settings.broker_busy_delay_ms
        if held.next_offset is None:
            log.warning("start offset is not known yet queue=%s error=%s", held.queue, error)
            return settings.start_failure_delay_ms
        log.warning("pull failed queue=%s error=%s", held.queue, error)
        return settings.pull_failure_delay_ms
