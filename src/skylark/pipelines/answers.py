"""The records of a broker's answers, where the socket left them: no copy, and no loop over records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from skylark.model.record import RECORD_BYTES_MIN
from skylark.pipelines.record_layout import Ints, Records, locate, record_starts
from skylark.pipelines.store_files import UNIT_TYPE
from skylark.protocol.command import Buffer


class Answer(NamedTuple):
    """What a pull brought: records, and their units if the broker gave them."""

    records: memoryview
    units: Buffer

    @property
    def block(self) -> object:
        """Where the bytes lie."""
        return self.records.obj

    @property
    def address(self) -> int:
        return int(pa.py_buffer(self.records).address)

    def goes_on(self, before: Answer) -> bool:
        """Say whether this answer lies behind the one before in the same block.

        One that a broker had to read from its disk comes after those that were asked for later.
        """
        return self.block is before.block and self.address > before.address


def located(answers: Sequence[Answer], to_offset: int) -> Records:
    """The records of answers of which each goes on behind the one before, without those from `to_offset` on.

    A broker that gives units has not looked at the records: those that do not fit theirs are bad. Raises
    CorruptRecord.
    """
    block = pa.py_buffer(answers[0].block)
    places = [answer.address - block.address for answer in answers]
    sizes = _sizes(answers)
    if sizes is None:
        ends = [place + len(answer.records) for place, answer in zip(places, answers, strict=True)]
        stretches = list(zip(places, ends, strict=True))
        records = locate(block, record_starts(memoryview(block), stretches))
    else:
        starts = [place + np.cumsum(each) - each for place, each in zip(places, sizes, strict=True)]
        records = locate(block, np.concatenate(starts), np.concatenate(sizes))
    return records.only(records.bad | (records.heads["queue_offset"] < to_offset))


def _sizes(answers: Sequence[Answer]) -> list[Ints] | None:
    """How large the records of each answer are by their units; None if those cannot all be right."""
    if not all(answer.units for answer in answers):
        return None
    sizes = [np.frombuffer(answer.units, UNIT_TYPE)["size"].astype(np.int64) for answer in answers]
    for answer, each in zip(answers, sizes, strict=True):
        if each.sum() != len(answer.records) or (each < RECORD_BYTES_MIN).any():
            return None
    return sizes
