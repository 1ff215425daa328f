"""Encodes large replies in slices: other requests wait for at most one slice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from skylark.broker.record_loader import ReadCold
from skylark.protocol.bodies import MessageQueue

A = TypeVar("A")
B = TypeVar("B")

TABLE_SLICE = 256
"""Entries of a table that are encoded at once, in C."""
READ_SLICE = 32
"""Items that a thread reads, and encodes in Python, before it yields to the loop."""

_encode = msgspec.json.Encoder(order="sorted").encode


async def encode_tables(document: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Encode a document whose `tables` may be of any size as JSON. Members that are None are omitted."""
    written = {name: msgspec.Raw(await _encode_table(table)) for name, table in tables.items()}
    return _encode({**document, **written})


async def _encode_table(table: Mapping[str, Any]) -> bytes:
    parts = []
    for number, part in enumerate(_slices(list(table.items()), TABLE_SLICE)):
        if number:
            await asyncio.sleep(0)
        # Quotes inside strings are escaped, so the replaced text never lies inside one.
        parts.append(_encode(dict(part))[1:-1].replace(b'"subscriptionDataSet":null,', b""))
    return b"{" + b",".join(parts) + b"}"


async def read_each(read_cold: ReadCold, items: Sequence[A], read: Callable[[A], B]) -> list[B]:
    """Call `read`, which may block, for each item in a reader thread, in slices."""
    results: list[B] = []
    for part in _slices(items, READ_SLICE):
        results += await read_cold(partial(_read_all, read, part))
    return results


def _read_all(read: Callable[[A], B], items: Sequence[A]) -> list[B]:
    return [read(item) for item in items]


def queue_entry(queue: MessageQueue, value: Any) -> bytes:
    """Encode one entry of a table whose keys are queues; no member of the value may be None."""
    return b"%b:%b" % (_encode(queue), _encode(value))


def _slices(items: Sequence[A], size: int) -> Iterator[Sequence[A]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
