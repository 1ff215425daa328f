"""When queues are shared again: regularly, when woken, soon after a round that left work undone."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod

from skylark.settings.consumer import PushConsumerSettings
from skylark.settings.pull_consumer import PullConsumerSettings


class Rounds(ABC):
    """The rounds in which a member finds out which queues are its own. Loop thread."""

    def __init__(self, settings: PushConsumerSettings | PullConsumerSettings) -> None:
        self._interval_s = settings.rebalance_interval_ms / 1000
        self._gap_s = settings.rebalance_gap_ms / 1000
        self._woken = asyncio.Event()

    @abstractmethod
    async def rebalance(self) -> bool:
        """Do one round over all topics; True if everything is as it should be."""

    @property
    def is_needed(self) -> bool:
        """Whether a round has anything to do. The first that has need not wait for the gap between two."""
        return True

    def wake(self) -> None:
        """Begin a round soon: members, queues or subscriptions may have changed."""
        self._woken.set()

    async def run(self) -> None:
        """Do rounds for ever."""
        wait_s, last = self._interval_s, -self._gap_s
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            if not self.is_needed:
                continue
            # Several reasons at once, such as ten members that start, are one round.
            await asyncio.sleep(last + self._gap_s - time.monotonic())
            self._woken.clear()
            last = time.monotonic()
            wait_s = self._interval_s if await self.rebalance() else self._gap_s
