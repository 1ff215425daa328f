"""Signals that are heard whoever runs the tests: under `nohup`, say, processes ignore one of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heeded(*numbers: signal.Signals) -> Iterator[None]:
    """Signals that this process, and those that it starts meanwhile, do not ignore. The main thread."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
