"""Transactions by our own producer: half message, local transaction, end."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial

from skylark.bench.driving import Driven, Driver
from skylark.bench.load import Load
from skylark.bench.measuring import Target, Usage
from skylark.bench.place import Place, Site, standing
from skylark.bench.processes import Listener, pinned
from skylark.bench.results import Cell, Document, make_cell, make_document
from skylark.bench.sending import Progress, made_known
from skylark.bench.thin import Watch
from skylark.client.received import ReceivedMessage
from skylark.client.transaction_producer import TransactionProducer, TransactionState
from skylark.model.message import Message

GROUP = "benchmark_transaction_producer"


def outcomes(rollback_rate: float, unknown_rate: float) -> Iterator[TransactionState]:
    """What becomes of one local transaction after the other: evenly spread, the same in every run."""
    counts = dict.fromkeys(TransactionState, 0)
    shares = {
        TransactionState.ROLLBACK: rollback_rate,
        TransactionState.UNKNOWN: unknown_rate,
        TransactionState.COMMIT: 1 - rollback_rate - unknown_rate,
    }
    for number in itertools.count(1):
        state = max(shares, key=lambda state: shares[state] * number - counts[state])
        counts[state] += 1
        yield state


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What local transactions come to, and what is said of those that the broker asks about; else commit."""

    rollback: float = 0.0
    unknown: float = 0.0
    check_rollback: float = 0.0
    check_unknown: float = 0.0


def measure_transactions(place: Place, load: Load, shares: Shares, progress: Progress) -> Document:
    """Transactions a second. Those that the local transaction does not know, the broker asks about later.

    Raises LoadFailed, RocketMQError.
    """
    with standing(place) as site, site.target() as target:
        load = made_known(site, site.fitted(load))
        run = _Run(site, load, shares)
        before = target.stored(load)
        with pinned(site.place.client_cpu):
            driven = asyncio.run(run.drive(partial(progress, run.name)))
        cell = run.cell(driven, target, before)
        conditions = {
            "seconds": load.seconds,
            "warm_up_s": load.warm_up_s,
            **{f"{name}_rate": share for name, share in asdict(shares).items()},
        }
        return make_document("transaction", site.conditions(**conditions), [cell])


class _Run:
    def __init__(self, site: Site, load: Load, shares: Shares) -> None:
        self.name = f"{load.in_flight} in flight"
        self._site = site
        self._load = load
        self._outcomes = outcomes(shares.rollback, shares.unknown)
        self._counts = dict.fromkeys(TransactionState, 0)
        self._check_outcomes = outcomes(shares.check_rollback, shares.check_unknown)
        self._checked = dict.fromkeys(TransactionState, 0)
        self._usage = Usage(Listener(site.served.broker), None)
        self._cpu_s = 0.0

    async def _execute(self, message: Message, argument: object) -> TransactionState:
        return next(self._outcomes)

    async def _check(self, message: ReceivedMessage) -> TransactionState:
        state = next(self._check_outcomes)
        self._checked[state] += 1
        return state

    async def drive(self, watch: Watch) -> Driven:
        load = self._load
        body = load.body

        def hear(word: str) -> None:
            self._usage.hear(word)
            watch(word)

        async with TransactionProducer(
            GROUP, execute=self._execute, check=self._check, namesrv=self._site.served.namesrv
        ) as producer:

            async def send() -> None:
                receipt = await producer.send_in_transaction(Message(load.topic, body))
                self._counts[receipt.state] += 1

            started = time.process_time()
            driven = await Driver(send, in_flight=load.in_flight, rate=load.rate).run(
                load.warm_up_s, load.seconds, hear
            )
            self._cpu_s = time.process_time() - started
        return driven

    def cell(self, driven: Driven, target: Target, before: int) -> Cell:
        committed = self._counts[TransactionState.COMMIT]
        expected = before + committed
        stored = target.wait_stored(self._load, expected)
        wrong = [f"{driven.failed} failed: {'; '.join(driven.reasons)}"] if driven.failed else []
        if driven.unsent:
            wrong.append(f"the rate was not kept: {driven.unsent} were due and could not be sent")
        # What was committed because the broker had asked may have been on its way when the client stopped.
        if not expected <= stored <= expected + self._checked[TransactionState.COMMIT]:
            wrong.append(f"{stored - before} of {committed} committed messages can be seen")
        return make_cell(
            self.name,
            driven.answers,
            driven.seconds,
            latencies=driven.latencies,
            operation_bytes=self._load.body_bytes,
            unit="transactions",
            settings={"in_flight": self._load.in_flight, "rate": self._load.rate},
            failed=driven.failed,
            server_cpu_us=self._usage.cpu_us_of(driven.answers),
            client_cpu_us=round(self._cpu_s * 1e6 / max(driven.done, 1), 2),
            anonymous_mib=self._usage.anonymous_mib,
            series=driven.series,
            figures={
                **{state.name.lower(): count for state, count in self._counts.items()},
                "asked": sum(self._checked.values()),
            },
            wrong=wrong,
        )
