"""Administration of a broker, its replicas and access control."""

from typing import ClassVar

from msgspec import Struct, field

from skylark.protocol.bodies import (
    AclInfo,
    BrokerConsumeStats,
    BrokerStatsData,
    EpochCache,
    HaStatus,
    KVTable,
    TimerMetrics,
    UserInfo,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import BODY_MEMBER, Buffer, Int64, RawBody, RemotingCommand
from skylark.protocol.request import Header, Request


class UpdateBrokerConfig(Request[None], frozen=True):
    """The body is Java properties text."""

    code: ClassVar[RequestCode] = RequestCode.UPDATE_BROKER_CONFIG
    body: RawBody = field(default=b"", name=BODY_MEMBER)


class BrokerConfigReply(Header, frozen=True):
    """`version` is a DataVersion as JSON."""

    version: str


class BrokerConfig(Struct, frozen=True):
    version: str
    text: str


class GetBrokerConfig(Request[BrokerConfig], frozen=True):
    """`key=value` lines."""

    code: ClassVar[RequestCode] = RequestCode.GET_BROKER_CONFIG

    def parse(self, reply: RemotingCommand) -> BrokerConfig:
        version = BrokerConfigReply.from_fields(reply.fields).version
        return BrokerConfig(version, str(reply.body, "utf-8", "replace"))


class GetBrokerRuntimeInfo(Request[KVTable], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_BROKER_RUNTIME_INFO
    answer = KVTable


class ViewBrokerStatsData(Request[BrokerStatsData], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.VIEW_BROKER_STATS_DATA
    answer = BrokerStatsData
    stats_name: str
    stats_key: str


class GetBrokerConsumeStats(Request[BrokerConsumeStats], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_BROKER_CONSUME_STATS
    answer = BrokerConsumeStats
    is_order: bool


class CleanExpiredConsumeQueue(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE


class CleanUnusedTopic(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.CLEAN_UNUSED_TOPIC


class DeleteExpiredCommitLog(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.DELETE_EXPIRED_COMMITLOG


class _Bytes(Request[Buffer], frozen=True):
    def parse(self, reply: RemotingCommand) -> Buffer:
        return reply.body


class GetTimerCheckPoint(_Bytes, frozen=True):
    """The bytes of the timer's check point file."""

    code: ClassVar[RequestCode] = RequestCode.GET_TIMER_CHECK_POINT


class GetTimerMetrics(Request[TimerMetrics], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_TIMER_METRICS
    answer = TimerMetrics


class SwitchTimerEngine(Request[None], frozen=True):
    """Choose where a broker keeps timers: `F`, the wheel in files, or `R`, RocksDB. Since 5.4."""

    code: ClassVar[RequestCode] = RequestCode.SWITCH_TIMER_ENGINE
    engine: str = field(default="", name="E_T")


class CheckRocksdbCqWriteProgress(_Bytes, frozen=True):
    code: ClassVar[RequestCode] = RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS
    topic: str
    check_store_time: Int64 | None = None


class ExportRocksdbConfigToJson(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON
    config_type: str


class UpdateColdDataFlowCtrConfig(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG
    body: RawBody = field(default=b"", name=BODY_MEMBER)


class RemoveColdDataFlowCtrConfig(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG
    body: RawBody = field(default=b"", name=BODY_MEMBER)


class GetColdDataFlowCtrInfo(_Bytes, frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_COLD_DATA_FLOW_CTR_INFO


class SetCommitLogReadMode(Request[None], frozen=True):
    """`0` normal, `1` random."""

    code: ClassVar[RequestCode] = RequestCode.SET_COMMITLOG_READ_MODE
    mode: str = field(name="READ_AHEAD_MODE")


# --- Replicas ---


class HaInfo(Header, frozen=True):
    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ExchangeBrokerHaInfo(Request[HaInfo], frozen=True):
    """Query the HA information, or set it when an address is given."""

    code: ClassVar[RequestCode] = RequestCode.EXCHANGE_BROKER_HA_INFO
    answer = HaInfo
    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class GetBrokerHaStatus(Request[HaStatus], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_BROKER_HA_STATUS
    answer = HaStatus


class ResetMasterFlushOffset(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.RESET_MASTER_FLUSH_OFFSET
    master_flush_offset: Int64


class GetBrokerEpochCache(Request[EpochCache], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_BROKER_EPOCH_CACHE
    answer = EpochCache


# --- Access control ---


class AuthCreateUser(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.AUTH_CREATE_USER
    username: str | None = None
    body: UserInfo | None = field(default=None, name=BODY_MEMBER)


class AuthUpdateUser(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.AUTH_UPDATE_USER
    username: str | None = None
    body: UserInfo | None = field(default=None, name=BODY_MEMBER)


class AuthDeleteUser(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.AUTH_DELETE_USER
    username: str | None = None


class AuthGetUser(Request[UserInfo | None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.AUTH_GET_USER
    answer = UserInfo | None
    username: str | None = None


class AuthListUser(Request[list[UserInfo] | None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.AUTH_LIST_USER
    answer = list[UserInfo] | None
    filter: str | None = None


class AuthCreateAcl(Request[None], frozen=True):
    """`subject` is `User:name`."""

    code: ClassVar[RequestCode] = RequestCode.AUTH_CREATE_ACL
    subject: str | None = None
    body: AclInfo | None = field(default=None, name=BODY_MEMBER)


class AuthUpdateAcl(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.AUTH_UPDATE_ACL
    subject: str | None = None
    body: AclInfo | None = field(default=None, name=BODY_MEMBER)


class AuthDeleteAcl(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.AUTH_DELETE_ACL
    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class AuthGetAcl(Request[AclInfo | None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.AUTH_GET_ACL
    answer = AclInfo | None
    subject: str | None = None


class AuthListAcl(Request[list[AclInfo] | None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.AUTH_LIST_ACL
    answer = list[AclInfo] | None
    subject_filter: str | None = None
    resource_filter: str | None = None
