"""The pop family (200050 to 200056, 200151): pop, acknowledge, change the invisible time, poll, peek."""

import base64
import binascii
from collections.abc import Iterable
from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct, field

from skylark.errors import RemoteProtocolError
from skylark.protocol.bodies import Body, decode_body
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import BODY_MEMBER, Buffer, Int32, Int64, RemotingCommand
from skylark.protocol.request import Header, Request

POP_MESSAGES_MAX = 32
"""The most messages of one pop: a check point counts them by the bits of an int."""
INIT_MIN = 0
INIT_MAX = 1


class PopReply(Header, frozen=True):
    """The offset infos are `retryFlag queueId offsets` joined by `;`."""

    pop_time: Int64
    invisible_time: Int64
    revive_queue_id: Int32 = field(name="reviveQid")
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PopResult(Struct, frozen=True):
    """Code 0 with records, 19 or 210 no message, 209 too many held pops."""

    code: int
    reply: PopReply | None
    records: Buffer


class _Pop(Request[PopResult], frozen=True):
    good_codes: ClassVar[frozenset[int]] = frozenset(
        {
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.POLLING_FULL,
            ResponseCode.POLLING_TIMEOUT,
        }
    )

    def parse(self, reply: RemotingCommand) -> PopResult:
        header = PopReply.from_fields(reply.fields) if reply.fields else None
        return PopResult(reply.code, header, reply.body)


class PopMessage(_Pop, frozen=True):
    """Pop messages of one queue or any (-1); they stay invisible for a while. `init_mode`: 0 min, 1 max."""

    code: ClassVar[RequestCode] = RequestCode.POP_MESSAGE
    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64 = 0
    init_mode: Int32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


class PeekMessage(_Pop, frozen=True):
    code: ClassVar[RequestCode] = RequestCode.PEEK_MESSAGE
    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class AckMessage(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.ACK_MESSAGE
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    queue_offset: Int64 = field(name="offset")
    lite_topic: str | None = None


class InvisibleTimeReply(Header, frozen=True):
    pop_time: Int64
    invisible_time: Int64
    revive_queue_id: Int32 = field(name="reviveQid")


class ChangeMessageInvisibleTime(Request[InvisibleTimeReply], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    answer = InvisibleTimeReply
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    queue_offset: Int64 = field(name="offset")
    invisible_time: Int64
    lite_topic: str | None = None
    suspend: bool | None = None


class NotificationReply(Header, frozen=True):
    has_msg: bool
    polling_full: bool | None = None


class Notification(Request[NotificationReply], frozen=True):
    """Long poll until a queue has messages for a group."""

    code: ClassVar[RequestCode] = RequestCode.NOTIFICATION
    answer = NotificationReply
    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = None
    attempt_id: str | None = None


class PollingInfo(Request[int], frozen=True):
    """Number of held pops on a queue."""

    code: ClassVar[RequestCode] = RequestCode.POLLING_INFO
    consumer_group: str
    topic: str
    queue_id: Int32

    def parse(self, reply: RemotingCommand) -> int:
        return PollingInfoReply.from_fields(reply.fields).polling_num


class PollingInfoReply(Header, frozen=True):
    polling_num: Int32


class PopRollback(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.POP_ROLLBACK


# --- Many acknowledgements ---


class BatchAck(Body):
    """Messages of one check point. `topic` is the normal topic; `retry` is the flag of its retry topic."""

    group: str = field(default="", name="c")
    topic: str = field(default="", name="t")
    retry: str = field(default="", name="r")
    start_offset: Int64 = field(default=0, name="so")
    queue_id: Int32 = field(default=0, name="q")
    revive_queue_id: Int32 = field(default=0, name="rq")
    pop_time: Int64 = field(default=0, name="pt")
    invisible_time: Int64 = field(default=0, name="it")
    bits: str = field(default="", name="b")
    """Base64 of a set of bits: bit i stands for `start_offset` + i."""

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of the messages. Raises RemoteProtocolError."""
        try:
            bits = int.from_bytes(base64.b64decode(self.bits, validate=True), "little")
        except (binascii.Error, ValueError):
            raise RemoteProtocolError(f"{self.bits[:64]!r} is not base64") from None
        if bits.bit_length() > BATCH_ACK_BITS_MAX:
            raise RemoteProtocolError(f"{bits.bit_length()} bits, allowed are {BATCH_ACK_BITS_MAX}")
        return [self.start_offset + index for index in range(bits.bit_length()) if bits >> index & 1]


BATCH_ACK_BITS_MAX = 1 << 20
"""Bits of one entry: a filter may skip many messages between two of one check point."""
_SHORT_NAMES = {
    "consumerGroup": "c",
    "topic": "t",
    "retry": "r",
    "startOffset": "so",
    "queueId": "q",
    "reviveQueueId": "rq",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitSet": "b",
}


def bits_of(start_offset: int, offsets: Iterable[int]) -> str:
    """Return `BatchAck.bits` of queue offsets."""
    bits = 0
    for queue_offset in offsets:
        bits |= 1 << (queue_offset - start_offset)
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


class BatchAckBody(Body):
    acks: list[BatchAck] = field(default_factory=list)
    broker_name: str | None = None

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Decode a body, in which members may have their long names. Raises RemoteProtocolError."""
        document = decode_body(body, dict[str, Any]) if body else {}
        try:
            acks = msgspec.convert(document.get("acks") or [], list[dict[str, Any]], strict=False)
            short = [{_SHORT_NAMES.get(name, name): value for name, value in ack.items()} for ack in acks]
            return msgspec.convert({**document, "acks": short}, cls, strict=False)
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"body of acknowledgements: {error}") from None


class BatchAckMessage(Request[None], frozen=True):
    """Acknowledge messages of several check points."""

    code: ClassVar[RequestCode] = RequestCode.BATCH_ACK_MESSAGE
    body: BatchAckBody = field(name=BODY_MEMBER)

    @classmethod
    def from_command(cls, command: RemotingCommand) -> Self:
        return cls(body=BatchAckBody.decode(command.body))
