"""Pull (11, 361), and queries of single messages (12, 33, 321)."""

from functools import lru_cache
from typing import ClassVar, Self

from msgspec import Struct, field, structs

from skylark.errors import RemoteProtocolError
from skylark.model.names import TOOLS_GROUP
from skylark.model.tag_expression import MATCH_ALL, TAG
from skylark.protocol.bodies import ConsumeQueueUnits, MessageQueue
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import (
    PREFIX_BYTES,
    Buffer,
    Int32,
    Int64,
    RemotingCommand,
    encode,
    prefix,
)
from skylark.protocol.request import Header, Request

PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4
PULL_CLASS_FILTER = 8
PULL_LITE = 16
TEMPLATES_MAX = 256
PLAIN_MESSAGES = 32
"""What brokers return at most for a plain pull, unless they are configured otherwise."""
BULK_UNIT_BYTES = 20
"""An entry as in a consume queue: physical offset, size, tags hash."""


class PullReply(Header, frozen=True):
    """Offsets of the queue. `suggest_which_broker_id` is 0 for the master."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None
    # Skylark only: number of queue entries before the records.
    bulk_units: Int32 | None = None


class PullResult(Struct, frozen=True):
    """Code 0 with records, 19 no new message, 20 no matching message, 21 offset out of range."""

    code: int
    reply: PullReply
    records: Buffer
    units: Buffer = b""
    """Queue entries of the records, if requested and supported."""


class PullMessage(Request[PullResult], frozen=True, gc=False):
    """Pull records from a queue. `sys_flag`: the PULL_ bits; RocketMQ 5.3.3 ignores `max_msg_bytes`."""

    code: ClassVar[RequestCode] = RequestCode.PULL_MESSAGE
    good_codes: ClassVar[frozenset[int]] = frozenset(
        {
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        }
    )
    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_ms: Int64 = field(name="suspendTimeoutMillis")
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_forward_client_id: str | None = field(default=None, name="proxyFrowardClientId")
    broker_name: str | None = field(default=None, name="bname")
    # Skylark only: up to this many bytes and 2,048 messages. RocketMQ ignores it.
    bulk_bytes: Int32 | None = None
    # Skylark only, with the former: return the queue entries, too. The broker does not cross-check them.
    bulk_units: bool | None = None

    @classmethod
    def plain(
        cls,
        queue: MessageQueue,
        queue_offset: int,
        *,
        messages_max: int = PLAIN_MESSAGES,
        expression: str = MATCH_ALL,
        expression_type: str = TAG,
        group: str = TOOLS_GROUP,
        bulk_bytes: int | None = None,
        bulk_units: bool | None = None,
    ) -> Self:
        """Return a pull that neither waits for messages nor commits, and brings its own subscription."""
        return cls(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_msg_nums=messages_max,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_ms=0,
            sub_version=0,
            subscription=expression,
            expression_type=expression_type,
            bulk_bytes=bulk_bytes,
            bulk_units=bulk_units,
        )

    def frame(self, opaque: int) -> list[Buffer]:
        """Encode by a template: consecutive pulls differ only in their offsets."""
        header = self.template() % (self.queue_offset, self.max_msg_nums, self.commit_offset, opaque)
        return [prefix(len(header), 0) + header]

    def template(self) -> bytes:
        """Return the header template: takes offset, message count, commit offset, opaque."""
        return _template(structs.replace(self, queue_offset=0, max_msg_nums=0, commit_offset=0))

    def parse(self, reply: RemotingCommand) -> PullResult:
        header = PullReply.from_fields(reply.fields)
        units_bytes = (header.bulk_units or 0) * BULK_UNIT_BYTES
        if not 0 <= units_bytes <= len(reply.body):
            raise RemoteProtocolError(f"{header.bulk_units} units in a body of {len(reply.body)} bytes")
        return PullResult(reply.code, header, reply.body[units_bytes:], reply.body[:units_bytes])


@lru_cache(TEMPLATES_MAX)
def _template(pull: PullMessage) -> bytes:
    """Return a header template with offset, message count, commit offset and opaque left open."""
    (frame,) = encode(pull.to_command())
    header = bytes(frame[PREFIX_BYTES:]).replace(b"%", b"%%")
    for member in (b'"queueOffset":"%b"', b'"maxMsgNums":"%b"', b'"commitOffset":"%b"', b'"opaque":%b'):
        # Matches once: quotes inside a text are escaped.
        header = header.replace(member % b"0", member % b"%d")
    return header


class LitePullMessage(PullMessage, frozen=True, gc=False):
    code: ClassVar[RequestCode] = RequestCode.LITE_PULL_MESSAGE


class QueryMessageReply(Header, frozen=True):
    index_last_update_timestamp: Int64
    index_last_update_physical_offset: Int64 = field(name="indexLastUpdatePhyoffset")


class QueryMessage(Request[Buffer], frozen=True):
    """Find records by key or by unique key; the reply body is the records."""

    code: ClassVar[RequestCode] = RequestCode.QUERY_MESSAGE
    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key: bool | None = field(default=None, name="_UNIQUE_KEY_QUERY")

    def parse(self, reply: RemotingCommand) -> Buffer:
        return reply.body


class ViewMessageById(Request[Buffer], frozen=True):
    """Read one record by its physical offset."""

    code: ClassVar[RequestCode] = RequestCode.VIEW_MESSAGE_BY_ID
    physical_offset: Int64 = field(name="offset")
    topic: str | None = None

    def parse(self, reply: RemotingCommand) -> Buffer:
        return reply.body


class QueryConsumeQueue(Request[ConsumeQueueUnits], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.QUERY_CONSUME_QUEUE
    answer = ConsumeQueueUnits
    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None
