"""Consumption by pop: receive, acknowledge, change the invisible time, forward to the dead letters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from skylark.clock import Clock
from skylark.errors import BadBody, BrokerError, RemoteProtocolError, RocketMQError
from skylark.model.lite_topic import LIGHT_QUEUE_ID, light_place
from skylark.model.message import PROPERTY_LITE_TOPIC, PROPERTY_TAGS, StoredMessage, encode_properties
from skylark.model.names import NO_RETRY
from skylark.model.record import decode_all
from skylark.model.tag_expression import split_tags
from skylark.protocol.codes import ResponseCode
from skylark.protocol.pop_handle import (
    PROPERTY_HANDLE,
    PopHandle,
    offset_key,
    queue_key,
    read_order_counts,
    read_starts,
)
from skylark.protocol.requests.lite import PopLiteMessage, PopLiteResult
from skylark.protocol.requests.pop import AckMessage, PopMessage, PopResult
from skylark.protocol.requests.send import ConsumerSendMsgBack
from skylark.proxy.call import Call, Send, together
from skylark.proxy.clients import ClientTable
from skylark.proxy.cluster import Cluster
from skylark.proxy.message_checks import check_expression, check_group, check_topic
from skylark.proxy.message_codec import message_id_of, received
from skylark.proxy.renewals import Renewals, change_invisible
from skylark.proxy.schema import Code, v2
from skylark.proxy.status import OK, CallRefused, common_status, refusal_of, status
from skylark.settings.proxy import ProxySettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

FIRST_POLL_VERSION = "5.0.3"
"""Clients from this version on know ILLEGAL_POLLING_TIME."""
FROM_END = 1
DEAD_LETTER_LEVEL = -1
POLL_MARGIN_S = 3.0
"""A broker answers a held pop at the end of its time; this much later the request has failed."""


@dataclass(frozen=True, slots=True)
class Popped:
    """A message and what acknowledges it."""

    stored: StoredMessage
    handle: PopHandle
    attempt: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client wants to receive."""

    client_id: str
    group: str
    topic: str
    broker: str
    tags: tuple[str, ...] | None
    attempts_max: int
    is_renewed: bool


def read_handle(text: str, lite_topic: str = "") -> PopHandle:
    """Raises CallRefused for a text that is not a handle."""
    try:
        handle = PopHandle.decode(text)
        if lite_topic:
            handle = replace(handle, lite_topic=lite_topic)
    except RemoteProtocolError as error:
        raise CallRefused(Code.INVALID_RECEIPT_HANDLE, str(error)) from None
    if handle.queue_offset < 0:
        raise CallRefused(Code.INVALID_RECEIPT_HANDLE, f"receipt handle {text[:100]!r} has too few fields")
    return handle


def popped_messages(result: PopResult, broker: str) -> Iterator[Popped]:
    """Yield the messages of a pop with their handles. Raises CorruptRecord, RemoteProtocolError."""
    reply = result.reply
    assert reply is not None
    starts = read_starts(reply.start_offset_info)
    counts = read_order_counts(reply.order_count_info)
    for stored in decode_all(result.records):
        given = stored.properties.get(PROPERTY_HANDLE)
        attempt = stored.reconsume_times
        if given is not None:
            handle = replace(PopHandle.decode(given), physical_offset=stored.physical_offset)
        else:
            queue_id, queue_offset = stored.queue_id, stored.queue_offset
            handle = PopHandle(
                starts.get((NO_RETRY, queue_id), queue_offset),
                reply.pop_time,
                reply.invisible_time,
                reply.revive_queue_id,
                NO_RETRY,
                broker,
                queue_id,
                queue_offset,
                stored.physical_offset,
            )
            in_queue = counts.get(queue_key(NO_RETRY, queue_id), 0)
            attempt = max(attempt, counts.get(offset_key(NO_RETRY, queue_id, queue_offset), in_queue))
        yield Popped(stored, handle, attempt + 1)


def popped_lite_messages(result: PopLiteResult, broker: str) -> Iterator[Popped]:
    """Yield the messages of a pop of lite topics. Raises CorruptRecord, RemoteProtocolError."""
    reply = result.reply
    assert reply is not None
    counts = (reply.order_count_info or "").split(";")
    for index, stored in enumerate(decode_all(result.records)):
        place = light_place(stored.topic, encode_properties(stored.properties))
        if place is None:
            raise RemoteProtocolError(f"the record at {stored.physical_offset} is of no lite topic")
        handle = PopHandle(
            0, reply.pop_time, reply.invisible_time, reply.revive_queue_id, NO_RETRY, broker, LIGHT_QUEUE_ID,
            place[1], stored.physical_offset, stored.properties.get(PROPERTY_LITE_TOPIC),
        )  # fmt: skip
        # Apache's brokers name the offset before the count.
        words = counts[index].split(" ") if index < len(counts) else [""]
        yield Popped(stored, handle, int(words[-1] if words[-1].isdecimal() else 0) + 1)


def _popped(result: PopResult | PopLiteResult, broker: str) -> Iterator[Popped]:
    if isinstance(result, PopLiteResult):
        return popped_lite_messages(result, broker)
    return popped_messages(result, broker)


def ack_request(group: str, topic: str, handle: PopHandle) -> AckMessage:
    """Raises RemoteProtocolError for a handle that fits no topic."""
    return AckMessage(
        consumer_group=group,
        topic=handle.popped_from(topic, group),
        queue_id=handle.queue_id,
        extra_info=handle.encode(),
        queue_offset=handle.queue_offset,
        lite_topic=handle.lite_topic,
    )


def _ack_result(entry: Any, error: RocketMQError | None = None) -> Any:
    if error is None:
        found = OK
    elif isinstance(error, BrokerError):
        found = status(Code.INTERNAL_SERVER_ERROR, f"ack failed: {error.remark or 'status is abnormal'}")
    else:
        refusal = refusal_of(error)
        found = status(refusal.code, refusal.message)
    return v2.AckMessageResultEntry(
        status=found, message_id=entry.message_id, receipt_handle=entry.receipt_handle
    )


class ReceiveCalls:
    """A receive is one pop of one broker, which holds it until there are messages."""

    def __init__(
        self,
        settings: ProxySettings,
        cluster: Cluster,
        clients: ClientTable,
        renewals: Renewals,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._clients = clients
        self._renewals = renewals
        self._clock = clock
        self._tasks = tasks
        self._popping: set[asyncio.Task[PopResult | PopLiteResult]] = set()

    # --- Receiving ---

    async def receive(self, call: Call, request: Any, send: Send) -> None:
        poll_ms = self._poll_ms(call, request)
        topic = check_topic(request.message_queue.topic.name)
        group = check_group(request.group.name)
        is_renewed = request.auto_renew and self._settings.renew
        invisible_ms = self._settings.invisible_ms if is_renewed else self._invisible_ms(request)
        expression_type, expression = check_expression(request.filter_expression)
        is_ordered, attempts_max = await self._group(call.client_id, group, topic)
        broker = request.message_queue.broker.name
        if not broker:
            broker = await self._cluster.readable_broker(topic)
        await self._cluster.route(topic)
        common = {
            "consumer_group": group,
            "topic": topic,
            "max_msg_nums": max(1, min(request.batch_size, self._settings.receive_batch)),
            "invisible_time": invisible_ms,
            "poll_time": poll_ms,
            "born_time": self._clock.now_ms(),
            "attempt_id": request.attempt_id if request.HasField("attempt_id") else None,
        }
        pop: PopMessage | PopLiteMessage
        if self._is_lite(call.client_id):
            pop = PopLiteMessage(client_id=call.client_id, **common)
        else:
            pop = PopMessage(
                queue_id=-1, init_mode=FROM_END, exp_type=expression_type, exp=expression, order=is_ordered,
                **common,
            )  # fmt: skip
        popping = asyncio.get_running_loop().create_task(
            self._cluster.call(broker, pop, timeout_s=poll_ms / 1000 + POLL_MARGIN_S)
        )
        self._popping.add(popping)
        popping.add_done_callback(self._popping.discard)
        wanted = Wanted(
            call.client_id,
            group,
            topic,
            broker,
            split_tags(expression) if expression_type == "TAG" else None,
            attempts_max,
            is_renewed=is_renewed,
        )
        try:
            # Shielded: a pop that was sent may find messages although its client has gone.
            result = await asyncio.shield(popping)
        except asyncio.CancelledError:
            popping.add_done_callback(lambda done: self._abandoned(done, wanted))
            raise
        await self._deliver(send, result, wanted)

    def _is_lite(self, client_id: str) -> bool:
        """Return whether a client consumes lite topics. Raises CallRefused if it acknowledges too little."""
        client = self._clients.get(client_id)
        if client is None or not client.is_lite:
            return False
        kept, most = self._renewals.kept_of(client_id), self._settings.lite_unacknowledged_max
        if kept > most:
            raise CallRefused(
                Code.FORBIDDEN,
                f"The client [{client_id}] has too many unacked messages. Unacked count: {kept}",
            )
        return True

    def _poll_ms(self, call: Call, request: Any) -> int:
        """Return how long to wait for messages. Raises CallRefused if the deadline is too near."""
        own = self._settings
        left_s = call.remaining_s(self._clock.monotonic())
        left_ms = None if left_s is None else int(left_s * 1000)
        if request.HasField("long_polling_timeout"):
            wanted_ms = request.long_polling_timeout.ToMilliseconds()
        elif left_ms is not None:
            client = self._clients.get(call.client_id)
            request_ms = 0
            if client is not None and client.settings is not None:
                request_ms = client.settings.request_timeout.ToMilliseconds()
            wanted_ms = left_ms - request_ms // 2
        else:
            wanted_ms = own.poll_ms_max
        wanted_ms = max(own.poll_ms_min, min(wanted_ms, own.poll_ms_max))
        if left_ms is None or wanted_ms <= left_ms:
            return int(wanted_ms)
        if left_ms >= own.poll_ms_min:
            return left_ms
        is_new = call.version >= FIRST_POLL_VERSION
        raise CallRefused(
            Code.ILLEGAL_POLLING_TIME if is_new else Code.BAD_REQUEST,
            "The deadline time remaining is not enough for polling, please check network condition",
        )

    def _invisible_ms(self, request: Any) -> int:
        invisible_ms = int(request.invisible_duration.ToMilliseconds())
        low, high = self._settings.invisible_ms_min, self._settings.invisible_ms_max
        if not low <= invisible_ms <= high:
            raise CallRefused(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"invisible time of {invisible_ms} ms is not in {low} to {high} ms",
            )
        return invisible_ms

    async def _group(self, client_id: str, group: str, topic: str) -> tuple[bool, int]:
        """Return whether a group consumes in order, and how often it is given a message."""
        client = self._clients.get(client_id)
        if client is not None and client.group == group:
            settings = client.settings
            return settings.subscription.fifo, settings.backoff_policy.max_attempts
        config = await self._cluster.group_config(group, topic)
        return config.consume_message_orderly, config.retry_max_times + 1

    async def _deliver(self, send: Send, result: PopResult | PopLiteResult, wanted: Wanted) -> None:
        if result.code == ResponseCode.POLLING_FULL:
            raise CallRefused(Code.TOO_MANY_REQUESTS, "polling full")
        group, topic = wanted.group, wanted.topic
        popped = []
        if result.code == ResponseCode.SUCCESS:
            popped = list(_popped(result, wanted.broker))
        deliverable: list[tuple[PopHandle, bytes]] = []
        for each in popped:
            if wanted.tags is not None and each.stored.properties.get(PROPERTY_TAGS) not in wanted.tags:
                self._tasks.spawn(self._discard(group, topic, each.handle))
            elif each.attempt > wanted.attempts_max:
                self._tasks.spawn(self._give_up(group, topic, each))
            else:
                text, now_ms = each.handle.encode(), self._clock.now_ms()
                try:
                    message = received(each.stored, topic, attempt=each.attempt, handle=text, now_ms=now_ms)
                except BadBody as error:
                    log.warning("message cannot be delivered group=%s topic=%s error=%s", group, topic, error)
                    continue
                deliverable.append((each.handle, message))
        if not deliverable:
            text = "no match message" if popped else "no new message"
            raise CallRefused(Code.MESSAGE_NOT_FOUND, text)
        await self._write(send, deliverable, wanted)

    async def _write(self, send: Send, deliverable: list[tuple[PopHandle, bytes]], wanted: Wanted) -> None:
        """Send messages together; if the client leaves before the end, all become visible soon."""
        end = v2.ReceiveMessageResponse()
        end.delivery_timestamp.FromMilliseconds(self._clock.now_ms())
        try:
            await send(v2.ReceiveMessageResponse(status=OK))
            await send([*(message for _, message in deliverable), end.SerializeToString()])
        except BaseException:
            for handle, _ in deliverable:
                self._tasks.spawn(self._release(wanted.group, wanted.topic, handle))
            raise
        if wanted.is_renewed:
            for handle, _ in deliverable:
                self._renewals.keep(wanted.client_id, wanted.group, wanted.topic, handle)

    # --- Messages that are not delivered ---

    def _abandoned(self, done: asyncio.Task[PopResult | PopLiteResult], wanted: Wanted) -> None:
        """Give back what a pop found after its client had gone."""
        if done.cancelled() or done.exception() is not None or done.result().code != ResponseCode.SUCCESS:
            return
        for popped in _popped(done.result(), wanted.broker):
            self._tasks.spawn(self._release(wanted.group, wanted.topic, popped.handle))

    async def _release(self, group: str, topic: str, handle: PopHandle) -> None:
        try:
            await change_invisible(
                self._cluster, group, topic, handle, self._settings.released_ms, timeout_s=None
            )
        except RocketMQError as error:
            log.info("message not released group=%s error=%s", group, error)

    async def _discard(self, group: str, topic: str, handle: PopHandle) -> None:
        """Acknowledge a message whose tag only has the hash of a wanted one."""
        try:
            await self._ack(group, topic, handle, None)
        except RocketMQError as error:
            log.info("filtered message not acknowledged group=%s error=%s", group, error)

    async def _give_up(self, group: str, topic: str, popped: Popped) -> None:
        """Move a message that was delivered too often to the dead letters."""
        try:
            await self._to_dead_letters(group, topic, popped.handle, message_id_of(popped.stored), None)
        except RocketMQError as error:
            log.warning("message not moved to dead letters group=%s error=%s", group, error)

    # --- Answers of consumers ---

    def ack(self, call: Call, request: Any) -> Awaitable[Any]:
        topic, group = check_topic(request.topic.name), check_group(request.group.name)
        entries = request.entries
        if not entries:
            raise CallRefused(Code.INTERNAL_SERVER_ERROR, "no message to acknowledge")
        if len(entries) == 1 and call.deadline is not None:
            posted = self._post_ack(call, group, topic, entries[0])
            if posted is not None:
                return posted
        return self._ack_all(call, group, topic, entries)

    def _post_ack(self, call: Call, group: str, topic: str, entry: Any) -> Awaitable[Any] | None:
        """Acknowledge a message at once; None if its broker is not known, or the handle is refused."""
        try:
            handle = read_handle(entry.receipt_handle, entry.lite_topic)
            connection = self._cluster.connection(topic, handle.broker_name)
            if connection is None:
                return None
            handle = self._renewals.take(call.client_id, handle)
            self._check_expiry(handle)
            request = ack_request(group, topic, handle)
        except RocketMQError:
            return None

        def read(result: RocketMQError | None) -> Any:
            found = _ack_result(entry, result)
            return v2.AckMessageResponse(status=found.status, entries=[found])

        return self._cluster.post(connection, request, read)

    async def _ack_all(self, call: Call, group: str, topic: str, entries: Any) -> Any:
        await self._cluster.route(topic)
        found = await together([self._ack_entry(call, group, topic, entry) for entry in entries])
        return v2.AckMessageResponse(status=common_status(each.status for each in found), entries=found)

    async def _ack_entry(self, call: Call, group: str, topic: str, entry: Any) -> Any:
        try:
            handle = self._renewals.take(call.client_id, read_handle(entry.receipt_handle, entry.lite_topic))
            self._check_expiry(handle)
            await self._ack(group, topic, handle, call.remaining_s(self._clock.monotonic()))
        except RocketMQError as error:
            return _ack_result(entry, error)
        return _ack_result(entry)

    def _check_expiry(self, handle: PopHandle) -> None:
        if handle.revive_time <= self._clock.now_ms():
            raise CallRefused(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")

    async def _ack(self, group: str, topic: str, handle: PopHandle, timeout_s: float | None) -> None:
        await self._cluster.call(handle.broker_name, ack_request(group, topic, handle), timeout_s=timeout_s)

    async def change_invisible(self, call: Call, request: Any) -> Any:
        topic, group = check_topic(request.topic.name), check_group(request.group.name)
        invisible_ms = int(request.invisible_duration.ToMilliseconds())
        if not 0 <= invisible_ms <= self._settings.invisible_ms_max:
            raise CallRefused(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"invisible time of {invisible_ms} ms is not in 0 to {self._settings.invisible_ms_max} ms",
            )
        # Java's client does not name the lite topic here: the renewed handle knows it.
        handle = self._renewals.take(call.client_id, read_handle(request.receipt_handle, request.lite_topic))
        self._check_expiry(handle)
        await self._cluster.route(topic)
        changed = await change_invisible(
            self._cluster, group, topic, handle, invisible_ms,
            timeout_s=call.remaining_s(self._clock.monotonic()), is_suspended=request.suspend,
        )  # fmt: skip
        return v2.ChangeInvisibleDurationResponse(status=OK, receipt_handle=changed.encode())

    async def forward(self, call: Call, request: Any) -> Any:
        topic, group = check_topic(request.topic.name), check_group(request.group.name)
        handle = self._renewals.take(call.client_id, read_handle(request.receipt_handle, request.lite_topic))
        if handle.physical_offset is None:
            raise CallRefused(Code.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        await self._cluster.route(topic)
        await self._to_dead_letters(
            group, topic, handle, request.message_id, call.remaining_s(self._clock.monotonic())
        )
        return v2.ForwardMessageToDeadLetterQueueResponse(status=OK)

    async def _to_dead_letters(
        self, group: str, topic: str, handle: PopHandle, message_id: str, timeout_s: float | None
    ) -> None:
        assert handle.physical_offset is not None
        request = ConsumerSendMsgBack(
            group=group,
            physical_offset=handle.physical_offset,
            delay_level=DEAD_LETTER_LEVEL,
            origin_msg_id=message_id,
            origin_topic=handle.popped_from(topic, group),
            max_reconsume_times=0,
        )
        await self._cluster.call(handle.broker_name, request, timeout_s=timeout_s)
        await self._ack(group, topic, handle, timeout_s)
