"""Log flushing: in the background, or as a group commit that answers all waiters with one fsync."""

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
    """A named thread that repeats a step until stopped. An exception is logged and the step is repeated."""

    def __init__(self, name: str, step: Callable[[], float]) -> None:
        """`step` returns the seconds to wait before the next run, unless woken."""
        self._step = step
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Run the step now, or again after the current run. Any thread."""
        self._wake.set()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its current step; return False if it did not end in time (a stuck disk)."""
        self._stopping = True
        self.wake()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping:
            try:
                pause_s = self._step()
            except Exception:
                log.exception("background step failed, will retry thread=%s", self._thread.name)
                pause_s = FAILURE_PAUSE_S
            self._wake.wait(pause_s)
            self._wake.clear()


class LogFlusher:
    """Flushes the log. One thread flushes at a time; any thread may read the position."""

    def __init__(self, commit_log: CommitLog, settings: StoreSettings, clock: Clock) -> None:
        self._log = commit_log
        self.settings = settings
        self._clock = clock
        self._last_thorough = clock.monotonic()
        self.lock = threading.Lock()
        """Held while the log is flushed or truncated."""
        self.flushed = 0
        self.flushed_timestamp = 0
        """Store time of the last flushed record."""
        self.failure: StoreFailed | None = None
        self.slow_append = False
        """An append took too long; sends are refused until a flush returns."""
        self.count = 0

    def flush(self) -> None:
        """Make everything appended so far durable. Raises StoreFailed, and always after a failure.

        A failed fsync may have dropped dirty pages, so a later success would prove nothing. A lack of file
        descriptors is not such a failure: nothing was written, and the next flush may succeed.
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
        """Flush, in asynchronous mode, if enough pages are dirty, time has passed or sends are refused."""
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
    """Waiters for a position of the log: flushed to disk, or acknowledged by replicas.

    Ends and deadlines both increase, so the first waiter is always the next.
    """

    def __init__(self, late: PutStatus = PutStatus.FLUSH_DISK_TIMEOUT) -> None:
        """`late` is the status of waiters that timed out."""
        self._late = late
        self._waiters: deque[FlushWaiter] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, end: int, deadline: float, answer: FlushAnswer) -> None:
        with self._lock:
            self._waiters.append(FlushWaiter(end, deadline, answer))

    def flushed(self, position: int) -> None:
        """Answer the waiters up to `position`."""
        self._answer(lambda waiter: waiter.end <= position, PutStatus.PUT_OK)

    def expired(self, now: float) -> None:
        """Answer the waiters that timed out: the message is stored, but not known to be flushed."""
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
