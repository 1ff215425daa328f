"""Received messages made by hand, through the same bytes that a broker sends."""

from __future__ import annotations

from collections.abc import Mapping

from skylark.client.received_message import ReceivedMessage, decode_pull
from skylark.model.message import PutMessage, encode_properties
from skylark.model.record import encode
from skylark.protocol.bodies import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)
STORE_HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])


def record(
    queue_offset: int,
    body: bytes = b"body",
    properties: Mapping[str, str] | None = None,
    *,
    topic: str = "T",
    sys_flag: int = 0,
    reconsume_times: int = 0,
    born_host: bytes = bytes([10, 0, 0, 1, 0, 0, 1, 0]),
) -> bytes:
    message = PutMessage(
        topic,
        0,
        body,
        encode_properties(properties or {}),
        sys_flag=sys_flag,
        born_timestamp=1_700_000_000_000,
        born_host=born_host,
        reconsume_times=reconsume_times,
    )
    return encode(
        message,
        queue_offset=queue_offset,
        physical_offset=1000 * queue_offset,
        store_timestamp=1_700_000_000_001,
        store_host=STORE_HOST,
    )


def received(queue_offset: int, body: bytes = b"body", *, max_offset: int = 0) -> ReceivedMessage:
    [message] = decode_pull(record(queue_offset, body), QUEUE, max_offset=max_offset)
    return message
