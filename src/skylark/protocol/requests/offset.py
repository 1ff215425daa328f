"""Offsets of queues and groups: 14, 15, 29 to 32, 43, 45, 220 to 223, 308, 314."""

from typing import ClassVar

from msgspec import field

from skylark.protocol.bodies import (
    ConsumerOffsetTable,
    ConsumerStatus,
    CorrectionOffsets,
    DelayOffsetTable,
    QueueOffsets,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import BODY_MEMBER, Int32, Int64, RawBody, RemotingCommand
from skylark.protocol.request import Header, Request


class OffsetReply(Header, frozen=True):
    queue_offset: Int64 = field(name="offset")


class TimestampReply(Header, frozen=True):
    timestamp: Int64


class _OffsetQuery(Request[int], frozen=True):
    def parse(self, reply: RemotingCommand) -> int:
        return OffsetReply.from_fields(reply.fields).queue_offset


class QueryConsumerOffset(_OffsetQuery, frozen=True):
    """The committed offset of a group in a queue; code 22 if there is none."""

    code: ClassVar[RequestCode] = RequestCode.QUERY_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = field(default=None, name="bname")


class UpdateConsumerOffset(Request[None], frozen=True, gc=False):
    """Commit an offset. A broker replies with code 29 if queue or offset is missing."""

    code: ClassVar[RequestCode] = RequestCode.UPDATE_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None
    broker_name: str | None = field(default=None, name="bname")


class SearchOffsetByTimestamp(_OffsetQuery, frozen=True):
    """`boundary_type`: LOWER or UPPER."""

    code: ClassVar[RequestCode] = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    broker_name: str | None = field(default=None, name="bname")


class GetMaxOffset(_OffsetQuery, frozen=True):
    """The offset after the last message."""

    code: ClassVar[RequestCode] = RequestCode.GET_MAX_OFFSET
    topic: str
    queue_id: Int32
    committed: bool | None = None
    broker_name: str | None = field(default=None, name="bname")


class GetMinOffset(_OffsetQuery, frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_MIN_OFFSET
    topic: str
    queue_id: Int32
    broker_name: str | None = field(default=None, name="bname")


class GetEarliestMsgStoreTime(Request[int], frozen=True):
    """Store time of the first message in ms; -1 for an empty queue."""

    code: ClassVar[RequestCode] = RequestCode.GET_EARLIEST_MSG_STORETIME
    topic: str
    queue_id: Int32

    def parse(self, reply: RemotingCommand) -> int:
        return TimestampReply.from_fields(reply.fields).timestamp


class GetAllConsumerOffset(Request[ConsumerOffsetTable], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_ALL_CONSUMER_OFFSET
    answer = ConsumerOffsetTable


class GetAllDelayOffset(Request[DelayOffsetTable], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_ALL_DELAY_OFFSET
    answer = DelayOffsetTable


class InvokeBrokerToResetOffset(Request[QueueOffsets], frozen=True):
    """Reset a group's offsets to a time (-1: the end), or one queue's to an offset."""

    code: ClassVar[RequestCode] = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    answer = QueueOffsets
    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 = -1
    queue_offset: Int64 | None = field(default=None, name="offset")


class ResetConsumerClientOffset(Request[None], frozen=True):
    """Sent by a broker to reset a client. The body is `QueueOffsets`, for C++ `QueueOffsetList`."""

    code: ClassVar[RequestCode] = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False
    queue_id: Int32 = -1
    queue_offset: Int64 | None = field(default=None, name="offset")
    body: RawBody = field(default=b"", name=BODY_MEMBER)


class InvokeBrokerToGetConsumerStatus(Request[ConsumerStatus], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    answer = ConsumerStatus
    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerStatusFromClient(Request[ConsumerStatus], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    answer = ConsumerStatus
    topic: str
    group: str


class QueryCorrectionOffset(Request[CorrectionOffsets], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.QUERY_CORRECTION_OFFSET
    answer = CorrectionOffsets
    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffset(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.CLONE_GROUP_OFFSET
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None
