"""Blocking clients: asyncio clients run on one loop thread per process.

`blocking` and `on_loop` generate the blocking methods from those of the asyncio client.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import logging
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from skylark.client.session.fork_guard import ForkGuard
from skylark.errors import AlreadyStarted, ClientClosed, RocketMQError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
FINISH_WAIT_S = 5.0


class LoopThread:
    """An event loop that runs in its own thread. Any thread may use it."""

    def __init__(self) -> None:
        self.fork_guard = ForkGuard()
        self.loop = asyncio.new_event_loop()
        self._users = 0
        self._thread = threading.Thread(target=self._run, name="skylark-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        # Here and not in `_end`: the thread that calls `_end` may run another loop.
        self.loop.run_until_complete(_finish_tasks())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it. An interrupt of the caller cancels it."""
        if threading.get_ident() == self._thread.ident:
            work.close()
            raise RuntimeError("a blocking client cannot be used on its own loop: use skylark.aio there")
        future = self.submit(work)
        try:
            return future.result()
        except RocketMQError as error:
            error.shorten()
            raise
        except BaseException:
            future.cancel()
            raise

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


async def _finish_tasks() -> None:
    """Let interrupted starts and stops clean up, then cancel what is left."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        await asyncio.wait(tasks, timeout=FINISH_WAIT_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_lock = threading.Lock()
_current: LoopThread | None = None


def acquire_loop() -> LoopThread:
    """Return the process's loop thread, started by the first user. Pair with `release_loop`."""
    global _current  # noqa: PLW0603 (one loop for all blocking clients of a process)
    with _lock:
        if _current is None or not _current.fork_guard.is_same_process:
            _current = LoopThread()
        _current._users += 1
        return _current


def release_loop(thread: LoopThread) -> None:
    """Release the loop thread; it ends with its last user."""
    global _current  # noqa: PLW0603
    with _lock:
        thread._users -= 1
        if thread._users:
            return
        if _current is thread:
            _current = None
    thread._end()


class AsyncClient(Protocol):
    """What a blocking client needs of the asyncio client behind it."""

    async def start(self) -> Any: ...

    async def stop(self) -> None: ...


A = TypeVar("A", bound=AsyncClient)


class BlockingClient(Generic[A]):
    """Base of all blocking clients: start, stop, `with`, and waiting for the asyncio client inside.

    The inner client is created in the caller's thread and used on the loop only. Any thread may call; after a
    fork every call raises ForkedClient.
    """

    def __init__(self, inner: A, name: str) -> None:
        self._inner = inner
        self._name = name
        self._thread: LoopThread | None = None
        self._state = "CREATE_JUST"
        self._state_lock = threading.Lock()

    def start(self) -> Self:
        """Start the client. Raises AlreadyStarted: a client can be started only once."""
        with self._state_lock:
            if self._state != "CREATE_JUST":
                raise AlreadyStarted(self._name, self._state)
            self._state = "START_FAILED"
            thread = acquire_loop()
            try:
                thread.wait(self._inner.start())
            except BaseException:
                release_loop(thread)
                raise
            self._thread = thread
            self._state = "RUNNING"
        atexit.register(self._stop_at_exit)
        return self

    def stop(self) -> None:
        """Stop the client and wait until it has ended. Does nothing unless the client runs."""
        with self._state_lock:
            if self._state != "RUNNING":
                return
            thread = self._running()
            self._state = "SHUTDOWN_ALREADY"
            try:
                thread.wait(self._inner.stop())
            finally:
                self._thread = None
                release_loop(thread)
        atexit.unregister(self._stop_at_exit)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _running(self) -> LoopThread:
        """Return the loop thread. Raises ClientClosed, ForkedClient."""
        thread = self._thread
        if thread is None:
            raise ClientClosed(self._name)
        thread.fork_guard.check(self._name)
        return thread

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work on the loop; `work` is closed unused if the client does not run."""
        try:
            thread = self._running()
        except BaseException:
            work.close()
            raise
        return thread.wait(work)

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start work on the loop and return its future."""
        try:
            thread = self._running()
        except BaseException:
            work.close()
            raise
        return thread.submit(work)

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function in this thread before the start, on the loop afterwards. Raises ClientClosed."""
        if self._state == "CREATE_JUST":
            return function()

        async def call() -> T:
            return function()

        return self._wait(call())

    def _stop_at_exit(self) -> None:
        if self._thread is None or not self._thread.fork_guard.is_same_process:
            return
        try:
            self.stop()
        except Exception:
            log.exception("client was not stopped at exit client=%s", self._name)


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingClient[A], P], T]:
    """Return the blocking counterpart of a coroutine method: it waits, in any thread but the loop's."""

    @functools.wraps(method)
    def call(self: BlockingClient[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(method(self._inner, *args, **kwargs))

    return call


def on_loop(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[BlockingClient[A], P], T]:
    """Return the blocking counterpart of a plain method that must run on the loop once the client runs."""

    @functools.wraps(method)
    def call(self: BlockingClient[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(lambda: method(self._inner, *args, **kwargs))

    return call
