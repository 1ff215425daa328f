"""Tasks with a parent."""

import asyncio

import pytest

from skylark.broker.tasks import Tasks
from tests.support.broker import until


async def test_a_failure_is_logged_and_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()
    done: list[str] = []

    async def fail() -> None:
        raise ValueError("bad luck")

    async def work() -> None:
        await asyncio.sleep(0.01)
        done.append("work")

    tasks.spawn(fail())
    tasks.spawn(work())
    await until(lambda: done == ["work"])
    assert "a task failed" in caplog.text
    assert "bad luck" in caplog.text
    await tasks.close()


async def test_a_step_is_repeated_whatever_it_raises(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()
    counts = {"plain": 0, "waiting": 0}

    def plain() -> None:
        counts["plain"] += 1
        raise RuntimeError("every time")

    async def waiting() -> None:
        await asyncio.sleep(0)
        counts["waiting"] += 1

    tasks.every(lambda: 0.001, plain)
    tasks.every(lambda: 0.001, waiting)
    assert counts == {"plain": 0, "waiting": 0}  # the first time after one interval
    await until(lambda: min(counts.values()) >= 3)
    await tasks.close()
    assert "a regular task failed, it goes on" in caplog.text
    seen = dict(counts)
    await asyncio.sleep(0.01)
    assert counts == seen


async def test_the_interval_is_asked_for_each_time() -> None:
    tasks = Tasks()
    intervals = iter([0.0, 0.0, 3600.0])
    steps: list[int] = []
    tasks.every(lambda: next(intervals), lambda: steps.append(1))
    await until(lambda: len(steps) == 2)
    await asyncio.sleep(0.01)
    assert len(steps) == 2
    await tasks.close()


async def test_close_cancels_and_waits() -> None:
    tasks = Tasks()
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            ended.append("slow")

    tasks.spawn(slow())
    await asyncio.sleep(0)
    await tasks.close()
    assert ended == ["slow"]
    await tasks.close()
