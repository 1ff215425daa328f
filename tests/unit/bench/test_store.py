"""Loads on a store, or a disk, that takes no more."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from skylark.bench import load_target
from skylark.bench import store as store_bench
from skylark.bench.load import BadLoad, LoadFailed
from skylark.bench.load_target import DISK_RESERVE_BYTES, messages_that_fit
from skylark.bench.store import fill, open_store, sync_rate
from skylark.settings import StoreSettings
from tests.support.simulated_disk import Fault, Kind, Operation, SimulatedDisk

TOO_LARGE_BYTES = (4 << 20) + 1


def test_a_store_that_takes_no_more_ends_the_load(tmp_path: Path) -> None:
    store = open_store(tmp_path, commit_log_file_bytes=64 << 20)
    try:
        with pytest.raises(LoadFailed, match="append rejected: MESSAGE_ILLEGAL"):
            fill(store, 1 << 30, TOO_LARGE_BYTES)
    finally:
        store.close()


def test_whoever_waits_for_a_flush_hears_of_it_too(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="append rejected"):
        sync_rate(tmp_path, 1, None, 60.0, TOO_LARGE_BYTES)


def test_who_waits_for_a_disk_that_fails_hears_of_it() -> None:
    disk = SimulatedDisk()
    disk.plan(Fault(Kind.SYNC, nth=20, always=True, path_contains="commitlog"))
    with pytest.raises(LoadFailed, match=r"append (failed: FLUSH_DISK_TIMEOUT|rejected)"):
        sync_rate(Path("/simulated"), 2, disk, 60.0)


def test_who_waits_for_a_disk_that_stands_still_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_bench, "StoreSettings", partial(StoreSettings, sync_flush_timeout_ms=200))
    disk = SimulatedDisk()
    end = threading.Event()

    def stand_still(operation: Operation) -> None:
        """From the first record on, until the store is to be closed."""
        if operation.kind is Kind.WRITE and "commitlog" in str(operation.path):
            disk.hold_sync = end

    disk.observer = stand_still
    threading.Timer(2.0, end.set).start()
    with pytest.raises(LoadFailed, match="append failed: FLUSH_DISK_TIMEOUT"):
        sync_rate(Path("/simulated"), 2, disk, 60.0)


def test_a_disk_without_room_is_told_before_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_target, "free_bytes", lambda _: DISK_RESERVE_BYTES + 100_000)
    assert 1 <= messages_that_fit(tmp_path, 128) < 1000
    monkeypatch.setattr(load_target, "free_bytes", lambda _: 48 << 20)
    with pytest.raises(BadLoad, match="has 48 MiB free"):
        messages_that_fit(tmp_path, 128)
