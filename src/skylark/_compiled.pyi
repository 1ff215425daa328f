"""The compiled module, if there is one: `_compiled.c`."""

from collections.abc import Sequence

from skylark.store.append_result import AppendedBatch, AppendedInnerBatch, AppendedRecord, PlainFields
from skylark.store.consume_queue import ConsumeQueue

def lay_out_sends(
    buffer: bytes | bytearray | memoryview,
    places: dict[bytes, tuple[ConsumeQueue, bytes, int, int, bool, int]],
    senders: dict[bytes, bytes] | None,
    position: int,
    limit: int,
    timestamp: int,
    header_bytes_max: int,
    body_bytes_max: int,
    born_host: int,
    store_host: int,
    constants: tuple[bytes, ...],
    record: type[AppendedRecord],
    batch: type[AppendedBatch],
    inner_batch: type[AppendedInnerBatch],
    /,
) -> tuple[int, int, int, bytearray, bytes, list[Sequence[AppendedRecord]]]:
    """Return end and number of the frames that were taken, the end of the log, records, replies and results.

    `constants` are the properties that the broker adds, the addresses of three functions (CRC-32, update and
    end of SHA-1), and the six parts of a reply. The module's documentation names its edition: a broker does
    not use another one.
    """

def split_records(data: bytes, physical_offset: int, crc32: int, /) -> list[PlainFields]:
    """Return the fields of the plain records at the beginning of a range of the log.

    It stops before a record that is not whole or not valid. `crc32` is the address of a function.
    """

def join_records(file: memoryview, start: int, entries: bytes | bytearray, /) -> bytes | None:
    """Return the records of queue entries, of a file that starts at an offset, in one piece.

    None if they overlap, do not ascend, or are not all in the file.
    """

def unique_key_hashes(topic_hashes: list[int], texts: list[bytes], /) -> list[int] | None:
    """Return the index hash of each message's unique key; None if one has other keys, or no plain one."""

def join_column(
    buffer: object, starts: object, ends: object, name: bytes | None, /
) -> tuple[bytes, bytearray]:
    """Return 32-bit offsets and bytes of some stretches of a buffer, one after the other.

    With a name, stretches are property texts, and their parts are the values of this property: the last that
    is not empty, or nothing. `starts` and `ends` are 64-bit integers. Raises ValueError if a stretch is not
    in the buffer, or if all of them have more than 2 GiB.
    """
