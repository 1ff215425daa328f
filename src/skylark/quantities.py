"""Pure. Durations, times, sizes, rates and numbers as users write them.

A time without a zone is local time, everywhere. Every parser raises ValueError with a text for the user.
"""

from __future__ import annotations

import math
import re
from datetime import datetime

DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
BYTE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
NUMBER_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, where `datetime` ends."""
TIME_HELP = "2026-11-15 or '2026-11-15 10:30' (local time unless a zone is given), or milliseconds since 1970"
PAST_TIME_HELP = f"10m (ago), {TIME_HELP}"

_AMOUNT = r"(\d+(?:\.\d+)?)\s*"
_FLAGS = re.ASCII | re.IGNORECASE
_DURATION = re.compile(_AMOUNT + "(ms|s|m|h|d|seconds?|minutes?|hours?|days?)", _FLAGS)
_BYTES = re.compile(_AMOUNT + "([kmgt]?)(?:i?b)?", _FLAGS)
_NUMBER = re.compile(_AMOUNT + "(k|m|g|kib|mib|gib)?", _FLAGS)
_TIME_MS_DIGITS = range(9, len(str(TIME_MS_MAX)) + 1)
"""Eight digits are a date: 20261115."""


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `200ms`, `10s`, `5 minutes`, `7d`. Raises ValueError."""
    duration_ms = _duration_ms(text.strip())
    if duration_ms is None or duration_ms > TIME_MS_MAX:
        raise ValueError(f"invalid duration {text!r}; try 500ms, 10s, 5m, 2h or 3d")
    return round(duration_ms)


def _duration_ms(text: str) -> float | None:
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    unit = match[2].lower()
    return float(match[1]) * DURATION_UNITS_MS[unit if unit in DURATION_UNITS_MS else unit[0]]


def parse_time_ms(text: str, now_ms: int | None = None) -> int:
    """Milliseconds since 1970 of an ISO 8601 date and time, local without a zone, or of such a number.

    With `now_ms`, `10m` and `-10m` are ten minutes ago and `now` is now. Raises ValueError.
    """
    word = text.strip()
    if word.isascii() and word.isdecimal() and len(word) in _TIME_MS_DIGITS and int(word) <= TIME_MS_MAX:
        return int(word)
    if now_ms is not None:
        if word == "now":
            return now_ms
        ago_ms = _duration_ms(word.removeprefix("-"))
        if ago_ms is not None:
            return now_ms - round(min(ago_ms, now_ms))
    try:
        return round(datetime.fromisoformat(word).timestamp() * 1000)
    except (ValueError, OverflowError):
        ago = "" if now_ms is None else ", 10m (ago)"
        raise ValueError(
            f"invalid time {text!r}; try 2026-11-15, '2026-11-15 10:30'{ago}, or milliseconds since 1970"
        ) from None


def parse_bytes(text: str) -> int:
    """`64MB`, `1g`, `10 KiB`, `4096`; units are powers of 1024. Raises ValueError."""
    match = _BYTES.fullmatch(text.strip())
    size = float(match[1]) * BYTE_UNITS[match[2].lower()] if match is not None else math.inf
    if size == math.inf:
        raise ValueError(f"invalid size {text!r}; try 4096, 64MB or 1g")
    return int(size)


def parse_rate(text: str) -> float:
    """`200`, `200/s`. Raises ValueError."""
    try:
        rate = float(text.strip().removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < math.inf:
        raise ValueError(f"invalid rate {text!r}; try 200 or 200/s")
    return rate


def parse_number(text: str) -> float:
    """`300`, `1.5k`, `2M`, `1KiB`: k, M and G are powers of 1000. Raises ValueError."""
    match = _NUMBER.fullmatch(text.strip())
    number = float(match[1]) * NUMBER_UNITS[(match[2] or "").lower()] if match is not None else math.inf
    if number == math.inf:
        raise ValueError(f"invalid number {text!r}; try 300, 1.5k, 2M or 1KiB")
    return number
