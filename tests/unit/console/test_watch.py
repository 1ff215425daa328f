"""What the console remembers between looks."""

from __future__ import annotations

from typing import cast

import pytest

from skylark.admin.admin import AsyncAdmin
from skylark.admin.results import GroupProgress, QueueProgress
from skylark.console.watch import ANSWERS_MAX, Watch
from skylark.protocol.bodies import MessageQueue

FIRST, SECOND = (MessageQueue("orders", "broker-a", number) for number in range(2))


def progress(first: int, second: int, group: str = "billing") -> GroupProgress:
    """Both queues end at 10."""
    parts = tuple(QueueProgress(queue, at, at, 10, None) for queue, at in ((FIRST, first), (SECOND, second)))
    return GroupProgress(group, parts, 0.0, {})


@pytest.fixture
def watch() -> Watch:
    return Watch(cast("AsyncAdmin", None))


def test_a_queue_stands_while_its_offset_stays_and_messages_wait(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("skylark.console.watch.time.monotonic", lambda: now)
    assert watch.standing_s(progress(4, 4)) == {FIRST: 0.0, SECOND: 0.0}
    now = 120.0
    assert watch.standing_s(progress(4, 5)) == {FIRST: 20.0, SECOND: 0.0}
    now = 150.0
    assert watch.standing_s(progress(4, 10)) == {FIRST: 50.0}
    now = 160.0
    assert watch.standing_s(progress(10, 4)) == {SECOND: 0.0}  # went back
    now = 170.0
    assert watch.standing_s(progress(9, 4)) == {FIRST: 0.0, SECOND: 10.0}


def test_places_of_groups_are_bounded(watch: Watch) -> None:
    for number in range(ANSWERS_MAX + 5):
        watch.standing_s(progress(1, 2, f"group-{number}"))
    assert len(watch._places) == ANSWERS_MAX
    assert "group-0" not in watch._places
