"""`skylark bench transaction`: transactional sends by our own producer, in a closed or an open loop."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial

from skylark.bench.latencies import LatencyHistogram
from skylark.bench.load import Load
from skylark.bench.load_client import Watch
from skylark.bench.load_target import LoadTarget, Usage
from skylark.bench.machine import ListeningProcess, pinned
from skylark.bench.results import Cell, Document, make_cell, make_document
from skylark.bench.servers import BenchServers, Progress, ServerChoice, running_servers
from skylark.client.producer.transaction_producer import AsyncTransactionProducer, TransactionState
from skylark.client.received_message import ReceivedMessage
from skylark.errors import RocketMQError
from skylark.model.message import Message


@dataclass(frozen=True)
class OpenLoopSchedule:
    """Operation `n` is due at `start + n / rate` seconds. Rate 0 is a closed loop: all are due at once."""

    start: float
    rate: float

    def due(self, number: int) -> float:
        """-inf in a closed loop."""
        return self.start + number / self.rate if self.rate else -math.inf

    def count_until(self, moment: float) -> int:
        """Number of operations due before a moment, consistent with `due` to the last digit."""
        count = max(math.ceil((moment - self.start) * self.rate), 0)
        while count and self.due(count - 1) >= moment:
            count -= 1
        while self.rate and self.due(count) < moment:
            count += 1
        return count


TICK_S = 1.0
LATE_S = 15.0
"""Extra time for operations that were due before the end."""


@dataclass
class Driven:
    """Counts of a run. `answers`, `seconds`, `latencies` and `series` cover the measured window."""

    done: int = 0
    failed: int = 0
    answers: int = 0
    seconds: float = 0.0
    unsent: int = 0
    reasons: list[str] = field(default_factory=list)
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    series: list[tuple[float, int]] = field(default_factory=list)


class Driver:
    """Keeps `in_flight` operations running. With a rate (operations a second) each is timed from when it was
    due; without, from its start."""

    def __init__(self, operation: Callable[[], Awaitable[None]], *, in_flight: int, rate: float) -> None:
        """A failing operation raises RocketMQError."""
        self._operation = operation
        self._in_flight = in_flight
        self._rate = rate
        self._numbers = itertools.count()
        self._began = self._end = 0.0
        self._pace = OpenLoopSchedule(0.0, rate)
        self._driven = Driven()

    async def run(self, warm_up_s: float, seconds: float, watch: Watch) -> Driven:
        """`watch` is called as by `LoadClient.run`."""
        start = time.perf_counter()
        self._pace = OpenLoopSchedule(start, self._rate)
        self._began = start + warm_up_s
        self._end = self._began + seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(watch))
            workers = [tasks.create_task(self._work()) for _ in range(self._in_flight)]
        driven = self._driven
        driven.seconds = seconds
        driven.unsent = max(self._pace.count_until(self._end) - driven.done - driven.failed, 0)
        assert all(worker.done() for worker in workers)
        return driven

    async def _work(self) -> None:
        while True:
            due = self._pace.due(next(self._numbers))
            late_s = LATE_S if self._rate else 0.0
            if due >= self._end or time.perf_counter() >= self._end + late_s:
                return
            if self._rate:
                await asyncio.sleep(max(due - time.perf_counter(), 0))
            await self._do(due if self._rate else time.perf_counter())

    async def _do(self, due: float) -> None:
        driven = self._driven
        try:
            await self._operation()
        except RocketMQError as error:
            driven.failed += 1
            driven.reasons = [*driven.reasons, str(error)][:3]
            return
        now = time.perf_counter()
        driven.done += 1
        driven.answers += self._began <= now < self._end
        if due >= self._began:
            driven.latencies.record(round((now - due) * 1e9))

    async def _watch(self, watch: Watch) -> None:
        await asyncio.sleep(max(self._began - time.perf_counter(), 0))
        watch("begin")
        tick = self._began + TICK_S
        while tick < self._end:
            await asyncio.sleep(max(tick - time.perf_counter(), 0))
            second = time.perf_counter() - self._began
            self._driven.series.append((round(second, 3), self._driven.answers))
            watch(f"tick {second:.3f} {self._driven.answers}")
            tick += TICK_S
        await asyncio.sleep(max(self._end - time.perf_counter(), 0))
        watch("end")


GROUP = "benchmark_transaction_producer"


def outcomes(rollback_rate: float, unknown_rate: float) -> Iterator[TransactionState]:
    """The outcomes of successive local transactions: evenly spread, the same in every run."""
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
    """Shares of local transactions and of transaction checks by outcome; the rest is committed."""

    rollback: float = 0.0
    unknown: float = 0.0
    check_rollback: float = 0.0
    check_unknown: float = 0.0


def measure_transactions(choice: ServerChoice, load: Load, shares: Shares, progress: Progress) -> Document:
    """Transactions a second. Raises LoadFailed, RocketMQError."""
    with running_servers(choice) as servers, servers.target() as target:
        load = servers.with_topic(servers.fitted(load))
        run = _TransactionRun(servers, load, shares)
        before = target.stored(load)
        with pinned(servers.choice.client_cpu):
            driven = asyncio.run(run.drive(partial(progress, run.name)))
        cell = run.cell(driven, target, before)
        conditions = {
            "seconds": load.seconds,
            "warm_up_s": load.warm_up_s,
            **{f"{name}_rate": share for name, share in asdict(shares).items()},
        }
        return make_document("transaction", servers.conditions(**conditions), [cell])


class _TransactionRun:
    def __init__(self, servers: BenchServers, load: Load, shares: Shares) -> None:
        self.name = f"{load.in_flight} in flight"
        self._site = servers
        self._load = load
        self._outcomes = outcomes(shares.rollback, shares.unknown)
        self._counts = dict.fromkeys(TransactionState, 0)
        self._check_outcomes = outcomes(shares.check_rollback, shares.check_unknown)
        self._checked = dict.fromkeys(TransactionState, 0)
        self._usage = Usage(ListeningProcess(servers.served.broker), None)
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

        async with AsyncTransactionProducer(
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

    def cell(self, driven: Driven, target: LoadTarget, before: int) -> Cell:
        committed = self._counts[TransactionState.COMMIT]
        expected = before + committed
        stored = target.wait_stored(self._load, expected)
        wrong = [f"{driven.failed} failed: {'; '.join(driven.reasons)}"] if driven.failed else []
        if driven.unsent:
            wrong.append(f"rate not reached: {driven.unsent} transactions were due and not sent")
        # Commits after a check may still be in flight when the client stops.
        if not expected <= stored <= expected + self._checked[TransactionState.COMMIT]:
            wrong.append(f"{stored - before} of {committed} committed messages are visible")
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
