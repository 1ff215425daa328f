"""Pure. Send receipts: how a broker's reply to a send is interpreted."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import count, repeat

import msgspec

from skylark.errors import BrokerError, RemoteProtocolError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import RemotingCommand


class SendStatus(Enum):
    """How safely a message was stored. All but OK name what the broker could not confirm in time."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


_STATUS: dict[int, SendStatus] = {
    int(ResponseCode.SUCCESS): SendStatus.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
DEFAULT_REGION = "DefaultRegion"


class SendReceipt(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored. `message_id` is its unique key, `offset_message_id` the broker's id."""

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    region: str = DEFAULT_REGION
    is_traced: bool = True

    @property
    def is_ok(self) -> bool:
        return self.status is SendStatus.OK


def receipts_of(
    reply: RemotingCommand, topic: str, broker: str, unique_keys: Sequence[str]
) -> list[SendReceipt]:
    """Return one receipt per sent message. Raises BrokerError, RemoteProtocolError."""
    status = _STATUS.get(reply.code)
    if status is None:
        raise BrokerError.for_code(reply.code, reply.remark or "")
    fields = reply.fields
    try:
        queue = MessageQueue(topic, broker, int(fields["queueId"]))
        first_offset = int(fields["queueOffset"])
        offset_ids = fields["msgId"].split(",")
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError(f"reply to a send: {error!r}") from None
    if len(offset_ids) != len(unique_keys):
        # An inner batch is one record and has one id.
        offset_ids = [fields["msgId"]] * len(unique_keys)
    transaction_id = fields.get("transactionId")
    recall_handle = fields.get("recallHandle")
    region = fields.get("MSG_REGION") or DEFAULT_REGION
    is_traced = fields.get("TRACE_ON") != "false"
    return list(
        map(
            SendReceipt,
            repeat(status),
            unique_keys,
            offset_ids,
            repeat(queue),
            count(first_offset),
            repeat(transaction_id),
            repeat(recall_handle),
            repeat(region),
            repeat(is_traced),
        )
    )
