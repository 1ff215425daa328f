"""The tags code of a unit: the hash of the tags, or for the schedule topic when the message is due."""

from __future__ import annotations

import pytest

from skylark.model.java import java_hash
from skylark.settings import DELAY_LEVELS, parse_delay_levels
from skylark.store import queue_entry
from skylark.store.queue_entry import delay_level, known_codes, schedule_tags_code, tags_code

LEVELS = parse_delay_levels(DELAY_LEVELS)
STORED_MS = 1700000000123


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0),
        (b"KEYS\x01k\x02", 0),
        (b"TAGS\x01TagA\x02", 2598919),
        (b"TAGS\x01TagA", 2598919),
        (b"KEYS\x01k\x02TAGS\x01TagA\x02", 2598919),
        (b"KEYS\x01k\x02TAGS\x01TagA", 2598919),
        (b"KEYS\x01k\x02TAGS\x01TagA\x02CLUSTER\x01c\x02", 2598919),
        (b"KEYS\x01k\x02TAGS\x01TagA || TagB\x02", java_hash("TagA || TagB")),
        (b"TAGS\x01TagB\x02KEYS\x01k\x02TAGS\x01TagA\x02", 2598919),
        (b"TAGS\x01TagA\x02KEYS\x01k\x02TAGS\x01\x02", 2598919),
        (b"KEYS\x01k\x02TAGS\x01TagA\x02TAGS\x01", 2598919),
        (b"KEYS\x01k\x02TAGS\x01\x02", 0),
        ("a\x01b\x02TAGS\x01订单\x02".encode(), 1129459),
        (b"TAGS\x01polygenelubricants\x02", -2147483648),
        (b"XTAGS\x01TagA\x02", 0),
        (b"a\x01\x02\x02TAGS\x01TagA\x02b\x01TAGS\x02", 2598919),
    ],
)
def test_tags_codes(text: bytes, expected: int) -> None:
    # Twice: the second answer comes from what is known.
    assert tags_code(text) == tags_code(text) == expected


def test_what_is_known_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_entry, "CACHED_TAGS_MAX", 10)
    for number in range(35):
        text = f"a\x01b\x02TAGS\x01tag-{number}\x02".encode()
        assert tags_code(text) == java_hash(f"tag-{number}")
        assert len(known_codes) <= 10


def test_long_texts_are_not_kept() -> None:
    known_codes.clear()
    long = b"a\x01b\x02TAGS\x01" + b"t" * 5000 + b"\x02"
    assert tags_code(long) == java_hash("t" * 5000)
    assert not known_codes


@pytest.mark.parametrize(
    ("level", "due_ms"),
    [(b"1", 1000), (b"3", 10_000), (b"18", 7_200_000), (b"19", 7_200_000), (b"100", 7_200_000)],
)
def test_a_scheduled_message_is_due_after_its_level(level: bytes, due_ms: int) -> None:
    text = b"TAGS\x01TagA\x02DELAY\x01" + level + b"\x02"
    assert schedule_tags_code(text, STORED_MS, LEVELS) == STORED_MS + due_ms


@pytest.mark.parametrize("level", [b"0", b"-1", b"x", b"", b"1.5", b"9" * 5000])
def test_without_a_level_it_is_an_ordinary_code(level: bytes) -> None:
    text = b"TAGS\x01TagA\x02DELAY\x01" + level + b"\x02"
    assert schedule_tags_code(text, STORED_MS, LEVELS) == 2598919
    assert schedule_tags_code(b"TAGS\x01TagA\x02", STORED_MS, LEVELS) == 2598919


def test_levels_are_read() -> None:
    assert delay_level(b"DELAY\x013\x02") == 3
    assert delay_level(b"DELAY\x01-1\x02") == -1
    assert delay_level(b"") == delay_level(b"DELAY\x01x\x02") == 0
