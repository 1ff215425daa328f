"""The list of queues: written whole, read whole or not at all."""

from __future__ import annotations

import pytest

from skylark.store.checkpoint import (
    MANIFEST_FILE_NAMES,
    QueueExtent,
    QueueManifest,
    extents_of,
    load_manifest,
    save_manifest,
)
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import ROOT, message, opened, put_all, simulated_disk

PATH = ROOT / MANIFEST_FILE_NAMES[0]
MANIFEST = QueueManifest(
    [QueueExtent("alpha", 0, 0, 7), QueueExtent("%RETRY%订单", 3, 200, 15)],
    4711,
    ["20231114221320000"],
    {"gone": 1234},
)


@pytest.fixture
def disk() -> SimulatedDisk:
    return simulated_disk()


def test_what_was_saved_is_loaded(disk: SimulatedDisk) -> None:
    save_manifest(disk, ROOT, MANIFEST)
    assert load_manifest(disk, ROOT) == MANIFEST


def test_a_shorter_one_replaces_a_longer_one(disk: SimulatedDisk) -> None:
    save_manifest(disk, ROOT, MANIFEST)
    save_manifest(disk, ROOT, QueueManifest())
    assert load_manifest(disk, ROOT) == QueueManifest([], -1)


def test_without_a_file_there_is_none(disk: SimulatedDisk) -> None:
    assert load_manifest(disk, ROOT) is None


def test_a_torn_one_is_none(disk: SimulatedDisk) -> None:
    save_manifest(disk, ROOT, MANIFEST)
    whole = disk.content(PATH)
    for length in range(len(whole)):
        disk.cut(PATH, length)
        assert load_manifest(disk, ROOT) is None, length
        disk.cut(PATH, len(whole))
        disk.overwrite(PATH, 0, whole)
    disk.overwrite(PATH, 0, bytes(len(whole)))
    assert load_manifest(disk, ROOT) is None
    disk.overwrite(PATH, 0, whole)
    for position in range(len(whole)):
        disk.flip_bit(PATH, position)
        assert load_manifest(disk, ROOT) is None, position
        disk.overwrite(PATH, 0, whole)
    assert load_manifest(disk, ROOT) == MANIFEST


def test_it_counts_what_is_on_disk() -> None:
    with opened() as store:
        put_all(store, [message("alpha", 0), message("alpha", 0), message("beta", 1)])
        store.get("never-written", 0, 0, 1)
        assert extents_of(store.queues.values(), None) == []
        store.housekeeper.flush()
        put_all(store, [message("alpha", 0)])
        queues = store.queues.values()
        assert extents_of(queues, None) == [QueueExtent("alpha", 0, 0, 2), QueueExtent("beta", 1, 0, 1)]


def test_before_the_log_is_cut_it_counts_what_will_be_left() -> None:
    with opened() as store:
        placed = put_all(store, [message("alpha", 0), message("alpha", 0), message("beta", 1)])
        store.housekeeper.flush()
        cut_at = placed[1].physical_offset
        extents = extents_of(store.queues.values(), cut_at)
        assert extents == [QueueExtent("alpha", 0, 0, 1), QueueExtent("beta", 1, 0, 0)]


def test_a_crash_in_the_middle_leaves_the_one_before(disk: SimulatedDisk) -> None:
    for generation in range(1, 6):
        save_manifest(disk, ROOT, QueueManifest(index_end=generation, generation=generation))
        newest = load_manifest(disk, ROOT)
        assert newest is not None
        assert newest.index_end == generation
        path = ROOT / MANIFEST_FILE_NAMES[generation % 2]
        disk.flip_bit(path, 10)
        older = load_manifest(disk, ROOT)
        assert (older.index_end if older else 0) == generation - 1
        disk.flip_bit(path, 10)
