"""Pure. Handles of popped messages (RocketMQ: ExtraInfo, POP_CK), and the offset infos of a pop's reply.

A handle names the check point of a message and the message in it. For messages of the normal topic the client
makes it from the offset infos; messages of a retry topic carry it as property POP_CK.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from skylark.errors import RemoteProtocolError
from skylark.model import names
from skylark.model.message import property_finder

PROPERTY_HANDLE = "POP_CK"
PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
ORDERED_REVIVE_QUEUE = 999
"""The revive queue in handles of ordered pops, which have no check point."""
FIELDS_MIN = 6

find_handle = property_finder(PROPERTY_HANDLE)
find_first_pop_time = property_finder(PROPERTY_FIRST_POP_TIME)

InfoKey = tuple[str, int]
"""Retry flag and queue id."""


class PopHandle(msgspec.Struct, frozen=True, gc=False):
    """What acknowledges one popped message, or changes its invisible time."""

    start_offset: int
    """Where the check point starts: the position of the pop, not the offset of its first message."""
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    retry: str
    """Flag of the topic that the message was popped from: see `names.pop_retry_flag`."""
    broker_name: str
    queue_id: int = -1
    queue_offset: int = -1
    physical_offset: int | None = None
    """Known to proxies only."""
    lite_topic: str | None = None
    """Not in the text: clients name the lite topic of a message beside its handle."""

    @property
    def revive_time(self) -> int:
        """When the message becomes visible again."""
        return self.pop_time + self.invisible_time

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue_id == ORDERED_REVIVE_QUEUE

    def encode(self) -> str:
        text = (
            f"{self.start_offset} {self.pop_time} {self.invisible_time} {self.revive_queue_id} {self.retry} "
            f"{self.broker_name} {self.queue_id} {self.queue_offset}"
        )
        return text if self.physical_offset is None else f"{text} {self.physical_offset}"

    @staticmethod
    def decode(text: str) -> PopHandle:
        """Fields are taken by position; further ones are ignored. Raises RemoteProtocolError."""
        fields = text.split(" ")
        if len(fields) < FIELDS_MIN:
            raise RemoteProtocolError(f"handle {text[:128]!r} has {len(fields)} fields, needed are 6 to 9")
        try:
            start_offset, pop_time, invisible_time, revive_queue_id = map(int, fields[:4])
            rest: list[Any] = [int(field) for field in fields[6:9] if field]
        except ValueError:
            raise RemoteProtocolError(f"handle {text[:128]!r} has a field that is not a number") from None
        return PopHandle(start_offset, pop_time, invisible_time, revive_queue_id, fields[4], fields[5], *rest)

    def popped_from(self, topic: str, group: str) -> str:
        """Return the topic that a message of `topic` was popped from. Raises RemoteProtocolError."""
        try:
            return names.popped_topic(topic, group, self.retry)
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from None

    def changed(self, pop_time: int, invisible_time: int, revive_queue_id: int) -> PopHandle:
        """Return the handle after a change of the invisible time, from the fields of its reply."""
        start = self.start_offset if self.is_ordered else self.queue_offset
        return msgspec.structs.replace(
            self,
            start_offset=start,
            pop_time=pop_time,
            invisible_time=invisible_time,
            revive_queue_id=revive_queue_id,
        )


# --- Offset infos ---


def start_info(retry: str, queue_id: int, start_offset: int) -> str:
    return f"{retry} {queue_id} {start_offset}"


def offsets_info(retry: str, queue_id: int, offsets: Sequence[int]) -> str:
    return f"{retry} {queue_id} {','.join(map(str, offsets))}"


def order_info(retry: str, queue_id: int, counts: Iterable[tuple[int, int]], least: int) -> str:
    """`counts`: offsets that were delivered before, and how often; `least` of all messages."""
    entries = [f"{retry} qo{queue_id}%{queue_offset} {times}" for queue_offset, times in counts]
    return ";".join([*entries, f"{retry} {queue_id} {least}"])


def join_infos(infos: Iterable[str]) -> str:
    return ";".join(infos)


def read_starts(info: str | None) -> dict[InfoKey, int]:
    """Return the start offsets of a reply. Raises RemoteProtocolError."""
    return {key: _number(text) for key, text in _entries(info)}


def read_offsets(info: str | None) -> dict[InfoKey, list[int]]:
    """Return the offsets of the messages of a reply, in order. Raises RemoteProtocolError."""
    return {key: [_number(each) for each in text.split(",")] for key, text in _entries(info)}


def read_order_counts(info: str | None) -> dict[str, int]:
    """Return how often messages of an ordered pop were delivered before, by `queue_key` and `offset_key`.

    Raises RemoteProtocolError.
    """
    counts = {}
    for entry in (info or "").split(";"):
        if entry:
            retry, key, times = _fields(entry)
            counts[f"{retry}@{key}"] = _number(times)
    return counts


def queue_key(retry: str, queue_id: int) -> str:
    return f"{retry}@{queue_id}"


def offset_key(retry: str, queue_id: int, queue_offset: int) -> str:
    return f"{retry}@qo{queue_id}%{queue_offset}"


def _entries(info: str | None) -> list[tuple[InfoKey, str]]:
    found: dict[InfoKey, str] = {}
    for entry in (info or "").split(";"):
        if not entry:
            continue
        retry, queue_id, rest = _fields(entry)
        key = (retry, _number(queue_id))
        if key in found:
            raise RemoteProtocolError(f"offset info names queue {queue_id} twice: {info!r}")
        found[key] = rest
    return list(found.items())


def _fields(entry: str) -> list[str]:
    fields = entry.split(" ")
    if len(fields) != 3:
        raise RemoteProtocolError(f"offset info {entry[:128]!r} has {len(fields)} fields, needed are 3")
    return fields


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RemoteProtocolError(f"{text[:32]!r} in an offset info is not a number") from None
