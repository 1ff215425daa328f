"""Pure. The records of a client's batch, made column by column: what is done to a column is done in C."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from itertools import chain, count, repeat
from operator import contains
from typing import TYPE_CHECKING

from zlib_ng.zlib_ng import crc32

from skylark.model.message import HOST_V6_MASK
from skylark.model.record import (
    CRC_MASK,
    LENGTH,
    LENGTHS,
    QUEUE_AND_FLAG,
    SHARED_HEADS,
    SIZE_AND_MAGIC,
    BatchColumns,
)
from skylark.store.tags import NO_TAGS, TAGS_MARKER, TAGS_NAME, tags_code

if TYPE_CHECKING:
    from skylark.store.disk import Part
    from skylark.store.placed import Run

COPIED_BYTES_MAX = 4096
"""Records that are alike are made in large pieces, up to this size: all that is in them is copied."""
_PACKED_MAX = 64
"""Records in such a piece."""
_BODY_BYTES = struct.Struct(">i")


def common_code(batch: BatchColumns, shared: bytes) -> int | None:
    """The tags code of all messages, if they have the same tags or none; else None.

    Only where all texts end with a separator, and where it is easily seen: tags at the start of a text are
    not looked for. Later duplicates win, so shared tags would hide their own; empty ones do not count.
    """
    texts = batch.properties
    first = texts[0]
    at = first.rfind(TAGS_MARKER)
    tags = first[at : first.find(b"\x02", at + 1) + 1] if at >= 0 else b""
    if TAGS_NAME in shared or (at >= 0 and len(tags) <= len(NO_TAGS)):
        return None
    ending = tags
    if not tags or not first.endswith(tags):
        # As many in all as there are messages, and each has these: then none has others.
        if batch.text.count(TAGS_NAME) != (len(texts) if tags else 0):
            return None
        if tags and not all(map(contains, texts, repeat(tags))):
            return None
        ending = b"\x02"
    return tags_code(tags) if all(map(bytes.endswith, texts, repeat(ending))) else None


class RecordColumns:
    """The records of a run that is made of a batch. Raises struct.error for numbers that are out of range."""

    def __init__(self, run: Run, batch: BatchColumns) -> None:
        self._run = run
        self._batch = batch
        self._head = SHARED_HEADS[run.sys_flag & HOST_V6_MASK]
        shared_bytes = len(run.shared)
        fixed = self._head.size + len(run.queue.topic_part) + LENGTH.size
        if batch.lengths is not None and run.texts is batch.properties:
            body_bytes, text_bytes = batch.lengths
            self.text_bytes_max = text_bytes + shared_bytes
            self.sizes = [fixed + body_bytes + self.text_bytes_max] * len(run)
            self._is_alike = self.sizes[0] <= COPIED_BYTES_MAX
        else:
            text_lengths = [len(text) + shared_bytes for text in run.texts]
            self.text_bytes_max = max(text_lengths)
            lengths = zip(map(len, batch.bodies), text_lengths, strict=True)
            self.sizes = [fixed + body_bytes + text_bytes for body_bytes, text_bytes in lengths]
            self._is_alike = False

    def parts(self, middle: bytes) -> list[Part]:
        """The records, when the run has its place; `middle` is what their heads share."""
        return self._pieces(middle) if self._is_alike else self._each(middle)

    def _each(self, middle: bytes) -> list[Part]:
        run, batch, queue = self._run, self._batch, self._run.queue
        heads = map(
            self._head.pack, self.sizes, repeat(queue.magic), self._crcs(), repeat(queue.queue_id),
            batch.flags, count(run.first_offset), run.physical_offsets, repeat(middle),
            map(len, batch.bodies),
        )  # fmt: skip
        lengths = [LENGTHS[len(text) + len(run.shared)] for text in run.texts]
        records = zip(heads, batch.bodies, repeat(queue.topic_part), lengths, run.properties, strict=False)
        return list(chain.from_iterable(records))

    def _pieces(self, middle: bytes) -> list[Part]:
        """What is the same in all records, or goes on from one into the next, is packed beforehand."""
        run, batch, queue = self._run, self._batch, self._run.queue
        assert batch.lengths is not None
        first = SIZE_AND_MAGIC.pack(self.sizes[0], queue.magic)
        place = QUEUE_AND_FLAG.pack(queue.queue_id, batch.flags[0])
        rest = middle + _BODY_BYTES.pack(batch.lengths[0])
        topic = queue.topic_part + LENGTH.pack(self.text_bytes_max)
        columns = (
            self._crcs(), repeat(place), count(run.first_offset), run.physical_offsets, repeat(rest),
            batch.bodies, repeat(topic), run.texts, repeat(run.shared + first),
        )  # fmt: skip
        fields = list(chain.from_iterable(zip(*columns, strict=False)))
        lengths = len(rest), len(topic), len(run.shared), *batch.lengths
        pieces: list[Part] = []
        for start in range(0, len(self.sizes), _PACKED_MAX):
            number = min(_PACKED_MAX, len(self.sizes) - start)
            some = fields[start * len(columns) : (start + number) * len(columns)]
            pieces.append(_packed_records(number, *lengths)(first, *some))
        return pieces

    def _crcs(self) -> list[int]:
        return [crc32(body) & CRC_MASK for body in self._batch.bodies]


@lru_cache(256)
def _packed_records(
    number: int, rest_bytes: int, topic_bytes: int, shared_bytes: int, body_bytes: int, text_bytes: int
) -> Callable[..., bytes]:
    first_bytes = SIZE_AND_MAGIC.size
    one = f"i{QUEUE_AND_FLAG.size}sqq{rest_bytes}s{body_bytes}s{topic_bytes}s{text_bytes}s"
    all_but_last = f"{one}{shared_bytes + first_bytes}s" * (number - 1)
    return struct.Struct(f">{first_bytes}s{all_but_last}{one}{shared_bytes}s").pack
