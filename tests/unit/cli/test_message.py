"""Traces as RocketMQ's clients write them, read back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skylark.admin.traces import TraceStep, read_steps

ID = "7F000001000A2B5C8D1E0001"
PUB = f"Pub|1000|DefaultRegion|shop|orders|{ID}|created|42|10.0.0.1:10911|23|5|3|7F00|true"
BEFORE = f"SubBefore|1100|DefaultRegion|billing|R1|{ID}|2|42"
AFTER = f"SubAfter|R1|{ID}|30|false|42|4|1130|billing"
AFTER_CLOUD = f"SubAfter|R1|{ID}|30|true|42|0"
END = f"EndTransaction|1050|DefaultRegion|shop|orders|{ID}|t|42|h:1|2|{ID}|COMMIT_MESSAGE|true"
RECALL = f"Recall|1200|DefaultRegion|shop|orders|{ID}|true"


def text(*records: str) -> str:
    return "".join(record.replace("|", "\x01") + "\x02" for record in records)


def test_a_life_is_told_in_order() -> None:
    steps = read_steps([text(RECALL, AFTER), text(BEFORE, END), text(PUB)])
    assert [(step.time_ms, step.what, step.group, step.is_ok, step.took_ms) for step in steps] == [
        (1000, "sent", "shop", True, 5),
        (1050, "transaction ended", "shop", True, None),
        (1100, "delivered", "billing", True, None),
        (1130, "consumed", "billing", False, 30),
        (1200, "recalled", "shop", True, None),
    ]
    assert steps[0].details == "delayed, 23 bytes to topic orders at 10.0.0.1:10911"
    assert steps[1].details == "COMMIT_MESSAGE after a check"
    assert steps[2].details == "delivery 3"
    assert steps[3].details == "failed"


def test_an_end_without_a_time_takes_it_from_its_beginning() -> None:
    [_, after] = read_steps([text(AFTER_CLOUD, BEFORE)])
    assert after == TraceStep(1130, ID, "consumed", "billing", True, 30, "success")
    assert read_steps([text(AFTER_CLOUD)])[0].time_ms is None


def test_older_clients_tell_no_place() -> None:
    fields = PUB.split("|")
    [step] = read_steps([text("|".join([*fields[:12], "false"]))])
    assert not step.is_ok


def test_what_is_told_twice_happened_once() -> None:
    assert len(read_steps([text(PUB), text(PUB)])) == 1


@given(st.lists(st.text(), max_size=5))
def test_what_cannot_be_read_is_passed_over(texts: list[str]) -> None:
    assert any(step.message_id == ID for step in read_steps([*texts, text(PUB)]))


def test_records_that_are_cut_short_are_passed_over() -> None:
    for record in (PUB, BEFORE, AFTER, END, RECALL):
        fields = record.split("|")
        for count in range(1, len(fields)):
            read_steps([text("|".join(fields[:count]))])
    assert read_steps([text("Pub|now|a|b|c|d|e|f|g|h|i|j|k|l")]) == []
