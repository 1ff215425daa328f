"""Bodies and journals come back as they were written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.torture.history import (
    QUIET_LINE,
    BrokerQueue,
    History,
    QueuePosition,
    Receipt,
    Send,
    SendOutcome,
    attempt_line,
    body_of,
    number_in,
    outcome_line,
    receipt_line,
)


def test_a_body_tells_its_number_to_its_own_run() -> None:
    body = body_of("r5", Send(1, "k1", 7))
    assert number_in("r5", body) == 1
    assert number_in("r6", body) is None


@pytest.mark.parametrize("body", [b"", b"x", b"r5 x k 1", b"r5 1 k", b"\xff\xff 1 k 1"])
def test_other_bodies_have_no_number(body: bytes) -> None:
    assert number_in("r5", body) is None


numbers = st.integers(0, 1 << 40)
places = st.builds(
    lambda queue_id, queue_offset: QueuePosition(BrokerQueue("broker-a", queue_id), queue_offset),
    st.integers(0, 99),
    numbers,
)
receipts = st.builds(Receipt, numbers, places, st.integers(0, 1 << 62), st.just("m"))
sends = st.builds(
    Send,
    numbers,
    st.sampled_from(["s0-k0", "s1-k1"]),
    numbers,
    st.sampled_from(SendOutcome),
    st.none() | places,
    not_before_ns=st.integers(0, 1 << 62),
)


@given(st.lists(receipts, max_size=20), st.integers(0, 10))
def test_receipts_survive_a_kill_in_the_middle_of_a_line(written: list[Receipt], cut: int) -> None:
    data = b"".join(map(receipt_line, written))
    history = History()
    history.take_receipts("m", data.splitlines())
    assert history.receipts == written
    if written and cut > 1:
        # The process that comes after a kill ends the line that was cut off, and goes on.
        continued = data[:-cut] + b"\n" + receipt_line(written[0])
        history = History()
        history.take_receipts("m", continued.splitlines())
        assert history.receipts == [*written[:-1], written[0]]


@given(st.lists(sends, max_size=20, unique_by=lambda send: send.number))
def test_sends_come_back_as_far_as_they_are_known(written: list[Send]) -> None:
    lines = [attempt_line(send) for send in written] + [outcome_line(send) for send in written] + [QUIET_LINE]
    history = History()
    new = history.take_sends(b"".join(lines).splitlines())
    for send in written:
        if send.outcome is not SendOutcome.OK:
            send.place = None
    assert new == written == list(history.sends.values())


@pytest.mark.parametrize("cut", range(1, 7))
def test_an_outcome_that_was_cut_off_is_unknown(cut: int) -> None:
    send = Send(3, "k", 3, SendOutcome.OK)
    history = History()
    history.take_sends([attempt_line(send).strip(), outcome_line(send).strip()[:-cut]])
    assert history.sends[3].outcome is SendOutcome.UNKNOWN
    assert not history.missing()
