"""Opening what a crash, a bad disk or a clumsy hand left: nothing good is lost, nothing bad is hidden."""

from __future__ import annotations

import random
from typing import Any

import pytest

from skylark.clock import Clock
from skylark.errors import BadStoreFile
from skylark.model.message import SystemFlag
from skylark.model.record import BLANK, MAGIC_BLANK, RECORD_BYTES_MIN, Scan, decode
from skylark.settings import FlushMode, StoreSettings
from skylark.store import log_scan, recovery
from skylark.store.checkpoint import MANIFEST_FILE_NAMES, Checkpoint, CheckpointFile
from skylark.store.commit_log import IN_NO_TEXT
from skylark.store.log_scan import LogWalk
from skylark.store.mapped_file import file_name
from skylark.store.message_store import MessageStore
from skylark.store.recovery import DAMAGED_DIRECTORY, FILLER_TOPIC, filler_for
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

FILE_BYTES = 4096
LOG = ROOT / "commitlog"
QUEUE = ROOT / "consumequeue" / "T" / "0"


@pytest.fixture
def disk() -> SimulatedDisk:
    return simulated_disk(ManualClock())


def log_file(start: int) -> Any:
    return LOG / file_name(start)


def put_numbered(store: MessageStore, clock: Clock, count: int, size: int) -> None:
    assert isinstance(clock, ManualClock)
    for number in range(count):
        put_all(store, [sized(size, fill=b"%04d" % number)])
        clock.advance(7)


def fill(disk: SimulatedDisk, count: int = 12, size: int = 1000, **changes: Any) -> None:
    """A store with so many numbered messages, closed in order."""
    with opened(small_settings(**changes), disk, disk.clock) as store:
        put_numbered(store, disk.clock, count, size)


def killed(disk: SimulatedDisk, count: int = 12, size: int = 1000, **changes: Any) -> SimulatedDisk:
    """The same, but its process ended without a word."""
    store = MessageStore(small_settings(**changes), disk=disk, clock=disk.clock)
    store.open()
    put_numbered(store, disk.clock, count, size)
    image = disk.kill_image()
    store.close()
    return image


def numbers(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[int]:
    """Which of the numbered messages are there."""
    return [int(body[:4]) for body in bodies(store, topic, queue_id)]


def check_usable(disk: SimulatedDisk, settings: StoreSettings | None = None) -> None:
    """The next start finds nothing to repair and everything that was there."""
    with opened(settings, disk, disk.clock) as store:
        before = read_queue(store)
        end = store.max_offset("T", 0)
        assert placed(store.append([message(body=b"9999")])[0]).queue_offset == end
    with opened(settings, disk, disk.clock) as store:
        assert store.report.problems == []
        assert store.report.damages == []
        assert read_queue(store)[:-1] == before
        assert bodies(store)[-1] == b"9999"


# Orderly and disorderly ends


def test_after_an_orderly_end_nothing_is_scanned(disk: SimulatedDisk) -> None:
    fill(disk)
    assert not disk.exists(ROOT / "abort")
    with opened(disk=disk) as store:
        report = store.report
        assert report.clean_exit
        assert (report.records, report.problems, report.damages) == (0, [], [])
        assert report.scanned_from == report.end == store.appended_offset
        assert disk.exists(ROOT / "abort")
        assert numbers(store) == list(range(12))


def test_an_empty_directory(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        assert store.report.clean_exit
        assert (store.appended_offset, store.topics()) == (0, [])
    check_usable(disk)


def test_after_a_kill_everything_is_still_there(disk: SimulatedDisk) -> None:
    image = killed(disk)
    assert image.exists(ROOT / "abort")
    with opened(disk=image) as store:
        assert not store.report.clean_exit
        assert store.report.records == 12
        assert numbers(store) == list(range(12))
    check_usable(image)


@pytest.mark.parametrize("keys", ["a\0b", "\0ab", "ab\0", "\0" * 20])
@pytest.mark.parametrize("before", [0, 380, 390, 400])
def test_zeros_in_properties_are_no_torn_write_unless_they_look_like_one(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch, keys: str, before: int
) -> None:
    """The reference takes them. A sector's edge, at 512 bytes, lies before, in and behind the text."""
    store = MessageStore(small_settings(), disk=disk, clock=disk.clock)
    store.open()
    monkeypatch.setattr(store.log, "_forbidden", IN_NO_TEXT)
    put_all(store, [message(body=bytes(before), keys=keys), message(body=b"next")])
    with opened(disk=disk.kill_image()) as again:
        assert again.report.damages == []
        assert [len(body) for body in bodies(again)] == [before, 4]
    store.close()


def test_only_what_may_not_be_durable_is_scanned_again(disk: SimulatedDisk) -> None:
    store = MessageStore(small_settings(), disk=disk, clock=disk.clock)
    store.open()
    put_all(store, [sized(1000, fill=b"%04d" % number) for number in range(8)])
    store.flush_log()
    store.build_index()
    store.housekeeper.flush()
    durable = store.appended_offset
    put_all(store, [sized(1000, fill=b"%04d" % number) for number in range(8, 12)])
    image = disk.kill_image()
    store.close()
    with opened(disk=image) as again:
        assert (again.report.scanned_from, again.report.records) == (durable, 4)
        assert numbers(again) == list(range(12))


@pytest.mark.parametrize("seed", range(10))
def test_after_a_power_loss_everything_flushed_is_there(disk: SimulatedDisk, seed: int) -> None:
    store = MessageStore(small_settings(flush_mode=FlushMode.SYNC), disk=disk, clock=disk.clock)
    store.open()
    for number in range(10):
        store.put(sized(1000, fill=b"%04d" % number))
    store.append([sized(1000, fill=b"%04d" % number) for number in range(10, 14)])
    image = disk.crash_image(random.Random(seed))
    store.close()
    with opened(disk=image) as again:
        found = numbers(again)
        assert found[:10] == list(range(10))
        assert found == list(range(len(found)))
        assert again.flushed_offset == again.appended_offset
    check_usable(image)


@pytest.mark.parametrize("mode", list(FlushMode))
def test_what_was_found_after_a_kill_outlives_a_power_loss(disk: SimulatedDisk, mode: FlushMode) -> None:
    """Whatever recovery shows again is durable then, even if the killed process had only written it."""
    settings = small_settings(flush_mode=mode)
    store = MessageStore(settings, disk=disk, clock=disk.clock)
    store.open()
    for number in range(60):
        store.append([message(body=b"%04d" % number + bytes(100), keys=f"k{number}")])
        if number == 50:
            store.flusher.flushed = store.appended_offset  # as if, so that queues and index are written
            store.advance()
            store.build_index()
            store.housekeeper._write_queues(everything=True)
            assert store.index is not None
            store.index.flush()
    image = disk.kill_image()
    store.close()
    again = MessageStore(settings, disk=image, clock=disk.clock)
    again.open()
    for seed in range(8):
        with opened(settings, image.crash_image(random.Random(seed))) as last:
            assert numbers(last) == list(range(60))
            for number in range(60):
                assert len(last.messages_by_key("T", f"k{number}")) == 1, number
    again.close()


def test_store_times_go_on_where_they_were(disk: SimulatedDisk) -> None:
    fill(disk)
    clock = ManualClock(1000)
    with opened(disk=disk, clock=clock) as store:
        assert placed(store.append([message()])[0]).store_timestamp == disk.clock.now_ms() - 7


# The log's tail


@pytest.mark.parametrize("keep", [0, 3, 4, 8, 91, 500, 990])
def test_a_torn_record_at_the_end_is_cut_off(disk: SimulatedDisk, keep: int) -> None:
    image = killed(disk)
    last = 2 * FILE_BYTES + 3000
    data = image.content(log_file(2 * FILE_BYTES))[3000 : 3000 + keep]
    image.overwrite(log_file(2 * FILE_BYTES), 3000, data + bytes(1000 - keep))
    with opened(disk=image) as store:
        assert store.report.end == store.appended_offset == last
        assert numbers(store) == list(range(11))
        if any(data):
            assert any(f"log cut at {last}" in problem for problem in store.report.problems)
            aside = image.content(ROOT / DAMAGED_DIRECTORY / f"{last:020d}")
            assert data.startswith(aside[:3])
        assert placed(store.append([message(body=b"0011")])[0]).queue_offset == 11
    check_usable(image)


@pytest.mark.parametrize("garbage", [b"\xff" * 500, b"\xda\xa3\x20\xa7" * 100, bytes(range(256))])
def test_garbage_at_the_end_is_cut_off(disk: SimulatedDisk, garbage: bytes) -> None:
    image = killed(disk, 10)
    end = 2 * FILE_BYTES + 2000
    image.overwrite(log_file(2 * FILE_BYTES), 2000, garbage)
    with opened(disk=image) as store:
        assert store.appended_offset == end
        assert numbers(store) == list(range(10))
        assert any("log cut" in problem for problem in store.report.problems)
        assert image.content(ROOT / DAMAGED_DIRECTORY / f"{end:020d}") == garbage.rstrip(b"\0")
        # Nothing of it may come back to life behind what is stored next.
        assert image.content(log_file(2 * FILE_BYTES))[2000:] == bytes(FILE_BYTES - 2000)
    check_usable(image)


def test_old_records_behind_the_end_never_come_back(disk: SimulatedDisk) -> None:
    """Whole, valid records that lie where they say, but behind the log's end, from an earlier life."""
    image = killed(disk)
    image.overwrite(
        log_file(FILE_BYTES), 0, bytes(1000)
    )  # a torn record in the middle, as a crash may leave it
    with opened(disk=image) as store:
        assert numbers(store)[:4] == [0, 1, 2, 3]
        lost = sorted(set(range(12)) - set(numbers(store)))
        assert lost == [4]
        assert [damage.physical_from for damage in store.report.damages] == [FILE_BYTES]
    check_usable(image)


def test_a_file_made_ahead_of_need_goes(disk: SimulatedDisk) -> None:
    store = MessageStore(small_settings(), disk=disk, clock=disk.clock)
    store.open()
    put_all(store, [sized(1000, fill=b"%04d" % number) for number in range(3)])
    store.log.prepare_next()
    image = disk.kill_image()
    store.close()
    assert image.files(LOG) == [file_name(0), file_name(FILE_BYTES)]
    with opened(disk=image) as again:
        assert image.files(LOG) == [file_name(0)]
        assert again.report.problems == []
        assert numbers(again) == [0, 1, 2]


def test_an_empty_last_file_goes(disk: SimulatedDisk) -> None:
    fill(disk, 3)
    disk.create(log_file(FILE_BYTES), 0)
    with opened(disk=disk) as store:
        assert numbers(store) == [0, 1, 2]
        assert disk.files(LOG) == [file_name(0)]


# Damage in the middle


@pytest.mark.parametrize("clean", [True, False])
def test_a_record_that_fails_its_crc_is_told_and_its_neighbours_stay(
    disk: SimulatedDisk, clean: bool
) -> None:
    if clean:
        fill(disk)
        disk.lose(ROOT / "consumequeue")  # so that the log is read again
        image = disk
    else:
        image = killed(disk)
    image.flip_bit(log_file(FILE_BYTES), 1000 + 500)
    before = image.content(log_file(FILE_BYTES))[1000:2000]
    with opened(disk=image) as store:
        (damage,) = store.report.damages
        assert (damage.physical_from, damage.physical_to) == (FILE_BYTES + 1000, FILE_BYTES + 2000)
        assert damage.reason == "body CRC"
        assert damage.lost == ("T", 0, 6)
        assert str(damage) in store.report.problems
        assert numbers(store) == [0, 1, 2, 3, 4, *range(6, 12)]
        assert store.max_offset("T", 0) == 12
        assert image.content(ROOT / DAMAGED_DIRECTORY / f"{FILE_BYTES + 1000:020d}") == before
        # In its place there is now a record that readers, ours and others', step over.
        filler = decode(image.content(log_file(FILE_BYTES)), 1000)
        assert (filler.topic, filler.size) == (FILLER_TOPIC, 1000)
        times = [record.store_timestamp for record in LogWalk(store.log, 0)]
        assert times == sorted(times)
    check_usable(image)


def test_a_damaged_record_at_a_files_end_becomes_a_blank(disk: SimulatedDisk) -> None:
    image = killed(disk)
    image.flip_bit(log_file(0), 3500)
    with opened(disk=image) as store:
        assert numbers(store) == [0, 1, 2, *range(4, 12)]
        content = image.content(log_file(0))
        records = list(Scan(content, 0, FILE_BYTES))
        assert len(records) in (3, 4)
        assert store.max_offset("T", 0) == 12
    check_usable(image)


def test_a_wiped_stretch_is_stepped_over(disk: SimulatedDisk) -> None:
    image = killed(disk, 60, 200)
    image.overwrite(log_file(FILE_BYTES), 500, bytes(1000))
    with opened(disk=image) as store:
        assert len(store.report.damages) == 1
        found = numbers(store)
        lost = set(range(60)) - set(found)
        assert lost == {22, 23, 24, 25, 26, 27}
        assert store.max_offset("T", 0) == 60
    check_usable(image)


def test_damage_too_small_for_a_record_is_left_as_it_is() -> None:
    assert filler_for(0, RECORD_BYTES_MIN, FILE_BYTES, 1) is None
    size = RECORD_BYTES_MIN + len(FILLER_TOPIC)
    assert filler_for(0, size - 1, FILE_BYTES, 1) is None
    assert len(filler_for(0, size, FILE_BYTES, 1) or b"") == size


def test_fillers_are_seen_by_nobody() -> None:
    filler = filler_for(100, 600, FILE_BYTES, 77)
    assert filler is not None
    (record,) = Scan(filler, 100, FILE_BYTES)
    assert (record.physical_offset, record.size, record.store_timestamp) == (100, 500, 77)
    assert record.sys_flag & SystemFlag.TRANSACTION_ROLLBACK == SystemFlag.TRANSACTION_ROLLBACK
    assert filler_for(4000, FILE_BYTES, FILE_BYTES, 77) == BLANK.pack(96, MAGIC_BLANK)
    assert filler_for(4090, FILE_BYTES, FILE_BYTES, 77) is None


# Missing and wrong files of the log


def test_a_missing_file_in_the_middle_is_told_and_the_rest_is_served(disk: SimulatedDisk) -> None:
    image = killed(disk)
    image.lose(log_file(FILE_BYTES))
    with opened(disk=image) as store:
        assert f"commit log files from {FILE_BYTES} to {2 * FILE_BYTES} are missing" in store.report.problems
        assert numbers(store) == [0, 1, 2, 3, 8, 9, 10, 11]
        assert store.max_offset("T", 0) == 12
        assert placed(store.append([message()])[0]).queue_offset == 12


def test_missing_first_files_mean_a_log_that_begins_later(disk: SimulatedDisk) -> None:
    image = killed(disk)
    image.lose(log_file(0))
    with opened(disk=image) as store:
        assert store.log.min_offset == FILE_BYTES
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (4, 12)
        assert numbers(store) == list(range(4, 12))
    check_usable(image)


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_last_file_is_told_and_its_offsets_are_not_given_out_again(
    disk: SimulatedDisk, clean: bool
) -> None:
    fill(disk)
    if not clean:
        disk.create(ROOT / "abort", 1)
    disk.lose(log_file(2 * FILE_BYTES))
    with opened(disk=disk) as store:
        assert numbers(store) == list(range(8))
        assert any("lost" in problem or "the log ends" in problem for problem in store.report.problems)
        assert placed(store.append([message(body=b"9999")])[0]).queue_offset == 12
        assert numbers(store) == [*range(8), 9999]


def test_a_log_that_is_gone_altogether(disk: SimulatedDisk) -> None:
    fill(disk)
    disk.lose(LOG)
    with opened(disk=disk) as store:
        assert numbers(store) == []
        assert store.report.problems
        assert placed(store.append([message(body=b"9999")])[0]).queue_offset == 12


def test_a_short_file_is_scanned_as_far_as_it_goes(disk: SimulatedDisk) -> None:
    image = killed(disk)
    image.cut(log_file(2 * FILE_BYTES), 2500)
    with opened(disk=image) as store:
        assert numbers(store) == list(range(10))
        assert image.length(log_file(2 * FILE_BYTES)) == FILE_BYTES
        assert any("has 2500 bytes instead of 4096" in problem for problem in store.report.problems)
    check_usable(image)


@pytest.mark.parametrize("setting", [5000, 8192, 65536])
def test_files_of_another_size_are_not_touched(disk: SimulatedDisk, setting: int) -> None:
    fill(disk)
    before = {path: disk.content(path) for path in disk.paths(LOG)}
    store = MessageStore(small_settings(commit_log_file_bytes=setting), disk=disk)
    with pytest.raises(BadStoreFile, match=f"but commit_log_file_bytes is {setting}"):
        store.open()
    assert {path: disk.content(path) for path in disk.paths(LOG)} == before
    # The lock is free again.
    with opened(disk=disk) as right:
        assert numbers(right) == list(range(12))


def test_files_that_all_have_another_size_are_not_touched(disk: SimulatedDisk) -> None:
    """Their names would fit, but where a file's end is looked for there is none."""
    for start in (0, 8192, 16384):
        disk.create(log_file(start), 8192)
    store = MessageStore(small_settings(), disk=disk)
    with pytest.raises(BadStoreFile, match="has 8192 bytes, but commit_log_file_bytes is 4096"):
        store.open()
    for start in (0, 8192, 16384):
        disk.cut(log_file(start), 2048)
    with pytest.raises(BadStoreFile, match="has 2048 bytes, but commit_log_file_bytes is 4096"):
        store.open()


def test_files_without_a_byte_are_what_a_crash_left(disk: SimulatedDisk) -> None:
    disk.create(log_file(0), 0)
    disk.create(log_file(FILE_BYTES), 0)
    disk.create(ROOT / "abort", 1)
    with opened(disk=disk) as store:
        assert store.appended_offset == 0
    check_usable(disk)


def test_a_longer_file_is_not_touched(disk: SimulatedDisk) -> None:
    fill(disk)
    disk.cut(log_file(FILE_BYTES), FILE_BYTES + 1)
    store = MessageStore(small_settings(), disk=disk)
    with pytest.raises(BadStoreFile, match="has 4097 bytes"):
        store.open()


def test_what_does_not_belong_into_the_log_is_told(disk: SimulatedDisk) -> None:
    fill(disk)
    disk.create(LOG / "readme", 5)
    with opened(disk=disk) as store:
        assert any("readme" in problem for problem in store.report.problems)
        assert numbers(store) == list(range(12))
    assert disk.exists(LOG / "readme")


# Queues, index, checkpoint


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "lost", [QUEUE, QUEUE / file_name(0), QUEUE / file_name(200), ROOT / "consumequeue", ROOT / "index",
             ROOT / "checkpoint", *(ROOT / name for name in MANIFEST_FILE_NAMES)],
    ids=lambda path: "-".join(path.parts[2:]),
)  # fmt: skip
def test_what_is_derived_is_built_again(disk: SimulatedDisk, lost: Any, clean: bool) -> None:
    with opened(disk=disk) as store:
        put_all(store, [message(body=b"%04d" % number, keys=f"k{number}") for number in range(25)])
        put_all(store, [message("other", body=b"%04d" % number) for number in range(3)])
    if not clean:
        disk.create(ROOT / "abort", 1)
    disk.lose(lost)
    with opened(disk=disk) as store:
        assert numbers(store) == list(range(25))
        assert numbers(store, "other") == [0, 1, 2]
        store.build_index()
        for number in range(25):
            assert [each.body for each in store.messages_by_key("T", f"k{number}")] == [b"%04d" % number]
        if lost.name in ("0", file_name(0), file_name(200), "consumequeue"):
            assert any("T/0 lost files" in problem for problem in store.report.problems)
    check_usable(disk)


@pytest.mark.parametrize("clean", [True, False])
def test_a_short_queue_file_is_built_again(disk: SimulatedDisk, clean: bool) -> None:
    fill(disk, 25, 200)
    if not clean:
        disk.create(ROOT / "abort", 1)
    disk.cut(QUEUE / file_name(0), 111)
    with opened(disk=disk) as store:
        assert numbers(store) == list(range(25))
        assert any("111 bytes" in problem for problem in store.report.problems)
    check_usable(disk)


def test_a_queue_that_knows_more_than_the_log_is_cut(disk: SimulatedDisk) -> None:
    image = killed(disk, 12)
    image.overwrite(log_file(2 * FILE_BYTES), 0, bytes(FILE_BYTES))
    with opened(disk=image) as store:
        assert numbers(store) == list(range(8))
        assert store.max_offset("T", 0) == 8
        assert placed(store.append([message(body=b"0008")])[0]).queue_offset == 8
    check_usable(image)


def test_without_our_mark_the_checkpoints_times_decide(disk: SimulatedDisk) -> None:
    """As after the reference has written the directory: its checkpoint has no durable offset."""
    clock = ManualClock()
    with opened(disk=disk, clock=clock) as store:
        for number in range(12):
            put_all(store, [sized(1000, fill=b"%04d" % number)])
            clock.advance(10_000)
    disk.create(ROOT / "abort", 1)
    for stored, scanned_from in ((0, 0), (45_000, FILE_BYTES), (100_000, 2 * FILE_BYTES)):
        timestamp = ManualClock().now_ms() + stored
        checkpoint = Checkpoint(timestamp, timestamp, 0, 0, 0)
        CheckpointFile(disk, ROOT / "checkpoint").save(checkpoint)
        disk.create(ROOT / "abort", 1)
        with opened(small_settings(index_enabled=False), disk, clock) as store:
            assert store.report.scanned_from == scanned_from
            assert numbers(store) == list(range(12))


def test_a_queue_that_misses_units_is_built_again_from_the_beginning(disk: SimulatedDisk) -> None:
    """Without our list of queues, a lost one shows only when one of its records is met."""
    clock = ManualClock()
    settings = small_settings(index_enabled=False)
    with opened(settings, disk, clock) as store:
        for number in range(12):
            put_all(store, [sized(900, fill=b"%04d" % number), message("other")])
            clock.advance(10_000)
        timestamp = store.log.last_timestamp
    CheckpointFile(disk, ROOT / "checkpoint").save(Checkpoint(timestamp, timestamp, 0, 0, 0))
    disk.create(ROOT / "abort", 1)
    disk.lose(QUEUE)
    with opened(settings, disk, clock) as store:
        assert store.report.scanned_from > 0
        assert store.report.rebuilt_queues == ["T/0"]
        assert numbers(store) == list(range(12))
        assert len(bodies(store, "other")) == 12


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_damaged_index_file_is_told_and_built_again(disk: SimulatedDisk, number: int, clean: bool) -> None:
    with opened(disk=disk) as store:
        put_all(store, [message(body=b"%04d" % each, keys=f"k{each}") for each in range(60)])
        store.build_index()
    paths = disk.paths(ROOT / "index")
    assert len(paths) == 3
    disk.overwrite(paths[number], 16, b"\x7f" * 16)
    if not clean:
        disk.create(ROOT / "abort", 1)
    with opened(disk=disk) as store:
        assert any("index" in problem for problem in store.report.problems)
        store.build_index()
        for each in range(60):
            assert [found.body for found in store.messages_by_key("T", f"k{each}")] == [b"%04d" % each]
    check_usable(disk)


@pytest.mark.parametrize("leftover", ["nothing", "old units", "no units"])
def test_a_deleted_topic_stays_deleted_and_its_successor_stays(disk: SimulatedDisk, leftover: str) -> None:
    store = MessageStore(small_settings(), disk=disk, clock=disk.clock)
    store.open()
    put_all(store, [message("a", body=b"old") for _ in range(5)] + [message("b", body=b"kept")])
    store.flush_log()
    store.build_index()
    store.housekeeper.flush()
    path = ROOT / "consumequeue" / "a" / "0" / file_name(0)
    old_units = disk.content(path)
    store.housekeeper.delete_topic("a")
    put_all(store, [message("a", body=b"new"), message("a", body=b"newer")])
    image = disk.kill_image()
    store.close()
    if leftover == "old units":  # as if the deletion had not reached the medium
        image.create(path, len(old_units)).write([old_units], 0)
    elif leftover == "no units":
        image.lose(ROOT / "consumequeue")
    with opened(disk=image) as again:
        assert bodies(again, "a") == [b"new", b"newer"]
        assert [each.queue_offset for each in read_queue(again, "a")] == [0, 1]
        assert bodies(again, "b") == [b"kept"]
    check_usable(image)


# What the log says


def test_topics_that_cannot_be_stored_are_told_and_left(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        put_all(store, [message("aaaa", body=b"bad"), message(body=b"0001")])
    data = disk.content(log_file(0))
    disk.overwrite(log_file(0), data.index(b"aaaa"), b"../x")
    for name in ("consumequeue", *MANIFEST_FILE_NAMES):
        disk.lose(ROOT / name)
    with opened(disk=disk) as store:
        assert numbers(store) == [1]
        assert any("invalid queue" in problem for problem in store.report.problems)
        assert store.topics() == ["T"]
        assert store.message_at(0).topic == "../x"


def test_the_crc_property_can_be_demanded(disk: SimulatedDisk) -> None:
    settings = small_settings(append_crc_property=True, verify_crc_property=True)
    with opened(settings, disk) as store:
        put_all(store, [message(body=b"%04d" % number, tags="TagA") for number in range(5)])
    disk.create(ROOT / "abort", 1)
    disk.lose(ROOT / "consumequeue")
    data = disk.content(log_file(0))
    disk.overwrite(
        log_file(0), data.index(b"TagA"), b"TagX"
    )  # in the properties, which BODYCRC does not cover
    with opened(settings, disk) as store:
        assert numbers(store) == [1, 2, 3, 4]
        assert [damage.reason for damage in store.report.damages] == ["CRC property"]


def test_a_long_replay_writes_as_it_goes(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "WRITE_EVERY_BYTES", 2000)
    monkeypatch.setattr(recovery, "INDEX_PENDING_MAX", 3)
    with opened(disk=disk) as store:
        put_all(store, [message(body=b"%04d" % number, keys=f"k{number}") for number in range(40)])
    disk.lose(ROOT / "consumequeue")
    disk.lose(ROOT / "index")
    with opened(disk=disk) as store:
        assert numbers(store) == list(range(40))
        assert [each.body for each in store.messages_by_key("T", "k17")] == [b"0017"]


# Walking


def test_a_walk_goes_over_blanks_and_files(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_scan, "SCAN_BYTES", 300)  # smaller than a record
    with opened(disk=disk) as store:
        results = put_all(store, [sized(1000) for _ in range(10)])
        walk = LogWalk(store.log, 0)
        assert [record.physical_offset for record in walk] == [each.physical_offset for each in results]
        assert walk.end == store.appended_offset
        assert walk.damages == []


def test_a_walk_can_begin_anywhere_a_record_does(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        results = put_all(store, [sized(1000) for _ in range(10)])
        walk = LogWalk(store.log, results[3].physical_offset)
        assert [record.queue_offset for record in walk] == list(range(3, 10))
        at_end = LogWalk(store.log, store.appended_offset)
        assert list(at_end) == []
        assert at_end.end == store.appended_offset


def test_a_walk_that_stops_at_damage(disk: SimulatedDisk) -> None:
    with opened(disk=disk) as store:
        put_all(store, [sized(1000) for _ in range(10)])
        disk.flip_bit(log_file(0), 2500)
        walk = LogWalk(store.log, 0, step_over_damage=False)
        assert [record.queue_offset for record in walk] == [0, 1]
        assert (walk.end, walk.stopped) == (2000, "body CRC")


def test_a_walk_never_reads_behind_the_end(disk: SimulatedDisk) -> None:
    """A record of which the last bytes are still to come may look whole: zeros stand for the rest."""
    with opened(disk=disk) as store:
        whole = placed(store.append([message(tags="TagA", body=b"body")])[0])
        data = store.read_log(0, whole.end)
    with opened(disk=simulated_disk()) as replica:
        for length in range(whole.size):
            replica.append_raw(length, data[length : length + 1])
            assert replica.max_offset("T", 0) == (1 if length == whole.size - 1 else 0)
        assert replica.queue("T", 0).entry(0) == (0, whole.size, 2598919)
