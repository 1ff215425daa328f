"""Timed messages as values: which are taken, where they are put, and the handles that take them back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delayed.timed_messages import (
    RecallHandle,
    TimedMessage,
    admit,
    admit_as_sent,
    deliver_at,
    handle_of,
    place,
    recall_message,
    slot_of,
)
from skylark.errors import BrokerError
from skylark.model import names
from skylark.model.message import PutMessage, decode_properties, encode_properties
from skylark.model.record import encode
from skylark.settings.broker import TimerSettings
from tests.unit.broker.tables import answers, refusal

SETTINGS = TimerSettings()
NOW_MS = 1_700_000_000_500


def admitted(**properties: str) -> tuple[PutMessage, int | None]:
    message = PutMessage("T", 3, b"body", encode_properties(properties))
    return message, admit(message, dict(properties), SETTINGS, NOW_MS)


@pytest.mark.parametrize(
    ("properties", "time"),
    [
        ({"TIMER_DELAY_SEC": "3"}, NOW_MS + 3000),
        ({"TIMER_DELAY_MS": "3"}, NOW_MS + 3),
        ({"TIMER_DELIVER_MS": "3"}, 3),
        ({"TIMER_DELIVER_MS": "3", "TIMER_DELAY_MS": "4", "TIMER_DELAY_SEC": "5"}, NOW_MS + 5000),
        ({"TIMER_DELIVER_MS": "3", "TIMER_DELAY_MS": "4"}, NOW_MS + 4),
        ({"TIMER_DELAY_SEC": "-3"}, NOW_MS - 3000),
        ({}, None),
    ],
)
def test_the_time_that_a_message_names(properties: dict[str, str], time: int | None) -> None:
    assert deliver_at(properties, NOW_MS) == time


@pytest.mark.parametrize(("time", "slot"), [(10_000, 9000), (10_001, 10_000), (10_999, 10_000)])
def test_the_slot_of_a_time_is_over_when_the_time_has_come(time: int, slot: int) -> None:
    assert slot_of(time, 1000) == slot
    assert 0 <= slot + 1000 - time < 1000


def test_a_message_for_later_goes_to_the_timer_topic() -> None:
    message, slot = admitted(TIMER_DELIVER_MS=str(NOW_MS + 5000), KEYS="k")
    assert (message.topic, message.queue_id, slot) == (names.TIMER_TOPIC, 0, NOW_MS + 5000 - 500)
    assert decode_properties(message.properties) == {
        **{"KEYS": "k", "TIMER_DELIVER_MS": str(NOW_MS + 5000), "TIMER_OUT_MS": str(slot)},
        **{"REAL_TOPIC": "T", "REAL_QID": "3"},
    }


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELIVER_MS": str(NOW_MS)},
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELIVER_MS": str(NOW_MS + 5000), "TIMER_OUT_MS": "7"},
        {},
    ],
)
def test_a_message_that_need_not_wait_stays_as_it_is(properties: dict[str, str]) -> None:
    message, slot = admitted(**properties)
    assert (message.topic, slot, decode_properties(message.properties)) == ("T", None, properties)


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "259201"},
        {"TIMER_DELIVER_MS": "soon"},
        {"TIMER_DELIVER_MS": "9" * 400},
        {"TIMER_DELAY_MS": "1.5"},
        {"TIMER_DELAY_SEC": "0", "TIMER_DEL_UNIQKEY": "T+K"},
    ],
)
def test_times_that_cannot_be_kept_are_refused_as_by_apache(properties: dict[str, str]) -> None:
    [(_, answer)] = [
        pair for pair in answers("probe-send", 310) if "timer message" in (pair[1].header.get("remark") or "")
    ]
    with pytest.raises(BrokerError) as caught:
        admitted(**properties)
    assert refusal(caught.value) == (answer.code, answer.header["remark"])


NAMES = [
    "UNIQ_KEY",
    "DELAY",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS",
    "X_TIMER_DELAY_MS",
    "a",
]
NAMES += ["TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "REAL_QID", "TRAN_MSG"]
VALUES = ["5", "1000", "-5", "x", "999999999", str(NOW_MS + 5000), str(NOW_MS - 1)]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=4))
def test_what_is_added_to_a_text_says_the_same_as_properties_taken_apart(
    properties: list[tuple[str, str]],
) -> None:
    text = b"".join(encode_properties({name: value}) for name, value in properties)

    def outcome(how: Callable[[PutMessage], int | None]) -> tuple[int | str | None, PutMessage]:
        message = PutMessage("T", 5, b"", text)
        try:
            return how(message), message
        except BrokerError as error:
            return error.remark, message

    slot, quick = outcome(lambda message: admit_as_sent(message, SETTINGS, NOW_MS))
    expected, slow = outcome(lambda message: admit(message, decode_properties(text), SETTINGS, NOW_MS))
    if slot is None:
        assert quick.properties == text  # untouched: the other way decides
        assert properties != [("TIMER_DELAY_MS", "1000")]
    else:
        assert slot == expected
        assert decode_properties(quick.properties) == decode_properties(slow.properties)
        assert (quick.topic, quick.queue_id) == (slow.topic, slow.queue_id)


def test_the_longest_delay_is_taken() -> None:
    assert admitted(TIMER_DELAY_SEC="259200")[1] is not None


@pytest.mark.parametrize(
    ("ahead_s", "slot_s", "flags"),
    [
        (0, 0, 1),
        (172_799, 172_799, 1),
        (172_800, 86_400, 3),
        (172_800 + 57_599, 86_400, 3),
        (172_800 + 57_600, 172_800, 3),
        (259_200, 172_800, 3),
    ],
)
def test_what_is_far_away_is_put_on_the_way(ahead_s: int, slot_s: int, flags: int) -> None:
    write_ms = 1_700_000_000_000
    out_ms = write_ms + ahead_s * 1000
    assert place(out_ms, write_ms, SETTINGS, deletes=False) == (write_ms + slot_s * 1000, flags)
    assert place(out_ms, write_ms, SETTINGS, deletes=True) == (write_ms + slot_s * 1000, flags | 4)


def record(message: PutMessage) -> bytes:
    return encode(
        message,
        queue_offset=0,
        physical_offset=0,
        store_timestamp=NOW_MS,
        store_host=b"\x7f\0\0\x01\0\0*\x9f",
    )


def test_a_due_message_is_that_of_its_own_topic() -> None:
    message, slot = admitted(TIMER_DELAY_SEC="5", UNIQ_KEY="K")
    timed = TimedMessage.read(record(message))
    assert (*timed.terms[:3], timed.deletes) == (slot, "T", 3, None)
    due = timed.due(NOW_MS, NOW_MS + 6000)
    assert (due.topic, due.queue_id, due.body) == ("T", 3, b"body")
    properties = decode_properties(due.properties)
    assert properties["TIMER_ENQUEUE_MS"] == str(NOW_MS)
    assert properties["TIMER_DEQUEUE_MS"] == str(NOW_MS + 6000)
    assert admit(due, properties, SETTINGS, NOW_MS) is None


def test_a_rolled_message_counts_its_rounds() -> None:
    message, _ = admitted(TIMER_DELAY_SEC="250000")
    once = TimedMessage.read(record(message)).rolled(NOW_MS, NOW_MS)
    assert (once.topic, decode_properties(once.properties)["TIMER_ROLL_TIMES"]) == (names.TIMER_TOPIC, "1")
    twice = TimedMessage.read(record(once)).rolled(NOW_MS, NOW_MS)
    assert decode_properties(twice.properties)["TIMER_ROLL_TIMES"] == "2"


def test_what_is_no_timed_message() -> None:
    for properties in ({}, {"REAL_TOPIC": "T"}, {"REAL_TOPIC": "T", "TIMER_OUT_MS": "x", "REAL_QID": "0"}):
        with pytest.raises(ValueError, match=r"it names no topic|is not a number"):
            TimedMessage.read(record(PutMessage(names.TIMER_TOPIC, 0, b"x", encode_properties(properties))))


# --- Taking back ---


def test_a_captured_handle_is_read_and_written_the_same() -> None:
    [(asked, answer)] = [pair for pair in answers("producer-delay", 370) if pair[1].code == 0]
    text = asked.header["extFields"]["recallHandle"]
    handle = RecallHandle.decode(text)
    assert handle == RecallHandle(
        "TopicDelay", "broker-a", 1_794_718_872_001, answer.header["extFields"]["msgId"]
    )
    assert handle.encode() == text


@pytest.mark.parametrize("before", ["", "x" * 300])
def test_the_handle_of_what_waits_names_its_slot_and_key(before: str) -> None:
    long = {"note": before} if before else {}
    message, slot = admitted(TIMER_DELAY_SEC="5", UNIQ_KEY="K", **long)
    assert slot is not None
    expected = RecallHandle("T", "broker-a", slot + 1, "K")
    later = message.properties + f"note\x01{before}\x02".encode()
    for text in (message.properties, later):
        assert RecallHandle.decode(handle_of(text, "T", "broker-a", b"K").decode()) == expected
    assert handle_of(message.properties, "T", "broker-a", b"K").decode() == expected.encode()


@pytest.mark.parametrize("text", ["", "nonsense", "djIgYSBiIDEgaw==", "djEgYSBiIHggaw==", "ä", "====", "a"])
def test_handles_that_make_no_sense(text: str) -> None:
    with pytest.raises(ValueError, match=r"recall handle|is not a number"):
        RecallHandle.decode(text)


def test_what_takes_a_message_back_lands_in_its_slot() -> None:
    message, slot = admitted(TIMER_DELAY_SEC="5", UNIQ_KEY="K")
    assert slot is not None
    handle = RecallHandle("T", "broker-a", slot + 1, "K")
    recall, properties = recall_message(handle, "PG", b"", NOW_MS)
    assert admit(recall, properties, SETTINGS, NOW_MS) == slot
    assert (recall.body, properties["TAGS"]) == (b"0", "_RECALL_TAG_")
    timed = TimedMessage.read(record(message))
    assert timed.is_deleted_by({properties["TIMER_DEL_UNIQKEY"]})
    assert timed.is_deleted_by({"K"})
    assert not timed.is_deleted_by({"Other+K", "T+L"})
