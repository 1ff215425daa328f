"""Bodies and receipts come back as they were written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.torture.history import (
    History,
    Place,
    Queue,
    Receipt,
    body_of,
    number_in,
    read_receipts,
    receipt_line,
)


def test_a_body_tells_its_number_to_its_own_run() -> None:
    history = History()
    history.attempt("k0", 0)
    send = history.attempt("k1", 7)
    body = body_of("r5", send)
    assert number_in("r5", body) == 1
    assert number_in("r6", body) is None


@pytest.mark.parametrize("body", [b"", b"x", b"r5 x k 1", b"r5 1 k", b"\xff\xff 1 k 1"])
def test_other_bodies_have_no_number(body: bytes) -> None:
    assert number_in("r5", body) is None


receipts = st.builds(
    lambda number, queue_id, queue_offset, at: Receipt(
        number, Place(Queue("broker-a", queue_id), queue_offset), at, "m"
    ),
    st.integers(0, 1 << 40),
    st.integers(0, 99),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 62),
)


@given(st.lists(receipts, max_size=20), st.integers(0, 10))
def test_receipts_survive_a_kill_in_the_middle_of_a_line(written: list[Receipt], cut: int) -> None:
    data = b"".join(map(receipt_line, written))
    assert read_receipts("m", data.splitlines(keepends=True)) == written
    if written and cut:
        shorter = data[:-cut]
        assert read_receipts("m", shorter.splitlines(keepends=True)) == written[:-1]
