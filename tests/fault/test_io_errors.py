"""X7 to X9: a disk that fails, fills up or stalls. Errors are told, no acknowledged message is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from skylark.clock import SystemClock
from skylark.errors import BadStoreFile, DiskFull, StoreError, StoreFailed
from skylark.model.message import PutMessage
from skylark.settings import FlushMode, StoreSettings
from skylark.store.append_result import AppendedRecord, PutStatus, Refused
from skylark.store.log_reader import GetStatus
from skylark.store.message_store import MessageStore
from tests.fault.checker import check
from tests.fault.conftest import Sample
from tests.fault.workload import ROOT, Workload, small_settings
from tests.support.simulated_disk import Fault, Kind, Operation, SimulatedDisk
from tests.support.simulated_medium import PAGE_BYTES

EIO = "Input/output error"
WAIT_S = 60.0


def begun(flush_mode: FlushMode = FlushMode.SYNC, seed: int = 1, steps: int = 5) -> Workload:
    workload = Workload(seed, small_settings(flush_mode))
    workload.open()
    for _ in range(steps):
        workload.put_some()
    return workload


def check_after(workload: Workload, seed: int = 0) -> None:
    """Whatever a power loss or a kill leaves now keeps the promises."""
    power_lost = workload.disk.crash_image(random.Random(seed))
    killed = workload.disk.kill_image()
    for disk, durable_only in ((power_lost, True), (killed, False)):
        disk.capacity_bytes = None
        check(disk, workload.settings, workload.clock, workload.promises, durable_only=durable_only)


# A failed fsync


@pytest.mark.parametrize("flush_mode", FlushMode)
@pytest.mark.parametrize("kind", [Kind.SYNC, Kind.SYNC_DIRECTORY])
def test_a_failed_fsync_is_never_retried_into_a_success(flush_mode: FlushMode, kind: Kind) -> None:
    workload = begun(flush_mode)
    workload.flush_log()
    if kind is Kind.SYNC_DIRECTORY:
        files = len(workload.store.log.files.starts)
        while len(workload.store.log.files.starts) == files:
            workload.put([workload.message()])
    workload.put([workload.message("alpha", 0)])
    flushed = workload.store.flushed_offset
    workload.disk.plan(Fault(kind, path_contains="commitlog"))
    with pytest.raises(StoreFailed, match=EIO):
        workload.flush_log()
    # The next fsync would succeed: nobody may ask it.
    for _ in range(3):
        with pytest.raises(StoreFailed, match="restart"):
            workload.flush_log()
    assert workload.store.flushed_offset == flushed
    (refused,) = workload.put([workload.message()])
    assert isinstance(refused, Refused)
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "restart" in refused.reason
    assert workload.store.get("alpha", 0, 0, 1).status is GetStatus.FOUND
    workload.store.close()
    assert workload.disk.exists(ROOT / "abort"), "an exit after a failure is not a clean one"
    check_after(workload)


def test_a_message_whose_fsync_failed_is_not_acknowledged_and_not_shown() -> None:
    workload = begun()
    before = workload.store.max_offset("alpha", 0)
    workload.disk.plan(Fault(Kind.SYNC, path_contains="commitlog"))
    status, _ = workload.store.put(PutMessage("alpha", 0, b"unsure"))
    assert status is PutStatus.FLUSH_DISK_TIMEOUT
    assert workload.store.max_offset("alpha", 0) == before
    workload.store.housekeeper.flush()
    assert workload.store.max_offset("alpha", 0) == before


def test_waiters_of_a_failed_fsync_are_told() -> None:
    workload = begun()
    with started(workload.store):
        workload.disk.plan(Fault(Kind.SYNC, path_contains="commitlog", always=True))
        statuses = [workload.store.put(PutMessage("alpha", 0, b"x"))[0] for _ in range(3)]
        assert statuses[0] is PutStatus.FLUSH_DISK_TIMEOUT
        assert statuses[-1] is PutStatus.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize("path", ["consumequeue", "index", "checkpoint"])
@pytest.mark.parametrize("kind", [Kind.SYNC, Kind.WRITE, Kind.CREATE, Kind.SYNC_DIRECTORY])
def test_a_failure_beside_the_log_costs_no_message(path: str, kind: Kind) -> None:
    """A queue, index or checkpoint that could not be written is not said to be durable."""
    workload = begun()
    workload.disk.plan(Fault(kind, path_contains=path))
    for _ in range(3):
        try:
            workload.flush_queues()
        except (OSError, StoreError):
            check_after(workload)
        workload.put_some()
    check_after(workload)


# Errors anywhere


@pytest.mark.parametrize("flush_mode", FlushMode)
@pytest.mark.parametrize("kind", [Kind.WRITE, Kind.SYNC, Kind.CREATE, Kind.ALLOCATE, Kind.DELETE, Kind.READ])
def test_one_error_anywhere(kind: Kind, flush_mode: FlushMode, sample: Sample) -> None:
    """The error shows in an answer or an exception, and a restart finds all that was promised."""
    for nth in sample.of(range(1, 26), 5):
        workload = begun(flush_mode, seed=nth)
        workload.disk.plan(Fault(kind, nth=nth))
        try:
            workload.run(30)
        except (OSError, StoreError) as error:
            assert str(error)
        check_after(workload, seed=nth)


@pytest.mark.parametrize(
    "kind", [Kind.READ, Kind.WRITE, Kind.SYNC, Kind.CREATE, Kind.SYNC_DIRECTORY, Kind.DELETE]
)
@pytest.mark.parametrize("flush_mode", FlushMode)
def test_an_error_at_every_step_of_recovery(kind: Kind, flush_mode: FlushMode, sample: Sample) -> None:
    """A recovery that fails harms nothing: the next one finds everything."""
    workload = begun(flush_mode, steps=12)
    workload.flush_queues()
    workload.run(4)
    for nth in sample.of(range(1, 40), 8):
        disk = workload.disk.kill_image()
        disk.plan(Fault(kind, nth=nth))
        try:
            MessageStore(workload.settings, disk=disk, clock=workload.clock).open()
        except (OSError, StoreError) as error:
            assert str(error)
        for image, durable_only in ((disk.kill_image(), False), (disk.crash_image(random.Random(nth)), True)):
            check(image, workload.settings, workload.clock, workload.promises, durable_only=durable_only)


@pytest.mark.parametrize("path", ["consumequeue", "commitlog"])
@pytest.mark.parametrize("nth", range(1, 9))
def test_a_short_read_gives_no_wrong_message(nth: int, path: str) -> None:
    """A read that ends early is an error, or a message told as damaged; the next read gives all of them."""
    workload = begun(steps=20)
    workload.restart()
    workload.disk.resident = False
    expected = [sent.body for sent in workload.promises.sent if (sent.topic, sent.queue_id) == ("beta", 0)]
    workload.disk.plan(Fault(Kind.READ, nth=nth, path_contains=path, short=True))
    try:
        result = workload.store.get("beta", 0, 0, 32)
    except BadStoreFile as error:
        assert "instead of" in str(error)
    else:
        bodies = [message.body for message in result.messages()]
        assert len(bodies) + result.damaged == result.next_offset
        assert bodies == [body for body in expected[: result.next_offset] if body in bodies]
    workload.disk.heal()
    result = workload.store.get("beta", 0, 0, 32)
    assert [message.body for message in result.messages()] == expected[: len(result.records)]
    assert len(result.records) > 1


# A full disk


@pytest.mark.parametrize("flush_mode", FlushMode)
def test_a_full_disk_refuses_and_reads_go_on(flush_mode: FlushMode, sample: Sample) -> None:
    for pages in sample.of(range(8, 30, 3), 2):
        fill_disk(flush_mode, pages)


def fill_disk(flush_mode: FlushMode, pages: int) -> None:
    workload = Workload(pages, small_settings(flush_mode))
    workload.open()
    workload.disk.capacity_bytes = pages * PAGE_BYTES
    refused: list[Refused] = []
    while not refused:
        refused = [result for result in workload.put([workload.message()]) if isinstance(result, Refused)]
        workload.flush_log()
    assert refused[0].status in (PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.CREATE_MAPPED_FILE_FAILED)
    assert "No space left" in refused[0].reason
    workload.store.housekeeper.flush_quietly()
    for sent in workload.promises.sent:
        (message,) = workload.store.get(sent.topic, sent.queue_id, sent.queue_offset, 1).messages()
        assert message.body == sent.body
    check_after(workload, seed=pages)
    workload.disk.capacity_bytes = None
    (result,) = workload.put([workload.message()])
    assert isinstance(result, AppendedRecord), "room again, without a restart"
    workload.flush_log()
    workload.flush_queues()
    check_after(workload, seed=pages)


@pytest.mark.parametrize("pages", range(4, 16, 2))
def test_a_store_opens_on_a_full_disk_or_says_why_not(pages: int) -> None:
    workload = begun(steps=15)
    disk = workload.disk.kill_image()
    disk.capacity_bytes = pages * PAGE_BYTES
    try:
        MessageStore(workload.settings, disk=disk, clock=workload.clock).open()
    except DiskFull as error:
        assert "No space left" in str(error)
    disk = disk.kill_image()
    disk.capacity_bytes = None
    check(disk, workload.settings, workload.clock, workload.promises, durable_only=False)


def test_above_the_full_mark_puts_are_refused_until_there_is_room() -> None:
    workload = begun()
    workload.disk.used = 0.95
    workload.store.housekeeper.clean()
    (refused,) = workload.put([workload.message()])
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    last = workload.promises.sent[-1]
    assert workload.store.get(last.topic, last.queue_id, last.queue_offset, 1).status is GetStatus.FOUND
    workload.disk.used = 0.5
    workload.store.housekeeper.clean()
    (placed,) = workload.put([workload.message()])
    assert placed.status is PutStatus.PUT_OK


# A slow disk


@contextmanager
def started(store: MessageStore) -> Iterator[MessageStore]:
    store.start()
    try:
        yield store
    finally:
        store.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def stalled_store(settings: StoreSettings) -> tuple[MessageStore, SimulatedDisk, threading.Event]:
    """A running store whose disk answers no fsync until the event is set."""
    disk = SimulatedDisk(clock=SystemClock())
    disk.make_directory(ROOT)
    store = MessageStore(settings, disk=disk)
    store.open()
    assert store.put(PutMessage("alpha", 0, b"before"))[0] is PutStatus.PUT_OK
    store.flush_log()
    disk.hold_sync = threading.Event()
    return store, disk, disk.hold_sync


def test_a_stalled_disk_gives_a_timeout_and_lets_reads_go_on() -> None:
    store, _, release = stalled_store(replace(small_settings(), sync_flush_timeout_ms=50))
    with started(store):
        status, result = store.put(PutMessage("alpha", 0, b"slow"))
        assert status is PutStatus.FLUSH_DISK_TIMEOUT
        assert isinstance(result, AppendedRecord)
        assert store.max_offset("alpha", 0) == 1, "not shown before it is on disk"
        assert [message.body for message in store.get("alpha", 0, 0, 9).messages()] == [b"before"]
        release.set()
        until(lambda: store.max_offset("alpha", 0) == 2)
        assert [message.body for message in store.get("alpha", 0, 1, 9).messages()] == [b"slow"]


@pytest.mark.parametrize("flush_mode", FlushMode)
def test_a_stalled_disk_makes_the_store_busy_before_memory_fills(flush_mode: FlushMode) -> None:
    limit = 1 << 20
    settings = replace(
        small_settings(flush_mode),
        unflushed_bytes_max=limit,
        commit_log_file_bytes=1 << 22,
        message_bytes_max=1 << 17,
    )
    store, _, release = stalled_store(settings)
    with started(store):
        body = bytes(1 << 16)
        statuses = [store.append([PutMessage("alpha", 0, body)])[0].status for _ in range(40)]
        taken = statuses.count(PutStatus.PUT_OK)
        assert limit <= taken * len(body) <= limit + 2 * len(body)
        assert set(statuses[taken:]) == {PutStatus.OS_PAGE_CACHE_BUSY}
        assert [message.body for message in store.get("alpha", 0, 0, 1).messages()] == [b"before"]
        release.set()
        store.flush_log()
        assert store.append([PutMessage("alpha", 0, body)])[0].status is PutStatus.PUT_OK


def test_after_a_slow_append_sends_are_refused_until_a_flush_returns() -> None:
    workload = begun(FlushMode.ASYNC)

    def slow(operation: Operation) -> None:
        if operation.kind is Kind.WRITE:
            workload.clock.advance(1500)

    workload.disk.observer = slow
    assert workload.put([workload.message()])[0].status is PutStatus.PUT_OK
    workload.disk.observer = None
    assert workload.put([workload.message()])[0].status is PutStatus.OS_PAGE_CACHE_BUSY
    workload.flush_log()
    assert workload.put([workload.message()])[0].status is PutStatus.PUT_OK
    check_after(workload)


def test_one_fsync_answers_many_waiters() -> None:
    disk = SimulatedDisk(clock=SystemClock())
    disk.make_directory(ROOT)
    disk.sync_latency_s = 0.002
    store = MessageStore(small_settings(commit_log_file_bytes=1 << 20), disk=disk)
    store.open()
    with started(store):
        before = disk.counts[Kind.SYNC]
        statuses: list[PutStatus] = []

        def put_many() -> None:
            for _ in range(10):
                statuses.append(store.put(PutMessage("alpha", 0, b"x"))[0])

        threads = [threading.Thread(target=put_many) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [PutStatus.PUT_OK] * 160
        # Queues and checkpoint are synced by another thread once a second: a few of these are theirs.
        assert disk.counts[Kind.SYNC] - before <= 80
