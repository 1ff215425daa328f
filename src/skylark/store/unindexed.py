"""Pure. Messages that wait to be indexed, in the log's order, and the keys in them.

There is one for every message that is sent, so they are kept and gone through by columns: what is done to a
column is done in C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from skylark.model.message import KEY_SEPARATOR, PROPERTY_KEYS, find_keys, find_unique_key

_SEPARATOR = KEY_SEPARATOR.encode()
_KEYS_NAME = PROPERTY_KEYS.encode()
# What was taken is cut off the front of the columns not each time, but when it is as much as this.
_TAKEN_MAX = 4096


class Columns(NamedTuple):
    """Messages: where they are, when they were stored, the hash of the topic and `#`, the property text."""

    physical_offsets: list[int]
    timestamps: list[int]
    topic_hashes: list[int]
    texts: list[bytes]

    def chosen(self, numbers: Sequence[int]) -> Columns:
        """Some of them, by their place."""
        return Columns(
            [self.physical_offsets[number] for number in numbers],
            [self.timestamps[number] for number in numbers],
            [self.topic_hashes[number] for number in numbers],
            [self.texts[number] for number in numbers],
        )


class Unindexed:
    """A queue of messages."""

    def __init__(self) -> None:
        self._columns = Columns([], [], [], [])
        self._taken = 0

    def __len__(self) -> int:
        return len(self._columns.physical_offsets) - self._taken

    @property
    def first_offset(self) -> int | None:
        """The physical offset of the first message."""
        return self._columns.physical_offsets[self._taken] if len(self) else None

    def add(
        self,
        physical_offsets: Sequence[int],
        timestamps: Sequence[int],
        topic_hashes: Sequence[int],
        texts: Sequence[bytes],
    ) -> None:
        columns = self._columns
        columns.physical_offsets.extend(physical_offsets)
        columns.timestamps.extend(timestamps)
        columns.topic_hashes.extend(topic_hashes)
        columns.texts.extend(texts)

    def take(self, limit: int) -> Columns:
        """Remove up to `limit` messages, and return them."""
        part = slice(self._taken, self._taken + limit)
        taken = Columns(*(column[part] for column in self._columns))  # type: ignore[arg-type]
        self._taken += len(taken.texts)
        if self._taken == len(self._columns.texts) or self._taken > _TAKEN_MAX:
            for column in self._columns:
                del column[: self._taken]
            self._taken = 0
        return taken

    def truncate(self, physical_offset: int) -> None:
        """Forget messages from this physical offset on."""
        left = self.take(len(self))
        offsets = left.physical_offsets
        self.add(*left.chosen([number for number, at in enumerate(offsets) if at < physical_offset]))

    def clear(self) -> None:
        self.take(len(self))


def split_keys(messages: Columns) -> Columns:
    """One row for every key, whose text is the key itself; the unique key of a message comes first."""
    unique_keys = [find_unique_key(text) for text in messages.texts]
    keys = [find_keys(text) if _KEYS_NAME in text else None for text in messages.texts]
    only = [key for key in unique_keys if key is not None]
    if len(only) == len(unique_keys) and not any(keys):
        return messages._replace(texts=only)
    numbers: list[int] = []
    texts: list[bytes] = []
    for number, (unique_key, joined) in enumerate(zip(unique_keys, keys, strict=True)):
        found = [unique_key] if unique_key is not None else []
        if joined is not None:
            found += [key for key in joined.split(_SEPARATOR) if key]
        texts += found
        numbers += [number] * len(found)
    return messages.chosen(numbers)._replace(texts=texts)
