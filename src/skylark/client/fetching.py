"""Fetching ahead for a pull consumer: one task for each queue, all at the same time, within limits."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from skylark.client.process_queue import MEBIBYTE
from skylark.client.pulled_queue import Batch, PulledQueue
from skylark.client.pulling import PullStatus, SuggestedBrokers, bulk_bytes, pull_flags, pull_status
from skylark.client.received import ReceivedMessage, decode_pull
from skylark.client.session import Session
from skylark.client.subscription import Subscription
from skylark.errors import BrokerError, BrokerUnknown, RocketMQError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import LitePullMessage, PullMessage, PullResult
from skylark.settings.pull_consumer import PullConsumerSettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

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
        subscription: Subscription,
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


class Fetcher:
    """The queues that a consumer holds, and the tasks that fetch their messages. Loop thread."""

    def __init__(
        self,
        puller: Puller,
        settings: PullConsumerSettings,
        *,
        subscription_of: Callable[[str], Subscription],
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

    async def take(self, timeout_s: float | None) -> Batch | None:
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
