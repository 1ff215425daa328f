"""Identity files are RocketMQ's; a store belongs to one broker name."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.replication.identity import BOOT_FILE, Application, IdentityFiles
from skylark.errors import BadStoreFile


def test_an_id_is_applied_for_then_granted(tmp_path: Path) -> None:
    files = IdentityFiles(tmp_path, "C1", "broker-a")
    assert files.load() is None
    assert files.load_application() is None
    files.apply(Application(2, "127.0.0.1:10911;1700000000000"))
    assert (tmp_path / "brokerIdentity-temp").read_text() == "C1#broker-a#2#127.0.0.1:10911;1700000000000"
    assert files.load_application() == Application(2, "127.0.0.1:10911;1700000000000")
    files.grant(2)
    assert (tmp_path / "brokerIdentity").read_text() == "C1#broker-a#2"
    assert files.load() == 2
    assert files.load_application() is None
    files.drop()
    assert files.load() is None


def test_another_brokers_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "brokerIdentity").write_text("C1#broker-b#1")
    with pytest.raises(BadStoreFile, match="belongs to broker broker-b of cluster C1"):
        IdentityFiles(tmp_path, "C1", "broker-a").load()


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "brokerIdentity").write_text("rubbish")
    with pytest.raises(BadStoreFile):
        IdentityFiles(tmp_path, "C1", "broker-a").load()


def test_a_restart_of_the_machine_is_noticed_once(tmp_path: Path) -> None:
    files = IdentityFiles(tmp_path, "C1", "broker-a")
    assert not files.is_same_boot()
    assert files.is_same_boot()
    (tmp_path / BOOT_FILE).write_text("another boot\n")
    assert not files.is_same_boot()
    assert files.is_same_boot()
