"""When the log goes to disk, who is told, and what a failed flush means."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

import pytest

from skylark.errors import BadStoreFile, StoreFailed
from skylark.store.append_result import PutStatus
from skylark.store.commit_log import CommitLog
from skylark.store.flush import PAGE_BYTES, BackgroundThread, FlushWaiters, LogFlusher
from skylark.store.queue_table import QueueTable
from tests.support.clock import ManualClock
from tests.support.simulated_disk import Fault, Kind, SimulatedDisk
from tests.support.store import NOW_MS, ROOT, simulated_disk, sized, small_settings

WAIT_S = 60.0


class Bench:
    """A log on a simulated disk and its flusher."""

    def __init__(self, **changes: Any) -> None:
        self.clock = ManualClock(NOW_MS)
        self.disk: SimulatedDisk = simulated_disk(self.clock)
        settings = small_settings(commit_log_file_bytes=1 << 16, **changes)
        self.log = CommitLog(self.disk, settings, bytes(8))
        self._queues = QueueTable(
            self.disk, ROOT, small_settings(consume_queue_file_bytes=200), threading.Lock()
        )
        self.flusher = LogFlusher(self.log, settings, self.clock)

    def append(self, length: int) -> int:
        """Append records of so many bytes altogether; returns the end."""
        while length:
            size = length if length <= 1000 else min(1000, length - 100)
            self.log.append([sized(size)], self._queues, self.clock.now_ms())
            length -= size
        return self.log.appended

    @property
    def syncs(self) -> int:
        return self.disk.counts[Kind.SYNC]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Flushing


def test_a_flush_moves_the_position_to_what_was_appended(bench: Bench) -> None:
    end = bench.append(1000)
    bench.flusher.flush()
    assert (bench.flusher.flushed, bench.flusher.count) == (end, 1)
    assert bench.flusher.flushed_timestamp == NOW_MS
    assert bench.syncs == 1


def test_nothing_new_means_no_sync(bench: Bench) -> None:
    bench.append(1000)
    bench.flusher.flush()
    bench.flusher.flush()
    assert (bench.syncs, bench.flusher.count) == (1, 1)


def test_a_flush_covers_every_file_it_spans_and_their_names(bench: Bench) -> None:
    bench.append(3 * (1 << 16) // 2)
    assert len(bench.log.files.starts) == 2
    bench.flusher.flush()
    assert bench.syncs == 2
    assert bench.disk.counts[Kind.SYNC_DIRECTORY] >= 1
    bench.append(1000)
    bench.flusher.flush()
    assert bench.syncs == 3  # only the file that changed


def test_a_flush_clears_a_slow_append(bench: Bench) -> None:
    bench.flusher.slow_append = True
    bench.flusher.flush()
    assert not bench.flusher.slow_append


# The asynchronous rule


def test_few_pages_wait(bench: Bench) -> None:
    bench.append(4 * PAGE_BYTES - 1)
    assert not bench.flusher.flush_if_due()
    bench.append(101)
    assert bench.flusher.flush_if_due()
    assert not bench.flusher.flush_if_due()


def test_after_the_thorough_interval_everything_goes(bench: Bench) -> None:
    end = bench.append(200)
    bench.clock.advance(9_999)
    assert not bench.flusher.flush_if_due()
    bench.clock.advance(1)
    assert bench.flusher.flush_if_due()
    assert bench.flusher.flushed == end
    bench.append(200)
    bench.clock.advance(9_999)
    assert not bench.flusher.flush_if_due()


def test_with_least_pages_zero_every_full_page_goes() -> None:
    bench = Bench(flush_least_pages=0)
    bench.append(PAGE_BYTES + 1)
    assert bench.flusher.flush_if_due()


def test_after_a_slow_append_there_is_no_waiting(bench: Bench) -> None:
    """Sends are refused until a flush returns, so one comes at once, however little there is to flush."""
    bench.append(200)
    bench.flusher.slow_append = True
    assert bench.flusher.flush_if_due()
    assert not bench.flusher.slow_append
    assert not bench.flusher.flush_if_due()


# Failure


def test_a_lack_of_descriptors_passes(bench: Bench) -> None:
    end = bench.append(1000)
    bench.disk.plan(Fault(Kind.SYNC_DIRECTORY, error=errno.EMFILE))
    with pytest.raises(StoreFailed, match="Too many open files"):
        bench.flusher.flush()
    assert (bench.flusher.flushed, bench.flusher.failure) == (0, None)
    directories = bench.disk.counts[Kind.SYNC_DIRECTORY]
    bench.flusher.flush()
    assert bench.flusher.flushed == end
    assert bench.disk.counts[Kind.SYNC_DIRECTORY] > directories  # the names are not forgotten


@pytest.mark.parametrize("kind", [Kind.SYNC, Kind.SYNC_DIRECTORY])
def test_a_failed_flush_is_final(bench: Bench, kind: Kind) -> None:
    bench.append(1000)
    bench.disk.plan(Fault(kind))
    with pytest.raises(StoreFailed, match="flush of the commit log failed"):
        bench.flusher.flush()
    bench.disk.heal()
    # The disk would succeed now, but it may have dropped the pages that it failed to write.
    with pytest.raises(StoreFailed):
        bench.flusher.flush()
    with pytest.raises(StoreFailed):
        bench.clock.advance(10_000)
        bench.flusher.flush_if_due()
    assert bench.flusher.flushed == 0
    assert isinstance(bench.flusher.failure, StoreFailed)


# Waiters


class Answers:
    """Collects what waiters are told, in order."""

    def __init__(self) -> None:
        self.given: list[tuple[str, PutStatus]] = []

    def named(self, name: str) -> Callable[[PutStatus], None]:
        return lambda status: self.given.append((name, status))


def test_one_flush_answers_every_waiter_below_it() -> None:
    waiters, answers = FlushWaiters(), Answers()
    for end in (100, 200, 200, 300):
        waiters.add(end, 5.0, answers.named(f"{end}"))
    waiters.flushed(99)
    assert answers.given == []
    waiters.flushed(200)
    assert answers.given == [(name, PutStatus.PUT_OK) for name in ("100", "200", "200")]
    assert len(waiters) == 1
    waiters.flushed(300)
    assert len(waiters) == 0


def test_who_waits_too_long_is_told_so() -> None:
    waiters, answers = FlushWaiters(), Answers()
    waiters.add(100, 5.0, answers.named("early"))
    waiters.add(200, 6.0, answers.named("late"))
    waiters.expired(4.9)
    assert answers.given == []
    waiters.expired(5.0)
    assert answers.given == [("early", PutStatus.FLUSH_DISK_TIMEOUT)]
    waiters.flushed(200)
    assert answers.given[1:] == [("late", PutStatus.PUT_OK)]


def test_a_failure_answers_everyone() -> None:
    waiters, answers = FlushWaiters(), Answers()
    waiters.add(100, 5.0, answers.named("a"))
    waiters.add(200, 6.0, answers.named("b"))
    waiters.failed()
    assert answers.given == [("a", PutStatus.FLUSH_DISK_TIMEOUT), ("b", PutStatus.FLUSH_DISK_TIMEOUT)]
    assert len(waiters) == 0


def test_an_answer_may_wait_again() -> None:
    waiters, answers = FlushWaiters(), Answers()
    waiters.add(100, 5.0, lambda status: waiters.add(200, 6.0, answers.named("again")))
    waiters.flushed(100)
    waiters.flushed(200)
    assert answers.given == [("again", PutStatus.PUT_OK)]


# Services


def test_a_service_repeats_its_step_until_stopped() -> None:
    rounds = threading.Semaphore(0)

    def step() -> float:
        rounds.release()
        return 0.0

    service = BackgroundThread("test", step)
    service.start()
    for _ in range(3):
        assert rounds.acquire(timeout=WAIT_S)
    assert service.stop(WAIT_S)


def test_a_service_can_be_woken_from_its_pause() -> None:
    rounds = threading.Semaphore(0)

    def step() -> float:
        rounds.release()
        return 1000.0

    service = BackgroundThread("test", step)
    service.start()
    assert rounds.acquire(timeout=WAIT_S)
    service.wake()
    assert rounds.acquire(timeout=WAIT_S)
    assert service.stop(WAIT_S)


def test_a_wake_during_the_step_is_not_lost() -> None:
    rounds, running, go_on = threading.Semaphore(0), threading.Event(), threading.Event()

    def step() -> float:
        running.set()
        assert go_on.wait(WAIT_S)
        rounds.release()
        return 1000.0

    service = BackgroundThread("test", step)
    service.start()
    assert running.wait(WAIT_S)
    service.wake()
    go_on.set()
    assert rounds.acquire(timeout=WAIT_S)
    assert rounds.acquire(timeout=WAIT_S)
    assert service.stop(WAIT_S)


def test_a_step_that_fails_is_told_and_the_next_follows(caplog: pytest.LogCaptureFixture) -> None:
    rounds = threading.Semaphore(0)

    def step() -> float:
        rounds.release()
        raise BadStoreFile(ROOT, "played")

    service = BackgroundThread("test", step)
    service.start()
    assert rounds.acquire(timeout=WAIT_S)
    service.wake()
    assert rounds.acquire(timeout=WAIT_S)
    assert service.stop(WAIT_S)
    assert "background step failed, will retry thread=test" in caplog.text


def test_a_stuck_service_is_told() -> None:
    running, go_on = threading.Event(), threading.Event()

    def step() -> float:
        running.set()
        assert go_on.wait(WAIT_S)
        return 0.0

    service = BackgroundThread("test", step)
    service.start()
    assert running.wait(WAIT_S)
    assert not service.stop(0.01)
    go_on.set()
    assert service.stop(WAIT_S)
