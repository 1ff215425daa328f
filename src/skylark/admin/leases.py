"""Receive and acknowledge without a consumer: brokers keep the leases, so anybody may acknowledge."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from skylark.admin.groups import AsyncGroups
from skylark.admin.server_calls import ServerCalls
from skylark.client.consumer.send_back import SendBack
from skylark.client.consumer.simple_consumer import ANY_QUEUE, DEAD_LETTER_LEVEL, popped_messages
from skylark.client.consumer.subscription import TopicSubscription, by_sql, by_tags
from skylark.client.received_message import ReceivedMessage
from skylark.errors import ClientError, NoRoute, RemoteProtocolError
from skylark.model.tag_expression import MATCH_ALL
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.pop_handle import PopHandle
from skylark.protocol.requests.pop import (
    INIT_MAX,
    INIT_MIN,
    POP_MESSAGES_MAX,
    AckMessage,
    ChangeMessageInvisibleTime,
    PopMessage,
)

INVISIBLE_MS = 30_000
ANSWER_TIMEOUT_MS = 5000
LOOK_EVERY_S = 0.2
"""How often the brokers of a topic are asked in turn, if there are several; a single one wakes us."""


@dataclass(frozen=True, slots=True)
class LeaseReceipt:
    """Proves the lease of one message. As text, it goes through JSON and addresses."""

    topic: str
    handle: PopHandle

    @property
    def text(self) -> str:
        return f"{self.topic} {self.handle.encode()}"

    @staticmethod
    def read(text: str) -> LeaseReceipt:
        """Raises ClientError."""
        topic, _, handle = text.partition(" ")
        try:
            return LeaseReceipt(topic, PopHandle.decode(handle))
        except RemoteProtocolError:
            raise ClientError(f"invalid receipt {text[:128]!r}; pass one that receive returned") from None


class AsyncLeases:
    """Part of `AsyncAdmin`. The group must exist, and its brokers must have RocketMQ 5's pop."""

    def __init__(self, servers: ServerCalls, groups: AsyncGroups) -> None:
        self._servers = servers
        self._groups = groups
        self._turn = 0

    async def receive(
        self,
        group: str,
        topic: str,
        *,
        expression: str = MATCH_ALL,
        sql: str | None = None,
        messages_max: int = POP_MESSAGES_MAX,
        invisible_ms: int = INVISIBLE_MS,
        wait_ms: int = 0,
        from_end: bool = False,
    ) -> list[ReceivedMessage]:
        """Up to `messages_max` (1 to 32) messages, which others do not get for `invisible_ms`.

        A group without offsets begins at the first message, or `from_end`. Messages that were delivered more
        often than the group allows become dead letters. Raises SettingsError for an invalid expression,
        NoRoute, BrokerError, RemotingError.
        """
        now_ms = round(time.time() * 1000)
        wanted = (
            by_tags(topic, expression, now_ms=now_ms) if sql is None else by_sql(topic, sql, now_ms=now_ms)
        )
        route = await self._servers.route(topic)
        brokers = list(dict.fromkeys(queue.broker_name for queue in route.queues()))
        if not brokers:
            raise NoRoute(topic)
        self._turn += 1
        brokers = brokers[self._turn % len(brokers) :] + brokers[: self._turn % len(brokers)]
        until_s = time.monotonic() + wait_ms / 1000
        while True:
            for broker in brokers:
                request = PopMessage(
                    consumer_group=group,
                    topic=topic,
                    queue_id=ANY_QUEUE,
                    max_msg_nums=messages_max,
                    invisible_time=invisible_ms,
                    poll_time=wait_ms if len(brokers) == 1 else 0,
                    born_time=round(time.time() * 1000),
                    init_mode=INIT_MAX if from_end else INIT_MIN,
                    exp_type=wanted.expression_type,
                    exp=wanted.expression,
                )
                if found := await self._pop(group, wanted, broker, route.address(broker) or "", request):
                    return found
            if len(brokers) == 1 or time.monotonic() >= until_s:
                return []
            await asyncio.sleep(LOOK_EVERY_S)

    async def _pop(
        self, group: str, wanted: TopicSubscription, broker: str, address: str, request: PopMessage
    ) -> list[ReceivedMessage]:
        timeout_ms = request.poll_time + ANSWER_TIMEOUT_MS
        result = await self._servers.ask(address, request, timeout_ms=timeout_ms)
        if result.code != ResponseCode.SUCCESS or result.reply is None:
            return []
        messages = popped_messages(result, result.reply, wanted.topic, broker)
        kept = {id(message) for message in wanted.filtered(messages)}
        good = []
        for message in messages:
            if id(message) not in kept:  # the tag has the hash of a wanted one
                await self.ack(group, receipt_of(message))
            elif not message.reconsume_times or not await self._died(group, message):
                good.append(message)
        return good

    async def _died(self, group: str, message: ReceivedMessage) -> bool:
        """Whether a message that failed too often is a dead letter now."""
        configs = (await self._groups.config(group)).answers.values()
        limit = max((config.retries_max for config in configs), default=0)
        session = self._servers.session
        if message.reconsume_times < limit or session is None:
            return False
        sender = SendBack(session, group, attempts_max=limit, timeout_ms=ANSWER_TIMEOUT_MS)
        if await sender.send_back(message, DEAD_LETTER_LEVEL):
            await self.ack(group, receipt_of(message))
            return True
        return False

    async def ack(self, group: str, receipt: LeaseReceipt) -> None:
        """The message is not delivered again. Raises NoRoute, ClientError, BrokerError, RemotingError."""
        handle = receipt.handle
        request = AckMessage(
            consumer_group=group,
            topic=handle.popped_from(receipt.topic, group),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            queue_offset=handle.queue_offset,
        )
        await self._servers.ask(await self._address(receipt), request)

    async def hide(self, group: str, receipt: LeaseReceipt, invisible_ms: int) -> LeaseReceipt:
        """Lease the message for this time from now on; 0 has it delivered again. The old receipt is void."""
        handle = receipt.handle
        request = ChangeMessageInvisibleTime(
            consumer_group=group,
            topic=handle.popped_from(receipt.topic, group),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            queue_offset=handle.queue_offset,
            invisible_time=invisible_ms,
        )
        reply = await self._servers.ask(await self._address(receipt), request)
        changed = handle.changed(reply.pop_time, reply.invisible_time, reply.revive_queue_id)
        return LeaseReceipt(receipt.topic, changed)

    async def _address(self, receipt: LeaseReceipt) -> str:
        """Of a broker that has the topic: a receipt comes from outside and must not choose the server."""
        handle = receipt.handle
        return await self._servers.address_of(
            MessageQueue(receipt.topic, handle.broker_name, handle.queue_id)
        )


def receipt_of(message: ReceivedMessage) -> LeaseReceipt:
    """Raises ClientError for a message that was not received with a lease."""
    if message.handle is None:
        raise ClientError(f"message {message.message_id} has no receipt")
    return LeaseReceipt(message.topic, message.handle)
