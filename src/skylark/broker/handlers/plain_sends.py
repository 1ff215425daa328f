"""Plain sends: the common case of a send, laid out many at a time by a compiled module if there is one.

`skylark/_compiled.c` turns frames into records and replies. It takes only messages to known queues that
need nothing but to be stored, and stops before any other frame. `make setup` compiles it with a C compiler.
Without it, and for all other frames, `SendPath` does the same in Python.
"""

from __future__ import annotations

from zlib_ng.zlib_ng import crc32

from skylark.model.message import HOST_V4_BYTES, RETRY_TOPIC_PREFIX
from skylark.protocol.command import LENGTH, LENGTH_BYTES, PREFIX, PREFIX_BYTES
from skylark.protocol.frame_templates import SendReplies
from skylark.store.append_result import AppendedRecord, LaidOut
from skylark.store.consume_queue import ConsumeQueue

try:
    import skylark._compiled as _compiled  # noqa: PLR0402  `skylark` itself is above all parts
except ImportError:  # not compiled
    is_compiled = False
else:
    is_compiled = True

_SUCCESS = b'{"code":0'


class PlainSends:
    """The compiled layout of sends, with what is the same for all of them. Only if `is_compiled`."""

    def __init__(
        self, *, added: bytes, store_host: bytes, replies: SendReplies, header_bytes_max: int
    ) -> None:
        """`added` are the broker's properties of every message."""
        self._added = added
        self._store_host = store_host
        self._reply_parts = replies.stored_parts()
        self._header_bytes_max = header_bytes_max
        self.places: dict[bytes, ConsumeQueue] = {}
        """Queues whose messages need no checks, by topic and id."""

    @staticmethod
    def works_with(added: bytes, store_host: bytes) -> bool:
        return (
            is_compiled
            and len(store_host) == HOST_V4_BYTES
            and b"TAGS" not in added
            and b"UNIQ_KEY" not in added
        )

    def note(self, queue: ConsumeQueue) -> None:
        """Take messages to this queue from now on, until `places` is cleared."""
        if not queue.is_schedule and not queue.topic.startswith(RETRY_TOPIC_PREFIX):
            self.places[b"%b/%d" % (queue.topic.encode(), queue.queue_id)] = queue

    def lay_out(
        self, buffer: bytes | bytearray, born_host: bytes, body_bytes_max: int,
        position: int, limit: int, timestamp: int,
    ) -> LaidOut:  # fmt: skip
        """Lay out the plain sends at the beginning of the buffer as records from `position` up to `limit`."""
        return LaidOut(
            *_compiled.lay_out_sends(
                buffer, self.places, position, limit, timestamp, self._header_bytes_max, body_bytes_max,
                born_host, self._store_host, self._added, AppendedRecord, crc32, self._reply_parts,
            )
        )  # fmt: skip


def is_lone_frame(buffer: bytes | bytearray) -> bool:
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
