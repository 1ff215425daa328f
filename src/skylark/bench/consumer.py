"""`skylark bench consumer` and `latency`: backlogs, end-to-end latency and delays with the push consumer."""

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
from skylark.bench.results import Cell, Document, Value, make_cell, make_document
from skylark.bench.servers import BenchServers, Progress, ServerChoice, running_servers
from skylark.client.consumer.listeners import ConsumeResult
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.settings.client import ConsumeFrom, PushConsumerSettings

GROUP = "benchmark_consumer"
FILTERED = {"TAGS": "TagA", "number": "7", "region": "north"}
"""Properties of the backlog's messages, for filters."""
LATE_TIMEOUT_S = 30.0
"""Maximum time without a new message; missing messages then count as lost."""
READY_TIMEOUT_S = 60.0
POLL_S = 0.02
SLOW_S = 1.0
"""Duration of a listener call in a slow group."""
EARLY_TOLERATED_NS = 2_000_000
"""Delays are whole milliseconds and start when the broker has the message."""


@dataclass(frozen=True, kw_only=True)
class Consuming:
    """How a group consumes."""

    threads: int = 20
    batch: int = 1
    slow_groups: int = 0
    """Other groups on the topic whose listeners take a second per call, so they lag far behind."""
    group: str = GROUP
    """Prefix of the group name; each run has a new group."""
    expression: str = "*"
    expression_type: str = "TAG"
    """TAG or SQL92."""
    fail_rate: float = 0.0
    """Share of listener calls that ask for redelivery."""


class Receiver:
    """A push consumer that records each message once with its time of arrival. Loop thread only."""

    def __init__(
        self, servers: BenchServers, load: Load, how: Consuming, tags: str = "", *, takes_s: float = 0.0
    ) -> None:
        """`tags` replaces the group's filter; `takes_s` is the duration of a listener call."""
        settings = PushConsumerSettings(
            consume_from=ConsumeFrom.FIRST_OFFSET,
            threads_max=how.threads,
            batch_max=how.batch,
            first_pull_delay_ms=0,
        )
        group = f"{how.group}_{uuid.uuid4().hex[:8]}"
        sql = how.expression if how.expression_type == "SQL92" and not tags else None
        self.consumer = AsyncPushConsumer(group, namesrv=servers.served.namesrv, settings=settings)
        self.consumer.subscribe(load.topic, tags or how.expression, self._listen, sql=sql)
        self._queues = load.queues
        # Plain numbers, which the garbage collector does not visit: its pauses would add to the latencies.
        self._seen: set[int] = set()
        self.due_ns, self.arrived_ns = array("q"), array("q")
        """Due and arrival times of stamped messages."""
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
            position = message.queue_offset * self._queues + message.queue.queue_id
            if position in self._seen or message.reconsume_times:
                self.repeated += 1
                continue
            self._seen.add(position)
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
        """Wait until all queues are assigned. Raises LoadFailed."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while (count := len(self.consumer.queues())) < self._queues:
            if time.monotonic() > deadline:
                raise LoadFailed(f"consumer has {count} of {self._queues} queues after {READY_TIMEOUT_S:g} s")
            await asyncio.sleep(POLL_S)

    async def wait_for(self, count: int, patience_s: float, watch: Watch) -> None:
        """Wait for this many messages, at most `patience_s` without a new one."""
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
    choice: ServerChoice, load: Load, messages: int, how: Consuming, progress: Progress
) -> Document:
    """Consume a topic with a new group, from the first message to the last.

    Stores `messages` first; with 0, consumes what the topic holds. Raises LoadFailed, RocketMQError.
    """
    with running_servers(choice) as servers:
        load = servers.with_topic(servers.fitted(load))
        with servers.target() as target:
            if messages:
                target.fill(load, messages)
            expected = target.held(load)
        watch = partial(progress, "consumer")
        with pinned(servers.choice.client_cpu):
            cell = asyncio.run(_consume(servers, load, expected, how, watch))
        return make_document("consumer", servers.conditions(backlog=expected), [cell])


async def _consume(servers: BenchServers, load: Load, expected: int, how: Consuming, watch: Watch) -> Cell:
    receiver = Receiver(servers, load, how)
    usage = Usage(ListeningProcess(servers.served.broker), watch)
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
        wrong=[f"{missing} of {expected} messages missing"] if missing else [],
    )


# --- End to end ---


def measure_latency(
    choice: ServerChoice, loads: Sequence[Load], how: Consuming, progress: Progress
) -> Document:
    """Time from when a message is due to be sent until a listener receives it, one cell per load.

    Raises LoadFailed, RocketMQError.
    """
    return _measure_arrivals("latency", choice, loads, how, progress, 0)


def measure_delay(choice: ServerChoice, load: Load, delay_ms: int, progress: Progress) -> Document:
    """Lateness of delayed messages; the load's properties must have the same delay.

    Raises LoadFailed, RocketMQError.
    """
    return _measure_arrivals("delay", choice, [load], Consuming(batch=32), progress, delay_ms)


def _measure_arrivals(
    benchmark: str,
    choice: ServerChoice,
    loads: Sequence[Load],
    how: Consuming,
    progress: Progress,
    delay_ms: int,
) -> Document:
    cells: list[Cell] = []
    with running_servers(choice) as servers:
        for each in loads:
            load = servers.with_topic(replace(servers.fitted(each), is_stamped=True))
            name = f"{load.rate:,.0f}/s" if load.rate else f"{load.in_flight} in flight"
            with pinned(servers.choice.client_cpu):
                cells.append(
                    asyncio.run(_arrivals(servers, load, how, name, partial(progress, name), delay_ms))
                )
        conditions: dict[str, Value] = {"seconds": loads[0].seconds, "warm_up_s": loads[0].warm_up_s}
        if delay_ms:
            conditions["delay_ms"] = delay_ms
        if how.slow_groups:
            conditions["slow_groups"] = how.slow_groups
        return make_document(benchmark, servers.conditions(**conditions), cells)


async def _arrivals(
    servers: BenchServers, load: Load, how: Consuming, name: str, watch: Watch, delay_ms: int
) -> Cell:
    # The tag excludes messages that earlier runs left in the topic.
    tag = uuid.uuid4().hex[:8]
    load = replace(load, properties={**load.properties, "TAGS": tag})
    receiver = Receiver(servers, load, how, tag)
    usage = Usage(ListeningProcess(servers.served.broker), watch)
    async with AsyncExitStack() as stack:
        for _ in range(how.slow_groups):
            slow = Receiver(servers, load, Consuming(), takes_s=SLOW_S)
            await stack.enter_async_context(slow.consumer)
            await slow.wait_ready()
        await stack.enter_async_context(receiver.consumer)
        await receiver.wait_ready()
        counted = await asyncio.to_thread(servers.client.run, load, usage.hear, servers.choice.client_cpu)
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
    # The first message was due at the start of the warm-up.
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
        wrong.append(f"{early} messages arrived before their delay was over")
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
