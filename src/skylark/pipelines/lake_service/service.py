"""Takes turns with the tables of a process: each as often as its delay asks, at once while it is behind."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from skylark.errors import SettingsError
from skylark.pipelines.lake_service.table_archiver import TableArchiver

log = logging.getLogger(__name__)

PAUSE_MAX_S = 60.0
WAIT_MAX_S = 1.0


class LakeService:
    """The loop of one process. A table that fails waits a while; the others go on."""

    def __init__(
        self,
        archivers: Sequence[TableArchiver],
        *,
        on_batch: Callable[[TableArchiver, int, float], None] = lambda archiver, messages, seconds: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_batch` hears of each batch: the table's archiver, its messages and seconds."""
        self._archivers = list(archivers)
        self._on_batch = on_batch
        self._monotonic = monotonic
        self._due = [0.0] * len(self._archivers)
        self._failures = [0] * len(self._archivers)

    def run(self, stop: threading.Event, *, is_orphan: Callable[[], bool] = lambda: False) -> None:
        """Serve until `stop` is set, or until `is_orphan`; a turn that has begun is finished."""
        while not stop.is_set() and not is_orphan():
            number = min(range(len(self._due)), key=self._due.__getitem__)
            wait_s = self._due[number] - self._monotonic()
            if wait_s > 0:
                stop.wait(min(wait_s, WAIT_MAX_S))
                continue
            self._turn(number)

    def run_once(self) -> int:
        """Archive what is there now; return the number of messages. Raises as `TableArchiver.turn`."""
        messages = 0
        for archiver in self._archivers:
            while (turn := archiver.turn()).messages:
                messages += turn.messages
                if not turn.has_more:
                    break
            if turn.is_standby:
                raise SettingsError(
                    "instance",
                    f"another instance archives {archiver.table.output}; stop it, or wait until it has ended",
                )
        return messages

    def _turn(self, number: int) -> None:
        archiver, started = self._archivers[number], self._monotonic()
        try:
            turn = archiver.turn()
            if not turn.has_more and not turn.is_standby:
                archiver.maintain_when_due()
        except Exception as error:  # noqa: BLE001 - libraries of stores raise errors of their own kinds
            self._failures[number] += 1
            pause_s = min(2.0 ** self._failures[number], PAUSE_MAX_S)
            log.warning("table failed table=%s pause_s=%.0f error=%s", archiver.table.output, pause_s, error)
            archiver.failed(error)
            self._due[number] = self._monotonic() + pause_s
            return
        self._failures[number] = 0
        self._due[number] = started if turn.has_more else started + archiver.table.delay_s
        if turn.messages:
            log.info("batch committed table=%s messages=%d", archiver.table.output, turn.messages)
            self._on_batch(archiver, turn.messages, self._monotonic() - started)
