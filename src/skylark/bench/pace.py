"""Pure. When operations are due: the schedule of an open loop, which no slow answer delays."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Operation `n` is due at `start + n / rate` seconds. A `rate` of 0 is a closed loop: nothing is due."""

    start: float
    rate: float

    def due(self, number: int) -> float:
        """Of a closed loop: long ago, so that it may begin at once."""
        return self.start + number / self.rate if self.rate else -math.inf

    def count_until(self, moment: float) -> int:
        """How many operations are due before a moment, to the last digit of `due`."""
        count = max(math.ceil((moment - self.start) * self.rate), 0)
        while count and self.due(count - 1) >= moment:
            count -= 1
        while self.rate and self.due(count) < moment:
            count += 1
        return count
