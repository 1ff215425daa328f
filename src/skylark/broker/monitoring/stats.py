"""Pure. Counters of messages in and out, for the broker, topics and groups, with their growth over time."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Literal, NamedTuple

from skylark.histogram import CREATION_MS, MESSAGE_BYTES, Histogram
from skylark.store.append_result import AppendedBatch, AppendedRecord, PutResult, Refused

STEP_S = 10.0
"""How often `BrokerStats.slices` is gone through."""
STEP_SLICE = 256
# Samples of a period: how many steps they are apart, and how many there are. As in RocketMQ.
_MINUTE = (1, 7)
_HOUR = (60, 7)
_DAY = (360, 25)
_SIZE_EDGES = (0, *MESSAGE_BYTES, sys.maxsize)


class CounterGrowth(NamedTuple):
    """Growth of a counter in a period: total, per second, and per call."""

    sum: int
    per_second: float
    per_call: float


class _Sample(NamedTuple):
    at: float
    messages: int
    size: int
    calls: int


class Counter:
    """A running total of messages and bytes, with samples of earlier totals."""

    __slots__ = ("_day", "_hour", "_minute", "_steps", "count", "size", "together")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.together = 0
        """How many more messages there were than calls: sends of single ones need not count both."""
        self._steps = 0
        self._minute: list[_Sample] = []
        self._hour: list[_Sample] = []
        self._day: list[_Sample] = []

    @property
    def calls(self) -> int:
        return self.count - self.together

    def add(self, count: int, size: int) -> None:
        """Count the messages of one call."""
        self.count += count
        self.size += size
        self.together += count - 1

    def step(self, now: float) -> None:
        """Note the totals; call it every STEP_S."""
        sample = _Sample(now, self.count, self.size, self.calls)
        periods = ((self._minute, _MINUTE), (self._hour, _HOUR), (self._day, _DAY))
        for samples, (apart, samples_max) in periods:
            if not samples:
                # Messages counted before the first step are included.
                samples.append(_Sample(now - STEP_S, 0, 0, 0))
            if self._steps % apart == 0:
                samples.append(sample)
                del samples[:-samples_max]
        self._steps += 1

    def rate(self, now: float) -> float:
        """Messages per second, over the last minute or as long as there is something to compare with."""
        return self.last_minute(now).per_second

    def rate_within(self, now: float, window_s: float, *, of_calls: bool = False) -> float | None:
        """Messages, or calls, per second since the last sample that is that old; None if there is none."""
        for sample in (*reversed(self._minute), *reversed(self._hour)):
            if sample.at <= now - window_s:
                grown = self.calls - sample.calls if of_calls else self.count - sample.messages
                return grown / (now - sample.at)
        return None

    def last_minute(self, now: float, *, bytes_wanted: bool = False) -> CounterGrowth:
        return self._growth(self._minute, now, bytes_wanted)

    def last_hour(self, now: float, *, bytes_wanted: bool = False) -> CounterGrowth:
        return self._growth(self._hour, now, bytes_wanted)

    def last_day(self, now: float, *, bytes_wanted: bool = False) -> CounterGrowth:
        return self._growth(self._day, now, bytes_wanted)

    def _growth(self, samples: list[_Sample], now: float, bytes_wanted: bool) -> CounterGrowth:
        first = samples[0] if samples else _Sample(now, 0, 0, 0)
        total = self.size - first.size if bytes_wanted else self.count - first.messages
        calls = self.calls - first.calls
        return CounterGrowth(
            total,
            total / (now - first.at) if now > first.at else 0.0,
            total / calls if calls else 0.0,
        )


class TopicCounter(Counter):
    """Messages and bytes stored in a topic."""

    __slots__ = ("larger",)

    def __init__(self) -> None:
        super().__init__()
        self.larger = [0] * len(MESSAGE_BYTES)
        """Records above each of MESSAGE_BYTES, but not above the next; the others are the small ones."""

    @property
    def sizes(self) -> list[int]:
        """The number of records in each size range of MESSAGE_BYTES."""
        return [self.count - sum(self.larger), *self.larger]


class Morning(NamedTuple):
    """The totals when a day began."""

    puts: int = 0
    gets: int = 0


class Creation(NamedTuple):
    """The result of an administrator's change."""

    what: Literal["topic", "consumer_group"]
    succeeded: bool
    is_system: bool


class BrokerStats:
    """All counters of a broker. Loop thread. Series are bounded by the tables of topics and groups."""

    def __init__(self) -> None:
        self.puts = Counter()
        self.gets = Counter()
        self.misses = Counter()
        """Pulls that found nothing."""
        self.topic_puts: dict[str, TopicCounter] = {}
        self.group_gets: dict[tuple[str, str], Counter] = {}
        self.send_backs: dict[tuple[str, str], Counter] = {}
        self.refused = 0
        self.creations: dict[Creation, Histogram] = {}
        """How long administrators waited for topics and groups, in milliseconds."""
        self.this_morning = self.yesterday_morning = Morning()
        self._today: date | None = None
        self._before_first = TopicCounter()  # before the first message: zeros are added to it

    def count_puts(self, results: Sequence[PutResult]) -> None:
        """Count the messages that a send stored."""
        if isinstance(results, AppendedBatch):
            self._count_run(results)
            return
        # Each message may belong to another topic, whose counters are not in the processor's cache: little is
        # touched, nothing called. Messages of one batch mostly have one size: few ranges are looked up.
        queue, counter, topic_puts = None, self._before_first, self.topic_puts
        count = size = size_range = above = up_to = total = total_bytes = 0
        for result in results:
            if type(result) is not AppendedRecord:
                self.refused += 1
                continue
            record_bytes = result.size
            if result.queue is not queue or not above < record_bytes <= up_to:
                counter.count += count
                counter.size += size
                if size_range:
                    counter.larger[size_range - 1] += count
                total += count
                total_bytes += size
                count = size = 0
                queue = result.queue
                counter = topic_puts.get(queue.topic) or self._topic_counter(queue.topic)
                if not above < record_bytes <= up_to:
                    size_range = bisect_left(MESSAGE_BYTES, record_bytes)
                    above, up_to = _SIZE_EDGES[size_range : size_range + 2]
            count += 1
            size += record_bytes
        counter.count += count
        counter.size += size
        if size_range:
            counter.larger[size_range - 1] += count
        self.puts.count += total + count
        self.puts.size += total_bytes + size

    def count_late_puts(self, results: Sequence[PutResult]) -> None:
        """Count delayed messages that were stored; refused ones are retried."""
        if Refused in map(type, results):
            results = [result for result in results if type(result) is AppendedRecord]
        self.count_puts(results)

    def _count_run(self, run: AppendedBatch) -> None:
        count, size = run.message_count, run.end - run.start
        counter = self._topic_counter(run.queue.topic)
        counter.add(count, size)
        self.puts.add(count, size)
        size_range = bisect_left(MESSAGE_BYTES, size // count)  # of the average, as RocketMQ does
        if size_range:
            counter.larger[size_range - 1] += count

    def _topic_counter(self, topic: str) -> TopicCounter:
        counter = self.topic_puts.get(topic)
        if counter is None:
            counter = self.topic_puts[topic] = TopicCounter()
        return counter

    def count_gets(self, topic: str, group: str, count: int, size: int, *, pulls: int = 1) -> None:
        """Count the messages of one or several pulls."""
        counter = self.group_gets.get((topic, group))
        if counter is None:
            counter = self.group_gets[topic, group] = Counter()
        # Once per pull: no calls of `add` here.
        counter.count += count
        counter.size += size
        counter.together += count - pulls
        total = self.gets
        total.count += count
        total.size += size
        total.together += count - pulls

    def count_send_back(self, topic: str, group: str) -> None:
        self.send_backs.setdefault((topic, group), Counter()).add(1, 0)

    @contextmanager
    def creation(
        self, what: Literal["topic", "consumer_group"], now: Callable[[], float], *, is_system: bool
    ) -> Iterator[None]:
        """Time an administrator's change."""
        started, succeeded = now(), False
        try:
            yield
            succeeded = True
        finally:
            times = self.creations.setdefault(Creation(what, succeeded, is_system), Histogram(CREATION_MS))
            times.add(int((now() - started) * 1000))

    def step(self, now: float, now_ms: int) -> None:
        """Sample every counter; call it every STEP_S."""
        for _ in self.slices(now, now_ms):
            pass

    def slices(self, now: float, now_ms: int) -> Iterator[None]:
        """As `step`, in slices: there may be many counters, and the caller yields to the loop in between."""
        today = date.fromtimestamp(now_ms / 1000)
        if today != self._today:
            if self._today is not None:
                self.yesterday_morning = self.this_morning
                self.this_morning = Morning(self.puts.count, self.gets.count)
            self._today = today
        counters = [self.puts, self.gets, self.misses]
        for table in (self.topic_puts, self.group_gets, self.send_backs):
            counters += table.values()
        for start in range(0, len(counters), STEP_SLICE):
            for counter in counters[start : start + STEP_SLICE]:
                counter.step(now)
            yield

    def forget_topic(self, topic: str) -> None:
        self.topic_puts.pop(topic, None)
        for table in (self.group_gets, self.send_backs):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    def forget_group(self, group: str) -> None:
        for table in (self.group_gets, self.send_backs):
            for key in [key for key in table if key[1] == group]:
                del table[key]
