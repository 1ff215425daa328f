"""Unique ids: what Java's decoders read from them, and that no two are equal."""

import ipaddress
import itertools
import struct
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.model.message import pack_host
from skylark.model.message_id import (
    COUNTER_LIMIT,
    UniqueIds,
    offset_message_id,
    parse_offset_message_id,
    parse_unique_id,
)

ADDRESS = bytes([10, 20, 30, 40])
STARTED = datetime(2026, 11, 15, 9, 30, tzinfo=UTC)
STARTED_MS = int(STARTED.timestamp() * 1000)
MONTH_MS = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)


def parts(unique_id: str) -> tuple[bytes, int, int, int]:
    """Address, process, time and counter."""
    data = bytes.fromhex(unique_id)
    process, _, elapsed_ms, counter = struct.unpack(">HIIH", data[-12:])
    return data[:-12], process, elapsed_ms, counter


def test_an_id_holds_address_process_time_and_counter() -> None:
    ids = UniqueIds(ADDRESS, STARTED_MS, process_id=0x12345)
    first, second = ids.next(STARTED_MS), ids.next(STARTED_MS + 7)
    assert first == first.upper()
    assert len(first) == 32
    assert parts(first) == (ADDRESS, 0x2345, STARTED_MS - MONTH_MS, 0)
    assert parts(second) == (ADDRESS, 0x2345, STARTED_MS - MONTH_MS + 7, 1)


def test_an_id_of_an_ipv6_address_is_longer() -> None:
    ids = UniqueIds(bytes(range(16)), STARTED_MS)
    assert len(ids.next(STARTED_MS)) == ids.chars == 56
    assert parts(ids.next(STARTED_MS))[0] == bytes(range(16))


def test_ids_of_one_millisecond_differ_as_long_as_the_counter_reaches() -> None:
    ids = UniqueIds(ADDRESS, STARTED_MS)
    assert len({ids.next(STARTED_MS) for _ in range(COUNTER_LIMIT)}) == COUNTER_LIMIT


@given(st.lists(st.integers(1, 300), min_size=1, max_size=5), st.integers(0, 1000))
def test_several_are_as_if_made_one_by_one(counts: list[int], before_the_turn: int) -> None:
    """Also where the counter comes round in their midst."""
    one, other = (UniqueIds(ADDRESS, STARTED_MS, process_id=1) for _ in range(2))
    other._prefix = one._prefix  # part of it is random
    for ids in (one, other):
        ids._counter = itertools.count(COUNTER_LIMIT - before_the_turn)
    made = [each for count in counts for each in one.several(count, STARTED_MS)]
    assert made == [other.next(STARTED_MS) for _ in made]
    assert {len(each) for each in made} == {one.chars}
    assert one.next(STARTED_MS) == other.next(STARTED_MS)


def test_two_processes_and_two_brokers_of_one_process_differ() -> None:
    heads = {UniqueIds(ADDRESS, STARTED_MS, process_id=pid).next(STARTED_MS)[:20] for pid in range(100)}
    assert len(heads) == 100
    brokers = [UniqueIds(ADDRESS, STARTED_MS) for _ in range(2)]
    assert len({broker.next(STARTED_MS) for broker in brokers}) == 2


@given(st.lists(st.integers(-(10**10), 10**11), min_size=1, max_size=50))
def test_whatever_the_clock_does_ids_stay_well_formed_and_unique(jumps_ms: list[int]) -> None:
    ids = UniqueIds(ADDRESS, STARTED_MS)
    made = [ids.next(STARTED_MS + jump_ms) for jump_ms in jumps_ms]
    assert len(set(made)) == len(made)
    assert {len(each) for each in made} == {32}


@pytest.mark.parametrize("address", [ADDRESS, bytes(range(16))], ids=["v4", "v6"])
def test_a_unique_id_says_who_made_it_and_when(address: bytes) -> None:
    ids = UniqueIds(address, STARTED_MS, process_id=0x12345)
    ids.next(STARTED_MS)
    read = parse_unique_id(ids.next(STARTED_MS + 7), STARTED_MS + 100)
    assert (read.process_id, read.created_ms, read.counter) == (0x2345, STARTED_MS + 7, 1)
    assert ipaddress.ip_address(read.address).packed == address


def test_a_unique_id_of_last_month_is_read_in_this_one() -> None:
    made = UniqueIds(ADDRESS, STARTED_MS).next(STARTED_MS)
    december = int(datetime(2026, 12, 5, tzinfo=UTC).timestamp() * 1000)
    assert parse_unique_id(made, december).created_ms == STARTED_MS
    hours = 3600 * 1000
    assert parse_unique_id(made, STARTED_MS - 12 * hours).created_ms == STARTED_MS, "of a clock that is ahead"


def test_offset_ids_and_unique_ids_are_told_apart() -> None:
    host = pack_host("127.0.0.1", 10911)
    assert parse_offset_message_id(offset_message_id(host, 4711)) == (host, 4711)
    with pytest.raises(ValueError, match="it is the unique id of a message, not an offset id"):
        parse_offset_message_id(UniqueIds(ADDRESS, STARTED_MS, process_id=1).next(STARTED_MS))
    for parse in (parse_offset_message_id, lambda text: parse_unique_id(text, STARTED_MS)):
        for text in ("", "xyz", "x" * 32):
            with pytest.raises(ValueError, match=r"invalid message id|non-hexadecimal"):
                parse(text)
