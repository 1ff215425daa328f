"""Half messages as values: what is made of their records, and which are open."""

from __future__ import annotations

import pytest

from skylark.broker.transactions.half_messages import (
    HalfMessage,
    HalfRecord,
    HalfTable,
    finished_offsets,
    op_message,
    prepare,
)
from skylark.errors import CorruptRecord
from skylark.model.message import PutMessage, decode_properties, encode_properties
from skylark.model.record import decode, encode
from tests.unit.broker.tables import NOW_MS
from tests.unit.protocol.golden_frames import captured

HOST = b"\x7f\0\0\x01\0\0*\x9f"


def half(queue_offset: int, key: str = "", topic: str = "T", **changes: int) -> HalfMessage:
    members = {"physical_offset": queue_offset * 100, "born_ms": NOW_MS, "immunity_ms": None, **changes}
    return HalfMessage(queue_offset, key=(key or str(queue_offset), 0), real_topic=topic, **members)  # type: ignore[arg-type]


def stored(message: PutMessage, queue_offset: int = 3, physical_offset: int = 700) -> bytes:
    return encode(
        message,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp=NOW_MS,
        store_host=HOST,
    )


def record(message: PutMessage, queue_offset: int = 3, physical_offset: int = 700) -> HalfRecord:
    return HalfRecord(stored(message, queue_offset, physical_offset))


def prepared(**properties: str) -> PutMessage:
    message = PutMessage("T", 2, b"body", sys_flag=4, born_timestamp=NOW_MS, flag=9)
    prepare(message, {"UNIQ_KEY": "K", "PGROUP": "PG", "TRAN_MSG": "true", **properties})
    return message


def test_sf_076_a_commit_is_the_message_of_its_own_topic() -> None:
    found = record(prepared(KEYS="k"))
    committed = found.committed()
    assert committed is not None
    assert (committed.topic, committed.queue_id, committed.sys_flag, committed.flag) == ("T", 2, 8, 9)
    assert (committed.prepared_transaction_offset, committed.body) == (700, b"body")
    properties = decode_properties(committed.properties)
    assert properties == {
        **{"UNIQ_KEY": "K", "PGROUP": "PG", "TRAN_MSG": "true", "KEYS": "k"},
        **{"REAL_TOPIC": "T", "REAL_QID": "2", "__transactionId__": "K"},
    }


def test_an_altered_body_is_not_committed_with_a_checksum_that_fits() -> None:
    with pytest.raises(CorruptRecord, match="body CRC"):
        HalfRecord(stored(prepared()).replace(b"body", b"bady"))


def test_a_record_without_a_topic_of_its_own_is_committed_to_none() -> None:
    for text in (b"", b"REAL_TOPIC\x01T\x02", encode_properties({"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC"})):
        assert record(PutMessage("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"x", text)).committed() is None


def test_the_question_is_as_apaches() -> None:
    """The record inside of a captured question: the copy's place, the real topic, the count of questions."""
    [frame, *_] = [frame for frame in captured("transaction") if frame.code == 39]
    theirs = decode(frame.body)
    put = PutMessage(
        "RMQ_SYS_TRANS_HALF_TOPIC",
        0,
        theirs.body,
        encode_properties({k: v for k, v in theirs.properties.items() if k != "TRANSACTION_CHECK_TIMES"}),
        born_timestamp=theirs.born_timestamp,
        born_host=HOST,
    )
    original = record(put, 4, 45607)
    again = original.checked_again(1)
    ours = decode(original.question(again, theirs.queue_offset, theirs.physical_offset))
    assert ours.properties == theirs.properties
    for member in (
        "topic",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "body",
        "sys_flag",
        "born_timestamp",
    ):
        assert getattr(ours, member) == getattr(theirs, member), member


def test_properties_that_are_no_numbers_are_none() -> None:
    found = record(prepared(CHECK_IMMUNITY_TIME_IN_SECONDS="x", TRANSACTION_CHECK_TIMES="many"))
    assert (found.immunity_ms, found.check_times) == (None, 0)
    assert record(prepared(CHECK_IMMUNITY_TIME_IN_SECONDS="20")).immunity_ms == 20_000


@pytest.mark.parametrize(
    ("body", "offsets"), [(b"12", [12]), (b"12,15,", [12, 15]), (b"", []), (b",x,7,", [7])]
)
def test_op_messages_of_both_generations_are_read(body: bytes, offsets: list[int]) -> None:
    assert finished_offsets(body) == offsets


def test_an_op_message_is_as_apaches() -> None:
    op = op_message([12, 15], born_host=HOST, now_ms=NOW_MS)
    assert (op.topic, op.queue_id, op.body) == ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, b"12,15,")
    assert decode_properties(op.properties) == {"TAGS": "d", "WAIT": "true"}


@pytest.mark.parametrize(
    ("age_ms", "immunity_ms", "is_due"),
    [
        (6000, None, False),
        (6001, None, True),
        (-1, None, True),
        (6001, 20_000, False),
        (20_001, 20_000, True),
    ],
)
def test_when_a_producer_is_asked(age_ms: int, immunity_ms: int | None, is_due: bool) -> None:
    one = HalfMessage(0, 0, NOW_MS - age_ms, immunity_ms, ("", 0), "T")
    assert one.is_due(NOW_MS, 6000) is is_due


def test_the_table_knows_transactions_by_their_key() -> None:
    table = HalfTable()
    for each in (half(4, "a"), half(2, "b"), half(6, "a")):
        table.add(each)
    assert [each.queue_offset for each in table] == [2, 4, 6]
    assert (table.first_offset, table.of_key(("a", 0)), len(table)) == (2, [4, 6], 3)
    table.close([4, 2, 99])
    assert (table.first_offset, table.of_key(("a", 0)), table.of_key(("b", 0))) == (6, [6], [])
    table.close([6])
    assert (table.first_offset, len(table)) == (None, 0)


def test_the_table_counts_what_is_open_by_topic() -> None:
    table = HalfTable()
    for each in (half(1), half(2, topic="U"), half(3), half(3)):
        table.add(each)
    assert table.topics == {"T": 2, "U": 1}
    table.close([2, 3, 99])
    assert dict(table.topics) == {"T": 1}
