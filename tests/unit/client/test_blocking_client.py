"""Blocking faces: a client on the loop thread, waited for by any other."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from skylark.client.blocking_client import BlockingClient, LoopThread, acquire_loop, release_loop
from skylark.errors import AlreadyStarted, ClientClosed


class Inner:
    """An asyncio client that keeps where it was called."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.threads: list[str] = []
        self.cancelled = False

    async def start(self) -> Any:
        self.threads.append(threading.current_thread().name)
        if self.fails:
            raise OSError("cannot start")
        return self

    async def stop(self) -> None:
        self.threads.append(threading.current_thread().name)

    async def double(self, number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    async def wait_for_ever(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


class Face(BlockingClient[Inner]):
    def __init__(self, inner: Inner) -> None:
        super().__init__(inner, "face")

    def double(self, number: int) -> int:
        return self._wait(self._inner.double(number))

    def later(self, number: int) -> Any:
        return self._submit(self._inner.double(number))

    def use_itself(self) -> int:
        async def use() -> int:
            return self.double(1)

        return self._wait(use())


def loops() -> int:
    return sum(thread.name == "skylark-client" for thread in threading.enumerate())


def test_a_face_lives_on_the_loop_thread_between_start_and_stop() -> None:
    inner = Inner()
    face = Face(inner)
    with pytest.raises(ClientClosed):
        face.double(1)
    with face:
        assert face.double(21) == 42
        assert face.later(4).result(timeout=10) == 8
        with pytest.raises(AlreadyStarted):
            face.start()
    face.stop()
    assert inner.threads == ["skylark-client"] * 2
    assert loops() == 0
    with pytest.raises(ClientClosed):
        face.later(1)


def test_a_face_that_cannot_start_leaves_no_thread() -> None:
    face = Face(Inner(fails=True))
    with pytest.raises(OSError, match="cannot start"):
        face.start()
    assert loops() == 0
    with pytest.raises(AlreadyStarted, match="START_FAILED"):
        face.start()


def test_waiting_on_its_own_loop_is_refused_instead_of_hanging() -> None:
    with Face(Inner()) as face, pytest.raises(RuntimeError, match=r"skylark\.aio"):
        face.use_itself()


def test_many_threads_wait_at_once() -> None:
    found: list[int] = []
    with Face(Inner()) as face:
        threads = [
            threading.Thread(target=lambda: found.extend(face.double(number) for number in range(50)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert sorted(found) == sorted([number * 2 for number in range(50)] * 8)


def test_an_interrupted_wait_cancels_the_work() -> None:
    inner = Inner()
    thread = acquire_loop()
    try:
        future = thread.submit(inner.wait_for_ever())
        thread.wait(asyncio.sleep(0.01))
        future.cancel()
        thread.wait(asyncio.sleep(0.01))
        assert inner.cancelled
    finally:
        release_loop(thread)


def test_the_loop_is_counted() -> None:
    first, second = acquire_loop(), acquire_loop()
    assert first is second
    assert isinstance(first, LoopThread)
    release_loop(first)
    assert loops() == 1
    release_loop(second)
    assert loops() == 0


FORGETFUL = """
from skylark.client.blocking_client import BlockingClient

class Inner:
    async def start(self): return self
    async def stop(self): print("stopped", flush=True)

BlockingClient(Inner(), "face").start()
"""


def test_a_client_that_was_forgotten_is_stopped_at_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORGETFUL],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "stopped", "")


async def test_a_blocking_client_may_be_stopped_where_a_loop_runs() -> None:
    """It blocks that loop meanwhile, which is its user's affair."""
    face = Face(Inner())
    face.start()
    thread = face._thread
    assert thread is not None
    assert face.double(4) == 8
    face.stop()
    assert thread.loop.is_closed()


class Interrupted(Exception):
    """What a signal's handler raises in the main thread."""


class Lingering(Inner):
    """Takes a moment to clean up when its stop is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.stopping = threading.Event()
        self.is_clean = False

    async def stop(self) -> None:
        self.stopping.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            self.is_clean = True


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals for threads")
def test_a_stop_that_is_interrupted_cleans_up_before_the_loop_ends() -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise Interrupted

    def interrupt() -> None:
        assert inner.stopping.wait(60)
        main = threading.main_thread().ident
        assert main is not None
        while not interrupted.wait(0.05):  # one that comes just before a thread waits does not wake it
            signal.pthread_kill(main, signal.SIGUSR1)

    inner, interrupted = Lingering(), threading.Event()
    face = BlockingClient(inner, "client").start()
    interrupting = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        interrupting.start()
        with pytest.raises(Interrupted):
            face.stop()
    finally:
        signal.signal(signal.SIGUSR1, before)
        interrupting.join()
    assert inner.is_clean
