"""The list of queues: written whole, read whole or not at all."""

from __future__ import annotations

import pytest

from skylark.store.manifest import FILE_NAME, Manifest, QueueExtent, load_manifest, manifest_of, save_manifest
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import ROOT, message, opened, put_all, simulated_disk

PATH = ROOT / FILE_NAME
MANIFEST = Manifest([QueueExtent("alpha", 0, 0, 7), QueueExtent("%RETRY%订单", 3, 200, 15)], 4711)


@pytest.fixture
def disk() -> SimulatedDisk:
    return simulated_disk()


def test_what_was_saved_is_loaded(disk: SimulatedDisk) -> None:
    save_manifest(disk, ROOT, MANIFEST)
    assert load_manifest(disk, ROOT) == MANIFEST


def test_a_shorter_one_replaces_a_longer_one(disk: SimulatedDisk) -> None:
    save_manifest(disk, ROOT, MANIFEST)
    save_manifest(disk, ROOT, Manifest())
    assert load_manifest(disk, ROOT) == Manifest([], -1)


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
    for position in range(len(whole)):
        disk.flip_bit(PATH, position)
        assert load_manifest(disk, ROOT) is None, position
        disk.overwrite(PATH, 0, whole)
    assert load_manifest(disk, ROOT) == MANIFEST


def test_it_counts_what_is_on_disk() -> None:
    with opened() as store:
        put_all(store, [message("alpha", 0), message("alpha", 0), message("beta", 1)])
        store.get("never-written", 0, 0, 1)
        assert manifest_of(store.queues.values(), 5) == Manifest([], 5)
        store.housekeeper.flush()
        put_all(store, [message("alpha", 0)])
        assert manifest_of(store.queues.values(), 5) == Manifest(
            [QueueExtent("alpha", 0, 0, 2), QueueExtent("beta", 1, 0, 1)], 5
        )
