"""A thread looks while a block runs, and no longer."""

from __future__ import annotations

import threading

import pytest

from benchmarks.periodic import watched

SOON_S = 30


def test_it_looks_again_and_again_until_the_block_ends() -> None:
    looked = threading.Semaphore(0)
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        looked.release()
        return True

    with watched(look, 0.001, "watching"):
        assert all(looked.acquire(timeout=SOON_S) for _ in range(3))
    seen = looks
    assert "watching" not in {thread.name for thread in threading.enumerate()}
    assert looks == seen >= 3


def test_it_stops_looking_when_there_is_nothing_more_to_see() -> None:
    looks: list[threading.Thread] = []
    seen = threading.Event()

    def look() -> bool:
        looks.append(threading.current_thread())
        if len(looks) == 2:
            seen.set()
        return len(looks) < 2

    with watched(look, 0.001, "watching"):
        assert seen.wait(SOON_S)
        looks[0].join(SOON_S)
        assert not looks[0].is_alive()
    assert len(looks) == 2


def test_a_failure_of_the_block_ends_it_too() -> None:
    with pytest.raises(KeyError), watched(lambda: True, 0.001, "watching"):
        raise KeyError
    assert "watching" not in {thread.name for thread in threading.enumerate()}
