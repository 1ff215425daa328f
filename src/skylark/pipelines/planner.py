"""Which ranges of which queues a query reads, decided in the driver; and reading them, in tasks.

`plan` and `read_range` are for pipelines that move ranges through Spark instead of rows.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from skylark.arrow.columns import BODY_TEXT, REJECTS, VALUE
from skylark.errors import BadStoreFile, NoRoute, RocketMQError, SettingsError
from skylark.model.tag_expression import split_tags
from skylark.pipelines.message_source import LossPolicy, MessageSource, OffsetRange, Positions, clamped
from skylark.pipelines.offsets import (
    Offsets,
    assigned,
    check_queues,
    choose_topics,
    parse_position,
    resolve,
    split_names,
)
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.pushdown import Restrictions
from skylark.pipelines.schema import (
    COLUMNS,
    RANGE_COLUMNS,
    arrow_schema,
    columns_schema,
    spark_schema,
    table_columns,
)
from skylark.protocol.bodies import MessageQueue

if TYPE_CHECKING:
    from skylark.arrow.decoder import Decoder
    from skylark.arrow.json_bodies import JsonBodies
    from skylark.pipelines.history import HistoryTask, TopicHistory

TASK_BYTES = 64 << 20
"""Bytes that justify another task: starting one costs about 60 ms of a slot."""
TASK_COST_BYTES = 24 << 20
"""Bytes that a core reads in the time it takes to start a task."""
TASK_BYTES_MAX = 1 << 30
"""Once every slot has a task, tasks grow up to this size before their number does."""
RECORD_BYTES_GUESS = 1024


def ranges_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[OffsetRange]:
    """The ranges between two sets of offsets. A queue without a start is new and read from offset 0."""
    ranges = [OffsetRange(queue, start.get(queue, 0), to_offset) for queue, to_offset in sorted(end.items())]
    return [item for item in ranges if item.messages > 0]


def limit_rows(ranges: Sequence[OffsetRange], rows_max: int) -> list[OffsetRange]:
    """Limit ranges to `rows_max` rows in proportion to each queue's backlog."""
    waiting = sum(item.messages for item in ranges)
    if waiting <= rows_max:
        return list(ranges)
    shares = [item.messages * rows_max // waiting for item in ranges]
    # Rows lost to rounding go to the largest remainders.
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
    ranges: Sequence[OffsetRange],
    record_bytes: Sequence[float],
    bytes_max: int,
    end_within: Callable[[OffsetRange, int, float], int],
) -> list[OffsetRange]:
    """Limit ranges to `bytes_max` bytes in proportion to each queue's backlog; keeps at least one row."""
    waiting = sum(item.messages * size for item, size in zip(ranges, record_bytes, strict=True))
    if waiting <= bytes_max or not ranges:
        return list(ranges)
    kept = []
    for item, size in zip(ranges, record_bytes, strict=True):
        share = int(item.messages * size * bytes_max / waiting)
        kept.append(item._replace(to_offset=end_within(item, share, size)))
    kept = [item for item in kept if item.messages > 0]
    return kept or [ranges[0]._replace(to_offset=ranges[0].from_offset + 1)]


def end_of(start: Mapping[MessageQueue, int], ranges: Sequence[OffsetRange]) -> Offsets:
    """The offsets after reading `ranges`; other queues keep their offset."""
    return {**start, **{item.queue: item.to_offset for item in ranges}}


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """The options that limit tasks."""

    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_tasks: int = 16
    tasks_at_once: int | None = None

    def count(self, total_bytes: float) -> int:
        """Number of tasks for a batch: a multiple of `tasks_at_once`, so that no core idles at the end.

        If that is unknown, number and size of tasks grow alike, in pairs, as most machines have an even
        number of cores.
        """
        count, at_once = int(total_bytes // TASK_BYTES) + 1, self.tasks_at_once
        if at_once is None and count > 1:
            count = 2 * max(round(math.sqrt(total_bytes / TASK_COST_BYTES) / 2), 1)
        elif at_once is not None and count > at_once:
            count = -(-(int(total_bytes // TASK_BYTES_MAX) + 1) // at_once) * at_once
        return max(min(self.max_tasks, count), self.min_partitions or 1)


def tasks_of(
    ranges: Sequence[OffsetRange], record_bytes: Sequence[float], limits: TaskLimits
) -> list[list[OffsetRange]]:
    """Distribute ranges over tasks of about equal bytes: small ranges are packed, large ones split."""
    rows = sum(item.messages for item in ranges)
    if not rows:
        return []
    weights = [size or RECORD_BYTES_GUESS for size in record_bytes]
    total = sum(item.messages * weight for item, weight in zip(ranges, weights, strict=True))
    rows_max = limits.max_records_per_partition or rows
    count = min(max(limits.count(total), -(-rows // rows_max)), rows)
    tasks: list[list[OffsetRange]] = [[]]
    left, room, rows_left = total, total / count, rows_max
    for item, weight in zip(ranges, weights, strict=True):
        at = item.from_offset
        while at < item.to_offset:
            take = min(item.to_offset - at, max(round(room / weight), 0), rows_left)
            if take == 0 and tasks[-1]:
                # Share the rest equally: rounding errors must not make a task of their own.
                room, rows_left = left / max(count - len(tasks), 1), rows_max
                tasks.append([])
                continue
            take = max(take, 1)
            tasks[-1].append(item._replace(from_offset=at, to_offset=at + take))
            at, rows_left = at + take, rows_left - take
            left, room = left - take * weight, room - take * weight
    return tasks


def merged(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Merge overlapping and adjacent ranges; returns them sorted."""
    found: list[OffsetRange] = []
    for queue, items in groupby(sorted(ranges), key=lambda item: item.queue):
        for item in items:
            if found and found[-1].queue == queue and found[-1].to_offset >= item.from_offset:
                found[-1] = found[-1]._replace(to_offset=max(found[-1].to_offset, item.to_offset))
            else:
                found.append(item)
    return found


# Parameters of mallopt(3), and what they are set to here.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES_MAX = 64 << 20
"""Several batches: less would be returned to the system after each."""
MAPPED_BYTES_MIN = 32 << 20
"""The maximum that glibc accepts."""


@cache
def settle_worker() -> None:
    """Tune this process if it is a Spark worker."""
    if TaskContext.get() is not None:
        keep_freed_memory()
        # Spark runs a full collection after every task: with all modules that outlasts a small task.
        gc.collect()
        gc.freeze()


def keep_freed_memory() -> bool:
    """Keep freed memory for the next batch instead of returning it to the system, which must clear it.

    Saves a fifth of the time to decode all columns. Returns False without glibc.
    """
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_parameter is None:
        return False
    settings = {_M_MMAP_THRESHOLD: MAPPED_BYTES_MIN, _M_TRIM_THRESHOLD: KEPT_BYTES_MAX}
    return all(set_parameter(name, size) == 1 for name, size in settings.items())


log = logging.getLogger(__name__)

SAMPLE_AGE_MAX_S = 60.0
SAMPLED_ROWS_MIN = 1000
"""Fewer rows are not sampled: their size does not matter."""
SHORT_WAIT_S = 10.0
SHORT_PAUSE_S = 0.2
MADE_ANEW = "the queue ends before them: the topic was deleted and created again, or the broker lost data"
MESSAGE_BYTES_MAX = 4 << 20
GATHERED_BYTES = 1 << 20
INDEX_RESULTS_MAX = 32
"""Brokers silently return no more than this for a unique key."""

Tasks = list[list[OffsetRange]]


@dataclass(frozen=True, slots=True)
class RangeRow:
    """A row of `mode=ranges` and of a dry run. `range` is the argument of `read_range`."""

    topic: str
    broker_name: str
    queue_id: int
    from_offset: int
    to_offset: int
    messages: int
    record_bytes: int
    range: bytes


def open_source(options: SourceOptions) -> MessageSource:
    """Open where the options say. Each kind is imported when it is used: a stream waits for its imports."""
    if options.path is not None:
        from skylark.pipelines.store_source import StoreSource  # noqa: PLC0415

        return StoreSource(options)
    from skylark.pipelines.broker_source import BrokerSource  # noqa: PLC0415

    return BrokerSource(options)


class Planner:
    """Plans one query, in a driver process. Not thread-safe."""

    def __init__(self, options: SourceOptions, restrictions: Restrictions | None = None) -> None:
        self.options = options
        self.origin: MessageSource = open_source(options)
        self.history: TopicHistory | None = None
        self._positions: Positions = self.origin
        if options.history is not None:
            from skylark.pipelines.history import LongMemory, TopicHistory  # noqa: PLC0415  slow to import

            self.history = TopicHistory(*options.history.split(":", 1))
            self._positions = LongMemory(self.origin, self.history)
        self._restrictions = restrictions or Restrictions()
        self._queues: list[MessageQueue] = []
        self._queues_at: float | None = None
        self._record_bytes: dict[MessageQueue, tuple[float, float]] = {}

    def queues(self) -> list[MessageQueue]:
        """The queues of the selected topics, refreshed every `routeRefresh`."""
        now = time.monotonic()
        if self._queues_at is None or now - self._queues_at >= self.options.route_refresh_ms / 1000:
            try:
                self._queues = self._find_queues()
            except RocketMQError:
                if self._queues_at is None:
                    raise  # later, keep the known queues
            self._queues_at = now
        return self._queues

    def _find_queues(self) -> list[MessageQueue]:
        assert self.options.topic is not None
        queues: list[MessageQueue] = []
        for topic in choose_topics(self.options.topic, self.origin):
            if not self._restrictions.allows_topic(topic):
                continue
            try:
                queues += self.origin.queues(topic)
            except (NoRoute, BadStoreFile) as error:
                if topic in split_names(self.options.topic):
                    raise
                # Matched by a pattern: deleted since the topics were listed, or not supported.
                log.warning("topic skipped topic=%s error=%s", topic, error)
        if self.options.assign is not None:
            queues = assigned(self.options.assign, queues, self._restrictions.allows_topic)
        return [queue for queue in queues if self._restrictions.allows_queue(queue)]

    def starting(self, otherwise: str) -> Offsets:
        """Start offsets of the query. Raises SettingsError."""
        return self._resolve("startingOffsets", self.options.starting_offsets or otherwise)

    def ending(self) -> Offsets:
        """End offsets of a batch query."""
        found = self._resolve("endingOffsets", self.options.ending_offsets or "latest", is_end=True)
        highs = self.origin.max_offsets(self.queues())
        return {queue: min(queue_offset, highs[queue]) for queue, queue_offset in found.items()}

    def _resolve(self, name: str, text: str, *, is_end: bool = False) -> Offsets:
        queues = self.queues()
        try:
            position = parse_position(text, round(time.time() * 1000), is_end=is_end)
            # Queues excluded by the query's filters need not exist.
            fixed = {queue: at for queue, at in position.fixed.items() if self._restrictions.allows(queue)}
            position = dataclasses.replace(position, fixed=fixed)
            check_queues(position, queues)
        except ValueError as error:
            raise SettingsError(name, str(error)) from None
        return resolve(position, self._positions, queues, self.options.group_id)

    def highs(self) -> Offsets:
        """The current end offset of every queue."""
        return self.origin.max_offsets(self.queues())

    def batch_ranges(self) -> list[OffsetRange]:
        """The ranges of a batch query in the log."""
        return self.batch()[1]

    def batch(self) -> tuple[list[OffsetRange], list[OffsetRange]]:
        """The ranges of a batch query: what is read from the history's table, and what from the log."""
        archived, rest = self.split(ranges_between(self.starting("earliest"), self.ending()))
        archived = [self._restrictions.clip(item) for item in archived]
        rest = self.still_there(rest, LossPolicy(self.options))
        return [item for item in archived if item.messages > 0], self._restrict(rest)

    def split(self, ranges: Sequence[OffsetRange]) -> tuple[list[OffsetRange], list[OffsetRange]]:
        """Divide ranges into what is read from the history's table, and what from the log."""
        if self.history is None:
            return [], list(ranges)
        from skylark.pipelines.history import split_at  # noqa: PLC0415  slow to import

        archived, rest = split_at(ranges, self.history.ends)
        lows = self.origin.min_offsets([item.queue for item in rest])
        if any(item.from_offset < lows[item.queue] for item in rest):  # the archive may have gone on
            self.history.refresh()
            archived, rest = split_at(ranges, self.history.ends)
        return archived, rest

    def still_there(self, ranges: Sequence[OffsetRange], losses: LossPolicy) -> list[OffsetRange]:
        """Drop expired offsets. Raises DataLost."""
        return clamped(ranges, self.origin.min_offsets([item.queue for item in ranges]), losses)

    def from_beginning(self, ranges: Sequence[OffsetRange], start: Offsets) -> list[OffsetRange]:
        """Move the start of new queues to their first retained offset; that is not a loss."""
        new = [item.queue for item in ranges if item.queue not in start]
        lows = self._positions.min_offsets(new) if new else {}
        moved = [
            item._replace(from_offset=max(item.from_offset, lows.get(item.queue, item.from_offset)))
            for item in ranges
        ]
        return [item for item in moved if item.messages > 0]

    def cut_short(self, start: Offsets, latest: Offsets, losses: LossPolicy) -> Offsets:
        """Find queues that end before the query's offset; return their first offsets, to restart from.

        Waits a while, as a recovering broker may restore them. Raises DataLost.
        """
        short = [queue for queue, at in start.items() if latest.get(queue, at) < at]
        deadline = time.monotonic() + SHORT_WAIT_S
        while short and time.monotonic() < deadline:
            time.sleep(SHORT_PAUSE_S)
            ends = self.origin.max_offsets(short)
            short = [queue for queue in short if ends[queue] < start[queue]]
        for queue in short:
            losses.aged_out(OffsetRange(queue, ends[queue], start[queue]), MADE_ANEW)
        return self.origin.min_offsets(short) if short else {}

    def limited(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Limit ranges to one batch of a stream; one that reads the history's table reads nothing else."""
        options = self.options
        archived, ranges = self.split(ranges)
        if archived:
            assert self.history is not None
            rows_max = max(int(options.max_bytes_per_trigger / self.history.row_bytes), 1)
            return limit_rows(archived, min(rows_max, options.max_rows_per_trigger or rows_max))
        if options.max_rows_per_trigger is not None:
            ranges = limit_rows(ranges, options.max_rows_per_trigger)
        rows = sum(item.messages for item in ranges)
        if rows * MESSAGE_BYTES_MAX <= options.max_bytes_per_trigger:
            return list(ranges)
        sizes = self.record_bytes(ranges)
        return limit_bytes(ranges, sizes, options.max_bytes_per_trigger, self.origin.end_within)

    def record_bytes(self, ranges: Sequence[OffsetRange]) -> list[float]:
        """Mean record sizes, from samples at most a minute old."""
        now = time.monotonic()
        stale = [
            item
            for item in ranges
            if now - self._record_bytes.get(item.queue, (-SAMPLE_AGE_MAX_S, 0.0))[0] >= SAMPLE_AGE_MAX_S
        ]
        for item, size in zip(stale, self.origin.record_bytes(stale), strict=True):
            self._record_bytes[item.queue] = (now, size)
        return [self._record_bytes[item.queue][1] for item in ranges]

    def tasks(self, ranges: Sequence[OffsetRange]) -> Tasks:
        options = self.options
        limits = TaskLimits(
            options.min_partitions,
            options.max_records_per_partition,
            options.max_tasks,
            options.tasks_at_once,
        )
        is_small = sum(item.messages for item in ranges) < SAMPLED_ROWS_MIN
        sizes = [float(RECORD_BYTES_GUESS)] * len(ranges) if is_small else self.record_bytes(ranges)
        return tasks_of(ranges, sizes, limits)

    def rows(self, ranges: Sequence[OffsetRange]) -> list[RangeRow]:
        return [_row(item, size) for item, size in zip(ranges, self.record_bytes(ranges), strict=True)]

    def archived_rows(self, ranges: Sequence[OffsetRange]) -> list[RangeRow]:
        """As `rows`, for ranges of the history's table; their bytes are a guess."""
        return [_row(item, 0.0 if self.history is None else self.history.row_bytes) for item in ranges]

    # --- Filters of a batch query ---

    def _restrict(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        limits = self._restrictions
        ranges = [limits.clip(item) for item in ranges]
        ranges = [item for item in ranges if item.messages > 0]
        if limits.from_ms is not None and ranges:
            lows = self.origin.offsets_by_time([item.queue for item in ranges], limits.from_ms)
            ranges = [item._replace(from_offset=max(item.from_offset, lows[item.queue])) for item in ranges]
        if limits.to_ms is not None and ranges:
            highs = self.origin.offsets_by_time([item.queue for item in ranges], limits.to_ms)
            ranges = [item._replace(to_offset=min(item.to_offset, highs[item.queue])) for item in ranges]
        ranges = [item for item in ranges if item.messages > 0]
        places = self._look_up(sorted({item.queue.topic for item in ranges}))
        return ranges if places is None else _within(merged(places), ranges)

    def _look_up(self, topics: Sequence[str]) -> list[OffsetRange] | None:
        """Ranges found by index or message id; None if everything must be read."""
        limits = self._restrictions
        if limits.message_id is not None:
            return self.origin.by_message_id(topics, limits.message_id)
        key, unique = (limits.unique_key, True) if limits.unique_key else (limits.key, False)
        if key is None:
            return None
        found: list[OffsetRange] = []
        for topic in topics:
            places = self.origin.by_key(topic, key, unique=unique, maximum=INDEX_RESULTS_MAX)
            if places is None:
                return None
            found += places
        return found or None  # the broker may have no index


def _row(item: OffsetRange, record_bytes: float) -> RangeRow:
    return RangeRow(
        item.queue.topic,
        item.queue.broker_name,
        item.queue.queue_id,
        item.from_offset,
        item.to_offset,
        item.messages,
        round(item.messages * record_bytes),
        item.to_bytes(),
    )


def _within(places: Sequence[OffsetRange], ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Clip `places` to `ranges`."""
    bounds = {item.queue: item for item in ranges}
    clipped = [
        place._replace(
            from_offset=max(place.from_offset, bounds[place.queue].from_offset),
            to_offset=min(place.to_offset, bounds[place.queue].to_offset),
        )
        for place in places
        if place.queue in bounds
    ]
    return [place for place in clipped if place.messages > 0]


# --- Reading ---


def read_ranges(
    options: SourceOptions,
    ranges: Iterable[OffsetRange],
    schema: pa.Schema,
    *,
    tags: frozenset[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of some ranges. `tags` restricts them to the tags that a query's filter allows."""
    from skylark.arrow.decoder import Decoder  # noqa: PLC0415  slow to import, not needed to plan

    settle_worker()
    origin, losses = open_source(options), LossPolicy(options)
    decoder = Decoder(
        schema,
        wanted_tags=_wanted_tags(options, tags),
        json=decoder_of(options, schema),
        check_crc=options.check_crc,
        on_bad=losses.damaged,
    )
    return join_small_batches(_decoded(origin, ranges, losses, decoder))


def _decoded(
    origin: MessageSource, ranges: Iterable[OffsetRange], losses: LossPolicy, decoder: Decoder
) -> Iterator[pa.RecordBatch]:
    """Decode ranges. An error gets a note that names the place, which `plain_error` shows."""
    for wanted in ranges:
        at = wanted.from_offset
        try:
            for records in origin.read(wanted, losses):
                yield decoder.batch(records, wanted.queue.broker_name)
                whole = records.heads["queue_offset"][~records.bad]
                at = int(whole[-1]) + 1 if len(whole) else at
        except Exception as error:
            queue = wanted.queue
            place = f"topic {queue.topic}, broker {queue.broker_name}, queue {queue.queue_id}"
            error.add_note(f"while reading {place}, from offset {at}")
            raise


def read_archived(
    options: SourceOptions, task: HistoryTask, schema: pa.Schema, *, tags: frozenset[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task from the history's table, as `read_ranges` does from the log."""
    import pyarrow.compute as pc  # noqa: PLC0415  slow to import

    from skylark.arrow.decoder import as_text, decode_bodies, rejected_bodies  # noqa: PLC0415
    from skylark.pipelines.history import read_history  # noqa: PLC0415
    from skylark.pipelines.lake.location import open_files  # noqa: PLC0415

    assert options.history is not None
    settle_worker()
    wanted = _wanted_tags(options, tags)
    derived = [name for name in schema.names if name not in COLUMNS]
    needed = [*(name for name in schema.names if name in COLUMNS), *(["body"] if derived else [])]
    needed += ["tags"] if wanted is not None else []
    json = decoder_of(options, schema)
    files = open_files(options.history.split(":", 1)[1])
    for batch in read_history(files, task, list(dict.fromkeys(needed))):
        if wanted is not None:
            batch = batch.filter(pc.is_in(batch.column("tags"), pa.array(sorted(wanted), pa.string())))  # noqa: PLW2901
        columns = {name: batch.column(name) for name in batch.schema.names}
        if derived:
            bodies = columns["body"]
            columns[BODY_TEXT] = as_text(bodies)
            columns[VALUE], rejected = decode_bodies(bodies, np.zeros(len(bodies), np.bool_), json)
            columns[REJECTS] = rejected_bodies(bodies, rejected)
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def decoder_of(options: SourceOptions, schema: pa.Schema) -> JsonBodies | None:
    """What makes the column `value`; None if it is text, or not read."""
    if options.decode in (None, "text") or VALUE not in schema.names:
        return None
    from skylark.arrow.json_bodies import JsonBodies  # noqa: PLC0415

    kind = schema.field(VALUE).type
    if options.decode == "csv":
        from skylark.arrow.body_formats import csv_format  # noqa: PLC0415

        return JsonBodies(kind, csv_format(kind).read)
    return (
        JsonBodies(kind)
        if options.body_schema is None
        else JsonBodies(kind, options.body_schema.format().read)
    )


def _wanted_tags(options: SourceOptions, tags: frozenset[str] | None) -> frozenset[str] | None:
    chosen = split_tags(options.tags) if options.tags else None
    if chosen is None or tags is None:
        return tags if chosen is None else frozenset(chosen)
    return tags & set(chosen)


def join_small_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches: each costs Spark a millisecond regardless of size."""
    small: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows == 0:
            continue
        small.append(batch)
        if sum(item.nbytes for item in small) >= GATHERED_BYTES:
            yield small[0] if len(small) == 1 else pa.concat_batches(small)
            small = []
    if small:
        yield small[0] if len(small) == 1 else pa.concat_batches(small)


def sample_bodies(options: SourceOptions, count: int) -> list[bytes]:
    """The newest bodies, evenly from all queues."""
    planner = Planner(options)
    lows, highs = planner.origin.min_offsets(planner.queues()), planner.highs()
    share = -(-count // max(len(highs), 1))
    ranges = [OffsetRange(queue, max(lows[queue], high - share), high) for queue, high in highs.items()]
    schema = arrow_schema(columns_schema(["body"]))
    return [
        body
        for batch in read_ranges(options, [item for item in ranges if item.messages > 0], schema)
        for body in batch.column(0).to_pylist()
    ][:count]


def range_batch(rows: Sequence[RangeRow]) -> pa.RecordBatch:
    """Rows of `mode=ranges` as Arrow."""
    schema = arrow_schema(spark_schema(RANGE_COLUMNS))
    columns = zip(*map(dataclasses.astuple, rows), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- For pipelines ---


def plan(options: Mapping[str, str]) -> list[RangeRow]:
    """Plan a batch query without Spark. Raises SettingsError, RocketMQError."""
    planner = Planner(load(SourceOptions, options))
    archived, ranges = planner.batch()
    tasks = planner.tasks(ranges)
    return planner.archived_rows(archived) + planner.rows([item for task in tasks for item in task])


def read_range(options: Mapping[str, str], range: bytes, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one planned range, in a task."""
    schema = table_columns(arrow_schema(columns_schema(columns)))
    given = {name: text for name, text in options.items() if name.lower() != "mode"}
    return read_ranges(load(SourceOptions, given), [OffsetRange.from_bytes(range)], schema)
