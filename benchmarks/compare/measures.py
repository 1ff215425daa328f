"""One round of one cell on one system: what is done, and the figures that come out of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Self

from benchmarks.compare import cells as c
from benchmarks.compare.systems import System
from benchmarks.periodic import watched
from benchmarks.survey.features import ask_routes
from skylark.bench.load import Load, discrepancies
from skylark.bench.load_client import LoadClient
from skylark.bench.load_target import FILL_BATCH, LoadTarget
from skylark.bench.machine import CLIENT_CPU, ListeningProcess, can_pin
from skylark.bench.results import Cell as Measured
from skylark.bench.results import Value
from skylark.bench.servers import ServerChoice
from skylark.errors import RocketMQError
from skylark.processes import ProcessFailed

QUEUES = 4
CELL_WARM_UP_S = 1.0
IDLE_S = 2.0
MEMORY_SAMPLE_S = 0.2
ANSWER_MARGIN_S = 120
CONSUME_TIMEOUT_S = 180
RATE_SHARE_MIN = 0.95
"""Of the wanted rate; below it a latency is that of another load."""
SPARK_BODY_BYTES = 200
RECOVER_LOAD_S = 1.0
RECOVER_BODY_BYTES = 1024
RECORD_BYTES = 1024 + 212
"""A record of 1 KiB with the properties of the thin client, near enough to reach a size of log."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long and how large a run is."""

    rounds: int = 3
    seconds: float = 5.0
    warm_up_s: float = 60.0
    """For a JVM to compile itself, all cells together."""
    backlog: int = 200_000
    recover_bytes: int = 4 << 30
    spark_rows: int = 500_000
    heap_mb: int = 2048

    @classmethod
    def quick(cls) -> Self:
        return cls(
            rounds=1,
            seconds=1.0,
            warm_up_s=4.0,
            backlog=20_000,
            recover_bytes=256 << 20,
            spark_rows=50_000,
        )

    def conditions(self) -> dict[str, Value]:
        """For the report."""
        return {
            "rounds": self.rounds,
            "seconds": self.seconds,
            "warm_up_s": self.warm_up_s,
            "backlog": self.backlog,
            "recover_mib": self.recover_bytes >> 20,
            "heap_mb": self.heap_mb,
            "processors": "server on one, client on another" if can_pin() else "shared",
        }


@dataclass
class Round:
    """Figures of a round so far. `wrong` makes it void."""

    figures: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def add(self, metric: c.Metric, value: float | None) -> None:
        if value is not None:
            self.figures[metric.name] = value


def new_topic(cell: c.Cell) -> str:
    """A topic of one round alone: the older a backlog, the more of it may have to come from the disk."""
    return f"{cell.name}-{time.time_ns():X}"


def thin_load(system: System, cell: c.Cell, seconds: float) -> Load:
    return Load(
        address=system.server.address, topic=cell.name, topics=cell.topics, queues=queues_of(cell),
        body_bytes=cell.body_bytes, batch=cell.batch, in_flight=cell.in_flight, seconds=seconds,
        warm_up_s=CELL_WARM_UP_S,
    )  # fmt: skip


def queues_of(cell: c.Cell) -> int:
    return QUEUES if cell.topics == 1 else 1


def take_thin(measured: Measured, per_s: c.Metric = c.PER_S) -> Round:
    """The figures of a load of the thin client."""
    found = Round(wrong=list(measured.wrong))
    found.add(per_s, measured.per_s)
    if measured.latency_us is not None:
        found.add(c.P99, measured.latency_us.p99)
    found.add(c.SERVER_CPU, measured.server_cpu_us)
    return found


class Measures:
    """The kinds of cells for systems that run. Raises RocketMQError where something cannot be done."""

    def __init__(self, effort: Effort, client: LoadClient) -> None:
        self._effort = effort
        self._client = client
        self._kinds: dict[c.Kind, Callable[[System, c.Cell, float], Round]] = {
            c.Kind.THIN: self._thin,
            c.Kind.JAVA: self._java,
            c.Kind.CONSUME: self._consume,
            c.Kind.LATENCY: self._latency,
            c.Kind.TOPICS: self._topics,
            c.Kind.ROUTES: self._routes,
        }

    def measure(self, system: System, cell: c.Cell, seconds: float) -> Round:
        """One round on a system that runs."""
        try:
            # One that was stopped may have been forgotten by its name server.
            system.server.wait_until_serving()
            return self._kinds[cell.kind](system, cell, seconds)
        finally:
            # What this round left in memory must not be written during the next, another system's perhaps.
            os.sync()

    def _thin(self, system: System, cell: c.Cell, seconds: float) -> Round:
        with LoadTarget(system.server.address, self._client, cpu=CLIENT_CPU) as target:
            return take_thin(target.measure(cell.name, thin_load(system, cell, seconds)))

    def _java(self, system: System, cell: c.Cell, seconds: float) -> Round:
        topic = new_topic(cell)
        driver, process = system.driver, system.process
        driver.call("create", topic, QUEUES, timeout_s=ANSWER_MARGIN_S)
        before = process.cpu_us()
        answer = driver.call(
            "send", topic, cell.in_flight, cell.body_bytes, cell.batch, CELL_WARM_UP_S, seconds,
            timeout_s=seconds + ANSWER_MARGIN_S,
        )  # fmt: skip
        after = process.cpu_us()
        found = Round()
        found.add(c.PER_S, answer["messages"] / answer["seconds"])
        found.add(c.P99, answer.get("p99_us"))
        if before is not None and after is not None and answer["sent"]:
            found.add(c.SERVER_CPU, (after - before) / answer["sent"])
        if not answer["messages"]:
            found.wrong.append("nothing was answered in the time measured")
        return found

    def _consume(self, system: System, cell: c.Cell, seconds: float) -> Round:
        """`seconds` does not matter: the whole backlog is read."""
        topic, backlog = new_topic(cell), self._effort.backlog
        system.driver.call("create", topic, QUEUES, timeout_s=ANSWER_MARGIN_S)
        system.driver.call("fill", topic, backlog, cell.body_bytes, timeout_s=CONSUME_TIMEOUT_S)
        answer = system.driver.call(
            "consume", topic, backlog, CONSUME_TIMEOUT_S, timeout_s=CONSUME_TIMEOUT_S + ANSWER_MARGIN_S
        )
        found = Round()
        found.add(c.PER_S, answer["messages"] / answer["seconds"])
        return found

    def _latency(self, system: System, cell: c.Cell, seconds: float) -> Round:
        topic = new_topic(cell)
        system.driver.call("create", topic, QUEUES, timeout_s=ANSWER_MARGIN_S)
        answer = self._paced(system, topic, seconds)
        found = Round()
        for metric, name in ((c.P50, "p50_us"), (c.P99, "p99_us"), (c.P999, "p999_us")):
            found.add(metric, answer[name])
        if answer["rate"] < RATE_SHARE_MIN * c.LATENCY_RATE:
            found.wrong.append(f"only {answer['rate']:,.0f} messages a second were sent")
        return found

    def _paced(self, system: System, topic: str, seconds: float) -> dict[str, float]:
        return system.driver.call(
            "latency", topic, c.LATENCY_RATE, 1024, CELL_WARM_UP_S, seconds,
            timeout_s=seconds + ANSWER_MARGIN_S,
        )  # fmt: skip

    def _topics(self, system: System, cell: c.Cell, seconds: float) -> Round:
        """The topics exist. One of them alone, then all in turn."""
        load = thin_load(system, cell, seconds)
        with LoadTarget(system.server.address, self._client, cpu=CLIENT_CPU) as target:
            alone = target.measure(cell.name, replace(load, topic=load.topic_names[0], topics=1))
            found = take_thin(together := target.measure(cell.name, load))
        found.wrong += alone.wrong
        if alone.per_s:
            found.add(c.ONE_TOPIC_SHARE, together.per_s / alone.per_s)
        return found

    def _routes(self, system: System, cell: c.Cell, seconds: float) -> Round:
        """Java's client is given the name server's address, too."""
        load = replace(
            thin_load(system, cell, seconds), address=system.driver_address, processes=cell.in_flight
        )
        with LoadTarget(system.server.address, self._client, cpu=CLIENT_CPU) as target:
            with system.process.spread():  # on one processor a JVM that is cold refuses to make so many
                target.create(load)
            return take_thin(ask_routes(target, cell.name, load), c.ROUTES_PER_S)

    def make_topics(self, system: System, cell: c.Cell) -> None:
        """Create and fill the topics of `topics-*`: the first message of a queue creates its files."""
        load = thin_load(system, cell, self._effort.seconds)
        with LoadTarget(system.server.address, self._client, cpu=CLIENT_CPU) as target:
            target.fill(load, FILL_BATCH * cell.topics)

    def fresh(self, system: System, *, memory: bool, stop: bool) -> Round:
        """A server that does not run yet, on an empty directory: start time, memory and its end if wanted."""
        found = Round()
        found.add(c.START, system.time_first_send())
        if memory:
            system.server.wait_until_serving()
            time.sleep(IDLE_S)
            found.add(c.IDLE, system.process.anonymous_mib())
            system.driver.call("create", "memory", QUEUES, timeout_s=ANSWER_MARGIN_S)
            peak = MemoryPeak(system.process)
            with watched(peak.look, MEMORY_SAMPLE_S, "skylark-memory-peak"):
                self._paced(system, "memory", self._effort.seconds)
            found.add(c.LOADED, peak.mib)
        if stop:
            started = time.perf_counter()
            with contextlib.suppress(ProcessFailed):  # it had to be killed: that time counts
                system.server.stop()
            found.add(c.STOP, time.perf_counter() - started)
        return found

    def fill_log(self, system: System) -> None:
        """As much log as a recovery shall find."""
        with LoadTarget(system.server.address, self._client, cpu=CLIENT_CPU) as target:
            target.fill(self._recover_load(system), self._effort.recover_bytes // RECORD_BYTES)

    def recover(self, system: System) -> Round:
        """A load, kill -9 at its end, and a start; all that was acknowledged must be there."""
        load = self._recover_load(system)
        with LoadTarget(system.server.address, self._client, cpu=CLIENT_CPU) as target:
            before = target.stored(load)
            counted = self._client.run(load, None, CLIENT_CPU)
        system.server.kill()
        found = Round()
        found.add(c.RECOVERY, system.time_first_send())
        system.server.wait_until_serving()
        expected = before + counted.acknowledged
        with LoadTarget(system.server.address, self._client) as target:
            found.wrong += discrepancies(counted, expected, target.wait_stored(load, expected))
        os.sync()
        return found

    def _recover_load(self, system: System) -> Load:
        return Load(
            address=system.server.address, topic="recover", queues=QUEUES, body_bytes=RECOVER_BODY_BYTES,
            in_flight=64, seconds=RECOVER_LOAD_S, warm_up_s=0.0,
        )  # fmt: skip


def read_with_spark(effort: Effort) -> Round:
    """The Spark cells on servers of their own. Raises NotPossible without pyspark."""
    if find_spec("pyspark") is None:
        raise NotPossible("pyspark is missing: pip install 'skylarkmq[spark]'")
    from benchmarks.survey.spark import measure_spark  # noqa: PLC0415 - most cells need no Spark

    load = Load(address="", topic="spark", body_bytes=SPARK_BODY_BYTES)
    document = measure_spark(ServerChoice(), load, effort.spark_rows, effort.rounds, lambda name, word: None)
    found = Round(wrong=[fault for cell in document.cells for fault in cell.wrong])
    for cell in document.cells:
        found.add(c.SPARK_METRICS[cell.name], cell.per_s)
    return found


class NotPossible(RocketMQError):
    """A requirement of a cell is missing on this machine."""


class MemoryPeak:
    """The most anonymous memory that a process had whenever it was looked at."""

    def __init__(self, process: ListeningProcess) -> None:
        self._process = process
        self.mib = 0.0

    def look(self) -> bool:
        """False if the process has ended; the load then fails."""
        try:
            self.mib = max(self.mib, self._process.anonymous_mib() or 0.0)
        except OSError:
            return False
        return True
