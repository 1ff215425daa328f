"""Handles of popped messages and offset infos, against frames captured from RocketMQ 5.3.3."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import RemoteProtocolError
from skylark.model import names
from skylark.model.record import decode_all
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.pop_handle import (
    PopHandle,
    find_handle,
    join_infos,
    offset_key,
    offsets_info,
    order_info,
    queue_key,
    read_offsets,
    read_order_counts,
    read_starts,
    start_info,
)
from skylark.protocol.requests.pop import (
    AckMessage,
    BatchAck,
    BatchAckBody,
    BatchAckMessage,
    PopReply,
    bits_of,
)
from tests.unit.protocol.golden_frames import captured


def test_the_handles_that_java_sends_come_back_unchanged() -> None:
    handles = [
        frame.header["extFields"]["extraInfo"]
        for scenario in ("pop", "probe-members")
        for frame in captured(scenario)
        if frame.kind == "request" and frame.code == RequestCode.ACK_MESSAGE
    ]
    assert len(handles) == 6
    assert [PopHandle.decode(text).encode() for text in handles] == handles


def test_a_client_makes_the_handles_that_java_sends_from_the_reply() -> None:
    frames = captured("pop")
    reply = next(
        PopReply.from_fields(frame.header["extFields"])
        for frame in frames
        if frame.kind == "response" and "msgOffsetInfo" in frame.header.get("extFields", {})
    )
    starts, offsets = read_starts(reply.start_offset_info), read_offsets(reply.msg_offset_info)
    made = {
        PopHandle(
            starts[key], reply.pop_time, reply.invisible_time, reply.revive_queue_id, key[0], "broker-a",
            key[1], queue_offset,
        ).encode()
        for key, of_queue in offsets.items()
        for queue_offset in of_queue
    }  # fmt: skip
    sent = {
        AckMessage.from_fields(frame.header["extFields"]).extra_info
        for frame in frames
        if frame.kind == "request" and frame.code == RequestCode.ACK_MESSAGE
    }
    assert len(made) == 6
    assert sent < made
    assert join_infos(start_info(*key, start) for key, start in starts.items()) == reply.start_offset_info
    assert join_infos(offsets_info(*key, of) for key, of in offsets.items()) == reply.msg_offset_info


def test_a_revived_record_carries_its_handle() -> None:
    [body] = [
        frame.body
        for frame in captured("pop")
        if frame.kind == "response" and frame.header.get("extFields", {}).get("msgOffsetInfo") == "1 0 0"
    ]
    [message] = decode_all(body)
    assert message.topic == "TopicPop"
    handle = PopHandle.decode(message.properties["POP_CK"])
    assert (handle.retry, handle.queue_offset, handle.broker_name) == (names.RETRY_V1, 0, "broker-a")
    assert find_handle(b"A\x01b\x02POP_CK\x01" + handle.encode().encode()) == handle.encode().encode()
    assert handle.popped_from("TopicPop", "CG_pop") == "%RETRY%CG_pop_TopicPop"


NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)


@given(NUMBERS, NUMBERS, NUMBERS, st.integers(0, 999), st.sampled_from("012"), NUMBERS, st.none() | NUMBERS)
def test_a_handle_reads_what_it_wrote(
    start: int, popped: int, invisible: int, revive: int, retry: str, offset: int, physical: int | None
) -> None:
    handle = PopHandle(start, popped, invisible, revive, retry, "broker-a", 3, offset, physical)
    assert PopHandle.decode(handle.encode()) == handle


@pytest.mark.parametrize("text", ["", "1 2 3 4 0", "1 2 x 4 0 b 0 0", "1 2 3 4 0 b q 0"])
def test_a_bad_handle_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        PopHandle.decode(text)


@pytest.mark.parametrize("info", ["0 1 2;0 1 3", "0 1", "0 x 1", "0 1 2,y"])
def test_a_bad_info_is_refused(info: str) -> None:
    with pytest.raises(RemoteProtocolError):
        read_offsets(info)


def test_order_counts_are_by_offset_and_by_queue() -> None:
    info = order_info("0", 2, [(11, 1), (13, 1)], 0)
    assert info == "0 qo2%11 1;0 qo2%13 1;0 2 0"
    counts = read_order_counts(info)
    assert counts == {offset_key("0", 2, 11): 1, offset_key("0", 2, 13): 1, queue_key("0", 2): 0}


def test_a_batch_is_encoded_as_java_does() -> None:
    ack = BatchAck("G", "T", "0", 100, 2, 5, 1700000000000, 60000, bits_of(100, [100, 102, 109]))
    request = BatchAckMessage(BatchAckBody([ack], "broker-a"))
    command = request.to_command()
    assert command.body == (
        b'{"acks":[{"b":"BQI=","c":"G","it":60000,"pt":1700000000000,"q":2,"r":"0","rq":5,"so":100,"t":"T"}],'
        b'"brokerName":"broker-a"}'
    )
    assert BatchAckMessage.from_command(command) == request
    assert ack.offsets == [100, 102, 109]


def test_a_batch_may_have_long_names() -> None:
    body = (
        b'{"acks":[{"consumerGroup":"G","topic":"T","retry":"1","startOffset":7,"queueId":0,'
        b'"reviveQueueId":3,"popTime":1,"invisibleTime":2,"bitSet":"AQ=="}]}'
    )
    [ack] = BatchAckMessage.from_command(RemotingCommand(code=200151, body=body)).body.acks
    assert (ack.group, ack.topic, ack.retry, ack.offsets) == ("G", "T", "1", [7])


@pytest.mark.parametrize("body", [b"[]", b'{"acks":[{"q":"x"}]}', b'{"acks":[1]}', b"{"])
def test_a_bad_batch_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        BatchAckBody.decode(body)


@given(st.integers(0, 1 << 40), st.sets(st.integers(0, 500), min_size=1))
def test_bits_read_what_they_wrote(start: int, places: set[int]) -> None:
    offsets = sorted(start + place for place in places)
    assert BatchAck("G", "T", "0", start, 0, 0, 0, 0, bits_of(start, offsets)).offsets == offsets


def test_names_of_retry_topics() -> None:
    v1, v2 = names.pop_retry_topics("a_b", "g_1")
    assert (v1, v2) == ("%RETRY%g_1_a_b", "%RETRY%g_1+a_b")
    assert [names.pop_retry_flag(topic) for topic in ("a_b", v1, v2)] == ["0", "1", "2"]
    assert {names.normal_topic(topic, "g_1") for topic in ("a_b", v1, v2)} == {"a_b"}
    assert [names.popped_topic("a_b", "g_1", flag) for flag in "012"] == ["a_b", v1, v2]
    assert names.revive_topic("DefaultCluster") == "rmq_sys_REVIVE_LOG_DefaultCluster"
