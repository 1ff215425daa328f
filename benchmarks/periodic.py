"""A periodic call in a thread while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watched(look: Callable[[], bool], every_s: float, name: str) -> Iterator[None]:
    """Call `look` in a thread every `every_s` seconds until the block ends or `look` returns False.

    `look` is not called after the block.
    """
    done = threading.Event()

    def watch() -> None:
        while look() and not done.wait(every_s):
            pass

    thread = threading.Thread(target=watch, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
