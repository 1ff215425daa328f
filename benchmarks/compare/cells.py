"""Pure. What is compared: the cells, which systems each makes sense for, and what is read from it."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from skylark.errors import RocketMQError

OURS, APACHE, KAFKA, NATS = "ours", "apache", "kafka", "nats"
PEERS = (APACHE, KAFKA, NATS)
EVERYONE = frozenset({OURS, *PEERS})
ROCKETMQ = frozenset({OURS, APACHE})
FLUSHES = ("async", "sync")
BODIES = {"128B": 128, "1KiB": 1024}
IN_FLIGHT = (1, 64, 1024)
BATCH = 32
BATCH_IN_FLIGHT = 64
LATENCY_RATE = 5_000


class UnknownCell(RocketMQError):
    """An unknown cell or peer."""


class Kind(Enum):
    """How a cell is measured."""

    THIN = "thin"
    """Sends by the thin client, which speaks RocketMQ's protocol."""
    JAVA = "java"
    """Sends by the official Java client of each system."""
    CONSUME = "consume"
    LATENCY = "latency"
    TOPICS = "topics"
    ROUTES = "routes"
    """Questions to a name server by the thin client."""
    FRESH = "fresh"
    """Of servers that were started for it alone: start time and memory."""
    RECOVER = "recover"
    SPARK = "spark"


@dataclass(frozen=True)
class Metric:
    """A figure of a cell. Its ratio is above 1 where Skylark is better."""

    name: str
    unit: str
    more_is_better: bool = False


PER_S = Metric("messages", "/s", more_is_better=True)
ROUTES_PER_S = Metric("routes", "/s", more_is_better=True)
P50, P99, P999 = Metric("p50", "µs"), Metric("p99", "µs"), Metric("p99.9", "µs")
SERVER_CPU = Metric("server processor time", "µs/message")
ONE_TOPIC_SHARE = Metric("share of the rate with 1 topic", "", more_is_better=True)
START = Metric("start to first acknowledged send", "s")
IDLE, LOADED = Metric("anonymous memory idle", "MiB"), Metric("anonymous memory under load", "MiB")
STOP = Metric("SIGTERM to the end of the process", "s")
RECOVERY = Metric("kill -9 to first acknowledged send", "s")
SPARK_METRICS = {
    name: Metric(f"rows/s, {name}", "", more_is_better=True)
    for name in ("read from the broker", "read from files", "write to the broker")
}
"""By the names of the cells of `measure_spark`."""
START_TIME, STOP_TIME, MEMORY = "start", "stop", "memory"
FRESH_METRICS = {START_TIME: (START,), STOP_TIME: (STOP,), MEMORY: (IDLE, LOADED)}
METRICS = {
    metric.name: metric
    for metric in (
        PER_S, ROUTES_PER_S, P50, P99, P999, SERVER_CPU, ONE_TOPIC_SHARE, START, STOP, IDLE, LOADED, RECOVERY,
        *SPARK_METRICS.values(),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One shape of work. `bars` are the ratios to Apache that we want to reach, `floors` our own figures."""

    name: str
    kind: Kind
    what: str
    flush: str = "async"
    body_bytes: int = 1024
    in_flight: int = 0
    batch: int = 1
    topics: int = 1
    systems: frozenset[str] = EVERYONE
    not_for: str = ""
    """Why the systems that are missing are missing."""
    bars: tuple[tuple[Metric, float], ...] = ()
    floors: tuple[tuple[Metric, float], ...] = ()

    def bar(self, metric: Metric) -> float | None:
        return dict(self.bars).get(metric)

    def floor(self, metric: Metric) -> float | None:
        return dict(self.floors).get(metric)


THIN_ONLY = "the thin client speaks RocketMQ's protocol only; the cells java-* compare this"
TOPICS_ONLY = "a cell about RocketMQ's many topics in one log"
ROUTES_ONLY = "a cell about RocketMQ's name server"
RECOVER_ONLY = "a cell about RocketMQ's log files"
SPARK_ONLY = "a cell about our Spark source"


def _sends() -> list[Cell]:
    cells = []
    for flush in FLUSHES:
        for in_flight in IN_FLIGHT:
            for body, body_bytes in BODIES.items():
                name, what = f"{flush}-{in_flight}-{body}", f"{flush} flush, {in_flight} in flight, {body}"
                thin, java = f"sends, {what}, thin client", f"sends, {what}, official Java clients"
                cells.append(
                    Cell(
                        f"send-{name}", Kind.THIN, thin, flush, body_bytes, in_flight,
                        systems=ROCKETMQ, not_for=THIN_ONLY, bars=((PER_S, 1.5),),
                    )
                )  # fmt: skip
                cells.append(Cell(f"java-{name}", Kind.JAVA, java, flush, body_bytes, in_flight))
    return cells


def _others() -> list[Cell]:
    cells = []
    for body, body_bytes in BODIES.items():
        what = f"batches of {BATCH}, {BATCH_IN_FLIGHT} in flight, {body}"
        cells.append(
            Cell(
                f"batch-{body}", Kind.THIN, f"{what}, thin client", body_bytes=body_bytes, batch=BATCH,
                in_flight=BATCH_IN_FLIGHT, systems=ROCKETMQ, not_for=THIN_ONLY, bars=((PER_S, 1.0),),
            )
        )  # fmt: skip
        cells.append(
            Cell(
                f"java-batch-{body}", Kind.JAVA, f"{what}, official Java clients", body_bytes=body_bytes,
                batch=BATCH, in_flight=BATCH_IN_FLIGHT, bars=((PER_S, 1.0),),
            )
        )  # fmt: skip
        consume = f"a backlog of {body} read by the official Java consumer"
        cells.append(
            Cell(f"consume-{body}", Kind.CONSUME, consume, body_bytes=body_bytes, bars=((PER_S, 1.0),))
        )
    latency = f"end to end at {LATENCY_RATE:,}/s, 1 KiB, official Java clients"
    cells.append(Cell(f"latency-{LATENCY_RATE}", Kind.LATENCY, latency, bars=((P999, 1.0),)))
    for topics in (1_000, 10_000):
        what = f"sends to {topics:,} topics in turn, 1,024 in flight, 128 B, thin client"
        cells.append(
            Cell(
                f"topics-{topics}", Kind.TOPICS, what, body_bytes=128, in_flight=1024, topics=topics,
                systems=ROCKETMQ, not_for=TOPICS_ONLY, bars=((PER_S, 1.5),), floors=((ONE_TOPIC_SHARE, 0.8),),
            )
        )  # fmt: skip
    routes = "questions to the name server about 100 topics, by 16 connections, thin client"
    cells.append(
        Cell(
            "routes", Kind.ROUTES, routes, in_flight=16, topics=100,
            systems=ROCKETMQ, not_for=ROUTES_ONLY, bars=((ROUTES_PER_S, 1.0),),
        )
    )  # fmt: skip
    start = "an empty store: from the start of the process to the first acknowledged send"
    stop = "a server that has just started, and had its load if `memory` is measured: from SIGTERM to its end"
    memory = f"RssAnon after the start, and the most at {LATENCY_RATE:,}/s of 1 KiB"
    recover = "kill -9 right after a load, then from the start to the first acknowledged send"
    spark = "rows a second through Spark: from the broker, from files, into a topic"
    cells += [
        Cell(START_TIME, Kind.FRESH, start, bars=((START, 8.0),)),
        Cell(STOP_TIME, Kind.FRESH, stop),
        Cell(MEMORY, Kind.FRESH, memory, bars=((LOADED, 4.0),)),
        *(
            Cell(
                name, Kind.RECOVER, f"{recover}, {flush} flush", flush,
                systems=ROCKETMQ, not_for=RECOVER_ONLY, bars=((RECOVERY, 1.0),),
            )
            for name, flush in (("recover", "async"), ("recover-sync", "sync"))
        ),
        Cell("spark", Kind.SPARK, spark, systems=frozenset({OURS}), not_for=SPARK_ONLY),
    ]  # fmt: skip
    return cells


CELLS = [*_sends(), *_others()]


def parse_peers(text: str) -> list[str]:
    """`apache,kafka` in order, each once. Raises UnknownCell."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in PEERS]
    if unknown or not names:
        raise UnknownCell(f"unknown peer {unknown[0] if unknown else text!r}; choose {', '.join(PEERS)}")
    return names


def choose(patterns: Sequence[str], peers: Sequence[str], *, quick: bool = False) -> list[Cell]:
    """The cells whose names match, in their order; without patterns all that make sense for the peers.

    `quick` leaves out what takes long in any case. Raises UnknownCell for a pattern that nothing matches.
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(cell.name, pattern) for cell in CELLS):
            raise UnknownCell(f"unknown cell {pattern!r}; choose {', '.join(cell.name for cell in CELLS)}")
    if patterns:
        return [
            cell for cell in CELLS if any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in patterns)
        ]
    chosen = [cell for cell in CELLS if cell.systems == frozenset({OURS}) or cell.systems & set(peers)]
    if set(peers) == {APACHE}:  # the thin client measures the same, and measures the server
        chosen = [cell for cell in chosen if cell.kind is not Kind.JAVA]
    return [cell for cell in chosen if not (quick and is_long(cell))]


def is_long(cell: Cell) -> bool:
    """Whether preparing it alone takes minutes."""
    return cell.kind is Kind.SPARK or cell.topics > 1_000
