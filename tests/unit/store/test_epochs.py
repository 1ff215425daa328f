"""Epochs of a log: RocketMQ's file byte for byte, and where two logs part by their epochs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import BadStoreFile
from skylark.store.epochs import EPOCH_FILE, EpochEntry, EpochFile, LogEpochs, decode_epochs, encode_epochs


def epochs(*entries: tuple[int, int]) -> LogEpochs:
    return LogEpochs(EpochEntry(*entry) for entry in entries)


def pairs(known: LogEpochs) -> Iterable[tuple[int, int]]:
    return known.entries


VECTORS = [
    (((7, 7000), (8, 8000)), b"2\n773307083\n7-7000\n8-8000\n"),
    (((1, 0), (2, 0), (3, 1073742336)), b"3\n480977858\n1-0\n2-0\n3-1073742336\n"),
]


@pytest.mark.parametrize(("entries", "text"), VECTORS)
def test_the_file_is_rocketmqs(entries: tuple[tuple[int, int], ...], text: bytes) -> None:
    assert encode_epochs(epochs(*entries).entries) == text
    assert decode_epochs(text).entries == entries


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1 << 50)), max_size=20))
def test_what_is_written_is_read(steps: list[tuple[int, int]]) -> None:
    known = LogEpochs()
    for step, start in steps:
        known.append(EpochEntry(known.last_epoch + step, start))
    assert decode_epochs(encode_epochs(known.entries)).entries == known.entries


@pytest.mark.parametrize(
    "text",
    [
        b"2\n1\n7-7000\n8-8000\n",
        b"1\n0\n7-7000\n8-8000\n",
        b"1\n0\n7:7000\n",
        b"2\n0\n8-7000\n7-8000\n",
        b"x\n0\n",
        b"1\n",
    ],
)
def test_what_is_no_epoch_file(text: bytes) -> None:
    with pytest.raises(ValueError):
        decode_epochs(text)


def test_a_checksum_of_0_is_not_checked() -> None:
    assert decode_epochs(b"1\n0\n7-7000\n").entries == ((7, 7000),)


def test_an_epoch_may_begin_where_the_last_one_does_but_not_before() -> None:
    known = epochs((1, 0))
    assert known.append(EpochEntry(2, 0))
    assert not known.append(EpochEntry(2, 5))
    assert known.append(EpochEntry(3, 50))
    assert not known.append(EpochEntry(4, 49))
    assert pairs(known) == ((1, 0), (2, 0), (3, 50))


@pytest.mark.parametrize(
    ("own", "own_end", "master", "master_end", "common"),
    [
        (((1, 0),), 100, ((1, 0),), 100, 100),
        (((1, 0),), 100, ((1, 0), (2, 0)), 100, 0),  # the master's own records begin at 0
        (((1, 0),), 100, ((2, 0),), 100, None),
        (((1, 0),), 100, ((1, 0), (2, 60)), 300, 60),
        (((1, 0), (2, 50)), 80, ((1, 0), (2, 50)), 300, 80),
        (((1, 0), (2, 50)), 400, ((1, 0), (2, 50)), 300, 300),
        (((1, 0), (3, 100)), 100, ((1, 0), (4, 100)), 200, 100),
        (((1, 0), (2, 50), (3, 70)), 90, ((1, 0), (2, 50), (4, 60)), 99, 60),
        ((), 70, ((1, 0),), 99, None),
    ],
)
def test_where_logs_part(
    own: tuple[tuple[int, int], ...],
    own_end: int,
    master: tuple[tuple[int, int], ...],
    master_end: int,
    common: int | None,
) -> None:
    assert epochs(*own).common_end(own_end, epochs(*master), master_end) == common


@st.composite
def histories(draw: st.DrawFn) -> tuple[LogEpochs, int, LogEpochs, int, int]:
    """Two logs that share their first epochs: their epochs and ends, and where they part."""
    shared = LogEpochs()
    end = 0
    for epoch in range(1, draw(st.integers(1, 4)) + 1):
        shared.append(EpochEntry(epoch, end))
        end += draw(st.integers(0, 50))
    logs = []
    for first in (10, 20):
        own, own_end = LogEpochs(shared.entries), end
        for epoch in range(first, first + draw(st.integers(1, 3))):
            own.append(EpochEntry(epoch, own_end))
            own_end += draw(st.integers(0, 50))
        logs.append((own, own_end))
    return *logs[0], *logs[1], end


@given(histories())
def test_the_common_part_is_found(history: tuple[LogEpochs, int, LogEpochs, int, int]) -> None:
    own, own_end, master, master_end, parted = history
    assert own.common_end(own_end, master, master_end) == parted
    own.cut_from(parted)
    assert pairs(own) == tuple(entry for entry in master.entries if entry.start < parted)


def test_cutting_either_end() -> None:
    known = epochs((1, 0), (2, 50), (3, 50), (4, 90))
    known.cut_from(90)
    assert pairs(known) == ((1, 0), (2, 50), (3, 50))
    known.cut_before(50)
    assert pairs(known) == ((3, 50),)
    known.cut_before(1000)
    assert pairs(known) == ((3, 50),)


def test_the_epoch_of_a_byte() -> None:
    known = epochs((1, 10), (2, 50), (3, 50))
    assert [known.at(offset) for offset in (9, 10, 49, 50)] == [None, (1, 10), (1, 10), (3, 50)]
    assert [known.after(offset) for offset in (9, 10, 49, 50)] == [(1, 10), (2, 50), (2, 50), None]


def test_the_file_keeps_every_change(tmp_path: Path) -> None:
    file = EpochFile(tmp_path)
    file.load(0, 0)
    file.append(EpochEntry(1, 0))
    file.append(EpochEntry(3, 70))
    file.append(EpochEntry(3, 70))
    again = EpochFile(tmp_path)
    again.load(0, 100)
    assert pairs(again.epochs) == ((1, 0), (3, 70))
    again.cut_from(70)
    file.load(0, 100)
    assert pairs(file.epochs) == ((1, 0),)
    with pytest.raises(BadStoreFile):
        file.append(EpochEntry(1, 50))
    file.cut_from(0)
    again.load(0, 100)
    assert pairs(again.epochs) == ()


def test_epochs_behind_a_log_that_lost_its_end_are_dropped(tmp_path: Path) -> None:
    (tmp_path / EPOCH_FILE).write_bytes(encode_epochs(epochs((1, 0), (2, 50), (3, 90)).entries))
    file = EpochFile(tmp_path)
    file.load(0, 50)
    assert pairs(file.epochs) == ((1, 0), (2, 50))


def test_a_damaged_file_gives_way_to_the_one_before(tmp_path: Path) -> None:
    file = EpochFile(tmp_path)
    file.append(EpochEntry(1, 0))
    file.append(EpochEntry(2, 10))
    (tmp_path / EPOCH_FILE).write_bytes(b"rubbish")
    file.load(0, 100)
    assert pairs(file.epochs) == ((1, 0),)
