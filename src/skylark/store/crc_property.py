"""The CRC property of a record: room for it in the property text, filled in when the record is whole."""

from __future__ import annotations

from skylark.model.record import CRC_PROPERTY_BYTES, crc_property, terminated, without_crc_property
from skylark.store.disk import Part

_CRC_ROOM = b"\0" * (CRC_PROPERTY_BYTES - 1) + b"\x02"
_PARTS_PER_RECORD = 5


def with_crc_room(properties: bytes) -> bytes:
    """The property text with room for the CRC property, which covers all that comes before it."""
    return terminated(without_crc_property(properties)) + _CRC_ROOM


def fill_in_crc(parts: list[Part]) -> None:
    """Put the CRC property into the room left for it, record by record."""
    for last in range(_PARTS_PER_RECORD - 1, len(parts), _PARTS_PER_RECORD):
        properties = bytes(parts[last][:-CRC_PROPERTY_BYTES])
        covered = b"".join([*parts[last - _PARTS_PER_RECORD + 1 : last], properties])
        parts[last] = properties + crc_property(covered)
