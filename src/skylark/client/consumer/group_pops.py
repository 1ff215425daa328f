"""GroupPops: pops of one group from the brokers of its topics, and what is done with a popped message."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from skylark.client.consumer.subscription import TopicSubscription
from skylark.client.received_message import ReceivedMessage, decode_pull
from skylark.clock import Clock
from skylark.errors import ClientError, RemoteProtocolError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.pop_handle import (
    PopHandle,
    find_handle,
    offset_key,
    queue_key,
    read_order_counts,
    read_starts,
)
from skylark.protocol.requests.pop import (
    INIT_MAX,
    INIT_MIN,
    AckMessage,
    ChangeMessageInvisibleTime,
    Notification,
    NotificationReply,
    PopMessage,
    PopReply,
    PopResult,
)

ANY_QUEUE = -1
DEAD_LETTER_LEVEL = -1
"""The delay level that sends a message to the dead letters of its group."""
_SIZE_AND_QUEUE = struct.Struct(">i8xi")


class CallBroker(Protocol):
    """Sends a request to an address. Raises BrokerError, RemotingError."""

    def __call__(self, address: str, request: Any, *, timeout_ms: int) -> Awaitable[Any]: ...


class PopTarget(NamedTuple):
    """A topic on a broker, which one request pops."""

    subscription: TopicSubscription
    broker_name: str
    address: str


@dataclass(frozen=True, slots=True)
class PopTerms:
    """What a pop asks for."""

    messages_max: int
    invisible_ms: int
    from_end: bool = False
    """Where a group begins that has no offsets."""
    is_ordered: bool = False


class GroupPops:
    """For one event loop. Several calls may run at the same time. Close it once."""

    def __init__(
        self,
        group: str,
        call: CallBroker,
        bury: Callable[[ReceivedMessage], Awaitable[bool]],
        clock: Clock,
        answer_timeout_ms: int,
    ) -> None:
        """`bury` makes a dead letter of a message that has failed too often, and returns whether it did."""
        self._group = group
        self._call = call
        self._bury = bury
        self._clock = clock
        self._answer_timeout_ms = answer_timeout_ms
        self._notices: dict[PopTarget, asyncio.Task[NotificationReply]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether brokers hold requests, which the next call uses."""
        return bool(self._notices)

    def close(self) -> None:
        for notice in list(self._notices.values()):
            notice.cancel()

    # --- Receiving ---

    async def receive(
        self, targets: Sequence[PopTarget], terms: PopTerms, wait_ms: int
    ) -> list[ReceivedMessage]:
        """Return messages of one of the targets; wait for them up to `wait_ms`, then return none.

        Raises BrokerError, RemotingError.
        """
        if len(targets) == 1:
            return await self._pop(targets[0], terms, wait_ms)
        deadline_ms = self._clock.now_ms() + wait_ms
        while True:
            for target in targets:
                found = await self._pop(target, terms, 0)
                if found:
                    return found
            left_ms = deadline_ms - self._clock.now_ms()
            if left_ms <= 0 or not await self._wait_for_any(targets, terms, left_ms):
                return []

    async def _pop(self, target: PopTarget, terms: PopTerms, wait_ms: int) -> list[ReceivedMessage]:
        wanted = target.subscription
        request = PopMessage(
            consumer_group=self._group,
            topic=wanted.topic,
            queue_id=ANY_QUEUE,
            max_msg_nums=terms.messages_max,
            invisible_time=terms.invisible_ms,
            poll_time=wait_ms,
            born_time=self._clock.now_ms(),
            init_mode=INIT_MAX if terms.from_end else INIT_MIN,
            exp_type=wanted.expression_type,
            exp=wanted.expression,
            order=terms.is_ordered,
        )
        result: PopResult = await self._call(
            target.address, request, timeout_ms=wait_ms + self._answer_timeout_ms
        )
        if result.code != ResponseCode.SUCCESS or result.reply is None:
            return []
        messages = popped_messages(result, result.reply, wanted.topic, target.broker_name)
        matching = wanted.filtered(messages)
        if len(matching) < len(messages):  # a tag has the hash of a wanted one
            kept = set(map(id, matching))
            for message in messages:
                if id(message) not in kept:
                    await self.ack(wanted.topic, handle_of(message), target.address)
        good = []
        for message in matching:
            if message.reconsume_times and await self._bury(message):
                await self.ack(wanted.topic, handle_of(message), target.address)
            else:
                good.append(message)
        return good

    async def _wait_for_any(self, targets: Sequence[PopTarget], terms: PopTerms, wait_ms: int) -> bool:
        """Wait until a broker has messages; False at the timeout. Nothing is popped meanwhile."""
        failure: BaseException | None = None
        deadline_ms = self._clock.now_ms() + wait_ms
        earlier = {self._notices[target]: target for target in targets if target in self._notices}
        waits = set(earlier) | {self._notice(target, terms, wait_ms) for target in targets}
        while waits and (left_ms := deadline_ms - self._clock.now_ms()) > 0:
            done, waits = await asyncio.wait(
                waits, timeout=left_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
            for notice in done:
                if notice.cancelled():
                    continue
                if (error := notice.exception()) is not None:
                    failure = error
                elif notice.result().has_msg:
                    return True
                elif notice in earlier:
                    waits.add(self._notice(earlier[notice], terms, left_ms))
        if failure is not None:
            raise failure
        return False

    def _notice(self, target: PopTarget, terms: PopTerms, wait_ms: int) -> asyncio.Task[NotificationReply]:
        """Return the request that a broker answers when a topic has messages: one at a time for all calls."""
        notice = self._notices.get(target)
        if notice is None:
            request = Notification(
                consumer_group=self._group,
                topic=target.subscription.topic,
                queue_id=ANY_QUEUE,
                poll_time=wait_ms,
                born_time=self._clock.now_ms(),
                order=terms.is_ordered,
            )
            timeout_ms = wait_ms + self._answer_timeout_ms
            notice = asyncio.ensure_future(self._call(target.address, request, timeout_ms=timeout_ms))
            self._notices[target] = notice
            notice.add_done_callback(lambda done: self._forget_notice(target, done))
        return notice

    def _forget_notice(self, target: PopTarget, notice: asyncio.Task[NotificationReply]) -> None:
        del self._notices[target]
        if not notice.cancelled():
            notice.exception()  # a call that waits for it reports the failure; others do not care

    # --- Receipts ---

    async def ack(self, topic: str, handle: PopHandle, address: str) -> None:
        """Acknowledge a message: it is not delivered again. Raises BrokerError, RemotingError."""
        request = AckMessage(
            consumer_group=self._group,
            topic=handle.popped_from(topic, self._group),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            queue_offset=handle.queue_offset,
        )
        await self._call(address, request, timeout_ms=self._answer_timeout_ms)

    async def hide(self, topic: str, handle: PopHandle, address: str, invisible_ms: int) -> PopHandle:
        """Hide a message for this time from now on, and return its new handle. Raises as `ack` does."""
        request = ChangeMessageInvisibleTime(
            consumer_group=self._group,
            topic=handle.popped_from(topic, self._group),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            queue_offset=handle.queue_offset,
            invisible_time=invisible_ms,
        )
        reply = await self._call(address, request, timeout_ms=self._answer_timeout_ms)
        return handle.changed(reply.pop_time, reply.invisible_time, reply.revive_queue_id)


def in_turn(targets: Sequence[PopTarget], turn: int) -> list[PopTarget]:
    """Return the targets, another first with each turn."""
    first = turn % len(targets)
    return [*targets[first:], *targets[:first]]


def handle_of(message: ReceivedMessage) -> PopHandle:
    """Raises ClientError for a message that was not popped."""
    if message.handle is None:
        raise ClientError(f"message {message.message_id} has no receipt; it was not received with a lease")
    return message.handle


def popped_messages(
    result: PopResult, reply: PopReply, topic: str, broker_name: str
) -> list[ReceivedMessage]:
    """Return the messages of a pop, each with its handle. Raises RemoteProtocolError, CorruptRecord."""
    data = bytes(result.records)
    starts, counts = read_starts(reply.start_offset_info), read_order_counts(reply.order_count_info)
    messages = list(decode_pull(data, MessageQueue(topic, broker_name, ANY_QUEUE)))
    queue_ids = _queue_ids(data)
    if len(queue_ids) != len(messages):
        raise RemoteProtocolError(f"{len(queue_ids)} records hold {len(messages)} messages")
    queues: dict[int, MessageQueue] = {}
    for message, queue_id in zip(messages, queue_ids, strict=True):
        queue = queues.get(queue_id)
        if queue is None:
            queue = queues[queue_id] = MessageQueue(topic, broker_name, queue_id)
        message.queue = queue
        text = find_handle(message.properties_text)
        if text is not None:
            message.handle = PopHandle.decode(text.decode())
            continue
        offset = message.queue_offset
        message.handle = PopHandle(
            starts.get(("0", queue_id), offset), reply.pop_time, reply.invisible_time, reply.revive_queue_id,
            "0", broker_name, queue_id, offset,
        )  # fmt: skip
        if counts:
            times = counts.get(offset_key("0", queue_id, offset), counts.get(queue_key("0", queue_id), 0))
            message.reconsume_times = times
    return messages


def _queue_ids(data: bytes) -> list[int]:
    """Return the queue id of each record."""
    ids, position = [], 0
    while position < len(data):
        size, queue_id = _SIZE_AND_QUEUE.unpack_from(data, position)
        ids.append(queue_id)
        position += size
    return ids
