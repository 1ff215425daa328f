"""Operations of asyncio clients: closed loops, open loops that forget nothing, failures."""

from __future__ import annotations

import asyncio

from skylark.bench.transaction import Driver, outcomes
from skylark.client.producer.transaction_producer import TransactionState
from skylark.errors import ConnectionLost


class Slow:
    """An operation whose first run takes half a second."""

    def __init__(self) -> None:
        self.runs = self.running = self.most = 0

    async def __call__(self) -> None:
        self.runs += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.5 if self.runs == 1 else 0)
        self.running -= 1


async def test_an_open_loop_does_not_forget_what_waited() -> None:
    slow, words = Slow(), list[str]()
    driven = await Driver(slow, in_flight=1, rate=100.0).run(0.0, 1.2, words.append)
    assert driven.done == driven.latencies.percentiles().count == slow.runs
    assert driven.done + driven.unsent == 120
    # Fifty were due in the half second in which the first was under way: a quarter of all waited long.
    assert driven.latencies.at_percent(80) > 100_000
    assert words[0] == "begin"
    assert words[-1] == "end"
    assert [word.split()[0] for word in words[1:-1]] == ["tick"]


async def test_a_closed_loop_begins_again_when_one_is_done() -> None:
    slow = Slow()
    driven = await Driver(slow, in_flight=3, rate=0.0).run(0.2, 2.0, lambda _: None)
    assert slow.most == 3
    assert driven.done == slow.runs > driven.answers > 0
    assert driven.unsent == 0


async def test_failures_are_counted_and_quoted() -> None:
    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise ConnectionLost("here:1")

    driven = await Driver(fail, in_flight=2, rate=0.0).run(0.0, 1.5, lambda _: None)
    assert driven.done == 0
    assert driven.failed > 0
    assert driven.reasons[0] == "connection to here:1 lost: closed by the peer"
    assert len(driven.reasons) <= 3


def test_outcomes_have_their_shares() -> None:
    every = outcomes(0.25, 0.1)
    found = [next(every) for _ in range(200)]
    assert found.count(TransactionState.ROLLBACK) == 50
    assert found.count(TransactionState.UNKNOWN) == 20
    assert found.count(TransactionState.COMMIT) == 130
    assert set(found[:10]) == set(TransactionState)
