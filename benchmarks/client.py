"""Our clients against our broker: messages a second, beside the Java client and a thin one, in one run.

python -m benchmarks.client                          all cells
python -m benchmarks.client --cells asyncio-256 auto-batching
python -m benchmarks.client --no-java                without the JVM
python -m benchmarks.client --soak 600               memory of producers and a consumer over time

Cells take turns, several rounds; the best round of each counts, because the others were disturbed more.
`ratios` are those that are expected of the clients (`expected`); figures of two runs are not compared.
Clients of other systems stand beside ours in `benchmarks.python_clients`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks._common import report
from benchmarks._other_clients import UNAVAILABLE, java_client
from skylark import (
    ConsumeFrom,
    Message,
    Producer,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
    aio,
)
from skylark.bench.load import Load
from skylark.bench.load_client import LoadClient
from skylark.bench.machine import anonymous_bytes, scratch
from skylark.client.received_message import decode_pull
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, PullMessage
from skylark.remoting.blocking_connection import BlockingConnection
from tests.support.skylark_servers import SkylarkServers

BODY = bytes(range(128))
TOPIC = "benchmark"
BACKLOG_TOPIC = "backlog"
BACKLOG = 100_000
IN_FLIGHT = 256
GATHERED = 4096  # in flight with automatic batching: what fills its batches
BATCH = 32
PULLED = 1024  # in one pull and one call of a listener, as who works off a backlog would set it
SOAK_PER_S = 1000
SOAK_SAMPLE_S = 5.0
CONSUME_TIMEOUT_S = 120
SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 1_000_000,
    "maxIndexNum": 4_000_000,
    "waitTimeMillsInSendQueue": 10_000,
}
EXPECTED = {
    "blocking-1 / java-one_in_flight": 1.0,
    "asyncio-256 / thin-256": 0.25,
    "auto-batching / asyncio-256": 4.0,
    "consume-backlog / decode": 0.5,
}

Cell = Callable[[float], float]
"""Takes seconds, returns messages a second."""


def counted(step: Callable[[], int], seconds: float) -> float:
    started = time.perf_counter()
    end = started + seconds
    count = 0
    while time.perf_counter() < end:
        count += step()
    return count / (time.perf_counter() - started)


async def windowed(producer: aio.Producer, seconds: float, window: int) -> float:
    """Keep `window` messages in flight."""
    started = time.perf_counter()
    end = started + seconds
    count = 0
    waiting: deque[asyncio.Future[Any]] = deque()
    while time.perf_counter() < end:
        for _ in range(BATCH):
            waiting.append(await producer.submit(Message(TOPIC, BODY)))
        count += BATCH
        while len(waiting) > window:
            await waiting.popleft()
    await asyncio.gather(*waiting)
    return count / (time.perf_counter() - started)


async def tasks(producer: aio.Producer, seconds: float) -> float:
    """IN_FLIGHT tasks, each sending one message after the other."""
    started = time.perf_counter()
    end = started + seconds

    async def send() -> int:
        count = 0
        while time.perf_counter() < end:
            await producer.send(Message(TOPIC, BODY))
            count += 1
        return count

    counts = await asyncio.gather(*(send() for _ in range(IN_FLIGHT)))
    return sum(counts) / (time.perf_counter() - started)


class BacklogCounter:
    """Counts the messages of the backlog, and the time from the first to the last."""

    def __init__(self) -> None:
        self._count = 0
        self._times = [0.0, 0.0]

    def take(self, count: int) -> bool:
        """Were these the last?"""
        self._times[0] = self._times[0] or time.perf_counter()
        self._count += count
        if self._count < BACKLOG:
            return False
        self._times[1] = time.perf_counter()
        return True

    def rate(self) -> float:
        return BACKLOG / (self._times[1] - self._times[0])


class Bench:
    """The cells, over one pair of servers."""

    def __init__(self, servers: SkylarkServers, path: Path, stack: ExitStack) -> None:
        self._namesrv = servers.name_server
        self._broker = servers.broker
        self._path = path
        self._stack = stack
        self._blocking: Producer | None = None
        self._groups = 0
        self._thin = LoadClient()

    def _producer(self) -> Producer:
        if self._blocking is None:
            self._blocking = self._stack.enter_context(Producer("blocking", namesrv=self._namesrv))
            for _ in range(500):
                self._blocking.send(Message(TOPIC, BODY))
        return self._blocking

    def _aio(
        self, work: Callable[[aio.Producer], Coroutine[Any, Any, float]], *, batching: bool = False
    ) -> float:
        async def produce() -> float:
            settings = ProducerSettings(batching=batching, in_flight_max=1 << 14, send_timeout_ms=30_000)
            async with aio.Producer("asyncio", namesrv=self._namesrv, settings=settings) as producer:
                await windowed(producer, 0.2, IN_FLIGHT)
                return await work(producer)

        return asyncio.run(produce())

    def cells(self) -> dict[str, Cell]:
        return {
            "blocking-1": self.blocking_one,
            "blocking-futures": self.blocking_futures,
            "blocking-batch-32": self.blocking_batch,
            "asyncio-1": lambda seconds: self._aio(lambda producer: self.asyncio_one(producer, seconds)),
            "asyncio-256": lambda seconds: self._aio(lambda producer: windowed(producer, seconds, IN_FLIGHT)),
            "asyncio-256-tasks": lambda seconds: self._aio(lambda producer: tasks(producer, seconds)),
            "asyncio-batch-32": lambda seconds: self._aio(
                lambda producer: self.asyncio_batch(producer, seconds)
            ),
            "auto-batching": lambda seconds: self._aio(
                lambda producer: windowed(producer, seconds, GATHERED), batching=True
            ),
            "thin-256": self.thin,
            "consume-backlog": lambda seconds: self.consume(PULLED),
            "consume-backlog-32": lambda seconds: self.consume(BATCH),
            "consume-backlog-blocking": lambda seconds: self.consume_blocking(),
            "decode": self.decode,
        }

    def blocking_one(self, seconds: float) -> float:
        producer = self._producer()

        def step() -> int:
            producer.send(Message(TOPIC, BODY))
            return 1

        return counted(step, seconds)

    def blocking_futures(self, seconds: float) -> float:
        producer = self._producer()
        waiting: deque[Any] = deque()

        def step() -> int:
            waiting.append(producer.submit(Message(TOPIC, BODY)))
            if len(waiting) > IN_FLIGHT:
                waiting.popleft().result()
            return 1

        rate = counted(step, seconds)
        for future in waiting:
            future.result()
        return rate

    def blocking_batch(self, seconds: float) -> float:
        producer = self._producer()
        return counted(
            lambda: len(producer.send_batch([Message(TOPIC, BODY) for _ in range(BATCH)])), seconds
        )

    async def asyncio_one(self, producer: aio.Producer, seconds: float) -> float:
        started = time.perf_counter()
        count = 0
        while time.perf_counter() < started + seconds:
            await producer.send(Message(TOPIC, BODY))
            count += 1
        return count / (time.perf_counter() - started)

    async def asyncio_batch(self, producer: aio.Producer, seconds: float) -> float:
        started = time.perf_counter()
        count = 0
        while time.perf_counter() < started + seconds:
            count += len(await producer.send_batch([Message(TOPIC, BODY) for _ in range(BATCH)]))
        return count / (time.perf_counter() - started)

    def thin(self, seconds: float) -> float:
        """A client that only fills in numbers: what the broker can take at this window."""
        load = Load(
            address=self._broker,
            topic=TOPIC,
            body_bytes=len(BODY),
            in_flight=IN_FLIGHT,
            warm_up_s=0.2,
            seconds=max(seconds, 1.0),
        )
        result = self._thin.run(load)
        return result.answers / result.seconds

    def fill(self) -> None:
        """Make the backlog."""
        producer = self._producer()
        for _ in range(BACKLOG // 200):
            producer.send_batch([Message(BACKLOG_TOPIC, BODY, tags="a") for _ in range(200)])

    def consume(self, pulled: int) -> float:
        """A new group reads the whole backlog, so many in a pull; from its first message to its last."""
        group, settings = self._new_group(pulled)

        async def consume() -> float:
            consumer = aio.PushConsumer(group, namesrv=self._namesrv, settings=settings)
            counter = BacklogCounter()
            done = asyncio.Event()

            async def listen(messages: Any) -> None:
                if counter.take(len(messages)):
                    done.set()

            consumer.subscribe(BACKLOG_TOPIC, "*", listen)
            async with consumer, asyncio.timeout(CONSUME_TIMEOUT_S):
                await done.wait()
            return counter.rate()

        return asyncio.run(consume())

    def consume_blocking(self) -> float:
        """The same with a function in threads."""
        group, settings = self._new_group(PULLED)
        consumer = PushConsumer(group, namesrv=self._namesrv, settings=settings)
        counter = BacklogCounter()
        done = threading.Event()
        lock = threading.Lock()

        def listen(messages: Any) -> None:
            with lock:
                if counter.take(len(messages)):
                    done.set()

        consumer.subscribe(BACKLOG_TOPIC, "*", listen)
        with consumer:
            if not done.wait(CONSUME_TIMEOUT_S):
                raise TimeoutError("the backlog was not consumed in time")
        return counter.rate()

    def _new_group(self, pulled: int) -> tuple[str, PushConsumerSettings]:
        self._groups += 1
        settings = PushConsumerSettings(
            consume_from=ConsumeFrom.FIRST_OFFSET,
            batch_max=pulled,
            pull_batch_max=pulled,
            first_pull_delay_ms=0,
        )
        return f"consumers-{self._groups}", settings

    def decode(self, seconds: float) -> float:
        """Bare decoding of what a pull brought, properties left as text."""
        queue = MessageQueue(BACKLOG_TOPIC, "broker-a", 0)
        with BlockingConnection(self._broker) as connection:
            pull = PullMessage(
                "decoding", BACKLOG_TOPIC, 0, 0, PULLED, PULL_SUBSCRIPTION, 0, 0, 0,
                subscription="*", bulk_bytes=PushConsumerSettings().pull_batch_bytes_max,
            )  # fmt: skip
            records = bytes(connection.call(pull).records)
        return counted(lambda: len(decode_pull(records, queue)), min(seconds, 1.0))


async def paced(namesrv: str, seconds: float) -> list[dict[str, float]]:
    """Send and consume at a steady rate, by both faces; anonymous memory every so often."""
    samples: list[dict[str, float]] = []
    received = 0

    async def listen(messages: Any) -> None:
        nonlocal received
        received += len(messages)

    consumer = aio.PushConsumer("soak", namesrv=namesrv, settings=PushConsumerSettings(batch_max=BATCH))
    consumer.subscribe(TOPIC, "*", listen)
    with Producer("soak-blocking", namesrv=namesrv) as blocking:
        async with consumer, aio.Producer("soak-asyncio", namesrv=namesrv) as producer:
            sent, started = 0, time.monotonic()
            while (elapsed := time.monotonic() - started) < seconds:
                await asyncio.gather(*(producer.send(Message(TOPIC, BODY)) for _ in range(SOAK_PER_S // 20)))
                await asyncio.to_thread(blocking.send, Message(TOPIC, BODY))
                sent += SOAK_PER_S // 20 + 1
                if elapsed >= len(samples) * SOAK_SAMPLE_S:
                    mib = round(anonymous_bytes() / (1 << 20), 2)
                    samples.append({"s": round(elapsed), "sent": sent, "received": received, "mib": mib})
                await asyncio.sleep(max(0.0, sent / SOAK_PER_S - (time.monotonic() - started)))
    return samples


def soak(namesrv: str, seconds: float) -> dict[str, Any]:
    """Memory must not grow with the messages; the first half, in which all warms up, is left out."""
    samples = asyncio.run(paced(namesrv, seconds))
    settled = samples[len(samples) // 2 :]
    slope, _ = statistics.linear_regression(
        [each["s"] for each in settled], [each["mib"] for each in settled]
    )
    return {
        "slope_kib_per_minute": round(slope * 60 * 1024, 1),
        "first": samples[0],
        "middle": settled[0],
        "last": samples[-1],
    }


def figures(rates: dict[str, list[float]]) -> Iterator[tuple[str, dict[str, int]]]:
    for name, found in rates.items():
        yield name, {"best_per_s": round(max(found)), "median_per_s": round(statistics.median(found))}


def ratios(rates: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Of the best rounds, and the median over the rounds: those were measured shortly after each other."""
    result = {}
    for name, expected in EXPECTED.items():
        ours, bare = name.split(" / ")
        if ours in rates and bare in rates:
            pairs = zip(rates[ours], rates[bare], strict=True)
            result[name] = {
                "best": round(max(rates[ours]) / max(rates[bare]), 2),
                "median": round(statistics.median(one / other for one, other in pairs), 2),
                "expected": expected,
            }
    return result


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", nargs="+", metavar="CELL")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round of a cell")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--java", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="only this: memory over time")
    return parser.parse_args()


def run(cells: dict[str, Cell], seconds: float, rounds: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in cells}
    for _ in range(rounds):
        for name, cell in cells.items():
            rates[name].append(cell(seconds))
    return rates


def main() -> None:
    arguments = parse_arguments()
    left_out: dict[str, str] = {}

    def chosen(cells: dict[str, Cell]) -> dict[str, Cell]:
        return {name: cell for name, cell in cells.items() if name in (arguments.cells or cells)}

    with scratch() as path, SkylarkServers(path / "servers", SETTINGS) as servers, ExitStack() as stack:
        if arguments.soak:
            report("client", {"soak": soak(servers.name_server, arguments.soak)})
            return
        bench = Bench(servers, path, stack)
        cells = bench.cells()
        if arguments.java:
            try:
                java = stack.enter_context(java_client(servers.name_server, TOPIC, len(BODY), path))
                cells = {**java.cells(), **cells}
            except UNAVAILABLE as error:
                left_out["java"] = str(error)
        cells = chosen(cells)
        if any(name.startswith(("consume", "decode")) for name in cells):
            bench.fill()
        rates = run(cells, arguments.seconds, arguments.rounds)
    conditions = {"seconds": arguments.seconds, "rounds": arguments.rounds, "body_bytes": len(BODY)}
    results = {"conditions": conditions, "rates": dict(figures(rates)), "ratios": ratios(rates)}
    report("client", results | ({"left_out": left_out} if left_out else {}))


if __name__ == "__main__":
    main()
