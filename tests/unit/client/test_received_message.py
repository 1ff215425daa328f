"""Messages as consumers see them: every field of a record, lazily; what is wrong with one stays its own."""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.client.received_message import ReceivedMessage, decode_pull
from skylark.errors import BadBody, CorruptRecord
from skylark.model.body import compress
from skylark.model.message import SystemFlag, decode_properties, pack_host
from skylark.model.record import BATCH_ELEMENT, decode_all
from skylark.protocol.codes import RequestCode, ResponseCode
from tests.unit.client.messages import QUEUE, record
from tests.unit.protocol.golden_frames import captured


def test_every_field_of_a_record() -> None:
    properties = {"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "U", "DELAY": "3", "mine": "yes"}
    [message] = decode_pull(
        record(7, b"body", properties, reconsume_times=2), QUEUE, min_offset=1, max_offset=9
    )
    assert (message.topic, message.queue_id, message.broker_name, message.queue_offset) == (
        "T", 0, "broker-a", 7,
    )  # fmt: skip
    assert (message.body, message.tags, message.keys, message.unique_key) == (b"body", "a", ["k1", "k2"], "U")
    assert message.properties == properties
    assert (message.message_id, message.offset_message_id) == ("U", "7F00000100002A9F0000000000001B58")
    assert (message.born_host, message.store_host) == ("10.0.0.1:256", "127.0.0.1:10911")
    assert (message.born_timestamp, message.store_timestamp) == (1_700_000_000_000, 1_700_000_000_001)
    assert (message.reconsume_times, message.delay_level, message.transaction_id) == (2, 3, None)
    assert (message.queue_min_offset, message.queue_max_offset, message.physical_offset) == (1, 9, 7000)
    assert message.stored_bytes == len(record(7, b"body", properties, reconsume_times=2))
    assert "queue_offset=7" in repr(message)
    assert "body of 4 bytes" in repr(message)


def test_without_properties() -> None:
    [message] = decode_pull(record(0), QUEUE)
    assert (message.tags, message.keys, message.unique_key, message.properties) == (None, [], None, {})
    assert message.message_id == message.offset_message_id
    [half] = decode_pull(record(0, properties={"TRAN_MSG": "true", "UNIQ_KEY": "U"}), QUEUE)
    assert half.transaction_id == "U"


def test_json_bodies() -> None:
    [message] = decode_pull(record(0, b'{"amount": 5}'), QUEUE)
    assert message.json() == {"amount": 5}
    assert message.json(dict[str, int]) == {"amount": 5}
    with pytest.raises(msgspec.ValidationError):
        message.json(list[int])


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 100_000])
def test_sf_068_bodies_of_any_bytes_come_through(size: int) -> None:
    body = bytes(number % 256 for number in range(size))
    packed, flag = compress(body, "ZLIB", 5)
    assert flag == SystemFlag.COMPRESSED | SystemFlag.ZLIB
    plain, inflated = decode_pull(record(0, body) + record(1, packed, sys_flag=flag), QUEUE)
    assert plain.body == inflated.body == body
    assert not inflated.sys_flag & SystemFlag.COMPRESSED


def test_what_is_not_read_is_not_decoded() -> None:
    """Of a message that a listener only counts, the record is cut out of the reply and nothing more."""
    [message] = decode_pull(record(7, b"body", {"TAGS": "a"}), QUEUE)
    untouched = (None, None, None)
    assert (message._body, message._parts, message._properties) == untouched
    assert (message.queue_offset, message.body_bytes) == (7, 4)
    assert (message.body, message.tags) == (b"body", "a")
    assert (message._parts, message._properties) == untouched[:2]
    assert message.body is message.body, "read once"


def test_a_message_can_be_pickled_and_keeps_what_was_changed() -> None:
    [message] = decode_pull(record(7, b"body", {"TAGS": "a", "KEYS": "k"}), QUEUE, max_offset=9)
    message.topic, message.reconsume_times, message.started_at = "original", 3, 1.5
    assert message.properties["TAGS"] == "a"
    copy = pickle.loads(pickle.dumps(message))  # noqa: S301
    assert type(copy) is ReceivedMessage
    assert repr(copy) == repr(message)
    assert (copy.topic, copy.reconsume_times, copy.started_at, copy.queue_max_offset) == (
        "original", 3, 1.5, 9,
    )  # fmt: skip
    assert (copy.body, copy.properties, copy.queue) == (b"body", message.properties, QUEUE)
    assert copy != message, "messages are compared by identity"


def test_an_edited_copy_leaves_the_original_alone() -> None:
    packed, flag = compress(b"before" * 9, "ZLIB", 5)
    [message] = decode_pull(record(7, packed, {"TAGS": "a"}, sys_flag=flag), QUEUE)
    edited = message.edited(b"after", {"TAGS": "b", "mine": "yes"})
    assert (edited.body, edited.plain_body, edited.tags) == (b"after", b"after", "b")
    assert (edited.properties, edited.body_bytes) == ({"TAGS": "b", "mine": "yes"}, 5)
    assert (edited.queue_offset, edited.physical_offset, edited.topic) == (7, 7000, "T")
    assert not edited.sys_flag & SystemFlag.COMPRESSED
    assert (message.body, message.properties) == (b"before" * 9, {"TAGS": "a"})


def test_a_damaged_body_is_its_message_s_own_fault() -> None:
    data = bytearray(record(0, b"first") + record(1, b"second") + record(2, b"not zlib", sys_flag=1))
    data[data.index(b"second")] ^= 1
    first, second, third = decode_pull(bytes(data), QUEUE)
    assert first.body == b"first"
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="body CRC"):
            _ = second.body
        with pytest.raises(BadBody):
            _ = third.body
    assert (first.body_is_bad, second.body_is_bad, third.body_is_bad) == (False, True, True)
    assert (second.plain_body, third.plain_body) == (b"recond", b"not zlib"), "as stored"
    assert third.sys_flag & SystemFlag.COMPRESSED


def test_a_batch_inside_is_unwrapped() -> None:
    def element(body: bytes, properties: bytes) -> bytes:
        size = BATCH_ELEMENT.size + len(body) + 2 + len(properties)
        head = BATCH_ELEMENT.pack(size, 0, 0, 5, len(body))
        return head + body + struct.pack(">H", len(properties)) + properties

    body = element(b"one", b"TAGS\x01a\x02") + element(b"two", b"")
    flag = int(SystemFlag.INNER_BATCH | SystemFlag.NEED_UNWRAP)
    messages = decode_pull(record(0) + record(1, body, sys_flag=flag) + record(3), QUEUE)
    assert [message.queue_offset for message in messages] == [0, 1, 2, 3]
    assert [message.body for message in messages] == [b"body", b"one", b"two", b"body"]
    assert [message.tags for message in messages] == [None, "a", None, None]
    assert [message.flag for message in messages] == [0, 5, 5, 0]
    assert [message.topic for message in messages] == ["T"] * 4
    packed, codec = compress(body, "ZLIB", 5)
    unpacked = decode_pull(record(1, packed, sys_flag=flag | codec), QUEUE)
    assert [message.body for message in unpacked] == [b"one", b"two"]
    with pytest.raises(CorruptRecord):
        decode_pull(record(1, body[:-1], sys_flag=flag), QUEUE)


def test_hosts_of_ipv6_and_long_topics() -> None:
    [message] = decode_pull(
        record(0, topic="t" * 200, born_host=pack_host("2001:db8::1", 9)), QUEUE, offset_delta=100
    )
    assert (message.born_host, message.topic) == ("[2001:db8::1]:9", "t" * 200)
    assert (message.store_host, message.queue_offset) == ("127.0.0.1:10911", 100)


@given(
    cut=st.integers(min_value=1, max_value=200),
    at=st.integers(min_value=0, max_value=120),
    bit=st.integers(0, 7),
)
def test_bytes_that_are_no_records_are_refused(cut: int, at: int, bit: int) -> None:
    whole = record(0, b"a body", {"TAGS": "a"}) + record(1)
    with pytest.raises(CorruptRecord):
        decode_pull(whole[:-cut], QUEUE) if cut % len(record(1)) else decode_pull(whole[: -cut - 1], QUEUE)
    damaged = bytearray(whole)
    damaged[at] ^= 1 << bit
    try:
        messages = decode_pull(bytes(damaged), QUEUE)
    except CorruptRecord:
        return
    assert len(messages) == 2


def test_captured_answers_decode_as_the_record_module_has_it() -> None:
    found = 0
    for frame in captured("push-concurrent"):
        asked = frame.asked
        if asked is None or asked.code != RequestCode.PULL_MESSAGE or frame.code != ResponseCode.SUCCESS:
            continue
        plain = list(decode_all(frame.body))
        lazy = decode_pull(frame.body, QUEUE)
        found += len(lazy)
        for stored, received in zip(plain, lazy, strict=True):
            assert (received.queue_offset, received.topic, received.body) == (
                stored.queue_offset, stored.topic, stored.body,
            )  # fmt: skip
            assert received.properties == stored.properties == decode_properties(received.properties_text)
            assert (received.born_host, received.store_host) == (stored.born_host, stored.store_host)
    assert found


def _fields(messages: Sequence[ReceivedMessage]) -> list[tuple[object, ...]]:
    return [
        (
            each.record, each.queue_offset, each.stored_body, each.properties_text, each.queue_min_offset,
            each.queue_max_offset,
        )
        for each in messages
    ]  # fmt: skip


@given(
    count=st.integers(8, 40),
    first=st.integers(0, 1 << 40),
    body=st.binary(min_size=1, max_size=40),
    odd=st.none() | st.tuples(st.integers(0, 39), st.binary(min_size=1, max_size=40)),
    delta=st.integers(0, 5),
)
def test_many_messages_of_equal_sizes_are_the_same_as_one_by_one(
    count: int, first: int, body: bytes, odd: tuple[int, bytes] | None, delta: int
) -> None:
    """`odd` is a message that may have another size or, of the same size, another body."""
    records = [record(number, body, {"TAGS": "a"}) for number in range(first, first + count)]
    if odd is not None and odd[0] < count:
        records[odd[0]] = record(first + odd[0], odd[1], {"TAGS": "a"})
    limits = {"min_offset": 1, "max_offset": first + count + delta, "offset_delta": delta}
    whole = decode_pull(b"".join(records), QUEUE, **limits)
    single = [decode_pull(each, QUEUE, **limits)[0] for each in records]
    assert (len(whole), whole.topic, whole.is_ascending) == (count, "T", True)
    assert (whole.first_offset, whole.last_offset) == (first + delta, first + delta + count - 1)
    assert whole.body_bytes == sum(message.body_bytes for message in single)
    whole.start(5.0)
    assert _fields(whole) == _fields(single)
    assert {message.started_at for message in whole} == {5.0}
    assert whole[-1] is whole[count - 1]
    assert _fields(pickle.loads(pickle.dumps(whole))) == _fields(single)  # noqa: S301


@given(at=st.integers(0, 12 * 103 - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_in_equal_records_as_in_others(at: int, bit: int) -> None:
    """The records before it have another size, so that they are read one by one."""
    records = bytearray(b"".join(record(number, b"1234", {"KEYS": "k"}) for number in range(1, 13)))
    assert len(records) == 12 * 103
    records[at] ^= 1 << bit
    other = record(0, b"12345")
    try:
        expected = _fields(decode_pull(other + bytes(records), QUEUE)[1:])
    except CorruptRecord as error:
        expected, reason = [], error
        with pytest.raises(CorruptRecord, match=re.escape(str(reason))):
            _fields(decode_pull(bytes(records), QUEUE))
    else:
        assert _fields(decode_pull(bytes(records), QUEUE)) == expected
