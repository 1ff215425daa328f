"""What our own push consumer sees: backlogs, messages from end to end, delays."""

from __future__ import annotations

import asyncio
import time
import uuid
from array import array
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from skylark.bench.latencies import LatencyHistogram
from skylark.bench.load import STAMP, Counted, Load, LoadFailed, discrepancies
from skylark.bench.load_client import Watch
from skylark.bench.load_target import Usage
from skylark.bench.machine import ListeningProcess, pinned
from skylark.bench.producer import Progress, made_known
from skylark.bench.results import Cell, Document, Value, make_cell, make_document
from skylark.bench.servers import BenchServers, ServerChoice, standing
from skylark.client.consumer.listeners import ConsumeResult
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.settings.client import ConsumeFrom, PushConsumerSettings

GROUP = "benchmark_consumer"
LATE_TIMEOUT_S = 30.0
"""Without a new message for so long, what is missing is taken for lost."""
READY_TIMEOUT_S = 60.0
POLL_S = 0.02
SLOW_S = 1.0
"""What a listener of a slow group takes for a message."""
EARLY_TOLERATED_NS = 2_000_000
"""Delays are counted in milliseconds, and begin when the broker has the message."""


@dataclass(frozen=True, kw_only=True)
class Consuming:
    """How a group consumes."""

    threads: int = 20
    batch: int = 1
    slow_groups: int = 0
    """Others on the same topic, whose listeners take a second for each message: they fall far behind."""
    group: str = GROUP
    """What a group's name begins with; each run has a new one."""
    expression: str = "*"
    expression_type: str = "TAG"
    """Or `SQL92`."""
    fail_rate: float = 0.0
    """The share of calls whose messages the listener wants again later."""


class Receiver:
    """A push consumer that notes what arrives, each message once, and when. Loop thread only."""

    def __init__(
        self, site: BenchServers, load: Load, how: Consuming, tags: str = "", *, takes_s: float = 0.0
    ) -> None:
        """`tags` instead of what the group asks for; `takes_s`: so long a listener takes for each call."""
        settings = PushConsumerSettings(
            consume_from=ConsumeFrom.FIRST_OFFSET,
            threads_max=how.threads,
            batch_max=how.batch,
            first_pull_delay_ms=0,
        )
        group = f"{how.group}_{uuid.uuid4().hex[:8]}"
        sql = how.expression if how.expression_type == "SQL92" and not tags else None
        self.consumer = AsyncPushConsumer(group, namesrv=site.served.namesrv, settings=settings)
        self.consumer.subscribe(load.topic, tags or how.expression, self._listen, sql=sql)
        self._queues = load.queues
        # Numbers alone, which the garbage collector need not look at: its pauses would be messages' delays.
        self._seen: set[int] = set()
        self.due_ns, self.arrived_ns = array("q"), array("q")
        """When messages were due and when they came; only of stamped loads."""
        self._is_stamped = load.is_stamped
        self._takes_s = takes_s
        self._fail_rate = how.fail_rate
        self._calls = 0
        self.failed = self.repeated = 0
        self.first_at = self.last_at = 0.0

    @property
    def count(self) -> int:
        return len(self._seen)

    async def _listen(self, messages: Sequence[Any]) -> ConsumeResult:
        now_ns = time.monotonic_ns()
        self.last_at = now_ns / 1e9
        self.first_at = self.first_at or self.last_at
        for message in messages:
            place = message.queue_offset * self._queues + message.queue.queue_id
            if place in self._seen or message.reconsume_times:
                self.repeated += 1
                continue
            self._seen.add(place)
            if self._is_stamped:
                self.due_ns.append(STAMP.unpack_from(message.body)[0])
                self.arrived_ns.append(now_ns)
        if self._takes_s:
            await asyncio.sleep(self._takes_s)
        self._calls += 1
        if self.failed < int(self._calls * self._fail_rate):  # evenly spread, the same in every run
            self.failed += 1
            return ConsumeResult.LATER
        return ConsumeResult.SUCCESS

    async def wait_ready(self) -> None:
        """Until all queues are ours. Raises LoadFailed."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while (count := len(self.consumer.queues())) < self._queues:
            if time.monotonic() > deadline:
                raise LoadFailed(
                    f"the consumer got {count} of {self._queues} queues in {READY_TIMEOUT_S:g} s"
                )
            await asyncio.sleep(POLL_S)

    async def wait_for(self, count: int, patience_s: float, watch: Watch) -> None:
        """Until so many have come, or nothing new for too long."""
        started = last = tick = time.monotonic()
        before = self.count
        while self.count < count and time.monotonic() < last + patience_s:
            await asyncio.sleep(POLL_S)
            if self.count > before:
                before, last = self.count, time.monotonic()
            if time.monotonic() > tick + 1:
                tick = time.monotonic()
                watch(f"tick {tick - started:.3f} {self.count}")


# --- A backlog ---


def measure_consumer(
    place: ServerChoice, load: Load, messages: int, how: Consuming, progress: Progress
) -> Document:
    """How fast a new group takes a topic's messages, from its first to its last.

    So many are sent before; 0: what the topic holds. Raises LoadFailed, RocketMQError.
    """
    with standing(place) as site:
        load = made_known(site, site.fitted(load))
        with site.target() as target:
            if messages:
                target.fill(load, messages)
            expected = target.held(load)
        watch = partial(progress, "consumer")
        with pinned(site.place.client_cpu):
            cell = asyncio.run(_consume(site, load, expected, how, watch))
        return make_document("consumer", site.conditions(backlog=expected), [cell])


async def _consume(site: BenchServers, load: Load, expected: int, how: Consuming, watch: Watch) -> Cell:
    receiver = Receiver(site, load, how)
    usage = Usage(ListeningProcess(site.served.broker), watch)
    cpu = time.process_time()
    async with receiver.consumer:
        usage.hear("begin")
        await receiver.wait_for(expected, LATE_TIMEOUT_S, watch)
        usage.hear("end")
    taken_s = receiver.last_at - receiver.first_at
    missing = expected - receiver.count
    return make_cell(
        "consumer",
        receiver.count,
        taken_s,
        operation_bytes=load.body_bytes,
        settings={
            "threads": how.threads,
            "batch": how.batch,
            "body_bytes": load.body_bytes,
            "expression": how.expression,
            "fail_rate": how.fail_rate,
        },
        server_cpu_us=usage.cpu_us_of(receiver.count),
        client_cpu_us=round((time.process_time() - cpu) * 1e6 / max(receiver.count, 1), 2),
        figures={"repeated": receiver.repeated, "calls_failed": receiver.failed},
        wrong=[f"{missing} of {expected} did not come"] if missing else [],
    )


# --- From end to end ---


def measure_latency(
    place: ServerChoice, loads: Sequence[Load], how: Consuming, progress: Progress
) -> Document:
    """From the moment at which a message was due to be sent until a listener has it: a cell for each load.

    Raises LoadFailed, RocketMQError.
    """
    return _measure_arrivals("latency", place, loads, how, progress, 0)


def measure_delay(place: ServerChoice, load: Load, delay_ms: int, progress: Progress) -> Document:
    """How late delayed messages come: the load's properties must say the same delay.

    Raises LoadFailed, RocketMQError.
    """
    return _measure_arrivals("delay", place, [load], Consuming(batch=32), progress, delay_ms)


def _measure_arrivals(
    benchmark: str,
    place: ServerChoice,
    loads: Sequence[Load],
    how: Consuming,
    progress: Progress,
    delay_ms: int,
) -> Document:
    cells: list[Cell] = []
    with standing(place) as site:
        for each in loads:
            load = made_known(site, replace(site.fitted(each), is_stamped=True))
            name = f"{load.rate:,.0f}/s" if load.rate else f"{load.in_flight} in flight"
            with pinned(site.place.client_cpu):
                cells.append(asyncio.run(_arrivals(site, load, how, name, partial(progress, name), delay_ms)))
        conditions: dict[str, Value] = {"seconds": loads[0].seconds, "warm_up_s": loads[0].warm_up_s}
        if delay_ms:
            conditions["delay_ms"] = delay_ms
        if how.slow_groups:
            conditions["slow_groups"] = how.slow_groups
        return make_document(benchmark, site.conditions(**conditions), cells)


async def _arrivals(
    site: BenchServers, load: Load, how: Consuming, name: str, watch: Watch, delay_ms: int
) -> Cell:
    # A tag of this run alone: what earlier ones left in the topic is none of its business.
    tag = uuid.uuid4().hex[:8]
    load = replace(load, properties={**load.properties, "TAGS": tag})
    receiver = Receiver(site, load, how, tag)
    usage = Usage(ListeningProcess(site.served.broker), watch)
    async with AsyncExitStack() as stack:
        for _ in range(how.slow_groups):
            slow = Receiver(site, load, Consuming(), takes_s=SLOW_S)
            await stack.enter_async_context(slow.consumer)
            await slow.wait_ready()
        await stack.enter_async_context(receiver.consumer)
        await receiver.wait_ready()
        counted = await asyncio.to_thread(site.client.run, load, usage.hear, site.place.client_cpu)
        patience_s = LATE_TIMEOUT_S + delay_ms / 1000
        await receiver.wait_for(counted.acknowledged * load.batch, patience_s, watch)
    return _arrival_cell(name, load, counted, receiver, usage, delay_ms)


def _arrival_cell(
    name: str,
    load: Load,
    counted: Counted,
    receiver: Receiver,
    usage: Usage,
    delay_ms: int,
) -> Cell:
    # The first message was due when the client began to warm up.
    began_ns = min(receiver.due_ns, default=0) + round(load.warm_up_s * 1e9)
    latencies = LatencyHistogram()
    early = 0
    for due_ns, arrived_ns in zip(receiver.due_ns, receiver.arrived_ns, strict=True):
        late_ns = arrived_ns - due_ns - delay_ms * 1_000_000
        early += late_ns < -EARLY_TOLERATED_NS
        if due_ns >= began_ns:
            latencies.record(late_ns)
    sent = counted.latencies.percentiles()
    wrong = discrepancies(counted, counted.acknowledged * load.batch, receiver.count)
    if early:
        wrong.append(f"{early} came before their time")
    return make_cell(
        name,
        len(latencies),
        counted.seconds,
        latencies=latencies,
        operation_bytes=load.body_bytes,
        settings={"rate": load.rate, "in_flight": load.in_flight, "body_bytes": load.body_bytes},
        server_cpu_us=usage.cpu_us_of(len(latencies)),
        anonymous_mib=usage.anonymous_mib,
        series=counted.series,
        figures={"send_p50_us": sent.p50, "send_p99_us": sent.p99, "repeated": receiver.repeated},
        wrong=wrong,
    )
