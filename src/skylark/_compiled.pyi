"""The compiled module, if there is one: `_compiled.c`."""

from collections.abc import Callable
from typing import Any

from skylark.store.append_result import AppendedRecord
from skylark.store.consume_queue import ConsumeQueue

def lay_out_sends(
    buffer: bytes | bytearray | memoryview,
    places: dict[bytes, ConsumeQueue],
    position: int,
    limit: int,
    timestamp: int,
    header_bytes_max: int,
    body_bytes_max: int,
    born_host: bytes,
    store_host: bytes,
    added: bytes,
    record: type[AppendedRecord],
    crc32: Callable[[Any], int],
    reply_parts: tuple[bytes, bytes, bytes, bytes, bytes, bytes],
    /,
) -> tuple[int, int, bytearray, bytes, list[AppendedRecord]]:
    """Return the end of the frames that were taken, the end of the log, records, replies and results."""

def unique_key_hashes(topic_hashes: list[int], texts: list[bytes], /) -> list[int] | None:
    """Return the index hash of each message's unique key; None if one has other keys, or no plain one."""
