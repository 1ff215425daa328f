"""The orders that are sent in transactions: some are committed, some rolled back, some only when asked."""

from __future__ import annotations

from enum import Enum

from skylark.client.received import ReceivedMessage
from skylark.client.transaction_producer import TransactionState
from skylark.model.message import Message

TRANSACTION_EVERY = 50
FIRST_TRANSACTION = 10


class Fate(Enum):
    """What becomes of an order's transaction."""

    COMMIT = "committed"
    ROLLBACK = "rolled back"
    COMMIT_WHEN_ASKED = "committed when asked"
    ROLLBACK_WHEN_ASKED = "rolled back when asked"

    @property
    def is_delivered(self) -> bool:
        return self in (Fate.COMMIT, Fate.COMMIT_WHEN_ASKED)

    @property
    def waits_for_a_question(self) -> bool:
        return self in (Fate.COMMIT_WHEN_ASKED, Fate.ROLLBACK_WHEN_ASKED)


def fate(number: int) -> Fate | None:
    """What becomes of the transaction of an order; None for one that is sent without."""
    if number % TRANSACTION_EVERY != FIRST_TRANSACTION:
        return None
    fates = list(Fate)
    return fates[number // TRANSACTION_EVERY % len(fates)]


class Shop:
    """The local side of the transactions: it does not say at once what became of some, and is asked then."""

    def __init__(self) -> None:
        self.asked: set[int] = set()
        """Orders whose outcome only the broker's question brought out."""

    async def execute(self, message: Message, number: int) -> TransactionState:
        """The local transaction."""
        outcome = _fate(number)
        if outcome.waits_for_a_question:
            return TransactionState.UNKNOWN
        return _state(outcome)

    async def check(self, message: ReceivedMessage) -> TransactionState:
        """A broker asks."""
        number = int(message.json()["id"])
        outcome = _fate(number)
        if outcome.waits_for_a_question:
            self.asked.add(number)
        return _state(outcome)


def _fate(number: int) -> Fate:
    outcome = fate(number)
    assert outcome is not None
    return outcome


def _state(outcome: Fate) -> TransactionState:
    return TransactionState.COMMIT if outcome.is_delivered else TransactionState.ROLLBACK
