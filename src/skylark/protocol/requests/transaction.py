"""Transactions: 37, 39, 323."""

from typing import ClassVar

from msgspec import field

from skylark.model.message import SystemFlag
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import BODY_MEMBER, Int32, Int64, RawBody
from skylark.protocol.request import Request

UNKNOWN = 0
COMMIT = int(SystemFlag.TRANSACTION_COMMIT)
ROLLBACK = int(SystemFlag.TRANSACTION_ROLLBACK)


class EndTransaction(Request[None], frozen=True):
    """`commit_or_rollback` is UNKNOWN, COMMIT or ROLLBACK. The queue offset is the half message's."""

    code: ClassVar[RequestCode] = RequestCode.END_TRANSACTION
    producer_group: str
    queue_offset: Int64 = field(name="tranStateTableOffset")
    physical_offset: Int64 = field(name="commitLogOffset")
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionState(Request[None], frozen=True):
    """Sent by a broker to query the state of a transaction; the body is the half message's record."""

    code: ClassVar[RequestCode] = RequestCode.CHECK_TRANSACTION_STATE
    queue_offset: Int64 = field(name="tranStateTableOffset")
    physical_offset: Int64 = field(name="commitLogOffset")
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = field(default=None, name="bname")
    body: RawBody = field(default=b"", name=BODY_MEMBER)


class ResumeCheckHalfMessage(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.RESUME_CHECK_HALF_MESSAGE
    msg_id: str | None = None
    topic: str | None = None
