"""Tasks with a parent."""

from __future__ import annotations

import asyncio

import pytest

from skylark.client.tasks import Tasks


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
    async with asyncio.timeout(10):
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
    async with asyncio.timeout(10):
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
    async with asyncio.timeout(10):
        await done.wait()
    await tasks.close()
    assert times[0] - started >= 0.019
    assert times[-1] - started >= 0.099
