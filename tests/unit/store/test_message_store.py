"""The whole store: putting, refusing, the three positions, group commit, raw bytes, opening, closing."""

from __future__ import annotations

import errno
import gc
import logging
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark.clock import SystemClock
from skylark.errors import OffsetOutOfRange, StoreClosed, StoreFailed, StoreLocked
from skylark.model.message import PutMessage
from skylark.model.record import BatchColumns, BatchElement
from skylark.settings import FlushMode, StoreSettings
from skylark.store import message_store
from skylark.store.append_result import AppendedRecord, PutStatus, Refused
from skylark.store.disk import RealDisk
from skylark.store.message_store import MessageStore
from skylark.store.queue_table import OPEN_QUEUE_FILES_MAX
from tests.support.clock import ManualClock
from tests.support.simulated_disk import Fault, Kind, SimulatedDisk
from tests.support.store import (
    ROOT,
    bodies,
    message,
    opened,
    placed,
    put_all,
    simulated_disk,
    sized,
    small_settings,
)

WAIT_S = 60.0
SYNC: dict[str, Any] = {"flush_mode": FlushMode.SYNC}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


@pytest.fixture
def disk() -> SimulatedDisk:
    return simulated_disk()


def running(disk: SimulatedDisk, **changes: Any) -> MessageStore:
    """An open store with its threads."""
    store = MessageStore(small_settings(**changes), disk=disk)
    store.open()
    store.start()
    return store


# Putting


def test_what_is_put_can_be_read(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        status, result = store.put(message(body=b"one"))
        assert status is PutStatus.PUT_OK
        assert placed(result).queue_offset == 0
        assert bodies(store) == [b"one"]
        assert store.topics() == ["T"]
        assert store.path == ROOT


@pytest.mark.parametrize(
    ("head", "elements", "reason"),
    [
        (message(), [], "the batch is empty"),
        (message(sys_flag=0x4), [BatchElement(0, b"", b"")], "cannot be a transaction"),
        (message(sys_flag=0x8), [BatchElement(0, b"", b"")], "cannot be a transaction"),
        (message(sys_flag=0x80), [BatchElement(0, b"", b"")], "an inner batch"),
        (message(delay="3"), [BatchElement(0, b"", b"")], "or delayed"),
    ],
)
def test_batches_that_are_refused(head: PutMessage, elements: list[BatchElement], reason: str) -> None:
    with opened() as store:
        (result,) = store.append_batches([(head, BatchColumns.of(elements))])[0]
        assert isinstance(result, Refused)
        assert result.status is PutStatus.MESSAGE_ILLEGAL
        assert reason in result.reason
        assert store.appended_offset == 0


def test_a_batch_with_level_0_is_not_delayed() -> None:
    with opened() as store:
        batch = message(delay="0"), BatchColumns.of([BatchElement(0, b"", b"")])
        assert [each.status for each in store.append_batches([batch])[0]] == [PutStatus.PUT_OK]


def test_topics_with_batch_queues_get_no_others(disk: SimulatedDisk) -> None:
    disk.create(ROOT / "batchconsumequeue" / "inner" / "0" / f"{0:020d}", 460)
    with opened(small_settings(batch_consume_queue_file_bytes=460), disk) as store:
        status, _ = store.put(message("inner"))
        assert status is PutStatus.PUT_OK
        store.housekeeper.flush()
        assert not disk.exists(ROOT / "consumequeue" / "inner")


# Refusing


def test_a_store_that_is_not_open_refuses(disk: SimulatedDisk) -> None:
    store = MessageStore(small_settings(), disk=disk)
    assert store.put(message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
    store.open()
    assert store.refusal() is None
    store.close()
    status, result = store.put(message())
    assert status is PutStatus.SERVICE_NOT_AVAILABLE
    assert isinstance(result, Refused)
    assert result.reason == "store /store is closed"
    assert [each.status for each in store.append([message(), message()])] == [status, status]
    with pytest.raises(StoreClosed):
        store.append_raw(0, b"x")


def test_too_many_unflushed_bytes_make_the_store_busy(disk: SimulatedDisk) -> None:
    settings = small_settings(unflushed_bytes_max=1 << 20, commit_log_file_bytes=1 << 22)
    with opened(settings, disk) as store:
        while store.appended_offset <= 1 << 20:
            assert store.put(sized(2000))[0] is PutStatus.PUT_OK
        status, result = store.put(message())
        assert status is PutStatus.OS_PAGE_CACHE_BUSY
        assert isinstance(result, Refused)
        assert result.reason == f"{store.appended_offset} bytes are not flushed; retry later"
        assert len(bodies(store)) == store.max_offset("T", 0)
        store.flush_log()
        assert store.put(message())[0] is PutStatus.PUT_OK


def test_a_slow_append_makes_the_store_busy_until_a_flush(
    disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with opened(disk=disk, clock=clock) as store:
        disk.observer = lambda operation: clock.advance(1001) if operation.kind is Kind.WRITE else None
        with caplog.at_level(logging.WARNING):
            assert store.put(message())[0] is PutStatus.PUT_OK
        disk.observer = None
        assert "append took" in caplog.text
        assert store.put(message())[0] is PutStatus.OS_PAGE_CACHE_BUSY
        store.flush_log()
        assert store.put(message())[0] is PutStatus.PUT_OK


@pytest.mark.parametrize("mode", FlushMode)
def test_a_slow_append_that_stored_nothing_does_not_refuse_sends_for_ever(
    disk: SimulatedDisk, mode: FlushMode
) -> None:
    clock = ManualClock()
    with opened(small_settings(flush_mode=mode), disk, clock) as store:
        assert store.put(message())[0] is PutStatus.PUT_OK
        disk.plan(Fault(Kind.WRITE, error=errno.ENOSPC))
        disk.observer = lambda operation: clock.advance(1001) if operation.kind is Kind.WRITE else None
        assert store.put(message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
        disk.observer = None
        assert store.put(message())[0] is PutStatus.OS_PAGE_CACHE_BUSY
        store._flush_step()  # the flush thread's
        assert store.put(message())[0] is PutStatus.PUT_OK


def test_a_failed_write_stops_all_writes(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        put_all(store, [message(body=b"before")])
        disk.plan(Fault(Kind.WRITE, error=errno.EIO))
        results = store.append([message(), message()])
        assert [each.status for each in results] == [PutStatus.SERVICE_NOT_AVAILABLE] * 2
        status, result = store.put(message())
        assert status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "restart it to recover" in str(result)
        with pytest.raises(StoreFailed):
            store.append_raw(store.appended_offset, b"x")
        assert bodies(store) == [b"before"]
    assert disk.exists(ROOT / "abort")  # no clean end
    with opened(disk=disk) as store:
        assert not store.report.clean_exit
        assert bodies(store) == [b"before"]
        assert store.put(message())[0] is PutStatus.PUT_OK


def test_a_full_disk_refuses_and_recovers_by_itself(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        put_all(store, [message(body=b"before")])
        disk.plan(Fault(Kind.WRITE, error=errno.ENOSPC))
        assert store.put(message())[0] is PutStatus.SERVICE_NOT_AVAILABLE
        assert store.put(message(body=b"after"))[0] is PutStatus.PUT_OK
        assert bodies(store) == [b"before", b"after"]


# Positions


def test_the_three_positions_of_an_asynchronous_store(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        end = placed(store.put(message())[1]).end
        assert (store.appended_offset, store.flushed_offset, store.confirmed_offset) == (end, 0, end)
        assert store.max_offset("T", 0) == 1
        store.flush_log()
        assert store.flushed_offset == end


def test_the_three_positions_of_a_synchronous_store(disk: SimulatedDisk) -> None:
    with opened(small_settings(**SYNC), disk) as store:
        end = placed(store.append([message()])[0]).end
        assert (store.appended_offset, store.flushed_offset, store.confirmed_offset) == (end, 0, 0)
        assert store.max_offset("T", 0) == 0
        store.flush_log()
        assert store.flushed_offset == store.confirmed_offset == end
        assert store.max_offset("T", 0) == 1


def test_what_recovery_found_is_flushed_and_confirmed(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        put_all(store, [message(), message()])
        end = store.appended_offset
    with opened(small_settings(**SYNC), disk) as store:
        assert (store.appended_offset, store.flushed_offset, store.confirmed_offset) == (end, end, end)


# Synchronous flush


def test_one_flush_answers_everyone_who_waits(disk: SimulatedDisk) -> None:
    """The flush of the first is held up; all who come meanwhile share the next one."""
    store = running(disk, **SYNC)
    disk.hold_sync = threading.Event()
    before, syncs = store.flusher.count, disk.counts[Kind.SYNC]
    statuses: list[PutStatus] = []
    threads = [threading.Thread(target=lambda: statuses.append(store.put(message())[0])) for _ in range(32)]
    threads[0].start()
    wait_until(lambda: len(store.waiters) == 1 and disk.counts[Kind.SYNC] > syncs)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(store.waiters) == 32)
    disk.hold_sync.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert statuses == [PutStatus.PUT_OK] * 32
    assert store.flusher.count - before <= 3
    disk.hold_sync = None
    store.close()


def test_a_stalled_disk_gives_a_timeout_and_the_message_is_stored(disk: SimulatedDisk) -> None:
    store = running(disk, **SYNC, sync_flush_timeout_ms=50)
    disk.hold_sync = threading.Event()
    started = time.monotonic()
    status, result = store.put(message(body=b"late"))
    assert status is PutStatus.FLUSH_DISK_TIMEOUT
    assert time.monotonic() - started >= 0.05
    assert placed(result).queue_offset == 0
    assert store.max_offset("T", 0) == 0  # not visible before it is on disk
    disk.hold_sync.set()
    wait_until(lambda: store.max_offset("T", 0) == 1)
    assert bodies(store) == [b"late"]
    disk.hold_sync = None
    store.close()


def test_who_does_not_wait_is_answered_at_once(disk: SimulatedDisk) -> None:
    store = running(disk, **SYNC, sync_flush_timeout_ms=60_000)
    disk.hold_sync = threading.Event()
    status, _ = store.put(message(wait=False))
    assert status is PutStatus.PUT_OK
    assert store.max_offset("T", 0) == 0  # the answer changes, not what can be seen
    disk.hold_sync.set()
    wait_until(lambda: store.max_offset("T", 0) == 1)
    disk.hold_sync = None
    store.close()


def test_a_failed_flush_is_told_at_once_and_for_good(disk: SimulatedDisk) -> None:
    store = running(disk, **SYNC, sync_flush_timeout_ms=60_000)
    assert store.put(message(body=b"before"))[0] is PutStatus.PUT_OK
    disk.plan(Fault(Kind.SYNC, path_contains="commitlog"))
    assert store.put(message(body=b"lost"))[0] is PutStatus.FLUSH_DISK_TIMEOUT
    disk.heal()
    status, result = store.put(message())
    assert status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "flush of the commit log failed" in str(result)
    assert bodies(store) == [b"before"]
    store.close()
    assert disk.exists(ROOT / "abort")
    with opened(small_settings(**SYNC), disk) as again:
        assert bodies(again)[0] == b"before"
        assert again.put(message())[0] is PutStatus.PUT_OK


def test_without_threads_a_put_flushes_by_itself(disk: SimulatedDisk) -> None:
    with opened(small_settings(**SYNC), disk) as store:
        assert store.put(message())[0] is PutStatus.PUT_OK
        assert store.max_offset("T", 0) == 1
        disk.plan(Fault(Kind.SYNC))
        assert store.put(message())[0] is PutStatus.FLUSH_DISK_TIMEOUT


def test_answers_without_waiting(disk: SimulatedDisk) -> None:
    clock = ManualClock()
    with opened(small_settings(**SYNC), disk, clock) as store:
        answers: list[PutStatus] = []
        first = placed(store.append([message()])[0])
        store.when_flushed(first.end, answers.append)
        store.flush_log()
        assert answers == [PutStatus.PUT_OK]
        store.when_flushed(first.end, answers.append)
        assert answers == [PutStatus.PUT_OK] * 2
        second = placed(store.append([message()])[0])
        store.when_flushed(second.end, answers.append)
        clock.advance(4999)
        store.expire_waiters()
        assert len(answers) == 2
        clock.advance(1)
        store.expire_waiters()
        assert answers[2:] == [PutStatus.FLUSH_DISK_TIMEOUT]
        third = placed(store.append([message()])[0])
        store.when_flushed(third.end, answers.append)
        store.flusher.failure = StoreFailed(ROOT, "played")
        store.advance()
        assert answers[3:] == [PutStatus.FLUSH_DISK_TIMEOUT]
        store.flusher.failure = None


def test_a_flush_that_ends_while_somebody_begins_to_wait_answers_him(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    with opened(small_settings(**SYNC), disk, clock) as store:
        end = placed(store.append([message()])[0]).end
        answers: list[PutStatus] = []
        with monkeypatch.context() as patch:

            def flushed_meanwhile() -> float:
                """The deadline is asked for between the look at what is flushed and the wait."""
                patch.undo()
                store.flush_log()
                return clock.monotonic()

            patch.setattr(clock, "monotonic", flushed_meanwhile)
            store.when_flushed(end, answers.append)
        assert answers == [PutStatus.PUT_OK]


def test_a_broker_may_take_the_flush_to_its_own_thread(disk: SimulatedDisk) -> None:
    store = MessageStore(small_settings(**SYNC), disk=disk)
    store.open()
    flushed = threading.Event()
    store.on_flushed = flushed.set
    store.start()
    store.append([message()])
    assert flushed.wait(WAIT_S)
    assert store.max_offset("T", 0) == 0
    store.advance()
    assert store.max_offset("T", 0) == 1
    store.close()


# Threads


def test_the_background_makes_everything_durable(disk: SimulatedDisk) -> None:
    store = running(
        disk,
        flush_interval_ms=1,
        flush_thorough_interval_ms=1,
        queue_flush_interval_ms=1,
        flush_least_pages=1,
    )
    put_all(store, [message(keys="k") for _ in range(5)])
    wait_until(lambda: store.flushed_offset == store.appended_offset)
    wait_until(lambda: store.housekeeper.checkpoint.durable_offset == store.appended_offset)
    assert store.queue("T", 0).synced_offset == 5
    assert len(store.messages_by_key("T", "k")) == 5
    store.close()


def test_room_is_made_ahead_of_the_log(disk: SimulatedDisk) -> None:
    store = running(disk)
    put_all(store, [sized(1000) for _ in range(3)])
    wait_until(lambda: len(disk.files(ROOT / "commitlog")) == 2)
    store.close()
    assert len(disk.files(ROOT / "commitlog")) == 1


def test_no_room_ahead_is_only_told(disk: SimulatedDisk, caplog: pytest.LogCaptureFixture) -> None:
    with opened(disk=disk) as store:
        put_all(store, [sized(1000) for _ in range(3)])
        disk.plan(Fault(Kind.CREATE, error=errno.ENOSPC))
        with caplog.at_level(logging.WARNING):
            store._allocate_step()
        assert "cannot preallocate the commit log" in caplog.text
        assert store.put(message())[0] is PutStatus.PUT_OK


def test_the_index_is_built_before_it_grows_too_long(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "INDEX_PENDING_MAX", 10)
    with opened(disk=disk) as store:
        assert store.index is not None
        for number in range(100):
            put_all(store, [message(keys=f"k{number}")])
            assert store.index.pending_count <= 12


def test_many_threads_put_and_read(disk: SimulatedDisk) -> None:
    store = running(disk, flush_interval_ms=1, queue_flush_interval_ms=1, consume_queue_file_bytes=2000)
    count = 50
    failures: list[object] = []

    def produce(number: int) -> None:
        for each in range(count):
            status, _ = store.put(message(queue_id=number % 2, body=b"%d-%d" % (number, each)))
            if status is not PutStatus.PUT_OK:
                failures.append(status)

    def consume(queue_id: int) -> None:
        at = 0
        while at < 4 * count:
            result = store.get("T", queue_id, at, 32)
            offsets = [each.queue_offset for each in result.messages()]
            if offsets != list(range(at, at + len(offsets))):
                failures.append(offsets)
                return
            at += len(offsets)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(8)]
    threads += [threading.Thread(target=consume, args=(queue_id,)) for queue_id in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    store.close()


# Closing


def test_closing_leaves_a_clean_directory(disk: SimulatedDisk) -> None:
    store = running(disk)
    put_all(store, [message(), message()])
    assert disk.content(ROOT / "abort") == str(os.getpid()).encode()
    store.close()
    store.close()
    assert not disk.exists(ROOT / "abort")
    image = disk.crash_image(random.Random(1))
    with opened(disk=image) as again:
        assert again.report.clean_exit
        assert len(bodies(again)) == 2


def test_a_stuck_disk_cannot_be_closed_cleanly(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_store, "STOP_TIMEOUT_S", 0.05)
    store = running(disk, **SYNC)
    hold = disk.hold_sync = threading.Event()
    answers: list[PutStatus] = []
    syncs = disk.counts[Kind.SYNC]
    store.when_flushed(placed(store.append([message()])[0]).end, answers.append)
    wait_until(lambda: disk.counts[Kind.SYNC] > syncs)
    store.close()
    assert answers == [PutStatus.FLUSH_DISK_TIMEOUT]
    assert disk.exists(ROOT / "abort")
    hold.set()
    disk.hold_sync = None


def test_closing_what_was_never_opened(disk: SimulatedDisk) -> None:
    MessageStore(small_settings(), disk=disk).close()
    assert disk.paths(ROOT) == []


# One owner


def test_a_second_store_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    settings = StoreSettings(path=tmp_path / "store")
    with opened(settings, RealDisk(), SystemClock()):
        with pytest.raises(StoreLocked, match="is in use"):
            MessageStore(settings).open()
    with opened(settings, RealDisk(), SystemClock()):
        pass


@pytest.mark.parametrize("log", ["log", "one/commitlog"])
def test_two_stores_never_share_a_log(tmp_path: Path, log: str) -> None:
    """The one store may name the log of the other, or both a third place."""
    others = tmp_path / log
    one = StoreSettings(path=tmp_path / "one", commit_log_path=None if "one" in log else others)
    two = StoreSettings(path=tmp_path / "two", commit_log_path=others)
    with opened(one, RealDisk(), SystemClock()) as store:
        put_all(store, [message()])
        with pytest.raises(StoreLocked, match=str(others)):
            MessageStore(two).open()
    with opened(two, RealDisk(), SystemClock()), pytest.raises(StoreLocked):
        MessageStore(one).open()


OPEN_ELSEWHERE = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from skylark.errors import StoreLocked
    from skylark.settings import StoreSettings
    from skylark.store.message_store import MessageStore
    store = MessageStore(StoreSettings(path=Path(sys.argv[1])))
    try:
        store.open()
    except StoreLocked:
        sys.exit(3)
    store.close()
    """
)


def test_a_store_in_another_process_is_refused(tmp_path: Path) -> None:
    def open_elsewhere() -> int:
        command = [sys.executable, "-c", OPEN_ELSEWHERE, str(tmp_path / "store")]
        return subprocess.run(command, timeout=60, check=False).returncode

    with opened(StoreSettings(path=tmp_path / "store"), RealDisk(), SystemClock()):
        assert open_elsewhere() == 3
    assert open_elsewhere() == 0


# Raw bytes


def copied(master: MessageStore, replica: MessageStore, piece: int = 1 << 20) -> None:
    while replica.appended_offset < master.appended_offset:
        at = max(replica.appended_offset, master.log.min_offset)
        replica.append_raw(at, master.read_log(at, piece))


def test_a_replica_serves_what_it_received(disk: SimulatedDisk) -> None:
    arrived: list[int] = []
    with opened(disk=disk) as master:
        put_all(master, [sized(1000, fill=b"%04d" % number) for number in range(10)])
        with opened(on_arrival=lambda batch: arrived.extend(each.queue_offset for each in batch)) as replica:
            copied(master, replica, 700)
            assert bodies(replica) == bodies(master)
            assert arrived == list(range(10))
            # As a master it goes on where the log ends.
            assert placed(replica.append([message()])[0]).queue_offset == 10


def test_raw_reads_stay_in_a_file_and_below_the_end(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        put_all(store, [sized(1000) for _ in range(6)])
        assert len(store.read_log(0, 1 << 20)) == 4096
        assert store.read_log(4000, 8).hex() == "00000060cbd43194"
        assert len(store.read_log(4096, 1 << 20)) == 2000
        assert store.read_log(store.appended_offset, 100) == b""
        assert store.read_log(store.appended_offset + 5, 100) == b""
        store.log.delete_file(0)
        with pytest.raises(OffsetOutOfRange):
            store.read_log(0, 100)


def test_a_replica_may_begin_late(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as master:
        put_all(master, [sized(1000, fill=b"%04d" % number) for number in range(14)])
        master.log.delete_file(0)
        with opened(small_settings(consume_queue_file_bytes=60)) as replica:
            copied(master, replica)
            queue = replica.queue("T", 0)
            assert (replica.log.min_offset, queue.min_offset, queue.max_offset) == (4096, 4, 14)
            assert [int(body[:4]) for body in bodies(replica)] == list(range(4, 14))
            replica.housekeeper.flush()
            assert queue.file_starts == [60, 120, 180, 240]


def test_a_replica_under_sync_flush_shows_what_is_on_its_own_disk() -> None:
    arrived: list[int] = []
    with opened() as master:
        put_all(master, [sized(1000, fill=b"%04d" % number) for number in range(5)])
        settings = small_settings(flush_mode=FlushMode.SYNC)

        def arrive(batch: Sequence[AppendedRecord]) -> None:
            arrived.extend(each.queue_offset for each in batch)

        with opened(settings, on_arrival=arrive) as replica:
            replica.append_raw(0, master.read_log(0, 2500))
            assert (replica.max_offset("T", 0), arrived) == (0, [])
            replica.flush_log()
            assert (replica.max_offset("T", 0), arrived) == (2, [0, 1])
            copied(master, replica)
            assert replica.max_offset("T", 0) == 2
            replica.flush_log()
            assert bodies(replica) == bodies(master)
            assert arrived == list(range(5))


def test_a_replica_that_was_cut_goes_on_as_a_master() -> None:
    with opened() as master:
        first, *_ = put_all(master, [sized(1000, fill=b"%04d" % number) for number in range(3)])
        with opened(small_settings(flush_mode=FlushMode.SYNC)) as replica:
            copied(master, replica)
            replica.flush_log()
            replica.truncate(first.end)
            for body in (b"one", b"two"):
                assert replica.put(message(body=body))[0] is PutStatus.PUT_OK
            assert [body[:4] for body in bodies(replica)] == [b"0000", b"one", b"two"]


def test_raw_bytes_that_do_not_fit_are_refused(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        put_all(store, [message()])
        with pytest.raises(OffsetOutOfRange):
            store.append_raw(store.appended_offset + 1, b"x")


def test_a_record_of_an_impossible_topic_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    with opened() as master:
        put_all(master, [message("aaaa", body=b"odd"), message(body=b"good")])
        data = master.read_log(0, 1 << 20).replace(b"aaaa", b"a/bb")
    with opened() as replica, caplog.at_level(logging.WARNING):
        replica.append_raw(0, data)
        assert bodies(replica) == [b"good"]
        assert "invalid queue" in caplog.text


def strayed(disk: SimulatedDisk) -> tuple[MessageStore, int]:
    """A store with ten messages, all durable, and where its sixth message begins."""
    store = MessageStore(small_settings(), disk=disk, clock=ManualClock())
    store.open()
    results = put_all(
        store, [message(body=b"%04d" % number + bytes(800), keys=f"k{number}") for number in range(10)]
    )
    store.flush_log()
    store.build_index()
    store.housekeeper.flush()
    return store, results[5].physical_offset


def test_a_replica_that_went_astray_is_cut(disk: SimulatedDisk) -> None:
    store, cut = strayed(disk)
    store.truncate(cut)
    assert store.appended_offset == store.flushed_offset == cut
    assert (store.max_offset("T", 0), store.queue("T", 0).next_offset) == (5, 5)
    assert store.messages_by_key("T", "k5") == []
    assert len(store.messages_by_key("T", "k4")) == 1
    put_all(store, [message(body=b"new", keys="k5")])
    assert bodies(store)[5:] == [b"new"]
    store.build_index()
    assert [each.body for each in store.messages_by_key("T", "k5")] == [b"new"]
    store.close()
    with opened(disk=disk) as again:
        assert again.report.problems == []
        assert bodies(again)[5:] == [b"new"]


@pytest.mark.parametrize("power_loss", [True, False])
def test_what_was_cut_stays_cut_after_a_crash(disk: SimulatedDisk, power_loss: bool) -> None:
    store, cut = strayed(disk)
    store.truncate(cut)
    for seed in range(10):
        image = disk.crash_image(random.Random(seed)) if power_loss else disk.kill_image()
        with opened(disk=image) as again:
            assert again.appended_offset == cut
            assert again.max_offset("T", 0) == 5
            assert again.report.damages == []
            assert placed(again.append([message(body=b"new")])[0]).queue_offset == 5
    store.close()


def test_cutting_keeps_the_minimum(disk: SimulatedDisk) -> None:
    store, cut = strayed(disk)
    store.log.delete_file(0)
    store.housekeeper.clean_derived()
    low = store.min_offset("T", 0)
    assert low > 0
    store.truncate(cut)
    assert store.min_offset("T", 0) == low
    store.close()


# Very many queues


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MessageStore]:
    """A store with queue files of the reference's size. 10,000 fsyncs would take longer than they tell."""
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    settings = StoreSettings(path=tmp_path / "store", commit_log_file_bytes=1 << 24, index_enabled=False)
    store = MessageStore(settings)
    store.open()
    yield store
    store.close()


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("count", [1500, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_thousands_of_queues(many: MessageStore, count: int) -> None:
    before, memory = descriptors(), resident_bytes()
    puts = [message(f"topic-{number % 1250}", number // 1250, b"%d" % number) for number in range(count)]
    for start in range(0, count, 500):
        assert all(each.status is PutStatus.PUT_OK for each in many.append(puts[start : start + 500]))
    many.flush_log()
    many.housekeeper._write_queues(everything=True)
    assert descriptors() - before <= OPEN_QUEUE_FILES_MAX + 20
    assert resident_bytes() - memory <= count * 5000
    files = list((many.path / "consumequeue").rglob("0" * 20))
    assert len(files) == count
    length = sum(file.stat().st_size for file in files)
    taken = sum(file.stat().st_blocks * 512 for file in files)
    assert length == count * 6_000_000
    assert taken <= count * (2 * 64 * 1024 + 4096)
    for number in (0, count // 2 - 29, count - 1):
        assert bodies(many, f"topic-{number % 1250}", number // 1250) == [b"%d" % number]
