"""A log that follows another, whatever it held before and however the bytes arrive."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import LogsDiverged, OffsetOutOfRange
from skylark.store import dispatch
from skylark.store.append_result import AppendedBatch
from skylark.store.message_store import MessageStore
from skylark.store.replica import CopyMark, ReplicaIntake, overlap_start
from tests.support.clock import ManualClock
from tests.support.store import ROOT, bodies, encoded_batch, message, opened, put_all, simulated_disk

Texts = Sequence[bytes]
texts = st.lists(st.binary(min_size=1, max_size=300), max_size=30)


def fill(store: MessageStore, run: Texts, prefix: bytes = b"") -> None:
    put_all(store, [message(body=prefix + body) for body in run])


def copy(master: MessageStore, slave: MessageStore) -> None:
    while slave.appended_offset < master.appended_offset:
        at = slave.appended_offset
        slave.append_raw(at, master.read_log(at, 1 << 20))


def feed(intake: ReplicaIntake, master: MessageStore, sizes: Sequence[int] = (1 << 20,)) -> None:
    """Give it the master's log from its position on, in pieces of these sizes in turn."""
    number = 0
    while intake.position < master.appended_offset:
        data = master.read_log(intake.position, sizes[number % len(sizes)])
        intake.take(intake.position, memoryview(data))
        number += 1
    intake._store.advance()  # as a slave does when it has told its master


def assert_equal(master: MessageStore, slave: MessageStore) -> None:
    assert slave.appended_offset == master.appended_offset
    at = 0
    while at < master.appended_offset:
        data = master.read_log(at, 1 << 20)
        assert slave.read_log(at, len(data)) == data
        at += len(data)
    assert bodies(slave) == bodies(master)


@given(texts, texts, texts, st.lists(st.integers(1, 700), min_size=1, max_size=4), st.integers(1, 5000))
def test_whatever_it_had_a_slave_becomes_as_its_master(
    common: Texts, lost: Texts, new: Texts, sizes: list[int], overlap_bytes: int
) -> None:
    with opened() as master, opened() as slave:
        fill(master, [b"anchor", *common])
        copy(master, slave)
        fill(slave, lost, b"slave ")
        fill(master, new, b"master ")
        end = min(slave.appended_offset, master.appended_offset)
        while True:
            start = overlap_start(slave, end, overlap_bytes)
            assert end - max(overlap_bytes, 1 << 13) <= start <= end
            try:
                intake = ReplicaIntake(slave, start)
                feed(intake, master, sizes)
                intake.cut_rest()
            except LogsDiverged:
                overlap_bytes *= 4
                continue
            break
        assert_equal(master, slave)


def test_what_lies_behind_the_masters_end_is_cut_when_it_is_asked_for() -> None:
    with opened() as master, opened() as slave:
        fill(master, [b"1", b"2"])
        copy(master, slave)
        fill(slave, [b"slave", b"slave too"])
        intake = ReplicaIntake(slave, 0)
        feed(intake, master)
        assert bodies(slave) == [
            b"1",
            b"2",
            b"slave",
            b"slave too",
        ]  # the master has said nothing of the rest
        intake.cut_rest()
        assert intake.divergence is not None
        assert (intake.divergence.physical_offset, intake.divergence.lost_records) == (intake.position, 2)
        assert_equal(master, slave)
        fill(master, [b"3"])
        feed(intake, master)
        assert_equal(master, slave)


def test_nothing_behind_is_cut_before_a_record_was_compared() -> None:
    with opened() as slave:
        fill(slave, [b"1", b"2"])
        with pytest.raises(LogsDiverged):
            ReplicaIntake(slave, 0).cut_rest()
        assert bodies(slave) == [b"1", b"2"]


@pytest.mark.parametrize("setting", [True, False])
def test_the_mark_of_a_copy_outlives_a_power_cut(setting: bool) -> None:
    disk = simulated_disk()
    disk.sync_directory(ROOT.parent)
    mark = CopyMark(disk, ROOT)
    assert not mark.is_set
    mark.set()
    mark.set()  # twice does no harm
    if not setting:
        mark.clear()
        mark.clear()
    for seed in range(20):
        assert CopyMark(disk.crash_image(random.Random(seed)), ROOT).is_set is setting


def test_the_cut_is_told_and_at_a_record(caplog: pytest.LogCaptureFixture) -> None:
    with opened() as master, opened() as slave:
        fill(master, [b"1", b"2"])
        copy(master, slave)
        cut = slave.appended_offset
        fill(slave, [b"slave", b"slave too"])
        lost = slave.appended_offset - cut
        fill(master, [b"master"])
        intake = ReplicaIntake(slave, 0)
        feed(intake, master)
        assert intake.divergence is not None
        assert (intake.divergence.physical_offset, intake.divergence.lost_bytes) == (cut, lost)
        assert "2 records" in caplog.text
        assert caplog.records[-1].levelname == "CRITICAL"
        assert_equal(master, slave)
    caplog.clear()


def test_nothing_is_cut_where_nothing_is_common() -> None:
    with opened() as master, opened() as slave:
        fill(master, [b"mine"])
        fill(slave, [b"yours"])
        with pytest.raises(LogsDiverged):
            feed(ReplicaIntake(slave, 0), master)
        assert bodies(slave) == [b"yours"]
        feed(ReplicaIntake(slave, 0, is_common=True), master)  # unless somebody knows better
        assert bodies(slave) == [b"mine"]


def test_bytes_out_of_turn_are_refused() -> None:
    with opened() as master, opened() as slave:
        fill(master, [b"1", b"2"])
        intake = ReplicaIntake(slave, 0)
        for wrong in (1, 1 << 62):
            with pytest.raises(OffsetOutOfRange):
                intake.take(wrong, memoryview(master.read_log(0, 10)))
        assert slave.appended_offset == 0
        with pytest.raises(OffsetOutOfRange):  # a heartbeat, too, says where the master is
            intake.take(5, memoryview(b""))


def test_the_overlap_begins_with_a_record() -> None:
    with opened() as store:
        fill(store, [b"x" * 500] * 6)
        starts = [placed for placed in record_starts(store)]
        end = store.appended_offset
        assert overlap_start(store, end, 1) == starts[-1]  # none begins so late: a little earlier
        for overlap_bytes in (700, 1300, 2000, 1 << 20):
            assert overlap_start(store, end, overlap_bytes) == min(
                start for start in starts if start >= end - overlap_bytes
            )
        assert overlap_start(store, starts[2], 1 << 20) == 0
    with opened() as empty:
        assert overlap_start(empty, 0, 1 << 20) == 0


def record_starts(store: MessageStore) -> list[int]:
    return [each.physical_offset for each in store.get("T", 0, 0, 32).messages()]


def test_a_replica_takes_no_messages() -> None:
    with opened() as store:
        store.is_replica = True
        [result] = store.append([message()])
        assert "slave" in getattr(result, "reason", "")
        assert store.appended_offset == 0


# Batch consume queues

BATCHED = "batched"
UNIQUE = b"UNIQ_KEY\x01u\x02"


def put_batched(store: MessageStore, *sizes: int) -> None:
    """Append messages and batches of these sizes to the first queue of the topic."""
    for size in sizes:
        if size == 1:
            put_all(store, [message(BATCHED, body=b"one", properties=UNIQUE)])
        else:
            batch = message(BATCHED, body=encoded_batch([b"%d" % n for n in range(size)]), properties=UNIQUE)
            assert isinstance(store.append_batches([(batch, size)])[0], AppendedBatch)


def units(store: MessageStore) -> bytes:
    store.housekeeper.flush()
    queue = store.queues[BATCHED, 0]
    assert queue.is_batched
    path = queue.directory / "00000000000000000000"
    data = store._disk.open(path).read(queue.position_of(queue.max_offset), 0)
    return bytes(data)


@pytest.mark.parametrize("sizes", [(1, 3, 1, 4), (3, 1, 2), (1, 1), (1, 3)])
@pytest.mark.parametrize("is_flushed", [False, True])
def test_attributes_that_come_after_the_messages_make_the_masters_queue(
    sizes: Sequence[int], is_flushed: bool
) -> None:
    with opened() as master, opened() as slave:
        master.queues.is_declared_batched = BATCHED.__eq__
        fill(master, [b"plain"])
        put_batched(master, *sizes)
        copy(master, slave)
        if is_flushed:
            slave.housekeeper.flush()
        slave.queues.is_declared_batched = BATCHED.__eq__
        slave.make_declared_batched()
        put_batched(master, 2, 1)
        copy(master, slave)
        assert units(slave) == units(master)
        assert slave.queues[BATCHED, 0].next_offset == master.queues[BATCHED, 0].next_offset
        assert not slave.queues.plain_topics()
        assert bodies(slave) == bodies(master)


@pytest.mark.parametrize("sizes", [(1, 3, 1, 4), (3, 1, 2)])
def test_a_replica_without_the_attributes_loses_no_batch_when_it_takes_over(sizes: Sequence[int]) -> None:
    with opened() as master, opened() as slave:
        master.queues.is_declared_batched = BATCHED.__eq__
        put_batched(master, *sizes)
        copy(master, slave)
        slave.make_declared_batched(unknown=lambda topic: topic != "T")
        assert units(slave) == units(master)


@pytest.mark.parametrize("sizes", [(1, 3, 1, 4), (3, 1, 2)])
@pytest.mark.parametrize("ends_by", ["crash", "crash after a flush", "close"])
def test_a_replica_that_restarts_before_the_attributes_come_loses_no_batch(
    sizes: Sequence[int], ends_by: str
) -> None:
    clock = ManualClock()
    disk = simulated_disk(clock)
    with opened() as master:
        master.queues.is_declared_batched = BATCHED.__eq__
        put_batched(master, *sizes)
        with opened(disk=disk, clock=clock) as slave:
            copy(master, slave)
            slave.flush_log()
            if ends_by == "crash after a flush":
                slave.housekeeper.flush()
            image = disk.kill_image()
        with opened(disk=disk if ends_by == "close" else image, clock=clock) as slave:
            slave.make_declared_batched(unknown=lambda topic: topic != "T")
            assert units(slave) == units(master)
            slave.housekeeper.flush()
            assert slave.housekeeper.checkpoint.durable_offset == master.appended_offset


def test_a_batch_whose_topic_stays_plain_is_not_looked_for_forever() -> None:
    with opened() as master, opened() as slave, pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "UNPLACED_BYTES_MAX", 5000)
        master.queues.is_declared_batched = BATCHED.__eq__
        put_batched(master, 1)
        first_batch = master.appended_offset
        put_batched(master, 3)
        for count, durable in ((1, first_batch), (50, None)):
            fill(master, [b"later"] * count)
            copy(master, slave)
            slave.build_index()
            slave.housekeeper.flush()
            expected = slave.appended_offset if durable is None else durable
            assert slave.housekeeper.checkpoint.durable_offset == expected


def test_a_queue_that_a_reader_made_before_the_attributes_is_replaced() -> None:
    with opened() as master, opened() as slave:
        master.queues.is_declared_batched = BATCHED.__eq__
        slave.queue(BATCHED, 0)
        put_batched(master, 3, 1)
        copy(master, slave)
        slave.queues.is_declared_batched = BATCHED.__eq__
        slave.make_declared_batched()
        assert units(slave) == units(master)
