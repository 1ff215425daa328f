"""Our clients against our broker: messages a second, beside the Java client and a thin one, in one run.

python -m benchmarks.client                          all cells
python -m benchmarks.client --cells asyncio-256 auto-batching
python -m benchmarks.client --no-java                without the JVM
python -m benchmarks.client --soak 600               memory of a blocking and an asyncio producer over time

Cells take turns, several rounds; the best round of each counts, because the others were disturbed more.
`ratios` are those that are expected of the clients (`expected`); figures of two runs are not compared.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from benchmarks._common import anonymous_bytes, report, scratch
from benchmarks._load import Client, send_frames
from skylark import ConsumeFrom, Message, Producer, ProducerSettings, PushConsumerSettings, aio
from skylark.client.received import decode_pull
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, PullMessage
from skylark.remoting.blocking import BlockingConnection
from tests.support.java import JavaFailed, compiled, jvm_command
from tests.support.skylark_servers import SkylarkServers

HERE = Path(__file__).parent
POM = HERE.parent / "tests" / "interop" / "java" / "pom-5.3.3.xml"
BODY = bytes(range(128))
TOPIC = "benchmark"
BACKLOG_TOPIC = "backlog"
BACKLOG = 100_000
IN_FLIGHT = 256
GATHERED = 4096  # in flight with automatic batching: what fills its batches
BATCH = 32
JAVA_CELLS = ("one_in_flight", "many_in_flight", "batch")
JAVA_WARM_UP_S = 5.0
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
"""Runs for so many seconds, returns messages a second."""


def counted(step: Callable[[], int], seconds: float) -> float:
    started = time.perf_counter()
    end = started + seconds
    count = 0
    while time.perf_counter() < end:
        count += step()
    return count / (time.perf_counter() - started)


async def windowed(producer: aio.Producer, seconds: float, window: int) -> float:
    """Keep so many messages in flight."""
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
    """Have so many tasks, each of which sends one message after the other."""
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


class Bench:
    """The cells, over one pair of servers."""

    def __init__(self, servers: SkylarkServers, path: Path, stack: ExitStack) -> None:
        self._namesrv = servers.name_server
        self._broker = servers.broker
        self._path = path
        self._stack = stack
        self._blocking: Producer | None = None
        self._groups = 0
        self._thin = Client()

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
            "consume-backlog": self.consume,
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
        frames = self._path / "frames"
        frames.write_bytes(send_frames(TOPIC, 4, len(BODY)))
        result = self._thin.run(
            self._broker, frames, in_flight=IN_FLIGHT, warm_up_s=0.2, seconds=max(seconds, 1.0)
        )
        return result.answers / result.seconds

    def fill(self) -> None:
        """Make the backlog."""
        producer = self._producer()
        for _ in range(BACKLOG // 200):
            producer.send_batch([Message(BACKLOG_TOPIC, BODY, tags="a") for _ in range(200)])

    def consume(self, seconds: float) -> float:
        """A new group reads the whole backlog; from its first message to its last."""
        self._groups += 1
        group = f"consumers-{self._groups}"

        async def consume() -> float:
            settings = PushConsumerSettings(
                consume_from=ConsumeFrom.FIRST_OFFSET, batch_max=BATCH, first_pull_delay_ms=0
            )
            consumer = aio.PushConsumer(group, namesrv=self._namesrv, settings=settings)
            times = [0.0, 0.0]
            count = 0
            done = asyncio.Event()

            async def listen(messages: Any) -> None:
                nonlocal count
                times[0] = times[0] or time.perf_counter()
                count += len(messages)
                if count >= BACKLOG:
                    times[1] = time.perf_counter()
                    done.set()

            consumer.subscribe(BACKLOG_TOPIC, "*", listen)
            async with consumer, asyncio.timeout(CONSUME_TIMEOUT_S):
                await done.wait()
            return BACKLOG / (times[1] - times[0])

        return asyncio.run(consume())

    def decode(self, seconds: float) -> float:
        """Bare decoding of what pulls brought, properties left as text."""
        queue = MessageQueue(BACKLOG_TOPIC, "broker-a", 0)
        with BlockingConnection(self._broker) as connection:
            pull = PullMessage(
                "decoding", BACKLOG_TOPIC, 0, 0, BATCH, PULL_SUBSCRIPTION, 0, 0, 0, subscription="*"
            )
            records = bytes(connection.call(pull).records)
        return counted(lambda: len(decode_pull(records, queue)), min(seconds, 1.0))


class JavaClient:
    """The Java client on the same broker, in a JVM that stays: it compiles itself only once."""

    def __init__(self, namesrv: str, path: Path) -> None:
        """Raises what a missing toolchain raises."""
        classpath = compiled(POM, [HERE / "java" / "ClientRates.java"])
        # Both compilers: this client is to show what it can.
        options = ("-XX:TieredStopAtLevel=4",)
        arguments = [namesrv, TOPIC, str(len(BODY))]
        command = jvm_command(classpath, "ClientRates", *arguments, home=path, heap_mb=512, options=options)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __enter__(self) -> Self:
        for name in JAVA_CELLS:
            self.rate(name, JAVA_WARM_UP_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process:
            pass

    def rate(self, cell: str, seconds: float) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{cell} {seconds}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("rate "):
                return float(line.split()[1])
        raise RuntimeError("the Java client has ended")

    def cells(self) -> dict[str, Cell]:
        return {f"java-{name}": functools.partial(self.rate, name) for name in JAVA_CELLS}


def soak(namesrv: str, seconds: float) -> dict[str, Any]:
    """Anonymous memory of this process under load: it must not grow with the number of messages."""
    samples = []
    with Producer("soak", namesrv=namesrv) as blocking:

        async def produce(until: float) -> int:
            async with aio.Producer("soak-aio", namesrv=namesrv) as producer:
                return round(await windowed(producer, until, IN_FLIGHT) * until)

        sent = asyncio.run(produce(2.0))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sent += asyncio.run(produce(max(1.0, seconds / 40)))
            for _ in range(1000):
                blocking.send(Message(TOPIC, BODY))
            sent += 1000
            samples.append({"messages": sent, "anonymous_mib": round(anonymous_bytes() / (1 << 20), 1)})
    return {"first": samples[0], "middle": samples[len(samples) // 2], "last": samples[-1]}


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


def main() -> None:
    arguments = parse_arguments()
    results: dict[str, Any] = {}
    with scratch() as path, SkylarkServers(path / "servers", SETTINGS) as servers, ExitStack() as stack:
        if arguments.soak:
            report("client", {"soak": soak(servers.name_server, arguments.soak)})
            return
        bench = Bench(servers, path, stack)
        cells = bench.cells()
        if arguments.java:
            try:
                java = stack.enter_context(JavaClient(servers.name_server, path))
                cells = {**java.cells(), **cells}
            except (JavaFailed, RuntimeError, pytest.skip.Exception, pytest.fail.Exception) as error:
                results["java"] = str(error)
        cells = {name: cell for name, cell in cells.items() if name in (arguments.cells or cells)}
        if {"consume-backlog", "decode"} & cells.keys():
            bench.fill()
        rates: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for name, cell in cells.items():
                rates.setdefault(name, []).append(cell(arguments.seconds))
        results["conditions"] = {
            "seconds": arguments.seconds,
            "rounds": arguments.rounds,
            "body_bytes": len(BODY),
        }
    report("client", results | {"rates": dict(figures(rates)), "ratios": ratios(rates)})


if __name__ == "__main__":
    main()
