"""The timers' files: every byte, recovery of the log, and those that RocketMQ wrote."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import CorruptRecord
from skylark.store.disk import RealDisk
from skylark.store.timer_files import (
    END,
    FILE_BYTES,
    NO_POSITION,
    SLOT_BYTES,
    TIMER_UNIT_BYTES,
    TimerCheckpoint,
    TimerCheckpointFile,
    TimerFlag,
    TimerLog,
    TimerSlot,
    TimerUnit,
    TimerWheel,
)
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import ROOT, simulated_disk, unpack_golden

FILE = 5200
PER_FILE = 99
NOW_MS = 1_700_000_000_000


@pytest.fixture
def disk() -> SimulatedDisk:
    return simulated_disk()


def log_of(disk: SimulatedDisk) -> TimerLog:
    return TimerLog(disk, ROOT / "timerlog", FILE)


def unit(number: int = 0, previous: int = NO_POSITION, **changes: int) -> TimerUnit:
    members = {
        **{"flags": TimerFlag.DEFAULT, "write_ms": NOW_MS, "delay_ms": 59_000},
        **{"physical_offset": number, "size": 212, "topic_hash": -1902610879, **changes},
    }
    return TimerUnit(previous, **members)


# --- Bytes ---


def test_a_unit_is_as_rocketmqs() -> None:
    encoded = unit(0x40000200).encode()
    assert encoded.hex() == (
        "00000034ffffffffffffffff000000010000018bcfe568000000e6780000000040000200000000d48e987641"
        "0000000000000000"
    )


def test_a_slot_is_as_rocketmqs(disk: SimulatedDisk) -> None:
    wheel = TimerWheel(disk, ROOT / "timerwheel", 1000)
    wheel.add(1_700_000_059_000, 0, 1)
    [(position, data)] = wheel.changes()
    assert (position, data.hex()) == (
        16_385_888,
        "000000006553f13b000000000000000000000000000000000000000100000000",
    )


def test_the_check_point_is_as_rocketmqs() -> None:
    check = TimerCheckpoint(1_700_000_058_000, 52, 8, 8, 0, 1_700_000_058_500, 3)
    assert check.encode().hex() == (
        "0000018bcfe64a900000000000000034000000000000000800000000000000080000000000000000"
        "0000018bcfe64c840000000000000003"
    )
    assert TimerCheckpoint.decode(check.encode()) == check


def test_the_end_of_a_file_is_as_rocketmqs(disk: SimulatedDisk) -> None:
    log = log_of(disk)
    positions = [log.append(unit(number).encode()) for number in range(PER_FILE + 1)]
    assert positions[-2:] == [(PER_FILE - 1) * TIMER_UNIT_BYTES, FILE]
    left = FILE - PER_FILE * TIMER_UNIT_BYTES
    content = disk.content(ROOT / "timerlog" / f"{0:020d}")
    assert content[PER_FILE * TIMER_UNIT_BYTES :][: END.size] == END.pack(left, 0, 0xCBD43194)


# --- The log ---


def test_units_are_found_again_from_any_file_on(disk: SimulatedDisk) -> None:
    log = log_of(disk)
    written = {log.append(unit(number).encode()): number for number in range(250)}
    assert all(log.read(position).physical_offset == number for position, number in written.items())
    for scan_from in (0, FILE - 1, FILE, 2 * FILE + 7):
        again = log_of(disk)
        found = {position: each.physical_offset for position, each in again.load(scan_from)}
        first = scan_from - scan_from % FILE
        assert found == {position: number for position, number in written.items() if position >= first}
        assert again.appended == log.appended


def test_units_are_written_together_up_to_the_end_of_a_file(disk: SimulatedDisk) -> None:
    together, single = log_of(disk), log_of(simulated_disk())
    units = [unit(number) for number in range(250)]
    for each in units:
        single.append(each.encode())
    left = units
    while left:
        count, position = min(together.room, 60), together.appended
        assert together.append(*[each.encode() for each in left[:count]]) == position
        left = left[count:]
    assert together.appended == single.appended
    assert [each for _, each in log_of(disk).load(0)] == units


@given(st.lists(st.integers(0, 3), min_size=1, max_size=400))
def test_chains_are_followed_back_through_files_and_each_other(slots: list[int]) -> None:
    """Units of several slots lie between one another; each chain has its own, all of them."""
    log = log_of(simulated_disk())
    ends = dict.fromkeys(range(4), NO_POSITION)
    written: dict[int, list[TimerUnit]] = {slot: [] for slot in ends}
    for number, slot in enumerate(slots):
        made = unit(number, ends[slot])
        ends[slot] = log.append(made.encode())
        written[slot].append(made)
    for slot, end in ends.items():
        assert list(log.chain(end)) == written[slot][::-1]


def test_a_torn_chain_gives_what_comes_before_the_tear(disk: SimulatedDisk) -> None:
    log = log_of(disk)
    end = NO_POSITION
    for number in range(50):
        end = log.append(unit(number, end).encode())
    disk.overwrite(ROOT / "timerlog" / f"{0:020d}", 20 * TIMER_UNIT_BYTES, b"\xff" * 8)
    found = []
    with pytest.raises(CorruptRecord):
        for each in log.chain(end):
            found.append(each.physical_offset)
    assert found == list(range(49, 20, -1))


def test_a_log_is_cut_at_the_first_unit_that_makes_no_sense(disk: SimulatedDisk) -> None:
    log = log_of(disk)
    positions = [log.append(unit(number).encode()) for number in range(220)]
    disk.overwrite(ROOT / "timerlog" / f"{FILE:020d}", 10 * TIMER_UNIT_BYTES, b"\xff" * 8)
    again = log_of(disk)
    assert len(list(again.load(0))) == PER_FILE + 10
    assert again.appended == positions[PER_FILE + 10]
    with pytest.raises(CorruptRecord):
        again.read(positions[PER_FILE + 10])
    assert again.append(unit(1000).encode()) == positions[PER_FILE + 10]
    # What lay behind is gone, and does not come back with the next recovery.
    third = log_of(disk)
    assert [each.physical_offset for _, each in third.load(0)][-1] == 1000


def test_a_log_whose_files_are_gone_goes_on_behind_them(disk: SimulatedDisk) -> None:
    """Nothing that the wheel still names is taken for something else."""
    log = log_of(disk)
    assert list(log.load(12_345)) == []
    assert (log.appended, log.append(unit().encode())) == (2 * FILE, 2 * FILE)


def test_a_flushed_log_survives_a_power_cut(disk: SimulatedDisk) -> None:
    log = log_of(disk)
    for number in range(120):
        log.append(unit(number).encode())
    log.flush()
    image = disk.crash_image(random.Random(1))
    assert len(list(log_of(image).load(0))) == 120


def test_old_files_are_deleted(disk: SimulatedDisk) -> None:
    log = log_of(disk)
    for number in range(250):
        log.append(unit(number, write_ms=NOW_MS + number * 1000).encode())
    log.delete_before(NOW_MS + 150_000, 60_000)
    assert log.first == 0
    log.delete_before(NOW_MS + 159_000, 60_000)
    assert log.first == FILE
    log.delete_before(NOW_MS + 10**9, 60_000)
    assert log.first == 2 * FILE


# --- The wheel ---


def test_slots_are_kept_in_the_file(disk: SimulatedDisk) -> None:
    wheel = TimerWheel(disk, ROOT / "timerwheel", 1000)
    for seconds, position, weight in ((0, 0, 1), (1, 52, 1), (0, 104, 1), (5, 156, 1), (5, 208, -1)):
        wheel.add(NOW_MS + seconds * 1000, position, weight)
    wheel.add(NOW_MS, 52, 1)  # known already
    assert (len(wheel), wheel.count, wheel.get(NOW_MS)) == (3, 3, TimerSlot(0, 104, 2))
    wheel.write(wheel.changes())
    assert disk.length(ROOT / "timerwheel") == FILE_BYTES
    again = TimerWheel(disk, ROOT / "timerwheel", 1000)
    again.load(NOW_MS + 1000, NOW_MS + 60_000)
    assert (again.get(NOW_MS), again.get(NOW_MS + 1000)) == (None, TimerSlot(52, 52, 1))
    assert again.get(NOW_MS + 5000) == TimerSlot(156, 208, 0)
    assert again.last_position(NOW_MS + 2000) == NO_POSITION
    assert wheel.changes() == []


def test_a_slot_of_another_round_is_not_live(disk: SimulatedDisk) -> None:
    wheel = TimerWheel(disk, ROOT / "timerwheel", 1000)
    wheel.add(NOW_MS, 0, 1)
    wheel.write(wheel.changes())
    two_weeks_ms = 14 * 86_400_000
    again = TimerWheel(disk, ROOT / "timerwheel", 1000)
    again.load(NOW_MS + two_weeks_ms - 5000, NOW_MS + two_weeks_ms + 5000)
    assert len(again) == 0
    # Across the end of the file.
    end = FILE_BYTES // SLOT_BYTES * 1000
    again.add(NOW_MS - NOW_MS % end + end, 52, 1)
    again.add(NOW_MS - NOW_MS % end + end - 1000, 104, 1)
    again.write(again.changes())
    third = TimerWheel(disk, ROOT / "timerwheel", 1000)
    third.load(NOW_MS - NOW_MS % end + end - 9000, NOW_MS - NOW_MS % end + end + 9000)
    assert len(third) == 2


def test_changes_that_were_lost_are_written_later(disk: SimulatedDisk) -> None:
    wheel = TimerWheel(disk, ROOT / "timerwheel", 1000)
    wheel.add(NOW_MS, 0, 1)
    lost = wheel.changes()
    wheel.lose_changes()
    assert wheel.changes() == lost


def test_a_check_point_is_saved(disk: SimulatedDisk) -> None:
    file = TimerCheckpointFile(disk, ROOT / "config" / "timercheck")
    assert file.load() is None
    check = TimerCheckpoint(NOW_MS, 52, 8, 8, 0, NOW_MS, 3)
    file.save(check)
    assert TimerCheckpointFile(disk, ROOT / "config" / "timercheck").load() == check
    assert disk.length(ROOT / "config" / "timercheck") == 4096


# --- RocketMQ's ---


def test_rocketmqs_files_are_read(golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "clean", tmp_path)
    check = TimerCheckpointFile(RealDisk(), root / "config" / "timercheck").load()
    assert check is not None
    assert (check.queue_offset, check.log_flushed) == (18, 936)
    log = TimerLog(RealDisk(), root / "timerlog", FILE)
    units = dict(log.load(0))
    assert (len(units), log.appended) == (18, 936)
    wheel = TimerWheel(RealDisk(), root / "timerwheel", 1000)
    times = [each.due_ms for each in units.values()]
    wheel.load(min(times), max(times))
    chained: set[int] = set()
    for time in set(times):
        position = wheel.last_position(time)
        while position != NO_POSITION:
            assert units[position].due_ms == time
            chained.add(position)
            position = units[position].previous
    assert chained == units.keys()
    cancelled = [each for each in units.values() if each.flags & TimerFlag.DELETE]
    assert len(cancelled) == 1
    assert wheel.get(cancelled[0].due_ms) == TimerSlot(156, 208, 0)
