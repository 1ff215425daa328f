"""Plain sends: the common case of a send, laid out many at a time by a compiled module if there is one.

`skylark/_compiled.c` turns frames into records and replies. It takes only messages to known queues that
need nothing but to be stored, and stops before any other frame. `make setup` compiles it with a C compiler.
Without it, and for all other frames, `SendPath` does the same in Python.
"""

from __future__ import annotations

import ctypes
import struct

from skylark.accelerator import lay_out_sends
from skylark.model.message import HOST_V4_BYTES, RETRY_TOPIC_PREFIX
from skylark.protocol.command import LENGTH, LENGTH_BYTES, PREFIX, PREFIX_BYTES
from skylark.protocol.frame_templates import SendReplies
from skylark.protocol.signature import LIBCRYPTO
from skylark.store.append_result import AppendedBatch, AppendedInnerBatch, AppendedRecord, LaidOut
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.dispatch import crc32_address


def _addresses() -> bytes | None:
    """Addresses of CRC-32, and of the two functions of SHA-1, in the libraries that Python uses."""
    crc32 = crc32_address()
    if crc32 is None:
        return None
    hashes = [] if LIBCRYPTO is None else [LIBCRYPTO.SHA1_Update, LIBCRYPTO.SHA1_Final]
    addresses = [ctypes.cast(each, ctypes.c_void_p).value or 0 for each in hashes]
    return struct.pack("3P", crc32, *(addresses or (0, 0)))


_FUNCTIONS = _addresses()
_SUCCESS = b'{"code":0'
_HALF_PLACE = b"\n\n"
_LOOKED_FOR = (
    b"TAGS", b"UNIQ_KEY", b"REAL_", b"TIMER_", b"DELAY", b"TRAN_MSG", b"POP_CK", b"__transactionId__",
)  # fmt: skip
"""Names of properties that Python looks for among those of the broker, too."""


Place = tuple[ConsumeQueue, bytes, int, int, bool, int]
"""A queue, what its records say of it, whether a batch is one record, and the delay of what waits in it."""


class PlainSends:
    """The compiled layout of sends, with what is the same for all of them. See `works_with`."""

    def __init__(
        self, *, added: bytes, store_host: bytes, replies: SendReplies, header_bytes_max: int
    ) -> None:
        """`added` are the broker's properties of every message."""
        assert _FUNCTIONS is not None
        self._constants = (added, _FUNCTIONS, *replies.stored_parts())
        self._store_host = int.from_bytes(store_host)
        self._header_bytes_max = header_bytes_max
        self.places: dict[bytes, Place] = {}
        """Queues whose messages need no checks, by topic and id; those of delay levels and half messages."""

    @staticmethod
    def works_with(added: bytes, store_host: bytes) -> bool:
        return (
            lay_out_sends is not None
            and _FUNCTIONS is not None
            and len(store_host) == HOST_V4_BYTES
            and not any(name in added for name in _LOOKED_FOR)
        )

    def note(self, queue: ConsumeQueue, *, takes_batches: bool) -> None:
        """Take messages to this queue until `places` is cleared; or batches of a BatchCQ topic, only."""
        is_usual = not queue.is_schedule and not queue.topic.startswith(RETRY_TOPIC_PREFIX)
        if is_usual and queue.is_batched == takes_batches:
            self.places[b"%b/%d" % (queue.topic.encode(), queue.queue_id)] = _place(queue)

    def note_level(self, queue: ConsumeQueue, delay_ms: int) -> None:
        """Take messages of a delay level from now on; they wait in this queue."""
        self.places[b"\n%d" % (queue.queue_id + 1)] = _place(queue, delay_ms)

    def note_half(self, queue: ConsumeQueue) -> None:
        """Take half messages from now on, until `refuse_halves`; they wait in this queue."""
        self.places[_HALF_PLACE] = _place(queue)

    def refuse_halves(self) -> None:
        """Leave half messages to Python."""
        self.places.pop(_HALF_PLACE, None)

    @property
    def half_queue(self) -> ConsumeQueue | None:
        """The queue of the half messages that are taken."""
        place = self.places.get(_HALF_PLACE)
        return None if place is None else place[0]

    def lay_out(
        self, buffer: bytes | bytearray | memoryview, senders: dict[bytes, bytes] | None, born_host: bytes,
        body_bytes_max: int, position: int, limit: int, timestamp: int,
    ) -> LaidOut:  # fmt: skip
        """Lay out the plain sends at the beginning of the buffer as records from `position` up to `limit`.

        `senders` are the states of `SigningKey` by access key and topic; None takes sends of everybody.
        """
        return LaidOut(
            *lay_out_sends(
                buffer, self.places, senders, position, limit, timestamp, self._header_bytes_max,
                body_bytes_max, int.from_bytes(born_host), self._store_host, self._constants, AppendedRecord,
                AppendedBatch, AppendedInnerBatch,
            )
        )  # fmt: skip


def _place(queue: ConsumeQueue, delay_ms: int = 0) -> Place:
    return queue, queue.topic_part, queue.magic, queue.queue_id, queue.is_batched, delay_ms


def is_lone_frame(buffer: bytes | bytearray | memoryview) -> bool:
    """Return whether the buffer holds one frame and nothing else."""
    return len(buffer) >= PREFIX_BYTES and LENGTH.unpack_from(buffer)[0] + LENGTH_BYTES == len(buffer)


def with_code(replies: bytes, code: int) -> bytes:
    """Return the frames of successful replies with another code."""
    frames: list[bytes] = []
    position = 0
    while position < len(replies):
        _, header_bytes = PREFIX.unpack_from(replies, position)
        start = position + PREFIX_BYTES
        header = b'{"code":%d%b' % (code, replies[start + len(_SUCCESS) : start + header_bytes])
        frames.append(PREFIX.pack(len(header) + LENGTH_BYTES, len(header)) + header)
        position = start + header_bytes
    return b"".join(frames)
