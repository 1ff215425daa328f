"""Signals that act as in a fresh process, no matter what runs the tests or ran before.

`nohup` and background jobs start processes that ignore some of them, and a Spark session replaces the
handler of SIGINT for the rest of the process.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heeded(*numbers: signal.Signals) -> Iterator[None]:
    """Reset signals to their default, here and in processes started meanwhile. Main thread only."""
    before = {number: signal.signal(number, _default(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _default(number: signal.Signals) -> signal._HANDLER:
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
