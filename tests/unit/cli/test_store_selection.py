"""Selection of messages: valid and contradictory filters."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.cli.errors import UsageError
from skylark.cli.store import Selection, SelectionOptions, _names


def parse(**options: Any) -> Selection:
    return SelectionOptions(**options).selection()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queue": 1}, "--queue needs --topic"),
        ({"key": "k"}, "--key needs --topic"),
        ({"from_offset": 1}, "they need --topic"),
        ({"to_offset": 1}, "they need --topic"),
        ({"topic": "t", "from_offset": 5, "to_offset": 5}, "5 is not below --to-offset 5"),
        ({"since": "soon"}, "--since: invalid time 'soon'"),
        ({"since": "2026-02-02", "until": "2026-01-01"}, "later than --until"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse(**options)


def test_what_makes_sense_is_taken() -> None:
    assert parse() == Selection()
    assert parse(topic="t", queue=0, from_offset=0, to_offset=1, limit=0) == Selection("t", 0, 0, 1, limit=0)
    assert parse(since="1700000000000", until="1700000000000").until_ms == 1_700_000_000_000


def test_a_few_names_stand_for_many() -> None:
    assert _names([]) == "none"
    assert _names(["a", "b"]) == "a, b"
    assert _names([str(number) for number in range(9)]) == "0, 1, 2, 3, 4 and 4 more"
