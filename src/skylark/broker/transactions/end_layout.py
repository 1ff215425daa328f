"""Pure. Ends of transactions, many at a time: the committed messages, and one op message behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from skylark.broker.transactions.half_messages import COMMITTED, OP_PROPERTIES, HalfMessage, op_message
from skylark.model.message import TRANSACTION_MASK
from skylark.model.record import HEAD, LENGTHS, encode
from skylark.store.append_result import AppendedRecord, LaidOut
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.queue_entry import tags_code

_OP_TAGS_CODE = tags_code(OP_PROPERTIES)
_OP_BYTES = 256
"""The size of an op message without its body, at most."""
_OFFSET_BYTES = 20
"""The size of a queue offset in its body, at most."""


class RecentHalf(NamedTuple):
    """The record of a plain half message that came a moment ago, its properties and its tags code."""

    record: bytes
    text: bytes
    tags_code: int


class Ended(NamedTuple):
    """A half message that ends, and the queue that its message goes to, if it is committed."""

    half: HalfMessage
    recent: RecentHalf
    queue: ConsumeQueue | None


def lay_out_ends(
    ended: Sequence[Ended], owed: Sequence[int], op_queue: ConsumeQueue, store_host: bytes, position: int,
    limit: int, timestamp: int,
) -> LaidOut:  # fmt: skip
    """Lay out the records from `position` up to `limit`; `frames` of the result is how many ends fit.

    `owed` are half messages that have ended, too, but have no op message. All hosts are of IPv4. The op
    message is the last record: after a crash, records without it are those of the log's end.
    """
    parts: list[bytes] = []
    placed: list[AppendedRecord] = []
    finished = list(owed)
    room_end = limit - _OP_BYTES - _OFFSET_BYTES * (len(owed) + len(ended))
    for half, (record, text, code), queue in ended:
        if queue is not None:
            (
                _, _, crc, _, flag, _, _, sys_flag, born_timestamp, born_host, _, _, reconsume_times, _,
                body_bytes,
            ) = HEAD.unpack_from(record)  # fmt: skip
            size = HEAD.size + body_bytes + len(queue.topic_part) + 2 + len(text)
            if position + size > room_end:
                break
            sys_flag = sys_flag & ~TRANSACTION_MASK | COMMITTED
            queue_offset = queue.next_offset
            head = HEAD.pack(
                size, queue.magic, crc, queue.queue_id, flag, queue_offset, position, sys_flag,
                born_timestamp, born_host, timestamp, store_host, reconsume_times, half.physical_offset,
                body_bytes,
            )  # fmt: skip
            body = record[HEAD.size : HEAD.size + body_bytes]
            parts += (head, body, queue.topic_part, LENGTHS[len(text)], text)
            placed.append(
                AppendedRecord(queue, queue_offset, position, size, code, timestamp, sys_flag, text)
            )
            queue.next_offset = queue_offset + 1
            position += size
        finished.append(half.queue_offset)
    ends = len(finished) - len(owed)
    if not ends or position > room_end:
        return LaidOut(0, 0, position, b"", b"", [])
    message = op_message(finished, born_host=store_host, now_ms=timestamp)
    queue_offset = op_queue.next_offset
    parts.append(
        encode(
            message, queue_offset=queue_offset, physical_offset=position, store_timestamp=timestamp,
            store_host=store_host,
        )
    )  # fmt: skip
    op_queue.next_offset = queue_offset + 1
    size = len(parts[-1])
    placed.append(
        AppendedRecord(
            op_queue, queue_offset, position, size, _OP_TAGS_CODE, timestamp, message.sys_flag, OP_PROPERTIES
        )
    )
    return LaidOut(0, ends, position + size, b"".join(parts), b"", [placed])
