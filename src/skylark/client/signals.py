"""Waiting for the end of a program that only consumes: Ctrl-C, or SIGTERM, which means the same."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_termination(stop: Callable[[], object]) -> Iterator[None]:
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
