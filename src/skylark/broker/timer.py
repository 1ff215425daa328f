"""Timed messages wait in the timer topic and in the wheel, and go to their own topic when their time comes.

At least once: the slots of the last second are dealt with again after a crash. After an orderly end none is.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from skylark.broker.documents import Encode, decode_document, next_version
from skylark.broker.refusals import system_error
from skylark.broker.schedule import UNDELIVERABLE, ReadCold
from skylark.broker.timed_messages import NEVER_ENQUEUED_MS, TimedMessage, admit, place
from skylark.clock import Clock
from skylark.errors import CorruptRecord, OffsetOutOfRange
from skylark.histogram import DELAY_S, Histogram
from skylark.model import names
from skylark.model.message import PutMessage
from skylark.model.record import split
from skylark.protocol.bodies import DataVersion, encode_body
from skylark.protocol.stats_bodies import TimerCount, TimerMetrics
from skylark.settings import BrokerSettings
from skylark.settings.live import Live
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import Disk
from skylark.store.message_store import MessageStore
from skylark.store.placed import Refused
from skylark.store.timer_check import TimerCheck, TimerCheckFile
from skylark.store.timer_log import NO_POSITION, TimerFlag, TimerLog, TimerUnit
from skylark.store.timer_wheel import TimerWheel
from skylark.store.unit import BLANK_UNIT_SIZE, UNIT

log = logging.getLogger(__name__)

TICK_S = 0.1
FLUSH_INTERVAL_S = 1.0
FAILURE_PAUSE_S = 0.5
AT_ONCE = 64
"""Messages that are read, written and delivered before others have their turn."""
UNITS_AT_ONCE = 512
EMPTY_SLOTS_AT_ONCE = 10_000
WEEK_MS = 7 * 24 * 3600 * 1000
MARGIN_MS = 60_000
"""A wheel that stood still for a week, but for this, has forgotten what came before."""


class TimerHost(Protocol):
    """What timers need of their broker."""

    live: Live[BrokerSettings]
    clock: Clock
    store: MessageStore

    @property
    def read_cold(self) -> ReadCold: ...
    def adopt_undeleted(self, queues_by_topic: Mapping[str, int]) -> None: ...


class _Place(NamedTuple):
    """A record of the timer topic."""

    queue_offset: int
    physical_offset: int
    size: int


class Timers:
    """All timed messages of one broker. Loop thread; `load` runs before, in a thread."""

    def __init__(self, broker: TimerHost, disk: Disk, root: Path) -> None:
        self._broker = broker
        settings = broker.live.current.timers
        self._precision_ms = settings.precision_ms
        self._window_ms = settings.roll_window_slots * settings.precision_ms
        self.wheel = TimerWheel(disk, root / "timerwheel", settings.precision_ms)
        self.log = TimerLog(disk, root / "timerlog", settings.log_file_bytes)
        self._check_file = TimerCheckFile(disk, root / "config" / "timercheck")
        self.check = TimerCheck()
        """What the disk holds, or will after the flush that runs."""
        self.read_ms = 0
        """The next slot to deal with."""
        self.queue_offset = 0
        """The next message of the timer topic to put into the wheel."""
        self._random = random.Random()  # noqa: S311 - it only sheds load
        self._counts: Counter[str] = Counter()
        self.enqueued: Counter[str] = Counter()
        """Messages by topic that went into the wheel since the start, and below those that came out of it."""
        self.dequeued: Counter[str] = Counter()
        self.delays: dict[str, Histogram] = {}
        """For how long messages were to wait, in seconds, by topic."""
        self._data_version = DataVersion(timestamp=broker.clock.now_ms())
        self.changes = 0
        self._is_loaded = False
        self._has_fired = False
        self._flushing = asyncio.Lock()
        self._flushes: asyncio.Future[None] | None = None

    # --- Taking ---

    def admit(self, message: PutMessage, properties: dict[str, str]) -> None:
        """Let a message wait that names a time, in place. Raises BrokerError 13 or 1."""
        settings = self._broker.live.current.timers
        slot_ms = admit(message, properties, settings, self._broker.clock.now_ms())
        if slot_ms is None:
            return
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
        """Messages whose time has not come."""
        return self.wheel.count

    @property
    def behind_ms(self) -> int:
        """How long ago the slot was over that is to be dealt with next."""
        return max(self._floor(self._broker.clock.now_ms()) - self.read_ms, 0) if self._is_loaded else 0

    @property
    def queue_behind(self) -> int:
        """Messages that are not in the wheel yet."""
        return max(self._queue().max_offset - self.queue_offset, 0)

    # --- Over restarts ---

    def load(self) -> None:
        """Go on where the files end. May wait for the disk. Raises DiskFull, OSError."""
        now_ms = self._broker.clock.now_ms()
        check = self._check_file.load()
        self.check = check or TimerCheck(read_ms=self._floor(self._last_written_ms() or now_ms))
        self.read_ms = max(self.check.read_ms, self._floor(now_ms - WEEK_MS + MARGIN_MS))
        self.wheel.load(self.read_ms, max(now_ms, self.read_ms) + self._window_ms + MARGIN_MS)
        last: TimerUnit | None = None
        for position, unit in self.log.load(max(self.check.log_flushed - self.log.file_bytes, 0)):
            if unit.due_ms >= self.read_ms:
                self.wheel.add(unit.due_ms, position, _weight(unit))
            last = unit
        queue = self._queue()
        found = self.check.queue_offset if last is None else max(self.check.queue_offset, self._behind(last))
        self.queue_offset = min(max(found, queue.min_offset), queue.max_offset)
        if check is None or self.log.appended < check.log_flushed or (last is None and check.log_flushed):
            self._rebuild(queue)
        if check is None:
            # From here on time counts, even if the broker is killed before anything else is written.
            self._check_file.save(self.check)
        self._is_loaded = True

    def _rebuild(self, queue: ConsumeQueue) -> None:
        """Put all of the queue into the wheel whose slot was not dealt with, for there is no log of them."""
        self.wheel.clear()
        rolls: dict[tuple[str, str, int], int] = {}
        for _, timed in self._all(queue):
            if timed.rolls:
                rolls[timed.identity] = max(timed.rolls, rolls.get(timed.identity, 0))
        for where, timed in self._all(queue):
            # Of one that was written again on the way, only the last record counts.
            if timed.out_ms >= self.read_ms and timed.rolls == rolls.get(timed.identity, 0):
                self._into_wheel(timed, where)
        self.queue_offset = queue.max_offset
        if len(self.wheel):
            log.warning("timers found again in their queue count=%d", self.wheel.count)

    def _all(self, queue: ConsumeQueue) -> Iterator[tuple[_Place, TimedMessage]]:
        first = queue.min_offset
        while first < queue.max_offset:
            units = queue.units(first, min(UNITS_AT_ONCE, queue.max_offset - first))
            if not units:
                first = queue.next_file_offset(first)
                continue
            for where in _places(first, units):
                [record] = self._records([where.physical_offset])
                timed = None if record is None else _timed(record)
                if timed is not None:
                    yield where, timed
            first += len(units) // UNIT.size

    def _last_written_ms(self) -> int | None:
        """When the last message was stored that is still there; None in an empty store."""
        store = self._broker.store
        times = [
            store.store_timestamp(topic, queue_id, queue.max_offset - 1)
            for (topic, queue_id), queue in list(store.queues.items())
            if queue.max_offset > queue.min_offset
        ]
        return max((time for time in times if time is not None), default=None)

    def _behind(self, unit: TimerUnit) -> int:
        """The queue offset behind the message of a unit."""
        try:
            return split(self._broker.store.reader.record_at(unit.physical_offset)).head[5] + 1
        except (OffsetOutOfRange, CorruptRecord):
            return 0

    async def flush(self) -> None:
        """Make log, wheel and check point durable, in this order."""
        # A thread cannot be cancelled: the next flush waits for it, whoever waits for this one.
        self._flushes = asyncio.ensure_future(self._flush())
        await asyncio.shield(self._flushes)

    async def _flush(self) -> None:
        async with self._flushing:
            changes = self.wheel.changes()
            is_same = self.queue_offset == self.check.queue_offset
            if not self._is_loaded or (is_same and not changes and not self._has_fired):
                return  # that time passes is not worth a write
            self._has_fired = False
            check = replace(
                self.check,
                read_ms=self.read_ms,
                log_flushed=self.log.appended,
                queue_offset=self.queue_offset,
                master_queue_offset=self.queue_offset,
                timestamp=self._broker.clock.now_ms(),
                counter=self.check.counter + 1,
            )
            try:
                await self._broker.read_cold(lambda: self._write(changes, check))
            except OSError as error:
                log.warning("timers not written, will be tried again reason=%s", error)
                self.wheel.lose_changes()
                self._has_fired = True
            else:
                self.check = check

    def _write(self, changes: list[tuple[int, bytes]], check: TimerCheck) -> None:
        self.log.flush()
        self.wheel.write(changes)
        self._check_file.save(check)
        self.log.delete_before(check.read_ms, self._window_ms)

    # --- Counts ---

    def metrics(self) -> TimerMetrics:
        """How many messages wait, by topic."""
        now_ms = self._broker.clock.now_ms()
        counts = {topic: TimerCount(count=count, time_stamp=now_ms) for topic, count in self._counts.items()}
        return TimerMetrics(timing_count=counts, data_version=self._data_version)

    def snapshot(self) -> Encode:
        """Return what writes the counts as they are now."""
        self._data_version = next_version(self._data_version, self._broker.clock.now_ms())
        metrics = self.metrics()
        return lambda: encode_body(metrics)

    def load_metrics(self, data: bytes) -> None:
        """Take the counts of the last run. Raises ValueError."""
        metrics = decode_document(data, TimerMetrics)
        self._data_version = metrics.data_version or self._data_version
        self._counts.update({topic: max(each.count, 0) for topic, each in metrics.timing_count.items()})

    def _count(self, topic: str, by: int) -> None:
        self.changes += 1
        self._counts[topic] = max(self._counts[topic] + by, 0)

    # --- Putting into the wheel ---

    async def run(self) -> None:
        """Enqueue and deliver, until cancelled."""
        while True:
            # At the end of a slot at once: what is in it may have waited for nearly a whole one.
            left_s = (self._precision_ms - self._broker.clock.now_ms() % self._precision_ms) / 1000
            await asyncio.sleep(min(TICK_S, left_s))
            try:
                await self.step()
            except Exception:
                log.exception("timed messages failed, trying again")
                await asyncio.sleep(FAILURE_PAUSE_S)

    async def step(self) -> None:
        """Put what came into the wheel, and deliver what is due."""
        while await self._enqueue_some():
            pass
        await self._dequeue()

    async def _enqueue_some(self) -> bool:
        """Put some messages of the timer topic into the wheel; return whether there may be more."""
        places = await self._next_places()
        records = await self._read([place.physical_offset for place in places])
        for where, record in zip(places, records, strict=True):
            timed = None if record is None else _timed(record)
            if timed is not None:
                await self._enqueue(timed, where)
            self.queue_offset = where.queue_offset + 1
        await asyncio.sleep(0)  # others have their turn
        return bool(places)

    async def _enqueue(self, timed: TimedMessage, where: _Place) -> None:
        topic = timed.real_topic
        self.enqueued[topic] += 1
        if timed.deletes is None and not timed.rolls:
            delay_s = (timed.out_ms - timed.message.born_timestamp) // 1000
            self.delays.setdefault(topic, Histogram(DELAY_S)).add(max(delay_s, 0))
        if timed.out_ms < self.read_ms:
            if timed.deletes is None:
                self.dequeued[topic] += 1
                await self._put([timed.due(NEVER_ENQUEUED_MS, self._broker.clock.now_ms())])
            return
        self._into_wheel(timed, where)

    def _into_wheel(self, timed: TimedMessage, where: _Place) -> None:
        # Its slot may be over, but not dealt with: then what takes it back still counts.
        write_ms = min(self._floor(self._broker.clock.now_ms()), timed.out_ms)
        settings = self._broker.live.current.timers
        slot_ms, flags = place(timed.out_ms, write_ms, settings, deletes=timed.deletes is not None)
        unit = TimerUnit(
            self.wheel.last_position(slot_ms), flags, write_ms, slot_ms - write_ms,
            where.physical_offset, where.size, timed.topic_hash,
        )  # fmt: skip
        self.wheel.add(slot_ms, self.log.append(unit), _weight(unit))
        self._count(timed.real_topic, _weight(unit))

    async def _next_places(self) -> list[_Place]:
        queue = self._queue()
        self.queue_offset = first = max(self.queue_offset, queue.min_offset)
        count = min(AT_ONCE, queue.max_offset - first)
        if count <= 0:
            return []
        units = queue.resident_units(first, count)
        if units is None:
            units = await self._broker.read_cold(lambda: queue.units(first, count))
        if not units:
            self.queue_offset = queue.next_file_offset(first)
            return []
        return _places(first, units)

    # --- Delivering ---

    async def _dequeue(self) -> None:
        """Deal with all slots that are over."""
        empty = 0
        while self.read_ms < self._floor(self._broker.clock.now_ms()):
            last = self.wheel.last_position(self.read_ms)
            if last != NO_POSITION:
                await self._fire(await self._broker.read_cold(partial(self._chain, last)))
                self.wheel.remove(self.read_ms)
                self._has_fired = True
            else:
                empty += 1
                if empty % EMPTY_SLOTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self.read_ms += self._precision_ms

    def _chain(self, position: int) -> list[TimerUnit]:
        """The units of a slot, in the order in which they came."""
        units = []
        try:
            while position != NO_POSITION:
                unit = self.log.read(position)
                units.append(unit)
                position = unit.previous
        except CorruptRecord as error:
            log.warning("timed messages are lost: %s", error)
        return units[::-1]

    async def _fire(self, units: list[TimerUnit]) -> None:
        """Deliver the messages of a slot, but for those that were taken back."""
        deletes = [
            unit for unit in units if unit.flags & TimerFlag.DELETE and not unit.flags & TimerFlag.ROLL
        ]
        keys: set[str] = set()
        for unit, timed in await self._timed(deletes):
            keys.add(timed.deletes or "")
            self.dequeued[timed.real_topic] += 1
            self._count(timed.real_topic, -_weight(unit))
        others = [unit for unit in units if unit not in deletes] if deletes else units
        for first in range(0, len(others), AT_ONCE):
            messages = []
            now_ms = self._broker.clock.now_ms()
            for unit, timed in await self._timed(others[first : first + AT_ONCE]):
                self._count(timed.real_topic, -_weight(unit))
                self.dequeued[timed.real_topic] += 1
                if unit.flags & TimerFlag.ROLL:
                    messages.append(timed.rolled(unit.write_ms, now_ms))
                elif not timed.is_deleted_by(keys):
                    messages.append(timed.due(unit.write_ms, now_ms))
            await self._put(messages)

    async def _timed(self, units: list[TimerUnit]) -> Iterable[tuple[TimerUnit, TimedMessage]]:
        records = await self._read([unit.physical_offset for unit in units])
        found = [
            (unit, None if record is None else _timed(record))
            for unit, record in zip(units, records, strict=True)
        ]
        return [(unit, timed) for unit, timed in found if timed is not None]

    async def _put(self, messages: list[PutMessage]) -> None:
        """Store messages; what the store cannot take now is tried until it can."""
        while messages:
            # A broker killed just after it made a topic has it in no file and no queue.
            ordered = sorted(messages, key=lambda message: message.queue_id)
            self._broker.adopt_undeleted({message.topic: message.queue_id + 1 for message in ordered})
            results = self._broker.store.append(messages)
            refused = []
            for message, result in zip(messages, results, strict=True):
                if isinstance(result, Refused) and result.status in UNDELIVERABLE:
                    log.error("timed message dropped topic=%s reason=%s", message.topic, result.reason)
                elif isinstance(result, Refused):
                    log.warning("timed messages wait topic=%s reason=%s", message.topic, result.reason)
                    refused.append(message)
            messages = refused
            await asyncio.sleep(FAILURE_PAUSE_S if messages else 0)

    async def _read(self, physical_offsets: list[int]) -> list[bytes | None]:
        if all(offset >= self._broker.store.reader.hot.written_from for offset in physical_offsets):
            return self._records(physical_offsets)
        return await self._broker.read_cold(lambda: self._records(physical_offsets))

    def _records(self, physical_offsets: list[int]) -> list[bytes | None]:
        records: list[bytes | None] = []
        for physical_offset in physical_offsets:
            try:
                records.append(self._broker.store.reader.record_at(physical_offset))
            except (OffsetOutOfRange, CorruptRecord) as error:
                log.warning("timed message cannot be read: %s", error)
                records.append(None)
        return records

    def _queue(self) -> ConsumeQueue:
        return self._broker.store.queue(names.TIMER_TOPIC, 0)

    def _floor(self, time_ms: int) -> int:
        return time_ms - time_ms % self._precision_ms


def _places(first: int, units: bytes | bytearray) -> list[_Place]:
    places = [_Place(first + number, *unit[:2]) for number, unit in enumerate(UNIT.iter_unpack(units))]
    return [each for each in places if each.size != BLANK_UNIT_SIZE]


def _timed(record: bytes) -> TimedMessage | None:
    try:
        return TimedMessage.read(record)
    except (CorruptRecord, ValueError) as error:
        log.warning("record of the timer topic left out: %s", error)
        return None


def _weight(unit: TimerUnit) -> int:
    """What a unit adds to the number of messages that wait: a delete takes one away."""
    return -1 if unit.flags & TimerFlag.DELETE else 1
