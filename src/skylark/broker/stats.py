"""Pure. What went in and out: totals of the broker, of topics and groups, and how they grew of late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import NamedTuple

from skylark.store.placed import Placed, PutResult, Run

STEP_S = 10.0
"""How often `BrokerStats.slices` is gone through."""
STEP_SLICE = 256
# Samples of a period: how many steps they are apart, and how many there are. As in RocketMQ.
_MINUTE = (1, 7)
_HOUR = (60, 7)
_DAY = (360, 25)


class Growth(NamedTuple):
    """What a counter grew by in a period: in all, per second, and per call that counted something."""

    sum: int
    per_second: float
    per_call: float


class _Sample(NamedTuple):
    at: float
    messages: int
    size: int
    calls: int


class Counter:
    """A running total of messages and their bytes, and what it was at some earlier times."""

    __slots__ = ("_day", "_hour", "_minute", "_steps", "calls", "count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.calls = 0
        self._steps = 0
        self._minute: list[_Sample] = []
        self._hour: list[_Sample] = []
        self._day: list[_Sample] = []

    def add(self, count: int, size: int) -> None:
        self.count += count
        self.size += size
        self.calls += 1

    def step(self, now: float) -> None:
        """Note the totals; call it every STEP_S."""
        sample = _Sample(now, self.count, self.size, self.calls)
        periods = ((self._minute, _MINUTE), (self._hour, _HOUR), (self._day, _DAY))
        for samples, (apart, samples_max) in periods:
            if not samples:
                # What was counted before the first step counts, too.
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

    def last_minute(self, now: float, *, bytes_wanted: bool = False) -> Growth:
        return self._growth(self._minute, now, bytes_wanted)

    def last_hour(self, now: float, *, bytes_wanted: bool = False) -> Growth:
        return self._growth(self._hour, now, bytes_wanted)

    def last_day(self, now: float, *, bytes_wanted: bool = False) -> Growth:
        return self._growth(self._day, now, bytes_wanted)

    def _growth(self, samples: list[_Sample], now: float, bytes_wanted: bool) -> Growth:
        first = samples[0] if samples else _Sample(now, 0, 0, 0)
        total = self.size - first.size if bytes_wanted else self.count - first.messages
        calls = self.calls - first.calls
        return Growth(
            total,
            total / (now - first.at) if now > first.at else 0.0,
            total / calls if calls else 0.0,
        )


class Morning(NamedTuple):
    """The totals when a day began."""

    puts: int = 0
    gets: int = 0


class BrokerStats:
    """All counters of a broker. Loop thread. Series are bounded by the tables of topics and groups."""

    def __init__(self) -> None:
        self.puts = Counter()
        self.gets = Counter()
        self.misses = Counter()
        """Pulls that found nothing."""
        self.topic_puts: dict[str, Counter] = {}
        self.group_gets: dict[tuple[str, str], Counter] = {}
        self.send_backs: dict[tuple[str, str], Counter] = {}
        self.refused = 0
        self.this_morning = self.yesterday_morning = Morning()
        self._today: date | None = None

    def count_puts(self, results: Sequence[PutResult]) -> None:
        """Count what a send stored."""
        if type(results) is Run:
            size = results.end - results.physical_offsets[0]
            self._count_topic(results.queue.topic, len(results), size, calls=1)
            return
        topic, count, size = "", 0, 0
        for result in results:
            if type(result) is not Placed:
                self.refused += 1
                continue
            if result.queue.topic != topic:
                self._count_topic(topic, count, size, calls=count)
                topic, count, size = result.queue.topic, 0, 0
            count += 1
            size += result.size
        self._count_topic(topic, count, size, calls=count)

    def _count_topic(self, topic: str, count: int, size: int, *, calls: int) -> None:
        if not count:
            return
        counter = self.topic_puts.get(topic)
        if counter is None:
            counter = self.topic_puts[topic] = Counter()
        for each in (counter, self.puts):
            each.count += count
            each.size += size
            each.calls += calls

    def count_gets(self, topic: str, group: str, count: int, size: int) -> None:
        """Count what a pull took."""
        counter = self.group_gets.get((topic, group))
        if counter is None:
            counter = self.group_gets[topic, group] = Counter()
        # Once per pull: no calls of `add` here.
        counter.count += count
        counter.size += size
        counter.calls += 1
        total = self.gets
        total.count += count
        total.size += size
        total.calls += 1

    def count_send_back(self, topic: str, group: str) -> None:
        self.send_backs.setdefault((topic, group), Counter()).add(1, 0)

    def step(self, now: float, now_ms: int) -> None:
        """Let every counter note where it stands; do it every STEP_S."""
        for _ in self.slices(now, now_ms):
            pass

    def slices(self, now: float, now_ms: int) -> Iterator[None]:
        """Do the same bit by bit: there may be very many counters, and others have their turn in between."""
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
