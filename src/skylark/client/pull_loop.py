"""Pulling: for each queue one request circulates, from decision to broker to process queue and back."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence

from skylark.client.consume_stats import ConsumeStats
from skylark.client.namespace import without_namespace
from skylark.client.offset_table import OffsetTable
from skylark.client.process_queue import ProcessQueue
from skylark.client.pulling import (
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
from skylark.client.queue_offsets import StartOffsets
from skylark.client.received import ReceivedMessage, decode_pull, find_retry_topic
from skylark.client.routing import FoundBroker
from skylark.client.session import Session
from skylark.client.subscription import Subscription
from skylark.errors import BrokerError, BrokerUnknown, NoRoute, RocketMQError
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import PullMessage, PullResult
from skylark.settings.consumer import MessageModel, PushConsumerSettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

FAILURES_TOLD_EVERY = 60
"""A broker that is away is told of once a minute for each of its queues, not every second."""

Submit = Callable[[ProcessQueue, Sequence[ReceivedMessage]], None]


class PullLoop:
    """Pulls all queues of a consumer, each in a task of its own. Loop thread.

    `repair(queue, offset)` is called when a broker says that an offset is outside the queue: the queue is
    then given up, and comes back where the broker said.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        settings: PushConsumerSettings,
        subscriptions: Mapping[str, Subscription],
        offsets: OffsetTable,
        start_offsets: StartOffsets,
        stats: ConsumeStats,
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

    async def _pull(self, request: PullRequest, subscription: Subscription) -> float:
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
        self, request: PullRequest, subscription: Subscription, result: PullResult, took_ms: float
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
        self, request: PullRequest, subscription: Subscription, result: PullResult
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
