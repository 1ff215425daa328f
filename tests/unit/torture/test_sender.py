"""Transactions of a torture run: checks agree with the first answer."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from skylark.client.producer.transaction_producer import TransactionState
from skylark.torture.sender import checked_state, first_state, is_committed


@given(st.integers(0, 1 << 40), st.integers(1, 20))
def test_checks_agree_with_the_first_answer(number: int, check_times: int) -> None:
    final = TransactionState.COMMIT if is_committed(number) else TransactionState.ROLLBACK
    assert first_state(number) in (final, TransactionState.UNKNOWN)
    answer = checked_state(number, check_times)
    assert answer is final or (check_times < 2 and answer is TransactionState.UNKNOWN)


def test_about_a_tenth_each_is_rolled_back_and_unknown() -> None:
    states = Counter(first_state(number) for number in range(3 * 10**9, 3 * 10**9 + 10_000))
    assert 900 <= states[TransactionState.ROLLBACK] <= 1100
    assert 900 <= states[TransactionState.UNKNOWN] <= 1100
    unknown = [number for number in range(10_000) if first_state(number) is TransactionState.UNKNOWN]
    assert 0.3 < sum(map(is_committed, unknown)) / len(unknown) < 0.7
