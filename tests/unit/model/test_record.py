"""The commit-log record, byte for byte. The vectors were checked against Apache RocketMQ's own encoder."""

from __future__ import annotations

import struct

import pytest

from skylark.errors import CorruptRecord
from skylark.model.java import java_hash
from skylark.model.message import PutMessage, SystemFlag, encode_properties, pack_host
from skylark.model.message_id import offset_message_id, parse_offset_message_id
from skylark.model.record import (
    BATCH_ELEMENT,
    BLANK,
    MAGIC_BLANK,
    RECORD_BYTES_MIN,
    BatchElement,
    Scan,
    ScanStop,
    crc32,
    crc_property,
    decode,
    decode_all,
    encode,
    has_valid_crc_property,
    split,
    split_batch,
    store_timestamp_position,
    terminated,
    topic_part,
    without_crc_property,
)

PHYSICAL_OFFSET = 1073742336
FILE_END = 2 * 1073741824
STORED_MS = 1700000000123
BORN_V4 = pack_host("192.168.1.10", 54321)
BORN_V6 = pack_host("2001:db8::10", 54321)
STORE_V4 = pack_host("192.168.1.20", 10911)
STORE_V6 = pack_host("2001:db8::20", 10911)
PROPERTIES = {
    "KEYS": "order-1001 user-7",
    "UNIQ_KEY": "C0A8010A3E7018B4AAC24F3B1C2D0000",
    "CLUSTER": "DefaultCluster",
    "TAGS": "TagA",
}
V1 = bytes.fromhex(
    "000000d4daa320a769c865ed000000010000000000000000000000070000000040000200000000000000018bcfe56800"
    "c0a8010a0000d4310000018bcfe5687bc0a8011400002a9f0000000000000000000000000000000e48656c6c6f20526f"
    "636b65744d5109546f7069635465737400624b455953016f726465722d3130303120757365722d3702554e49515f4b45"
    "5901433041383031304133453730313842344141433234463342314332443030303002434c55535445520144656661756c"
    "74436c75737465720254414753015461674102"
)


def message(
    topic: str = "TopicTest",
    born_host: bytes = BORN_V4,
    body: bytes = b"Hello RocketMQ",
    properties: bytes | None = None,
    sys_flag: int = 0,
) -> PutMessage:
    text = encode_properties(PROPERTIES) if properties is None else properties
    return PutMessage(
        topic, 1, body, text, sys_flag=sys_flag, born_timestamp=1700000000000, born_host=born_host
    )


def encoded(
    put: PutMessage | None = None,
    *,
    store_host: bytes = STORE_V4,
    with_crc_property: bool = False,
    physical_offset: int = PHYSICAL_OFFSET,
) -> bytes:
    return encode(
        put or message(),
        queue_offset=7,
        physical_offset=physical_offset,
        store_timestamp=STORED_MS,
        store_host=store_host,
        with_crc_property=with_crc_property,
    )


# The vectors


def test_record_of_version_1() -> None:
    assert len(V1) == 212
    assert encoded() == V1


def test_record_of_version_1_is_read() -> None:
    read = decode(V1)
    assert read.topic == "TopicTest"
    assert (read.queue_id, read.queue_offset, read.physical_offset, read.size) == (1, 7, PHYSICAL_OFFSET, 212)
    assert read.body == b"Hello RocketMQ"
    assert read.body_crc == 1774740973 == crc32(b"Hello RocketMQ")
    assert read.properties == PROPERTIES
    assert (read.flag, read.sys_flag, read.reconsume_times, read.prepared_transaction_offset) == (0, 0, 0, 0)
    assert (read.born_timestamp, read.born_host) == (1700000000000, "192.168.1.10:54321")
    assert (read.store_timestamp, read.store_host) == (STORED_MS, "192.168.1.20:10911")


def test_record_with_crc_property() -> None:
    record = encoded(with_crc_property=True)
    assert len(record) == 232
    assert record[:4].hex() == "000000e8"
    assert record[112:114].hex() == "0076"
    assert crc32(record[:212]) == 1069311735
    assert record[-20:].hex() == "5f5f435243333223013533373131333936303102"
    assert record[-20:] == crc_property(record[:212])
    assert has_valid_crc_property(memoryview(record))
    assert decode(record).properties == {**PROPERTIES, "__CRC32#": "5371139601"}


def test_record_with_ipv6_born_host() -> None:
    record = encoded(message(born_host=BORN_V6))
    assert len(record) == 224
    assert record[36:40].hex() == "00000010"
    assert record[48:68].hex() == "20010db80000000000000000000000100000d431"
    assert int.from_bytes(record[68:76], "big") == STORED_MS
    assert decode(record).born_host == "[2001:db8::10]:54321"


def test_record_with_ipv6_store_host() -> None:
    record = encoded(store_host=STORE_V6)
    assert len(record) == 224
    assert record[36:40].hex() == "00000020"
    assert int.from_bytes(record[56:64], "big") == STORED_MS
    assert decode(record).store_host == "[2001:db8::20]:10911"


def test_the_host_bits_follow_the_hosts_and_nothing_else() -> None:
    record = encoded(message(sys_flag=0x30 | SystemFlag.COMPRESSED))
    assert decode(record).sys_flag == SystemFlag.COMPRESSED
    record = encoded(message(born_host=BORN_V6, sys_flag=SystemFlag.ZSTD), store_host=STORE_V6)
    assert decode(record).sys_flag == SystemFlag.ZSTD | 0x30


def test_record_of_version_2() -> None:
    topic = "%RETRY%" + 123 * "g"
    record = encoded(message(topic=topic))
    assert len(record) == 334
    assert record[4:8].hex() == "daa320ab"
    assert record[102:104].hex() == "0082"
    assert decode(record).topic == topic


def test_blank_at_a_files_end() -> None:
    assert BLANK.pack(300, MAGIC_BLANK).hex() == "0000012ccbd43194"


@pytest.mark.parametrize("topic", ["T", "T" * 127, "%RETRY%" + "g" * 120])
def test_up_to_127_characters_are_version_1(topic: str) -> None:
    magic, part = topic_part(topic)
    assert magic == 0xDAA320A7
    assert part == bytes((len(topic),)) + topic.encode()


@pytest.mark.parametrize("topic", ["T" * 128, "%RETRY%" + "订" * 60, "\U0001f600" * 64])
def test_a_topic_whose_length_is_no_signed_byte_is_version_2(topic: str) -> None:
    """Readers take version 1's length byte as signed, so it ends at 127 bytes, not only at 127 characters."""
    magic, part = topic_part(topic)
    assert magic == 0xDAA320AB
    assert part == struct.pack(">H", len(topic.encode())) + topic.encode()
    assert decode(encoded(message(topic=topic))).topic == topic


@pytest.mark.parametrize(
    ("tag", "unit_field"),
    [
        ("TagA", "000000000027a807"),
        ("TagB", "000000000027a808"),
        ("TagC", "000000000027a809"),
        ("order", "000000000651874e"),
        ("order-created", "ffffffffe897bb69"),
        ("payment", "ffffffffd11c3206"),
        ("d", "0000000000000064"),
        ("订单", "0000000000113bf3"),
        ("\U0001f600", "00000000001b0d63"),
        ("", "0000000000000000"),
        ("polygenelubricants", "ffffffff80000000"),
    ],
)
def test_tag_codes_as_units_hold_them(tag: str, unit_field: str) -> None:
    assert struct.pack(">q", java_hash(tag)).hex() == unit_field


# Ids


def test_offset_message_ids() -> None:
    short = "C0A8011400002A9F0000000040000200"
    long = "20010DB800000000000000000000002000002A9F0000000040000200"
    assert offset_message_id(STORE_V4, PHYSICAL_OFFSET) == short
    assert offset_message_id(STORE_V6, PHYSICAL_OFFSET) == long
    assert parse_offset_message_id(short) == (STORE_V4, PHYSICAL_OFFSET)
    assert parse_offset_message_id(long) == (STORE_V6, PHYSICAL_OFFSET)


@pytest.mark.parametrize("text", ["", "C0A8", "x" * 32, "C0A8011400002A9F00000000400002", "0" * 57])
def test_what_is_no_offset_message_id(text: str) -> None:
    with pytest.raises(ValueError, match=r"characters|non-hexadecimal"):
        parse_offset_message_id(text)


# CRC


def test_an_empty_body_has_crc_0() -> None:
    assert decode(encoded(message(body=b""))).body_crc == 0


def test_crc_digits_are_reversed_and_padded_behind() -> None:
    # 21 bytes were searched for a checksum of few digits; what counts is where the zeros go.
    data = next(str(n).encode() for n in range(100_000) if crc32(str(n).encode()) < 100_000_000)
    digits = str(crc32(data))
    written = crc_property(data)
    assert written == b"__CRC32#\x01" + digits[::-1].encode() + b"0" * (10 - len(digits)) + b"\x02"
    assert len(written) == 20


def test_a_foreign_crc_property_is_replaced() -> None:
    text = b"a\x01b\x02__CRC32#\x010000000000\x02c\x01d"
    record = encoded(message(properties=text), with_crc_property=True)
    assert record.count(b"__CRC32#") == 1
    assert has_valid_crc_property(memoryview(record))
    assert decode(record).properties["c"] == "d"
    assert without_crc_property(b"a\x01b\x02") == b"a\x01b\x02"


def test_the_crc_property_covers_every_byte_before_it() -> None:
    record = encoded(with_crc_property=True)
    for position in range(len(record)):
        broken = bytearray(record)
        broken[position] ^= 0x40
        assert not has_valid_crc_property(memoryview(broken)), position
    assert not has_valid_crc_property(memoryview(b""))


def test_termination() -> None:
    assert terminated(b"") == b""
    assert terminated(b"a\x01b") == b"a\x01b\x02"
    assert terminated(b"a\x01b\x02") == b"a\x01b\x02"


# Taking apart what is not right


def test_a_wrong_body_is_found_unless_not_looked_for() -> None:
    broken = V1.replace(b"Hello", b"Jello")
    with pytest.raises(CorruptRecord, match="body CRC") as caught:
        decode(broken)
    assert caught.value.physical_offset == PHYSICAL_OFFSET
    assert decode(broken, check_crc=False).body == b"Jello RocketMQ"


@pytest.mark.parametrize("length", range(len(V1)))
def test_a_record_that_is_cut_short(length: int) -> None:
    with pytest.raises(CorruptRecord):
        split(V1[:length])


@pytest.mark.parametrize(
    ("position", "data", "reason"),
    [
        (4, "cbd43194", "magic 0xcbd43194"),
        (0, "000000d5", "size 213 does not match"),
        (84, "ffffffff", "body length -1"),
        (84, "7fffffff", "truncated"),
        (102, "ff", "truncated"),
        (112, "0061", "size 212 does not match"),
        (36, "00000010", "does not match|truncated"),
    ],
)
def test_fields_that_contradict_each_other(position: int, data: str, reason: str) -> None:
    change = bytes.fromhex(data)
    broken = V1[:position] + change + V1[position + len(change) :]
    with pytest.raises(CorruptRecord, match=reason):
        split(broken)
    with pytest.raises(CorruptRecord, match=reason):
        decode(memoryview(broken))


def test_several_records_in_a_row() -> None:
    again = encoded(message(topic="%RETRY%" + 123 * "g", born_host=BORN_V6))
    bodies = list(decode_all(memoryview(V1 + again + V1)))
    assert [each.topic for each in bodies] == ["TopicTest", "%RETRY%" + 123 * "g", "TopicTest"]
    assert list(decode_all(b"")) == []
    with pytest.raises(CorruptRecord):
        list(decode_all(V1 + again[:-1]))


def test_where_the_store_timestamp_lies() -> None:
    assert store_timestamp_position(0) == store_timestamp_position(SystemFlag.STORE_HOST_V6) == 56
    assert store_timestamp_position(SystemFlag.BORN_HOST_V6) == 68


# Scanning


def scan_all(data: bytes, *, file_end: int = FILE_END, **options: bool) -> tuple[list[int], Scan]:
    scan = Scan(data, PHYSICAL_OFFSET, file_end, **options)
    return [record.physical_offset for record in scan], scan


def records(count: int) -> bytes:
    data = b""
    for _ in range(count):
        data += encoded(physical_offset=PHYSICAL_OFFSET + len(data))
    return data


def test_a_scan_gives_what_dispatch_needs() -> None:
    (record,) = Scan(V1, PHYSICAL_OFFSET, FILE_END)
    assert record.topic == b"TopicTest"
    assert record.properties == encode_properties(PROPERTIES)
    assert record[:6] == (PHYSICAL_OFFSET, 212, 1, 7, 0, STORED_MS)


@pytest.mark.parametrize("born_host", [BORN_V4, BORN_V6])
@pytest.mark.parametrize("store_host", [STORE_V4, STORE_V6])
@pytest.mark.parametrize("topic", ["TopicTest", "%RETRY%" + 123 * "g"])
def test_a_scan_reads_every_layout(born_host: bytes, store_host: bytes, topic: str) -> None:
    data = encoded(message(topic=topic, born_host=born_host), store_host=store_host)
    (record,) = Scan(data, PHYSICAL_OFFSET, FILE_END)
    assert (record.store_timestamp, record.topic) == (STORED_MS, topic.encode())
    assert record.properties == encode_properties(PROPERTIES)


def test_a_scan_ends_at_the_end_of_the_bytes() -> None:
    data = records(3)
    found, scan = scan_all(data)
    assert found == [PHYSICAL_OFFSET + 212 * n for n in range(3)]
    assert (scan.stop, scan.physical_offset) == (ScanStop.NEED_MORE, PHYSICAL_OFFSET + 636)


@pytest.mark.parametrize("left", range(1, 212))
def test_a_scan_waits_for_the_rest_of_a_record(left: int) -> None:
    found, scan = scan_all(records(2)[:-left])
    assert found == [PHYSICAL_OFFSET]
    assert (scan.stop, scan.position) == (ScanStop.NEED_MORE, 212)


@pytest.mark.parametrize("left", [8, 9, 90, 91, 92, 300])
def test_a_scan_stops_at_a_blank(left: int) -> None:
    blank = BLANK.pack(left, MAGIC_BLANK).ljust(left, b"\0")
    found, scan = scan_all(V1 + blank, file_end=PHYSICAL_OFFSET + 212 + left)
    assert found == [PHYSICAL_OFFSET]
    assert (scan.stop, scan.position) == (ScanStop.BLANK, 212)


def test_a_blank_must_reach_exactly_to_the_end_of_the_file() -> None:
    blank = BLANK.pack(299, MAGIC_BLANK).ljust(300, b"\0")
    _, scan = scan_all(V1 + blank, file_end=PHYSICAL_OFFSET + 212 + 300)
    assert scan.stop is ScanStop.INVALID


@pytest.mark.parametrize(
    ("position", "data", "reason"),
    [
        (0, "00000000", "does not fit"),
        (0, "0000005a", "does not fit"),
        (0, "ffffffff", "does not fit"),
        (4, "00000000", "no record"),
        (4, "daa320a8", "magic 0xdaa320a8"),
        (8, "00000000", "body CRC"),
        (28, "0000000040000201", "record has physical offset 1073742337"),
        (84, "ffffffff", "body length -1"),
        (84, "000000ff", "body length 255"),
        (102, "ff", "does not match its parts"),
        (112, "0061", "does not match its parts"),
    ],
)
def test_a_scan_stops_where_no_record_can_be(position: int, data: str, reason: str) -> None:
    change = bytes.fromhex(data)
    broken = V1 + encoded(physical_offset=PHYSICAL_OFFSET + 212)
    broken = broken[: 212 + position] + change + broken[212 + position + len(change) :]
    found, scan = scan_all(broken)
    assert found == [PHYSICAL_OFFSET]
    assert (scan.stop, scan.position) == (ScanStop.INVALID, 212)
    assert reason in scan.reason


def test_a_scan_refuses_a_size_below_its_own_head() -> None:
    data = bytearray(encoded(message(born_host=BORN_V6, body=b"", properties=b""), store_host=STORE_V6))
    data[0:4] = RECORD_BYTES_MIN.to_bytes(4, "big")
    found, scan = scan_all(bytes(data))
    assert (found, scan.stop, scan.reason) == ([], ScanStop.INVALID, "size 91 is below its head")


def test_a_record_that_would_cross_the_files_end() -> None:
    found, scan = scan_all(V1, file_end=PHYSICAL_OFFSET + 211)
    assert (found, scan.stop) == ([], ScanStop.INVALID)
    found, _ = scan_all(V1, file_end=PHYSICAL_OFFSET + 212)
    assert found == [PHYSICAL_OFFSET]


def test_a_scan_without_crc_takes_a_wrong_body() -> None:
    broken = V1.replace(b"Hello", b"Jello")
    assert scan_all(broken)[0] == []
    assert scan_all(broken, check_crc=False)[0] == [PHYSICAL_OFFSET]


def test_an_empty_body_is_not_checked() -> None:
    """As in the reference: a record without body passes whatever its CRC field says."""
    data = bytearray(encoded(message(body=b"")))
    data[8:12] = b"\x01\x02\x03\x04"
    assert scan_all(bytes(data))[0] == [PHYSICAL_OFFSET]
    assert decode(bytes(data)).body == b""


def test_a_scan_can_demand_the_crc_property() -> None:
    good = encoded(with_crc_property=True)
    assert scan_all(good, require_crc_property=True)[0] == [PHYSICAL_OFFSET]
    found, scan = scan_all(V1, require_crc_property=True)
    assert (found, scan.stop, scan.reason) == ([], ScanStop.INVALID, "CRC property")
    broken = good.replace(b"TagA", b"TagB")
    assert scan_all(broken)[0] == [PHYSICAL_OFFSET]
    assert scan_all(broken, require_crc_property=True)[0] == []


# Batches


def batch_of(*elements: tuple[int, bytes, bytes]) -> bytes:
    data = b""
    for flag, body, properties in elements:
        total = 22 + len(body) + len(properties)
        data += BATCH_ELEMENT.pack(total, 0, 0, flag, len(body)) + body
        data += len(properties).to_bytes(2, "big") + properties
    return data


def test_a_batch_is_split() -> None:
    body = batch_of((3, b"one", b"a\x01b\x02"), (0, b"", b""), (-1, b"three", b"c\x01d"))
    elements = split_batch(memoryview(body))
    assert elements == [
        BatchElement(3, b"one", b"a\x01b\x02"),
        BatchElement(0, b"", b""),
        BatchElement(-1, b"three", b"c\x01d"),
    ]
    assert split_batch(memoryview(b"")) == []


@pytest.mark.parametrize("length", range(1, 29))
def test_a_batch_that_is_cut_short(length: int) -> None:
    body = batch_of((3, b"one", b"a\x01b\x02"))
    assert len(body) == 29
    with pytest.raises(ValueError, match="batch"):
        split_batch(memoryview(body[:length]))


@pytest.mark.parametrize(
    ("position", "data"),
    [(0, "00000000"), (0, "ffffffff"), (0, "0000001c"), (16, "ffffffff"), (16, "00000002"), (23, "0005")],
)
def test_a_batch_whose_lengths_lie(position: int, data: str) -> None:
    body = batch_of((3, b"one", b"a\x01b\x02"))
    change = bytes.fromhex(data)
    broken = body[:position] + change + body[position + len(change) :]
    with pytest.raises(ValueError, match="batch"):
        split_batch(memoryview(broken))
