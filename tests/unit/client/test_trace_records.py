"""The text of traces, beside what the Java client wrote, and how traces share messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.admin.traces import read_steps
from skylark.client import trace_records
from skylark.client.consumer.listeners import ConsumeOutcome, ConsumeVerdict
from skylark.client.received_message import ReceivedMessage, decode_pull
from skylark.client.trace_records import KEYS_CHARS_MAX, TEXT_CHARS_MAX, Trace
from tests.unit.client.messages import QUEUE, record
from tests.unit.protocol.golden_frames import captured


def received(properties: dict[str, str], reconsume_times: int = 0) -> ReceivedMessage:
    [message] = decode_pull(record(0, b"body", properties, reconsume_times=reconsume_times), QUEUE)
    return message


def java_records() -> list[list[str]]:
    """What a Java consumer told, split into fields."""
    bodies = [frame.body.decode() for frame in captured("producer-trace") if b"SubBefore" in frame.body]
    return [row.split("\x01") for body in bodies for row in body.split("\x02") if row]


def rewritten(fields: list[str]) -> str:
    """The same written by ours, of a message that has what Java's had."""
    match fields:
        case ["SubBefore", now, region, group, call_id, message_id, times, keys]:
            message = received({"UNIQ_KEY": message_id, "KEYS": keys, "MSG_REGION": region}, int(times))
            return trace_records.delivered(message, group, call_id, now_ms=int(now)).text
        case ["SubAfter", call_id, message_id, took, success, keys, code, now, group]:
            message = received({"UNIQ_KEY": message_id, "KEYS": keys})
            return trace_records.consumed(
                message, group, call_id, now_ms=int(now), took_ms=int(took), is_ok=success == "true",
                context_code=int(code),
            ).text  # fmt: skip
        case _:
            raise AssertionError(fields)


def test_sf_056_consumers_tell_what_java_s_tell() -> None:
    records = java_records()
    assert {fields[0] for fields in records} == {"SubBefore", "SubAfter"}
    for fields in records:
        assert rewritten(fields) == "\x01".join(fields) + "\x02"


def test_a_record_never_ends_with_an_empty_field() -> None:
    """Java's `split` drops empty fields at the end, and its tool then fails on the whole topic."""
    message = received({"UNIQ_KEY": "ID"})
    trace = trace_records.delivered(message, "G", "CALL", now_ms=1)
    assert trace.text == "SubBefore\x011\x01DefaultRegion\x01G\x01CALL\x01ID\x010\x01null\x02"
    assert trace.keys == ("ID",)
    after = trace_records.consumed(message, "G", "CALL", now_ms=2, took_ms=1, is_ok=True, context_code=0)
    [step] = read_steps([after.text])
    assert (step.group, step.time_ms, step.details) == ("G", 2, "success")


def test_what_others_put_into_keys_cannot_break_a_record() -> None:
    plain = record(0, properties={"UNIQ_KEY": "ID", "KEYS": "a|b\0 c"})
    [message] = decode_pull(plain.replace(b"a|b", b"a\x01b"), QUEUE)
    trace = trace_records.delivered(message, "G", "CALL", now_ms=1)
    assert trace.keys == ("ID", "ab", "c")
    assert trace.text.count("\x01") == 7


@pytest.mark.parametrize(
    ("verdict", "is_ok", "too_long", "code"),
    [
        (ConsumeVerdict.SUCCESS, True, False, 0),
        (ConsumeVerdict.COMMIT, True, False, 0),
        (ConsumeVerdict.SUCCESS, True, True, 1),
        (ConsumeVerdict.LATER, False, True, 1),
        (ConsumeVerdict.RAISED, False, True, 2),
        (ConsumeVerdict.RETURNED_NULL, False, False, 3),
        (ConsumeVerdict.LATER, False, False, 4),
        (ConsumeVerdict.ROLLBACK, False, False, 4),
        (ConsumeVerdict.SUCCESS, False, False, 4),
        (ConsumeVerdict.RAISED, True, False, 0),
    ],
)
def test_outcomes_have_rocketmq_s_numbers(
    verdict: ConsumeVerdict, is_ok: bool, too_long: bool, code: int
) -> None:
    assert trace_records.context_code(ConsumeOutcome(verdict, 0), is_ok=is_ok, took_too_long=too_long) == code


def test_a_broker_may_say_that_a_message_is_not_traced() -> None:
    assert trace_records.is_traced(received({}))
    assert trace_records.is_traced(received({"TRACE_ON": "true"}))
    assert not trace_records.is_traced(received({"TRACE_ON": "false"}))


traces = st.builds(
    lambda chars, keys: Trace("x" * chars, tuple(f"{number:0{size}d}" for number, size in enumerate(keys))),
    st.integers(1, TEXT_CHARS_MAX // 2),
    st.lists(st.integers(8, KEYS_CHARS_MAX // 4), max_size=3),
)


@given(st.lists(traces, max_size=12))
def test_traces_share_messages_within_the_limits(given_traces: list[Trace]) -> None:
    messages = list(trace_records.gathered(given_traces, "T"))
    assert b"".join(message.body for message, _ in messages).decode() == "".join(
        trace.text for trace in given_traces
    )
    assert sum(count for _, count in messages) == len(given_traces)
    remaining = list(given_traces)
    for message, count in messages:
        own, remaining = remaining[:count], remaining[count:]
        assert set(message.keys) == {key for trace in own for key in trace.keys}
        assert len(message.body) <= TEXT_CHARS_MAX
        assert len(" ".join(message.keys)) <= KEYS_CHARS_MAX
