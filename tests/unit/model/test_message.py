"""Property text, hosts and the small things that a stored message knows about itself."""

from __future__ import annotations

import pytest

from skylark.model.message import (
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    PutMessage,
    StoredMessage,
    SystemFlag,
    decode_properties,
    encode_properties,
    find_delay_level,
    find_keys,
    find_tags,
    find_unique_key,
    format_host,
    pack_host,
    property_finder,
)
from skylark.model.record import decode, encode

TEXT = b"KEYS\x01order-1001 user-7\x02UNIQ_KEY\x01C0A8\x02CLUSTER\x01DefaultCluster\x02TAGS\x01TagA\x02"


def stored(properties: dict[str, str]) -> StoredMessage:
    message = PutMessage("TopicTest", 1, b"body", encode_properties(properties))
    record = encode(
        message, queue_offset=0, physical_offset=0, store_timestamp=1, store_host=bytes(HOST_V4_BYTES)
    )
    return decode(record)


# Hosts


@pytest.mark.parametrize(
    ("host", "port", "packed", "shown"),
    [
        ("192.168.1.10", 54321, "c0a8010a0000d431", "192.168.1.10:54321"),
        ("2001:db8::10", 54321, "20010db80000000000000000000000100000d431", "[2001:db8::10]:54321"),
        ("10.0.0.0", 0, "0a00000000000000", "10.0.0.0:0"),
        ("255.255.255.255", 65535, "ffffffff0000ffff", "255.255.255.255:65535"),
    ],
)
def test_a_host_is_packed_and_shown(host: str, port: int, packed: str, shown: str) -> None:
    assert pack_host(host, port).hex() == packed
    assert format_host(bytes.fromhex(packed)) == shown
    assert len(bytes.fromhex(packed)) in (HOST_V4_BYTES, HOST_V6_BYTES)


@pytest.mark.parametrize("host", ["", "localhost", "1.2.3", "1.2.3.256", "::g"])
def test_what_is_no_address_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="does not appear to be"):
        pack_host(host, 1)


# Properties


def test_properties_are_written_and_read() -> None:
    properties = {
        "KEYS": "order-1001 user-7",
        "UNIQ_KEY": "C0A8",
        "CLUSTER": "DefaultCluster",
        "TAGS": "TagA",
    }
    assert encode_properties(properties) == TEXT
    assert decode_properties(TEXT) == properties
    assert encode_properties({}) == b""
    assert decode_properties(b"") == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a\x01b", {"a": "b"}),  # the last separator may be missing
        (b"a\x01b\x02\x02\x02c\x01d\x02", {"a": "b", "c": "d"}),
        (b"a\x01\x02c\x01d\x02", {"c": "d"}),  # no value
        (b"\x01b\x02c\x01d\x02", {"c": "d"}),  # no name
        (b"ab\x02c\x01d\x02", {"c": "d"}),  # no separator
        (b"\x01\x02", {}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),  # the later one wins
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),  # only the first separator divides
        (b"a\x01\xff\x02", {"a": "�"}),
        ("标签\x01订单\x02".encode(), {"标签": "订单"}),
    ],
)
def test_odd_property_texts(text: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(text) == expected


@pytest.mark.parametrize(
    ("name", "value"), [("", "v"), ("a\x01b", "v"), ("a\x02", "v"), ("a", "v\x02w"), ("\x01", "v")]
)
def test_separators_in_properties_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="separator"):
        encode_properties({name: value})


def test_a_value_may_hold_the_name_separator() -> None:
    assert decode_properties(encode_properties({"a": "b\x01c"})) == {"a": "b\x01c"}


def test_the_known_properties_are_found() -> None:
    assert find_tags(TEXT) == b"TagA"
    assert find_keys(TEXT) == b"order-1001 user-7"
    assert find_unique_key(TEXT) == b"C0A8"
    assert find_delay_level(TEXT) is None
    assert find_delay_level(b"DELAY\x013") == b"3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", None),
        (b"XTAGS\x01no\x02", None),
        (b"TAGSX\x01no\x02", None),
        (b"a\x01TAGS\x02", None),
        (b"TAGS\x01\x02", None),
        (b"TAGS\x01first\x02TAGS\x01\x02", b"first"),  # an empty value does not count
        (b"TAGS\x01first\x02b\x01c\x02TAGS\x01last\x02", b"last"),
        (b"b\x01c\x02TAGS\x01last", b"last"),
        (b"a\x01x\x02TAGS\x01\x02TAGS\x01\x02", None),
    ],
)
def test_a_finder_reads_as_the_parser_does(text: bytes, expected: bytes | None) -> None:
    assert property_finder("TAGS")(text) == expected
    parsed = decode_properties(text).get("TAGS")
    assert (parsed.encode() if parsed is not None else None) == expected


# Values


def test_a_stored_message_knows_tags_and_keys() -> None:
    message = stored({"TAGS": "TagA", "KEYS": " one  two ", "UNIQ_KEY": "id"})
    assert message.tags == "TagA"
    assert message.keys == ["one", "two"]
    assert message.unique_key == "id"


def test_a_stored_message_without_properties() -> None:
    message = stored({})
    assert message.tags is None
    assert message.keys == []
    assert message.unique_key is None


def test_flag_values_are_those_of_the_format() -> None:
    assert {flag.name: flag.value for flag in SystemFlag.__members__.values()} == {
        "COMPRESSED": 0x1,
        "MULTI_TAGS": 0x2,
        "TRANSACTION_PREPARED": 0x4,
        "TRANSACTION_COMMIT": 0x8,
        "TRANSACTION_ROLLBACK": 0xC,
        "BORN_HOST_V6": 0x10,
        "STORE_HOST_V6": 0x20,
        "NEED_UNWRAP": 0x40,
        "INNER_BATCH": 0x80,
        "LZ4": 0x100,
        "ZSTD": 0x200,
        "ZLIB": 0x300,
    }
