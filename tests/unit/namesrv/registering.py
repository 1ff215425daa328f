"""Registrations for the tests of the name server: brokers with topics of four queues."""

from collections.abc import Iterable
from typing import Any

from skylark.namesrv.route_table import RouteTable
from skylark.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
    encode_body,
)
from skylark.protocol.requests.name_server import RegisterBroker, RegisterBrokerReply

CLUSTER = "DefaultCluster"
CHANNEL = object()
V1 = DataVersion(counter=1)
V2 = DataVersion(counter=2)


def registration(
    name: str = "broker-a",
    broker_id: int = 0,
    address: str = "10.0.0.1:10911",
    *,
    cluster: str = CLUSTER,
    **fields: Any,
) -> RegisterBroker:
    """The request's fields; without `enable_acting_master` it is that of a broker of RocketMQ 4."""
    fields.setdefault("ha_server_addr", "10.0.0.1:10912")
    return RegisterBroker(
        broker_name=name, broker_addr=address, cluster_name=cluster, broker_id=broker_id, **fields
    )


def topics(
    *names: str,
    version: DataVersion = V1,
    filter_servers: Iterable[str] = (),
    mappings: dict[str, Any] | None = None,
    **fields: Any,
) -> RegisterBrokerBody:
    """The request's body: topics with the same fields each."""
    fields = {"read_queue_nums": 4, "write_queue_nums": 4, **fields}
    table = TopicConfigTable(
        topic_config_table={name: TopicConfig(topic_name=name, **fields) for name in names},
        data_version=version,
        topic_queue_mapping_info_map=mappings,
    )
    return RegisterBrokerBody(topic_config_serialize_wrapper=table, filter_server_list=list(filter_servers))


def register(
    table: RouteTable,
    request: RegisterBroker,
    body: RegisterBrokerBody | None = None,
    *,
    channel: object = CHANNEL,
    now: float = 0,
    **options: Any,
) -> RegisterBrokerReply:
    """Register a broker, with topics `t1` and `t2` unless others are given."""
    return table.register(request, body or topics("t1", "t2"), channel=channel, now=now, **options)


def with_body(request: RegisterBroker, body: RegisterBrokerBody) -> RegisterBroker:
    """The whole request, as it is sent."""
    return RegisterBroker.from_fields({**request.to_fields(), "*body": encode_body(body)})


def addresses(route: TopicRouteData) -> dict[str, dict[int, str]]:
    """Broker names of a route, with their addresses by broker id."""
    return {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}


def permissions(table: RouteTable, topic: str) -> dict[str, int]:
    """Permissions of a topic by broker name."""
    return {queues.broker_name: queues.perm for queues in table.route(topic).queue_datas}
