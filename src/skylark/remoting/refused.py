"""Words on connections that are refused: whoever floods a port does not flood the log."""

import logging
import math

log = logging.getLogger(__name__)

SAID_EVERY_S = 10.0


class RefusedConnections:
    """Counts them. The first is told at once, and then, with the next that comes, all of the last seconds."""

    def __init__(self) -> None:
        self._said_at = -math.inf
        self._untold = 0

    def add(self, address: str, reason: str, now: float) -> None:
        """Take one more, refused at this monotonic time."""
        self._untold += 1
        if now - self._said_at >= SAID_EVERY_S:
            log.warning("connections refused count=%d last=%s reason=%s", self._untold, address, reason)
            self._said_at, self._untold = now, 0
