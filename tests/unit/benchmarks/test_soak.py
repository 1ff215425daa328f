"""What is flat and what is not; who still has to get a message."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak.load import (
    BY_PULL,
    BY_SQL,
    BY_TAG,
    CYCLE,
    DELAYED,
    TRADING,
    WAITING,
    Ledger,
    groups_of,
    is_rolled_back,
)
from benchmarks.soak.slopes import MEASURES, Sample, Slope, log_findings, slopes, trend

QUIET = Sample(
    second=0,
    sent=0,
    received=0,
    broker_mib=60.0,
    client_mib=80.0,
    descriptors=100,
    threads=12,
    broker_core_share=0.2,
    send_p50_ms=1.0,
    send_p99_ms=8.0,
    end_to_end_p50_ms=2.0,
    end_to_end_p99_ms=20.0,
    log_files=5,
    log_begin=0,
    log_end=0,
    load_1m=1.0,
    other_cores=0.05,
)


def course(change: Callable[[float], dict[str, float]], minutes: int = 30) -> list[Sample]:
    """A look every five seconds, changed by the minutes passed."""
    seconds = range(5, minutes * 60 + 1, 5)
    return [msgspec.structs.replace(QUIET, second=float(s), **change(s / 60)) for s in seconds]


def verdicts(samples: list[Sample]) -> dict[str, bool | None]:
    return {slope.name: slope.is_flat for slope in slopes(samples)}


def test_a_quiet_run_is_flat_in_everything() -> None:
    found = verdicts(course(lambda _: {}))
    assert set(found) == {measure.name for measure in MEASURES}
    assert set(found.values()) == {True}


def test_noise_and_a_disturbed_minute_are_flat() -> None:
    chance = random.Random(7)

    def change(minute: float) -> dict[str, float]:
        disturbed = 20 < minute < 21
        return {
            "broker_mib": 60 + chance.uniform(-2, 2),
            "send_p99_ms": 500.0 if disturbed else 8 + chance.uniform(-3, 3),
            "descriptors": 100 + chance.randint(-5, 5),
        }

    assert set(verdicts(course(change)).values()) == {True}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("broker memory", lambda minute: {"broker_mib": 60 + 1.5 * minute}),
        ("client memory", lambda minute: {"client_mib": 60 + 1.5 * minute}),
        ("descriptors", lambda minute: {"descriptors": 100 + minute}),
        ("threads", lambda minute: {"threads": 12 + minute // 2}),
        ("log files", lambda minute: {"log_files": 5 + 2 * minute}),
        ("send p50", lambda minute: {"send_p50_ms": 1 + minute / 10}),
        ("send p99", lambda minute: {"send_p99_ms": 8 + minute}),
        ("end to end p99", lambda minute: {"end_to_end_p99_ms": 20 + minute}),
    ],
)
def test_what_grows_is_named_and_nothing_else(name: str, change: Callable[[float], dict[str, float]]) -> None:
    assert {each for each, flat in verdicts(course(change)).items() if flat is False} == {name}


def busy(minute: float) -> bool:
    """A third of the time, in pieces of three minutes."""
    return minute % 9 < 3


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("more and more", lambda minute: minute / 20),
        ("less and less", lambda minute: 1.5 - minute / 20),
        ("always much", lambda _: 0.8),
        ("the second half", lambda minute: 0.6 if minute > 17 else 0.05),
    ],
)
def test_latency_is_not_judged_on_a_busy_machine_but_memory_is(
    name: str, others: Callable[[float], float]
) -> None:
    def change(minute: float) -> dict[str, float]:
        return {
            "send_p99_ms": 8 + minute, "broker_mib": 60 + 2 * minute, "other_cores": others(minute),
            "stolen_cores": 0.04,
        }  # fmt: skip

    found = {slope.name: slope for slope in slopes(course(change))}
    assert found["send p99"].is_flat is None, name
    assert found["send p50"].is_flat is None
    why = found["send p99"].why
    assert why.startswith("not judged: machine busy (others used ")
    assert "0.04 of them stolen" in why
    assert re.search(r"its quieter half lasted \d+ of 15\d\d s", why)
    assert (found["broker memory"].is_flat, found["broker memory"].why) == (False, "")


def test_times_in_which_others_worked_do_not_count_for_latency() -> None:
    """Latencies are tenfold then, and more and more so; between them they are level."""

    def change(minute: float) -> dict[str, float]:
        if busy(minute):
            return {"other_cores": 0.9, "send_p99_ms": 80 + 20 * minute, "send_p50_ms": 10 + minute}
        return {"other_cores": 0.1, "send_p99_ms": 8.0, "send_p50_ms": 1.0}

    found = {slope.name: slope for slope in slopes(course(change))}
    assert [found[name].is_flat for name in ("send p50", "send p99")] == [True, True]
    assert found["send p99"].first == found["send p99"].last == 8.0


def test_a_latency_that_grows_between_others_work_is_named() -> None:
    def change(minute: float) -> dict[str, float]:
        if busy(minute):
            return {"other_cores": 0.9, "send_p99_ms": 80.0}
        return {"other_cores": 0.1, "send_p99_ms": 8 + minute}

    assert {name for name, flat in verdicts(course(change)).items() if flat is False} == {"send p99"}


def test_what_neighbours_take_now_and_then_does_not_hide_that_latency_is_flat() -> None:
    """A percent of a core doubles latencies for minutes at a time, at random."""
    chance = random.Random(11)
    stolen = [chance.choice((0.0, 0.0, 0.01)) for _ in range(31)]

    def change(minute: float) -> dict[str, float]:
        taken = stolen[int(minute)]
        slower = 1 + 100 * taken * chance.random()
        return {"other_cores": taken, "send_p50_ms": 4 * slower, "end_to_end_p99_ms": 20 * slower}

    assert set(verdicts(course(change)).values()) == {True}


def test_steady_work_of_others_is_no_reason_not_to_judge() -> None:
    def change(minute: float) -> dict[str, float]:
        return {"other_cores": 0.3 + (minute % 2) / 20, "send_p99_ms": 30 + minute}

    found = verdicts(course(change))
    assert (found["send p50"], found["send p99"]) == (True, False)


def test_what_noise_hides_is_neither_flat_nor_not() -> None:
    chance = random.Random(3)

    def change(minute: float) -> dict[str, float]:
        return {"broker_mib": 100 + minute + chance.uniform(-90, 90)}

    found = {slope.name: slope for slope in slopes(course(change))}["broker memory"]
    assert found.low < 1.0 < found.high
    assert (found.is_flat, found.why) == (None, "not clear: it varies too much")


def test_ten_minutes_are_enough_to_tell() -> None:
    chance = random.Random(5)

    def change(minute: float) -> dict[str, float]:
        return {"send_p50_ms": 3 + chance.uniform(-1, 1), "broker_mib": 60 + 2 * minute}

    found = verdicts(course(change, minutes=10))
    assert found["send p50"] is True
    assert found["broker memory"] is False


def test_what_grows_while_it_warms_up_is_flat() -> None:
    assert verdicts(course(lambda minute: {"broker_mib": 60 + 20 * min(minute, 3)}))["broker memory"] is True


def test_a_short_run_is_not_judged() -> None:
    grows = course(lambda minute: {"broker_mib": 60 + 100 * minute}, minutes=2)
    assert set(verdicts(grows).values()) == {None}


def test_what_was_never_seen_is_left_out() -> None:
    samples = course(lambda _: {})
    unseen = [msgspec.structs.replace(sample, end_to_end_p50_ms=None) for sample in samples]
    assert "end to end p50" not in verdicts(unseen)
    assert slopes([]) == []


@given(st.floats(-100, 100), st.floats(-1000, 1000))
def test_the_slope_of_a_line_is_its_own(per_minute: float, start: float) -> None:
    points = [(float(second), start + per_minute * second / 60) for second in range(0, 3000, 5)]
    found = trend(points)
    assert [found.per_minute, found.low, found.high] == pytest.approx([per_minute] * 3, abs=1e-6)


@given(st.lists(st.floats(-1000, 1000), max_size=200))
def test_a_slope_lies_between_its_bounds(values: list[float]) -> None:
    found = trend([(5.0 * number, value) for number, value in enumerate(values)])
    assert found.low <= found.per_minute <= found.high


def test_a_slope_says_where_it_began_and_ended() -> None:
    found: dict[str, Slope] = {each.name: each for each in slopes(course(lambda m: {"broker_mib": 60 + m}))}
    memory = found["broker memory"]
    assert 60 < memory.first < 72
    assert 80 < memory.last < 90
    assert memory.per_minute == pytest.approx(1.0)
    assert memory.limit == "1 MiB a minute"


def test_rolling_and_deleting_are_found_out() -> None:
    file = 1 << 20

    def found(samples: list[Sample], keep_s: float = 60.0) -> list[bool | None]:
        return [each.ok for each in log_findings(samples, file, message_bytes=1024, keep_s=keep_s)]

    def sent(minute: float) -> dict[str, float]:
        """Four files a minute."""
        return {"sent": round(minute * 4 * 1024)}

    def moving(minute: float) -> dict[str, float]:
        return {**sent(minute), "log_end": int(minute * 4) * file, "log_begin": int(minute * 3) * file}

    assert found(course(moving)) == [True, True]
    assert found(course(lambda m: {**moving(m), "log_begin": 0})) == [True, False], "nothing is deleted"
    assert found(course(sent)) == [False, None], "there is only one file, and it has no end"
    assert found(course(lambda _: {}, minutes=1)) == [None, None], "not enough was sent to tell"


def test_files_that_are_to_be_kept_for_longer_than_the_run_need_not_go() -> None:
    file = 1 << 20
    quick = course(lambda m: {"sent": round(m * 60 * 1024), "log_end": int(m * 60) * file}, minutes=1)
    assert [each.ok for each in log_findings(quick, file, 1024, keep_s=60.0)] == [True, None]
    assert [each.ok for each in log_findings(quick, file, 1024, keep_s=10.0)] == [True, False]


def test_the_ledger_knows_what_is_missing_doubled_and_forbidden() -> None:
    ledger = Ledger()
    assert groups_of(7) == [BY_PULL, BY_TAG, BY_SQL]
    assert groups_of(5) == [BY_PULL, BY_SQL]
    for number in (5, 7, TRADING[0]):
        ledger.expect(number, due_ns=10 * number)
    assert ledger.missing == 5
    assert ledger.take(BY_PULL, 5) == 50
    assert ledger.take(BY_PULL, 5) is None
    assert (ledger.received, ledger.again) == (1, 1)
    ledger.doubt(7)
    assert ledger.take(BY_TAG, 7) is None, "a send that failed may still be stored"
    assert (ledger.failed, ledger.again, ledger.unexpected, ledger.stray) == (1, 1, 0, 0)
    assert ledger.missing == 1
    assert ledger.take(WAITING, TRADING[0]) is None
    assert ledger.unexpected == 1


@pytest.mark.parametrize(
    ("group", "number"),
    [(BY_TAG, 5), (BY_SQL, 1), (WAITING, 5), (BY_PULL, DELAYED[0]), (BY_PULL, 10**9), (BY_TAG, 2**63)],
)
def test_what_nobody_asked_for_is_no_second_delivery(group: str, number: int) -> None:
    """A filter that lets everything through, a message of the wrong topic, a body that is not ours."""
    ledger = Ledger()
    for each in range(CYCLE):
        ledger.expect(each, due_ns=0)
    assert ledger.take(group, number) is None
    assert (ledger.stray, ledger.again, ledger.unexpected) == (1, 0, 0)


def test_one_transaction_of_five_is_rolled_back() -> None:
    numbers = range(CYCLE * 500)
    trades = [number for number in numbers if number % CYCLE in TRADING]
    assert len([number for number in numbers if is_rolled_back(number)]) * 5 == len(trades)
