"""Times, durations, sizes, rates and numbers as users write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.quantities import (
    DURATION_UNITS_MS,
    parse_bytes,
    parse_duration_ms,
    parse_number,
    parse_rate,
    parse_time_ms,
)

NOW_MS = 1_700_000_000_000


@pytest.fixture
def shanghai(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("now", NOW_MS),
        ("10m", NOW_MS - 600_000),
        ("-10m", NOW_MS - 600_000),
        ("10 minutes", NOW_MS - 600_000),
        ("1.5h", NOW_MS - 5_400_000),
        ("250ms", NOW_MS - 250),
        ("99999999999d", 0),
        ("9" * 400 + "d", 0),
        ("1699999999999", 1_699_999_999_999),
        ("2026-11-15 10:30", int(datetime(2026, 11, 15, 10, 30).timestamp() * 1000)),
        (" 2026-11-15", int(datetime(2026, 11, 15).timestamp() * 1000)),
        ("20261115", int(datetime(2026, 11, 15).timestamp() * 1000)),
        ("2026-11-15T10:30:05.250", round(datetime(2026, 11, 15, 10, 30, 5, 250_000).timestamp() * 1000)),
    ],
)
def test_times(text: str, time_ms: int) -> None:
    assert parse_time_ms(text, NOW_MS) == time_ms


@pytest.mark.usefixtures("shanghai")
@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01 08:00:01", 1000),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-02", 57_600_000),
    ],
)
def test_times_are_local_unless_a_zone_is_given(text: str, time_ms: int) -> None:
    assert parse_time_ms(text) == parse_time_ms(text, NOW_MS) == time_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "10",
        "-5",
        "m",
        "2026-13-01",
        "2026-11-15 25:00",
        "99999-01-01",
        "9" * 15,
        "9" * 5000,
        "²" * 9,
    ],
)
def test_invalid_times(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid time .*; try 2026-11-15, '2026-11-15 10:30', 10m \(ago\)"):
        parse_time_ms(text, NOW_MS)


def test_without_now_no_time_is_relative() -> None:
    for text in ("10m", "now"):
        with pytest.raises(ValueError, match=r"invalid time .*10:30', or milliseconds"):
            parse_time_ms(text)


@given(number=st.integers(0, 10**6), unit=st.sampled_from(sorted(DURATION_UNITS_MS)))
def test_durations(number: int, unit: str) -> None:
    assert parse_duration_ms(f"{number}{unit}") == number * DURATION_UNITS_MS[unit]


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("5 minutes", 300_000), ("1.5 h", 5_400_000), ("7 days", 604_800_000), ("1 Second", 1000)],
)
def test_durations_in_words(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "10", "-5s", "five", "99999999999d", "9" * 400 + "s"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid duration .*; try 500ms, 10s"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "size"), [("64MB", 64 << 20), ("1g", 1 << 30), ("10 KiB", 10_240), ("7", 7), ("1.5k", 1536)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1", "1 PB", "9" * 400])
def test_invalid_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="invalid size"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "rate"), [("200", 200.0), ("0.5/s", 0.5)])
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0", "-1/s", "inf", "nan"])
def test_invalid_rates(text: str) -> None:
    with pytest.raises(ValueError, match="invalid rate"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [("300", 300), ("1.5k", 1500), ("2M", 2e6), ("1 G", 1e9), ("1KiB", 1024), ("2 mib", 2 << 20), (" 7 ", 7)],
)
def test_numbers(text: str, number: float) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize("text", ["", "k", "-1", "1e3", "1 2", "1kk", "9" * 400])
def test_invalid_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="invalid number"):
        parse_number(text)
