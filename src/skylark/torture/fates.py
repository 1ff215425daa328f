"""What becomes of the transactions of a run: a function of the message's number, so that anybody can tell."""

from __future__ import annotations

from skylark.client.producer.transaction_producer import TransactionState

COMMIT_SHARE, ROLLBACK_SHARE = 80, 10
"""In per cent; of the rest its sender says that it does not know."""
TWICE_SHARE = 2
"""Of these it does not know when it is asked first, either."""
GOLDEN = 0x9E3779B1


def first_state(number: int) -> TransactionState:
    """What the local transaction says at once."""
    share = _share(number)
    if share < COMMIT_SHARE:
        return TransactionState.COMMIT
    return TransactionState.ROLLBACK if share < COMMIT_SHARE + ROLLBACK_SHARE else TransactionState.UNKNOWN


def checked_state(number: int, check_times: int) -> TransactionState:
    """What the sender answers when it is asked, for the so manieth time."""
    if _share(number) >= 100 - TWICE_SHARE and check_times < 2:
        return TransactionState.UNKNOWN
    return TransactionState.COMMIT if is_committed(number) else TransactionState.ROLLBACK


def is_committed(number: int) -> bool:
    """What becomes of it in the end, however it comes to it."""
    state = first_state(number)
    if state is TransactionState.UNKNOWN:
        return _share(number) % 2 == 0
    return state is TransactionState.COMMIT


def _share(number: int) -> int:
    """0 to 99, evenly and without a pattern."""
    return (number * GOLDEN % (1 << 32)) * 100 >> 32
