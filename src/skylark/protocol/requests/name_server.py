"""Requests to the name server: routes, registration of brokers, topics, key-value configuration."""

import struct
from collections.abc import Iterator
from typing import ClassVar, cast

from msgspec import Struct, field
from zlib_ng import zlib_ng

from skylark.errors import RemoteProtocolError
from skylark.protocol.bodies import (
    BrokerMemberGroupBody,
    ClusterInfo,
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
    decode_body,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import BODY_MEMBER, Buffer, Int32, Int64, RawBody, RemotingCommand
from skylark.protocol.request import Header, Request

ZlibError = cast("type[Exception]", zlib_ng.error)
_COUNT = struct.Struct(">i")
_INFLATED_BYTES_MAX = 64 << 20  # bounds a decompression bomb
MAPPING_VERSION_MIN = 413  # 5.0.0 and later append the mappings of static topics


def decode_compressed_register(data: Buffer, version: int) -> RegisterBrokerBody:
    """Decode a registration sent with `compressed=true`: a zlib stream of length-prefixed JSON texts.

    `version` is the sender's. Raises RemoteProtocolError.
    """
    try:
        texts = _Texts(_inflate(data))
        table = TopicConfigTable(data_version=decode_body(texts.text(), DataVersion))
        for topic in map(_topic, texts.counted()):
            table.topic_config_table[topic.topic_name] = topic
        filter_servers = decode_body(texts.text(), list[str])
        if version >= MAPPING_VERSION_MIN:
            infos = [decode_body(text, dict) for text in texts.counted()]
            table.topic_queue_mapping_info_map = {str(info.get("topic")): info for info in infos}
    except (struct.error, ValueError, ZlibError) as error:
        raise RemoteProtocolError(f"compressed registration: {error}") from None
    return RegisterBrokerBody(topic_config_serialize_wrapper=table, filter_server_list=filter_servers)


def _inflate(data: Buffer) -> bytes:
    stream = zlib_ng.decompressobj()
    inflated: bytes = stream.decompress(data, _INFLATED_BYTES_MAX)
    if not stream.eof:
        raise ValueError(f"stream is truncated or inflates to more than {_INFLATED_BYTES_MAX} bytes")
    return inflated


def _topic(text: bytes) -> TopicConfig:
    """`name readQueues writeQueues perm filterType [attributes]`."""
    name, read, write, perm, filter_type, *rest = text.decode().split(" ", 5)
    return TopicConfig(
        topic_name=name,
        read_queue_nums=int(read),
        write_queue_nums=int(write),
        perm=int(perm),
        topic_filter_type=filter_type,
        attributes=decode_body(rest[0].encode(), dict[str, str]) if rest and rest[0] else {},
    )


class _Texts:
    """Reads length-prefixed texts and counted lists of them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def text(self) -> bytes:
        start = self._position + _COUNT.size
        end = start + self._count()
        if not start <= end <= len(self._data):
            raise ValueError(f"text of {end - start} bytes at {start} of {len(self._data)}")
        self._position = end
        return self._data[start:end]

    def counted(self) -> Iterator[bytes]:
        for _ in range(self._count()):
            yield self.text()

    def _count(self) -> int:
        (count,) = _COUNT.unpack_from(self._data, self._position)
        self._position += _COUNT.size
        return int(count)


class GetRouteInfoByTopic(Request[TopicRouteData], frozen=True):
    """With a zone: only its brokers."""

    code: ClassVar[RequestCode] = RequestCode.GET_ROUTEINFO_BY_TOPIC
    answer = TopicRouteData
    topic: str
    accept_standard_json_only: bool | None = None
    zone_name: str | None = field(default=None, name="__ZONE_NAME")
    zone_mode: bool | None = field(default=None, name="__ZONE_MODE")


class GetBrokerClusterInfo(Request[ClusterInfo], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_BROKER_CLUSTER_INFO
    answer = ClusterInfo


class RegisterBrokerReply(Header, frozen=True):
    """Addresses of the master, for slaves."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class RegisterResult(Struct, frozen=True):
    """Reply of a name server; the table of ordered topics is optional."""

    reply: RegisterBrokerReply
    order_topics: dict[str, str]


class RegisterBroker(Request[RegisterResult], frozen=True):
    """`body` is raw: check `body_crc32` against it (0: unchecked), then decode it with `topics()`.

    Brokers before 5.0 do not send `enable_acting_master`.
    """

    code: ClassVar[RequestCode] = RequestCode.REGISTER_BROKER
    answer = RegisterBrokerReply
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = field(default=0, name="bodyCrc32")
    heartbeat_timeout_ms: Int64 | None = field(default=None, name="heartbeatTimeoutMillis")
    enable_acting_master: bool | None = None
    zone_name: str | None = field(default=None, name="__ZONE_NAME")
    body: RawBody = field(default=b"", name=BODY_MEMBER)

    def parse(self, reply: RemotingCommand) -> RegisterResult:
        table = decode_body(reply.body, KVTable).table if reply.body else {}
        return RegisterResult(RegisterBrokerReply.from_fields(reply.fields), table)

    def topics(self, version: int) -> RegisterBrokerBody:
        """Decode the body, whose layout depends on the command's `version`. Raises RemoteProtocolError."""
        if not self.body:
            return RegisterBrokerBody()
        if self.compressed:
            return decode_compressed_register(self.body, version)
        return decode_body(self.body, RegisterBrokerBody)


class _BrokerIdentity(Request[None], frozen=True):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class UnregisterBroker(_BrokerIdentity, frozen=True):
    code: ClassVar[RequestCode] = RequestCode.UNREGISTER_BROKER


class DataVersionReply(Header, frozen=True):
    changed: bool


class QueryDataVersion(Request[bool], frozen=True):
    """Query whether the name server has another version of a broker's topics."""

    code: ClassVar[RequestCode] = RequestCode.QUERY_DATA_VERSION
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    body: DataVersion = field(name=BODY_MEMBER)

    def parse(self, reply: RemotingCommand) -> bool:
        return DataVersionReply.from_fields(reply.fields).changed


class BrokerHeartbeat(Request[None], frozen=True):
    """`heartbeatTimeoutMills` is the spelling on the wire, unlike 103's."""

    code: ClassVar[RequestCode] = RequestCode.BROKER_HEARTBEAT
    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_ms: Int64 | None = field(default=None, name="heartbeatTimeoutMills")
    election_priority: Int32 | None = None


class GetBrokerMemberGroup(Request[BrokerMemberGroupBody], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_BROKER_MEMBER_GROUP
    answer = BrokerMemberGroupBody
    cluster_name: str
    broker_name: str


class RegisterTopicInNamesrv(Request[None], frozen=True):
    """Only `queue_datas` of the route is used."""

    code: ClassVar[RequestCode] = RequestCode.REGISTER_TOPIC_IN_NAMESRV
    topic: str
    body: TopicRouteData = field(name=BODY_MEMBER)


class DeleteTopicInNamesrv(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.DELETE_TOPIC_IN_NAMESRV
    topic: str
    cluster_name: str | None = None


class WipeReply(Header, frozen=True):
    wipe_topic_count: Int32


class WipeWritePermOfBroker(Request[int], frozen=True):
    """The answer is the number of topics."""

    code: ClassVar[RequestCode] = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    broker_name: str

    def parse(self, reply: RemotingCommand) -> int:
        return WipeReply.from_fields(reply.fields).wipe_topic_count


class AddReply(Header, frozen=True):
    add_topic_count: Int32


class AddWritePermOfBroker(Request[int], frozen=True):
    """The answer is the number of topics."""

    code: ClassVar[RequestCode] = RequestCode.ADD_WRITE_PERM_OF_BROKER
    broker_name: str

    def parse(self, reply: RemotingCommand) -> int:
        return AddReply.from_fields(reply.fields).add_topic_count


class GetAllTopicListFromNameServer(Request[TopicList], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    answer = TopicList


class GetTopicsByCluster(Request[TopicList], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_TOPICS_BY_CLUSTER
    answer = TopicList
    cluster: str


class GetSystemTopicListFromNs(Request[TopicList], frozen=True):
    """Cluster and broker names, which are topics too, and the address of a broker to query for more."""

    code: ClassVar[RequestCode] = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS
    answer = TopicList


class GetUnitTopicList(Request[TopicList], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_UNIT_TOPIC_LIST
    answer = TopicList


class GetHasUnitSubTopicList(Request[TopicList], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST
    answer = TopicList


class GetHasUnitSubUnUnitTopicList(Request[TopicList], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST
    answer = TopicList


class PutKvConfig(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.PUT_KV_CONFIG
    namespace: str
    key: str
    value: str


class KvReply(Header, frozen=True):
    value: str | None = None


class GetKvConfig(Request[KvReply], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_KV_CONFIG
    answer = KvReply
    namespace: str
    key: str


class DeleteKvConfig(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.DELETE_KV_CONFIG
    namespace: str
    key: str


class GetKvListByNamespace(Request[KVTable], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_KVLIST_BY_NAMESPACE
    answer = KVTable
    namespace: str


class UpdateNamesrvConfig(Request[None], frozen=True):
    """The body is Java properties text."""

    code: ClassVar[RequestCode] = RequestCode.UPDATE_NAMESRV_CONFIG
    body: RawBody = field(default=b"", name=BODY_MEMBER)


class GetNamesrvConfig(Request[str], frozen=True):
    """`key=value` lines."""

    code: ClassVar[RequestCode] = RequestCode.GET_NAMESRV_CONFIG

    def parse(self, reply: RemotingCommand) -> str:
        return str(reply.body, "utf-8", "replace")
