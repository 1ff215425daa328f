"""Timed messages: stored in the timer topic, tracked in the timer wheel, delivered when due.

A slave keeps the same wheel, follows the master's time and delivers nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from skylark.broker.delayed.delay_levels import UNDELIVERABLE, DelayLevels, parse_level
from skylark.broker.delayed.delivery_progress import DeliveryProgress
from skylark.broker.delayed.original_destination import queues_needed
from skylark.broker.delayed.timed_messages import (
    NEVER_ENQUEUED_MS,
    PROPERTY_DELETES,
    PROPERTY_ROLLS,
    TimedMessage,
    TimerEntry,
    admit,
    admit_as_sent,
    link_units,
    may_have,
    weight_of,
)
from skylark.broker.error_replies import system_error
from skylark.broker.metadata_json import Encode, decode_metadata, next_version
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.record_loader import ReadCold, RecordLoader, RecordPosition
from skylark.clock import Clock
from skylark.errors import CorruptRecord, DiskFull, OffsetOutOfRange, StoreFailed
from skylark.histogram import DELAY_S, Histogram
from skylark.model import names
from skylark.model.message import PutMessage
from skylark.model.record import split
from skylark.protocol.bodies import DataVersion, TimerCount, TimerMetrics, encode_body
from skylark.settings import BrokerSettings
from skylark.settings.broker import TimerSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import PutResult, Refused
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import Disk
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import ENTRY
from skylark.store.timer_files import (
    NO_POSITION,
    TimerCheckpoint,
    TimerCheckpointFile,
    TimerFlag,
    TimerLog,
    TimerUnit,
    TimerWheel,
)

log = logging.getLogger(__name__)

TICK_S = 0.1
FLUSH_INTERVAL_S = 1.0
FAILURE_PAUSE_S = 0.5
AT_ONCE = 64
"""Messages that are read, written and delivered before the task yields to the loop."""
DELETES_NOW = TimerFlag.DELETE | TimerFlag.ROLL
"""A unit with only the first flag cancels a message now; with both it is rolled and cancels later."""
UNITS_AT_ONCE = 512
EMPTY_SLOTS_AT_ONCE = 10_000
WEEK_MS = 7 * 24 * 3600 * 1000
MARGIN_MS = 60_000
"""Safety margin at the end of the week that the wheel covers."""


class Timers:
    """All timed messages of one broker. Loop thread; `load` runs before, in a thread."""

    def __init__(
        self,
        *,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        store: MessageStore,
        disk: Disk,
        restore_topics: Callable[[Mapping[str, int]], None],
        stats: BrokerStats,
        read_cold: ReadCold,
        progress: DeliveryProgress,
    ) -> None:
        self._live = live
        self._clock = clock
        self._store = store
        self._progress = progress
        self._restore_topics = restore_topics
        self._stats = stats
        self._read_cold = read_cold
        self._records = RecordLoader(store, read_cold)
        settings, root = live.current.timers, store.settings.path
        self._precision_ms = settings.precision_ms
        self._window_ms = settings.roll_window_slots * settings.precision_ms
        self.wheel = TimerWheel(disk, root / "timerwheel", settings.precision_ms)
        self.log = TimerLog(disk, root / "timerlog", settings.log_file_bytes)
        self._check_file = TimerCheckpointFile(disk, root / "config" / "timercheck")
        self.check = TimerCheckpoint()
        """The checkpoint on disk, or after the running flush."""
        self.read_ms = 0
        """The next slot to process."""
        self.queue_offset = 0
        """The next message of the timer topic to put into the wheel."""
        self._random = random.Random()  # noqa: S311 - it only sheds load
        self._counts: Counter[str] = Counter()
        self.enqueued: Counter[str] = Counter()
        """Messages by topic put into the wheel since the start; below, those taken out."""
        self.dequeued: Counter[str] = Counter()
        self.delays: dict[str, Histogram] = {}
        """Requested delays in seconds, by topic."""
        self._data_version = DataVersion(timestamp=clock.now_ms())
        self.changes = 0
        self._is_loaded = False
        self._has_fired = False
        self._flushing = asyncio.Lock()
        self._flushes: asyncio.Future[None] | None = None

    # --- Taking ---

    def admit(self, message: PutMessage, properties: dict[str, str]) -> None:
        """Move a message that names a time to the timer topic, in place. Raises BrokerError 13 or 1."""
        settings = self._live.current.timers
        slot_ms = admit(message, properties, settings, self._clock.now_ms())
        if slot_ms is not None:
            self._check_room(slot_ms, settings)

    def admit_as_sent(self, message: PutMessage) -> bool:
        """As `admit`, by appending to the properties; False without a time, or if they must be parsed."""
        settings = self._live.current.timers
        slot_ms = admit_as_sent(message, settings, self._clock.now_ms())
        if slot_ms is None:
            return False
        self._check_room(slot_ms, settings)
        return True

    def _check_room(self, slot_ms: int, settings: TimerSettings) -> None:
        """Raises BrokerError 1 if too many messages wait for the same slot."""
        slot = self.wheel.get(slot_ms)
        limit = settings.slot_messages_max
        if slot is None or slot.waiting <= limit:
            return
        if slot.waiting >= 2 * limit or self._random.random() < (slot.waiting - limit) / limit:
            raise system_error(
                f"timer message is under flow control, max num limit is {2 * limit} or the current value is "
                f"greater than {limit} and less than {2 * limit}, trigger random flow control"
            )

    @property
    def waiting(self) -> int:
        """Number of messages in the wheel."""
        return self.wheel.count

    @property
    def behind_ms(self) -> int:
        """How far delivery is behind the clock."""
        return max(self._floor(self._clock.now_ms()) - self.read_ms, 0) if self._is_loaded else 0

    @property
    def queue_behind(self) -> int:
        """Number of messages that are not in the wheel yet."""
        return max(self._queue().max_offset - self.queue_offset, 0)

    # --- Over restarts ---

    def load(self) -> None:
        """Resume from the files. May block. Raises DiskFull, OSError."""
        now_ms = self._clock.now_ms()
        check = self._check_file.load()
        self.check = check or TimerCheckpoint(read_ms=self._floor(self._last_written_ms() or now_ms))
        delivered_ms = self._floor(self._progress.timer_ms)
        self.read_ms = max(self.check.read_ms, delivered_ms, self._floor(now_ms - WEEK_MS + MARGIN_MS))
        self.wheel.load(self.read_ms, max(now_ms, self.read_ms) + self._window_ms + MARGIN_MS)
        last: TimerUnit | None = None
        for position, unit in self.log.load(max(self.check.log_flushed - self.log.file_bytes, 0)):
            if unit.due_ms >= self.read_ms:
                self.wheel.add(unit.due_ms, position, weight_of(unit.flags))
            last = unit
        queue = self._queue()
        found = self.check.queue_offset if last is None else max(self.check.queue_offset, self._behind(last))
        self.queue_offset = min(max(found, queue.min_offset), queue.max_offset)
        if check is None or self.log.appended < check.log_flushed or (last is None and check.log_flushed):
            self._rebuild(queue)
        if check is None:
            # Saved at once: delivery starts here even if the broker is killed before the next write.
            self._check_file.save(self.check)
        self._is_loaded = True

    def _rebuild(self, queue: ConsumeQueue) -> None:
        """Put all undelivered messages of the queue into the wheel: their log is lost."""
        self.wheel.clear()
        rolls: dict[tuple[str, str, int], int] = {}
        for _, timed in self._all(queue):
            if timed.rolls:
                rolls[timed.identity] = max(timed.rolls, rolls.get(timed.identity, 0))
        for where, timed in self._all(queue):
            # Rolled messages have several records: only the last one counts.
            if timed.terms.out_ms >= self.read_ms and timed.rolls == rolls.get(timed.identity, 0):
                self._into_wheel([(where, timed)])
        self.queue_offset = queue.max_offset
        if len(self.wheel):
            log.warning("timers found again in their queue count=%d", self.wheel.count)

    def _all(self, queue: ConsumeQueue) -> Iterator[TimerEntry]:
        first = queue.min_offset
        while first < queue.max_offset:
            units = queue.entries(first, min(UNITS_AT_ONCE, queue.max_offset - first))
            if not units:
                first = queue.next_file_offset(first)
                continue
            for where in _places(units):
                [record] = self._records.each([where])
                timed = None if record is None else _timed(record)
                if timed is not None:
                    yield where, timed
            first += len(units) // ENTRY.size

    def _last_written_ms(self) -> int | None:
        """When the last message was stored that is still there; None in an empty store."""
        store = self._store
        times = [
            store.store_timestamp(topic, queue_id, queue.max_offset - 1)
            for (topic, queue_id), queue in list(store.queues.items())
            if queue.max_offset > queue.min_offset
        ]
        return max((time for time in times if time is not None), default=None)

    def _behind(self, unit: TimerUnit) -> int:
        """The queue offset behind the message of a unit."""
        try:
            return split(self._store.reader.record_at(unit.physical_offset)).head[5] + 1
        except (OffsetOutOfRange, CorruptRecord):
            return 0

    async def flush(self) -> None:
        """Make log, wheel and check point durable, in this order."""
        # A thread cannot be cancelled: the next flush waits until this one has ended.
        self._flushes = asyncio.ensure_future(self._flush())
        await asyncio.shield(self._flushes)

    async def _flush(self) -> None:
        async with self._flushing:
            changes = self.wheel.changes()
            is_same = self.queue_offset == self.check.queue_offset
            if not self._is_loaded or (is_same and not changes and not self._has_fired):
                return  # that time passes is not worth a write
            has_fired, self._has_fired = self._has_fired, False
            end = self._store.appended_offset if has_fired else 0
            check = replace(
                self.check,
                read_ms=self.read_ms,
                log_flushed=self.log.appended,
                queue_offset=self.queue_offset,
                master_queue_offset=self.queue_offset,
                timestamp=self._clock.now_ms(),
                counter=self.check.counter + 1,
            )
            try:
                await self._read_cold(lambda: self._write(changes, check, end))
            except (DiskFull, OSError, StoreFailed) as error:
                log.warning("cannot write timers, retrying reason=%s", error)
                self.wheel.lose_changes()
                self._has_fired = True
            else:
                self.check = check

    def _write(self, changes: list[tuple[int, bytes]], check: TimerCheckpoint, end: int) -> None:
        # What was delivered goes first: after a power failure no slot is over without its messages.
        self._store.make_durable(end)
        self.log.flush()
        self.wheel.write(changes)
        self._check_file.save(check)
        self.log.delete_before(check.read_ms, self._window_ms)

    # --- Counts ---

    def metrics(self) -> TimerMetrics:
        """How many messages wait, by topic."""
        now_ms = self._clock.now_ms()
        counts = {topic: TimerCount(count=count, time_stamp=now_ms) for topic, count in self._counts.items()}
        return TimerMetrics(timing_count=counts, data_version=self._data_version)

    def snapshot(self) -> Encode:
        """Return what writes the counts as they are now."""
        self._data_version = next_version(self._data_version, self._clock.now_ms())
        metrics = self.metrics()
        return lambda: encode_body(metrics)

    def load_metrics(self, data: bytes) -> None:
        """Load the counts of the last run. Raises ValueError."""
        metrics = decode_metadata(data, TimerMetrics)
        self._data_version = metrics.data_version or self._data_version
        self._counts.update({topic: max(each.count, 0) for topic, each in metrics.timing_count.items()})

    def _count_all(self, counts: Mapping[str, int]) -> None:
        """Adjust the number of waiting messages by topic."""
        self.changes += len(counts)
        for topic, by in counts.items():
            self._counts[topic] = max(self._counts[topic] + by, 0)

    # --- Putting into the wheel ---

    async def run(self) -> None:
        """Enqueue and deliver, until cancelled."""
        while True:
            # Wake at the end of a slot: its messages may have waited for nearly a whole slot.
            left_s = (self._precision_ms - self._clock.now_ms() % self._precision_ms) / 1000
            await asyncio.sleep(min(TICK_S, left_s))
            try:
                await self.step()
            except Exception:
                log.exception("delivery of timed messages failed, retrying")
                await asyncio.sleep(FAILURE_PAUSE_S)

    async def step(self) -> None:
        """Put what came into the wheel, and deliver what is due."""
        while await self._enqueue_some():
            pass
        await self._dequeue()

    async def _enqueue_some(self) -> bool:
        """Put some messages of the timer topic into the wheel; return whether there may be more."""
        places = await self._next_places()
        if not places:
            return False
        end = self.queue_offset + len(places)
        records = await self._records.read(places)
        found = [
            (where, timed)
            for where, record in zip(places, records, strict=True)
            if record is not None and (timed := _timed(record)) is not None
        ]
        late = [timed for _, timed in found if timed.terms.out_ms < self.read_ms]
        if 0 < len(late) < len(found):
            found, later = self._alike(found)
            end = self.queue_offset + places.index(later[0])
            late = [timed for _, timed in found if timed.terms.out_ms < self.read_ms]
        if late:
            await self._put_late([timed for timed in late if timed.deletes is None])
        else:
            self._into_wheel(found)
        self.queue_offset = end
        self._note_enqueued([timed for _, timed in found])
        await asyncio.sleep(0)  # yields to the loop
        return True

    def _alike(self, found: list[TimerEntry]) -> tuple[list[TimerEntry], list[RecordPosition]]:
        """The first messages that are all late, or all not, and where the others lie.

        Each kind is done with by itself: where the log takes no more, nothing is delivered again and again.
        """
        is_late = [timed.terms.out_ms < self.read_ms for _, timed in found]
        count = is_late.index(not is_late[0])
        return found[:count], [where for where, _ in found[count:]]

    async def _put_late(self, late: list[TimedMessage]) -> None:
        """Deliver messages whose slot is over."""
        now_ms = self._clock.now_ms()
        await self._put([timed.due(NEVER_ENQUEUED_MS, now_ms) for timed in late])
        self.dequeued.update([timed.terms.real_topic for timed in late])

    def _note_enqueued(self, found: list[TimedMessage]) -> None:
        self.enqueued.update([timed.terms.real_topic for timed in found])
        new = found
        if may_have(PROPERTY_DELETES, found) or may_have(PROPERTY_ROLLS, found):
            new = [timed for timed in found if timed.deletes is None and not timed.rolls]
        waits = Counter([(timed.terms.real_topic, timed.delay_ms // 1000) for timed in new])
        for (topic, delay_s), times in waits.items():
            self.delays.setdefault(topic, Histogram(DELAY_S)).add(max(delay_s, 0), times)

    def _into_wheel(self, entries: list[TimerEntry]) -> None:
        """Put messages into log and wheel, no more than fit into the log's file. Raises DiskFull, OSError."""
        if not entries:
            return
        settings, now_ms = self._live.current.timers, self._floor(self._clock.now_ms())
        linked = link_units(entries, self.log.appended, self.wheel.last_position, settings, now_ms)
        self.log.append(*linked.units)
        for slot_ms, chain in linked.chains.items():
            self.wheel.add(slot_ms, chain.last, chain.waiting, first=chain.first)
        self._count_all(linked.counts)

    async def _next_places(self) -> list[RecordPosition]:
        queue = self._queue()
        self.queue_offset = first = max(self.queue_offset, queue.min_offset)
        count = min(AT_ONCE, queue.max_offset - first, self.log.room)
        if count <= 0:
            return []
        units = queue.resident_entries(first, count)
        if units is None:
            units = await self._read_cold(lambda: queue.entries(first, count))
        if not units:
            self.queue_offset = queue.next_file_offset(first)
            return []
        return _places(units)

    # --- Delivering ---

    async def _dequeue(self) -> None:
        """Deliver all slots that are over."""
        empty = 0
        while self.read_ms < self._floor(self._clock.now_ms()):
            last = self.wheel.last_position(self.read_ms)
            if last != NO_POSITION:
                await self._fire(await self._read_cold(partial(self._chain, last)))
                self.wheel.remove(self.read_ms)
                self._has_fired = True
                self._note_delivered(self.read_ms + self._precision_ms)
            else:
                empty += 1
                if empty % EMPTY_SLOTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self.read_ms += self._precision_ms

    def _note_delivered(self, next_ms: int) -> None:
        self._progress.save_timers(next_ms, self._store.log.appended)

    def _chain(self, position: int) -> list[TimerUnit]:
        """The units of a slot, in the order in which they came."""
        units = []
        try:
            for unit in self.log.chain(position):
                units.append(unit)
        except CorruptRecord as error:
            log.warning("timed messages are lost: %s", error)
        return units[::-1]

    async def _fire(self, units: list[TimerUnit]) -> None:
        """Deliver the messages of a slot, except recalled ones."""
        deletes = [unit for unit in units if unit.flags & DELETES_NOW == TimerFlag.DELETE]
        keys = {timed.deletes or "" for _, timed in await self._take_out(deletes)}
        others = (
            [unit for unit in units if unit.flags & DELETES_NOW != TimerFlag.DELETE] if deletes else units
        )
        for first in range(0, len(others), AT_ONCE):
            messages = []
            now_ms = self._clock.now_ms()
            for unit, timed in await self._take_out(others[first : first + AT_ONCE]):
                if unit.flags & TimerFlag.ROLL:
                    messages.append(timed.rolled(unit.write_ms, now_ms))
                elif not keys or not timed.is_deleted_by(keys):
                    messages.append(timed.due(unit.write_ms, now_ms))
            await self._put(messages)

    async def _take_out(self, units: list[TimerUnit]) -> list[tuple[TimerUnit, TimedMessage]]:
        """Return the messages of units, and count them as taken out."""
        records = await self._records.read([(unit.physical_offset, unit.size) for unit in units])
        found = [
            (unit, timed)
            for unit, record in zip(units, records, strict=True)
            if record is not None and (timed := _timed(record)) is not None
        ]
        weights = Counter([(timed.terms.real_topic, unit.flags) for unit, timed in found])
        for (topic, flags), times in weights.items():
            self.dequeued[topic] += times
            self._count_all({topic: -times * weight_of(flags)})
        return found

    async def _put(self, messages: list[PutMessage]) -> None:
        """Store messages; refused ones are retried until the store accepts them."""
        while messages:
            # A broker killed just after it created a topic has it in no file and no queue.
            self._restore_topics(queues_needed(messages))
            results = self._store.append(messages)
            self._stats.count_late_puts(results)
            messages = _refused(messages, results) if Refused in map(type, results) else []
            await asyncio.sleep(FAILURE_PAUSE_S if messages else 0)

    def _queue(self) -> ConsumeQueue:
        return self._store.queue(names.TIMER_TOPIC, 0)

    def _floor(self, time_ms: int) -> int:
        return time_ms - time_ms % self._precision_ms


def _places(units: bytes | bytearray) -> list[RecordPosition]:
    return [(physical_offset, size) for physical_offset, size, _ in ENTRY.iter_unpack(units)]


def _timed(record: bytes) -> TimedMessage | None:
    try:
        return TimedMessage.read(record)
    except (CorruptRecord, ValueError) as error:
        log.warning("record of the timer topic left out: %s", error)
        return None


def _refused(messages: Sequence[PutMessage], results: Sequence[PutResult]) -> list[PutMessage]:
    """Return the messages to retry."""
    refused = []
    for message, result in zip(messages, results, strict=True):
        if isinstance(result, Refused) and result.status in UNDELIVERABLE:
            log.error("timed message dropped topic=%s reason=%s", message.topic, result.reason)
        elif isinstance(result, Refused):
            log.warning("timed messages wait topic=%s reason=%s", message.topic, result.reason)
            refused.append(message)
    return refused


class MasterTime:
    """The clock of a slave's wheel: it stands at the slot that the master processes next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.read_ms: int | None = None
        """The next slot that the master processes, if known."""
        self.is_own = False
        """Whether this broker is the master now: its time is the clock's."""

    @property
    def latest_ms(self) -> int:
        """A live master has delivered everything that was due before this."""
        return self._clock.now_ms() - MARGIN_MS

    def now_ms(self) -> int:
        if self.is_own:
            return self._clock.now_ms()
        return self.latest_ms if self.read_ms is None else self.read_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()


class SlaveTimers(Timers):
    """Keeps the wheel up to date on a slave, which continues with it when it is promoted, by `lead` or later.

    Slots that the master processed after its last report are then processed once more.
    """

    def __init__(
        self,
        *,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        store: MessageStore,
        disk: Disk,
        restore_topics: Callable[[Mapping[str, int]], None],
        stats: BrokerStats,
        read_cold: ReadCold,
        progress: DeliveryProgress,
    ) -> None:
        self._time = MasterTime(clock)
        super().__init__(
            live=live,
            clock=self._time,
            store=store,
            disk=disk,
            restore_topics=restore_topics,
            stats=stats,
            read_cold=read_cold,
            progress=progress,
        )

    def lead(self) -> None:
        """Deliver from now on: this broker is the master. `run` must be started again."""
        self._time.is_own = True

    def follow_another(self) -> None:
        """Deliver nothing any more. `run` must be started again. Raises OSError."""
        self._time.is_own = False
        self._progress.clear()
        self._time.read_ms = None

    def follow(self, check: TimerCheckpoint, metrics: TimerMetrics) -> None:
        """Take over the master's progress. It reports periodically: empty slots in between are skipped."""
        if self._time.is_own:
            return
        # The report may be old or empty: slots that were processed here are not repeated.
        read_ms = max(check.read_ms, self._time.read_ms or self.read_ms)
        while read_ms < self._time.latest_ms and self.wheel.get(read_ms) is None:
            read_ms += self._precision_ms
        self._time.read_ms = read_ms
        counts = Counter({topic: max(each.count, 0) for topic, each in metrics.timing_count.items()})
        if counts != self._counts:
            self._counts = counts
            self.changes += 1

    async def step(self) -> None:
        if self._time.is_own or self._time.read_ms is not None:
            # The log may have been truncated.
            self.queue_offset = min(self.queue_offset, self._queue().max_offset)
            await super().step()

    async def _put(self, messages: list[PutMessage]) -> None:
        """A slave delivers nothing: its master has done it."""
        if self._time.is_own:
            await super()._put(messages)

    def _note_delivered(self, next_ms: int) -> None:
        """The master notes it."""
        if self._time.is_own:
            super()._note_delivered(next_ms)

    def _count_all(self, counts: Mapping[str, int]) -> None:
        """The master counts."""
        if self._time.is_own:
            super()._count_all(counts)


class DelayedMessages:
    """Admits messages that are delivered later, by a delay level or by a time."""

    def __init__(self, levels: DelayLevels, timers: Timers) -> None:
        self._levels = levels
        self._timers = timers

    def admit(self, message: PutMessage, properties: dict[str, str]) -> None:
        """Move a message to where it waits, if its properties ask for that. Changes it in place.

        Raises BrokerError 13 for an invalid time, 1 if timers are off.
        """
        level = parse_level(properties)
        if level > 0:
            self._levels.delay(message, properties, level)
        else:
            self._timers.admit(message, properties)

    def admit_as_sent(self, message: PutMessage) -> bool:
        """As `admit`, without parsing the properties; False if nothing is asked for, or parsing is needed."""
        if message.properties.find(b"TIMER_") >= 0:
            return self._timers.admit_as_sent(message)
        return self._levels.delay_as_sent(message)
