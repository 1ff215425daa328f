"""Connected producers and consumers, and the state that they report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from skylark.admin.results import (
    ClientInfo,
    ConnectedConsumers,
    ConnectedProducers,
    QueueOwners,
    merged_clients,
)
from skylark.admin.server_calls import ServerCalls, at_once
from skylark.client.received_message import ReceivedMessage
from skylark.errors import BrokerError, ClientError, RocketMQError
from skylark.protocol.bodies import ConsumeDirectlyResult, ConsumerRunningInfo, MessageQueue, ProducerInfo
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.client import ConsumeMessageDirectly, GetConsumerRunningInfo
from skylark.protocol.requests.group import (
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetProducerConnectionList,
)
from skylark.protocol.requests.offset import InvokeBrokerToGetConsumerStatus

OFFLINE = frozenset({ResponseCode.CONSUMER_NOT_ONLINE})
NONE_HERE = frozenset({ResponseCode.SYSTEM_ERROR})
"""The code for an unknown producer group or consumer."""
RELAY_TIMEOUT_MS = 15_000
"""Brokers wait 10 s for the client."""
OWNER_TIMEOUT_MS = 2_000
OWNERS_MAX = 64
"""Members that are asked for their queues."""


class AsyncClients:
    """Part of `AsyncAdmin`."""

    def __init__(self, servers: ServerCalls) -> None:
        self._servers = servers

    async def consumers(self, group: str, *, brokers: Iterable[str] | None = None) -> ConnectedConsumers:
        """The connected members of a group. Raises BrokerError 206 if there are none.

        `brokers` are the addresses to ask; without them a name server is asked for all.
        """
        targets = await self._servers.targets() if brokers is None else brokers
        gathered = await self._servers.ask_each(
            targets, GetConsumerConnectionList(group), absent_codes=OFFLINE
        )
        found = gathered.some(f"list consumers of group {group}")
        if not found:
            raise BrokerError.for_code(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online"
            )
        return ConnectedConsumers.read(group, found, gathered.failures)

    async def producers(self, group: str) -> ConnectedProducers:
        """The connected members of a producer group, possibly none."""
        targets = await self._servers.targets()
        request = GetProducerConnectionList(group)
        gathered = await self._servers.ask_each(targets, request, absent_codes=NONE_HERE)
        clients = [
            (broker, ClientInfo(item.client_id, item.client_addr, item.language, item.version))
            for broker, connection in gathered.some(f"list producers of group {group}").items()
            for item in connection.connection_set
        ]
        return ConnectedProducers(group, merged_clients(clients), gathered.failures)

    async def all_producers(self, broker: str) -> Mapping[str, list[ProducerInfo]]:
        """All producers connected to a broker, by group."""
        return (await self._servers.ask(await self._servers.target(broker), GetAllProducerInfo())).data

    async def running_info(
        self, group: str, client_id: str, *, with_stack: bool = False
    ) -> ConsumerRunningInfo:
        """The state that a consumer reports. Raises ClientError if no broker knows it, BrokerError."""
        request = GetConsumerRunningInfo(group, client_id, jstack_enable=with_stack)
        broker = await self._broker_of(group, client_id)
        return await self._servers.ask(broker, request, timeout_ms=RELAY_TIMEOUT_MS)

    async def owners(self, members: ConnectedConsumers) -> QueueOwners:
        """Which member holds which queue; up to OWNERS_MAX are asked, and some may be `silent`."""
        asked = members.clients[:OWNERS_MAX]

        async def ask(client: ClientInfo) -> ConsumerRunningInfo:
            request = GetConsumerRunningInfo(members.group, client.client_id, jstack_enable=False)
            return await self._servers.ask(client.brokers[0], request, timeout_ms=OWNER_TIMEOUT_MS)

        queues: dict[MessageQueue, tuple[str, ...]] = {}
        silent = [client.client_id for client in members.clients[OWNERS_MAX:]]
        for client, info in zip(asked, await at_once(ask, asked), strict=True):
            if isinstance(info, RocketMQError):
                silent.append(client.client_id)
                continue
            for queue in info.mq_table:
                queues[queue] = (*queues.get(queue, ()), client.client_id)
        return QueueOwners(queues, tuple(silent))

    async def positions(
        self, group: str, topic: str, client_id: str | None = None
    ) -> Mapping[str, Mapping[MessageQueue, int]]:
        """The positions that members report, by client id and queue. Raises NoRoute.

        Offsets are those in the members' memory: committed ones are in `groups.progress`.
        """
        request = InvokeBrokerToGetConsumerStatus(topic, group, client_id)
        gathered = await self._servers.ask_each(
            await self._servers.brokers_of(topic), request, absent_codes=OFFLINE
        )
        tables: dict[str, dict[MessageQueue, int]] = {}
        for status in gathered.some(f"ask consumers of group {group}").values():
            for name, table in status.consumer_table.items():
                tables.setdefault(name, {}).update(table)
        return tables

    async def consume_directly(
        self, group: str, client_id: str, message: ReceivedMessage
    ) -> ConsumeDirectlyResult:
        """Have one consumer consume a stored message now, in its listener. Offsets do not change.

        Raises BrokerError if the message or the consumer is not there (any more), or does not answer.
        """
        request = ConsumeMessageDirectly(group, client_id, message.offset_message_id, message.queue.topic)
        address = await self._servers.target(message.broker_name)
        return await self._servers.ask(address, request, timeout_ms=RELAY_TIMEOUT_MS)

    async def _broker_of(self, group: str, client_id: str) -> str:
        consumers = await self.consumers(group)
        for client in consumers.clients:
            if client.client_id == client_id:
                return client.brokers[0]
        known = ", ".join(client.client_id for client in consumers.clients)
        raise ClientError(f"group {group} has no member {client_id}; its members are: {known}")
