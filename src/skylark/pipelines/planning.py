"""Pure. How much of what waits goes into a batch, and which task reads what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from skylark.pipelines.offsets import Offsets
from skylark.pipelines.origin import QueueRange
from skylark.pipelines.wire import Queue

TASK_BYTES = 64 << 20
"""A task costs some 60 ms of a slot however little it reads: below this one task reads on."""
TASK_COST_BYTES = 24 << 20
"""What a core reads while it could start a task, about."""
TASK_BYTES_MAX = 1 << 30
"""Where all slots have a task, tasks grow to this before there are more: little of it is held in memory."""
RECORD_BYTES_GUESS = 1024


def ranges_between(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> list[QueueRange]:
    """What lies between two offsets. A queue that has no start is new: it is read from its beginning."""
    ranges = [QueueRange(queue, start.get(queue, 0), to_offset) for queue, to_offset in sorted(end.items())]
    return [item for item in ranges if item.messages > 0]


def limit_rows(ranges: Sequence[QueueRange], rows_max: int) -> list[QueueRange]:
    """At most so many rows, from each queue in proportion to what waits; at least one."""
    waiting = sum(item.messages for item in ranges)
    if waiting <= rows_max:
        return list(ranges)
    shares = [item.messages * rows_max // waiting for item in ranges]
    # What rounding left over goes to those who waited longest for a whole row.
    rest = rows_max - sum(shares)
    order = sorted(range(len(ranges)), key=lambda at: -(ranges[at].messages * rows_max % waiting))
    for at in order[:rest]:
        shares[at] += 1
    return [
        item._replace(to_offset=item.from_offset + share)
        for item, share in zip(ranges, shares, strict=True)
        if share
    ]


def limit_bytes(
    ranges: Sequence[QueueRange],
    record_bytes: Sequence[float],
    bytes_max: int,
    end_within: Callable[[QueueRange, int, float], int],
) -> list[QueueRange]:
    """At most so many bytes, by the same rule; at least one row, however large."""
    waiting = sum(item.messages * size for item, size in zip(ranges, record_bytes, strict=True))
    if waiting <= bytes_max or not ranges:
        return list(ranges)
    kept = []
    for item, size in zip(ranges, record_bytes, strict=True):
        share = int(item.messages * size * bytes_max / waiting)
        kept.append(item._replace(to_offset=end_within(item, share, size)))
    kept = [item for item in kept if item.messages > 0]
    return kept or [ranges[0]._replace(to_offset=ranges[0].from_offset + 1)]


def end_of(start: Mapping[Queue, int], ranges: Sequence[QueueRange]) -> Offsets:
    """The offsets behind some ranges; queues that have none stay where they are."""
    return {**start, **{item.queue: item.to_offset for item in ranges}}


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """What the options say about tasks."""

    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_tasks: int = 16
    tasks_at_once: int | None = None

    def count(self, total_bytes: float) -> int:
        """Tasks for so many bytes. If it is known how many run at once, none waits for a last round.

        If not, they grow in number as much as in size, and in pairs, since most machines have an even number
        of cores.
        """
        count, at_once = int(total_bytes // TASK_BYTES) + 1, self.tasks_at_once
        if at_once is None and count > 1:
            count = 2 * max(round(math.sqrt(total_bytes / TASK_COST_BYTES) / 2), 1)
        elif at_once is not None and count > at_once:
            count = -(-(int(total_bytes // TASK_BYTES_MAX) + 1) // at_once) * at_once
        return max(min(self.max_tasks, count), self.min_partitions or 1)


def tasks_of(
    ranges: Sequence[QueueRange], record_bytes: Sequence[float], limits: TaskLimits
) -> list[list[QueueRange]]:
    """Ranges for each task: small ones packed together, large ones split, about as many bytes in each."""
    rows = sum(item.messages for item in ranges)
    if not rows:
        return []
    weights = [size or RECORD_BYTES_GUESS for size in record_bytes]
    total = sum(item.messages * weight for item, weight in zip(ranges, weights, strict=True))
    rows_max = limits.max_records_per_partition or rows
    count = min(max(limits.count(total), -(-rows // rows_max)), rows)
    tasks: list[list[QueueRange]] = [[]]
    left, room, rows_left = total, total / count, rows_max
    for item, weight in zip(ranges, weights, strict=True):
        at = item.from_offset
        while at < item.to_offset:
            take = min(item.to_offset - at, max(round(room / weight), 0), rows_left)
            if take == 0 and tasks[-1]:
                # An equal share of what is left: what rounding left over would make a task of its own.
                room, rows_left = left / max(count - len(tasks), 1), rows_max
                tasks.append([])
                continue
            take = max(take, 1)
            tasks[-1].append(item._replace(from_offset=at, to_offset=at + take))
            at, rows_left = at + take, rows_left - take
            left, room = left - take * weight, room - take * weight
    return tasks


def merged(ranges: Sequence[QueueRange]) -> list[QueueRange]:
    """The same messages in as few ranges as possible, sorted; those named twice are there once."""
    found: list[QueueRange] = []
    for queue, items in groupby(sorted(ranges), key=lambda item: item.queue):
        for item in items:
            if found and found[-1].queue == queue and found[-1].to_offset >= item.from_offset:
                found[-1] = found[-1]._replace(to_offset=max(found[-1].to_offset, item.to_offset))
            else:
                found.append(item)
    return found
