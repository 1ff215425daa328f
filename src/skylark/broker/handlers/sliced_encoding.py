"""Encodes large replies in slices: other requests wait for at most one slice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from skylark.broker.state import BrokerState
from skylark.protocol.bodies import MessageQueue, encode_body

A = TypeVar("A")
B = TypeVar("B")

TABLE_SLICE = 256
"""Entries of a table that are written at once, by C."""
READ_SLICE = 32
"""Queues that a thread looks at, and writes about in Python, before the loop has its turn."""

_encode = msgspec.json.Encoder(order="sorted").encode


async def encode_tables(document: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Write a document as JSON, of which some members are tables of any size. What is None is left out."""
    written = {name: msgspec.Raw(await _encode_table(table)) for name, table in tables.items()}
    return _encode({**document, **written})


async def _encode_table(table: Mapping[str, Any]) -> bytes:
    parts = []
    for number, part in enumerate(_slices(list(table.items()), TABLE_SLICE)):
        if number:
            await asyncio.sleep(0)
        # Quotes within texts are escaped: what is replaced is never part of one.
        parts.append(_encode(dict(part))[1:-1].replace(b'"subscriptionDataSet":null,', b""))
    return b"{" + b",".join(parts) + b"}"


async def read_each(broker: BrokerState, items: Sequence[A], read: Callable[[A], B]) -> list[B]:
    """Do for each item what may wait for the disk, some of them at a time."""
    results: list[B] = []
    for part in _slices(items, READ_SLICE):
        results += await broker.read_cold(partial(_read_all, read, part))
    return results


def _read_all(read: Callable[[A], B], items: Sequence[A]) -> list[B]:
    return [read(item) for item in items]


def queue_entry(queue: MessageQueue, value: Any) -> bytes:
    """Write one entry of a table whose keys are queues."""
    return encode_body({queue: value})[1:-1]


def _slices(items: Sequence[A], size: int) -> Iterator[Sequence[A]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
