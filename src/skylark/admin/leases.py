"""Receive and acknowledge without a consumer: brokers keep the leases, so anybody may acknowledge."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from skylark.admin.groups import AsyncGroups
from skylark.admin.server_calls import ServerCalls
from skylark.client.consumer.group_pops import (
    DEAD_LETTER_LEVEL,
    GroupPops,
    PopTarget,
    PopTerms,
    handle_of,
    in_turn,
)
from skylark.client.consumer.send_back import SendBack
from skylark.client.consumer.subscription import by_sql, by_tags
from skylark.client.received_message import ReceivedMessage
from skylark.clock import SystemClock
from skylark.errors import ClientError, NoRoute, RemoteProtocolError
from skylark.model.tag_expression import MATCH_ALL
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.pop_handle import PopHandle
from skylark.protocol.requests.pop import POP_MESSAGES_MAX

INVISIBLE_MS = 30_000
ANSWER_TIMEOUT_MS = 5000


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
        self._pops: dict[str, GroupPops] = {}
        """Those of groups for which brokers hold requests."""

    def close(self) -> None:
        """Forget the requests that brokers hold."""
        for pops in self._pops.values():
            pops.close()

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
        brokers = dict.fromkeys(queue.broker_name for queue in route.queues())
        targets = [PopTarget(wanted, broker, route.address(broker) or "") for broker in brokers]
        if not targets:
            raise NoRoute(topic)
        self._turn += 1
        pops = self._pops.setdefault(group, self._group_pops(group))
        try:
            terms = PopTerms(messages_max, invisible_ms, from_end=from_end)
            return await pops.receive(in_turn(targets, self._turn), terms, wait_ms)
        finally:
            if not pops.is_waiting:
                self._pops.pop(group, None)

    def _group_pops(self, group: str) -> GroupPops:
        return GroupPops(
            group, self._servers.ask, partial(self._bury, group), SystemClock(), ANSWER_TIMEOUT_MS
        )

    async def _bury(self, group: str, message: ReceivedMessage) -> bool:
        """Whether a message that failed too often is a dead letter now."""
        configs = (await self._groups.config(group)).answers.values()
        limit = max((config.retries_max for config in configs), default=0)
        session = self._servers.session
        if message.reconsume_times < limit or session is None:
            return False
        sender = SendBack(session, group, attempts_max=limit, timeout_ms=ANSWER_TIMEOUT_MS)
        return await sender.send_back(message, DEAD_LETTER_LEVEL)

    async def ack(self, group: str, receipt: LeaseReceipt) -> None:
        """The message is not delivered again. Raises NoRoute, ClientError, BrokerError, RemotingError."""
        address = await self._address(receipt)
        await self._group_pops(group).ack(receipt.topic, receipt.handle, address)

    async def hide(self, group: str, receipt: LeaseReceipt, invisible_ms: int) -> LeaseReceipt:
        """Lease the message for this time from now on; 0 has it delivered again. The old receipt is void."""
        address = await self._address(receipt)
        pops = self._group_pops(group)
        return LeaseReceipt(
            receipt.topic, await pops.hide(receipt.topic, receipt.handle, address, invisible_ms)
        )

    async def _address(self, receipt: LeaseReceipt) -> str:
        """Of a broker that has the topic: a receipt comes from outside and must not choose the server."""
        handle = receipt.handle
        return await self._servers.address_of(
            MessageQueue(receipt.topic, handle.broker_name, handle.queue_id)
        )


def receipt_of(message: ReceivedMessage) -> LeaseReceipt:
    """Raises ClientError for a message that was not received with a lease."""
    return LeaseReceipt(message.topic, handle_of(message))
