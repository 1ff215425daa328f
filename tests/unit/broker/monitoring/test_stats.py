"""Counters and what they say of the last minute, hour and day."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.monitoring.stats import STEP_S, STEP_SLICE, BrokerStats, Counter, Creation
from skylark.histogram import MESSAGE_BYTES, Histogram
from skylark.model.record import BatchColumns, BatchElement
from skylark.store.append_result import AppendedRecord, PutResult, PutStatus, Refused
from tests.support.store import message, opened

DAY_MS = 86_400_000
NOON_MS = 1_700_049_600_000


def stepped(counter: Counter, steps: int, per_step: int, start: float = 0.0) -> float:
    """Count evenly, and return the time after the last step."""
    now = start
    for _ in range(steps):
        counter.add(per_step, per_step * 10)
        now += STEP_S
        counter.step(now)
    return now


def test_a_steady_rate_is_seen_in_all_periods() -> None:
    counter = Counter()
    now = stepped(counter, 7 * 360, 50)
    minute, hour, day = (grow(now) for grow in (counter.last_minute, counter.last_hour, counter.last_day))
    assert minute.per_second == hour.per_second == day.per_second == pytest.approx(5.0)
    assert minute.sum == 50 * 6
    assert minute.per_call == 50
    assert counter.last_minute(now, bytes_wanted=True).sum == 500 * 6
    assert counter.rate(now) == pytest.approx(5.0)


def test_what_was_counted_before_the_first_step_counts() -> None:
    counter = Counter()
    counter.add(7, 70)
    counter.step(100.0)
    assert counter.last_minute(100.0).sum == 7
    assert counter.last_minute(100.0).per_second == pytest.approx(7 / STEP_S)


def test_a_minute_forgets_what_was_before_it() -> None:
    counter = Counter()
    now = stepped(counter, 3, 1000)
    now = stepped(counter, 7, 0, now)
    assert counter.last_minute(now).sum == 0
    assert counter.last_day(now).sum == 3000


def test_nothing_counted_is_no_growth() -> None:
    assert Counter().last_minute(5.0) == (0, 0.0, 0.0)
    assert Counter().rate_within(5.0, 10) is None


def test_the_rate_of_a_window_needs_a_sample_that_is_old_enough() -> None:
    counter = Counter()
    now = stepped(counter, 6, 20)
    assert counter.rate_within(now, 10) == pytest.approx(2.0)
    assert counter.rate_within(now, 10, of_calls=True) == pytest.approx(0.1)
    assert counter.rate_within(now, 10_000) is None


@given(st.lists(st.integers(0, 100), min_size=1, max_size=200))
def test_growth_is_never_more_than_the_total(counts: list[int]) -> None:
    counter = Counter()
    now = 0.0
    for count in counts:
        counter.add(count, count)
        now += STEP_S
        counter.step(now)
    for growth in (counter.last_minute(now), counter.last_hour(now), counter.last_day(now)):
        assert 0 <= growth.sum <= sum(counts)
    assert counter.last_day(now).sum == sum(counts)  # the list is shorter than a day


# --- Of a broker ---


def placed(*topics: str) -> Sequence[PutResult]:
    with opened() as store:
        return store.append([message(topic) for topic in topics])


def test_puts_are_counted_by_topic_and_in_all() -> None:
    stats = BrokerStats()
    results = placed("A", "B", "A")
    stats.count_puts(results)
    stats.count_puts([Refused(PutStatus.MESSAGE_ILLEGAL, "why")])
    assert (stats.puts.count, stats.refused) == (3, 1)
    assert {topic: counter.count for topic, counter in stats.topic_puts.items()} == {"A": 2, "B": 1}
    assert stats.puts.size == sum(result.size for result in results if isinstance(result, AppendedRecord))


@given(
    st.lists(
        st.none()
        | st.tuples(st.sampled_from("AB"), st.sampled_from((1, 1024, 1025, 4096, 9000, 1 << 22, 1 << 23)))
    )
)
def test_sizes_are_counted_by_topic_whatever_comes_together(sent: list[tuple[str, int] | None]) -> None:
    stats, expected = BrokerStats(), {topic: Histogram(MESSAGE_BYTES) for topic in "AB"}
    with opened() as store:
        queues = {topic: store.queue(topic, 0) for topic in "AB"}
    results: list[PutResult] = []
    for each in sent:
        if each is None:
            results.append(Refused(PutStatus.MESSAGE_ILLEGAL, "why"))
        else:
            results.append(AppendedRecord(queues[each[0]], 0, 0, each[1], 0, 0, 0, b""))
            expected[each[0]].add(each[1])
    stats.count_puts(results)
    assert stats.refused == sent.count(None)
    assert stats.puts.count == len(sent) - sent.count(None)
    for topic, counter in stats.topic_puts.items():
        assert counter.sizes == expected[topic].counts
        assert (counter.count, counter.size) == (expected[topic].count, expected[topic].sum)


def test_a_batch_counts_its_messages_and_one_call() -> None:
    stats = BrokerStats()
    with opened() as store:
        elements = [BatchElement(0, b"x", b"") for _ in range(5)]
        results = store.append_batches([(message("A"), BatchColumns.of(elements))])[0]
        stats.count_puts(results)
        assert (stats.puts.count, stats.puts.calls) == (5, 1)
        assert stats.topic_puts["A"].size == store.appended_offset
        assert stats.topic_puts["A"].sizes[0] == 5


def test_gets_and_send_backs_are_counted_by_topic_and_group() -> None:
    stats = BrokerStats()
    stats.count_gets("T", "G", 3, 30)
    stats.count_gets("T", "H", 2, 20)
    stats.count_send_back("T", "G")
    assert (stats.gets.count, stats.gets.size) == (5, 50)
    assert stats.group_gets["T", "G"].count == 3
    assert stats.send_backs["T", "G"].count == 1


def test_what_is_deleted_is_forgotten() -> None:
    stats = BrokerStats()
    for topic in ("T", "U"):
        for group in ("G", "H"):
            stats.count_gets(topic, group, 1, 1)
            stats.count_send_back(topic, group)
    stats.count_puts(placed("T", "U"))
    stats.forget_topic("T")
    assert set(stats.topic_puts) == {"U"}
    assert set(stats.group_gets) == set(stats.send_backs) == {("U", "G"), ("U", "H")}
    stats.forget_group("G")
    assert set(stats.group_gets) == set(stats.send_backs) == {("U", "H")}
    assert stats.puts.count == 2


def test_a_queue_that_outlives_its_counter_gets_another() -> None:
    stats, results = BrokerStats(), placed("T", "T")
    stats.count_puts(results)
    stats.forget_topic("T")
    assert not stats.topic_puts
    stats.count_puts(results[:1])
    stats.count_puts(results[1:])
    assert stats.topic_puts["T"].count == 2
    assert (stats.puts.count, stats.puts.calls) == (4, 4)


def test_mornings() -> None:
    stats = BrokerStats()
    stats.count_gets("T", "G", 1, 1)
    stats.step(0.0, NOON_MS)
    assert (stats.this_morning, stats.yesterday_morning) == ((0, 0), (0, 0))
    stats.count_puts(placed("T", "T"))
    stats.step(10.0, NOON_MS + DAY_MS)
    assert (stats.this_morning, stats.yesterday_morning) == ((2, 1), (0, 0))
    stats.count_gets("T", "G", 4, 4)
    stats.step(20.0, NOON_MS + DAY_MS + 5)
    assert stats.this_morning == (2, 1)
    stats.step(30.0, NOON_MS + 2 * DAY_MS)
    assert (stats.this_morning, stats.yesterday_morning) == ((2, 5), (2, 1))


def test_all_counters_step() -> None:
    stats = BrokerStats()
    stats.count_puts(placed("T"))
    stats.count_gets("T", "G", 1, 1)
    stats.count_send_back("T", "G")
    stats.step(10.0, NOON_MS)
    counters = [
        stats.puts,
        stats.gets,
        stats.topic_puts["T"],
        stats.group_gets["T", "G"],
        stats.send_backs["T", "G"],
    ]
    assert [counter.last_minute(10.0).sum for counter in counters] == [1] * 5


def test_many_counters_step_in_slices() -> None:
    stats = BrokerStats()
    for number in range(2 * STEP_SLICE):
        stats.count_gets(f"T{number}", "G", 1, 1)
    assert sum(1 for _ in stats.slices(10.0, NOON_MS)) == 3
    assert {counter.last_minute(10.0).sum for counter in stats.group_gets.values()} == {1}


def test_creations_are_timed_whether_they_succeed_or_not() -> None:
    stats, times = BrokerStats(), iter((1.0, 1.004, 2.0, 4.0))
    with stats.creation("topic", lambda: next(times), is_system=False):
        pass
    with (
        pytest.raises(ValueError, match="full"),
        stats.creation("consumer_group", lambda: next(times), is_system=True),
    ):
        raise ValueError("full")
    made, failed = (
        stats.creations[Creation("topic", succeeded=True, is_system=False)],
        stats.creations[Creation("consumer_group", succeeded=False, is_system=True)],
    )
    assert (made.counts[0], failed.counts[3], failed.sum) == (1, 1, 2000)
    assert len(stats.creations) == 2
