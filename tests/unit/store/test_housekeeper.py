"""The regular work of a store: writing what is derived, the checkpoint that vouches for it, and cleaning."""

from __future__ import annotations

import errno
import logging
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from weakref import finalize

import pytest
from msgspec.structs import replace as replace_members

from skylark.errors import StoreFailed
from skylark.settings import FlushMode
from skylark.store.append_result import PutStatus
from skylark.store.checkpoint import CheckpointFile, load_manifest
from skylark.store.housekeeper import NEW_FILES_MAX, NEW_TAIL_BYTES_MAX, SYNCED_QUEUES_MAX, WRITE_ROUNDS
from skylark.store.index_file import HEADER, SLOT, IndexHeader
from skylark.store.log_reader import GetStatus
from skylark.store.mapped_file import file_name
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import ENTRY_BYTES
from tests.support.clock import ManualClock
from tests.support.simulated_disk import Fault, Kind, Operation, SimulatedDisk
from tests.support.store import (
    ROOT,
    bodies,
    message,
    opened,
    put_all,
    simulated_disk,
    sized,
    small_settings,
)

HOUR_MS = 3_600_000
FOUR = int(datetime(2026, 11, 15, 4, 0).timestamp() * 1000)
NOON = FOUR + 8 * HOUR_MS
ALL_HOURS = ";".join(map(str, range(24)))


def durable_offset(disk: SimulatedDisk) -> int | None:
    checkpoint = CheckpointFile(disk, ROOT / "checkpoint").load()
    return checkpoint.durable_offset if checkpoint else None


def log_names(disk: SimulatedDisk) -> list[int]:
    return [int(name) for name in disk.files(ROOT / "commitlog")]


# Flushing


def test_everything_derived_is_written_and_vouched_for() -> None:
    clock = ManualClock()
    disk = simulated_disk(clock)
    with opened(disk=disk, clock=clock) as store:
        put_all(store, [message(keys="k"), message("other", 3)])
        store.flush_log()
        store.build_index()
        store.housekeeper.flush()
        assert disk.directories(ROOT / "consumequeue") == ["T", "other"]
        assert len(disk.files(ROOT / "index")) == 1
        checkpoint = CheckpointFile(disk, ROOT / "checkpoint").load()
        assert checkpoint is not None
        assert checkpoint.durable_offset == store.appended_offset
        assert checkpoint.logics_timestamp == checkpoint.physic_timestamp == clock.now_ms()
        manifest = load_manifest(disk, ROOT)
        assert manifest is not None
        assert [(each.topic, each.queue_id, each.entries) for each in manifest.queues] == [
            ("T", 0, 1),
            ("other", 3, 1),
        ]


def test_the_checkpoint_comes_after_what_it_vouches_for() -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, [message(keys="k")])
        store.flush_log()
        store.build_index()
        operations: list[Operation] = []
        disk.observer = operations.append
        store.housekeeper.flush()
        disk.observer = None
        synced = [each.path for each in operations if each.kind is Kind.SYNC]
        names = [path.relative_to(ROOT).parts[0] for path in synced]
        last = max(number for number, name in enumerate(names) if name == "checkpoint")
        assert last > max(names.index("consumequeue"), names.index("index"))
        assert names[0] == "checkpoint", "the index is half written until its flush has ended"


def test_rocketmq_keeps_the_index_after_a_kill_unless_it_is_half_written() -> None:
    """After a crash it deletes files that end after the time in the checkpoint."""
    clock = ManualClock()
    disk = simulated_disk(clock)
    kept: list[bool] = []

    def look(_: Operation | None = None) -> None:
        checkpoint = CheckpointFile(disk, ROOT / "checkpoint").load()
        for name in disk.files(ROOT / "index"):
            data = disk.open(ROOT / "index" / name).read(1 << 20, 0)
            header = IndexHeader._make(HEADER.unpack_from(data))
            kept.append(checkpoint is not None and header.end_timestamp <= checkpoint.index_timestamp)
            slots = SLOT.iter_unpack(data[HEADER.size : HEADER.size + SLOT.size * store.settings.index_slots])
            is_whole = max(number for (number,) in slots) < header.next_item
            assert is_whole or not kept[-1] or header.next_item <= 1, "only a new file has nothing to lose"

    with opened(disk=disk, clock=clock) as store:
        for number in range(4):
            clock.advance(1000)
            put_all(store, [message(keys=f"k{number}")])
            store.build_index()
            disk.observer = look
            store.housekeeper.flush()
            disk.observer = None
            look()
            assert kept[-1]
    assert not all(kept)


def test_units_become_durable_after_their_records() -> None:
    disk = simulated_disk()
    with opened(small_settings(index_enabled=False), disk) as store:
        put_all(store, [message(), message()])
        synced: list[str] = []

        def watch(operation: Operation) -> None:
            if operation.kind is Kind.SYNC:
                synced.append(operation.path.relative_to(store.settings.path).parts[0])

        disk.observer = watch
        store.housekeeper.flush()
        assert synced == ["commitlog", "consumequeue", "checkpoint", "skylark-queues"]
        assert store.flushed_offset == durable_offset(disk) == store.appended_offset


def test_after_the_log_failed_nothing_more_is_vouched_for() -> None:
    disk = simulated_disk()
    with opened(small_settings(index_enabled=False), disk) as store:
        put_all(store, [message()])
        disk.plan(Fault(Kind.SYNC, path_contains="commitlog"))
        with pytest.raises(StoreFailed):
            store.housekeeper.flush()
        store.housekeeper.flush()
        assert durable_offset(disk) == 0


def test_what_waits_for_the_index_is_not_durable() -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        first, second = put_all(store, [message(keys="k"), message(keys="k")])
        store.flush_log()
        store.housekeeper.flush()
        assert durable_offset(disk) == first.physical_offset
        store.build_index()
        store.housekeeper.flush()
        assert durable_offset(disk) == second.end


def test_with_very_many_dirty_queues_only_a_thorough_round_syncs() -> None:
    clock = ManualClock()
    disk = simulated_disk(clock)
    settings = small_settings(index_enabled=False, commit_log_file_bytes=1 << 20)
    with opened(settings, disk, clock) as store:

        def touch(count: int) -> int:
            """Write to so many queues and let the background work; returns how many were synced."""
            put_all(store, [message(queue_id=number) for number in range(count)])
            before = disk.counts[Kind.SYNC]
            store.housekeeper.flush_quietly()
            return disk.counts[Kind.SYNC] - before

        assert touch(SYNCED_QUEUES_MAX) > SYNCED_QUEUES_MAX
        assert touch(SYNCED_QUEUES_MAX + 1) == 0
        assert store.queue("T", 5).written_offset == 2
        clock.advance(settings.queue_flush_thorough_interval_ms)
        assert touch(1) > SYNCED_QUEUES_MAX
        assert store.queue("T", 5).synced_offset == 2


def test_very_many_dirty_queues_are_written_over_several_rounds_those_that_wait_longest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = simulated_disk()
    rounds = 8  # so that few queues are very many
    monkeypatch.setattr("skylark.store.housekeeper.WRITE_ROUNDS", rounds)
    count = SYNCED_QUEUES_MAX * rounds * 2
    settings = small_settings(index_enabled=False, commit_log_file_bytes=16 << 20)
    with opened(settings, disk) as store:
        put_all(store, [message(queue_id=number) for number in range(count)])
        store.housekeeper.flush()
        durable = durable_offset(disk)
        put_all(store, [message(queue_id=number) for number in range(count)])
        for done in range(1, rounds):
            store.housekeeper.flush_quietly()
            written = [store.queue("T", number).written_offset for number in range(count)]
            assert written == sorted(written, reverse=True)
            assert SYNCED_QUEUES_MAX * done < sum(written) - count < count
        assert durable_offset(disk) == durable, "nothing vouches for queues that are not written"
        assert [len(bodies(store, queue_id=number)) for number in (0, count - 1)] == [2, 2]
        store.housekeeper.flush()
        assert {store.queue("T", number).synced_offset for number in range(count)} == {2}
        assert durable_offset(disk) == store.flushed_offset == store.appended_offset


def test_files_of_very_many_new_queues_are_made_a_few_in_a_round_first_come_first() -> None:
    disk = simulated_disk()
    count = SYNCED_QUEUES_MAX + NEW_FILES_MAX - 1
    settings = small_settings(index_enabled=False, commit_log_file_bytes=16 << 20)
    with opened(settings, disk) as store:
        put_all(store, [message(queue_id=number) for number in range(count)])

        def rounds() -> list[int]:
            """Let the background work once; returns how many units of each queue are in files."""
            store.housekeeper.flush_quietly()
            return [store.queue("T", number).written_offset for number in range(count)]

        assert rounds() == [1] * NEW_FILES_MAX + [0] * (SYNCED_QUEUES_MAX - 1)
        put_all(store, [message(queue_id=number) for number in (0, count - 1)])
        assert rounds() == [2] + [1] * (count - 2) + [2], "few enough are left: none waits"
        store.housekeeper.flush()
        assert durable_offset(disk) == store.appended_offset


def test_a_new_queue_with_much_to_write_does_not_wait_for_its_turn() -> None:
    disk = simulated_disk()
    count, busy = 2 * SYNCED_QUEUES_MAX, 2 * SYNCED_QUEUES_MAX - 1
    settings = small_settings(index_enabled=False, commit_log_file_bytes=16 << 20)
    with opened(settings, disk) as store:
        put_all(store, [message(queue_id=number) for number in range(count)])
        messages = NEW_TAIL_BYTES_MAX // ENTRY_BYTES
        put_all(store, [message(queue_id=busy) for _ in range(messages)])
        for _ in range(2):  # the first may not have looked at all queues
            store.housekeeper.flush_quietly()
        assert store.queue("T", busy).written_offset == messages + 1
        assert store.queue("T", busy - 1).written_offset == 0


def test_a_topic_is_deleted_while_its_queues_wait_for_their_files() -> None:
    disk = simulated_disk()
    settings = small_settings(index_enabled=False, commit_log_file_bytes=16 << 20)
    with opened(settings, disk) as store:
        numbers = range(2 * SYNCED_QUEUES_MAX)
        put_all(store, [message(topic="gone", queue_id=number) for number in numbers])
        store.housekeeper.flush_quietly()
        store.housekeeper.delete_topic("gone")
        store.housekeeper.flush()
        assert "gone" not in disk.directories(ROOT / "consumequeue")


def test_with_very_many_dirty_queues_the_index_is_written_once_in_several_rounds() -> None:
    disk = simulated_disk()
    settings = small_settings(commit_log_file_bytes=1 << 20)
    with opened(settings, disk) as store:

        def touch() -> bool:
            """Write to very many queues, let the background work; returns whether the index was written."""
            keys = [message(keys="k", queue_id=number) for number in range(SYNCED_QUEUES_MAX + 1)]
            put_all(store, keys)
            store.build_index()
            assert store.index is not None
            store.housekeeper.flush_quietly()
            return store.index.durable_offset > store.appended_offset

        assert [touch() for _ in range(3 * WRITE_ROUNDS)].count(True) == 3


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_the_background_tries_again(error: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, [message(), message("other")])
        disk.plan(Fault(Kind.WRITE, error=error, path_contains="consumequeue"))
        with caplog.at_level(logging.WARNING):
            store.housekeeper.flush_quietly()
        assert "cannot write" in caplog.text
        assert len(bodies(store)) == 1
        store.housekeeper.flush_quietly()
        assert store.queue("T", 0).synced_offset == store.queue("other", 0).synced_offset == 1


# Deleting a topic


def test_a_queue_that_cannot_be_written_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """Their units would stay in memory, and be built again from the log at the next start."""
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, [message("A"), message("B")])
        store.build_index()
        disk.plan(Fault(Kind.CREATE, always=True, path_contains="consumequeue/A/", error=errno.EACCES))
        before = durable_offset(disk)
        with caplog.at_level(logging.WARNING):
            store.housekeeper.flush_quietly()
        assert "cannot write consume queues or index" in caplog.text
        assert [store.queue(topic, 0).written_offset for topic in "AB"] == [0, 1]
        assert durable_offset(disk) == before, "nothing vouches for a queue that is not written"
        disk.heal()
        store.housekeeper.flush_quietly()
        assert store.queue("A", 0).written_offset == 1
        assert durable_offset(disk) == store.appended_offset


def test_a_deleted_topic_stays_deleted() -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, [message("a"), message("b")])
        disk.plan(Fault(Kind.WRITE, path_contains="consumequeue"))
        store.housekeeper.flush_quietly()  # leaves units behind that could not be written
        store.housekeeper.delete_topic("a")
        store.housekeeper.flush()
        assert disk.directories(ROOT / "consumequeue") == ["b"]
        assert store.topics() == ["b"]
        # A topic of the same name begins anew.
        put_all(store, [message("a", body=b"new")])
        assert bodies(store, "a") == [b"new"]
        store.flush_log()
    with opened(disk=disk) as store:
        assert store.report.problems == []
        assert bodies(store, "a") == [b"new"]


def test_a_queue_that_was_looked_up_before_its_topic_was_deleted() -> None:
    with opened(disk=simulated_disk()) as store:
        put_all(store, [message("a")])
        late = replace_members(message("a", body=b"new"), queue=store.queues["a", 0])
        store.housekeeper.delete_topic("a")
        put_all(store, [late])
        assert bodies(store, "a") == [b"new"]


def test_files_are_deleted_while_others_append() -> None:
    """After the manifest says that they are gone, and not under the lock that every append takes."""
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, [message("a"), message("b")])
        store.housekeeper.flush()
        seen: list[str] = []

        def watch(operation: Operation) -> None:
            path = operation.path.relative_to(ROOT)
            seen.append(f"{operation.kind.value} {path.parts[0] if path.parts else ROOT}")
            if operation.kind is Kind.DELETE:
                put_all(store, [message("a", body=b"new")])

        disk.observer = watch
        store.housekeeper.delete_topic("a")
        disk.observer = None
        assert seen.index("sync skylark-queues-2") < seen.index("delete consumequeue")
        assert seen[-1] == "sync_directory consumequeue"
        expected = bodies(store, "a")
        assert set(expected) == {b"new"}
        assert store.put(message("a", body=b"new"))[0] is PutStatus.PUT_OK
        store.housekeeper.flush()
        killed = disk.kill_image()
    with opened(disk=killed) as store:
        assert bodies(store, "a") == [*expected, b"new"]


def test_a_kill_in_the_middle_of_cleaning_is_no_loss() -> None:
    """What is about to be deleted is not missed afterwards: nothing is built again."""
    clock = ManualClock(FOUR)
    disk = simulated_disk(clock)
    settings = small_settings(reserved_hours=0, consume_queue_file_bytes=60)
    images: list[SimulatedDisk] = []
    with opened(settings, disk, clock) as store:
        put_all(store, [message(body=bytes(900), keys=f"k{number}") for number in range(40)])
        store.flush_log()
        store.build_index()
        store.housekeeper.flush()
        disk.observer = lambda operation: images.append(disk.kill_image())
        store.housekeeper.clean()
        disk.observer = None
        assert len(images) > 10
    for image in images:
        with opened(settings, image, clock) as store:
            assert store.report.problems == []
            assert store.report.rebuilt_queues == []


def test_offsets_outlive_the_log_that_they_were_made_from() -> None:
    clock = ManualClock(FOUR)
    disk = simulated_disk(clock)
    settings = small_settings(reserved_hours=0)
    with opened(settings, disk, clock) as store:
        put_all(store, [sized(1000, topic="early") for _ in range(3)])
        put_all(store, [sized(1000) for _ in range(12)])
        assert store.housekeeper.clean()
        killed = disk.kill_image()
    with opened(settings, killed, clock) as store:
        assert (store.min_offset("early", 0), store.max_offset("early", 0)) == (3, 3)


def test_a_full_disk_is_cleaned_though_nothing_can_be_written(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(FOUR)
    disk = simulated_disk(clock)
    with opened(small_settings(reserved_hours=0), disk, clock) as store:
        put_all(store, [sized(1000) for _ in range(12)])
        disk.plan(Fault(Kind.WRITE, error=errno.ENOSPC, path_contains="consumequeue"))
        with caplog.at_level(logging.WARNING):
            assert store.housekeeper.clean()
        assert "before files are deleted" in caplog.text


def test_what_is_no_topic_deletes_nothing() -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, [message()])
        store.housekeeper.flush()
        before = disk.paths(ROOT)
        for topic in ("..", "../commitlog", ""):
            with pytest.raises(ValueError, match="topic"):
                store.housekeeper.delete_topic(topic)
        assert disk.paths(ROOT) == before


# When to clean


def test_the_first_round_comes_after_a_minute_then_every_ten_seconds() -> None:
    clock = ManualClock(FOUR)
    disk = simulated_disk(clock)
    with opened(small_settings(reserved_hours=0, delete_files_max=1), disk, clock) as store:
        put_all(store, [sized(1000) for _ in range(20)])
        assert log_names(disk) == [0, 4096, 8192, 12288, 16384]
        step = store.housekeeper.clean_step
        assert step() == pytest.approx(60)
        clock.advance(59_999)
        assert step() == pytest.approx(0.001)
        assert len(log_names(disk)) == 5
        clock.advance(1)
        assert step() == pytest.approx(10)
        assert len(log_names(disk)) == 4
        clock.advance(9_999)
        assert step() == pytest.approx(0.001)
        clock.advance(1)
        step()
        assert len(log_names(disk)) == 3


def test_a_round_can_be_had_at_once() -> None:
    clock = ManualClock(FOUR)
    disk = simulated_disk(clock)
    store = MessageStore(small_settings(reserved_hours=0), disk=disk, clock=clock)
    store.open()
    put_all(store, [sized(1000) for _ in range(12)])
    store.clean_soon()
    assert store.housekeeper.clean_step() == pytest.approx(10)
    assert log_names(disk) == [8192]
    store.close()


def test_the_cleaning_thread_is_woken() -> None:
    disk = simulated_disk(ManualClock(FOUR))
    store = MessageStore(small_settings(reserved_hours=0, delete_hours=ALL_HOURS), disk=disk)
    store.open()
    store.start()
    put_all(store, [sized(1000) for _ in range(12)])
    store.clean_soon()
    deadline = time.monotonic() + 20
    while log_names(disk)[0] != 8192:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    store.close()


def test_settings_that_change_while_it_runs() -> None:
    clock = ManualClock(NOON)
    disk = simulated_disk(clock)
    with opened(disk=disk, clock=clock) as store:
        put_all(store, [sized(1000) for _ in range(12)])
        assert store.housekeeper.clean() == []
        store.apply(replace(store.settings, reserved_hours=0, delete_hours=ALL_HOURS))
        assert store.housekeeper.clean() == [0, 4096]
        store.apply(replace(store.settings, transfer_count_in_memory=2))
        assert len(store.get("T", 0, 8, 32).records) == 2


def test_a_round_that_fails_is_told_and_the_next_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(FOUR)
    disk = simulated_disk(clock)
    with opened(small_settings(reserved_hours=0), disk, clock) as store:
        put_all(store, [sized(1000) for _ in range(12)])
        clock.advance(60_000)
        disk.plan(Fault(Kind.DELETE))
        with caplog.at_level(logging.WARNING):
            store.housekeeper.clean_step()
        assert "cannot delete expired files" in caplog.text
        assert store.log.min_offset == 0
        clock.advance(10_000)
        store.housekeeper.clean_step()
        assert log_names(disk) == [8192]


def test_a_log_file_that_somebody_else_deleted_does_not_end_cleaning() -> None:
    clock = ManualClock(FOUR)
    disk = simulated_disk(clock)
    with opened(small_settings(reserved_hours=0), disk, clock) as store:
        put_all(store, [sized(1000) for _ in range(12)])
        disk.lose(store.log.files.path(0))
        assert store.housekeeper.clean() == [0, 4096]
        assert store.log.min_offset == 8192
        assert store.min_offset("T", 0) == 8


def test_a_queue_that_cannot_be_read_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(FOUR)
    disk = simulated_disk(clock)
    with opened(small_settings(reserved_hours=0), disk, clock) as store:
        put_all(store, [sized(500, topic) for _ in range(12) for topic in ("A", "B")])
        store.housekeeper.flush()
        disk.cut(ROOT / "consumequeue" / "A" / "0" / file_name(0), 20)
        assert store.housekeeper.clean() == [0, 4096]
        assert store.min_offset("B", 0) == 8
        assert "cannot expire consume queue topic=A queue=0" in caplog.text


def test_blocks_of_a_deleted_log_file_are_not_freed_under_the_lock() -> None:
    """That takes as long as the file is large, and every append would wait for it."""
    clock = ManualClock(FOUR)
    with opened(small_settings(reserved_hours=0), simulated_disk(clock), clock) as store:
        put_all(store, [sized(1000) for _ in range(12)])
        is_locked: list[bool] = []
        finalize(store.log.file(0), lambda: is_locked.append(store._lock.locked()))
        store.housekeeper.clean()
        assert is_locked == [False]


# What to clean


def aged_store(clock: ManualClock, disk: SimulatedDisk) -> MessageStore:
    """Three files of the log, the first of them 80 hours old."""
    store = MessageStore(small_settings(), disk=disk, clock=clock)
    store.open()
    put_all(store, [sized(1000) for _ in range(5)])
    clock.advance(80 * HOUR_MS)
    put_all(store, [sized(1000) for _ in range(7)])
    return store


def test_old_files_go_at_the_delete_hour_and_queues_follow() -> None:
    clock = ManualClock(FOUR - 80 * HOUR_MS)
    disk = simulated_disk(clock)
    store = aged_store(clock, disk)
    put_all(store, [message("other")])
    store.build_index()
    store.housekeeper.flush()
    assert store.housekeeper.clean() == [0]
    assert log_names(disk) == [4096, 8192, 12288]
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (4, 12)
    assert store.min_offset("other", 0) == 0
    assert store.get("T", 0, 0, 32).status is GetStatus.OFFSET_TOO_SMALL
    assert store.housekeeper.clean() == []
    store.close()


def test_files_of_queues_and_index_go_with_their_records() -> None:
    clock = ManualClock(FOUR)
    disk = simulated_disk(clock)
    with opened(small_settings(reserved_hours=0), disk, clock) as store:
        for number in range(60):
            put_all(store, [message(body=bytes(200), keys=f"k{number} x{number}")])
            clock.advance(1000)
        store.build_index()
        store.housekeeper.flush()
        assert len(disk.files(ROOT / "index")) == 6
        before = disk.files(ROOT / "consumequeue" / "T" / "0")
        assert len(before) == 6
        store.housekeeper.clean()
        low = store.min_offset("T", 0)
        assert low > 30
        assert disk.files(ROOT / "consumequeue" / "T" / "0") == before[low // 10 :]
        assert len(disk.files(ROOT / "index")) < 6
        assert store.messages_by_key("T", f"k{low - 1}") == []
        assert len(store.messages_by_key("T", f"k{low}")) == 1
        manifest = load_manifest(disk, ROOT)
        assert manifest is not None
        assert manifest.queues[0].first_file == low // 10 * 200
    with opened(small_settings(), disk, clock) as store:
        assert store.report.problems == []
        assert store.min_offset("T", 0) == low


@pytest.mark.parametrize(
    ("used", "deleted"),
    [(0.5, []), (0.75, []), (0.76, [0]), (0.85, [0]), (0.86, [0, 4096]), (0.95, [0, 4096])],
)
def test_disk_use_deletes_at_any_hour(used: float, deleted: list[int]) -> None:
    clock = ManualClock(NOON - 80 * HOUR_MS)
    disk = simulated_disk(clock)
    store = aged_store(clock, disk)
    disk.used = used
    assert store.housekeeper.clean() == deleted
    store.close()


def test_a_request_deletes_expired_files_at_any_hour() -> None:
    clock = ManualClock(NOON - 80 * HOUR_MS)
    disk = simulated_disk(clock)
    store = aged_store(clock, disk)
    store.housekeeper.manual.arm()
    assert store.housekeeper.clean() == [0]
    assert store.housekeeper.clean() == []
    store.close()


def test_disk_use_that_is_not_known_counts_as_too_much(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(NOON - 80 * HOUR_MS)
    disk = simulated_disk(clock)
    store = aged_store(clock, disk)

    def unknown(path: Path) -> float:
        raise OSError(errno.EIO, "no answer")

    monkeypatch.setattr(disk, "used_ratio", unknown)
    with caplog.at_level(logging.WARNING):
        assert store.housekeeper.clean() == [0]
    assert "cannot read disk usage" in caplog.text
    store.close()


def test_the_fuller_one_of_two_disks_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = simulated_disk()
    disk.make_directory(Path("/log"))
    settings = small_settings(commit_log_path=Path("/log/commitlog"))
    with opened(settings, disk) as store:
        put_all(store, [message()])
        use = {ROOT: 0.1, Path("/log/commitlog"): 0.91}
        monkeypatch.setattr(disk, "used_ratio", use.__getitem__)
        store.housekeeper.clean()
        assert store.housekeeper.disk_full.is_set


# A disk that is too full


def test_a_disk_that_is_too_full_refuses_puts_and_serves_reads() -> None:
    clock = ManualClock(NOON)
    disk = simulated_disk(clock)
    with opened(disk=disk, clock=clock) as store:
        put_all(store, [message(body=b"before")])
        seen = []
        for used in (0.90, 0.91, 0.90, 0.86, 0.85, 0.90):
            disk.used = used
            store.housekeeper.clean()
            status, result = store.put(message())
            seen.append(status is PutStatus.PUT_OK)
            if status is not PutStatus.PUT_OK:
                assert status is PutStatus.SERVICE_NOT_AVAILABLE
                assert "too full" in str(result)
            assert bodies(store)[0] == b"before"
        assert seen == [True, False, False, False, True, True]


def test_deleting_frees_the_disk_under_a_sync_flush() -> None:
    clock = ManualClock(NOON)
    disk = simulated_disk(clock)
    with opened(small_settings(flush_mode=FlushMode.SYNC), disk, clock) as store:
        for _ in range(12):
            assert store.put(sized(1000))[0] is PutStatus.PUT_OK
        disk.used = 0.87
        assert store.housekeeper.clean() == [0, 4096]
        assert disk.files(ROOT / "commitlog") == [file_name(8192)]
        assert store.put(message())[0] is PutStatus.PUT_OK
