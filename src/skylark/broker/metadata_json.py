"""Pure. JSON encoding and versions of the broker's metadata files."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from skylark.errors import RemoteProtocolError
from skylark.protocol.bodies import DataVersion, decode_body

T = TypeVar("T")
Encode = Callable[[], bytes]
"""What a snapshot is: the rest of the work, for any thread."""

_encode = msgspec.json.Encoder(order="sorted").encode


def next_version(version: DataVersion, now_ms: int) -> DataVersion:
    """The version of a table after a change."""
    return DataVersion(state_version=version.state_version, timestamp=now_ms, counter=version.counter + 1)


def encode_metadata(document: Any) -> bytes:
    """Write a map or a struct as JSON: members sorted as in RocketMQ's files, and a line for each entry.

    It is in C throughout, for tables of 100,000 entries: what Python does in a thread holds up the loop. A
    quote inside of a string is escaped, so what is replaced is never part of one. None is written as null.
    """
    return _encode(document).replace(b'},"', b'},\n"').replace(b'{},\n"', b'{},"')


def decode_metadata(data: bytes, document_type: type[T]) -> T:
    """Read a file, RocketMQ's or ours. Raises ValueError."""
    try:
        return decode_body(data, document_type)
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from None
