"""Delay levels: one queue of the schedule topic per level; due messages go to their own topic.

The delays of the levels are the setting `delay_levels` in `settings/store.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

from skylark.broker.delayed.delivery_progress import DeliveryProgress
from skylark.broker.delayed.original_destination import (
    destination_note,
    find_destination,
    message_of,
    needs_full_parse,
    queues_needed,
)
from skylark.broker.metadata_json import Encode, decode_metadata, next_version
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.record_loader import ReadCold, RecordLoader, RecordPosition
from skylark.clock import Clock
from skylark.errors import CorruptRecord
from skylark.model import names
from skylark.model.message import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    SCHEDULE_TOPIC,
    PutMessage,
    encode_properties,
    find_delay_level,
)
from skylark.protocol.bodies import DataVersion, DelayOffsetTable, encode_body
from skylark.store.append_result import PutResult, PutStatus, Refused
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import BLANK_ENTRY_SIZE, ENTRY

log = logging.getLogger(__name__)

TIMER_PROPERTIES = (PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_S, PROPERTY_TIMER_DELAY_MS)
"""Properties that set an exact time; a delay level takes precedence."""
CHECK_INTERVAL_S = 0.1
FAILURE_PAUSE_S = 1.0
DELIVERED_MAX = 64
"""Messages delivered before the task yields to the loop."""

UNDELIVERABLE = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)
"""Refusals that a retry does not change, for example after a limit was lowered."""


class DelayLevels:
    """Delivery of delayed messages. Loop thread; at least once: progress is saved after the delivery."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        delays_ms: list[int],
        read_cold: ReadCold,
        adopt: Callable[[dict[str, int]], None],
        stats: BrokerStats,
        progress: DeliveryProgress,
    ) -> None:
        """`adopt` is called with the topics of due messages and the number of queues that each needs."""
        self._store = store
        self._clock = clock
        self._delays_ms = delays_ms
        self._levels = {b"%d" % level: level for level in range(1, len(delays_ms) + 1)}
        self._read_cold = read_cold
        self._records = RecordLoader(store, read_cold)
        self._adopt = adopt
        self._stats = stats
        self._progress = progress
        self.offsets: dict[int, int] = {}
        """By level: the queue offset of the next message to look at."""
        self.changes = 0
        """Counts what a file written earlier does not hold."""
        self.data_version = DataVersion(timestamp=clock.now_ms())

    # --- Taking ---

    def delay(self, message: PutMessage, properties: dict[str, str], level: int) -> None:
        """Move a message to the queue of its level, and note its own topic and queue on it."""
        level = min(level, len(self._delays_ms))
        for name in TIMER_PROPERTIES:
            properties.pop(name, None)
        properties[PROPERTY_DELAY_LEVEL] = str(level)
        properties[PROPERTY_REAL_TOPIC] = message.topic
        properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
        message.properties = encode_properties(properties)
        message.topic, message.queue_id = SCHEDULE_TOPIC, level - 1

    def delay_as_sent(self, message: PutMessage) -> bool:
        """As `delay`, by appending to the properties; False without a level, or if they must be parsed."""
        text = message.properties
        level = self._levels.get(find_delay_level(text) or b"")
        if level is None or text.find(b"TIMER_") >= 0 or needs_full_parse(text):
            return False
        message.properties = text + destination_note(message.topic, message.queue_id)
        message.topic, message.queue_id = SCHEDULE_TOPIC, level - 1
        return True

    # --- The file ---

    def load(self, data: bytes) -> None:
        """Load delayOffset.json, limited to the queues of the open store. Raises ValueError."""
        document = decode_metadata(data, DelayOffsetTable)
        self.data_version = document.data_version or self.data_version
        self._set(document.offset_table)

    def resume(self) -> None:
        """Go on after what was delivered since the file was written."""
        known = self._progress.level_offsets
        self._set({level: max(offset, self.offsets.get(level, 0)) for level, offset in known.items()})

    def _set(self, offsets: Mapping[int, int]) -> None:
        for level, offset in offsets.items():
            if 1 <= level <= len(self._delays_ms):
                self.offsets[level] = offset
        self.settle()

    def follow(self, master: DelayOffsetTable) -> None:
        """Take the master's progress, which may be ahead of what has arrived here."""
        if master.offset_table != self.offsets:
            self.offsets = dict(master.offset_table)
            self.changes += 1
        self.data_version = master.data_version or self.data_version

    def settle(self) -> None:
        """Limit the progress to the queues of the store: a master takes over from here."""
        for level, offset in self.offsets.items():
            queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
            self.offsets[level] = min(max(offset, queue.min_offset), queue.max_offset)

    def snapshot(self) -> Encode:
        """Return what writes the progress as it is now."""
        table = DelayOffsetTable(offset_table=dict(self.offsets), data_version=self.data_version)
        return lambda: encode_body(table)

    def bump(self) -> None:
        """Give the next file a new version."""
        self.data_version = next_version(self.data_version, self._clock.now_ms())

    # --- Giving ---

    async def run(self) -> None:
        """Deliver what becomes due, until cancelled."""
        levels = range(1, len(self._delays_ms) + 1)
        await asyncio.gather(*(self._run_level(level) for level in levels))

    async def _run_level(self, level: int) -> None:
        """Levels are independent: one that waits for the disk does not delay the others."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self._deliver_level(level)
            except Exception:
                log.exception("delivery of delayed messages failed, retrying level=%d", level)
                await asyncio.sleep(FAILURE_PAUSE_S)

    async def _deliver_level(self, level: int) -> None:
        delivered = DELIVERED_MAX
        while delivered == DELIVERED_MAX:
            delivered = await self._deliver_some(level)
            await asyncio.sleep(0)  # yields to the loop

    async def _deliver_some(self, level: int) -> int:
        """Deliver up to DELIVERED_MAX due messages of a level; returns how many."""
        due = await self._due(level)
        if not due:
            return 0
        records = await self._records.read(due)
        messages = [None if record is None else real_message(record) for record in records]
        delivered = self._put(level, messages)
        self.offsets[level] += delivered
        self.changes += delivered
        self._progress.save_levels(self.offsets, self._store.log.appended)
        return delivered

    def _put(self, level: int, messages: list[PutMessage | None]) -> int:
        """Store messages, skipping None; return how many are done."""
        deliverable = [message for message in messages if message is not None]
        # A broker killed just after it created a topic has it in no file and no queue.
        self._adopt(queues_needed(deliverable))
        results = self._store.append(deliverable)
        self._stats.count_late_puts(results)
        if Refused not in map(type, results):
            return len(messages)
        return self._taken(level, messages, iter(results))

    def _taken(self, level: int, messages: list[PutMessage | None], results: Iterator[PutResult]) -> int:
        """Return how many messages are done, where the store refused some."""
        for number, message in enumerate(messages):
            result = None if message is None else next(results)
            if isinstance(result, Refused):
                if result.status not in UNDELIVERABLE:
                    log.warning("delayed messages wait level=%d reason=%s", level, result.reason)
                    return number
                log.error("delayed message dropped level=%d reason=%s", level, result.reason)
        return len(messages)

    async def _due(self, level: int) -> list[RecordPosition]:
        """Places and sizes of the records of a level that are due, in order."""
        queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
        offset = max(self.offsets.get(level, 0), queue.min_offset)
        if offset >= queue.max_offset:
            return []
        self.offsets[level] = offset
        units = await self._units(queue, offset, min(DELIVERED_MAX, queue.max_offset - offset))
        if not units:
            self.offsets[level] = queue.next_file_offset(offset)
            return []
        now_ms, latest = self._clock.now_ms(), self._clock.now_ms() + self._delays_ms[level - 1]
        due = []
        for physical_offset, size, deliver_at in ENTRY.iter_unpack(units):
            # A time beyond the level was set by another clock or other levels: the message is due now.
            if now_ms < deliver_at <= latest and size != BLANK_ENTRY_SIZE:
                break
            due.append((physical_offset, size))
        return due

    async def _units(self, queue: ConsumeQueue, first: int, count: int) -> bytes | bytearray:
        units = queue.resident_entries(first, count)
        return await self._read_cold(lambda: queue.entries(first, count)) if units is None else units


def parse_level(properties: Mapping[str, str]) -> int:
    """Return the delay level of a message; 0 if it is missing or not a number."""
    try:
        return int(properties.get(PROPERTY_DELAY_LEVEL, "0"))
    except ValueError:
        return 0


def real_message(record: bytes) -> PutMessage | None:
    """Return the message to deliver for a record of the schedule topic, or None."""
    try:
        message = message_of(record)
        message.topic, message.queue_id = find_destination(message.properties)
    except (CorruptRecord, ValueError) as error:
        log.warning("cannot deliver delayed message: %s", error)
        return None
    return None if message.topic == names.HALF_TOPIC else message
