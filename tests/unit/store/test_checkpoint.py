"""The checkpoint: RocketMQ's bytes, our extension, and the file."""

import gzip
import tarfile
from pathlib import Path

import pytest

from skylark.store.checkpoint import CHECKPOINT_BYTES, EXTENSION_POSITION, Checkpoint, CheckpointFile
from skylark.store.disk import RealDisk

VECTOR = bytes.fromhex("0000018bcfe5687b 0000018bcfe5687b 0000018bcf4cd180 0000000000000000 0000000040000200")
CHECKPOINT = Checkpoint(
    physic_timestamp=1700000000123,
    logics_timestamp=1700000000123,
    index_timestamp=1699990000000,
    master_flushed_offset=0,
    confirm_physical_offset=1073742336,
)


def with_durable(durable_offset: int) -> Checkpoint:
    return Checkpoint(1700000000123, 1700000000123, 1699990000000, 0, 1073742336, durable_offset)


def test_the_page_is_rocketmq_s_without_our_extension() -> None:
    assert CHECKPOINT.encode() == VECTOR.ljust(4096, b"\0")
    assert Checkpoint.decode(VECTOR.ljust(4096, b"\0")) == CHECKPOINT


def test_the_extension_stands_behind_rocketmq_s_fields() -> None:
    page = with_durable(0x400002D4).encode()
    assert len(page) == CHECKPOINT_BYTES
    assert page[:64] == VECTOR.ljust(64, b"\0")
    assert page[64:76] == b"SKYL" + bytes.fromhex("00000000400002d4")
    assert page[76:80] == bytes.fromhex("4bc450a3")
    assert not any(page[80:])
    assert Checkpoint.decode(page) == with_durable(0x400002D4)
    assert Checkpoint.decode(with_durable(0).encode()).durable_offset == 0


@pytest.mark.parametrize("position", [0, 7, 16, 39, *range(EXTENSION_POSITION, EXTENSION_POSITION + 16)])
def test_any_change_voids_the_extension(position: int) -> None:
    page = bytearray(with_durable(0x400002D4).encode())
    page[position] ^= 1
    assert Checkpoint.decode(bytes(page)).durable_offset is None


def test_a_checkpoint_that_apache_rewrote_keeps_its_times_and_loses_the_extension() -> None:
    page = bytearray(with_durable(0x400002D4).encode())
    page[0:8] = (1700000009999).to_bytes(8, "big")
    decoded = Checkpoint.decode(bytes(page))
    assert decoded.physic_timestamp == 1700000009999
    assert decoded.confirm_physical_offset == 1073742336
    assert decoded.durable_offset is None


def test_recovery_starts_three_seconds_before_the_earliest_time() -> None:
    assert CHECKPOINT.recovery_timestamp(with_index=False) == 1699999997123
    assert CHECKPOINT.recovery_timestamp(with_index=True) == 1699989997000
    assert Checkpoint(5000, 4000, 9000).recovery_timestamp(with_index=True) == 1000
    assert Checkpoint(2000, 5000, 9000).recovery_timestamp(with_index=False) == 0


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(RealDisk(), path)
    assert file.load() is None
    assert not path.exists()
    for durable_offset in (7, 100):
        file.save(with_durable(durable_offset))
        assert path.stat().st_size == 4096
        assert file.load() == CheckpointFile(RealDisk(), path).load() == with_durable(durable_offset)
    file.save(CHECKPOINT)
    assert path.read_bytes() == VECTOR.ljust(4096, b"\0")


@pytest.mark.parametrize("content", [b"", VECTOR, VECTOR.ljust(4095, b"\0"), bytes(4096)])
def test_a_short_or_empty_file_says_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    file = CheckpointFile(RealDisk(), path)
    assert file.load() is None
    file.save(with_durable(9))
    assert file.load() == with_durable(9)


@pytest.mark.parametrize(
    ("archive", "expected"),
    [
        ("clean", Checkpoint(1794719605632, 1794719605632, 1794719583811, 0, 932111)),
        ("crash", Checkpoint(1794719525526, 1794719583823, 1794719583811, 0, 434507)),
        ("crc", Checkpoint(1794719902416, 1794719902416, 0, 0, 0)),
    ],
)
def test_apache_s_own_checkpoints(golden: Path, archive: str, expected: Checkpoint) -> None:
    with gzip.open(golden / "store" / f"{archive}.tar.gz") as data, tarfile.open(fileobj=data) as tar:
        member = tar.extractfile("store/checkpoint")
        assert member is not None
        page = member.read()
    assert Checkpoint.decode(page) == expected
    assert expected.encode() == page
