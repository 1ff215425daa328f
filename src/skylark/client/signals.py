"""Waiting for the end of a program that only consumes: Ctrl-C, or SIGTERM, which means the same."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_termination(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM, while the block runs. Only the main thread has signals: others just run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        stop()

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def until_terminated() -> None:
    """Wait for SIGTERM on the running loop. Ctrl-C comes as a cancellation, as asyncio has it."""
    loop = asyncio.get_running_loop()
    terminated = asyncio.Event()

    def stop() -> None:
        loop.call_soon_threadsafe(terminated.set)

    with on_termination(stop):
        await terminated.wait()
