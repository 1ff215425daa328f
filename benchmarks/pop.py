"""Pop and acknowledge: batches of 32 by remoting, and our simple consumer, in messages a second.

python -m benchmarks.pop                                  a broker of ours, started for the run
python -m benchmarks.pop --peer apache                    and beside it, in turn, Apache RocketMQ 5.3.3
python -m benchmarks.pop --namesrv HOST:PORT              servers that run already

`single_acks` pops 32 messages and acknowledges each by its own request, pipelined, as Java's consumer does;
`batch_acks` acknowledges them by one request, four workers at a time. Both use `skylark.aio.SimpleConsumer`.
`per_core` counts the processor time of the client alone, `broker_cpu_us` that of the broker for a message:
where the client is the slower one, only the latter compares brokers. Broker and client have a processor each.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks._common import report
from benchmarks.peers.apache import POM, ApacheNameServer, MeasuredBroker
from skylark import ConsumeFrom, Message, SimpleConsumerSettings, aio
from skylark.bench.machine import BROKER_CPU, CLIENT_CPU, ListeningProcess, can_pin, pinned, scratch
from skylark.bench.servers import SETTINGS, own_servers
from skylark.client.received_message import ReceivedMessage
from tests.support.java import jars_of

BODY = bytes(128)
BATCH = 32
QUEUES = 8
WORKERS = 4
CELLS = ("single_acks", "batch_acks")
EXPECTED_RATIO = 1.5
Figures = dict[str, float]


async def fill(namesrv: str, topic: str, count: int) -> None:
    async with aio.Admin(namesrv=namesrv) as admin:
        await admin.topics.create(topic, queues=QUEUES)
    async with aio.Producer("benchmark", namesrv=namesrv) as producer:
        for first in range(0, count, BATCH):
            await producer.send_batch([Message(topic, BODY)] * min(BATCH, count - first))


async def consume(namesrv: str, topic: str, count: int, cell: str) -> Figures:
    """Receive and acknowledge all messages of a topic, by several workers on one connection."""
    settings = SimpleConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, wait_ms=500)
    left = count
    async with aio.SimpleConsumer(f"G-{topic}", namesrv=namesrv, settings=settings) as consumer:
        consumer.subscribe(topic)

        async def acknowledge(messages: list[ReceivedMessage]) -> None:
            if cell == "single_acks":
                await asyncio.gather(*(consumer.ack(message) for message in messages))
            else:
                await consumer.ack(*messages)

        async def work() -> None:
            nonlocal left
            while left > 0:
                messages = await consumer.receive(BATCH)
                if messages:
                    left -= len(messages)
                    await acknowledge(messages)

        started, processor = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(WORKERS)))
        elapsed_s, busy_s = time.perf_counter() - started, time.process_time() - processor
    return {"per_second": round(count / elapsed_s), "per_core": round(count / busy_s), "messages": count}


class Contestant:
    """A broker at a name server; `process` is None where it runs elsewhere."""

    def __init__(self, name: str, namesrv: str, process: ListeningProcess | None) -> None:
        self.name = name
        self.namesrv = namesrv
        self.process = process

    @contextmanager
    def turn(self, others: list[Contestant]) -> Iterator[None]:
        """The brokers whose turn it is not are stopped: an idle JVM takes up to a tenth of a processor."""
        waiting = [other.process for other in others if other is not self and other.process is not None]
        for process in waiting:
            process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in waiting:
                process.signal(signal.SIGCONT)

    def measure(self, cell: str, count: int) -> Figures:
        topic = f"pop-{cell.replace('_', '-')}-{time.time_ns()}"
        asyncio.run(fill(self.namesrv, topic, count))
        before = self._cpu_us()
        figures = asyncio.run(consume(self.namesrv, topic, count, cell))
        if self.process is not None:
            figures["broker_cpu_us"] = round((self._cpu_us() - before) / count, 2)
        return figures

    def _cpu_us(self) -> float:
        return 0.0 if self.process is None else self.process.cpu_us() or 0.0


def start_apache(stack: ExitStack, directory: Path) -> Contestant:
    classpath = jars_of(POM)
    with pinned(BROKER_CPU):
        name_server = stack.enter_context(ApacheNameServer(classpath, directory / "name-server"))
        broker = stack.enter_context(
            MeasuredBroker(
                classpath,
                directory / "home",
                directory / "store",
                name_server=name_server.address,
                settings=SETTINGS,
            )
        )
    return Contestant("apache", name_server.address, ListeningProcess(broker.address))


def compare(contestants: list[Contestant], rounds: int, count: int, warm_up: int) -> dict[str, Any]:
    """All rounds of the cells, the brokers in turn; medians, and ratios of rounds side by side."""
    found: dict[str, dict[str, list[Figures]]] = {cell: {} for cell in CELLS}
    for number in range(-warm_up, rounds):
        for cell in CELLS:
            for contestant in contestants:
                with contestant.turn(contestants):
                    figures = contestant.measure(cell, count)
                sys.stderr.write(f"{cell:12} {contestant.name:8} {figures}\n")
                if number >= 0:
                    found[cell].setdefault(contestant.name, []).append(figures)
    return {cell: summary(by_name) for cell, by_name in found.items()}


def summary(by_name: dict[str, list[Figures]]) -> dict[str, Any]:
    result: dict[str, Any] = {
        name: {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        for name, rounds in by_name.items()
    }
    if len(by_name) == 2:
        mine, peers = by_name.values()
        for key, title in (("per_second", "ratio"), ("broker_cpu_us", "cpu_ratio")):
            ratios = [one[key] / other[key] for one, other in zip(mine, peers, strict=True)]
            result[title] = {"median": round(statistics.median(ratios), 2)}
        result["ratio"]["expected_at_least"] = EXPECTED_RATIO
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--namesrv", default="", help="Servers that run already.")
    parser.add_argument("--peer", choices=["apache"], help="measure another broker beside it, and the ratio")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds that do not count")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with ExitStack() as stack:
        path = stack.enter_context(scratch())
        if options.namesrv:
            contestants = [Contestant("server", options.namesrv, None)]
        else:
            served = stack.enter_context(own_servers(path / "ours", cpu=BROKER_CPU))
            contestants = [Contestant("ours", served.namesrv, ListeningProcess(served.broker))]
        if options.peer:
            contestants.append(start_apache(stack, path / "apache"))
        with pinned(CLIENT_CPU):
            results = compare(contestants, options.rounds, options.messages, options.warm_up)
    conditions = {"rounds": options.rounds, "broker_cpus": "one" if can_pin() else "shared with the client"}
    report("pop", {"conditions": conditions, **results})


if __name__ == "__main__":
    main()
