"""Which ranges of which queues a query reads, decided in the driver; and reading them, in tasks.

`plan` and `read_range` are for pipelines that move ranges through Spark instead of rows.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from skylark.errors import BadStoreFile, NoRoute, RocketMQError, SettingsError
from skylark.model.tag_expression import split_tags
from skylark.pipelines.broker_origin import BrokerOrigin
from skylark.pipelines.json_bodies import JsonBodies
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
from skylark.pipelines.origin import Losses, Origin, QueueRange, clamped
from skylark.pipelines.planning import (
    RECORD_BYTES_GUESS,
    TaskLimits,
    limit_bytes,
    limit_rows,
    merged,
    ranges_between,
    tasks_of,
)
from skylark.pipelines.pushdown import Restrictions
from skylark.pipelines.schema import (
    RANGE_COLUMNS,
    VALUE,
    arrow_schema,
    columns_schema,
    spark_schema,
    table_columns,
)
from skylark.pipelines.store_files import StoreOrigin
from skylark.pipelines.wire import Queue
from skylark.pipelines.worker import settle_worker

log = logging.getLogger(__name__)

SAMPLE_AGE_MAX_S = 60.0
SAMPLED_ROWS_MIN = 1000
"""For fewer rows it does not matter how large they are."""
SHORT_WAIT_S = 10.0
SHORT_PAUSE_S = 0.2
MADE_ANEW = "the queue ends before them: its topic was deleted and made again, or its broker lost its end"
MESSAGE_BYTES_MAX = 4 << 20
GATHERED_BYTES = 1 << 20
INDEX_RESULTS_MAX = 32
"""Brokers give no more for a unique key, and do not say that there were more."""

Tasks = list[list[QueueRange]]


@dataclass(frozen=True, slots=True)
class RangeRow:
    """A range as `mode=ranges` and a dry run show it. `range` is what `read_range` takes."""

    topic: str
    broker_name: str
    queue_id: int
    from_offset: int
    to_offset: int
    messages: int
    record_bytes: int
    range: bytes


def open_origin(options: SourceOptions) -> Origin:
    """The origin that the options name."""
    return StoreOrigin(options) if options.path is not None else BrokerOrigin(options)


class Planner:
    """Plans one query. In the driver's processes; one thread."""

    def __init__(self, options: SourceOptions, restrictions: Restrictions | None = None) -> None:
        self.options = options
        self.origin: Origin = open_origin(options)
        self._restrictions = restrictions or Restrictions()
        self._queues: list[Queue] = []
        self._queues_at: float | None = None
        self._record_bytes: dict[Queue, tuple[float, float]] = {}

    def queues(self) -> list[Queue]:
        """The queues of all chosen topics, looked up again every `routeRefresh`."""
        now = time.monotonic()
        if self._queues_at is None or now - self._queues_at >= self.options.route_refresh_ms / 1000:
            try:
                self._queues = self._find_queues()
            except RocketMQError:
                if self._queues_at is None:
                    raise  # later, what was known is good enough
            self._queues_at = now
        return self._queues

    def _find_queues(self) -> list[Queue]:
        assert self.options.topic is not None
        queues: list[Queue] = []
        for topic in choose_topics(self.options.topic, self.origin):
            if not self._restrictions.allows_topic(topic):
                continue
            try:
                queues += self.origin.queues(topic)
            except (NoRoute, BadStoreFile) as error:
                if topic in split_names(self.options.topic):
                    raise
                # Meant by a pattern only: deleted since the topics were listed, or of a kind not supported.
                log.warning("topic left out topic=%s error=%s", topic, error)
        if self.options.assign is not None:
            queues = assigned(self.options.assign, queues, self._restrictions.allows_topic)
        return [queue for queue in queues if self._restrictions.allows_queue(queue)]

    def starting(self, otherwise: str) -> Offsets:
        """Where the query starts. Raises SettingsError."""
        return self._resolve("startingOffsets", self.options.starting_offsets or otherwise)

    def ending(self) -> Offsets:
        """Where a batch ends."""
        found = self._resolve("endingOffsets", self.options.ending_offsets or "latest", is_end=True)
        highs = self.origin.max_offsets(self.queues())
        return {queue: min(queue_offset, highs[queue]) for queue, queue_offset in found.items()}

    def _resolve(self, name: str, text: str, *, is_end: bool = False) -> Offsets:
        queues = self.queues()
        try:
            position = parse_position(text, round(time.time() * 1000), is_end=is_end)
            # Of queues that the query's filters leave out it does not matter whether they are there.
            fixed = {queue: at for queue, at in position.fixed.items() if self._restrictions.allows(queue)}
            position = dataclasses.replace(position, fixed=fixed)
            check_queues(position, queues)
        except ValueError as error:
            raise SettingsError(name, str(error)) from None
        return resolve(position, self.origin, queues, self.options.group_id)

    def highs(self) -> Offsets:
        """Where every queue ends now."""
        return self.origin.max_offsets(self.queues())

    def batch_ranges(self) -> list[QueueRange]:
        """What a batch reads."""
        ranges = ranges_between(self.starting("earliest"), self.ending())
        ranges = self.still_there(ranges, Losses(self.options))
        return self._restrict(ranges)

    def still_there(self, ranges: Sequence[QueueRange], losses: Losses) -> list[QueueRange]:
        """The ranges without what has aged out. Raises DataLost."""
        return clamped(ranges, self.origin.min_offsets([item.queue for item in ranges]), losses)

    def from_beginning(self, ranges: Sequence[QueueRange], start: Offsets) -> list[QueueRange]:
        """Queues that are new to the query begin where they begin; nothing of them is lost."""
        new = [item.queue for item in ranges if item.queue not in start]
        lows = self.origin.min_offsets(new) if new else {}
        moved = [
            item._replace(from_offset=max(item.from_offset, lows.get(item.queue, item.from_offset)))
            for item in ranges
        ]
        return [item for item in moved if item.messages > 0]

    def cut_short(self, start: Offsets, latest: Offsets, losses: Losses) -> Offsets:
        """Queues that end before where a query stands, and their beginnings, from where to go on.

        A broker that is recovering may find them again, so this waits. Raises DataLost.
        """
        short = [queue for queue, at in start.items() if latest.get(queue, at) < at]
        deadline = time.monotonic() + SHORT_WAIT_S
        while short and time.monotonic() < deadline:
            time.sleep(SHORT_PAUSE_S)
            ends = self.origin.max_offsets(short)
            short = [queue for queue in short if ends[queue] < start[queue]]
        for queue in short:
            losses.aged_out(QueueRange(queue, ends[queue], start[queue]), MADE_ANEW)
        return self.origin.min_offsets(short) if short else {}

    def limited(self, ranges: Sequence[QueueRange]) -> list[QueueRange]:
        """As much as one batch of a stream may hold."""
        options = self.options
        if options.max_rows_per_trigger is not None:
            ranges = limit_rows(ranges, options.max_rows_per_trigger)
        rows = sum(item.messages for item in ranges)
        if rows * MESSAGE_BYTES_MAX <= options.max_bytes_per_trigger:
            return list(ranges)
        sizes = self.record_bytes(ranges)
        return limit_bytes(ranges, sizes, options.max_bytes_per_trigger, self.origin.end_within)

    def record_bytes(self, ranges: Sequence[QueueRange]) -> list[float]:
        """How large records are, by samples at most a minute old."""
        now = time.monotonic()
        stale = [
            item
            for item in ranges
            if now - self._record_bytes.get(item.queue, (-SAMPLE_AGE_MAX_S, 0.0))[0] >= SAMPLE_AGE_MAX_S
        ]
        for item, size in zip(stale, self.origin.record_bytes(stale), strict=True):
            self._record_bytes[item.queue] = (now, size)
        return [self._record_bytes[item.queue][1] for item in ranges]

    def tasks(self, ranges: Sequence[QueueRange]) -> Tasks:
        """Which task reads what."""
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

    def rows(self, ranges: Sequence[QueueRange]) -> list[RangeRow]:
        """Ranges as rows."""
        sizes = self.record_bytes(ranges)
        return [
            RangeRow(*item.queue, *item[1:], item.messages, round(item.messages * size), item.to_bytes())
            for item, size in zip(ranges, sizes, strict=True)
        ]

    # --- Filters of a batch query ---

    def _restrict(self, ranges: Sequence[QueueRange]) -> list[QueueRange]:
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

    def _look_up(self, topics: Sequence[str]) -> list[QueueRange] | None:
        """Where the index, or an id, says the messages are; None if all must be read."""
        limits = self._restrictions
        if limits.message_id is not None:
            return self.origin.by_message_id(topics, limits.message_id)
        key, unique = (limits.unique_key, True) if limits.unique_key else (limits.key, False)
        if key is None:
            return None
        found: list[QueueRange] = []
        for topic in topics:
            places = self.origin.by_key(topic, key, unique=unique, maximum=INDEX_RESULTS_MAX)
            if places is None:
                return None
            found += places
        return found or None  # a broker whose index is off knows no key


def _within(places: Sequence[QueueRange], ranges: Sequence[QueueRange]) -> list[QueueRange]:
    """Places that lie in the ranges."""
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
    ranges: Iterable[QueueRange],
    schema: pa.Schema,
    *,
    tags: frozenset[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of some ranges. `tags` are those that a filter of the query allows."""
    from skylark.pipelines.decode import Decoder  # noqa: PLC0415  a query's start need not wait for it

    settle_worker()
    origin, losses = open_origin(options), Losses(options)
    is_json = options.decode == "json" and VALUE in schema.names
    decoder = Decoder(
        schema,
        wanted_tags=_wanted_tags(options, tags),
        json=JsonBodies(schema.field(VALUE).type) if is_json else None,
        check_crc=options.check_crc,
        on_bad=losses.damaged,
    )
    batches = (
        decoder.batch(records, wanted.queue.broker_name)
        for wanted in ranges
        for records in origin.read(wanted, losses)
    )
    return gathered(batches)


def _wanted_tags(options: SourceOptions, tags: frozenset[str] | None) -> frozenset[str] | None:
    chosen = split_tags(options.tags) if options.tags else None
    if chosen is None or tags is None:
        return tags if chosen is None else frozenset(chosen)
    return tags & set(chosen)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches joined: each costs Spark a millisecond, whatever it holds."""
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
    """The newest bodies, about as many from each queue."""
    planner = Planner(options)
    lows, highs = planner.origin.min_offsets(planner.queues()), planner.highs()
    share = -(-count // max(len(highs), 1))
    ranges = [QueueRange(queue, max(lows[queue], high - share), high) for queue, high in highs.items()]
    schema = arrow_schema(columns_schema(["body"]))
    return [
        body
        for batch in read_ranges(options, [item for item in ranges if item.messages > 0], schema)
        for body in batch.column(0).to_pylist()
    ][:count]


def range_batch(rows: Sequence[RangeRow]) -> pa.RecordBatch:
    """Range rows as Arrow, for `mode=ranges`."""
    schema = arrow_schema(spark_schema(RANGE_COLUMNS))
    columns = zip(*map(dataclasses.astuple, rows), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- For pipelines ---


def plan(options: Mapping[str, str]) -> list[RangeRow]:
    """What a batch with these options would read, without Spark. Raises SettingsError, RocketMQError."""
    planner = Planner(load(SourceOptions, options))
    tasks = planner.tasks(planner.batch_ranges())
    return planner.rows([item for task in tasks for item in task])


def read_range(options: Mapping[str, str], range: bytes, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The messages of one planned range, in a task."""
    schema = table_columns(arrow_schema(columns_schema(columns)))
    given = {name: text for name, text in options.items() if name.lower() != "mode"}
    return read_ranges(load(SourceOptions, given), [QueueRange.from_bytes(range)], schema)
