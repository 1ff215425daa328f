"""Tasks with a parent."""

from __future__ import annotations

import asyncio

import pytest

from skylark.tasks import Tasks
from tests.support.broker import until


async def test_a_step_that_fails_is_logged_and_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()
    done = asyncio.Event()
    calls: list[int] = []

    async def step() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise ValueError("the first time")
        done.set()

    tasks.every(1, step, "stepping", first_ms=0)
    async with asyncio.timeout(60):
        await done.wait()
    await tasks.close()
    assert "task=stepping" in caplog.text
    assert "the first time" in caplog.text


async def test_a_task_that_fails_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()

    async def fail() -> None:
        raise ValueError("broken")

    task = tasks.spawn(fail(), "failing")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert "task=failing" in caplog.text
    await tasks.close()


async def test_closing_cancels_and_awaits_all_but_the_caller() -> None:
    tasks = Tasks()
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waiting")

    async def close() -> None:
        await tasks.close()
        ended.append("closing")

    tasks.spawn(wait(), "waiting")
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await tasks.spawn(close(), "closing")
    assert ended == ["waiting", "closing"]


async def test_steps_keep_their_rate() -> None:
    tasks = Tasks()
    loop = asyncio.get_running_loop()
    times: list[float] = []
    done = asyncio.Event()

    def step() -> None:
        times.append(loop.time())
        if len(times) == 5:
            done.set()

    started = loop.time()
    tasks.every(20, step, "stepping")
    async with asyncio.timeout(60):
        await done.wait()
    await tasks.close()
    assert times[0] - started >= 0.019
    assert times[-1] - started >= 0.099


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
    assert "task failed task=test_a_failure_is_logged_and_ends_nothing_else.<locals>.fail" in caplog.text
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

    tasks.every(1, plain, "plain")
    tasks.every(1, waiting, "waiting")
    assert counts == {"plain": 0, "waiting": 0}  # the first time after one interval
    await until(lambda: min(counts.values()) >= 3)
    await tasks.close()
    assert "periodic task failed, will run again" in caplog.text
    seen = dict(counts)
    await asyncio.sleep(0.01)
    assert counts == seen


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
