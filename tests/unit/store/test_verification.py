"""Verification: a sound store has no findings, and every kind of damage is found where it is."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from skylark.model.message import PutMessage, SystemFlag, encode_properties
from skylark.store.append_result import AppendedRecord
from skylark.store.disk import RealDisk
from skylark.store.index_file import HEADER, ITEM, SLOT, IndexGeometry
from skylark.store.queue_entry import BLANK_ENTRY, ENTRY, ENTRY_BYTES
from skylark.store.store_reader import StoreReader
from skylark.store.verification import FindingKind, Verification, verify
from tests.support.clock import ManualClock
from tests.support.directory import cut, fingerprint, flip, overwrite
from tests.support.store import opened, put_all, small_settings, unpack_golden

LOG_FILE_BYTES = 4096
SLOTS, ITEMS = 16, 24
GEOMETRY = IndexGeometry(SLOTS, ITEMS)
COUNT = 60


def some_messages(count: int = COUNT) -> list[PutMessage]:
    return [
        PutMessage(
            ("orders", "payments")[number % 2],
            number // 2 % 3,
            f"body {number}".encode() * 4,
            encode_properties({"TAGS": f"tag{number % 4}", "KEYS": f"key-{number}"}),
        )
        for number in range(count)
    ]


def write(
    root: Path, messages: list[PutMessage], *, close: bool = True, **changes: object
) -> list[AppendedRecord]:
    clock = ManualClock()
    settings = small_settings(root, **changes)
    with opened(settings, RealDisk(), clock) as store:
        placed = []
        for message in messages:
            clock.advance(700)
            placed += put_all(store, [message])
        if not close:
            store.flush_log()
            shutil.copytree(root, root.with_name("killed"))
    return placed


def check(root: Path, **options: int) -> Verification:
    return verify(StoreReader(root, **({"index_slots": SLOTS, "index_items": ITEMS} | options)))  # type: ignore[arg-type]


def kinds(result: Verification) -> dict[FindingKind, int]:
    return dict(result.by_kind)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def placed(root: Path) -> list[AppendedRecord]:
    return write(root, some_messages())


def log_path(root: Path, physical_offset: int) -> tuple[Path, int]:
    position = physical_offset % LOG_FILE_BYTES
    return root / "commitlog" / f"{physical_offset - position:020d}", position


def index_paths(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


# Sound stores


def test_a_store_of_ours_is_sound(root: Path, placed: list[AppendedRecord]) -> None:
    before = fingerprint(root)
    result = check(root)
    assert result.findings == []
    assert result.is_clean
    counts = result.counts
    assert (counts.records, counts.units, counts.queues) == (COUNT, COUNT, 6)
    assert counts.log_bytes == placed[-1].end
    assert counts.index_items == COUNT
    assert counts.index_files == -(-COUNT // (ITEMS - 1))
    assert (counts.waiting, counts.unindexed, counts.left_over, counts.blank_units) == (0, 0, 0, 0)
    assert result.notes == []
    assert fingerprint(root) == before


@pytest.mark.parametrize("archive", ["clean", "crash", "crc"])
def test_stores_of_apache_are_sound(golden: Path, tmp_path: Path, archive: str) -> None:
    root = unpack_golden(golden, archive, tmp_path)
    before = fingerprint(root)
    result = check(root, index_slots=500, index_items=2000)
    assert result.findings == []
    assert result.counts.index_items == {"clean": 4226, "crash": 4213, "crc": 24}[archive]
    # The killed broker had appended one message that it had not dispatched.
    assert result.counts.waiting == result.counts.unindexed == (archive == "crash")
    assert fingerprint(root) == before


def test_a_store_with_crc_properties_is_sound(root: Path) -> None:
    write(root, some_messages(20), append_crc_property=True)
    assert check(root).findings == []


def test_all_kinds_of_records_are_sound(root: Path) -> None:
    host_v6 = bytes(range(16)) + bytes(4)
    odd = [
        PutMessage("t", 0, b"", encode_properties({"UNIQ_KEY": "u", "KEYS": "a  b c"})),
        PutMessage("t", 0, b"6", born_host=host_v6),
        PutMessage("%RETRY%" + "g" * 150, 0, b"v2", encode_properties({"KEYS": "long"})),
        PutMessage("SCHEDULE_TOPIC_XXXX", 2, b"late", encode_properties({"DELAY": "3"})),
        PutMessage("SCHEDULE_TOPIC_XXXX", 2, b"no level", encode_properties({"TAGS": "x"})),
        PutMessage(
            "t",
            1,
            b"half",
            encode_properties({"KEYS": "half"}),
            sys_flag=int(SystemFlag.TRANSACTION_PREPARED),
        ),
        PutMessage(
            "t", 1, b"no", encode_properties({"KEYS": "no"}), sys_flag=int(SystemFlag.TRANSACTION_ROLLBACK)
        ),
        PutMessage(
            "t", 1, b"yes", encode_properties({"KEYS": "yes"}), sys_flag=int(SystemFlag.TRANSACTION_COMMIT)
        ),
        PutMessage("t", 0, b"\xff\xfe", b"KEYS\x01\xff\xfe\x02TAGS\x01\xff\x02"),
    ]
    write(root, odd * 3)
    assert check(root).findings == []


def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path), RealDisk()):
        pass
    assert check(tmp_path).findings == []


def test_a_store_without_index_is_sound(root: Path) -> None:
    write(root, some_messages(20), index_enabled=False)
    result = check(root)
    assert result.findings == []
    assert result.counts.index_files == result.counts.unindexed == 0


def test_an_index_of_unknown_geometry_is_not_verified_and_said_so(
    root: Path, placed: list[AppendedRecord]
) -> None:
    result = check(root, index_slots=100, index_items=1000)
    assert result.findings == []
    assert "not verified" in result.notes[0]


def test_a_log_whose_first_files_are_cleaned_is_sound(root: Path, placed: list[AppendedRecord]) -> None:
    for start in (0, LOG_FILE_BYTES):
        (root / "commitlog" / f"{start:020d}").unlink()
    result = check(root)
    assert result.findings == []
    assert result.counts.records < COUNT


def test_what_a_killed_store_has_not_dispatched_waits(root: Path) -> None:
    write(root, some_messages(), close=False)
    result = check(root.with_name("killed"))
    assert result.findings == []
    assert result.counts.waiting == COUNT
    assert "not closed" in result.notes[0]


def test_below_the_durable_offset_nothing_waits(root: Path) -> None:
    """The checkpoint says what is on disk, so that even a killed store cannot have lost it."""
    write(root, some_messages())
    (root / "abort").write_bytes(b"1")
    shutil.rmtree(root / "consumequeue" / "orders" / "1")
    assert set(kinds(check(root))) == {FindingKind.QUEUE_MISSING}


def test_a_recovered_store_is_sound_and_tells_what_is_lost(root: Path, placed: list[AppendedRecord]) -> None:
    path, position = log_path(root, placed[20].physical_offset)
    flip(path, position + 90)
    (root / "abort").write_bytes(b"1")
    (root / "checkpoint").unlink()
    with opened(small_settings(root), RealDisk()) as store:
        assert store.report.damages
    result = check(root)
    assert result.findings == []
    assert result.counts.blank_units == 1
    assert "lost" in "".join(result.notes)


def test_records_of_deleted_topics_are_no_findings(root: Path) -> None:
    clock = ManualClock()
    with opened(small_settings(root), RealDisk(), clock) as store:
        put_all(store, some_messages(30))
        store.housekeeper.flush()
        store.housekeeper.delete_topic("orders")
    result = check(root)
    assert result.findings == []
    assert result.counts.left_over == 15
    # Created anew its offsets begin at 0 again: the old records have offsets of the new ones.
    with opened(small_settings(root), RealDisk(), clock) as store:
        put_all(store, [PutMessage("orders", 1, b"new life") for _ in range(3)])
    result = check(root)
    assert result.findings == []
    assert result.counts.left_over == 15


# Every kind of finding


@dataclass(frozen=True)
class Case:
    damage: Callable[[Path, list[AppendedRecord]], object]
    expected: dict[FindingKind, int]
    reason: str


def in_log(change: Callable[[Path, int], object]) -> Callable[[Path, list[AppendedRecord]], object]:
    return lambda root, placed: change(*log_path(root, placed[20].physical_offset))


def in_queue(change: Callable[[Path, int], object]) -> Callable[[Path, list[AppendedRecord]], object]:
    """At the unit of queue offset 3 of orders/0."""
    return lambda root, placed: change(root / "consumequeue" / "orders" / "0" / f"{0:020d}", 3 * ENTRY_BYTES)


def in_index(
    number: int, change: Callable[[Path, int], object]
) -> Callable[[Path, list[AppendedRecord]], object]:
    """At an item of the first index file."""
    return lambda root, placed: change(index_paths(root)[0], GEOMETRY.item_position(number))


def missing_file(root: Path, placed: list[AppendedRecord]) -> None:
    (root / "commitlog" / f"{LOG_FILE_BYTES:020d}").unlink()


def garbage_tail(root: Path, placed: list[AppendedRecord]) -> None:
    path, position = log_path(root, placed[-1].end)
    overwrite(path, position, b"\x00\x00\x00\x64garbage")


def torn_last_record(root: Path, placed: list[AppendedRecord]) -> None:
    path, position = log_path(root, placed[-1].physical_offset)
    overwrite(path, position + 50, bytes(placed[-1].size - 50))


def other_record(root: Path, placed: list[AppendedRecord]) -> None:
    other = placed[1]
    overwrite(
        root / "consumequeue" / "orders" / "0" / f"{0:020d}",
        3 * ENTRY_BYTES,
        ENTRY.pack(other.physical_offset, other.size, other.tags_code),
    )


def empty_slot(root: Path, placed: list[AppendedRecord]) -> None:
    path = index_paths(root)[0]
    data = path.read_bytes()
    used = next(at for at in range(40, 40 + 4 * SLOTS, 4) if data[at : at + 4] != bytes(4))
    overwrite(path, used, bytes(SLOT.size))


def header_field(position: int, layout: str, value: int) -> Callable[[Path, list[AppendedRecord]], object]:
    return lambda root, placed: overwrite(index_paths(root)[0], position, struct.pack(layout, value))


def write_config(name: str, data: bytes) -> Callable[[Path, list[AppendedRecord]], object]:
    def damage(root: Path, placed: list[AppendedRecord]) -> None:
        (root / "config").mkdir()
        (root / "config" / name).write_bytes(data)

    return damage


def longer_index_file(root: Path, placed: list[AppendedRecord]) -> None:
    cut(index_paths(root)[0], GEOMETRY.file_bytes + 1)


def strange_names(root: Path, placed: list[AppendedRecord]) -> None:
    (root / "commitlog" / "notes.txt").write_bytes(b"x")
    (root / "index" / "notes.txt").write_bytes(b"x")
    (root / "consumequeue" / "orders" / "0" / "notes.txt").write_bytes(b"x")


def rocksdb_records(root: Path, _: list[AppendedRecord]) -> None:
    (root / "rocksdbstore").mkdir()
    (root / "rocksdbstore" / "000012.sst").touch()


K = FindingKind
CASES = {
    "body": Case(in_log(lambda path, at: flip(path, at + 90)), {K.RECORD: 1, K.UNIT_WRONG: 1}, "CRC"),
    "magic": Case(in_log(lambda path, at: flip(path, at + 4)), {K.RECORD: 1, K.UNIT_WRONG: 1}, "magic"),
    "size": Case(in_log(lambda path, at: flip(path, at + 1)), {K.RECORD: 1, K.UNIT_WRONG: 1}, "size"),
    "place": Case(
        in_log(lambda path, at: flip(path, at + 35)), {K.RECORD: 1, K.UNIT_WRONG: 0}, "has physical offset"
    ),
    "rocksdb": Case(rocksdb_records, {K.REFUSED: 1}, "timerRocksDBEnable=false"),
    "hole": Case(missing_file, {K.LOG_HOLE: 1, K.UNIT_WRONG: 0}, "missing up to"),
    "tail": Case(garbage_tail, {K.LOG_TAIL: 1}, "bytes behind the last record"),
    "torn": Case(torn_last_record, {K.LOG_TAIL: 1, K.UNIT_WRONG: 1, K.INDEX_ITEM: 1}, "no record"),
    "strange": Case(strange_names, {K.LOG_FILE: 1, K.INDEX_FILE: 1, K.QUEUE_FILE: 1}, "name"),
    "unit-elsewhere": Case(other_record, {K.UNIT_MISSING: 1, K.UNIT_WRONG: 1}, "the record of payments/0"),
    "unit-outside": Case(
        in_queue(lambda path, at: overwrite(path, at, ENTRY.pack(1 << 40, 100, 0))),
        {K.UNIT_MISSING: 1, K.UNIT_WRONG: 1},
        "outside the log",
    ),
    "unit-zero": Case(
        in_queue(lambda path, at: overwrite(path, at, bytes(ENTRY_BYTES))),
        {K.UNIT_MISSING: 0, K.UNIT_WRONG: 0},
        "queue offset 3",
    ),
    "unit-blank": Case(
        in_queue(lambda path, at: overwrite(path, at, BLANK_ENTRY)), {K.UNIT_MISSING: 1}, "does not point to"
    ),
    "unit-size": Case(in_queue(lambda path, at: flip(path, at + 11)), {K.UNIT_WRONG: 1}, "has size"),
    "unit-tags": Case(in_queue(lambda path, at: flip(path, at + 19)), {K.UNIT_WRONG: 1}, "tags code"),
    "queue-short": Case(
        in_queue(lambda path, at: cut(path, 30)), {K.QUEUE_FILE: 1, K.UNIT_MISSING: 10}, "has 30 bytes"
    ),
    "queue-lost": Case(
        lambda root, placed: shutil.rmtree(root / "consumequeue" / "orders" / "0"),
        {K.QUEUE_MISSING: 1},
        "missing; the record",
    ),
    "topic-lost": Case(
        lambda root, placed: shutil.rmtree(root / "consumequeue" / "orders"),
        {K.QUEUE_MISSING: 3},
        "missing; the record",
    ),
    "item-hash": Case(
        in_index(3, lambda path, at: overwrite(path, at, struct.pack(">i", 5))),
        {K.INDEX_ITEM: 1, K.INDEX_KEY: 1, K.INDEX_CHAIN: 0},
        "key-2",
    ),
    "item-offset": Case(
        in_index(3, lambda path, at: flip(path, at + 11)),
        {K.INDEX_ITEM: 0, K.INDEX_KEY: 0},
        "item 3",
    ),
    "item-time": Case(
        in_index(3, lambda path, at: overwrite(path, at + 12, struct.pack(">i", 999))),
        {K.INDEX_ITEM: 1},
        "999 s after",
    ),
    "item-chain": Case(
        in_index(3, lambda path, at: overwrite(path, at + 16, struct.pack(">i", 2))),
        {K.INDEX_CHAIN: 1},
        "item 3 points to item 2",
    ),
    "slot": Case(empty_slot, {K.INDEX_CHAIN: 1}, "points to item 0"),
    "slots-used": Case(header_field(32, ">i", 1), {K.INDEX_CHAIN: 1}, "counts 1 slots"),
    "index-header": Case(header_field(36, ">i", ITEMS + 1), {K.INDEX_FILE: 1}, f"counts {ITEMS + 1} items"),
    "index-length": Case(longer_index_file, {K.INDEX_FILE: 1}, "bytes instead of"),
    "checkpoint-short": Case(
        lambda root, placed: cut(root / "checkpoint", 100), {K.CHECKPOINT: 1}, "has 100 bytes"
    ),
    "checkpoint-lost": Case(
        lambda root, placed: (root / "checkpoint").unlink(), {K.CHECKPOINT: 1}, "missing"
    ),
    "checkpoint-wild": Case(
        lambda root, placed: overwrite(root / "checkpoint", 0, struct.pack(">qqqqq", -1, 0, 0, 0, 1 << 60)),
        {K.CHECKPOINT: 2},
        "outside the log",
    ),
    "config": Case(write_config("topics.json", b'{"a":}'), {K.CONFIG: 1}, "expected"),
    "config-empty": Case(write_config("consumerOffset.json", b""), {K.CONFIG: 1}, ""),
}


@pytest.mark.parametrize("name", CASES)
def test_damage_is_found(root: Path, placed: list[AppendedRecord], name: str) -> None:
    """Zero in the expectation: at least one."""
    case = CASES[name]
    case.damage(root, placed)
    before = fingerprint(root)
    result = check(root)
    found = kinds(result)
    assert not result.is_clean
    assert found.keys() == case.expected.keys(), result.findings
    for kind, count in case.expected.items():
        assert found[kind] == count or count == 0, (kind, result.findings)
    assert any(case.reason in str(finding) for finding in result.findings), result.findings
    assert result.total == len(result.findings)
    assert all(finding.path.is_relative_to(root) for finding in result.findings)
    assert fingerprint(root) == before


def test_every_kind_of_finding_is_provoked() -> None:
    provoked = {kind for case in CASES.values() for kind in case.expected}
    assert provoked | {FindingKind.CRC_PROPERTY} == set(FindingKind)


def test_a_finding_says_where(root: Path, placed: list[AppendedRecord]) -> None:
    path, position = log_path(root, placed[20].physical_offset)
    flip(path, position + 90)
    result = check(root)
    record, unit = result.findings
    assert (record.kind, record.path, record.position) == (FindingKind.RECORD, path, position)
    queue = placed[20].queue
    at = placed[20].queue_offset * ENTRY_BYTES
    assert (unit.path, unit.position) == (queue.directory / f"{at - at % 200:020d}", at % 200)
    assert str(placed[20].physical_offset) in unit.reason


def test_a_wrong_crc_property_is_found(root: Path) -> None:
    """Only it covers head and properties: the body's CRC does not see this."""
    placed = write(root, some_messages(20), append_crc_property=True)
    path, position = log_path(root, placed[5].physical_offset)
    flip(path, position + 47)  # born timestamp
    result = check(root)
    assert kinds(result) == {FindingKind.CRC_PROPERTY: 1}
    assert (result.findings[0].path, result.findings[0].position) == (path, position)


def test_a_queue_file_behind_a_gap_is_found(root: Path) -> None:
    write(root, some_messages(300))
    (root / "consumequeue" / "orders" / "0" / f"{400:020d}").unlink()
    result = check(root)
    assert result.by_kind[FindingKind.QUEUE_FILE] == 2
    assert result.by_kind[FindingKind.UNIT_MISSING] == 30
    assert set(kinds(result)) == {FindingKind.QUEUE_FILE, FindingKind.UNIT_MISSING}


def test_damage_behind_the_last_unit_does_not_hide_what_follows(root: Path) -> None:
    """A killed store: nothing is in the queues, one record is damaged, the ones behind it are looked at."""
    placed = write(root, some_messages(), close=False)
    killed = root.with_name("killed")
    path, position = log_path(killed, placed[20].physical_offset)
    flip(path, position + 90)
    result = check(killed)
    assert kinds(result) == {FindingKind.RECORD: 1}
    assert result.counts.records == COUNT - 1


def test_an_index_that_ends_early_is_out_of_range_not_wrong(root: Path, placed: list[AppendedRecord]) -> None:
    index_paths(root)[-1].unlink()
    result = check(root)
    assert result.findings == []
    assert result.counts.unindexed == COUNT - 2 * (ITEMS - 1)


def test_an_index_file_missing_in_the_middle_is_found_key_by_key(
    root: Path, placed: list[AppendedRecord]
) -> None:
    index_paths(root)[1].unlink()
    assert kinds(check(root)) == {FindingKind.INDEX_KEY: ITEMS - 1}


def test_a_torn_item_cannot_be_hidden_by_the_header(root: Path, placed: list[AppendedRecord]) -> None:
    overwrite(index_paths(root)[0], GEOMETRY.item_position(3), bytes(ITEM.size))
    found = kinds(check(root))
    assert {FindingKind.INDEX_ITEM, FindingKind.INDEX_KEY} <= found.keys()


def test_a_running_stores_slots_may_be_ahead_of_its_header(root: Path, placed: list[AppendedRecord]) -> None:
    newest = index_paths(root)[-1]
    header = HEADER.unpack_from(newest.read_bytes())
    count = header[5]
    _, physical_offset, _, _ = ITEM.unpack_from(newest.read_bytes(), GEOMETRY.item_position(count - 2))
    earlier = (*header[:3], physical_offset, header[4], count - 1)
    overwrite(newest, 0, HEADER.pack(*earlier))
    assert FindingKind.INDEX_CHAIN in kinds(check(root))
    (root / "abort").write_bytes(b"1")
    assert check(root).findings == []


# Progress and limits


def test_progress_goes_up_to_the_whole_log(root: Path, placed: list[AppendedRecord]) -> None:
    told: list[tuple[int, int]] = []
    reader = StoreReader(root, index_slots=SLOTS, index_items=ITEMS)
    verify(reader, progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, placed[-1].end)
    assert told[-1] == (placed[-1].end, placed[-1].end)
    assert told == sorted(told)


def test_findings_are_counted_beyond_those_kept(root: Path, placed: list[AppendedRecord]) -> None:
    for queue in (root / "consumequeue").rglob("0*"):
        if queue.is_file():
            overwrite(queue, 0, BLANK_ENTRY * 5)
    reader = StoreReader(root, index_slots=SLOTS, index_items=ITEMS)
    result = verify(reader, findings_max=7)
    assert len(result.findings) == 7
    assert result.total == 30
