"""Pure. The unit of a consume queue: 20 bytes that point to a record of the log."""

import struct

UNIT = struct.Struct(">qiq")  # physical offset, record size, tags code
UNIT_BYTES = UNIT.size
assert UNIT_BYTES == 20
BLANK_UNIT_SIZE = 0x7FFFFFFF
# System flags of records without a unit: transactions under way or rolled back, and inner batches, whose
# queues we do not keep.
INNER_BATCH = 0x80
NO_UNIT_MASK = 0x4 | INNER_BATCH
BLANK_UNIT = UNIT.pack(0, BLANK_UNIT_SIZE, 0)
"""Stands for a unit that has no record: before a queue's first, or where the log lost one."""
