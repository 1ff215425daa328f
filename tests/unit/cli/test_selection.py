"""Which messages are meant: sense and nonsense of the filters."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from skylark.cli.errors import UsageError
from skylark.cli.selection import Selection, names
from skylark.cli.times import parse_time

NOTHING: dict[str, Any] = {
    "topic": None,
    "queue_id": None,
    "from_offset": None,
    "to_offset": None,
    "since": None,
    "until": None,
    "key": None,
    "limit": None,
}


def parse(**options: object) -> Selection:
    return Selection.parse(**(NOTHING | options))


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2026-11-15", datetime(2026, 11, 15)),
        ("2026-11-15 10:30", datetime(2026, 11, 15, 10, 30)),
        ("2026-11-15T10:30:05.250", datetime(2026, 11, 15, 10, 30, 5, 250_000)),
        ("20261115", datetime(2026, 11, 15)),
        ("2026-11-15T10:30+00:00", datetime.fromisoformat("2026-11-15T10:30+00:00")),
    ],
)
def test_times_are_local_unless_they_say_otherwise(text: str, when: datetime) -> None:
    assert parse_time(text, "--since") == int(when.timestamp() * 1000)


def test_milliseconds_are_a_time() -> None:
    assert parse_time("1700000000123", "--since") == 1_700_000_000_123


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "12", "-5", "2026-11-15 25:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--until .* is no time"):
        parse_time(text, "--until")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queue_id": 1}, "--queue needs --topic"),
        ({"key": "k"}, "--key needs --topic"),
        ({"from_offset": 1}, "they need --topic"),
        ({"to_offset": 1}, "they need --topic"),
        ({"topic": "t", "from_offset": 5, "to_offset": 5}, "5 is not below --to-offset 5"),
        ({"since": "2026-02-02", "until": "2026-01-01"}, "later than --until"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse(**options)


def test_what_makes_sense_is_taken() -> None:
    assert parse() == Selection()
    assert parse(topic="t", queue_id=0, from_offset=0, to_offset=1, limit=0) == Selection(
        "t", 0, 0, 1, limit=0
    )
    assert parse(since="1700000000000", until="1700000000000").until_ms == 1_700_000_000_000


def test_a_few_names_stand_for_many() -> None:
    assert names([]) == "none"
    assert names(["a", "b"]) == "a, b"
    assert names([str(number) for number in range(9)]) == "0, 1, 2, 3, 4 and 4 more"
