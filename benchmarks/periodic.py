"""Looking at something again and again while something else runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watched(look: Callable[[], bool], every_s: float, name: str) -> Iterator[None]:
    """A thread calls `look` at once, and then every so often until the block ends, or until it returns False.

    After the block nobody calls it any more.
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
