"""SendMessage, RecallMessage and EndTransaction."""

from __future__ import annotations

import base64
import binascii
import itertools
import random
from collections.abc import Awaitable
from typing import Any

from skylark.clock import Clock
from skylark.errors import RocketMQError
from skylark.model.java import java_hash
from skylark.model.message_id import parse_offset_message_id
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.send import RecallMessage, SendMessageV2, SendResult
from skylark.protocol.requests.transaction import COMMIT, ROLLBACK, UNKNOWN, EndTransaction
from skylark.proxy.call import Call, together
from skylark.proxy.cluster import Cluster
from skylark.proxy.message_checks import accepted_types, check_message, check_topic, check_type, kind_of
from skylark.proxy.message_codec import send_request
from skylark.proxy.schema import Code, MessageType, TransactionResolution, TransactionSource, v2
from skylark.proxy.status import OK, CallRefused, common_status, refusal_of, status
from skylark.proxy.transaction_id import TransactionId
from skylark.settings.proxy import ProxySettings

_SEND_CODES: dict[int, Code] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}
_RESOLUTIONS: dict[int, int] = {
    TransactionResolution.COMMIT: COMMIT,
    TransactionResolution.ROLLBACK: ROLLBACK,
}
_MULTIPLIER = 2862933555777941757
_MASK = (1 << 64) - 1


def consistent_hash(key: int, buckets: int) -> int:
    """Return Guava's `Hashing.consistentHash`: with more buckets, few keys change theirs."""
    state, candidate = key & _MASK, 0
    while True:
        state = (_MULTIPLIER * state + 1) & _MASK
        chosen = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if not 0 <= chosen < buckets:
            return candidate
        candidate = chosen


def recall_broker(handle: str) -> str:
    """Return the broker that a recall handle names: `v1 topic broker timestamp key` in Base64.

    Raises CallRefused.
    """
    try:
        fields = base64.b64decode(handle.encode(), altchars=b"-_", validate=True).decode().split(" ")
    except (binascii.Error, ValueError):
        fields = []
    if len(fields) < 5:
        raise CallRefused(Code.INTERNAL_SERVER_ERROR, "recall handle is invalid")
    return fields[2]


class SendCalls:
    """Each message is a remoting send of its own, so that each has a result of its own."""

    def __init__(self, settings: ProxySettings, cluster: Cluster, clock: Clock) -> None:
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self._turns = itertools.count(random.randrange(1 << 20))  # noqa: S311 (spreads, protects nothing)

    def send(self, call: Call, request: Any) -> Awaitable[Any]:
        messages = request.messages
        if not messages:
            raise CallRefused(Code.MESSAGE_CORRUPTED, "no message to send")
        topic = check_topic(messages[0].topic.name)
        now_ms = self._clock.now_ms()
        if len(messages) == 1 and call.deadline is not None:
            posted = self._post(call, topic, messages[0], now_ms)
            if posted is not None:
                return posted
        return self._send_all(call, topic, messages, now_ms)

    def _post(self, call: Call, topic: str, message: Any, now_ms: int) -> Awaitable[Any] | None:
        """Send a message at once; None if its topic or the connection must be asked for first."""
        known = self._cluster.known_topic(topic)
        if known is None or not known[0].write_queues:
            return None
        route, config = known
        queue = self._queue(message, route.write_queues)
        connection = self._cluster.connection(topic, queue.broker_name)
        if connection is None:
            return None
        check_message(message, self._settings, now_ms)
        if self._settings.check_message_type:
            check_type(topic, accepted_types(config.attributes), kind_of(message))
        request: SendMessageV2 = send_request(message, queue, call.address, now_ms)

        def read(result: SendResult | RocketMQError) -> Any:
            entry = self._entry(message, queue, result)
            return v2.SendMessageResponse(status=entry.status, entries=[entry])

        return self._cluster.post(connection, request, read)

    async def _send_all(self, call: Call, topic: str, messages: Any, now_ms: int) -> Any:
        if any(message.topic.name != topic for message in messages):
            raise CallRefused(Code.MESSAGE_CORRUPTED, "topic in message is not same")
        for message in messages:
            check_message(message, self._settings, now_ms)
        await self._check_types(topic, messages)
        queues = (await self._cluster.route(topic)).write_queues
        if not queues:
            raise CallRefused(Code.FORBIDDEN, "no writable queue")
        timeout_s = call.remaining_s(self._clock.monotonic())
        entries = await together(
            [self._send(message, self._queue(message, queues), call.address, now_ms, timeout_s)
             for message in messages]
        )  # fmt: skip
        return v2.SendMessageResponse(status=common_status(each.status for each in entries), entries=entries)

    async def _check_types(self, topic: str, messages: Any) -> None:
        if not self._settings.check_message_type:
            return
        config = await self._cluster.topic_config(topic)
        if config is None:
            raise CallRefused(
                Code.TOPIC_NOT_FOUND, f"No topic route info in name server for the topic: {topic}"
            )
        accepted = accepted_types(config.attributes)
        for message in messages:
            check_type(topic, accepted, kind_of(message))

    def _queue(self, message: Any, queues: tuple[MessageQueue, ...]) -> MessageQueue:
        system = message.system_properties
        key = system.message_group or system.lite_topic
        if key:
            return queues[consistent_hash(java_hash(key), len(queues))]
        return queues[next(self._turns) % len(queues)]

    async def _send(
        self, message: Any, queue: MessageQueue, host: str, now_ms: int, timeout_s: float | None
    ) -> Any:
        request: SendMessageV2 = send_request(message, queue, host, now_ms)
        result: SendResult | RocketMQError
        try:
            result = await self._cluster.call(queue.broker_name, request, timeout_s=timeout_s)
        except RocketMQError as error:
            result = error
        return self._entry(message, queue, result)

    @staticmethod
    def _entry(message: Any, queue: MessageQueue, result: SendResult | RocketMQError) -> Any:
        if isinstance(result, RocketMQError):
            refusal = refusal_of(result)
            return v2.SendResultEntry(status=status(refusal.code, refusal.message))
        code = _SEND_CODES.get(result.code, Code.INTERNAL_SERVER_ERROR)
        if code is not Code.OK:
            return v2.SendResultEntry(status=status(code))
        reply, system = result.reply, message.system_properties
        entry = v2.SendResultEntry(
            status=OK,
            message_id=system.message_id,
            transaction_id=system.message_id,  # of every message, as Apache's
            offset=reply.queue_offset,
            recall_handle=reply.recall_handle or "",
        )
        if system.message_type == MessageType.TRANSACTION:
            _, physical_offset = parse_offset_message_id(reply.msg_id)
            entry.transaction_id = str(
                TransactionId(queue.broker_name, reply.queue_offset, physical_offset, system.message_id)
            )
        return entry

    async def recall(self, call: Call, request: Any) -> Any:
        """Cancel a delayed message. The handle names its broker."""
        topic = check_topic(request.topic.name)
        if self._settings.check_message_type:
            config = await self._cluster.topic_config(topic)
            check_type(topic, accepted_types({} if config is None else config.attributes), MessageType.DELAY)
        await self._cluster.route(topic)
        recall = RecallMessage(topic=topic, recall_handle=request.recall_handle, producer_group=topic)
        reply = await self._cluster.call(
            recall_broker(request.recall_handle),
            recall,
            timeout_s=call.remaining_s(self._clock.monotonic()),
        )
        return v2.RecallMessageResponse(status=OK, message_id=reply.msg_id)

    async def end_transaction(self, _: Call, request: Any) -> Any:
        """Commit or roll back. The reply does not wait for the broker, which asks again if it is in doubt."""
        topic = check_topic(request.topic.name)
        transaction = TransactionId.parse(request.transaction_id)
        await self._cluster.route(topic)
        await self._cluster.notify(
            transaction.broker,
            EndTransaction(
                producer_group=topic,
                queue_offset=transaction.queue_offset,
                physical_offset=transaction.physical_offset,
                commit_or_rollback=_RESOLUTIONS.get(request.resolution, UNKNOWN),
                msg_id=request.message_id,
                from_transaction_check=request.source == TransactionSource.SOURCE_SERVER_CHECK,
                transaction_id=transaction.unique_key,
                topic=topic,
            ),
        )
        return v2.EndTransactionResponse(status=OK)
