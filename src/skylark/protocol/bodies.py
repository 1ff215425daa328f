"""Bodies of requests and answers, as structs that read and write Java's JSON.

snake_case here, camelCase on the wire; a member that is None is left out, and one that is left out has its
default. Reading is as tolerant as fastjson: bare and object keys, numbers as text, unknown members.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from skylark.errors import BadJson, RemoteProtocolError
from skylark.model import java
from skylark.protocol.command import Buffer, Int32, Int64

B = TypeVar("B")


def encode_body(body: Any) -> bytes:
    """Write structs, lists and maps as fastjson does: compact, sorted, with bare integer and object keys."""
    return java.dumps(_plain(body))


def encode_standard_body(body: Any) -> bytes:
    """Write standard JSON, all keys quoted and all text ASCII, as the name server does on request."""
    return json.dumps(_plain(body), separators=(",", ":"), sort_keys=True).encode()


def decode_body(data: Buffer, body_type: type[B]) -> B:
    """Read a body in fastjson's dialect. Unknown members are ignored. Raises RemoteProtocolError."""
    try:
        return msgspec.json.decode(data, type=body_type, strict=False)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    try:
        return msgspec.convert(_without_nulls(java.loads(bytes(data))), body_type, strict=False)
    except (msgspec.ValidationError, BadJson, RecursionError) as error:
        raise RemoteProtocolError(
            f"body is not a {getattr(body_type, '__name__', body_type)}: {error}"
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        members = {name: _plain(getattr(value, attribute)) for attribute, name in names}
        return {name: member for name, member in members.items() if member is not None}
    if isinstance(value, Mapping):
        return {
            java.ObjectKey(_plain(key)) if isinstance(key, Struct) else key: _plain(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value


def _without_nulls(value: Any) -> Any:
    """A null member is one that is not there, whatever its type."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


class Body(Struct, rename="camel"):
    """Base of all bodies."""


class MessageQueue(Struct, frozen=True, order=True, rename="camel"):
    """One queue of a topic on one broker; sorts as rebalancing needs it."""

    topic: str
    broker_name: str
    queue_id: Int32


class DataVersion(Struct, frozen=True, rename="camel"):
    """How new a table is. Versions are compared for being equal, not for being newer."""

    state_version: Int64 = 0
    timestamp: Int64 = 0
    counter: Int64 = 0


class KVTable(Body):
    table: dict[str, str] = field(default_factory=dict)


# --- Routes ---


class QueueData(Body):
    """The queues of a topic on one broker. `perm`: 4 read, 2 write, 1 inherit."""

    broker_name: str
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


class BrokerData(Body):
    """The addresses of one broker name by broker id; 0 is the master."""

    broker_name: str
    cluster: str | None = None
    broker_addrs: dict[Int64, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None


class TopicRouteData(Body):
    broker_datas: list[BrokerData] = field(default_factory=list)
    queue_datas: list[QueueData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, Any] | None = None


class ClusterInfo(Body):
    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class BrokerMemberGroup(Body):
    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[Int64, str] = field(default_factory=dict)


class BrokerMemberGroupBody(Body):
    broker_member_group: BrokerMemberGroup


class TopicList(Body):
    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


# --- Topics and groups ---


class TopicConfig(Body):
    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class TopicConfigTable(Body):
    """All topics of a broker. The mapping members are those of static topics."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    mapping_data_version: DataVersion | None = field(default_factory=DataVersion)
    topic_queue_mapping_detail_map: dict[str, Any] | None = field(default_factory=dict)
    topic_queue_mapping_info_map: dict[str, Any] | None = field(default_factory=dict)


class RegisterBrokerBody(Body):
    topic_config_serialize_wrapper: TopicConfigTable = field(default_factory=TopicConfigTable)
    filter_server_list: list[str] = field(default_factory=list)


class TopicConfigList(Body):
    topic_config_list: list[TopicConfig] = field(default_factory=list)


class SubscriptionGroupConfig(Body):
    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    subscription_data_set: list[Any] | None = None
    attributes: dict[str, str] = field(default_factory=dict)


class SubscriptionGroupTable(Body):
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, Int32]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class SubscriptionGroupList(Body):
    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class GroupForbidden(Body):
    group: str
    topic: str
    readable: bool | None = None


class GroupList(Body):
    group_list: list[str] = field(default_factory=list)


# --- Members of groups ---


class SubscriptionData(Body):
    """`code_set` holds Java's hashes of the tags."""

    topic: str
    sub_string: str | None = None
    expression_type: str | None = "TAG"
    tags_set: list[str] = field(default_factory=list)
    code_set: list[Int32] = field(default_factory=list)
    sub_version: Int64 = 0
    class_filter_mode: bool = False


class ConsumerData(Body):
    """Go writes `Clustering` and `BroadCasting`: Java reads names in any case."""

    group_name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False

    def __post_init__(self) -> None:
        self.consume_type = self.consume_type and self.consume_type.upper()
        self.message_model = self.message_model and self.message_model.upper()
        self.consume_from_where = self.consume_from_where and self.consume_from_where.upper()


class ProducerData(Body):
    group_name: str


class HeartbeatData(Body):
    client_id: str = field(name="clientID")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: Int32 = 0
    without_sub: bool = False


class ConsumerIdList(Body):
    consumer_id_list: list[str] = field(default_factory=list)


class ClientConfig(Body):
    """What a consumer asks to be checked before it starts."""

    group: str
    subscription_data: SubscriptionData
    client_id: str | None = None
    namespace: str | None = None


class LockRequest(Body):
    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue] = field(default_factory=list)
    only_this_broker: bool = False


class LockedQueues(Body):
    queues: list[MessageQueue] = field(default_factory=list, name="lockOKMQSet")


class ClientConnection(Body):
    client_id: str
    client_addr: str
    language: str
    version: Int32


class ConsumerConnection(Body):
    connection_set: list[ClientConnection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ProducerConnection(Body):
    connection_set: list[ClientConnection] = field(default_factory=list)


class ProducerInfo(Body):
    client_id: str
    remote_ip: str = field(name="remoteIP")
    language: str
    version: Int32
    last_update_timestamp: Int64


class ProducerTable(Body):
    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class TopicSubscription(Body):
    group: str
    topic: str
    subscription_data: SubscriptionData | None = None


class AssignmentRequest(Body):
    client_id: str
    consumer_group: str
    topic: str
    message_model: str = "CLUSTERING"
    strategy_name: str = "AVG"


class QueueAssignment(Body):
    message_queue: MessageQueue
    mode: str = "PULL"


class Assignments(Body):
    """No list at all means: keep what you have."""

    message_queue_assignments: list[QueueAssignment] | None = None


class RequestMode(Body):
    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: Int32 = 0


class RequestModeTable(Body):
    message_request_mode_map: dict[str, dict[str, RequestMode]] = field(default_factory=dict)
