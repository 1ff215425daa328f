"""The signals that stop a server."""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType
from typing import Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignal:
    """SIGTERM, SIGINT or SIGHUP on the running loop, while it is open. Main thread only.

    A signal that the parent had the process ignore, as `nohup` does with SIGHUP, stays ignored.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = asyncio.Event()
        self._number = signal.SIGTERM
        self._handled = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]

    def __enter__(self) -> Self:
        for number in self._handled:
            self._loop.add_signal_handler(number, self._receive, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._handled:
            self._loop.remove_signal_handler(number)

    def _receive(self, number: signal.Signals) -> None:
        if not self._received.is_set():
            self._number = number
            self._received.set()

    async def wait(self) -> signal.Signals:
        """The first signal, once it has arrived."""
        await self._received.wait()
        return self._number
