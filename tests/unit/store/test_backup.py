"""Backups: of closed and open stores, again and again, broken off, and where none can be."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skylark.errors import BadStoreFile, MissingFile
from skylark.store.backup import BackupRefused, back_up
from skylark.store.disk import RealDisk
from skylark.store.message_store import MessageStore
from skylark.store.store_reader import StoreReader
from skylark.store.verification import verify
from tests.support.clock import ManualClock
from tests.support.directory import fingerprint
from tests.support.store import (
    bodies,
    golden_settings,
    message,
    put_all,
    small_settings,
    unpack_golden,
)

GOLDEN = Path(__file__).parents[2] / "golden"
HOUR_MS = 3_600_000


def store_at(path: Path, **changes: Any) -> MessageStore:
    """An open store on the real disk, without threads; its clock is an hour ahead of the files'."""
    clock = ManualClock(time.time_ns() // 1_000_000 + HOUR_MS)
    store = MessageStore(small_settings(path, **changes), disk=RealDisk(), clock=clock)
    store.open()
    return store


def fill(store: MessageStore, count: int, first: int = 0, topic: str = "T") -> list[bytes]:
    """Messages over two queues; their bodies, of queue 0 and then of queue 1."""
    numbers = range(first, first + count)
    put_all(
        store,
        [
            message(topic, number % 2, f"{topic}-{number}".encode() + bytes(100), keys=f"k{number}", tags="a")
            for number in numbers
        ],
    )
    return [f"{topic}-{number}".encode() + bytes(100) for number in sorted(numbers, key=lambda n: (n % 2, n))]


def both(store: MessageStore, topic: str = "T") -> list[bytes]:
    return bodies(store, topic, 0) + bodies(store, topic, 1)


def contents(path: Path) -> dict[str, str]:
    """Digests of all files but those that are a directory's own."""
    own = ("lock", "backup.", "skylark-queues")
    return {
        name: digest
        for name, (_, _, digest) in fingerprint(path).items()
        if digest and not name.startswith(own)
    }


def findings(path: Path) -> list[str]:
    settings = small_settings()
    reader = StoreReader(path, index_slots=settings.index_slots, index_items=settings.index_items)
    return [str(finding) for finding in verify(reader).findings]


def restored(path: Path) -> MessageStore:
    """A store on the copy, which must be sound before and after."""
    assert findings(path) == []
    return store_at(path)


def test_copy_of_a_closed_store_has_the_same_bytes_and_needs_no_recovery(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    expected = fill(store, 120)
    store.close()
    (tmp_path / "store" / "config").mkdir()
    (tmp_path / "store" / "config" / "topics.json").write_text("{}")

    report = back_up(tmp_path / "store", tmp_path / "copy")

    assert contents(tmp_path / "copy") == contents(tmp_path / "store")
    assert not report.is_running
    copy = restored(tmp_path / "copy")
    assert copy.report.clean_exit and not copy.report.problems
    assert both(copy) == expected
    copy.close()


def test_copy_of_an_open_store_has_what_was_appended_and_goes_on_without_the_original(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    expected = fill(store, 60)
    store.housekeeper.flush()
    expected += fill(store, 41, first=60)  # their units and keys are in memory only

    report = back_up(tmp_path / "store", tmp_path / "copy")
    fill(store, 100, first=101)

    assert report.is_running
    assert report.end_physical_offset <= store.log.appended
    copy = restored(tmp_path / "copy")
    assert sorted(both(copy)) == sorted(expected)
    assert not copy.report.damages
    assert len(copy.messages_by_key("T", "k100")) == 1
    fill(copy, 10, first=500)
    copy.close()
    assert findings(tmp_path / "copy") == []
    store.close()


def test_a_file_that_others_may_not_read_is_not_readable_in_the_copy(tmp_path: Path) -> None:
    """As the secrets of users."""
    fill(store := store_at(tmp_path / "from"), 10)
    store.close()
    config = tmp_path / "from" / "config"
    config.mkdir(exist_ok=True)
    for name, mode in (("authUsers.json", 0o600), ("topics.json", 0o644)):
        (config / name).write_text("{}")
        (config / name).chmod(mode)
    for content in ("{}", '{"changed": 1}'):
        (config / "authUsers.json").write_text(content)
        back_up(tmp_path / "from", tmp_path / "to")
        copied = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "to/config").iterdir()}
        assert copied["authUsers.json"] == 0o600
        assert copied["topics.json"] & 0o044


def test_second_run_copies_only_what_is_new(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    fill(store, 200)
    store.housekeeper.flush()
    first = back_up(tmp_path / "store", tmp_path / "copy")
    fill(store, 4, first=200)
    store.housekeeper.flush()

    second = back_up(tmp_path / "store", tmp_path / "copy")

    new_bytes = second.end_physical_offset - first.end_physical_offset
    assert 0 < new_bytes <= second.copied_bytes < first.copied_bytes / 4
    copy = restored(tmp_path / "copy")
    assert sorted(both(copy)) == sorted(both(store))
    copy.close()
    store.close()


def test_nothing_new_is_copied_when_nothing_happened(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    fill(store, 50)
    store.close()
    back_up(tmp_path / "store", tmp_path / "copy")
    before = fingerprint(tmp_path / "copy" / "commitlog")

    report = back_up(tmp_path / "store", tmp_path / "copy")

    assert report.copied_bytes == 0
    assert fingerprint(tmp_path / "copy" / "commitlog") == before


def test_link_shares_full_files_and_never_the_one_that_grows(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    fill(store, 120)
    first = back_up(tmp_path / "store", tmp_path / "copy", link=True)
    names = sorted(path.name for path in (tmp_path / "copy" / "commitlog").iterdir())

    def shared(name: str) -> bool:
        return (tmp_path / "copy/commitlog" / name).samefile(tmp_path / "store/commitlog" / name)

    assert first.linked_files == len(names) - 1 > 2
    assert [shared(name) for name in names] == [True] * (len(names) - 1) + [False]
    last = (tmp_path / "copy/commitlog" / names[-1]).read_bytes()
    fill(store, 60, first=120)
    assert (tmp_path / "copy/commitlog" / names[-1]).read_bytes() == last

    second = back_up(tmp_path / "store", tmp_path / "copy", link=True)
    assert second.linked_files >= 1
    third = back_up(tmp_path / "store", tmp_path / "copy")
    assert third.linked_files == 0 and shared(names[0])
    copy = restored(tmp_path / "copy")
    assert sorted(both(copy)) == sorted(both(store))
    copy.close()
    store.close()


def test_copy_follows_what_expired(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store", reserved_hours=0, delete_files_max=3)
    fill(store, 200)
    back_up(tmp_path / "store", tmp_path / "copy")
    store.housekeeper.flush()
    store.housekeeper.manual.arm()
    assert store.housekeeper.clean()
    fill(store, 10, first=200)

    back_up(tmp_path / "store", tmp_path / "copy")

    assert StoreReader(tmp_path / "copy").min_physical_offset == store.log.min_offset > 0
    copy = restored(tmp_path / "copy")
    assert both(copy) == both(store)
    copy.close()
    store.close()


def test_topic_that_was_deleted_and_made_again_is_copied_anew(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    fill(store, 40)
    fill(store, 40, topic="other")
    store.housekeeper.flush()
    back_up(tmp_path / "store", tmp_path / "copy")
    store.housekeeper.delete_topic("T")
    expected = fill(store, 60, first=100)
    store.housekeeper.flush()

    back_up(tmp_path / "store", tmp_path / "copy")

    copy = restored(tmp_path / "copy")
    assert both(copy) == expected
    assert both(copy, "other") == both(store, "other")
    copy.close()
    store.close()


def test_log_that_goes_on_differently_is_copied_anew(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    fill(store, 60)
    cut_at = store.log.appended
    fill(store, 20, first=60)
    store.housekeeper.flush()
    back_up(tmp_path / "store", tmp_path / "copy", link=True)
    store.housekeeper.cut(cut_at)
    fill(store, 40, first=1000)
    store.housekeeper.flush()

    back_up(tmp_path / "store", tmp_path / "copy")

    copy = restored(tmp_path / "copy")
    assert both(copy) == both(store)
    copy.close()
    assert findings(tmp_path / "store") == []
    store.close()


def test_run_that_breaks_off_leaves_the_backup_before_it(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    before = fill(store, 60)
    store.housekeeper.flush()
    back_up(tmp_path / "store", tmp_path / "copy")
    fill(store, 300, first=60)
    store.housekeeper.flush()
    steps = 0

    def interrupt(done: int, total: int) -> None:
        nonlocal steps
        steps += 1
        if steps == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(tmp_path / "store", tmp_path / "copy", progress=interrupt)
    shutil.copytree(tmp_path / "copy", tmp_path / "used")
    copy = store_at(tmp_path / "used")
    assert set(before) <= set(both(copy))
    copy.close()

    back_up(tmp_path / "store", tmp_path / "copy")
    copy = restored(tmp_path / "copy")
    assert both(copy) == both(store)
    copy.close()
    store.close()


def test_offsets_are_of_the_begin_and_topics_of_the_end(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    fill(store, 30)
    config = tmp_path / "store" / "config"
    config.mkdir()
    for name in ("consumerOffset.json", "topics.json"):
        (config / name).write_text('{"state":"old"}')

    def change(done: int, total: int) -> None:
        for name in ("consumerOffset.json", "topics.json"):
            (config / name).write_text('{"state":"new"}')

    back_up(tmp_path / "store", tmp_path / "copy", progress=change)

    assert (tmp_path / "copy/config/consumerOffset.json").read_text() == '{"state":"old"}'
    assert (tmp_path / "copy/config/topics.json").read_text() == '{"state":"new"}'
    store.close()


@pytest.mark.parametrize("name", ["clean", "crash", "crc"])
def test_apache_store_is_copied_and_can_be_opened(tmp_path: Path, name: str) -> None:
    source = unpack_golden(GOLDEN, name, tmp_path / "apache")
    settings = golden_settings(GOLDEN, tmp_path / "copy")
    before = fingerprint(source)

    back_up(source, tmp_path / "copy")

    assert fingerprint(source) == before
    reader = StoreReader(
        tmp_path / "copy", index_slots=settings.index_slots, index_items=settings.index_items
    )
    original = StoreReader(source, index_slots=settings.index_slots, index_items=settings.index_items)
    # A killed broker had the next file of the log ready, with nothing in it.
    assert replace(verify(reader).counts, log_files=0) == replace(verify(original).counts, log_files=0)
    assert reader.queues() == original.queues()
    opened = MessageStore(settings)
    opened.open()
    assert opened.log.appended == original.end_physical_offset
    opened.close()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("store", "overlaps with"),
        ("store/copy", "overlaps with"),
        (".", "overlaps with"),
        ("file", "not a directory"),
        ("full", "does not contain a backup"),
        ("other", "contains a backup of"),
        ("ran", "a broker was started on it"),
        ("no/such", "no such directory"),
    ],
)
def test_target_that_cannot_be_is_refused_in_a_sentence(tmp_path: Path, target: str, reason: str) -> None:
    for name in ("store", "second"):
        store = store_at(tmp_path / name)
        fill(store, 5)
        store.close()
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    back_up(tmp_path / "second", tmp_path / "other")
    back_up(tmp_path / "store", tmp_path / "ran")
    store_at(tmp_path / "ran").close()
    before = fingerprint(tmp_path)

    with pytest.raises(BackupRefused, match=reason):
        back_up(tmp_path / "store", tmp_path / target)

    assert fingerprint(tmp_path) == before


def test_one_backup_at_a_time(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    fill(store, 20)
    second: list[str] = []

    def again(done: int, total: int) -> None:
        if not second:
            with pytest.raises(BackupRefused) as refused:
                back_up(tmp_path / "store", tmp_path / "copy")
            second.append(refused.value.reason)

    back_up(tmp_path / "store", tmp_path / "copy", progress=again)
    assert second == ["another backup to it is in progress"]
    back_up(tmp_path / "store", tmp_path / "copy")
    store.close()


def test_what_is_no_store_is_not_backed_up(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadStoreFile):
        back_up(tmp_path / "empty", tmp_path / "copy")
    with pytest.raises(MissingFile):
        back_up(tmp_path / "nothing", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
