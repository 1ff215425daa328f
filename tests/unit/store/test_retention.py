"""What may be deleted and when, as pure decisions: by hour and age, by disk use, by force, by request."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from skylark.settings import StoreSettings
from skylark.store.retention import (
    HOUR_MS,
    MANUAL_ROUNDS,
    DiskFullFlag,
    DiskState,
    LogFile,
    ManualCleanup,
    delete_slowly,
    disk_state,
    files_to_delete,
)

FOUR = int(datetime(2026, 11, 15, 4, 30).timestamp() * 1000)
FIVE = FOUR + HOUR_MS


def files(*ages_hours: float, now_ms: int = FOUR) -> list[LogFile]:
    """Files of 100 bytes, oldest first, last changed so many hours ago."""
    return [LogFile(100 * n, int(now_ms - age * HOUR_MS)) for n, age in enumerate(ages_hours)]


def chosen(
    given: list[LogFile],
    *,
    now_ms: int = FOUR,
    state: DiskState = DiskState.FREE,
    manual: bool = False,
    **changes: Any,
) -> list[int]:
    return files_to_delete(
        given, now_ms=now_ms, state=state, manual=manual, settings=StoreSettings(**changes)
    )


# Disk use


@pytest.mark.parametrize(
    ("used", "state"),
    [
        (0.0, DiskState.FREE),
        (0.75, DiskState.FREE),
        (0.76, DiskState.CLEAN),
        (0.85, DiskState.CLEAN),
        (0.86, DiskState.FORCE),
        (0.90, DiskState.FORCE),
        (0.91, DiskState.FULL),
        (1.0, DiskState.FULL),
    ],
)
def test_marks_of_disk_use(used: float, state: DiskState) -> None:
    assert disk_state(used, StoreSettings()) is state


def test_the_full_flag_is_cleared_only_at_the_force_mark() -> None:
    flag = DiskFullFlag()
    seen = []
    for state in (
        DiskState.FREE,
        DiskState.FORCE,
        DiskState.FULL,
        DiskState.FORCE,
        DiskState.FULL,
        DiskState.CLEAN,
        DiskState.FORCE,
        DiskState.FULL,
        DiskState.FREE,
    ):
        flag.update(state)
        seen.append(flag.is_set)
    assert seen == [False, False, True, True, True, False, False, True, False]


# Files


def test_files_expire_at_the_delete_hour() -> None:
    old = files(100, 72, 71, 0)
    assert chosen(old) == [0, 100]
    assert chosen(old, now_ms=FIVE) == []
    assert chosen(old, now_ms=FIVE, delete_hours="04;05") == [0, 100, 200]


def test_deleting_stops_at_the_first_file_to_keep() -> None:
    assert chosen(files(100, 1, 100, 0)) == [0]
    assert chosen(files(1, 100, 100, 0)) == []


def test_the_last_file_is_never_deleted() -> None:
    assert chosen(files(100, 100)) == [0]
    assert chosen(files(100)) == []
    assert chosen([]) == []
    assert chosen(files(100), state=DiskState.FULL) == []


def test_reserved_time_zero() -> None:
    assert chosen(files(0, 0, 0), reserved_hours=0) == [0, 100]


def test_above_the_clean_mark_the_hour_does_not_matter_but_age_does() -> None:
    old = files(100, 1, 0, now_ms=FIVE)
    assert chosen(old, now_ms=FIVE) == []
    assert chosen(old, now_ms=FIVE, state=DiskState.CLEAN) == [0]


@pytest.mark.parametrize("state", [DiskState.FORCE, DiskState.FULL])
def test_above_the_force_mark_age_does_not_matter(state: DiskState) -> None:
    assert chosen(files(1, 1, 0, now_ms=FIVE), now_ms=FIVE, state=state) == [0, 100]


def test_a_request_counts_as_the_delete_hour() -> None:
    old = files(100, 1, 0, now_ms=FIVE)
    assert chosen(old, now_ms=FIVE, manual=True) == [0]


def test_so_many_files_in_a_round() -> None:
    assert chosen(files(*[100] * 30)) == [100 * n for n in range(10)]
    assert chosen(files(*[100] * 30), delete_files_max=3) == [0, 100, 200]


def test_a_request_holds_for_some_rounds() -> None:
    request = ManualCleanup()
    assert not request.take()
    request.arm()
    assert [request.take() for _ in range(MANUAL_ROUNDS + 2)] == [True] * MANUAL_ROUNDS + [False, False]
    assert MANUAL_ROUNDS == 20


def test_one_file_at_a_time_with_pauses_between(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[object] = []
    monkeypatch.setattr(time, "sleep", events.append)
    delete_slowly([0, 100, 200], lambda start: events.append(f"delete {start}"), 0.1)
    assert events == ["delete 0", 0.1, "delete 100", 0.1, "delete 200"]
