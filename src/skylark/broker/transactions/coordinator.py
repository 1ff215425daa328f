"""Tracks half messages, ends transactions, and checks undecided ones with their producers."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from skylark.broker.clients import ProducerGroups
from skylark.broker.delayed.timers import DelayedMessages
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.record_loader import ReadCold
from skylark.broker.topics import TopicTable
from skylark.broker.transactions.end_layout import Ended, RecentHalf, lay_out_ends
from skylark.broker.transactions.half_messages import (
    HalfMessage,
    HalfRecord,
    HalfTable,
    find_group,
    finished_offsets,
    half_as_sent,
    op_message,
)
from skylark.clock import Clock
from skylark.errors import CorruptRecord, OffsetOutOfRange
from skylark.histogram import TRANSACTION_S, Histogram
from skylark.model import names
from skylark.model.message import TRANSACTION_MASK, PutMessage, SystemFlag
from skylark.model.message_id import offset_message_id
from skylark.model.record import split
from skylark.protocol.requests.transaction import COMMIT, ROLLBACK, CheckTransactionState, EndTransaction
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import AppendedRecord, PutResult, Refused
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import BLANK_ENTRY_SIZE, ENTRY, tags_code

log = logging.getLogger(__name__)

UNITS_AT_ONCE = 512
CHECKS_AT_ONCE = 32
"""Checks before the task yields to the loop."""
OPS_IN_A_STRETCH = 512
RECENT_MAX = 4096
"""Records of half messages that are kept until they end, each of up to RECENT_BYTES_MAX."""
RECENT_BYTES_MAX = 4096
INTERRUPTED_MAX = 4096
"""Records of one append that ends transactions, at most."""


class _Stretch(NamedTuple):
    """A run of op messages: the offset where it ends, and the last half message that it finishes."""

    op_end: int
    half_last: int


class TransactionCoordinator:
    """All transactions of one broker. Loop thread; `load` runs before, in a thread."""

    def __init__(
        self,
        *,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        store: MessageStore,
        host: bytes,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        producers: ProducerGroups,
        delayed: DelayedMessages,
        restore_topics: Callable[[Mapping[str, int]], None],
        stats: BrokerStats,
        read_cold: ReadCold,
    ) -> None:
        """`host` is the broker's address as records hold it."""
        self._live = live
        self._clock = clock
        self._store = store
        self._host = host
        self._topics = topics
        self._offsets = offsets
        self._producers = producers
        self._delayed = delayed
        self._restore_topics = restore_topics
        self._stats = stats
        self._read_cold = read_cold
        self.table = HalfTable()
        self._followed = 0
        """Half messages below this queue offset are in the table, or finished."""
        self._ended_unseen: set[int] = set()
        """Those above that are finished already: their senders did not wait until they can be seen."""
        self._recent: dict[int, RecentHalf] = {}
        """Half messages that came a moment ago, by physical offset: most of them end at once."""
        self._op_first = 0
        self._stretches: deque[_Stretch] = deque()
        self._stretch_ops = 0
        self._owed: list[int] = []
        self._is_loaded = False
        self.commits: Counter[str] = Counter()
        """Messages by topic that were committed since the start, and below those that were rolled back."""
        self.rollbacks: Counter[str] = Counter()
        self.commit_times: dict[str, Histogram] = {}
        """How old messages were when they were committed, in seconds, by topic."""

    # --- What is open ---

    @property
    def open_count(self) -> int:
        """Open half messages, including those not read yet."""
        return len(self.table) + max(self._queue(names.HALF_TOPIC).max_offset - self._followed, 0)

    def open_by_topic(self) -> dict[str, int]:
        """The same by the topic they are meant for; those not looked at yet are where they wait. Any thread.

        A slave knows of none.
        """
        if not self._is_loaded:
            return {}
        topics = self.table.topics.copy()
        topics[names.HALF_TOPIC] += max(self.open_count - topics.total(), 0)
        return {topic: count for topic, count in topics.items() if count}

    def unload(self) -> None:
        """Forget what is open: another broker is the master."""
        self._is_loaded = False
        self.table = HalfTable()
        self._ended_unseen = set()
        self._recent = {}
        self._owed = []

    def load(self) -> None:
        """Find the open half messages of an opened store. May wait for the disk."""
        self._stretches, self._stretch_ops = deque(), 0
        halves, ops = self._queue(names.HALF_TOPIC), self._queue(names.HALF_OP_TOPIC)
        first = self._progress(names.HALF_TOPIC, halves)
        finished: set[int] = set()
        self._op_first = self._progress(names.HALF_OP_TOPIC, ops)
        for queue_offset, record in self._records(ops, self._op_first):
            offsets = _op_offsets(record)
            finished.update(offset for offset in offsets if offset >= first)
            self._note_op(queue_offset, max(offsets, default=0))
        for half in self._halves(halves, first, finished):
            if half.prepared_queue_offset not in finished:
                self.table.add(half.open())
        self._followed = halves.max_offset
        self._is_loaded = True
        if len(self.table):
            self._finish_last_commits()
            log.info("open transactions found count=%d", len(self.table))

    def follow(self) -> None:
        """Add the half messages that arrived since the last call."""
        queue = self._queue(names.HALF_TOPIC)
        for half in self._halves(queue, self._followed, self._ended_unseen):
            self.table.add(half.open())
            if half.is_plain and len(half.record) <= RECENT_BYTES_MAX:
                self._keep(half.physical_offset, RecentHalf(half.record, half.text, tags_code(half.text)))
        self._followed = max(self._followed, queue.max_offset)
        if self._ended_unseen:
            self._ended_unseen = {each for each in self._ended_unseen if each >= self._followed}

    def note_stored(self, placed: Sequence[AppendedRecord], data: bytes | bytearray, start: int) -> None:
        """Add half messages that were just stored: with the records that start at a physical offset.

        Those that do not continue what is known are added by `follow`.
        """
        if not self._is_loaded or placed[0].queue_offset != self._followed:
            return
        data = bytes(data)
        for each in placed:
            queue_offset, physical_offset, text = each.queue_offset, each.physical_offset, each.properties
            record = data[physical_offset - start : each.end - start]
            half = half_as_sent(record, text, queue_offset, physical_offset)
            if half is None:
                return
            self.table.add(half)
            if each.size <= RECENT_BYTES_MAX:
                self._keep(physical_offset, RecentHalf(record, text, each.tags_code))
            self._followed = queue_offset + 1

    def _keep(self, physical_offset: int, recent: RecentHalf) -> None:
        if len(self._recent) >= RECENT_MAX:
            self._recent.clear()
        self._recent[physical_offset] = recent

    def save_progress(self) -> None:
        """Commit the progress in both queues as offsets of a group, as RocketMQ does."""
        if not self._is_loaded:
            return
        halves = self._queue(names.HALF_TOPIC)
        first = self.table.first_offset
        done = self._followed if first is None else first
        while self._stretches and self._stretches[0].half_last < done:
            self._op_first = self._stretches.popleft().op_end
        if not self._stretches:
            self._stretch_ops = 0
        self._commit(names.HALF_TOPIC, max(done, halves.min_offset))
        self._commit(names.HALF_OP_TOPIC, self._op_first)

    def _commit(self, topic: str, queue_offset: int) -> None:
        if (self._offsets.query(topic, names.TRANSACTION_GROUP, 0) or 0) != queue_offset:
            self._offsets.try_commit(
                topic, names.TRANSACTION_GROUP, 0, queue_offset, now_ms=self._clock.now_ms()
            )

    def _progress(self, topic: str, queue: ConsumeQueue) -> int:
        committed = self._offsets.query(topic, names.TRANSACTION_GROUP, 0)
        return min(max(committed or 0, queue.min_offset), queue.max_offset)

    def _queue(self, topic: str) -> ConsumeQueue:
        return self._store.queue(topic, 0)

    def _halves(
        self, queue: ConsumeQueue, first: int, skipped: set[int] | None = None
    ) -> Iterator[HalfRecord]:
        for queue_offset, record in self._records(queue, first, skipped):
            try:
                yield HalfRecord(record)
            except CorruptRecord as error:
                log.warning("cannot read half message queue_offset=%d reason=%s", queue_offset, error)

    def _records(
        self, queue: ConsumeQueue, first: int, skipped: set[int] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the records of a queue from an offset on; unreadable ones are skipped."""
        queue_offset = first
        while queue_offset < queue.max_offset:
            units = queue.entries(queue_offset, min(UNITS_AT_ONCE, queue.max_offset - queue_offset))
            if not units:
                queue_offset = queue.next_file_offset(queue_offset)
                continue
            for physical_offset, size, _ in ENTRY.iter_unpack(units):
                if size != BLANK_ENTRY_SIZE and (skipped is None or queue_offset not in skipped):
                    try:
                        yield queue_offset, self._store.reader.record_at(physical_offset)
                    except (OffsetOutOfRange, CorruptRecord) as error:
                        log.warning("cannot read record of a transaction: %s", error)
                queue_offset += 1

    def _note_op(self, op_offset: int, half_last: int) -> None:
        """Remember for each stretch of op messages the half message after which it is obsolete."""
        if self._stretches and self._stretch_ops < OPS_IN_A_STRETCH:
            last = self._stretches.pop()
            self._stretches.append(_Stretch(op_offset + 1, max(last.half_last, half_last)))
        else:
            self._stretches.append(_Stretch(op_offset + 1, half_last))
            self._stretch_ops = 0
        self._stretch_ops += 1

    def _finish_last_commits(self) -> None:
        """Finish commits that a crash interrupted: the last records of the log, without their op message."""
        latest_first = heapq.merge(*map(_places_backwards, list(self._store.queues.values())), reverse=True)
        finished: list[int] = []
        for physical_offset in islice(latest_first, INTERRUPTED_MAX):
            try:
                record = HalfRecord(self._store.reader.record_at(physical_offset))
            except (OffsetOutOfRange, CorruptRecord):
                break
            offsets = self.table.of_key(record.key)
            if record.head[7] & TRANSACTION_MASK != SystemFlag.TRANSACTION_COMMIT or not offsets:
                break
            finished += offsets
        if finished:
            log.warning("commits finished after a crash queue_offsets=%s", finished)
            self._finish(finished)

    # --- Ending ---

    def commit(self, record: HalfRecord) -> Refused | None:
        """Deliver the message of a transaction, once; return why that is impossible now.

        One that is ended already stays as it is. Raises BrokerError for a time that cannot be kept.
        """
        offsets = self._open_offsets(record)
        message = record.committed()
        if not offsets or message is None:
            return None
        # A broker killed just after it created the topic has it in no file and no queue.
        self._restore_topics({message.topic: message.queue_id + 1})
        if record.may_have_to_wait:
            self._delayed.admit(message, record.properties)
        result = self._replace(message, offsets)
        if isinstance(result, Refused):
            return result
        self._count_commits(record.real_topic, (self._clock.now_ms() - record.born_ms) // 1000)
        return None

    def roll_back(self, record: HalfRecord) -> None:
        """Drop the message of a transaction. One that is ended already stays as it is."""
        offsets = self._open_offsets(record)
        if offsets:
            self._finish(offsets)
            self.rollbacks[record.real_topic] += 1

    def end_recent(self, ends: Sequence[EndTransaction]) -> int:
        """End as many of the first transactions as are recent and need no more checks; return the number.

        They are stored with one write. None is ended while the store refuses that: others say why.
        """
        if not self._is_loaded:
            return 0
        self.follow()
        ended: list[Ended] = []
        for end in ends:
            found = self._ended(end)
            if found is None:
                break
            ended.append(found)
            del self._recent[end.physical_offset]  # the same end may come twice
        ops, owed = self._queue(names.HALF_OP_TOPIC), self._owed
        lay_out = partial(lay_out_ends, ended, owed, ops, self._host)
        laid_out = self._store.append_laid_out(lay_out) if ended else None
        count = 0 if laid_out is None else laid_out.frames
        for half, recent, _ in ended[count:]:
            self._keep(half.physical_offset, recent)
        if laid_out is not None:
            (placed,) = laid_out.results
            self._stats.count_puts(placed[:-1])
            self._note_finished([half.queue_offset for half, _, _ in ended[:count]], placed[-1])
            self._count_recent(ended[:count])
        return count

    def _ended(self, end: EndTransaction) -> Ended | None:
        """Return what ends if that needs no more checks, or None."""
        half, recent = self.table.lone(end.queue_offset), self._recent.get(end.physical_offset)
        if (
            half is None
            or recent is None
            or half.physical_offset != end.physical_offset
            or end.producer_group.encode() != find_group(recent.text)
        ):
            return None
        if end.commit_or_rollback == ROLLBACK:
            return Ended(half, recent, None)
        topic, queue_id = half.real_topic, half.real_queue_id
        if queue_id is None or not 0 <= queue_id < self._topics.plain.get(topic, 0):
            return None
        queue = self._store.queues.get((topic, queue_id))
        is_usual = end.commit_or_rollback == COMMIT and queue is not None and not queue.is_special
        return Ended(half, recent, queue) if is_usual else None

    def _count_recent(self, ended: Sequence[Ended]) -> None:
        now_ms = self._clock.now_ms()
        kinds = Counter(
            [(half.real_topic, queue is None, (now_ms - half.born_ms) // 1000) for half, _, queue in ended]
        )
        for (topic, is_rolled_back, age_s), times in kinds.items():
            if is_rolled_back:
                self.rollbacks[topic] += times
            else:
                self._count_commits(topic, age_s, times)

    def _count_commits(self, topic: str, age_s: int, times: int = 1) -> None:
        self.commits[topic] += times
        self.commit_times.setdefault(topic, Histogram(TRANSACTION_S)).add(max(age_s, 0), times)

    def _open_offsets(self, record: HalfRecord) -> list[int]:
        self.follow()
        if record.queue_offset >= self._followed:
            if record.queue_offset not in self._ended_unseen:
                self.table.add(record.open())  # ended before it became visible
        return self.table.of_key(record.key)

    def _replace(self, message: PutMessage, finished: list[int]) -> PutResult:
        """Append a message that takes the place of half messages, and behind it what finishes them.

        Nothing comes between the two: see `_finish_last_commits`. Without the message there is no op message.
        """
        placed, op = self._store.append([message, self._op(finished)], together=True)
        self._stats.count_puts([placed])
        if isinstance(placed, AppendedRecord):
            self._note_finished(finished, op)
        return placed

    def _finish(self, finished: list[int]) -> None:
        """Close half messages."""
        (op,) = self._store.append([self._op(finished)])
        self._note_finished(finished, op)

    def _op(self, finished: list[int]) -> PutMessage:
        """Make the op message of finished half messages, and of those whose op message is missing."""
        finished = self._owed + finished
        return op_message(finished, born_host=self._host, now_ms=self._clock.now_ms())

    def _note_finished(self, finished: list[int], op: PutResult) -> None:
        """Close half messages; where their op message could not be stored, it is owed."""
        self.table.close(finished)
        self._ended_unseen.update(each for each in finished if each >= self._followed)
        self._owed += finished
        if isinstance(op, AppendedRecord):
            self._note_op(op.queue_offset, max(self._owed))
            self._owed = []

    # --- Asking ---

    async def run(self) -> None:
        """Check open transactions periodically, until cancelled."""
        while True:
            await asyncio.sleep(self._live.current.transactions.check_interval_ms / 1000)
            try:
                await self.check()
            except Exception:
                log.exception("check of transactions failed, retrying")

    async def check(self) -> None:
        """Check all transactions that are due."""
        self.follow()
        timeout_ms = self._live.current.transactions.timeout_ms
        now_ms = self._clock.now_ms()
        for number, half in enumerate(half for half in self.table if half.is_due(now_ms, timeout_ms)):
            if number % CHECKS_AT_ONCE == 0:
                await asyncio.sleep(0)
            record = await self.read(half.physical_offset)
            if record is None:
                log.error("cannot read open half message, abandoned queue_offset=%d", half.queue_offset)
                self._finish([half.queue_offset])
            elif self.table.is_open(half):
                self._check_one(half, record, now_ms)
        self.save_progress()

    def is_near(self, physical_offset: int) -> bool:
        """Return whether a record is in memory because this process wrote it."""
        return physical_offset >= self._store.reader.hot.written_from

    def read_now(self, physical_offset: int) -> HalfRecord | None:
        """Return the half message at a physical offset, or None. May block."""
        recent = self._recent.pop(physical_offset, None)
        try:
            if recent is not None:
                return HalfRecord(recent.record)
            return HalfRecord(self._store.reader.record_at(physical_offset))
        except (OffsetOutOfRange, CorruptRecord):
            return None

    async def read(self, physical_offset: int) -> HalfRecord | None:
        """As `read_now`, without blocking the loop."""
        if self.is_near(physical_offset):
            return self.read_now(physical_offset)
        return await self._read_cold(lambda: self.read_now(physical_offset))

    def _check_one(self, half: HalfMessage, record: HalfRecord, now_ms: int) -> None:
        settings = self._live.current
        reserved_ms = settings.store.reserved_hours * 3_600_000
        if record.check_times >= settings.transactions.check_max or now_ms - half.born_ms > reserved_ms:
            log.warning("transaction abandoned key=%s checks=%d", record.unique_key, record.check_times)
            self._topics.ensure_topic(names.HALF_CHECKED_OUT_TOPIC, 1, now_ms=now_ms)
            self._replace(record.abandoned(), [half.queue_offset])
            return
        channel = self._producers.choose(record.group)
        if not isinstance(channel, Peer):
            return  # no producer is connected: this does not count as a check
        again = record.checked_again(record.check_times + 1)
        placed = self._replace(again, [half.queue_offset])
        if isinstance(placed, AppendedRecord):
            self._ask(channel, record, again, placed)

    def _ask(self, channel: Peer, record: HalfRecord, again: PutMessage, placed: AppendedRecord) -> None:
        channel.notify(
            CheckTransactionState(
                queue_offset=placed.queue_offset,
                physical_offset=placed.physical_offset,
                msg_id=record.unique_key,
                transaction_id=record.unique_key,
                offset_msg_id=offset_message_id(self._host, placed.physical_offset),
                topic=names.HALF_TOPIC,
                broker_name=self._live.current.name,
                body=record.question(again, placed.queue_offset, placed.physical_offset),
            )
        )


def _places_backwards(queue: ConsumeQueue) -> Iterator[int]:
    """Yield the physical offsets of a queue's records, the last one first."""
    for queue_offset in range(queue.max_offset - 1, queue.min_offset - 1, -1):
        unit = queue.entry(queue_offset)
        if unit is not None and unit[1] != BLANK_ENTRY_SIZE:
            yield unit[0]


def _op_offsets(record: bytes) -> list[int]:
    try:
        parts = split(record)
    except CorruptRecord:
        return []
    return finished_offsets(record[parts.body_position : parts.body_position + parts.head[14]])
