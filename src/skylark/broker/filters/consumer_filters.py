"""Pure. The filters of groups, kept in consumerFilter.json across restarts, with their bloom filter bits."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

import msgspec
from msgspec import field

from skylark.broker.filters.compiled_subscription import CompiledSubscription
from skylark.broker.metadata_json import Encode, decode_metadata, encode_metadata
from skylark.model.tag_expression import is_tag_type
from skylark.protocol.bodies import Body
from skylark.protocol.command import Int32, Int64

MASK = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_BLOCK = struct.Struct("<QQ")

# By RocketMQ's defaults: an error rate of 20 % with 32 consumers.
BITS = 112
BITS_OF_A_FILTER = 3


def bit_positions(text: str, *, count: int = BITS_OF_A_FILTER, bits: int = BITS) -> list[int]:
    """Return the bloom filter bits of a text, usually `group#topic`."""
    hashed = murmur3(text.encode())
    first, second = _int32(hashed), _int32(hashed >> 32)
    positions = []
    for number in range(1, count + 1):
        combined = _int32(first + number * second)
        positions.append((combined if combined >= 0 else ~combined) % bits)
    return positions


def murmur3(data: bytes) -> int:
    """The lower 64 bits of MurmurHash3 (x64, 128 bits, seed 0)."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for k1, k2 in _BLOCK.iter_unpack(data[:whole]):
        h1 = _rotated(h1 ^ _mixed_1(k1), 27) + h2 & MASK
        h1 = h1 * 5 + 0x52DCE729 & MASK
        h2 = _rotated(h2 ^ _mixed_2(k2), 31) + h1 & MASK
        h2 = h2 * 5 + 0x38495AB5 & MASK
    k1, k2 = _BLOCK.unpack(data[whole:].ljust(16, b"\0"))
    h1 ^= _mixed_1(k1) ^ len(data)
    h2 ^= _mixed_2(k2) ^ len(data)
    h1 = h1 + h2 & MASK
    h2 = h2 + h1 & MASK
    return _finished(h1) + _finished(h2) & MASK


def _mixed_1(block: int) -> int:
    return _rotated(block * _C1 & MASK, 31) * _C2 & MASK


def _mixed_2(block: int) -> int:
    return _rotated(block * _C2 & MASK, 33) * _C1 & MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & MASK


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


def _int32(value: int) -> int:
    return (value + (1 << 31) & 0xFFFFFFFF) - (1 << 31)


FORGET_AFTER_MS = 24 * 3600 * 1000
DEAD_BEFORE_LOAD_MS = 30_000
"""A filter that was alive in the file has been unused for at least so long."""


class BloomFilterData(Body):
    bit_num: Int32 = BITS
    bit_pos: list[Int32] = field(default_factory=list)


class ConsumerFilterData(Body):
    """The filter of one group on one topic. It is dead from `dead_time` on, unless it was born later."""

    consumer_group: str
    topic: str
    expression: str
    expression_type: str
    born_time: Int64 = 0
    dead_time: Int64 = 0
    client_version: Int64 = 0
    bloom_filter_data: BloomFilterData | None = None
    dead: bool = False

    @property
    def is_dead(self) -> bool:
        return self.dead_time >= self.born_time


class TopicFilters(Body):
    topic: str
    group_filter_data: dict[str, ConsumerFilterData] = field(default_factory=dict)


class ConsumerFilterTable(Body):
    filter_data_by_topic: dict[str, TopicFilters] = field(default_factory=dict)


class ConsumerFilters:
    """All filters other than tag filters, by group and topic."""

    def __init__(self, *, filters_max: int) -> None:
        self._filters: dict[str, dict[str, ConsumerFilterData]] = {}
        self._filters_max = filters_max
        self._count = 0
        self.on_change: Callable[[], None] = lambda: None

    def get(self, group: str, topic: str) -> ConsumerFilterData | None:
        return self._filters.get(group, {}).get(topic)

    # --- Changes ---

    def register(self, group: str, subscriptions: Iterable[CompiledSubscription], *, now_ms: int) -> None:
        """Apply a heartbeat's subscriptions: add new filters, mark those of other topics dead."""
        wanted = {
            each.data.topic: each for each in subscriptions if not is_tag_type(each.data.expression_type)
        }
        known = self._filters.get(group, {})
        for topic, subscription in wanted.items():
            self._register(group, topic, subscription, now_ms)
        for topic in known.keys() - wanted.keys():
            self._bury(known[topic], now_ms)

    def retire(self, is_online: Callable[[str], bool], *, now_ms: int) -> None:
        """Mark the filters of groups that have left dead, and remove those that have been dead for a day."""
        for group, filters in list(self._filters.items()):
            online = is_online(group)
            for topic, data in list(filters.items()):
                if not online:
                    self._bury(data, now_ms)
                if data.is_dead and now_ms - data.dead_time > FORGET_AFTER_MS:
                    self._remove(group, topic)

    def _register(self, group: str, topic: str, subscription: CompiledSubscription, now_ms: int) -> None:
        wanted, known = subscription.data, self.get(group, topic)
        if known is not None and wanted.sub_version <= known.client_version:
            if wanted.sub_version == known.client_version and known.is_dead:
                known.dead_time = 0
                self.on_change()
            return
        if subscription.fault is not None:
            if known is not None:
                self._remove(group, topic)
            return
        unchanged = known is not None and (known.expression, known.expression_type) == (
            wanted.sub_string,
            wanted.expression_type,
        )
        if unchanged:
            assert known is not None
            known.client_version, known.dead_time = wanted.sub_version, 0
        elif known is not None or self._count < self._filters_max:
            self._count += known is None
            self._filters.setdefault(group, {})[topic] = ConsumerFilterData(
                consumer_group=group,
                topic=topic,
                expression=wanted.sub_string or "",
                expression_type=wanted.expression_type or "",
                born_time=now_ms,
                client_version=wanted.sub_version,
                bloom_filter_data=BloomFilterData(bit_pos=bit_positions(f"{group}#{topic}")),
            )
        self.on_change()

    def _bury(self, data: ConsumerFilterData, now_ms: int) -> None:
        if not data.is_dead:
            data.dead_time = now_ms
            self.on_change()

    def _remove(self, group: str, topic: str) -> None:
        del self._filters[group][topic]
        if not self._filters[group]:
            del self._filters[group]
        self._count -= 1
        self.on_change()

    # --- The file ---

    def snapshot(self) -> Encode:
        """Return a function that encodes the table as it is now."""
        table = ConsumerFilterTable()
        for group, filters in self._filters.items():
            for topic, data in filters.items():
                of_topic = table.filter_data_by_topic.setdefault(topic, TopicFilters(topic=topic))
                of_topic.group_filter_data[group] = msgspec.structs.replace(data, dead=data.is_dead)
        return lambda: encode_metadata(table)

    def load(self, data: bytes, *, now_ms: int) -> None:
        """Load consumerFilter.json; all filters are dead until their group reconnects. Raises ValueError."""
        table = decode_metadata(data, ConsumerFilterTable)
        for topic, filters in table.filter_data_by_topic.items():
            for group, each in filters.group_filter_data.items():
                if not each.is_dead:
                    each.dead_time = max(each.born_time, now_ms - DEAD_BEFORE_LOAD_MS)
                self._count += topic not in self._filters.setdefault(group, {})
                self._filters[group][topic] = each
