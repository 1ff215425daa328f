"""Pure. Times and durations as people type them."""

from __future__ import annotations

import re
from datetime import datetime

from skylark.cli.errors import UsageError

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-?(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, and of the calendar."""
_MILLISECONDS_DIGITS = range(9, len(str(_MS_MAX)) + 1)
TIME_HELP = "2026-11-15, '2026-11-15 10:30', 10m (ago), or milliseconds since 1970"


def parse_time(text: str, option: str, now_ms: int | None = None) -> int:
    """Milliseconds since 1970 of a local date and time, or of such a number. Raises Mistake.

    With `now_ms`, `10m`, `2h` and `3d` are so long ago, and `now` is now.
    """
    if text.isdecimal() and len(text) in _MILLISECONDS_DIGITS and int(text) <= _MS_MAX:
        return int(text)
    if now_ms is not None:
        if text == "now":
            return now_ms
        if ago := _AGO.fullmatch(text):
            return now_ms - round(min(float(ago[1]) * UNITS_MS[ago[2]], now_ms))
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option} {text!r} is no time such as 2026-11-15 or '2026-11-15 10:30', nor milliseconds"
        ) from None


def parse_duration_ms(text: str, option: str) -> int:
    """Milliseconds of `500ms`, `10s`, `5m`, `2h`, `3d`. Raises Mistake."""
    found = _AGO.fullmatch(text)
    duration_ms = float(found[1]) * UNITS_MS[found[2]] if found is not None else -1
    if text.startswith("-") or not 0 <= duration_ms <= _MS_MAX:
        raise UsageError(f"{option} {text!r} is no duration such as 10s, 5m, 2h or 3d")
    return round(duration_ms)
