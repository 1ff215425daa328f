"""When the log goes to disk: in the background, or as a group commit that answers every waiter at once."""

from __future__ import annotations

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from skylark.clock import Clock
from skylark.errors import StoreFailed
from skylark.settings import StoreSettings
from skylark.store.append_result import PutStatus
from skylark.store.commit_log import CommitLog

log = logging.getLogger(__name__)

PAGE_BYTES = 4096
FAILURE_PAUSE_S = 1.0

FlushAnswer = Callable[[PutStatus], None]


class BackgroundThread:
    """A named thread that runs a step again and again until stopped. A failure is logged and ends nothing."""

    def __init__(self, name: str, step: Callable[[], float]) -> None:
        """`step` returns how many seconds to wait before it is run again, unless woken."""
        self._step = step
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Have the step run again at once, or after the one at work. Any thread."""
        self._wake.set()

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end after its current step; False if it did not in time (a stuck disk)."""
        self._stopping = True
        self.wake()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping:
            try:
                pause_s = self._step()
            except Exception:
                log.exception("a background step failed, it is tried again thread=%s", self._thread.name)
                pause_s = FAILURE_PAUSE_S
            self._wake.wait(pause_s)
            self._wake.clear()


class LogFlusher:
    """Moves the flushed position. One thread flushes at a time; anyone may read the position."""

    def __init__(self, commit_log: CommitLog, settings: StoreSettings, clock: Clock) -> None:
        self._log = commit_log
        self.settings = settings
        self._clock = clock
        self._last_thorough = clock.monotonic()
        self.lock = threading.Lock()
        """Held while the log is flushed, and while it is cut."""
        self.flushed = 0
        self.flushed_timestamp = 0
        """Store time up to which everything is flushed."""
        self.failure: StoreFailed | None = None
        self.slow_append = False
        """An append took too long; sends are refused until a flush returns."""
        self.count = 0

    def flush(self) -> None:
        """Make everything appended so far durable. Raises StoreFailed, once and for all after a failure.

        A failed fsync may have dropped the pages it was to write, so a later success would prove nothing. A
        lack of descriptors is no such failure: nothing was tried, and the next flush may succeed.
        """
        with self.lock:
            if self.failure is not None:
                raise self.failure
            timestamp, target = self._log.last_timestamp, self._log.appended
            if target > self.flushed:
                try:
                    self._log.sync(self.flushed, target)
                except OSError as error:
                    failure = StoreFailed(self.settings.path, f"flush of the commit log failed: {error}")
                    log.critical("flush failed flushed=%d appended=%d error=%s", self.flushed, target, error)
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        self.failure = failure
                    raise failure from error
                self.count += 1
                self.flushed, self.flushed_timestamp = target, timestamp
            self.slow_append = False
            self._last_thorough = self._clock.monotonic()

    def flush_if_due(self) -> bool:
        """The asynchronous rule: enough pages, long enough since the last flush, or sends wait for it."""
        pages = self._log.appended // PAGE_BYTES - self.flushed // PAGE_BYTES
        elapsed_ms = (self._clock.monotonic() - self._last_thorough) * 1000
        due = pages >= max(self.settings.flush_least_pages, 1) or self.slow_append
        if due or elapsed_ms >= self.settings.flush_thorough_interval_ms:
            self.flush()
            return True
        return False


class FlushWaiter(NamedTuple):
    end: int
    deadline: float
    answer: FlushAnswer


class FlushWaiters:
    """Who waits for a position, the flushed one or the replicas'.

    Ends and deadlines both grow, so the first is always the next.
    """

    def __init__(self, late: PutStatus = PutStatus.FLUSH_DISK_TIMEOUT) -> None:
        """`late` is the answer to who waited too long."""
        self._late = late
        self._waiters: deque[FlushWaiter] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, end: int, deadline: float, answer: FlushAnswer) -> None:
        with self._lock:
            self._waiters.append(FlushWaiter(end, deadline, answer))

    def flushed(self, position: int) -> None:
        """Answer everyone whose bytes are there."""
        self._answer(lambda waiter: waiter.end <= position, PutStatus.PUT_OK)

    def expired(self, now: float) -> None:
        """Answer everyone who waited too long: the message is stored, its flush is not known."""
        self._answer(lambda waiter: waiter.deadline <= now, self._late)

    def failed(self) -> None:
        self._answer(lambda waiter: True, self._late)

    def _answer(self, is_due: Callable[[FlushWaiter], bool], status: PutStatus) -> None:
        due: list[FlushWaiter] = []
        with self._lock:
            while self._waiters and is_due(self._waiters[0]):
                due.append(self._waiters.popleft())
        for waiter in due:
            waiter.answer(status)
