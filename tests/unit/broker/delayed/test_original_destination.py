"""Messages that wait in another queue: what their records hold, and where they are meant to go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delayed.original_destination import (
    destination_note,
    find_destination,
    message_of,
    queues_needed,
)
from skylark.errors import CorruptRecord
from skylark.model.message import HOST_V4_BYTES, HOST_V6_BYTES, HOST_V6_MASK, PutMessage
from skylark.model.record import TOPIC_V1_BYTES_MAX, decode, encode, split

HOSTS = st.sampled_from([b"h" * HOST_V4_BYTES, b"H" * HOST_V6_BYTES])
TOPICS = st.sampled_from(["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "t" * (TOPIC_V1_BYTES_MAX + 1)])


@st.composite
def records(draw: st.DrawFn) -> tuple[PutMessage, bytes]:
    message = PutMessage(
        draw(TOPICS), draw(st.integers(0, 17)), draw(st.binary(max_size=40)), draw(st.binary(max_size=300)),
        draw(st.integers(0, 9)), draw(st.integers(0, 0x3FF)) & ~HOST_V6_MASK, draw(st.integers(0, 1 << 42)),
        draw(HOSTS), draw(st.integers(0, 16)), draw(st.integers(0, 1 << 40)),
    )  # fmt: skip
    record = encode(
        message, queue_offset=5, physical_offset=77, store_timestamp=1_700_000_000_000, store_host=draw(HOSTS)
    )
    return message, record


@given(records())
def test_a_record_gives_its_message_back(made: tuple[PutMessage, bytes]) -> None:
    message, record = made
    found = message_of(record)
    assert (found.body, found.properties, found.flag) == (message.body, message.properties, message.flag)
    assert (found.born_timestamp, found.born_host) == (message.born_timestamp, message.born_host)
    assert found.sys_flag & ~HOST_V6_MASK == message.sys_flag
    assert found.reconsume_times == message.reconsume_times
    assert found.prepared_transaction_offset == message.prepared_transaction_offset
    assert (found.topic, found.queue_id, found.wait) == ("", 0, False)


@given(records(), st.data())
def test_a_damaged_record_is_taken_for_what_its_parts_say(
    made: tuple[PutMessage, bytes], data: st.DataObject
) -> None:
    damaged = bytearray(made[1])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    record = bytes(
        damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged
    )
    try:
        parts = split(record)
        decode(record)
    except CorruptRecord:
        with pytest.raises(CorruptRecord):
            message_of(record)
        return
    found = message_of(record)
    assert found.properties == parts.properties
    assert found.body == record[parts.body_position : parts.body_position + parts.head[14]]
    assert (found.flag, found.sys_flag, found.born_host) == (parts.head[4], parts.head[7], parts.head[9])


@pytest.mark.parametrize(
    "text",
    [
        destination_note("T", 3),
        b"a\x01b\x02" + destination_note("T", 3),
        destination_note("U", 7) + destination_note("T", 3),
        b"REAL_QID\x013\x02x\x01y\x02REAL_TOPIC\x01T\x02",
        b"REAL_QID\x013\x02REAL_TOPIC\x01T\x02REAL_TOPIC\x01\x02",
        destination_note("T", 3) + b"long\x01" + b"x" * 300 + b"\x02",
    ],
)
def test_the_queue_that_is_noted_is_found_again_and_again(text: bytes) -> None:
    assert [find_destination(text) for _ in range(2)] == [("T", 3)] * 2


@pytest.mark.parametrize("text", [b"", b"\x02", b"REAL_TOPIC\x01T\x02", b"REAL_QID\x013\x02", b"a\x01b"])
def test_a_text_that_names_no_queue(text: bytes) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="names no topic or queue"):
            find_destination(text)


def test_topics_need_as_many_queues_as_their_messages_name() -> None:
    messages = [PutMessage(topic, queue_id, b"") for topic, queue_id in [("T", 3), ("T", 0), ("U", 1)]]
    assert queues_needed(messages) == {"T": 4, "U": 2}
