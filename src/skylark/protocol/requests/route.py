"""The name server's codes: registration, routes, key-value configuration."""

from typing import ClassVar

from msgspec import Struct, field

from skylark.protocol.bodies import (
    BrokerMemberGroupBody,
    ClusterInfo,
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicList,
    TopicRouteData,
    decode_body,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import BODY_MEMBER, Int32, Int64, RawBody, RemotingCommand
from skylark.protocol.compressed_register import decode_compressed_register
from skylark.protocol.request import Header, Request


class GetRouteInfoByTopic(Request[TopicRouteData], frozen=True):
    """With a zone, only the brokers in it."""

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
    """For slaves: where their master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class RegisterResult(Struct, frozen=True):
    """What a name server answers; its table of ordered topics is in the body, where it gives it at all."""

    reply: RegisterBrokerReply
    order_topics: dict[str, str]


class RegisterBroker(Request[RegisterResult], frozen=True):
    """`body` is as sent: check `body_crc32` against it (0: unchecked), then read it with `topics()`.

    `enable_acting_master` is absent from brokers before 5.
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
        """Read the body; `version` is the command's, by which its shape goes. Raises RemoteProtocolError."""
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
    """Has the name server another version of our topics? It answers with its own in the body, too."""

    code: ClassVar[RequestCode] = RequestCode.QUERY_DATA_VERSION
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    body: DataVersion = field(name=BODY_MEMBER)

    def parse(self, reply: RemotingCommand) -> bool:
        return DataVersionReply.from_fields(reply.fields).changed


class BrokerHeartbeat(Request[None], frozen=True):
    """`heartbeatTimeoutMills` is spelled so on the wire, unlike 103's."""

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


class NotifyMinBrokerIdChange(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE
    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class RegisterTopicInNamesrv(Request[None], frozen=True):
    """Of the route only `queue_datas` counts."""

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
    """Cluster and broker names, which are topics too, and the address of a broker to ask for more."""

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
