"""Laws of the record and of the property text, over everything that hypothesis can think of."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from skylark.errors import CorruptRecord
from skylark.model.java import java_hash
from skylark.model.message import (
    HOST_V6_MASK,
    PutMessage,
    SystemFlag,
    decode_properties,
    encode_properties,
    format_host,
    property_finder,
)
from skylark.model.message_id import offset_message_id, parse_offset_message_id
from skylark.model.record import (
    BATCH_ELEMENT,
    BLANK,
    MAGIC_BLANK,
    Scan,
    ScannedRecord,
    ScanStop,
    decode,
    encode,
    host_flags,
    split_batch,
    split_columns,
)
from skylark.store.append_result import AppendedRecord, PutResult, PutStatus, Refused
from skylark.store.batch_encoder import NO_BATCH_MASK
from skylark.store.commit_log import CommitLog
from skylark.store.queue_entry import delay_level, tags_code
from skylark.store.queue_table import QueueTable
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import ROOT, small_settings

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
HOSTS = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
NAMES = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8
)
VALUES = st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), max_size=12)
PROPERTIES = st.dictionaries(
    NAMES | st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY"]), VALUES, max_size=5
)
TOPICS = st.text(
    st.characters(exclude_characters="/\\\0", exclude_categories=["Cs"]), min_size=1, max_size=20
)
LONG_TOPICS = st.integers(121, 248).map(lambda length: "%RETRY%" + "g" * length)
# Texts near the property text, and nothing like it.
TEXTS = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"TAGS", b"KEYS", b"a", b"T", b"\xff", "é".encode()]), max_size=16
).map(b"".join)


@st.composite
def messages(draw: st.DrawFn, topics: st.SearchStrategy[str] = TOPICS | LONG_TOPICS) -> PutMessage:
    return PutMessage(
        draw(topics),
        draw(st.integers(0, (1 << 31) - 1)),
        draw(st.binary(max_size=40)),
        draw(PROPERTIES.map(encode_properties) | TEXTS),
        flag=draw(I32),
        sys_flag=draw(I32),
        born_timestamp=draw(I64),
        born_host=draw(HOSTS),
        reconsume_times=draw(I32),
        prepared_transaction_offset=draw(I64),
    )


@given(
    put=messages(),
    queue_offset=I64,
    physical_offset=I64,
    timestamp=I64,
    store_host=HOSTS,
    with_crc=st.booleans(),
)
def test_what_is_encoded_is_decoded(
    put: PutMessage,
    queue_offset: int,
    physical_offset: int,
    timestamp: int,
    store_host: bytes,
    with_crc: bool,
) -> None:
    record = encode(
        put,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp=timestamp,
        store_host=store_host,
        with_crc_property=with_crc,
    )
    read = decode(record)
    properties = dict(read.properties)
    assert (properties.pop("__CRC32#", None) is not None) == with_crc
    assert msgspec.structs.asdict(read) | {"properties": properties} == {
        "topic": put.topic,
        "queue_id": put.queue_id,
        "queue_offset": queue_offset,
        "physical_offset": physical_offset,
        "size": len(record),
        "body": put.body,
        "body_crc": read.body_crc,
        "properties": decode_properties(put.properties),
        "flag": put.flag,
        "sys_flag": put.sys_flag & ~HOST_V6_MASK | host_flags(put.born_host, store_host),
        "born_timestamp": put.born_timestamp,
        "born_host": format_host(put.born_host),
        "store_timestamp": timestamp,
        "store_host": format_host(store_host),
        "reconsume_times": put.reconsume_times,
        "prepared_transaction_offset": put.prepared_transaction_offset,
    }


@given(PROPERTIES)
def test_properties_survive_their_text(properties: dict[str, str]) -> None:
    expected = {name: value for name, value in properties.items() if value}
    assert decode_properties(encode_properties(properties)) == expected


@given(TEXTS, st.sampled_from(["TAGS", "KEYS", "a"]))
def test_a_finder_agrees_with_the_parser_on_any_text(text: bytes, name: str) -> None:
    found = property_finder(name)(text)
    parsed = decode_properties(text).get(name)
    assert (found.decode(errors="replace") if found is not None else None) == parsed


@given(TEXTS)
def test_the_tags_code_is_the_hash_of_the_parsed_tags(text: bytes) -> None:
    assert tags_code(text) == java_hash(decode_properties(text).get("TAGS", ""))


@given(HOSTS.map(lambda host: host[:-4] + b"\0\0" + host[-2:]), I64)
def test_offset_message_ids_are_read_back(host: bytes, physical_offset: int) -> None:
    """Of every host with a port: ids with a larger number in its place are unique ids."""
    assert parse_offset_message_id(offset_message_id(host, physical_offset)) == (host, physical_offset)


# Scanning


def log_of(puts: list[PutMessage], base: int, store_host: bytes) -> tuple[bytes, list[int]]:
    data, offsets = b"", []
    for number, put in enumerate(puts):
        offsets.append(base + len(data))
        data += encode(
            put,
            queue_offset=number,
            physical_offset=base + len(data),
            store_timestamp=number,
            store_host=store_host,
        )
    return data, offsets


def scan_in_chunks(
    data: bytes, base: int, file_end: int, cuts: list[int]
) -> tuple[list[ScannedRecord], Scan]:
    """Scan as the log's walk does: with more and more of the bytes, from where the last scan stopped."""
    found: list[ScannedRecord] = []
    at = base
    scan = Scan(b"", base, file_end)
    for cut in [*sorted(cuts), len(data)]:
        scan = Scan(data[at - base : cut], at, file_end)
        found += scan
        at = scan.physical_offset
        if scan.stop is not ScanStop.NEED_MORE:
            break
    return found, scan


@given(st.data(), st.lists(messages(), max_size=4), st.integers(0, 1 << 40), HOSTS, st.integers(8, 120))
def test_a_scan_finds_every_record_however_the_bytes_are_cut(
    data: st.DataObject, puts: list[PutMessage], base: int, store_host: bytes, left: int
) -> None:
    log, offsets = log_of(puts, base, store_host)
    whole = log + BLANK.pack(left, MAGIC_BLANK).ljust(left, b"\0")
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=6))
    found, scan = scan_in_chunks(whole, base, base + len(whole), cuts)
    assert [record.physical_offset for record in found] == offsets
    assert [record.topic.decode() for record in found] == [put.topic for put in puts]
    assert [record.properties for record in found] == [put.properties for put in puts]
    assert (scan.stop, scan.physical_offset) == (ScanStop.BLANK, base + len(log))


@given(st.data(), st.lists(messages(), min_size=1, max_size=3), HOSTS, st.booleans())
def test_damage_only_ever_stops_a_scan(
    data: st.DataObject, puts: list[PutMessage], store_host: bytes, check_crc: bool
) -> None:
    """A flipped byte ends the walk or changes a field, and decoding gives a record or CorruptRecord."""
    log, offsets = log_of(puts, 0, store_host)
    broken = bytearray(log)
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(log) - 1))] ^= data.draw(st.integers(1, 255))
    scan = Scan(bytes(broken), 0, len(log) + 8, check_crc=check_crc)
    found = list(scan)
    assert [record.physical_offset for record in found] == offsets[: len(found)]
    assert isinstance(scan.stop, ScanStop)
    for record in found:
        assert decode(bytes(broken), record.physical_offset, check_crc=check_crc).size == record.size
    for at in offsets:
        with suppress(CorruptRecord):
            decode(memoryview(broken), at)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_garbage_is_no_record(garbage: bytes, room: int) -> None:
    scan = Scan(garbage, 0, len(garbage) + room)
    assert list(scan) == []
    assert scan.position == 0
    with suppress(CorruptRecord):
        decode(garbage)


@given(st.binary(max_size=120))
def test_garbage_is_no_batch_or_a_batch_of_its_own_bytes(garbage: bytes) -> None:
    with suppress(ValueError):
        elements = split_batch(memoryview(garbage))
        assert sum(BATCH_ELEMENT.size + 2 + len(body) + len(text) for _, body, text in elements) == len(
            garbage
        )


@given(
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    texts=st.lists(
        st.tuples(st.binary(min_size=9, max_size=9), st.binary(min_size=7, max_size=7)), min_size=1
    ),
    lengths=st.tuples(st.integers(0, 9), st.integers(0, 7)),
    change=st.tuples(st.integers(0, 1000), st.integers(0, 255)) | st.none(),
)
def test_messages_that_are_alike_are_split_like_others(
    flag: int, texts: list[tuple[bytes, bytes]], lengths: tuple[int, int], change: tuple[int, int] | None
) -> None:
    elements = [(flag, body[: lengths[0]], text[: lengths[1]]) for body, text in texts]
    batch = bytearray(batch_of(elements))
    if change is not None:
        batch[change[0] % len(batch)] = change[1]
    # Another flag at the end: that batch is taken apart message by message.
    other = batch_of([(flag ^ 1, b"", b"")])
    try:
        expected = split_batch(bytes(batch) + other)[:-1]
    except ValueError:
        with pytest.raises(ValueError, match="batch"):
            split_batch(bytes(batch))
    else:
        assert split_batch(bytes(batch)) == expected


def batch_of(elements: list[tuple[int, bytes, bytes]]) -> bytes:
    return b"".join(
        BATCH_ELEMENT.pack(22 + len(body) + len(text), 0, 0, flag, len(body))
        + body
        + len(text).to_bytes(2, "big")
        + text
        for flag, body, text in elements
    )


# The append writes what `encode` says


def log_on(disk: SimulatedDisk, store_host: bytes, **changes: Any) -> tuple[CommitLog, QueueTable]:
    settings = small_settings(**changes)
    log = CommitLog(disk, settings, store_host)
    lock = threading.Lock()
    return log, QueueTable(disk, ROOT, settings, lock)


@given(st.lists(messages(TOPICS | LONG_TOPICS), max_size=8), HOSTS, st.booleans(), st.integers(0, 1 << 40))
def test_the_append_writes_encoded_records(
    puts: list[PutMessage], store_host: bytes, with_crc: bool, now_ms: int
) -> None:
    log, queues = log_on(SimulatedDisk(), store_host, append_crc_property=with_crc)
    results = log.append(puts, queues, now_ms)
    next_offsets: dict[tuple[str, int], int] = {}
    for put, result in zip(puts, results, strict=True):
        if not isinstance(result, AppendedRecord):
            is_inner_batch = put.sys_flag & SystemFlag.INNER_BATCH
            is_bad_topic = put.topic in (".", "..") or len(put.topic.encode()) > 127
            assert is_inner_batch or is_bad_topic or has_forbidden_nul(put.properties, with_crc), result
            continue
        assert not has_forbidden_nul(put.properties, with_crc)
        key = put.topic, put.queue_id
        queue_offset = 0
        if not put.sys_flag & 0x4:
            queue_offset = next_offsets.get(key, 0)
            next_offsets[key] = queue_offset + 1
        assert log.read(result.physical_offset, result.size) == encode(
            put,
            queue_offset=queue_offset,
            physical_offset=result.physical_offset,
            store_timestamp=now_ms,
            store_host=store_host,
            with_crc_property=with_crc,
        )


def has_forbidden_nul(properties: bytes, with_crc: bool) -> bool:
    """Zeros in properties that no CRC covers are what a torn write leaves."""
    return b"\0" in properties and not with_crc


ELEMENTS = st.tuples(I32, st.binary(max_size=30), PROPERTIES.map(encode_properties) | TEXTS)
TAGGED = st.lists(
    st.sampled_from(
        [b"", b"a\x01b", b"TAGS\x01t", b"TAGS\x01u", b"TAGS\x01", b"XTAGS\x01t", b"TAGS\x01TAGS\x01t"]
    ),
    max_size=3,
).map(b"\x02".join)


@st.composite
def alike(draw: st.DrawFn) -> list[tuple[int, bytes, bytes]]:
    """Messages of the same lengths, most of them with the same tags, as most batches are made of."""
    flag, body, text = draw(I32), draw(st.binary(max_size=30)), draw(TAGGED)
    end = draw(st.sampled_from([b"\x02", b"\x02", b"", b"\x02b\x01c\x02"]))
    keys = draw(st.lists(st.sampled_from([b"a", b"b", b"\x02", b"\xff"]), min_size=1, max_size=12))
    elements = [(flag, bytes(reversed(key + body)), key + b"\x02" + text + end) for key in keys]
    odd = draw(st.integers(0, 2 * len(elements)))
    if odd < len(elements):
        elements[odd] = flag, elements[odd][1], elements[odd][2].replace(b"t", b"v")
    return elements


@given(messages(st.just("Topic")), st.lists(ELEMENTS, min_size=1, max_size=6) | alike(), HOSTS, st.booleans())
def test_a_batch_writes_encoded_records(
    head: PutMessage, elements: list[tuple[int, bytes, bytes]], store_host: bytes, with_crc: bool
) -> None:
    log, queues = log_on(SimulatedDisk(), store_host, append_crc_property=with_crc)
    head.sys_flag &= ~NO_BATCH_MASK
    assume(delay_level(head.properties) <= 0)
    results = log.append_batches([(head, split_columns(batch_of(elements)))], queues, 1)[0]
    texts = [head.properties, *(text for _, _, text in elements)]
    if any(has_forbidden_nul(text, with_crc) for text in texts):
        assert [result.status for result in results] == [PutStatus.MESSAGE_ILLEGAL]
        return
    assert len(results) == len(elements)
    for number, ((flag, element_body, text), result) in enumerate(zip(elements, results, strict=True)):
        assert isinstance(result, AppendedRecord), result
        ended = text + b"\x02" if text and not text.endswith(b"\x02") else text
        put = PutMessage(
            head.topic,
            head.queue_id,
            element_body,
            ended + head.properties,
            flag=flag,
            sys_flag=head.sys_flag,
            born_timestamp=head.born_timestamp,
            born_host=head.born_host,
            reconsume_times=head.reconsume_times,
        )
        assert with_crc or result.properties == put.properties
        assert result.tags_code == tags_code(put.properties)
        assert log.read(result.physical_offset, result.size) == encode(
            put,
            queue_offset=number,
            physical_offset=result.physical_offset,
            store_timestamp=1,
            store_host=store_host,
            with_crc_property=with_crc,
        )


BATCHES = st.tuples(
    messages(st.sampled_from(["Topic", "Other", "a/b"])),
    st.lists(ELEMENTS, max_size=4) | alike(),
)


@given(st.lists(BATCHES, min_size=1, max_size=6), st.booleans())
def test_batches_that_come_together_are_stored_as_one_by_one(
    batches: list[tuple[PutMessage, list[tuple[int, bytes, bytes]]]], with_crc: bool
) -> None:
    for head, _ in batches:
        head.queue_id %= 2
    # Again and again, so that files end in between.
    split = 3 * [(head, split_columns(batch_of(elements))) for head, elements in batches]
    together, one_by_one = SimulatedDisk(), SimulatedDisk()
    log, queues = log_on(together, bytes(8), append_crc_property=with_crc)
    results = log.append_batches(split, queues, 1)
    log, queues = log_on(one_by_one, bytes(8), append_crc_property=with_crc)
    alone = [log.append_batches([each], queues, 1)[0] for each in split]
    assert [told(result) for result in results] == [told(result) for result in alone]
    directory = ROOT / "commitlog"
    names = one_by_one.files(directory)
    assert together.files(directory) == names
    for name in names:
        assert together.content(directory / name) == one_by_one.content(directory / name)


def told(result: Sequence[PutResult]) -> list[object]:
    """What a batch was answered, without the queue, which is another one in another store."""
    return [
        each
        if isinstance(each, Refused)
        else (each.queue.topic, each.queue.queue_id, each.queue_offset, each.physical_offset, each.tags_code)
        for each in result
    ]
