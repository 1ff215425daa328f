"""Workers: how many run at once, how results come back, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from queue import Empty, SimpleQueue

import pytest

from skylark.client.consumer.consumption import TaskWorkers, ThreadWorkers, is_worker_thread
from tests.support.consumer import eventually


async def test_results_come_in_bulk_and_all_come() -> None:
    deliveries: list[list[int]] = []
    workers: ThreadWorkers[int, int] = ThreadWorkers(
        lambda job: job + 1, deliveries.append, threads_max=4, name="w"
    )
    workers.submit([])
    assert workers.thread_count == 0
    workers.submit(range(10_000))
    await eventually(lambda: sum(map(len, deliveries)) == 10_000)
    assert sorted(number for some in deliveries for number in some) == list(range(1, 10_001))
    assert len(deliveries) < 5_000
    assert await workers.stop(5)


async def test_threads_grow_while_jobs_block_and_no_further() -> None:
    release = threading.Event()
    done: list[bool] = []

    def run(job: int) -> bool:
        release.wait(20)
        return is_worker_thread()

    workers: ThreadWorkers[int, bool] = ThreadWorkers(run, done.extend, threads_max=6, name="w")
    workers.submit(range(20))
    await eventually(lambda: workers.thread_count == 6)
    await asyncio.sleep(0.05)
    assert workers.thread_count == 6
    release.set()
    await eventually(lambda: len(done) == 20)
    assert all(done)
    assert not is_worker_thread()
    assert await workers.stop(5)


async def test_a_stop_forgets_what_waits_and_finishes_what_runs() -> None:
    done: list[int] = []
    begun = threading.Event()

    def run(job: int) -> int:
        begun.set()
        time.sleep(0.1)
        return job

    workers: ThreadWorkers[int, int] = ThreadWorkers(run, done.extend, threads_max=1, name="w")
    workers.submit(range(5))
    await eventually(begun.is_set)
    assert await workers.stop(5)
    assert done == [0]
    workers.submit([9])
    await asyncio.sleep(0.15)
    assert done == [0]


async def test_a_stop_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    workers: ThreadWorkers[int, object] = ThreadWorkers(
        lambda job: release.wait(20), lambda results: None, threads_max=1, name="w"
    )
    workers.submit([1])
    await asyncio.sleep(0.02)
    assert not await workers.stop(0.05)
    assert "still run" in caplog.text
    release.set()


async def test_a_delivery_that_fails_does_not_stop_the_next() -> None:
    got: list[int] = []
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, what: failures.append(what))

    def deliver(results: list[int]) -> None:
        if 0 in results:
            raise ZeroDivisionError
        got.extend(results)

    workers: ThreadWorkers[int, int] = ThreadWorkers(lambda job: job, deliver, threads_max=1, name="w")
    workers.submit([0])
    await eventually(lambda: failures)
    workers.submit([1])
    await eventually(lambda: got == [1])
    assert await workers.stop(5)


async def test_coroutines_that_never_wait_need_one_task() -> None:
    tasks: set[object] = set()
    done: list[int] = []

    async def run(job: int) -> int:
        tasks.add(asyncio.current_task())
        return job

    workers: TaskWorkers[int, int] = TaskWorkers(run, done.extend, tasks_max=8, name="w")
    workers.submit(range(1000))
    await eventually(lambda: len(done) == 1000)
    assert done == list(range(1000))
    assert len(tasks) <= 4
    assert await workers.stop(5)


async def test_coroutines_that_wait_run_beside_each_other_up_to_the_limit() -> None:
    running = most = 0
    done: list[int] = []

    async def run(job: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return job

    workers: TaskWorkers[int, int] = TaskWorkers(run, done.extend, tasks_max=7, name="w")
    workers.submit(range(50))
    await eventually(lambda: len(done) == 50)
    assert most == 7
    assert await workers.stop(5)


async def test_coroutines_are_cancelled_after_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    cancelled = False

    async def run(job: int) -> int:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise
        return job

    workers: TaskWorkers[int, int] = TaskWorkers(run, lambda results: None, tasks_max=7, name="w")
    workers.submit([1])
    await asyncio.sleep(0.01)
    assert not await workers.stop(0.05)
    assert cancelled


async def test_a_stop_does_not_wait_for_a_job_that_a_thread_has_just_taken() -> None:
    class Racing(SimpleQueue[int | None]):
        """A thread takes the job between a look at the line and what follows from it."""

        def empty(self) -> bool:
            was_empty = super().empty()
            with contextlib.suppress(Empty):
                super().get_nowait()
            return was_empty

    workers: ThreadWorkers[int, int] = ThreadWorkers(lambda job: job, lambda _: None, threads_max=0, name="w")
    workers._jobs = Racing()
    workers._jobs.put(1)
    await workers.stop(0)
