"""A store directory opened read-only: everything is found, nothing is touched, whatever its owner does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.errors import (
    BadStoreFile,
    CorruptRecord,
    MissingFile,
    OffsetOutOfRange,
    SettingsError,
    UnsupportedStore,
)
from skylark.model.java import java_hash
from skylark.model.message import PutMessage, StoredMessage, SystemFlag, encode_properties, pack_host
from skylark.model.message_id import offset_message_id
from skylark.model.record import RECORD_BYTES_MIN
from skylark.settings import StoreSettings
from skylark.store.append_result import AppendedRecord
from skylark.store.disk import RealDisk
from skylark.store.index_file import IndexGeometry
from skylark.store.log_reader import GetStatus
from skylark.store.log_scan import LogDamage
from skylark.store.message_store import LOOPBACK_HOST, MessageStore
from skylark.store.queue_entry import BLANK_ENTRY, ENTRY, ENTRY_BYTES
from skylark.store.store_reader import StoreReader, likely_file_bytes
from skylark.store.unsupported_files import ROCKSDB_WAY_OUT
from tests.support.clock import ManualClock
from tests.support.directory import cut, fingerprint, flip, overwrite
from tests.support.store import golden_topics, opened, put_all, small_settings, unpack_golden

SLOTS, ITEMS = 16, 24
TOPICS = ("orders", "payments")


def reader_of(root: Path) -> StoreReader:
    return StoreReader(root, index_slots=SLOTS, index_items=ITEMS)


def some_messages(count: int = 60) -> list[PutMessage]:
    return [
        PutMessage(
            TOPICS[number % 2],
            number // 2 % 3,
            f"body {number}".encode() * (number % 5 + 1),
            encode_properties(
                {
                    "TAGS": f"tag{number % 4}",
                    "KEYS": f"key-{number} shared-{number % 7}",
                    "UNIQ_KEY": f"U{number}",
                }
            ),
            born_timestamp=number,
        )
        for number in range(count)
    ]


def write(root: Path, messages: list[PutMessage], clock: ManualClock | None = None) -> list[AppendedRecord]:
    """Put the messages, a second apart, and close the store."""
    clock = clock or ManualClock()
    placed = []
    with opened(small_settings(root), RealDisk(), clock) as store:
        for message in messages:
            clock.advance(1000)
            placed += put_all(store, [message])
    return placed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def placed(root: Path) -> list[AppendedRecord]:
    return write(root, some_messages())


@pytest.fixture
def reader(root: Path, placed: list[AppendedRecord]) -> StoreReader:
    return reader_of(root)


def all_messages(reader: StoreReader) -> Iterator[StoredMessage]:
    for queue in reader.queues():
        yield from reader.messages(queue.topic, queue.queue_id)


# What is there


def test_everything_that_was_put_is_read(reader: StoreReader, placed: list[AppendedRecord]) -> None:
    found = {message.physical_offset: message for message in all_messages(reader)}
    assert len(found) == len(placed)
    for put, where in zip(some_messages(), placed, strict=True):
        message = found[where.physical_offset]
        assert (message.topic, message.queue_id, message.queue_offset) == (
            put.topic,
            put.queue_id,
            where.queue_offset,
        )
        assert message.body == put.body
        assert message.store_timestamp == where.store_timestamp
        assert encode_properties(message.properties) == put.properties


def test_topics_and_queues_with_offsets_and_times(reader: StoreReader, placed: list[AppendedRecord]) -> None:
    assert reader.topics() == sorted(TOPICS)
    queues = reader.queues()
    assert [(queue.topic, queue.queue_id) for queue in queues] == [(t, q) for t in TOPICS for q in range(3)]
    assert sum(queue.count for queue in queues) == len(placed)
    for queue in queues:
        mine = [p for p in placed if (p.queue.topic, p.queue.queue_id) == (queue.topic, queue.queue_id)]
        assert (queue.min_offset, queue.max_offset) == (0, len(mine))
        assert (queue.first_timestamp, queue.last_timestamp) == (
            mine[0].store_timestamp,
            mine[-1].store_timestamp,
        )
        assert reader.queue_range(queue.topic, queue.queue_id) == queue
    assert reader.queues("payments") == queues[3:]
    assert reader.queues("nothing") == []
    assert reader.queue_range("orders", 9) is None
    assert reader.problems == []
    assert not reader.is_marked_running


def test_a_part_of_a_queue(reader: StoreReader) -> None:
    whole = list(reader.messages("orders", 0))
    assert len(whole) == 10
    assert list(reader.messages("orders", 0, 3, 7)) == whole[3:7]
    assert list(reader.messages("orders", 0, 8)) == whole[8:]
    assert list(reader.messages("orders", 0, None, 2)) == whole[:2]
    assert list(reader.messages("orders", 0, 5, 5)) == []
    assert list(reader.messages("orders", 0, 50, 90)) == []
    assert list(reader.messages("orders", 77)) == []


def test_records_come_in_the_logs_order(reader: StoreReader, placed: list[AppendedRecord]) -> None:
    offsets = [p.physical_offset for p in placed]
    assert [record.physical_offset for record in reader.records()] == offsets
    assert [r.physical_offset for r in reader.records(offsets[5], offsets[9])] == offsets[5:9]
    assert list(reader.records(reader.end_physical_offset)) == []
    assert reader.min_physical_offset == 0
    assert reader.end_physical_offset == placed[-1].end


def test_get_answers_as_the_store_does(reader: StoreReader, root: Path) -> None:
    code = java_hash("tag2")
    with opened(small_settings(root), RealDisk()) as store:
        for queue_offset in (0, 4, 9, 10, 11, 99):
            ours = reader.get("payments", 1, queue_offset, 5, tags_filter=lambda tags: tags == code)
            theirs = store.get("payments", 1, queue_offset, 5, tags_filter=lambda tags: tags == code)
            assert ours is not None
            assert (ours.status, ours.next_offset, ours.max_offset) == (
                theirs.status,
                theirs.next_offset,
                theirs.max_offset,
            )
            assert ours.messages() == theirs.messages()
    assert reader.get("payments", 9, 0, 1) is None


def test_by_key_and_unique_key(reader: StoreReader) -> None:
    for number, message in enumerate(some_messages()):
        for key in (f"key-{number}", f"U{number}"):
            assert [found.body for found in reader.by_key(message.topic, key)] == [message.body]
    shared = [bytes(m.body) for n, m in enumerate(some_messages()) if m.topic == "orders" and n % 7 == 3]
    assert sorted(found.body for found in reader.by_key("orders", "shared-3")) == sorted(shared)
    assert reader.by_key("orders", "key-1") == []  # it is in payments
    assert len(reader.by_key("orders", "shared-3", maximum=2)) == 2


def test_by_key_in_a_window_of_time(reader: StoreReader) -> None:
    everything = reader.by_key("orders", "shared-0")
    assert len(everything) > 2
    second = everything[1].store_timestamp
    assert reader.by_key("orders", "shared-0", begin_ms=second) == everything[1:]
    assert reader.by_key("orders", "shared-0", end_ms=second) == everything[:2]


def test_by_offset_id(reader: StoreReader, placed: list[AppendedRecord]) -> None:
    message = reader.by_offset_id(offset_message_id(LOOPBACK_HOST, placed[7].physical_offset).lower())
    assert message.body == some_messages()[7].body
    with pytest.raises(ValueError, match="characters"):
        reader.by_offset_id("123")
    with pytest.raises(OffsetOutOfRange):
        reader.by_offset_id(offset_message_id(pack_host("10.0.0.1", 1), 1 << 40))
    with pytest.raises(CorruptRecord):
        reader.by_offset_id(offset_message_id(LOOPBACK_HOST, placed[7].physical_offset + 1))


def test_by_time(reader: StoreReader) -> None:
    times = [message.store_timestamp for message in reader.messages("orders", 2)]
    for queue_offset, timestamp in enumerate(times):
        assert reader.offset_by_time("orders", 2, timestamp) == queue_offset
        assert reader.offset_by_time("orders", 2, timestamp + 1) == queue_offset + 1
        assert reader.offset_by_time("orders", 2, timestamp, upper=True) == queue_offset
    assert reader.offset_by_time("orders", 9, 0) is None


def test_refresh_shows_what_came_since(reader: StoreReader, root: Path) -> None:
    before = list(all_messages(reader))
    clock = ManualClock(before[-1].store_timestamp + 100_000)
    more = [PutMessage("later", 0, b"new", encode_properties({"KEYS": "fresh"}))] * 300
    write(root, more, clock)
    assert list(all_messages(reader)) == before
    reader.refresh()
    assert len(list(all_messages(reader))) == len(before) + 300
    assert "later" in reader.topics()
    assert len(reader.by_key("later", "fresh", maximum=1000)) == 300


# Nothing is touched


@pytest.mark.parametrize("archive", ["clean", "crash", "crc"])
def test_an_apache_directory_stays_as_it_is(golden: Path, tmp_path: Path, archive: str) -> None:
    root = unpack_golden(golden, archive, tmp_path)
    before = fingerprint(root)
    reader = StoreReader(root, index_slots=500, index_items=2000)
    assert reader.problems == []
    assert all(True for _ in all_messages(reader))
    assert all(True for _ in reader.records())
    key = next(
        message.keys[0] for message in all_messages(reader) if message.topic == "TopicTest" and message.keys
    )
    assert reader.by_key("TopicTest", key)
    assert reader.unsupported() or archive == "crc"
    reader.refresh()
    assert fingerprint(root) == before


def test_a_directory_that_forbids_writing_can_be_read(reader: StoreReader, root: Path) -> None:
    for path in [*root.rglob("*"), root]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert len(list(all_messages(reader_of(root)))) == 60
    finally:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_the_lock_of_a_store_in_this_process_survives_its_readers(root: Path) -> None:
    """A record lock is lost when any descriptor of its file is closed, so a reader must never open it."""
    try_lock = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"

    def others_can_lock() -> bool:
        command = [sys.executable, "-c", try_lock, str(root / "lock")]
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0

    with opened(small_settings(root), RealDisk()) as store:
        put_all(store, some_messages(10))
        store.housekeeper.flush()
        reader = reader_of(root)
        assert reader.is_marked_running
        assert len(list(all_messages(reader))) == 10
        reader.refresh()
        del reader
        assert not others_can_lock()
    assert others_can_lock()


# Bad directories


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no such directory"):
        StoreReader(tmp_path / "nowhere")
    with pytest.raises(BadStoreFile, match="neither commitlog nor consumequeue"):
        StoreReader(tmp_path)
    file = tmp_path / "file"
    file.write_bytes(b"x")
    with pytest.raises(BadStoreFile, match="not a directory"):
        StoreReader(file)
    (tmp_path / "commitlog").write_bytes(b"x")
    with pytest.raises(BadStoreFile, match="not a directory"):
        StoreReader(tmp_path)


def test_an_empty_store_is_a_store(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    reader = StoreReader(tmp_path)
    assert (reader.topics(), reader.problems, reader.end_physical_offset) == ([], [], 0)
    assert list(reader.records()) == []
    with pytest.raises(MissingFile, match="keys cannot be looked up without an index"):
        reader.by_key("orders", "key-1")


def test_index_geometry_that_cannot_be_is_refused(reader: StoreReader, root: Path) -> None:
    with pytest.raises(SettingsError, match="index_slots"):
        StoreReader(root, index_slots=0)


def test_the_geometry_of_the_index_is_found(reader: StoreReader, golden: Path, tmp_path: Path) -> None:
    reader = StoreReader(reader.path)
    assert (reader.index_geometry, reader.problems) == (IndexGeometry(SLOTS, ITEMS), [])
    assert reader.by_key("orders", "key-0")
    apache = unpack_golden(golden, "clean", tmp_path / "apache")
    assert StoreReader(apache).index_geometry == IndexGeometry(500, 2000)


def test_an_index_of_another_geometry_is_reported_and_left_out(
    root: Path, placed: list[AppendedRecord]
) -> None:
    reader = StoreReader(root, index_slots=5_000_000)
    assert any("instead of" in problem and "index" in problem for problem in reader.problems)
    with pytest.raises(BadStoreFile, match="5000000 slots"):
        reader.by_key("orders", "key-0")
    assert len(list(all_messages(reader))) == len(placed)


def test_a_log_elsewhere(root: Path, tmp_path: Path, placed: list[AppendedRecord]) -> None:
    shutil.move(root / "commitlog", tmp_path / "log")
    assert StoreReader(root).end_physical_offset == 0
    reader = StoreReader(root, commit_log_path=tmp_path / "log")
    assert len(list(all_messages(reader))) == len(placed)


# File sizes


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], 0),
        ([(0, 4096)], 4096),
        ([(0, 0)], 0),
        ([(0, 4096), (4096, 0)], 4096),
        ([(0, 4096), (4096, 100)], 4096),
        ([(0, 100), (4096, 4096)], 4096),
        ([(0, 4096), (4096, 4096), (8192, 99)], 4096),
        ([(65536, 65536), (131072, 65536), (7, 30)], 65536),
        ([(0, 100), (100, 100), (200, 40)], 100),
    ],
)
def test_the_size_of_most_files_counts(files: list[tuple[int, int]], expected: int) -> None:
    assert likely_file_bytes(iter(files)) == expected


def test_sizes_are_taken_from_the_files(reader: StoreReader) -> None:
    assert reader.settings.commit_log_file_bytes == 4096
    assert reader.settings.consume_queue_file_bytes == 200


def test_odd_files_are_reported_and_the_rest_is_read(root: Path, placed: list[AppendedRecord]) -> None:
    (root / "commitlog" / "README").write_bytes(b"x")
    (root / "commitlog" / f"{77:020d}").write_bytes(b"x")
    (root / "consumequeue" / "orders" / "seven").mkdir()
    (root / "consumequeue" / ("t" * 200) / "0").mkdir(parents=True)
    (root / "consumequeue" / ("t" * 200) / "0" / f"{0:020d}").write_bytes(bytes(200))
    (root / "index" / "notes").write_bytes(b"x")
    reader = reader_of(root)
    assert len(reader.problems) == 5
    assert len(list(all_messages(reader))) == len(placed)


def test_a_short_queue_file_hides_only_what_it_held(root: Path, placed: list[AppendedRecord]) -> None:
    messages = some_messages(300)
    shutil.rmtree(root)
    write(root, messages)
    cut(root / "consumequeue" / "orders" / "0" / f"{400:020d}", 30)
    reader = reader_of(root)
    assert [message.queue_offset for message in reader.messages("orders", 0)] == list(range(20))
    assert "has 30 bytes instead of 200" in "".join(reader.problems)
    assert len(list(reader.messages("orders", 1))) == 50


@pytest.mark.parametrize("length", [0, 50])
def test_a_last_log_file_that_is_being_made_or_cut(
    root: Path, placed: list[AppendedRecord], length: int
) -> None:
    path = root / "commitlog" / f"{1 << 16:020d}"
    path.write_bytes(bytes(length))
    reader = reader_of(root)
    # Empty is how every new file begins; a short one is a problem, and so is the gap before this one.
    assert any("bytes instead of" in problem for problem in reader.problems) == bool(length)
    assert len(list(all_messages(reader))) == len(placed)
    assert reader.get("orders", 0, 0, 32) is not None


def test_metadata_that_cannot_be_parsed_is_a_problem(root: Path, placed: list[AppendedRecord]) -> None:
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_bytes(b'{"topicConfigTable":{')
    assert any("topics.json" in problem for problem in reader_of(root).problems)
    (root / "config" / "topics.json").write_bytes(b"{}")
    assert any("no topicConfigTable" in problem for problem in reader_of(root).problems)


# The end of the log


def test_the_end_is_found_behind_the_consume_queues(golden: Path, tmp_path: Path) -> None:
    """The crashed store has records whose units were never written."""
    root = unpack_golden(golden, "crash", tmp_path)
    reader = StoreReader(root, index_slots=500, index_items=2000)
    in_queues = {message.physical_offset for message in all_messages(reader)}
    in_log = [record.physical_offset for record in reader.records()]
    assert in_log[-1] == 932111
    assert in_log[-1] not in in_queues
    assert reader.message_at(in_log[-1]).topic == "TopicBurst"
    burst = golden_topics(golden, "crash")["TopicBurst"]["1"]
    assert burst["messages"][-1]["physicalOffset"] == in_log[-1]


def test_the_end_is_found_without_consume_queues(root: Path, placed: list[AppendedRecord]) -> None:
    shutil.rmtree(root / "consumequeue")
    reader = reader_of(root)
    assert reader.topics() == []
    assert reader.end_physical_offset == placed[-1].end
    assert [record.physical_offset for record in reader.records()] == [p.physical_offset for p in placed]


def test_units_that_lie_about_the_end_are_not_believed(root: Path, placed: list[AppendedRecord]) -> None:
    queue = root / "consumequeue" / "orders" / "0" / f"{0:020d}"
    for physical_offset in (1 << 50, placed[30].physical_offset + 3, placed[30].physical_offset):
        overwrite(queue, 9 * ENTRY_BYTES, ENTRY.pack(physical_offset, 999, 0))
        assert reader_of(root).end_physical_offset == placed[-1].end


def test_a_log_that_does_not_begin_at_zero(root: Path, placed: list[AppendedRecord]) -> None:
    for start in (0, 4096):
        (root / "commitlog" / f"{start:020d}").unlink()
    reader = reader_of(root)
    left = [p for p in placed if p.physical_offset >= 8192]
    assert 0 < len(left) < len(placed)
    assert reader.min_physical_offset == 8192
    assert sorted(m.physical_offset for m in all_messages(reader)) == [p.physical_offset for p in left]
    assert [record.physical_offset for record in reader.records()] == [p.physical_offset for p in left]
    for queue in reader.queues():
        assert queue.min_offset == next(
            p.queue_offset for p in left if (p.queue.topic, p.queue.queue_id) == (queue.topic, queue.queue_id)
        )
        too_small = reader.get(queue.topic, queue.queue_id, queue.min_offset - 1, 1)
        assert too_small is not None
        assert too_small.status is GetStatus.OFFSET_TOO_SMALL


# Damage


def damaged_record(root: Path, placed: AppendedRecord) -> None:
    start = placed.physical_offset - placed.physical_offset % 4096
    flip(root / "commitlog" / f"{start:020d}", placed.physical_offset % 4096 + 90)


def test_a_damaged_message_is_raised_or_handed_over(root: Path, placed: list[AppendedRecord]) -> None:
    bad = placed[12]  # orders/0 at offset 2
    damaged_record(root, bad)
    reader = reader_of(root)
    with pytest.raises(CorruptRecord, match="CRC"):
        list(reader.messages("orders", 0))
    handed: list[CorruptRecord] = []
    found = [m.queue_offset for m in reader.messages("orders", 0, on_corrupt=handed.append)]
    assert found == [0, 1, *range(3, 10)]
    assert [error.physical_offset for error in handed] == [bad.physical_offset]
    damages: list[LogDamage] = []
    records = [record.physical_offset for record in reader.records(on_damage=damages.append)]
    assert records == [p.physical_offset for p in placed if p is not bad]
    assert [(d.physical_from, d.physical_to) for d in damages] == [(bad.physical_offset, bad.end)]


def test_the_last_record_counts_even_if_it_is_damaged(root: Path, placed: list[AppendedRecord]) -> None:
    damaged_record(root, placed[-1])
    reader = reader_of(root)
    handed: list[CorruptRecord] = []
    last = placed[-1]
    list(reader.messages(last.queue.topic, last.queue.queue_id, on_corrupt=handed.append))
    assert [error.physical_offset for error in handed] == [last.physical_offset]


def test_a_unit_that_points_outside_the_log_is_damage(root: Path, placed: list[AppendedRecord]) -> None:
    queue = root / "consumequeue" / "orders" / "0" / f"{0:020d}"
    overwrite(queue, 4 * ENTRY_BYTES, ENTRY.pack(1 << 50, 100, 0))
    handed: list[CorruptRecord] = []
    found = [m.queue_offset for m in reader_of(root).messages("orders", 0, on_corrupt=handed.append)]
    assert found == [0, 1, 2, 3, *range(5, 10)]
    assert "orders/0 at queue offset 4" in str(handed[0])


def test_a_missing_log_file_in_the_middle(root: Path, placed: list[AppendedRecord]) -> None:
    (root / "commitlog" / f"{4096:020d}").unlink()
    reader = reader_of(root)
    assert "commit log files from 4096 to 8192 are missing" in reader.problems
    handed: list[CorruptRecord] = []
    found = {
        message.physical_offset
        for queue in reader.queues()
        for message in reader.messages(queue.topic, queue.queue_id, on_corrupt=handed.append)
    }
    lost = {p.physical_offset for p in placed if 4096 <= p.physical_offset < 8192}
    assert lost
    assert found == {p.physical_offset for p in placed} - lost
    assert {error.physical_offset for error in handed} == lost
    assert {record.physical_offset for record in reader.records()} == found


def test_blank_units_are_passed_over_and_hide_nothing(root: Path, placed: list[AppendedRecord]) -> None:
    """They stand where recovery found a message lost. The binary searches meet them in any place."""
    for blank in range(10):
        queue = root / "consumequeue" / "orders" / "1" / f"{0:020d}"
        original = queue.read_bytes()
        overwrite(queue, blank * ENTRY_BYTES, BLANK_ENTRY)
        reader = reader_of(root)
        messages = list(reader.messages("orders", 1))
        assert [message.queue_offset for message in messages] == [n for n in range(10) if n != blank]
        for message in messages:
            assert reader.offset_by_time("orders", 1, message.store_timestamp) == message.queue_offset
        queue.write_bytes(original)


# What is not served


def test_what_is_not_supported_is_named(golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "clean", tmp_path)
    (root / "consumequeue_ext" / "TopicTest" / "0").mkdir(parents=True)
    (root / "consumequeue_ext" / "TopicTest" / "0" / f"{0:020d}").touch()
    (root / "consumequeue" / "CURRENT").write_bytes(b"MANIFEST-000001")
    (root / "consumequeue" / "%LMQ%light" / "0").mkdir(parents=True)
    (root / "consumequeue" / "%LMQ%light" / "0" / f"{0:020d}").write_bytes(bytes(6000))
    (root / "config" / "topics").mkdir()
    (root / "config" / "topics" / "CURRENT").write_bytes(b"MANIFEST-000001")
    reader = StoreReader(root, index_slots=500, index_items=2000)
    assert [item.name for item in reader.unsupported()] == [
        "compaction",
        "consumequeue_ext",
        "consumequeue",
        "config/topics",
        "TopicCompact",
        "%LMQ%light",
    ]


def test_a_store_of_ours_has_nothing_unsupported(reader: StoreReader) -> None:
    assert reader.unsupported() == []


def test_directories_that_a_broker_of_5_5_leaves_empty_are_not_named(reader: StoreReader, root: Path) -> None:
    (root / "compaction").mkdir()
    (root / "compaction" / "position-checkpoint").write_bytes(b"{}")
    (root / "rocksdbstore").mkdir()
    for name in ("CURRENT", "IDENTITY", "MANIFEST-000005", "OPTIONS-000012", "LOG"):
        (root / "rocksdbstore" / name).write_bytes(b"x")
    (root / "rocksdbstore" / "000004.log").touch()
    assert reader.unsupported() == []


@pytest.mark.parametrize("file", ["000008.sst", "000009.log"])
def test_records_in_rocksdb_are_named_and_the_store_is_refused(
    reader: StoreReader, root: Path, file: str
) -> None:
    (root / "rocksdbstore").mkdir()
    (root / "rocksdbstore" / file).write_bytes(b"x")
    [item] = reader.unsupported()
    assert (item.name, item.reason) == ("rocksdbstore", ROCKSDB_WAY_OUT)
    before = fingerprint(root)
    with pytest.raises(UnsupportedStore, match="timerRocksDBEnable=false"):
        MessageStore(StoreSettings(path=root)).open()
    assert fingerprint(root) == before


# Under its owner's hands


def test_files_deleted_under_the_reader_read_as_gone(root: Path, placed: list[AppendedRecord]) -> None:
    reader = reader_of(root)
    records = reader.records()
    assert next(records).physical_offset == 0
    for start in (0, 4096):
        (root / "commitlog" / f"{start:020d}").unlink()
    left = {p.physical_offset for p in placed if p.physical_offset >= 8192}
    # A descriptor that was open still reads; what follows is behind the gap.
    assert {record.physical_offset for record in records} >= left
    assert {message.physical_offset for message in all_messages(reader_of(root))} == left
    assert left <= {message.physical_offset for message in all_messages(reader)}


def test_a_topic_deleted_under_the_reader_reads_as_empty(root: Path, placed: list[AppendedRecord]) -> None:
    reader = reader_of(root)
    shutil.rmtree(root / "consumequeue" / "orders")
    # Files that refresh had open stay readable; the others are gone, and neither raises.
    assert len(list(reader.messages("orders", 0))) in (0, 10)
    reader.refresh()
    assert reader.topics() == ["payments"]


def test_transactions_under_way_are_in_the_log_only(tmp_path: Path) -> None:
    sent = [
        PutMessage("orders", 0, b"half", sys_flag=int(SystemFlag.TRANSACTION_PREPARED)),
        PutMessage("orders", 0, b"whole"),
    ]
    write(tmp_path, sent)
    reader = reader_of(tmp_path)
    assert [message.body for message in reader.messages("orders", 0)] == [b"whole"]
    assert [reader.message_at(r.physical_offset).body for r in reader.records()] == [b"half", b"whole"]


def test_records_larger_than_a_chunk_of_the_scan(tmp_path: Path) -> None:
    settings = StoreSettings(path=tmp_path, commit_log_file_bytes=64 << 20, message_bytes_max=32 << 20)
    store = MessageStore(settings)
    store.open()
    sizes = [10, 9 << 20, 20, 17 << 20, 30]
    put_all(store, [PutMessage("large", 0, bytes(size)) for size in sizes])
    store.close()
    reader = StoreReader(tmp_path)
    assert [record.size for record in reader.records()] == [RECORD_BYTES_MIN + 5 + size for size in sizes]
    assert [len(message.body) for message in reader.messages("large", 0)] == sizes
