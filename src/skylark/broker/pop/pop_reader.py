"""PopReader: visits the queues of a pop, reads messages, and notes them as popped."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from skylark.broker.filters.compiled_subscription import CompiledSubscription
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.pop.ordered_batches import OrderedBatches
from skylark.broker.pop.popped_batches import PoppedBatch, PoppedBatches
from skylark.broker.topics import MESSAGE_TYPE, PRIORITY, PRIORITY_FACTOR, PRIORITY_FACTOR_DEFAULT, TopicTable
from skylark.clock import Clock
from skylark.model import names
from skylark.model.lite_topic import LIGHT_QUEUE_ID, LITE_PREFIX, light_place
from skylark.model.message import HOST_V6_MASK, RETRY_TOPIC_PREFIX
from skylark.model.record import (
    HEADS,
    LENGTH,
    LENGTHS,
    split,
    starts_with_batch,
    terminated,
    topic_part,
    unwrap_record,
)
from skylark.protocol.bodies import TopicConfig
from skylark.protocol.command import Buffer
from skylark.protocol.pop_handle import (
    ORDERED_REVIVE_QUEUE,
    PROPERTY_HANDLE,
    PopHandle,
    find_handle,
    offsets_info,
    order_info,
    start_info,
)
from skylark.protocol.requests.lite import PopLiteMessage
from skylark.protocol.requests.pop import INIT_MIN, Notification, PopMessage
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.log_reader import GetResult, GetStatus
from skylark.store.message_store import MessageStore

PERCENT = 100
CORRECTED = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
"""The position has no message: it is corrected, and read once more."""
PASSED = (
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.OFFSET_FOUND_NULL,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.NO_MATCHED_LOGIC_QUEUE,
)
"""Nothing for this group, but the position moves on."""
_QUEUE_OFFSET = struct.Struct(">q")
_QUEUE_OFFSET_AT = 20
_SIZE = struct.Struct(">i")


@dataclass(slots=True)
class PopFound:
    """What a pop found: records, the infos that name them, and how many messages are left."""

    pop_time: int
    revive_queue_id: int
    wanted: int
    records: list[Buffer] = field(default_factory=list)
    bytes: int = 0
    starts: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    order_counts: list[str] = field(default_factory=list)
    rest: int = 0
    count: int = 0
    cold: list[tuple[ConsumeQueue, int]] = field(default_factory=list)
    """Queues and offsets whose data is not in memory."""
    visited: int = 0
    """Light queues that were looked into."""
    blocked_until: int = 0
    """When the first of the queues that are blocked by an ordered batch is free."""

    @property
    def is_full(self) -> bool:
        return self.count >= self.wanted


class PopReader:
    """Loop thread. A pop is done in one go, without another in between: there are no locks."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        batches: PoppedBatches,
        ordered: OrderedBatches,
        stats: BrokerStats,
        random: Random,
    ) -> None:
        self._live = live
        self._clock = clock
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._batches = batches
        self._ordered = ordered
        self._stats = stats
        self._random = random
        self._pops = 0

    # --- A pop ---

    def pop(
        self,
        request: PopMessage,
        topic: TopicConfig,
        subscription: CompiledSubscription | None,
        *,
        may_block: bool = False,
    ) -> PopFound:
        """Take up to `max_msg_nums` messages. Without `may_block`, data that is not in memory is named."""
        now_ms, turn = self._clock.now_ms(), self._random.randrange(PERCENT)
        is_ordered = bool(request.order)
        self._pops += 1
        revive_queue = ORDERED_REVIVE_QUEUE if is_ordered else self._pops % self._live.current.revive_queues
        found = PopFound(now_ms, revive_queue, max(request.max_msg_nums, 1))
        settings = self._live.current.pop
        by_priority = not is_ordered and self._goes_by_priority(topic, request.consumer_group, turn)
        retry_percent = settings.priority_retry_percent if by_priority else settings.retry_percent
        retries_first = not is_ordered and turn < retry_percent
        if retries_first:
            self._visit_retries(request, found, turn, may_block)
        queues = _visited(request.queue_id, topic.read_queue_nums, 0 if by_priority else turn)
        for queue_id in reversed(queues) if by_priority and settings.priority_ascends else queues:
            visit = self._visit_ordered if is_ordered else self._visit
            visit(request, request.topic, queue_id, subscription, found, may_block)
        if not is_ordered and not retries_first and not found.is_full:
            self._visit_retries(request, found, turn, may_block)
        if found.count:
            self._stats.count_gets(request.topic, request.consumer_group, found.count, found.bytes)
        else:
            self._stats.misses.add(1, 0)
        return found

    def _goes_by_priority(self, topic: TopicConfig, group: str, turn: int) -> bool:
        """Whether a pop takes the messages of the highest priority, which are in a queue of their own."""
        if topic.attributes.get(MESSAGE_TYPE) != PRIORITY:
            return False
        config = self._groups.get(group)
        factor = None if config is None else config.attributes.get(PRIORITY_FACTOR)
        return turn < (PRIORITY_FACTOR_DEFAULT if factor is None else int(factor))

    def _visit_retries(self, request: PopMessage, found: PopFound, turn: int, may_block: bool) -> None:
        for name in self._retry_topics(request.topic, request.consumer_group, turn)[:1]:
            config = self._topics.get(name)
            for queue_id in range(config.read_queue_nums) if config is not None else ():
                self._visit(request, name, queue_id, None, found, may_block)

    def _retry_topics(self, topic: str, group: str, turn: int) -> list[str]:
        """Return the retry topics of a group, the one whose turn it is first."""
        if topic.startswith(RETRY_TOPIC_PREFIX):
            return []
        v1, v2 = names.pop_retry_topics(topic, group)
        settings = self._live.current.pop
        if not settings.retry_topic_v2:
            return [v1]
        if not settings.reads_retry_v1:
            return [v2]
        return [v1, v2] if turn % 2 == 0 else [v2, v1]

    def _visit(
        self,
        request: PopMessage,
        topic: str,
        queue_id: int,
        subscription: CompiledSubscription | None,
        found: PopFound,
        may_block: bool,
    ) -> None:
        group, settings = request.consumer_group, self._live.current.pop
        queue = self._store.queues.get((topic, queue_id))
        if queue is None:
            return  # nothing was ever sent to it
        position = self._settled_position(queue, group, request.init_mode)
        too_many = settings.limits_in_flight and (
            self._batches.in_flight[topic, group] > settings.in_flight_max
        )
        if found.is_full or too_many:
            found.rest += max(queue.max_offset - position, 0)
            return
        if position == queue.max_offset:
            return
        result = self._read(queue, position, found.wanted - found.count, subscription, may_block)
        if result.status in CORRECTED:
            self._batches.skip((topic, group, queue_id), result.next_offset)
            position = result.next_offset
            result = self._read(queue, position, found.wanted - found.count, subscription, may_block)
        if result.status is GetStatus.COLD:
            found.cold.append((queue, position))
            return
        self._offsets.note_pull(topic, group, queue_id, result.next_offset)
        if result.records:
            self._take(request, queue, position, result, found)
        elif result.status in PASSED and result.next_offset > position:
            self._batches.skip((topic, group, queue_id), result.next_offset)
        found.rest += max(result.max_offset - result.next_offset, 0)

    def _take(
        self, request: PopMessage, queue: ConsumeQueue, position: int, result: GetResult, found: PopFound
    ) -> None:
        """Note messages as popped, and add them to the reply."""
        topic, group, queue_id = queue.topic, request.consumer_group, queue.queue_id
        offsets = _offsets_of(result, position)
        batch = PoppedBatch(
            topic, group, queue_id, position, offsets, found.pop_time, request.invisible_time,
            found.revive_queue_id, result.next_offset, (1 << len(offsets)) - 1,
        )  # fmt: skip
        if not self._batches.add(batch, self._due_ms(batch)):
            found.rest += len(offsets)
            return
        flag = names.pop_retry_flag(topic)
        records: Sequence[Buffer] = result.records
        if topic != request.topic and not self._live.current.pop.returns_retry_topic:
            records = [
                _as_normal(record, request.topic, self._handle(batch, flag, queue_offset))
                for record, queue_offset in zip(records, offsets, strict=True)
            ]
        found.records += records
        found.bytes += result.bytes
        found.count += len(offsets)
        found.starts.append(start_info(flag, queue_id, position))
        found.offsets.append(offsets_info(flag, queue_id, offsets))

    def _due_ms(self, batch: PoppedBatch) -> int:
        """Return until when a batch is only in memory."""
        settings = self._live.current.pop
        if not settings.merges or len(self._batches) >= settings.batches_max:
            return batch.pop_time
        return min(batch.revive_time, batch.pop_time + settings.stay_ms)

    def _handle(self, batch: PoppedBatch, flag: str, queue_offset: int) -> str:
        return PopHandle(
            batch.start_offset, batch.pop_time, batch.invisible_time, batch.revive_queue_id, flag,
            self._live.current.name, batch.queue_id, queue_offset,
        ).encode()  # fmt: skip

    # --- In order ---

    def pop_light(
        self, request: PopLiteMessage, light_queues: Iterable[str], *, may_block: bool = False
    ) -> PopFound:
        """Take up to `max_msg_nums` messages of light queues, each of them in order."""
        found = PopFound(self._clock.now_ms(), ORDERED_REVIVE_QUEUE, max(request.max_msg_nums, 1))
        for name in light_queues:
            self._visit_ordered(request, name, LIGHT_QUEUE_ID, None, found, may_block)
            found.visited += 1
            if found.is_full:
                break
        if found.count:
            self._stats.count_gets(request.topic, request.consumer_group, found.count, found.bytes)
        return found

    def _visit_ordered(
        self,
        request: PopMessage | PopLiteMessage,
        topic: str,
        queue_id: int,
        subscription: CompiledSubscription | None,
        found: PopFound,
        may_block: bool,
    ) -> None:
        group, key = request.consumer_group, (topic, request.consumer_group, queue_id)
        queue = self._store.queues.get((topic, queue_id))
        if queue is None:
            return
        position = self._settled_position(queue, group, request.init_mode)
        free_at = self._ordered.free_at(key, request.attempt_id, request.invisible_time)
        if found.pop_time < free_at:
            found.blocked_until = min(found.blocked_until or free_at, free_at)
            return
        if found.is_full:
            found.rest += max(queue.max_offset - position, 0)
            return
        result = self._read(queue, position, found.wanted - found.count, subscription, may_block)
        if result.status in CORRECTED:
            self._commit(key, result.next_offset)
            position = result.next_offset
            result = self._read(queue, position, found.wanted - found.count, subscription, may_block)
        if result.status is GetStatus.COLD:
            found.cold.append((queue, position))
            return
        if result.records:
            offsets = _offsets_of(result, position, light_queue=topic.startswith(LITE_PREFIX))
            batch = self._ordered.update(
                key,
                offsets,
                attempt_id=request.attempt_id,
                pop_time=found.pop_time,
                invisible_time=request.invisible_time,
                now_ms=found.pop_time,
            )
            delivered = batch.delivered or {}
            if isinstance(request, PopLiteMessage):
                found.order_counts += [str(delivered.get(each, 0)) for each in offsets]
            else:
                least = min(delivered.values()) if len(delivered) == len(offsets) else 0
                flag = names.pop_retry_flag(topic)
                found.order_counts.append(order_info(flag, queue_id, delivered.items(), least))
                found.starts.append(start_info(flag, queue_id, position))
                found.offsets.append(offsets_info(flag, queue_id, offsets))
            found.records += result.records
            found.bytes += result.bytes
            found.count += len(offsets)
        elif result.status in PASSED and result.next_offset > position:
            self._commit(key, result.next_offset)
        found.rest += max(result.max_offset - result.next_offset, 0)

    def _commit(self, key: tuple[str, str, int], queue_offset: int) -> None:
        self._offsets.try_commit(*key, queue_offset, now_ms=self._clock.now_ms())

    # --- Without a pop ---

    def peek(self, topic: str, group: str, queue_id: int, config: TopicConfig, wanted: int) -> PopFound:
        """Read from the position of a group without taking anything."""
        turn = self._random.randrange(PERCENT)
        found = PopFound(0, 0, max(wanted, 1))
        retries = [
            (name, each)
            for name in self._retry_topics(topic, group, turn)[:1]
            if (retry := self._topics.get(name)) is not None
            for each in range(retry.read_queue_nums)
        ]
        normal = [(topic, each) for each in _visited(queue_id, config.read_queue_nums, turn)]
        is_first = turn < self._live.current.pop.retry_percent
        for key in retries + normal if is_first else normal + retries:
            queue = self._store.queues.get(key)
            if queue is None:
                continue
            position = self.position(queue, group)
            if not found.is_full and position < queue.max_offset:
                result = self._read(queue, position, found.wanted - found.count, None, False)
                if result.status is GetStatus.COLD:
                    found.cold.append((queue, position))
                    continue
                found.records += result.records
                found.count += result.count
                found.bytes += result.bytes
                position = result.next_offset
            found.rest += max(queue.max_offset - position, 0)
        return found

    def next_message_ms(self, request: Notification, config: TopicConfig) -> int | None:
        """Return when a pop could find messages, whatever its filter: 0 now, None: when they arrive."""
        topic, group = request.topic, request.consumer_group
        queues = [(topic, each) for each in _visited(request.queue_id, config.read_queue_nums, 0)]
        if not request.order:
            for name in self._retry_topics(topic, group, 0):
                retry = self._topics.get(name)
                queues += [(name, each) for each in range(retry.read_queue_nums if retry is not None else 0)]
        times = []
        for key in queues:
            queue = self._store.queues.get(key)
            if queue is None or self.position(queue, group) >= queue.max_offset:
                continue
            if not request.order:
                return 0
            times.append(self._ordered.free_at((key[0], group, key[1]), request.attempt_id, 0))
        return min(times, default=None)

    def position(self, queue: ConsumeQueue, group: str, init_mode: int = INIT_MIN) -> int:
        """Return the offset at which the next pop of a queue starts."""
        topic, queue_id = queue.topic, queue.queue_id
        committed = self._offsets.query(topic, group, queue_id)
        if committed is None:
            committed = self._first_position(queue, init_mode)
        return max(committed, self._batches.next_offset((topic, group, queue_id)) or 0)

    def _settled_position(self, queue: ConsumeQueue, group: str, init_mode: int) -> int:
        """As `position`; a pending reset is taken, and a first position is committed."""
        topic, queue_id = queue.topic, queue.queue_id
        key = (topic, group, queue_id)
        reset = self._offsets.take_reset(topic, group, queue_id)
        if reset is not None:
            self._ordered.clear(key)
            self._batches.forget(key)
            self._commit(key, reset)
            return reset
        committed = self._offsets.query(topic, group, queue_id)
        if committed is None:
            committed = self._first_position(queue, init_mode)
            self._commit(key, committed)
        return max(committed, self._batches.next_offset(key) or 0)

    def _first_position(self, queue: ConsumeQueue, init_mode: int) -> int:
        """Return where a group starts in a queue that it has never popped."""
        if init_mode == INIT_MIN or queue.topic.startswith(RETRY_TOPIC_PREFIX):
            return queue.min_offset
        if self._live.current.pop.starts_in_memory and queue.min_offset <= 0 and queue.max_offset > 0:
            entries = queue.resident_entries(0, 1)
            if entries and self._store.reader.hot.holds(*_place(entries)):
                return 0
        return max(queue.max_offset - 1, 0)

    def _read(
        self,
        queue: ConsumeQueue,
        position: int,
        wanted: int,
        subscription: CompiledSubscription | None,
        may_block: bool,
    ) -> GetResult:
        result = self._store.reader.get(
            queue,
            position,
            wanted,
            tags_filter=subscription.tags_filter if subscription is not None else None,
            record_filter=subscription.record_filter if subscription is not None else None,
            may_block=may_block,
        )
        if queue.is_batched and result.records:
            _unwrap(result, position, wanted)
        return result


def _visited(queue_id: int, queues: int, turn: int) -> Sequence[int]:
    if queue_id >= 0:
        return (queue_id,)
    return [(turn + index) % queues for index in range(queues)]


def _place(entries: bytes | bytearray) -> tuple[int, int]:
    return _QUEUE_OFFSET.unpack_from(entries)[0], _SIZE.unpack_from(entries, _QUEUE_OFFSET.size)[0]


def _offsets_of(result: GetResult, position: int, *, light_queue: bool = False) -> Sequence[int]:
    """Return the queue offsets of the records that were found."""
    if result.next_offset - position == len(result.records):
        return range(position, result.next_offset)
    if light_queue:
        return [_light_offset(record) for record in result.records]
    return [_QUEUE_OFFSET.unpack_from(record, _QUEUE_OFFSET_AT)[0] for record in result.records]


def _light_offset(record: Buffer) -> int:
    parts = split(record)
    place = light_place(parts.topic.decode(), bytes(parts.properties))
    assert place is not None, "a light queue has an entry of a record that is not in it"
    return place[1]


def _unwrap(result: GetResult, position: int, wanted: int) -> None:
    """Replace inner batches by records of their messages: each is acknowledged on its own. In place.

    Raises CorruptRecord.
    """
    found: list[bytes | memoryview] = []
    for record in result.records:
        for each in unwrap_record(record) if starts_with_batch(record) else [record]:
            (queue_offset,) = _QUEUE_OFFSET.unpack_from(each, _QUEUE_OFFSET_AT)
            if len(found) == wanted:
                result.next_offset = min(result.next_offset, queue_offset)
                break
            if queue_offset >= position:
                found.append(each)
    result.records, result.bytes = found, sum(map(len, found))
    result.entries, result.batched = b"", 0


def _as_normal(record: Buffer, topic: str, handle: str) -> bytes:
    """Return a record of a retry topic as one of its own topic, with its handle."""
    parts = split(record)
    text = parts.properties
    if find_handle(text) is None:
        text = terminated(text) + f"{PROPERTY_HANDLE}\x01{handle}\x02".encode()
    magic, name = topic_part(topic)
    layout = HEADS[parts.head[7] & HOST_V6_MASK]
    body = bytes(record[parts.body_position : parts.body_position + parts.head[14]])
    size = layout.size + len(body) + len(name) + LENGTH.size + len(text)
    head = layout.pack(size, magic, *parts.head[2:])
    return b"".join((head, body, name, LENGTHS[len(text)], text))
