"""Fetching messages from brokers, one task per queue, within flow-control limits."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from skylark.client.consumer.consume_rates import ConsumeRates
from skylark.client.consumer.offset_store import OffsetTable
from skylark.client.consumer.process_queue import MEBIBYTE, ProcessQueue, PulledBatch, PulledQueue
from skylark.client.consumer.pull_policy import (
    FLOW_CONTROL,
    FLOW_CONTROL_TOLD_EVERY,
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
from skylark.errors import BrokerError, BrokerUnknown, NoRoute, RocketMQError
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import LitePullMessage, PullMessage, PullResult
from skylark.settings.client import MessageModel, PullConsumerSettings, PushConsumerSettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

FAILURES_TOLD_EVERY = 60
"""A broker that is away is told of once a minute for each of its queues, not every second."""

Submit = Callable[[ProcessQueue, Sequence[ReceivedMessage]], None]


class PushFetcher:
    """Pulls all queues of a consumer, each in a task of its own. Loop thread.

    `repair(queue, offset)` is called when a broker says that an offset is outside the queue: the queue is
    then given up, and comes back where the broker said.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        settings: PushConsumerSettings,
        subscriptions: Mapping[str, TopicSubscription],
        offsets: OffsetTable,
        start_offsets: StartOffsets,
        stats: ConsumeRates,
        repair: Callable[[MessageQueue, int], None],
    ) -> None:
        self._session = session
        self._group = group
        self._settings = settings
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._start_offsets = start_offsets
        self._stats = stats
        self._repair = repair
        self._clustering = settings.model is MessageModel.CLUSTERING
        self._must_lock = settings.orderly and self._clustering
        self._namespace = session.settings.namespace
        self._suggested = SuggestedBrokers()
        self._tasks = Tasks()
        self._pulling: dict[ProcessQueue, tuple[PullRequest, asyncio.Task[None]]] = {}
        self._waiting: dict[ProcessQueue, asyncio.Event] = {}
        self.thresholds = Thresholds(settings.queue_messages_max, settings.queue_mib_max)
        self.paused = False
        self.submit: Submit | None = None
        """Who is handed what was pulled."""

    @property
    def requests(self) -> list[PullRequest]:
        """Those that circulate now."""
        return [request for request, _ in self._pulling.values()]

    def begin(self, request: PullRequest) -> None:
        """Pull a queue from now on, the first time after a moment."""
        task = self._tasks.spawn(self._circulate(request), f"pull {request.queue}")
        self._pulling[request.process_queue] = request, task
        task.add_done_callback(lambda _: self._pulling.pop(request.process_queue, None))

    def end(self, process_queue: ProcessQueue) -> None:
        """Pull a queue no more, not even what is under way."""
        _, task = self._pulling.pop(process_queue, (None, None))
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def stop(self) -> None:
        await self._tasks.close()

    def made_room(self, process_queue: ProcessQueue) -> None:
        """Say that a queue holds less than before: one that waits for room looks again."""
        waiting = self._waiting.get(process_queue)
        if waiting is not None and process_queue.message_count <= self.thresholds.messages_max // 2:
            waiting.set()

    # --- Circulating ---

    async def _circulate(self, request: PullRequest) -> None:
        await asyncio.sleep(self._settings.first_pull_delay_ms / 1000)
        process_queue = request.process_queue
        while not process_queue.dropped:
            process_queue.last_pull_at = time.monotonic()
            try:
                delay_ms = await self._turn(request)
                request.failures = 0
            except RocketMQError as error:
                delay_ms = self._delay_after(error, request)
            except Exception:
                log.exception("pulling failed and goes on queue=%s", request.queue)
                delay_ms = self._settings.pull_failure_delay_ms
            if delay_ms:
                await asyncio.sleep(delay_ms / 1000)

    async def _turn(self, request: PullRequest) -> float:
        """Wait or pull once; the milliseconds until the next turn."""
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
        return await self._pull(request, subscription)

    async def _wait(self, request: PullRequest, wait: Wait) -> float:
        if wait.reason not in FLOW_CONTROL:
            return wait.delay_ms
        request.waits += 1
        process_queue = request.process_queue
        if request.waits % FLOW_CONTROL_TOLD_EVERY == 1:
            log.warning(
                "queue is not pulled because %s queue=%s messages=%d bytes=%d span=%d waits=%d",
                wait.reason.value, request.queue, process_queue.message_count, process_queue.message_bytes,
                process_queue.span, request.waits,
            )  # fmt: skip
        event = self._waiting[process_queue] = asyncio.Event()
        try:
            async with asyncio.timeout(wait.delay_ms / 1000):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            del self._waiting[process_queue]
        return 0

    async def _begin_locked(self, request: PullRequest) -> None:
        """Ask anew where to begin, now that nobody else has the queue."""
        stored = await self._start_offsets.find(request.queue)
        if stored < request.next_offset:
            log.warning(
                "queue begins before where it was thought to queue=%s stored=%d thought=%d",
                request.queue, stored, request.next_offset,
            )  # fmt: skip
        request.next_offset = stored
        request.was_locked = True

    def _delay_after(self, error: RocketMQError, request: PullRequest) -> float:
        if isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL:
            return self._settings.broker_busy_delay_ms
        if not request.queue.topic.startswith(RETRY_TOPIC_PREFIX):
            if request.failures % FAILURES_TOLD_EVERY == 0:
                log.warning(
                    "pull failed and is repeated queue=%s failures=%d error=%s",
                    request.queue, request.failures + 1, error,
                )  # fmt: skip
            request.failures += 1
        return self._settings.pull_failure_delay_ms

    # --- One pull ---

    async def _pull(self, request: PullRequest, subscription: TopicSubscription) -> float:
        queue, settings = request.queue, self._settings
        broker = await self._find_broker(queue)
        committed = self._offsets.get(queue) if self._clustering else 0
        commit = self._clustering and committed is not None and committed > 0 and not broker.is_slave
        posted = settings.post_subscription and not subscription.by_class
        address = self._filter_server(queue.topic, broker) if subscription.by_class else broker.address
        message = PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=request.next_offset,
            max_msg_nums=settings.pull_batch_max,
            sys_flag=pull_flags(commit=commit, subscription=posted, class_filter=subscription.by_class),
            commit_offset=-1 if committed is None else committed,
            suspend_timeout_ms=settings.hold_ms,
            sub_version=subscription.version,
            subscription=subscription.expression if posted else None,
            expression_type=subscription.expression_type,
            max_msg_bytes=settings.pull_batch_bytes_max,
            broker_name=queue.broker_name,
            bulk_bytes=bulk_bytes(settings.pull_batch_max, settings.pull_batch_bytes_max),
        )
        asked = time.monotonic()
        result = await self._session.call(address, message, timeout_ms=settings.pull_timeout_ms)
        self._suggested.note(queue, result.reply.suggest_which_broker_id)
        return self._take(request, subscription, result, (time.monotonic() - asked) * 1000)

    async def _find_broker(self, queue: MessageQueue) -> FoundBroker:
        broker_id = self._suggested.get(queue)
        try:
            return self._session.routes.readable(queue.broker_name, broker_id)
        except BrokerUnknown:
            await self._session.refresh_route(queue.topic)
            return self._session.routes.readable(queue.broker_name, broker_id)

    def _filter_server(self, topic: str, broker: FoundBroker) -> str:
        """Return one of the filter servers of a broker. Raises NoRoute if it has none."""
        route = self._session.routes.get(topic)
        found = route.data.filter_server_table.get(broker.address) if route is not None else None
        if not found:
            raise NoRoute(topic, f"the broker at {broker.address} has no filter server for a filter class")
        return random.choice(found)  # noqa: S311

    def _take(
        self, request: PullRequest, subscription: TopicSubscription, result: PullResult, took_ms: float
    ) -> float:
        """Do as the answer says; the milliseconds until the next pull."""
        process_queue, reply = request.process_queue, result.reply
        if process_queue.dropped:
            return 0
        status = pull_status(result.code)
        if status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "offset is outside the queue and is corrected queue=%s asked=%d next=%d min=%d max=%d",
                request.queue, request.next_offset, reply.next_begin_offset, reply.min_offset,
                reply.max_offset,
            )  # fmt: skip
            request.next_offset = reply.next_begin_offset
            process_queue.dropped = True
            self._repair(request.queue, reply.next_begin_offset)
            return 0
        if status is PullStatus.FOUND:
            messages = self._read(request, subscription, result)
            request.next_offset = reply.next_begin_offset
            self._stats.pulled(request.queue.topic, len(messages), took_ms, time.monotonic())
            if not messages:
                return 0
            must_begin = process_queue.put(messages)
            if must_begin or not self._settings.orderly:
                assert self.submit is not None
                self.submit(process_queue, messages)
            return self._settings.pull_interval_ms
        request.next_offset = reply.next_begin_offset
        if not process_queue.message_count:
            # Else messages that do not match would count as not consumed for ever.
            self._offsets.update(request.queue, reply.next_begin_offset, increase_only=True)
        return 0

    def _read(
        self, request: PullRequest, subscription: TopicSubscription, result: PullResult
    ) -> Sequence[ReceivedMessage]:
        reply, queue = result.reply, request.queue
        messages = decode_pull(
            result.records,
            queue,
            min_offset=reply.min_offset,
            max_offset=reply.max_offset,
            offset_delta=reply.offset_delta or 0,
        )
        if messages and messages[0].queue_offset < request.next_offset:
            log.error(
                "broker gave an offset before the one asked for queue=%s asked=%d got=%d",
                queue, request.next_offset, messages[0].queue_offset,
            )  # fmt: skip
        if queue.topic.startswith(RETRY_TOPIC_PREFIX):
            for message in messages:
                original = find_retry_topic(message.properties_text)
                if original is not None:
                    message.topic = original.decode(errors="replace")
        if self._namespace:
            for message in messages:
                message.topic = without_namespace(self._namespace, message.topic)
        return subscription.filtered(messages)


ANY_BYTES = (1 << 31) - 1
"""Bytes of an answer, as the Java client says that it does not care."""
BULK_BYTES = 1 << 20
"""Of an answer to a pull for more messages than brokers usually give."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull brought: messages if FOUND, and in any case where to go on and where the queue is."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int


class Puller:
    """Pulls for one group, from the replicas that brokers suggest. Loop thread."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._suggested = SuggestedBrokers()
        self._without_lite: set[str] = set()  # addresses of brokers that do not know that code

    async def pull(
        self,
        queue: MessageQueue,
        subscription: TopicSubscription,
        queue_offset: int,
        messages_max: int,
        *,
        hold_ms: int,
        timeout_ms: int,
        hold: bool,
        lite: bool,
    ) -> Pulled:
        """With `hold` the broker waits for a message if there is none. Raises BrokerError, RemotingError."""

        def request(kind: type[PullMessage]) -> PullMessage:
            return kind(
                consumer_group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=queue_offset,
                max_msg_nums=messages_max,
                sys_flag=pull_flags(commit=False, suspend=hold, subscription=True, lite=lite),
                commit_offset=0,
                suspend_timeout_ms=hold_ms,
                sub_version=0 if subscription.is_tag_type else subscription.version,
                subscription=subscription.expression,
                expression_type=subscription.expression_type,
                max_msg_bytes=ANY_BYTES,
                broker_name=queue.broker_name,
                bulk_bytes=bulk_bytes(messages_max, BULK_BYTES),
            )

        result = await self._ask(await self._address(queue), request, timeout_ms=timeout_ms, lite=lite)
        reply = result.reply
        self._suggested.note(queue, reply.suggest_which_broker_id)
        status = pull_status(result.code)
        messages: list[ReceivedMessage] = []
        if status is PullStatus.FOUND:
            found = decode_pull(
                result.records,
                queue,
                min_offset=reply.min_offset,
                max_offset=reply.max_offset,
                offset_delta=reply.offset_delta or 0,
            )
            messages = list(subscription.filtered(found))
        return Pulled(status, messages, reply.next_begin_offset, reply.min_offset, reply.max_offset)

    async def _ask(
        self,
        address: str,
        request: Callable[[type[PullMessage]], PullMessage],
        *,
        timeout_ms: int,
        lite: bool,
    ) -> PullResult:
        """Pull by the code for this way of consuming; brokers before 5.0 know only the other."""
        if lite and address not in self._without_lite:
            try:
                return await self._session.call(address, request(LitePullMessage), timeout_ms=timeout_ms)
            except BrokerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
            self._without_lite.add(address)
        return await self._session.call(address, request(PullMessage), timeout_ms=timeout_ms)

    async def _address(self, queue: MessageQueue) -> str:
        routes, broker_id = self._session.routes, self._suggested.get(queue)
        try:
            return routes.readable(queue.broker_name, broker_id).address
        except BrokerUnknown:
            await self._session.refresh_route(queue.topic)
            return routes.readable(queue.broker_name, broker_id).address


class PullFetcher:
    """The queues that a consumer holds, and the tasks that fetch their messages. Loop thread."""

    def __init__(
        self,
        puller: Puller,
        settings: PullConsumerSettings,
        *,
        subscription_of: Callable[[str], TopicSubscription],
        start_of: Callable[[MessageQueue], Awaitable[int]],
    ) -> None:
        """`start_of` tells where a queue begins; what it raises is tried again."""
        self.held: dict[MessageQueue, PulledQueue] = {}
        self._puller = puller
        self._settings = settings
        self._subscription_of = subscription_of
        self._start_of = start_of
        self._tasks = Tasks()
        self._pulls: dict[MessageQueue, asyncio.Task[None]] = {}
        self._message_count = 0
        self._closed = False
        self._turn: deque[PulledQueue] = deque()  # whose messages come next
        self._unfinished: set[PulledQueue] = set()
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()  # something that may let a queue be pulled again

    # --- Which queues ---

    def hold(self, wanted: Collection[MessageQueue]) -> list[PulledQueue]:
        """Fetch these queues and no others; returns those that were given up."""
        given_up = [held for queue, held in self.held.items() if queue not in wanted]
        for held in given_up:
            del self.held[held.queue]
            self._pulls.pop(held.queue).cancel()
            self._turn.remove(held)
            self._message_count -= held.message_count
            held.generation += 1
        for queue in sorted(set(wanted) - self.held.keys()):
            held = self.held[queue] = PulledQueue(queue)
            self._turn.append(held)
            self._begin(held)
        self._changed.set()
        return given_up

    def seek(self, held: PulledQueue, queue_offset: int) -> None:
        """Go on at an offset. Messages of a pull that is under way do not count any more."""
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
        """End all fetching."""
        self._closed = True
        self._arrived.set()
        await self._tasks.close()

    # --- What was fetched ---

    async def take(self, timeout_s: float | None) -> PulledBatch | None:
        """The next batch, each queue in its turn; None if none comes in time. All before is now done."""
        for unfinished in self._unfinished:
            unfinished.finish()
        self._unfinished.clear()
        held = await self._wait_for_batch(timeout_s)
        if held is None:
            return None
        batch = held.take()
        self._message_count -= len(batch.messages)
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
        for _ in range(len(self._turn)):
            held = self._turn[0]
            self._turn.rotate(-1)
            if held.has_batch and not held.paused:
                return held
        return None

    # --- Fetching ---

    def _begin(self, held: PulledQueue) -> None:
        self._pulls[held.queue] = self._tasks.spawn(self._fetch(held), f"fetch {held.queue}")

    async def _fetch(self, held: PulledQueue) -> None:
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
        """Pull once and take in what comes; the error if it failed.

        A seek does not cancel it: the broker would go on holding it, and tell it alone of a reset.
        """
        settings = self._settings
        asked = held.next_offset
        assert asked is not None
        try:
            pulled = await self._puller.pull(
                held.queue,
                self._subscription_of(held.queue.topic),
                asked,
                settings.pull_batch_max,
                hold_ms=settings.hold_ms,
                timeout_ms=settings.pull_timeout_ms,
                hold=True,
                lite=True,
            )
        except RocketMQError as error:
            return error
        if self.held.get(held.queue) is not held:
            return None
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            # The broker's word counts: the queue was reset, or has lost what we asked for.
            log.warning("offset was corrected queue=%s from=%d to=%d", held.queue, asked, pulled.next_offset)
            self.seek(held, pulled.next_offset)
        elif held.put(generation, pulled.messages, pulled.next_offset) and pulled.messages:
            self._message_count += len(pulled.messages)
            self._arrived.set()
        return None

    def _delay_ms(self, held: PulledQueue, error: RocketMQError) -> int:
        settings = self._settings
        if isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL:
            return settings.broker_busy_delay_ms
        if held.next_offset is None:
            log.warning("where to begin is not known yet queue=%s error=%s", held.queue, error)
            return settings.start_failure_delay_ms
        log.warning("pull failed queue=%s error=%s", held.queue, error)
        return settings.pull_failure_delay_ms
