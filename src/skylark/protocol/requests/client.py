"""Requests between clients and brokers: heartbeats, group members, queue locks, assignments, diagnosis."""

from typing import Any, ClassVar, Self

from msgspec import field

from skylark.errors import BadJson, RemoteProtocolError
from skylark.model import java
from skylark.protocol.bodies import (
    AssignmentRequest,
    Assignments,
    ClientConfig,
    ConsumeDirectlyResult,
    ConsumerIdList,
    ConsumerRunningInfo,
    HeartbeatData,
    LockedQueues,
    LockRequest,
    RequestMode,
    RequestModeTable,
    decode_body,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import BODY_MEMBER, Int32, RawBody, RemotingCommand
from skylark.protocol.request import Header, Request

ENUMERATIONS = {
    "consumeType": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"),
    "messageModel": ("BROADCASTING", "CLUSTERING"),
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
}
"""Constants in Java's order: RocketMQ accepts the ordinal instead of the name."""


class HeartbeatReply(Header, frozen=True):
    """The `version` of the reply command is the broker's."""

    supports_v2: bool = field(default=False, name="IS_SUPPORT_HEART_BEAT_V2")
    subscription_changed: bool = field(default=True, name="IS_SUB_CHANGE")
    different_subscriptions: str | None = field(default=None, name="DIFFERENT_SUBSCRIPTIONS")
    """Sent by Skylark's brokers: the groups of the client whose members do not subscribe the same."""


class Heartbeat(Request[HeartbeatReply], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.HEART_BEAT
    answer = HeartbeatReply
    body: HeartbeatData = field(name=BODY_MEMBER)

    @classmethod
    def from_command(cls, command: RemotingCommand) -> Self:
        """Decode a heartbeat, also with capitalized member names (.NET) or numeric constants (C++)."""
        try:
            return super().from_command(command)
        except RemoteProtocolError:
            try:
                members = _as_java_writes(java.loads(bytes(command.body)))
            except (BadJson, RecursionError):
                members = None
            if not isinstance(members, dict) or "clientID" not in members:
                raise
        return cls(decode_body(java.dumps(members), HeartbeatData))


def _as_java_writes(value: Any) -> Any:
    if isinstance(value, dict):
        small = {name[:1].lower() + name[1:]: item for name, item in value.items() if isinstance(name, str)}
        return {name: _constant(name, _as_java_writes(item)) for name, item in small.items()}
    if isinstance(value, list):
        return [_as_java_writes(item) for item in value]
    return value


def _constant(name: str, value: Any) -> Any:
    names = ENUMERATIONS.get(name)
    if names is None or not isinstance(value, int) or not 0 <= value < len(names):
        return value
    return names[value]


class UnregisterClient(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.UNREGISTER_CLIENT
    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroup(Request[ConsumerIdList], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    answer = ConsumerIdList
    consumer_group: str


class NotifyConsumerIdsChanged(Request[None], frozen=True):
    """Sent by a broker to the members of a group when its membership changed."""

    code: ClassVar[RequestCode] = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    consumer_group: str


class LockBatchMq(Request[LockedQueues], frozen=True):
    """Lock queues for orderly consumption; the reply lists the locked ones."""

    code: ClassVar[RequestCode] = RequestCode.LOCK_BATCH_MQ
    answer = LockedQueues
    body: LockRequest = field(name=BODY_MEMBER)


class UnlockBatchMq(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.UNLOCK_BATCH_MQ
    body: LockRequest = field(name=BODY_MEMBER)


class CheckClientConfig(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.CHECK_CLIENT_CONFIG
    body: ClientConfig = field(name=BODY_MEMBER)


class QueryAssignment(Request[Assignments], frozen=True):
    """Query the queues that the broker assigns to this client."""

    code: ClassVar[RequestCode] = RequestCode.QUERY_ASSIGNMENT
    answer = Assignments
    body: AssignmentRequest = field(name=BODY_MEMBER)


class SetMessageRequestMode(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.SET_MESSAGE_REQUEST_MODE
    body: RequestMode = field(name=BODY_MEMBER)


class GetAllMessageRequestMode(Request[RequestModeTable], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
    answer = RequestModeTable


class GetConsumerRunningInfo(Request[ConsumerRunningInfo], frozen=True):
    """Sent by a tool to a broker, which forwards it to the client unchanged."""

    code: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_RUNNING_INFO
    answer = ConsumerRunningInfo
    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeMessageDirectly(Request[ConsumeDirectlyResult], frozen=True):
    """Sent by a tool to a broker, which adds its name, the flags and the record and forwards it."""

    code: ClassVar[RequestCode] = RequestCode.CONSUME_MESSAGE_DIRECTLY
    answer = ConsumeDirectlyResult
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    body: RawBody = field(default=b"", name=BODY_MEMBER)
