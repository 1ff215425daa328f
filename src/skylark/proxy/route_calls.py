"""QueryRoute and QueryAssignment: where a client sends to and receives from."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from skylark.model.lite_topic import BIND_TOPIC
from skylark.protocol.bodies import MASTER_ID, PERM_READ, PERM_READ_WRITE, PERM_WRITE, QueueData
from skylark.proxy.call import Call
from skylark.proxy.cluster import Cluster, readable_brokers
from skylark.proxy.message_checks import accepted_types, check_group, check_topic
from skylark.proxy.schema import AddressScheme, Code, QueuePermission, v2
from skylark.proxy.status import OK, CallRefused
from skylark.remoting.address import split_address
from skylark.settings.proxy import ProxySettings

ALL_QUEUES = -1


def permissions(queues: QueueData) -> Iterator[QueuePermission]:
    """Yield the permission of each queue, in the order of their ids."""
    read, write = queues.read_queue_nums, queues.write_queue_nums
    if queues.perm & PERM_READ_WRITE == PERM_READ_WRITE:
        both = min(read, write)
        yield from [QueuePermission.READ] * (read - both)
        yield from [QueuePermission.WRITE] * (write - both)
        yield from [QueuePermission.READ_WRITE] * both
    elif queues.perm & PERM_READ:
        yield from [QueuePermission.READ] * read
    elif queues.perm & PERM_WRITE:
        yield from [QueuePermission.WRITE] * write
    else:
        yield from [QueuePermission.NONE] * max(1, read, write)


def endpoints_of(address: str) -> Any:
    """Return `host:port` as endpoints. Raises ValueError."""
    host, port = split_address(address)
    try:
        is_v6 = ipaddress.ip_address(host).version == 6
        scheme = AddressScheme.IPv6 if is_v6 else AddressScheme.IPv4
    except ValueError:
        scheme = AddressScheme.DOMAIN_NAME
    return v2.Endpoints(scheme=scheme, addresses=[v2.Address(host=host, port=port)])


class RouteCalls:
    """Clients reach every broker through the proxy, so all brokers of a route have the proxy's endpoints."""

    def __init__(self, settings: ProxySettings, cluster: Cluster) -> None:
        self._cluster = cluster
        advertised = settings.advertised_endpoint
        self._advertised = endpoints_of(advertised) if advertised else None

    async def query_route(self, _: Call, request: Any) -> Any:
        topic = check_topic(request.topic.name)
        endpoints = self._advertised or request.endpoints
        route = await self._cluster.fresh_route(topic)
        config = await self._cluster.topic_config(topic)
        types = accepted_types({} if config is None else config.attributes)
        reply = v2.QueryRouteResponse(status=OK)
        broker_ids = {each.broker_name: sorted(each.broker_addrs) for each in route.data.broker_datas}
        for queues in route.data.queue_datas:
            for broker_id in broker_ids.get(queues.broker_name, ()):
                for queue_id, permission in enumerate(permissions(queues)):
                    self._add(reply.message_queues.add(), topic, queue_id, queues.broker_name, endpoints)
                    queue = reply.message_queues[-1]
                    queue.permission = permission
                    queue.broker.id = broker_id
                    queue.accept_message_types.extend(types)
        return reply

    async def query_assignment(self, _: Call, request: Any) -> Any:
        topic = check_topic(request.topic.name)
        group = check_group(request.group.name)
        route = await self._cluster.fresh_route(topic)
        brokers = readable_brokers(route)
        if not brokers:
            raise CallRefused(Code.FORBIDDEN, "no readable queue")
        config = await self._cluster.group_config(group, topic)
        is_ordered = config.consume_message_orderly and BIND_TOPIC not in config.attributes
        reply = v2.QueryAssignmentResponse(status=OK)
        endpoints = self._advertised or request.endpoints
        for queues in route.data.queue_datas:
            if queues.broker_name not in brokers:
                continue
            for queue_id in range(queues.read_queue_nums) if is_ordered else (ALL_QUEUES,):
                queue = reply.assignments.add().message_queue
                self._add(queue, topic, queue_id, queues.broker_name, endpoints)
                queue.broker.id = MASTER_ID
                queue.permission = QueuePermission.READ
        return reply

    @staticmethod
    def _add(queue: Any, topic: str, queue_id: int, broker: str, endpoints: Any) -> None:
        queue.topic.name = topic
        queue.id = queue_id
        queue.broker.name = broker
        queue.broker.endpoints.CopyFrom(endpoints)
