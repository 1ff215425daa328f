"""Loads on a store, or a disk, that takes no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.bench import measuring
from skylark.bench.load import BadLoad, LoadFailed
from skylark.bench.measuring import DISK_RESERVE_BYTES, messages_that_fit
from skylark.bench.storing import fill, open_store, sync_rate

TOO_LARGE_BYTES = (4 << 20) + 1


def test_a_store_that_takes_no_more_ends_the_load(tmp_path: Path) -> None:
    store = open_store(tmp_path, commit_log_file_bytes=64 << 20)
    try:
        with pytest.raises(LoadFailed, match="the store took no more: MESSAGE_ILLEGAL"):
            fill(store, 1 << 30, TOO_LARGE_BYTES)
    finally:
        store.close()


def test_whoever_waits_for_a_flush_hears_of_it_too(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="the store took no more"):
        sync_rate(tmp_path, 1, None, 60.0, TOO_LARGE_BYTES)


def test_a_disk_without_room_is_told_before_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "free_bytes", lambda _: DISK_RESERVE_BYTES + 100_000)
    assert 1 <= messages_that_fit(tmp_path, 128) < 1000
    monkeypatch.setattr(measuring, "free_bytes", lambda _: 48 << 20)
    with pytest.raises(BadLoad, match="has 48 MiB free"):
        messages_that_fit(tmp_path, 128)
