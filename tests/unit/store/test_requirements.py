"""The numbered requirements (docs/requirements.md) that the store fulfils, at least one test each.

If a requirement needs a broker or a replica as well, the test covers the store's part.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from skylark.clock import SystemClock
from skylark.model.java import java_hash
from skylark.model.message import decode_properties
from skylark.model.record import decode, split
from skylark.settings import FlushMode, StoreSettings
from skylark.store import log_reader
from skylark.store.append_result import AppendedRecord, PutStatus
from skylark.store.disk import RealDisk
from skylark.store.log_reader import GetStatus
from skylark.store.log_scan import LogWalk
from skylark.store.mapped_file import file_name
from skylark.store.message_store import MessageStore
from tests.support.clock import ManualClock
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import (
    ROOT,
    bodies,
    message,
    opened,
    placed,
    put_all,
    read_queue,
    simulated_disk,
    sized,
    small_settings,
)

HOUR_MS = 3_600_000
FOUR = int(datetime(2026, 11, 15, 4, 0).timestamp() * 1000)
NOON = FOUR + 8 * HOUR_MS


def wide_settings(path: Path = ROOT, mode: FlushMode = FlushMode.ASYNC) -> StoreSettings:
    """Files large enough for one answer to be limited by nothing else."""
    return small_settings(
        path,
        consume_queue_file_bytes=20 * 2000,
        commit_log_file_bytes=1 << 21,
        message_bytes_max=1 << 19,
        flush_mode=mode,
    )


@pytest.fixture
def disk() -> SimulatedDisk:
    return simulated_disk()


# Arrival


@pytest.mark.parametrize("mode", list(FlushMode))
def test_sf_005_who_waits_for_a_message_is_told_when_it_can_be_read(
    disk: SimulatedDisk, mode: FlushMode
) -> None:
    """Holding pulls is the broker's; the store tells it of arrivals, and by then a pull finds the message."""
    found: list[tuple[int, bytes]] = []

    def arrive(batch: object) -> None:
        assert isinstance(batch, list)
        for each in batch:
            assert isinstance(each, AppendedRecord)
            result = store.get(each.queue.topic, each.queue.queue_id, each.queue_offset, 1)
            found.append((each.tags_code, result.messages()[0].body))

    store = MessageStore(small_settings(flush_mode=mode), disk=disk, on_arrival=arrive)
    store.open()
    store.start()
    elapsed = []
    for number in range(1, 6):
        started = time.monotonic()
        store.put(message(body=b"news", tags="TagA"))
        elapsed.append(time.monotonic() - started)
        assert found == [(2598919, b"news")] * number
    assert min(elapsed) < 0.2, "a busy machine may delay one, not all"
    store.close()


def test_sf_092_a_new_message_is_found_without_the_notice(disk: SimulatedDisk) -> None:
    """The periodic re-check of held pulls compares offsets: the maximum moves even if nobody listens."""
    with opened(disk=disk) as store:
        assert store.get("T", 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
        put_all(store, [message()])
        assert store.get("T", 0, 1, 32).status is GetStatus.OFFSET_OVERFLOW_ONE
        before = store.max_offset("T", 0)
        put_all(store, [message(body=b"news")])
        assert store.max_offset("T", 0) == before + 1
        assert store.get("T", 0, before, 32).messages()[0].body == b"news"


# One log


def test_sf_071_all_topics_share_one_log_and_what_is_derived_follows(tmp_path: Path) -> None:
    store = MessageStore(small_settings(tmp_path / "store", queue_flush_interval_ms=20))
    store.open()
    store.start()
    results = put_all(store, [message("AB"[n % 2], body=b"%d" % n, keys=f"key-{n}") for n in range(20)])
    places = [each.physical_offset for each in results]
    assert places == sorted(set(places))
    assert [each.queue.topic for each in results[:4]] == ["A", "B", "A", "B"]
    deadline = time.monotonic() + 30  # how long it takes is told by the test of the broker
    while not store.messages_by_key("B", "key-19"):
        assert time.monotonic() < deadline, "the key is not found"
        time.sleep(0.005)
    assert store.messages_by_key("B", "key-19")[0].body == b"19"
    store.close()
    assert {path.name for path in (tmp_path / "store" / "consumequeue").iterdir()} == {"A", "B"}


def test_sf_072_files_are_named_by_their_first_offset(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        put_all(store, [sized(700, fill=b"%03d" % number) for number in range(20)])
        names = disk.files(ROOT / "commitlog")
        assert names == [f"{start:020d}" for start in range(0, 4096 * len(names), 4096)]
        assert len(names) == 4
        assert {disk.length(ROOT / "commitlog" / name) for name in names} == {4096}
        assert [body[:3] for body in bodies(store)] == [b"%03d" % number for number in range(20)]
    assert StoreSettings().commit_log_file_bytes == 1 << 30
    assert StoreSettings().commit_log_directory.name == "commitlog"


def test_sf_073_sixteen_producers_make_one_clean_log(tmp_path: Path) -> None:
    count = 100
    with opened(small_settings(tmp_path / "store"), RealDisk(), SystemClock()) as store:
        results: list[AppendedRecord] = []

        def produce(number: int) -> None:
            for each in range(count):
                put = message(f"topic-{number % 3}", number % 2, b"%d-%d" % (number, each), tags="TagA")
                results.append(placed(store.put(put)[1]))

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        walk = LogWalk(store.log, 0)
        records = list(walk)
        assert (len(records), walk.damages, walk.end) == (16 * count, [], store.appended_offset)
        # Store time, ids and lengths are set, and are those that the producers were told.
        told = {each.physical_offset: each for each in results}
        for record in records:
            each = told[record.physical_offset]
            assert (each.size, each.queue_offset) == (record.size, record.queue_offset)
            assert each.store_timestamp == record.store_timestamp
        times = [record.store_timestamp for record in records]
        assert times == sorted(times)
        for name in store.queues:
            offsets = [each.queue_offset for each in read_queue(store, *name)]
            assert offsets == list(range(len(offsets)))
        # One producer's messages keep their order.
        for number in range(16):
            mine = [
                int(each.body.split(b"-")[1])
                for each in read_queue(store, f"topic-{number % 3}", number % 2)
                if each.body.startswith(b"%d-" % number)
            ]
            assert mine == list(range(count))


# After the append


def test_sf_074_a_put_ends_with_flush_and_a_place_that_replicas_can_reach(disk: SimulatedDisk) -> None:
    """Replication is the broker's. The store's part: flush as configured, hand out the same bytes, and name
    the offset that a replica must have reached."""
    with opened(small_settings(flush_mode=FlushMode.SYNC), disk) as store:
        status, result = store.put(message(body=b"safe"))
        assert status is PutStatus.PUT_OK
        end = placed(result).end
        assert store.flushed_offset == end
        with opened(disk=disk.crash_image(random.Random(7))) as after_power_loss:
            assert bodies(after_power_loss) == [b"safe"]
        with opened() as slave:
            slave.append_raw(0, store.read_log(0, end))
            assert slave.appended_offset == end
            assert bodies(slave) == [b"safe"]


def test_sf_075_a_message_can_be_consumed_at_once(tmp_path: Path) -> None:
    for mode in FlushMode:
        store = MessageStore(wide_settings(tmp_path / mode.name, mode))
        store.open()
        store.start()
        waits = []
        for number in range(300):
            started = time.monotonic()
            store.append([message(body=b"%d" % number)])
            while store.max_offset("T", 0) == number:
                time.sleep(0)
            assert store.get("T", 0, number, 1).messages()[0].body == b"%d" % number
            waits.append(time.monotonic() - started)
        store.close()
        if mode is FlushMode.ASYNC:  # the other waits for the disk, by its own wish
            # On a busy machine, of which others have the processor for a while, in its best moments.
            rounds = [sorted(waits[start : start + 50])[48] for start in range(0, 300, 50)]
            assert min(rounds) < 0.020


@pytest.mark.parametrize("rebuilt", [False, True])
def test_sf_076_transactions_under_way_are_not_in_queues(disk: SimulatedDisk, rebuilt: bool) -> None:
    states = {b"none": 0x0, b"prepared": 0x4, b"commit": 0x8, b"rollback": 0xC}
    with opened(disk=disk) as store:
        put_all(store, [message(body=name, sys_flag=flag) for name, flag in states.items()])
        assert bodies(store) == [b"none", b"commit"]
    if rebuilt:
        disk.lose(ROOT / "consumequeue")
    with opened(disk=disk) as store:
        assert bodies(store) == [b"none", b"commit"]
        assert [each.queue_offset for each in read_queue(store)] == [0, 1]


def test_sf_077_without_index_keys_find_nothing_and_consumption_works(disk: SimulatedDisk) -> None:
    with opened(small_settings(index_enabled=False), disk) as store:
        put_all(store, [message(body=b"%d" % number, keys="key", unique_key="id") for number in range(5)])
        store.build_index()
        store.housekeeper.flush()
        assert store.messages_by_key("T", "key") == store.messages_by_key("T", "id") == []
        assert bodies(store) == [b"%d" % number for number in range(5)]
    assert not disk.exists(ROOT / "index")


def test_sf_078_a_stalled_disk_answers_after_five_seconds(disk: SimulatedDisk) -> None:
    clock = ManualClock()
    settings = small_settings(flush_mode=FlushMode.SYNC)
    assert settings.sync_flush_timeout_ms == 5000
    with opened(settings, disk, clock) as store:
        answers: list[tuple[int, PutStatus]] = []
        for number in range(3):
            end = placed(store.append([message(body=b"%d" % number)])[0]).end
            store.when_flushed(end, lambda status, number=number: answers.append((number, status)))  # type: ignore[misc]
        clock.advance(4999)
        store.expire_waiters()
        assert answers == []
        clock.advance(1)
        store.expire_waiters()
        assert answers == [(number, PutStatus.FLUSH_DISK_TIMEOUT) for number in range(3)]
        store.flush_log()
        assert bodies(store) == [b"0", b"1", b"2"]  # stored all the same


def test_sf_078_who_does_not_wait_returns_at_once(disk: SimulatedDisk) -> None:
    store = MessageStore(small_settings(flush_mode=FlushMode.SYNC, sync_flush_timeout_ms=60_000), disk=disk)
    store.open()
    store.start()
    hold = disk.hold_sync = threading.Event()
    assert store.put(message(wait=False))[0] is PutStatus.PUT_OK
    assert store.flushed_offset == 0
    hold.set()
    disk.hold_sync = None
    store.close()


def test_sf_078_a_flush_is_shared(disk: SimulatedDisk) -> None:
    with opened(small_settings(flush_mode=FlushMode.SYNC), disk) as store:
        answers: list[PutStatus] = []
        before = store.flusher.count
        for _ in range(64):
            store.when_flushed(placed(store.append([message()])[0]).end, answers.append)
        store.flush_log()
        assert answers == [PutStatus.PUT_OK] * 64
        assert store.flusher.count == before + 1


PRODUCE = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from skylark.model.message import PutMessage
    from skylark.settings import StoreSettings
    from skylark.store.message_store import MessageStore
    store = MessageStore(StoreSettings(path=Path(sys.argv[1]), commit_log_file_bytes=65536, index_items=1000,
                                       index_slots=500))
    store.open()
    store.start()
    for number in range(1_000_000):
        (result,) = store.append([PutMessage("T", number % 2, b"%d" % number)])
        sys.stdout.write(f"{number} {result.queue_offset}\\n")
        sys.stdout.flush()
    """
)


def test_sf_079_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """Asynchronous flush: appended bytes belong to the system, not to the process; there is no pool."""
    acknowledged: dict[int, int] = {}
    command = [sys.executable, "-c", PRODUCE, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            number, queue_offset = map(int, line.split())
            acknowledged[number] = queue_offset
            if number == 3000:
                process.send_signal(signal.SIGKILL)
                break
        for line in process.stdout.read().splitlines():
            if line.count(" ") == 1 and line.split()[1]:
                acknowledged[int(line.split()[0])] = int(line.split()[1])
    last = max(acknowledged)
    if last != 3000:
        del acknowledged[last]  # its line may be cut
    settings = StoreSettings(
        path=tmp_path / "store", commit_log_file_bytes=65536, index_items=1000, index_slots=500
    )
    with opened(settings, RealDisk(), SystemClock()) as store:
        assert not store.report.clean_exit
        found = {
            int(each.body): each.queue_offset
            for queue_id in (0, 1)
            for each in read_queue(store, "T", queue_id)
        }
        assert acknowledged.items() <= found.items()
        assert len(acknowledged) > 3000


def test_sf_079_everything_is_flushed_at_least_every_ten_seconds(disk: SimulatedDisk) -> None:
    clock = ManualClock()
    with opened(disk=disk, clock=clock) as store:
        assert store.settings.flush_thorough_interval_ms == 10_000
        put_all(store, [message()])
        for _ in range(19):
            clock.advance(500)
            store._flush_step()
            assert store.flushed_offset == 0  # less than four pages
        clock.advance(500)
        store._flush_step()
        assert store.flushed_offset == store.appended_offset


def test_sf_080_the_flush_status_comes_apart_from_the_place(disk: SimulatedDisk) -> None:
    """The broker reports the replica's status if both fail: it can wait for the replica although the flush
    was late, because a late flush still gives the place."""
    store = MessageStore(small_settings(flush_mode=FlushMode.SYNC, sync_flush_timeout_ms=30), disk=disk)
    store.open()
    store.start()
    hold = disk.hold_sync = threading.Event()
    status, result = store.put(message(body=b"late"))
    assert status is PutStatus.FLUSH_DISK_TIMEOUT
    end = placed(result).end
    assert store.appended_offset == end
    with opened() as slave:  # replication does not wait for the master's disk
        slave.append_raw(0, store.read_log(0, end))
        assert slave.appended_offset == end
    for name in ("FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE", "IN_SYNC_REPLICAS_NOT_ENOUGH"):
        assert name in PutStatus.__members__
    hold.set()
    disk.hold_sync = None
    store.close()


# Cleaning


def test_sf_081_expired_files_go_within_70_seconds_of_the_start() -> None:
    clock = ManualClock(FOUR)
    disk = simulated_disk(clock)
    settings = small_settings(reserved_hours=0, consume_queue_file_bytes=60)
    with opened(settings, disk, clock) as store:
        put_all(store, [sized(1000) for _ in range(12)])
        store.housekeeper.flush()
        assert len(disk.files(ROOT / "commitlog")) == 3
        elapsed_ms = 0
        while len(disk.files(ROOT / "commitlog")) > 1:
            step_ms = int(store.housekeeper.clean_step() * 1000)
            clock.advance(step_ms)
            elapsed_ms += step_ms
            assert elapsed_ms <= 70_000
        assert elapsed_ms >= 60_000
        assert disk.files(ROOT / "commitlog") == [file_name(8192)]
        assert disk.files(ROOT / "consumequeue" / "T" / "0") == [file_name(120), file_name(180)]


@pytest.mark.parametrize(("used", "left", "refused"), [(0.74, 3, False), (0.86, 1, False), (0.91, 1, True)])
def test_sf_082_a_full_disk_deletes_at_any_hour_and_refuses_at_last(
    used: float, left: int, refused: bool
) -> None:
    """The broker answers SERVICE_NOT_AVAILABLE with code 14."""
    clock = ManualClock(NOON)
    disk = simulated_disk(clock)
    with opened(disk=disk, clock=clock) as store:
        put_all(store, [sized(1000) for _ in range(12)])
        disk.used = used
        store.housekeeper.clean()
        assert len(disk.files(ROOT / "commitlog")) == left
        status = store.put(message())[0]
        assert (status is PutStatus.SERVICE_NOT_AVAILABLE) == refused
        assert len(bodies(store)) >= 4


def test_sf_083_old_files_go_unconsumed_and_a_slow_consumer_goes_on() -> None:
    clock = ManualClock(FOUR - 73 * HOUR_MS)
    disk = simulated_disk(clock)
    with opened(disk=disk, clock=clock) as store:
        put_all(store, [sized(1000) for _ in range(5)])
        clock.advance(73 * HOUR_MS)
        put_all(store, [sized(1000) for _ in range(7)])
        assert store.housekeeper.clean() == [0]
        result = store.get("T", 0, 2, 32)
        assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 4)
        result = store.get("T", 0, result.next_offset, 32)
        assert result.messages()[0].queue_offset == 4


# Reading


def test_sf_090_an_entry_of_20_bytes_points_to_the_record(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        results = put_all(store, [message(body=b"%d" % n, tags=f"Tag{n}") for n in range(7)])
        store.housekeeper.flush()
        data = disk.content(ROOT / "consumequeue" / "T" / "0" / file_name(0))
        log = disk.content(ROOT / "commitlog" / file_name(0))
        for number, result in enumerate(results):
            entry = data[20 * number : 20 * number + 20]
            physical_offset = int.from_bytes(entry[:8], "big")
            size = int.from_bytes(entry[8:12], "big")
            assert (physical_offset, size) == (result.physical_offset, result.size)
            assert int.from_bytes(entry[12:], "big", signed=True) == java_hash(f"Tag{number}")
            assert decode(log[physical_offset : physical_offset + size]).body == b"%d" % number
            assert b"%d" % number not in entry or number == 0
        assert data[140:] == bytes(len(data) - 140)


def test_sf_093_a_pull_goes_from_offset_to_entry_to_record(disk: SimulatedDisk) -> None:
    with opened(wide_settings(), disk) as store:
        put_all(store, [message("AB"[n % 2], body=b"%d" % n) for n in range(40)])
        assert [each.body for each in store.get("A", 0, 0, 5).messages()] == [b"0", b"2", b"4", b"6", b"8"]
        result = store.get("A", 0, 10, 3)
        assert [each.body for each in result.messages()] == [b"20", b"22", b"24"]
        assert (result.next_offset, result.min_offset, result.max_offset) == (13, 0, 20)


def test_sf_119_a_queue_is_made_by_the_first_pull(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        assert ("T", 5) not in store.queues
        result = store.get("T", 5, 0, 32)
        assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
        assert ("T", 5) in store.queues
        assert not disk.exists(ROOT / "consumequeue" / "T")


@pytest.mark.parametrize("is_slave", [False, True])
@pytest.mark.parametrize(
    ("topic", "asked", "status", "corrected"),
    [
        ("empty", 7, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
        ("T", 3, GetStatus.OFFSET_TOO_SMALL, 4),
        ("T", 12, GetStatus.OFFSET_OVERFLOW_ONE, 12),
        ("T", 15, GetStatus.OFFSET_OVERFLOW_BADLY, 12),
        ("T", 5, GetStatus.FOUND, 10),
    ],
)
def test_sf_120_offsets_are_corrected(
    disk: SimulatedDisk, topic: str, asked: int, status: GetStatus, corrected: int, is_slave: bool
) -> None:
    with opened(disk=disk) as store:
        put_all(store, [sized(1000) for _ in range(12)])
        store.log.delete_file(0)
        store.housekeeper.clean_derived()
        store.reader.keep_offset_on_correction = is_slave
        result = store.get(topic, 0, asked, 32)
        assert result.status is status
        keeps = is_slave and status is not GetStatus.FOUND
        assert result.next_offset == (asked if keeps else corrected)


@pytest.mark.parametrize(("max_messages", "examined"), [(32, 800), (800, 800), (801, 801), (1500, 1500)])
def test_sf_121_scan_limit(disk: SimulatedDisk, max_messages: int, examined: int) -> None:
    with opened(wide_settings(), disk) as store:
        store.append([message(body=b"", tags="TagA") for _ in range(1800)])
        result = store.get("T", 0, 0, max_messages, tags_filter=lambda code: False)
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, examined)
        result = store.get("T", 0, 17, max_messages, tags_filter=lambda code: False)
        assert result.next_offset == min(17 + examined, 1800)


def test_sf_122_tags_by_hash_first_then_the_record(disk: SimulatedDisk) -> None:
    """The store's two predicates: the broker gives a tag set and, for SQL, a function on the record."""
    with opened(disk=disk) as store:
        # "Aa" and "BB" collide: such messages pass, and the client sorts them out.
        put_all(
            store,
            [
                message(body=b"0", tags="Aa", properties=b"a\x016\x02"),
                message(body=b"1", tags="BB", properties=b"a\x014\x02"),
                message(body=b"2", tags="C", properties=b"a\x019\x02"),
            ],
        )
        wanted = {java_hash("Aa")}
        result = store.get("T", 0, 0, 32, tags_filter=wanted.__contains__)
        assert [each.body for each in result.messages()] == [b"0", b"1"]

        def a_above_5(file: memoryview, start: int, _: int) -> bool:
            return int(decode_properties(split(file, start).properties)["a"]) > 5

        result = store.get("T", 0, 0, 32, record_filter=a_above_5)
        assert [each.body for each in result.messages()] == [b"0", b"2"]
        result = store.get("T", 0, 0, 32, tags_filter=wanted.__contains__, record_filter=a_above_5)
        assert [each.body for each in result.messages()] == [b"0"]


def test_sf_123_a_file_deleted_under_a_consumer_is_skipped(disk: SimulatedDisk) -> None:
    with opened(small_settings(consume_queue_file_bytes=2000), disk) as store:
        put_all(store, [sized(1000) for _ in range(12)])
        held = store.get("T", 0, 0, 2)
        store.log.delete_file(0)  # while the queue's entries still point there
        result = store.get("T", 0, held.next_offset, 32)
        assert (result.status, result.next_offset) == (GetStatus.FOUND, 12)
        assert [each.queue_offset for each in result.messages()] == list(range(4, 12))
        assert [each.queue_offset for each in held.messages()] == [0, 1]  # what was handed out stays readable


def test_sf_124_hot_reads_return_32_messages_or_256_kib(disk: SimulatedDisk) -> None:
    with opened(wide_settings(), disk) as store:
        put_all(store, [message("small", body=b"x") for _ in range(50)])
        put_all(store, [sized(60_000, "large") for _ in range(8)])
        assert len(store.get("small", 0, 0, 100).records) == 32
        result = store.get("large", 0, 0, 100)
        assert (len(result.records), result.bytes) == (4, 240_000)
        assert len(store.get("small", 0, 0, 10).records) == 10


def test_sf_124_cold_reads_return_8_messages_or_64_kib(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "memory_bytes", lambda: 1000)
    with opened(wide_settings(), disk) as store:
        put_all(store, [message("small", body=b"x") for _ in range(50)])
        put_all(store, [sized(20_000, "large") for _ in range(8)])
        put_all(store, [message("last")])
        assert len(store.get("small", 0, 0, 100).records) == 8
        result = store.get("large", 0, 0, 100)
        assert (len(result.records), result.bytes) == (3, 60_000)
        assert len(store.get("small", 0, 0, 3).records) == 3


def test_sf_125_a_lag_above_the_memory_share_suggests_the_slave(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker turns the hint into the id that its group configuration says."""
    monkeypatch.setattr(log_reader, "memory_bytes", lambda: 10_000)
    with opened(wide_settings(), disk) as store:
        assert store.settings.memory_share_percent == 40
        put_all(store, [sized(1000) for _ in range(10)])
        hints = [store.get("T", 0, offset, 1).suggest_slave for offset in range(10)]
        assert hints == [True] * 6 + [False] * 4


def test_sf_131_a_hole_in_the_queues_files_is_jumped(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        put_all(store, [message(body=b"%d" % number) for number in range(35)])
        store.housekeeper.flush()
        queue = store.queue("T", 0)
        queue._open_files.forget(queue.directory, 200)
        disk.lose(queue.directory / file_name(200))
        result = store.get("T", 0, 13, 32)
        assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 20)
        assert store.get("T", 0, 20, 32).messages()[0].body == b"20"
