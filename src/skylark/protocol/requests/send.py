"""Send (10, 310, 320), request-reply (324, 325, 326), send back (36), recall (370)."""

from typing import ClassVar

from msgspec import Struct, field

from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import BODY_MEMBER, Int32, Int64, RawBody, RemotingCommand
from skylark.protocol.request import Header, Request


class SendReply(Header, frozen=True):
    """Location of a stored message. For a batch: all ids joined by commas, and the first offset."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = field(default=None, name="MSG_REGION")
    trace_on: bool | None = field(default=None, name="TRACE_ON")


class SendResult(Struct, frozen=True):
    """A stored message. `code`: 0 confirmed, 10 flush timeout, 11 no slave, 12 slave timeout."""

    code: int
    reply: SendReply


class _Send(Request[SendResult], frozen=True, gc=False):
    good_codes: ClassVar[frozenset[int]] = frozenset(
        {
            ResponseCode.SUCCESS,
            ResponseCode.FLUSH_DISK_TIMEOUT,
            ResponseCode.SLAVE_NOT_AVAILABLE,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
        }
    )

    def parse(self, reply: RemotingCommand) -> SendResult:
        return SendResult(reply.code, SendReply.from_fields(reply.fields))


class SendMessage(_Send, frozen=True, gc=False):
    """Send with long field names, as Go, C++ and Rust do. `properties` is the property text."""

    code: ClassVar[RequestCode] = RequestCode.SEND_MESSAGE
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    broker_name: str | None = field(default=None, name="bname")
    body: RawBody = field(default=b"", name=BODY_MEMBER)


class SendMessageV2(_Send, frozen=True, gc=False):
    """Send with short field names, as Java does. Same members as `SendMessage`."""

    code: ClassVar[RequestCode] = RequestCode.SEND_MESSAGE_V2
    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: Int32 = field(name="d")
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_timestamp: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str = field(default="", name="i")
    reconsume_times: Int32 = field(default=0, name="j")
    unit_mode: bool = field(default=False, name="k")
    max_reconsume_times: Int32 | None = field(default=None, name="l")
    batch: bool = field(default=False, name="m")
    broker_name: str | None = field(default=None, name="n")
    body: RawBody = field(default=b"", name=BODY_MEMBER)


class SendBatchMessage(SendMessageV2, frozen=True, gc=False):
    """Send several messages to one queue; the body is their concatenation."""

    code: ClassVar[RequestCode] = RequestCode.SEND_BATCH_MESSAGE


class SendReplyMessage(SendMessage, frozen=True, gc=False):
    """Reply to a request message, with long field names."""

    code: ClassVar[RequestCode] = RequestCode.SEND_REPLY_MESSAGE


class SendReplyMessageV2(SendMessageV2, frozen=True, gc=False):
    """Reply to a request message, with short field names."""

    code: ClassVar[RequestCode] = RequestCode.SEND_REPLY_MESSAGE_V2


class PushReplyMessageToClient(Request[None], frozen=True):
    """Sent by a broker to deliver the reply to the client that sent the request message."""

    code: ClassVar[RequestCode] = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    body: RawBody = field(default=b"", name=BODY_MEMBER)


class ConsumerSendMsgBack(Request[None], frozen=True):
    """Return a message for a later retry. Level below 0: dead letter, 0: the broker decides."""

    code: ClassVar[RequestCode] = RequestCode.CONSUMER_SEND_MSG_BACK
    group: str
    physical_offset: Int64 = field(name="offset")
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = field(default=None, name="bname")


class RecallReply(Header, frozen=True):
    msg_id: str
    region: str | None = field(default=None, name="MSG_REGION")


class RecallMessage(Request[RecallReply], frozen=True):
    """Cancel a delayed message by the handle from its send reply."""

    code: ClassVar[RequestCode] = RequestCode.RECALL_MESSAGE
    answer = RecallReply
    topic: str
    recall_handle: str
    producer_group: str | None = None
