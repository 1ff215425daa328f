"""Bodies are decompressed as the system flag says, never beyond the bound, and never silently wrong."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import BadBody
from skylark.model.body import compression_of, decompress, plain_body
from skylark.model.message import SystemFlag
from skylark.model.record import Scan, decode

OLD = int(SystemFlag.COMPRESSED)
ZLIB = int(SystemFlag.COMPRESSED | SystemFlag.ZLIB)
LZ4 = int(SystemFlag.COMPRESSED | SystemFlag.LZ4)
ZSTD = int(SystemFlag.COMPRESSED | SystemFlag.ZSTD)
COMPRESSORS: list[tuple[int, Callable[[bytes], bytes]]] = [
    (OLD, zlib.compress),
    (ZLIB, zlib.compress),
    (LZ4, lambda body: lz4.frame.compress(body, block_linked=False)),
    (ZSTD, zstandard.ZstdCompressor().compress),
    (ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress),
]
IDS = ["old", "zlib", "lz4", "zstd", "zstd-without-size"]
every_codec = pytest.mark.parametrize(("sys_flag", "compress"), COMPRESSORS, ids=IDS)


@given(body=st.binary(max_size=5000), other_flags=st.sampled_from([0, 2, 8, 0x30, 0x100, 0x300]))
def test_without_the_flag_a_body_is_left_alone(body: bytes, other_flags: int) -> None:
    assert compression_of(other_flags) is None
    assert decompress(body, other_flags) == body


@every_codec
@given(body=st.binary(max_size=5000))
def test_what_was_compressed_comes_back(
    sys_flag: int, compress: Callable[[bytes], bytes], body: bytes
) -> None:
    assert decompress(compress(body), sys_flag) == body
    # Other flags do not matter.
    assert decompress(compress(body), sys_flag | 0x38) == body


@every_codec
def test_a_body_of_exactly_the_bound_passes_and_one_byte_more_does_not(
    sys_flag: int, compress: Callable[[bytes], bytes]
) -> None:
    body = bytes(range(256)) * 40
    assert decompress(compress(body), sys_flag, bytes_max=len(body)) == body
    with pytest.raises(BadBody, match=f"larger than {len(body) - 1} bytes"):
        decompress(compress(body), sys_flag, bytes_max=len(body) - 1)


@every_codec
def test_a_small_body_that_claims_to_be_huge_is_refused(
    sys_flag: int, compress: Callable[[bytes], bytes]
) -> None:
    bomb = compress(bytes(50_000_000))
    with pytest.raises(BadBody, match="larger than 100000 bytes"):
        decompress(bomb, sys_flag, bytes_max=100_000)


@every_codec
@pytest.mark.parametrize("cut", [0, 1, 5, -4, -1])
def test_a_body_that_is_cut_short_is_refused(
    sys_flag: int, compress: Callable[[bytes], bytes], cut: int
) -> None:
    whole = compress(b"some words, some words, some words" * 20)
    with pytest.raises(BadBody):
        decompress(whole[:cut], sys_flag)


@every_codec
def test_garbage_is_refused_with_the_codecs_name(sys_flag: int, compress: Callable[[bytes], bytes]) -> None:
    with pytest.raises(BadBody) as caught:
        decompress(b"this was never compressed", sys_flag)
    name = compression_of(sys_flag)
    assert name is not None
    assert caught.value.compression == name
    assert str(caught.value).startswith(f"body compressed with {name} cannot be read: ")


def test_a_type_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadBody, match="unknown type 5"):
        decompress(b"x", 0x501)


@pytest.mark.parametrize(("sys_flag", "module"), [(LZ4, "lz4.frame"), (ZSTD, "zstandard")])
def test_without_the_extra_one_is_told_to_install_it(
    monkeypatch: pytest.MonkeyPatch, sys_flag: int, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadBody, match=r"install skylarkmq\[compression\]"):
        decompress(b"x", sys_flag)
    assert decompress(zlib.compress(b"zlib needs no extra"), ZLIB) == b"zlib needs no extra"


def test_bodies_that_java_clients_compressed(golden: Path, tmp_path: Path) -> None:
    with gzip.open(golden / "store" / "clean.expected.json.gz") as file:
        topics = json.load(file)["topics"]
    expected = {
        message["physicalOffset"]: message["bodySha256"]
        for topic in ("TopicCompressed", "TopicTest")
        for queue in topics[topic].values()
        for message in queue["messages"]
    }
    with tarfile.open(golden / "store" / "clean.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    compressed = set()
    for path in sorted((tmp_path / "store" / "commitlog").iterdir()):
        data, start = path.read_bytes(), int(path.name)
        for record in Scan(data, start, start + len(data)):
            if record.physical_offset in expected:
                message = decode(data, record.physical_offset - start)
                digest = hashlib.sha256(plain_body(message)).hexdigest()
                assert digest == expected[record.physical_offset]
                compressed.add(compression_of(message.sys_flag))
    assert compressed == {None, "zlib", "LZ4", "Zstandard"}
