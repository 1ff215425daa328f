"""The replication link of controller mode, byte for byte as Apache's brokers speak it, however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import FrameTooLarge, MalformedFrame
from skylark.protocol.epoch_ha import (
    DATA_HEAD,
    MasterGreeting,
    MasterReader,
    SlaveGreeting,
    SlaveReader,
    acknowledgement,
    data_head,
)
from skylark.protocol.ha import BODY_BYTES_MAX
from tests.unit.protocol.golden_frames import lines

LOG_END = 0x40000200
SLAVE, MASTER = "slave->master", "master->slave"


def captured(master: str, direction: str) -> bytes:
    """What passed between Apache's brokers while one of them, a or b, was the master."""
    found = [line for line in lines("epoch-ha") if (line["master"], line["direction"]) == (master, direction)]
    return b"".join(bytes.fromhex(line["bytes_hex"]) for line in found)


def test_what_apaches_slaves_say() -> None:
    """The first report comes with the first heartbeat, after 5 s, and names the end of the slave's log."""
    for master, slave_id, expected in (
        ("a", 2, [0, 0x10DB, 0x11A8, 0x1275, 0x1275, 0x1275]),
        ("b", 1, [0x1275, 0x1676, 0x1743, 0x1810, 0x18DD, 0x18DD]),
    ):
        data = captured(master, SLAVE)
        reader = SlaveReader()
        reports = reader.receive(data)
        assert (reader.greeting, reports) == (SlaveGreeting(slave_id), expected)
        assert SlaveGreeting(slave_id).encode() + b"".join(map(acknowledgement, reports)) == data


def test_what_apaches_masters_say() -> None:
    for master, greeting, start, last in (
        ("a", MasterGreeting(0x100E, ((1, 0),)), (1, 0), 0x1275),
        ("b", MasterGreeting(0x1676, ((1, 0), (2, 0x1275))), (2, 0x1275), 0x18DD),
    ):
        data = captured(master, MASTER)
        reader = MasterReader()
        pieces = reader.receive(data)
        assert reader.greeting == greeting
        assert data.startswith(greeting.encode())
        assert {(piece.epoch, piece.epoch_start) for piece in pieces} == {start}
        assert (pieces[-1].physical_offset, pieces[-1].confirm_offset) == (last, last)
        assert (
            b"".join(
                [greeting.encode()]
                + [data_head(p.physical_offset, len(p.data), *p[2:]) + bytes(p.data) for p in pieces]
            )
            == data
        )


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = [*sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def test_vectors() -> None:
    assert SlaveGreeting(2).encode() == unhex("00000001 0000 0000 0000000000000002")
    greeting = MasterGreeting(LOG_END, ((1, 0), (2, 0), (3, LOG_END)))
    assert greeting.encode() == unhex(
        "00000001 00000024 0000000040000200 00000003"
        "00000001 0000000000000000 00000002 0000000000000000 00000003 0000000040000200"
    )
    assert data_head(0x400002D4, 0, 3, LOG_END, 0x400002D4) == unhex(
        "00000002 00000000 00000000400002d4 00000003 0000000040000200 00000000400002d4"
    )
    assert acknowledgement(0x400002D4) == unhex("00000002 00000000400002d4")


@given(
    st.builds(SlaveGreeting, st.integers(0, 1 << 60), st.booleans(), st.booleans()),
    st.lists(st.integers(0, 1 << 60)),
    st.lists(st.integers(min_value=0), max_size=8),
)
def test_any_cutting_of_what_a_slave_says(
    greeting: SlaveGreeting, reports: list[int], places: list[int]
) -> None:
    data = greeting.encode() + b"".join(map(acknowledgement, reports))
    reader = SlaveReader()
    assert [report for part in cut(data, places) for report in reader.receive(part)] == reports
    assert reader.greeting == greeting


frames = st.tuples(
    st.integers(0, 1 << 60),
    st.binary(max_size=60),
    st.integers(0, 99),
    st.integers(0, 99),
    st.integers(0, 99),
)
greetings = st.builds(
    MasterGreeting,
    st.integers(0, 1 << 60),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 1 << 60)), max_size=5).map(tuple),
)


@given(greetings, st.lists(frames, max_size=8), st.lists(st.integers(min_value=0), max_size=20))
def test_any_cutting_of_what_a_master_says(
    greeting: MasterGreeting, sent: list[tuple[int, bytes, int, int, int]], places: list[int]
) -> None:
    data = greeting.encode()
    for offset, body, *more in sent:
        data += data_head(offset, len(body), *more) + body
    reader = MasterReader()
    got: list[tuple[int, bytes, int, int, int]] = []
    for part in cut(data, places):
        for piece in reader.receive(part):
            last = got[-1] if got else None
            if last and piece.data and last[1] and last[0] + len(last[1]) == piece.physical_offset:
                got[-1] = (last[0], last[1] + bytes(piece.data), *last[2:])
            else:
                got.append((piece.physical_offset, bytes(piece.data), *piece[2:]))
    assert reader.greeting == greeting
    merged: list[tuple[int, bytes, int, int, int]] = []
    for frame in sent:
        last = merged[-1] if merged else None
        if last and frame[1] and last[1] and last[0] + len(last[1]) == frame[0]:
            merged[-1] = (last[0], last[1] + frame[1], *last[2:])
        else:
            merged.append(frame)
    assert got == merged


@pytest.mark.parametrize(
    "data",
    [
        unhex("0000000040000200 00000000"),  # a classic slave's report
        unhex("00000001 0000 0000 ffffffffffffffff"),
        SlaveGreeting(1).encode() + unhex("00000001 0000000000000000"),
        SlaveGreeting(1).encode() + unhex("00000002 ffffffffffffffff"),
    ],
)
def test_what_no_slave_says(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        SlaveReader().receive(data)


@pytest.mark.parametrize(
    "data",
    [
        unhex("00000002 00000000 0000000000000000 00000000"),
        unhex("00000001 00000005 0000000000000000 00000000"),
        unhex("00000001 ffffffff 0000000000000000 00000000"),
        MasterGreeting(0, ()).encode() + DATA_HEAD.pack(1, 0, 0, 1, 0, 0),
        MasterGreeting(0, ()).encode() + DATA_HEAD.pack(2, -1, 0, 1, 0, 0),
        MasterGreeting(0, ()).encode() + DATA_HEAD.pack(2, 1, -1, 1, 0, 0),
    ],
)
def test_what_no_master_says(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        MasterReader().receive(data)


def test_a_frame_that_is_too_large() -> None:
    data = MasterGreeting(0, ()).encode() + DATA_HEAD.pack(2, BODY_BYTES_MAX + 1, 0, 1, 0, 0)
    with pytest.raises(FrameTooLarge):
        MasterReader().receive(data)


def test_a_master_that_has_sent_nothing_says_that_its_next_byte_is_at_minus_1() -> None:
    reader = MasterReader()
    (heartbeat,) = reader.receive(MasterGreeting(9, ((1, 0),)).encode() + data_head(-1, 0, 1, 0, 9))
    assert (heartbeat.physical_offset, len(heartbeat.data)) == (-1, 0)
