"""Batch consume queues in a backup, after a kill, in a verification, and when their log expires."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from skylark.model.message import PutMessage
from skylark.model.record import unwrap
from skylark.store.append_result import AppendedBatch
from skylark.store.backup import back_up
from skylark.store.batch_consume_queue import BATCH_UNIT_BYTES
from skylark.store.disk import RealDisk
from skylark.store.message_store import MessageStore
from skylark.store.store_reader import StoreReader
from skylark.store.verification import verify
from tests.support.clock import ManualClock
from tests.support.store import encoded_batch, placed, small_settings

TOPIC = "inner"
BATCH = 4
HOUR_MS = 3_600_000


def store_at(path: Path, **changes: Any) -> MessageStore:
    """An open store on the real disk, without threads; its clock is an hour ahead of the files'."""
    clock = ManualClock(time.time_ns() // 1_000_000 + HOUR_MS)
    settings = small_settings(path, batch_consume_queue_file_bytes=5 * BATCH_UNIT_BYTES, **changes)
    store = MessageStore(settings, disk=RealDisk(), clock=clock)
    store.queues.is_declared_batched = lambda topic: topic == TOPIC
    store.open()
    return store


def fill(store: MessageStore, batches: int, first: int = 0) -> None:
    """Batches in one queue, a lone message behind each fifth of them, and messages of another topic."""
    for number in range(first, first + batches):
        bodies = [b"%d-%d" % (number, member) + bytes(100) for member in range(BATCH)]
        properties = b"UNIQ_KEY\x01u%d\x02KEYS\x01k%d\x02" % (number, number)
        batch = PutMessage(TOPIC, 0, encoded_batch(bodies), properties), BATCH
        assert isinstance(store.append_batches([batch])[0], AppendedBatch)
        if number % 5 == 4:
            placed(store.append([PutMessage(TOPIC, 0, b"%d-lone" % number)])[0])
        placed(store.append([PutMessage("plain", 0, b"%d" % number)])[0])


def content(store: MessageStore) -> list[bytes]:
    """Every message of the queue; their offsets are consecutive."""
    found: list[bytes] = []
    at = low = store.min_offset(TOPIC, 0)
    while at < store.max_offset(TOPIC, 0):
        result = store.get(TOPIC, 0, at, 32)
        members = [message for record in result.messages() for message in unwrap(record)]
        assert [message.queue_offset for message in members] == list(range(at, result.next_offset))
        found += [message.body for message in members]
        at = result.next_offset
    assert store.max_offset(TOPIC, 0) - low == len(found)
    return found


def findings(path: Path) -> list[str]:
    settings = small_settings()
    reader = StoreReader(path, index_slots=settings.index_slots, index_items=settings.index_items)
    assert reader.problems == []
    assert reader.unsupported() == []
    return [str(finding) for finding in verify(reader).findings]


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_a_backup_holds_batches_and_goes_on_without_the_original(tmp_path: Path, is_open: bool) -> None:
    store = store_at(tmp_path / "store")
    fill(store, 12)
    store.housekeeper.flush()
    fill(store, 7, first=12)  # their units are in memory only
    expected = content(store)
    if not is_open:
        store.close()

    back_up(tmp_path / "store", tmp_path / "copy")

    if is_open:
        fill(store, 5, first=100)
        store.close()
    assert findings(tmp_path / "copy") == []
    copy = store_at(tmp_path / "copy")
    assert not copy.report.damages
    assert copy.queues[TOPIC, 0].is_batched
    assert content(copy) == expected
    assert len(copy.messages_by_key(TOPIC, "k18")) == 1
    fill(copy, 3, first=20)
    assert content(copy)[: len(expected)] == expected
    assert len(content(copy)) == len(expected) + 3 * BATCH
    copy.close()
    assert findings(tmp_path / "copy") == []


def test_a_second_backup_adds_what_is_new(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    fill(store, 40)
    store.housekeeper.flush()
    first = back_up(tmp_path / "store", tmp_path / "copy")
    fill(store, 2, first=40)
    store.housekeeper.flush()

    second = back_up(tmp_path / "store", tmp_path / "copy")

    assert 0 < second.copied_bytes < first.copied_bytes / 2
    assert findings(tmp_path / "copy") == []
    copy = store_at(tmp_path / "copy")
    assert content(copy) == content(store)
    copy.close()
    store.close()


@pytest.mark.parametrize("is_flushed", [False, True], ids=["units in memory", "units written"])
def test_a_killed_store_is_sound_before_and_after_its_recovery(tmp_path: Path, is_flushed: bool) -> None:
    store = store_at(tmp_path / "store")
    fill(store, 11)
    store.housekeeper.flush()
    fill(store, 6, first=11)
    if is_flushed:
        store.housekeeper.flush()
    expected = content(store)
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    store.close()

    assert findings(tmp_path / "killed") == []
    again = store_at(tmp_path / "killed")
    assert not again.report.clean_exit and not again.report.damages
    assert content(again) == expected
    again.close()
    assert findings(tmp_path / "killed") == []


def test_a_unit_that_states_a_wrong_record_is_found(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    fill(store, 3)
    store.close()
    [file] = (tmp_path / "store" / "batchconsumequeue" / TOPIC / "0").iterdir()
    data = bytearray(file.read_bytes())
    data[BATCH_UNIT_BYTES + 11] ^= 1  # the size of the second unit's record
    file.write_bytes(data)
    assert findings(tmp_path / "store") != []


def test_expired_batches_are_gone_as_a_whole(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store", reserved_hours=0, delete_files_max=2)
    fill(store, 30)
    store.housekeeper.flush()
    everything = content(store)

    store.housekeeper.manual.arm()
    assert store.housekeeper.clean() == [0, 4096]
    store.housekeeper.flush()

    left, low = content(store), store.min_offset(TOPIC, 0)
    assert 0 < low
    assert left == everything[low:]
    assert store.log.min_offset > 0
    head = store.get(TOPIC, 0, low, 1).messages()[0]
    assert head.queue_offset == low, "the first offset is the first of a record"
    assert len(list((tmp_path / "store" / "batchconsumequeue" / TOPIC / "0").iterdir())) < 7
    too_small = store.get(TOPIC, 0, 0, 32)
    assert (too_small.status.name, too_small.next_offset) == ("OFFSET_TOO_SMALL", low)
    store.close()
    assert findings(tmp_path / "store") == []
    again = store_at(tmp_path / "store")
    assert content(again) == left
    again.close()
