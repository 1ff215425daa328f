"""The replication link, byte for byte as Apache's brokers speak it, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import FrameTooLarge, MalformedFrame
from skylark.protocol.ha import BODY_BYTES_MAX, FRAME_HEAD, REPORT, FrameReader, LogBytes, ReportReader
from tests.unit.protocol.golden_frames import lines

SLAVE, MASTER = "slave->master", "master->slave"


def captured(direction: str) -> list[bytes]:
    return [bytes.fromhex(line["bytes_hex"]) for line in lines("ha") if line["direction"] == direction]


def joined(pieces: list[LogBytes]) -> list[tuple[int, bytes]]:
    """Stretches of the log put together; heartbeats stay."""
    found: list[tuple[int, bytes]] = []
    for physical_offset, data in pieces:
        if data and found and found[-1][1] and found[-1][0] + len(found[-1][1]) == physical_offset:
            found[-1] = (found[-1][0], found[-1][1] + bytes(data))
        else:
            found.append((physical_offset, bytes(data)))
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = [*sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def test_what_apaches_slave_reports() -> None:
    reader = ReportReader()
    reports = [report for data in captured(SLAVE) for report in reader.receive(data)]
    assert reports[:3] == [0, 0xE3FFE, 0xE3FFE]
    assert reports == sorted(reports)
    assert b"".join(map(REPORT.pack, reports)) == b"".join(captured(SLAVE))


def test_what_apaches_master_sends() -> None:
    """A slave that reports 0 gets the last file; then come what is new, and heartbeats at its end."""
    reader = FrameReader()
    pieces = [piece for data in captured(MASTER) for piece in reader.receive(data)]
    first, *rest = joined(pieces)
    assert first == (0xE0000, first[1])
    assert len(first[1]) == 0x3FFE
    assert rest[0] == (0xE3FFE, b"")
    assert [physical_offset for physical_offset, data in rest if data] == [0xE3FFE]
    assert {physical_offset for physical_offset, data in rest if not data} == {0xE3FFE, 0xE44C2}


@given(st.lists(st.integers(min_value=0), max_size=8))
def test_any_cutting_of_reports_gives_the_same(places: list[int]) -> None:
    data = b"".join(captured(SLAVE))
    reader = ReportReader()
    pieces = [report for part in cut(data, places) for report in reader.receive(part)]
    assert pieces == ReportReader().receive(data)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 62), st.binary(max_size=40)), max_size=6),
    st.lists(st.integers(min_value=0), max_size=12),
)
def test_any_cutting_of_frames_gives_the_same(frames: list[tuple[int, bytes]], places: list[int]) -> None:
    data = b"".join(FRAME_HEAD.pack(at, len(body)) + body for at, body in frames)
    reader = FrameReader()
    pieces = [piece for part in cut(data, places) for piece in reader.receive(part)]
    assert joined(pieces) == joined([LogBytes(at, memoryview(body)) for at, body in frames])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(MalformedFrame, match="negative offset -1"):
        ReportReader().receive(REPORT.pack(5) + REPORT.pack(-1))
    for head in ((-1, 5), (5, -1)):
        with pytest.raises(MalformedFrame):
            FrameReader().receive(FRAME_HEAD.pack(*head))
    FrameReader().receive(FRAME_HEAD.pack(0, BODY_BYTES_MAX))
    with pytest.raises(FrameTooLarge):
        FrameReader().receive(FRAME_HEAD.pack(0, BODY_BYTES_MAX + 1))


@given(st.binary(max_size=200))
def test_random_bytes_end_in_frames_or_in_the_errors_that_are_promised(data: bytes) -> None:
    for reader in (ReportReader(), FrameReader()):
        try:
            reader.receive(data)
        except (MalformedFrame, FrameTooLarge):
            pass
