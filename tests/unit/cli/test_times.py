"""Times and durations as people type them."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.cli.errors import UsageError
from skylark.cli.times import UNITS_MS, parse_duration_ms, parse_time

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("now", NOW_MS),
        ("10m", NOW_MS - 600_000),
        ("-10m", NOW_MS - 600_000),
        ("1.5h", NOW_MS - 5_400_000),
        ("250ms", NOW_MS - 250),
        ("99999999999d", 0),
        ("9" * 400 + "d", 0),
        ("1699999999999", 1_699_999_999_999),
        ("2026-11-15 10:30", int(datetime(2026, 11, 15, 10, 30).timestamp() * 1000)),
        ("2026-11-15", int(datetime(2026, 11, 15).timestamp() * 1000)),
    ],
)
def test_times(text: str, time_ms: int) -> None:
    assert parse_time(text, "--since", NOW_MS) == time_ms


@pytest.mark.parametrize(
    "text", ["", "soon", "10", "10 minutes", "m", "2026-13-01", "99999-01-01", "9" * 15, "9" * 5000, "²" * 9]
)
def test_what_is_no_time_is_said(text: str) -> None:
    with pytest.raises(UsageError, match=r"--since .* is no time such as 2026-11-15"):
        parse_time(text, "--since", NOW_MS)


def test_without_a_now_there_is_no_ago() -> None:
    with pytest.raises(UsageError):
        parse_time("10m", "--since")


@given(number=st.integers(0, 10**6), unit=st.sampled_from(sorted(UNITS_MS)))
def test_durations(number: int, unit: str) -> None:
    assert parse_duration_ms(f"{number}{unit}", "--delay") == number * UNITS_MS[unit]


@pytest.mark.parametrize("text", ["", "10", "-5s", "five", "5 s", "99999999999d", "9" * 400 + "s"])
def test_what_is_no_duration_is_said(text: str) -> None:
    with pytest.raises(UsageError, match=r"--delay .* is no duration such as 10s"):
        parse_duration_ms(text, "--delay")
