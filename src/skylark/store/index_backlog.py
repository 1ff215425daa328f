"""Pure. Messages that are published but not indexed yet, in the log's order, and their keys.

Every message passes through here, so they are stored by column: operations on a column run in C.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, cast

from skylark.model.message import (
    NAME_VALUE_SEPARATOR,
    PROPERTIES_BYTES_MAX,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_UNIQUE_KEY,
    find_keys,
    find_unique_key,
    split_keys,
)

_KEYS_NAME = PROPERTY_KEYS.encode()
_LATER_UNIQUE_KEY = f"{PROPERTY_SEPARATOR}{PROPERTY_UNIQUE_KEY}{NAME_VALUE_SEPARATOR}".encode()
_NO_ENDING = bytes(PROPERTIES_BYTES_MAX + 1)  # longer than any text
# Taken rows are removed from the front of the columns once there are this many.
_TAKEN_MAX = 4096


class BacklogColumns(NamedTuple):
    """Messages as columns; a topic hash is that of the topic and `#`, a text is the property text."""

    physical_offsets: list[int]
    timestamps: list[int]
    topic_hashes: list[int]
    texts: list[bytes]

    def chosen(self, numbers: Sequence[int]) -> BacklogColumns:
        """Return the rows with these numbers."""
        return BacklogColumns(
            [self.physical_offsets[number] for number in numbers],
            [self.timestamps[number] for number in numbers],
            [self.topic_hashes[number] for number in numbers],
            [self.texts[number] for number in numbers],
        )


class SharedKeyBatch(NamedTuple):
    """Consecutive messages with the same store time and one shared key."""

    physical_offsets: list[int]
    timestamp: int
    topic_hash: int
    key: bytes

    def messages(self) -> BacklogColumns:
        """Return the messages as columns, each with its own property text."""
        count = len(self.physical_offsets)
        text = _LATER_UNIQUE_KEY + self.key
        return BacklogColumns(
            self.physical_offsets, [self.timestamp] * count, [self.topic_hash] * count, [text] * count
        )


class IndexBacklog:
    """The queue of messages to index. Messages with a shared key stay together."""

    def __init__(self) -> None:
        self._parts: deque[BacklogColumns | SharedKeyBatch] = deque()
        self._taken = 0  # rows taken from the first part
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first_offset(self) -> int | None:
        """Physical offset of the first message."""
        return self._parts[0].physical_offsets[self._taken] if self._count else None

    def add(
        self,
        physical_offsets: Sequence[int],
        timestamps: Sequence[int],
        topic_hashes: Sequence[int],
        texts: Sequence[bytes],
    ) -> None:
        if not texts:
            return
        if not self._parts or not isinstance(self._parts[-1], BacklogColumns):
            self._parts.append(BacklogColumns([], [], [], []))
        columns = self._parts[-1]
        assert isinstance(columns, BacklogColumns)
        columns.physical_offsets.extend(physical_offsets)
        columns.timestamps.extend(timestamps)
        columns.topic_hashes.extend(topic_hashes)
        columns.texts.extend(texts)
        self._count += len(texts)

    def add_run(self, run: SharedKeyBatch) -> None:
        """Add at least one message; the caller must not change the list of offsets afterwards."""
        self._parts.append(run)
        self._count += len(run.physical_offsets)

    def take(self, limit: int, run_limit: int) -> BacklogColumns | SharedKeyBatch:
        """Remove and return up to `limit` messages, or `run_limit` messages with a shared key."""
        if not self._count:
            return BacklogColumns([], [], [], [])
        first, taken = self._parts[0], self._taken
        limit = run_limit if isinstance(first, SharedKeyBatch) else limit
        until = min(taken + limit, len(first.physical_offsets))
        self._taken = until
        self._count -= until - taken
        part = slice(taken, until)
        if isinstance(first, SharedKeyBatch):
            is_whole = until - taken == len(first.physical_offsets)
            some: BacklogColumns | SharedKeyBatch = (
                first if is_whole else first._replace(physical_offsets=first.physical_offsets[part])
            )
        else:
            some = BacklogColumns(*(column[part] for column in first))  # type: ignore[arg-type]
            if until > _TAKEN_MAX:
                for column in first:
                    del column[:until]
                self._taken = 0
        if self._taken == len(first.physical_offsets):
            self._parts.popleft()
            self._taken = 0
        return some

    def truncate(self, physical_offset: int) -> None:
        """Remove messages from this physical offset on."""
        left = [self.take(self._count, self._count) for _ in range(len(self._parts))]
        for part in left:
            numbers = [number for number, at in enumerate(part.physical_offsets) if at < physical_offset]
            if isinstance(part, BacklogColumns):
                self.add(*part.chosen(numbers))
            elif numbers:
                self.add_run(part._replace(physical_offsets=[part.physical_offsets[n] for n in numbers]))

    def clear(self) -> None:
        self._parts.clear()
        self._taken = self._count = 0


def key_rows(messages: BacklogColumns) -> BacklogColumns:
    """Return one row per key, with the key as its text; the unique key of a message comes first."""
    texts = messages.texts
    has_keys = _KEYS_NAME in b"".join(texts)
    unique_keys = _unique_keys(texts) if _end_alike(texts[:2]) else _alike_keys(texts) or _unique_keys(texts)
    if not has_keys and None not in unique_keys:
        return messages._replace(texts=cast("list[bytes]", unique_keys))
    numbers: list[int] = []
    keys: list[bytes] = []
    for number, (unique_key, text) in enumerate(zip(unique_keys, texts, strict=True)):
        found = [unique_key] if unique_key is not None else []
        joined = find_keys(text) if has_keys else None
        if joined is not None:
            found += split_keys(joined)
        keys += found
        numbers += [number] * len(found)
    return messages.chosen(numbers)._replace(texts=keys)


def _end_alike(texts: list[bytes]) -> bool:
    """Return whether two texts end with the same unique key and the same following text."""
    ends = [text[text.rfind(_LATER_UNIQUE_KEY) :] for text in texts]
    return len(ends) == 2 and ends[0] == ends[1] and len(ends[0]) > len(_LATER_UNIQUE_KEY)


def _unique_keys(texts: list[bytes]) -> list[bytes | None]:
    """Return the unique key of each text. Messages of a batch end with the same text: the batch's key."""
    keys: list[bytes | None] = []
    ending, key = _NO_ENDING, None
    for text in texts:
        if not text.endswith(ending):
            key = find_unique_key(text)
            ending = text[text.rfind(_LATER_UNIQUE_KEY) :]
            if key is None or not ending.startswith(_LATER_UNIQUE_KEY + key):
                ending = _NO_ENDING  # no unique key, or at the start, or an empty one at the end
        keys.append(key)
    return keys


def _alike_keys(texts: list[bytes]) -> list[bytes] | None:
    """Return the unique keys of texts that start identically, as texts of one sender do; else None."""
    first = texts[0] if texts else b""
    key = find_unique_key(first)
    if key is None:
        return None
    start = first.rfind(_LATER_UNIQUE_KEY + key)
    start = start + len(_LATER_UNIQUE_KEY) if start >= 0 else len(_LATER_UNIQUE_KEY) - 1
    end = start + len(key)
    before, after = first[:start], first[end:]
    keys = [text[start:end] for text in texts]
    is_alike = list(map(len, texts)).count(len(first)) == len(texts) and before + (after + before).join(
        keys
    ) + after == b"".join(texts)
    is_found = is_alike or _are_last(before, end, texts)
    return keys if is_found and b"\x02" not in b"".join(keys) else None


def _are_last(before: bytes, end: int, texts: list[bytes]) -> bool:
    """Return whether all texts start with `before`, a value ends at `end`, and no unique key follows."""
    return (
        [text[: len(before)] for text in texts].count(before) == len(texts)
        and [text[end : end + 1] for text in texts].count(b"\x02") == len(texts)
        and _LATER_UNIQUE_KEY not in b"".join([text[end:] for text in texts])
    )
