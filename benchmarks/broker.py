"""A broker under a thin pipelined client: messages a second, latency, processor time and memory per cell.

python -m benchmarks.broker                                  all cells on ours
python -m benchmarks.broker --peer apache                    and beside it, in turn, on Apache RocketMQ 5.3.3
python -m benchmarks.broker --cells 'async-64-*' pull-1KiB   some of them
python -m benchmarks.broker --server HOST:PORT               on a broker that runs already, instead of ours

Cells: FLUSH-INFLIGHT-BODY; batch-BODY, 64 sends of 32 messages in flight; batch-topic-BODY, the same to a
BatchCQ topic; pull-BODY, a backlog in 4 queues, one pull of 32 in flight for each, also by tag and by SQL92,
of which all messages match; delay and timer, 64 delayed sends in flight; transaction, 64 messages in flight,
each committed when it is stored; client, the client against a server that does nothing: what it can drive.
Beside a lone synchronous send, in the same round, a bare loop: a process that writes as many bytes behind the
last ones, calls fdatasync, and answers on a socket. It is what the disk allows.
A round whose counts differ (sent, acknowledged, stored) is void and not among the figures.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks._common import report
from benchmarks.peers.apache import POM, ApacheNameServer, MeasuredBroker
from benchmarks.survey.features import FEATURES, FILTERS
from skylark.bench.consumer import FILTERED
from skylark.bench.load import Load, LoadKind
from skylark.bench.load_client import LoadClient
from skylark.bench.load_target import LoadTarget, messages_that_fit
from skylark.bench.machine import BROKER_CPU, CLIENT_CPU, can_pin, pinned, scratch
from skylark.bench.results import Cell as Measured
from skylark.bench.servers import SETTINGS, own_servers
from skylark.errors import RocketMQError
from tests.support.java import jars_of

QUEUES = 4
CLIENT_BATCH = 32
BATCH_TYPE = "+queue.type=BatchCQ"
BACKLOG = 204_800
CELL_WARM_UP_S = 1.0
EXPECTED_RATIO = 1.5
RATE = "messages_per_s"
BODIES = {"128B": 128, "1KiB": 1024}
FLUSH_TYPES = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}
Figures = dict[str, float | None]


@dataclass(frozen=True)
class Cell:
    """What is done to a broker. `batch` messages travel in a frame."""

    name: str
    flush: str
    body_bytes: int
    in_flight: int
    batch: int = 1
    pulls: bool = False
    properties: Mapping[str, str] = field(default_factory=lambda: {"TAGS": "TagA"})
    expression: str = "*"
    expression_type: str = "TAG"
    attributes: str = ""
    """Attributes of the topic."""
    transactions: bool = False

    @property
    def kind(self) -> LoadKind:
        if self.transactions:
            return LoadKind.TRANSACTION
        return LoadKind.PULL if self.pulls else LoadKind.SEND

    @property
    def has_bare_loop(self) -> bool:
        return self.flush == "sync" and self.in_flight == 1


def make_cells() -> list[Cell]:
    cells = [
        Cell(f"{flush}-{in_flight}-{body}", flush, body_bytes, in_flight)
        for flush in FLUSH_TYPES
        for in_flight in (1, 64, 1024)
        for body, body_bytes in BODIES.items()
    ]
    for body, body_bytes in BODIES.items():
        batch = Cell(f"batch-{body}", "async", body_bytes, 64, batch=CLIENT_BATCH)
        cells += [batch, replace(batch, name=f"batch-topic-{body}", attributes=BATCH_TYPE)]
        cells.append(Cell(f"pull-{body}", "async", body_bytes, QUEUES, batch=CLIENT_BATCH, pulls=True))
    for name in ("by tag", "by SQL92"):
        expression, kind = FILTERS[name]
        pull = Cell(
            f"pull-{name.split()[1].lower()}-1KiB", "async", 1024, QUEUES, CLIENT_BATCH, True, FILTERED,
            expression, kind,
        )  # fmt: skip
        cells.append(pull)
    cells += [
        Cell(f"{name.split()[0]}-128B", "async", 128, 64, properties=FEATURES[name])
        for name in ("delay level", "timer")
    ]
    cells.append(Cell("transaction-128B", "async", 128, 64, transactions=True))
    return cells


CELLS = make_cells()
CLIENT_CELL = "client"
BARE = "bare"
BARE_EXPECTED = 0.9
"""Of the rate of a bare loop: at least this for ours."""
BARE_FILE_BYTES = 16 << 20
RECORD_BYTES = 200
"""Of a record without its body, and of the frame around it."""
ANSWER = bytes(200)

# --- Brokers, each on a directory of its own ---


@contextmanager
def ours(directory: Path, flush: str) -> Iterator[str]:
    """The address of our broker, with its name server in the same process."""
    with own_servers(directory, flush=flush) as served:
        yield served.broker


@contextmanager
def apache(directory: Path, flush: str) -> Iterator[str]:
    """The address of Apache's broker; its name server runs beside it."""
    classpath = jars_of(POM)
    settings = SETTINGS | {"flushDiskType": FLUSH_TYPES[flush], "enablePropertyFilter": "true"}
    with ApacheNameServer(classpath, directory / "name-server") as name_server:
        broker = MeasuredBroker(
            classpath,
            directory / "home",
            directory / "store",
            name_server=name_server.address,
            settings=settings,
        )
        with broker:
            yield broker.address


@contextmanager
def running(address: str) -> Iterator[str]:
    """A broker that is already running."""
    yield address


@dataclass(frozen=True)
class Contender:
    """A broker that can be started. All cells share `warm_up_s`, before the first round."""

    name: str
    start: Callable[[Path, str], AbstractContextManager[str]]
    warm_up_s: float = 0.0
    is_started_here: bool = True


# --- One cell ---


class Contestant(LoadTarget):
    """A running broker and what is needed to measure it."""

    def __init__(
        self,
        contender: Contender,
        address: str,
        client: LoadClient,
        directory: Path,
        *,
        cpu: int | None = CLIENT_CPU,
        topics: str = "benchmark",
    ) -> None:
        super().__init__(address, client, cpu=cpu)
        self._topics = topics
        self.contender = contender
        self._directory = directory

    def measure_cell(
        self, cell: Cell, seconds: float, *, warm_up_s: float = CELL_WARM_UP_S, backlog: int = BACKLOG
    ) -> tuple[Figures, list[str]]:
        """The figures of one round, and why they are void, if they are."""
        load = Load(
            address=self.address,
            kind=cell.kind,
            # A backlog is new each time: the older it is, the more of it a broker may have to read from disk.
            topic=f"{self._topics}-{cell.name}" + (f"-{time.time_ns():X}" if cell.pulls else ""),
            queues=QUEUES,
            attributes=cell.attributes,
            body_bytes=cell.body_bytes,
            batch=cell.batch,
            in_flight=cell.in_flight,
            seconds=seconds,
            warm_up_s=warm_up_s,
            messages_max=0 if cell.pulls else messages_that_fit(self._directory, cell.body_bytes),
            properties=dict(cell.properties),
            expression=cell.expression,
            expression_type=cell.expression_type,
        )
        if cell.pulls:
            self.fill(load, backlog)
        measured = self.measure(cell.name, load)
        return figures_of(measured), measured.wrong

    def warm_up(self, cells: list[Cell]) -> None:
        """Do a little of everything, then wait until the compilers that it woke have gone to rest.

        A broker that we started may use all processors for that: on one, compiling takes minutes.
        """
        share = self.contender.warm_up_s / len(cells)
        if not share:
            return
        with self.process.spread() if self.contender.is_started_here else nullcontext():
            for cell in cells:
                self.measure_cell(cell, share)
            self.process.wait_settled()


def figures_of(measured: Measured) -> Figures:
    latency = measured.latency_us
    return {
        "messages_per_s": measured.per_s,
        "p50_us": latency.p50 if latency else 0.0,
        "p99_us": latency.p99 if latency else 0.0,
        "p999_us": latency.p999 if latency else 0.0,
        "broker_cpu_us": measured.server_cpu_us,
        "client_cpu_us": measured.client_cpu_us,
        "rss_anon_mib": measured.anonymous_mib,
        "seconds": measured.seconds,
    }


# --- All cells ---


class Table:
    """The figures of all rounds, by cell and contender."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._rounds: dict[str, dict[str, list[tuple[Figures, list[str]]]]] = {}

    def add(self, cell: str, name: str, figures: Figures, wrong: list[str]) -> None:
        self._rounds.setdefault(cell, {}).setdefault(name, []).append((figures, wrong))
        cpu = figures["broker_cpu_us"]
        print(
            f"{cell:16} {name:8} {figures['messages_per_s']:>9,.0f}/s  p50 {figures['p50_us']:>8,.0f} us"
            f"  p99 {figures['p99_us']:>8,.0f} us  broker {'?' if cpu is None else f'{cpu:.1f}'} us/message"
            f"{'  VOID: ' + '; '.join(wrong) if wrong else ''}",
            file=sys.stderr,
        )

    def results(self, names: list[str]) -> dict[str, Any]:
        results = {cell: self._cell(by_name, names) for cell, by_name in self._rounds.items()}
        for cell, result in results.items() if len(names) == 2 else ():
            rate, p99, cpu = (result[key].get("median") for key in ("ratio", "p99_ratio", "cpu_ratio"))
            print(f"{cell:16} {' / '.join(names)}: {rate}, p99 {p99}, cpu {cpu}", file=sys.stderr)
        return results

    def _cell(self, by_name: dict[str, list[tuple[Figures, list[str]]]], names: list[str]) -> dict[str, Any]:
        result: dict[str, Any] = {name: self._summary(rounds) for name, rounds in by_name.items()}
        if len(names) == 2:
            # The last round may lack its second half, if a broker failed.
            pairs = zip(*(by_name.get(name, []) for name in names), strict=False)
            good = [(mine, peers) for (mine, wrong), (peers, also) in pairs if not wrong and not also]
            for key, title, expected in (
                ("messages_per_s", "ratio", {"expected_at_least": EXPECTED_RATIO}),
                ("p99_us", "p99_ratio", {"expected_at_most": 1.0}),
                ("broker_cpu_us", "cpu_ratio", {}),  # the least disturbed by what else the machine does
            ):
                ratios = [a / b for mine, peers in good if (a := mine[key]) and (b := peers[key])]
                result[title] = (spread(ratios) if ratios else {"void": True}) | expected
        if BARE in by_name:
            pairs = zip(by_name.get("ours", []), by_name[BARE], strict=False)
            shares = [
                a / b for (mine, _), (bare, _) in pairs if (a := mine[RATE]) and (b := bare[RATE])
            ]  # fmt: skip
            result["to_bare_loop"] = spread(shares) | {"expected_at_least": BARE_EXPECTED}
        return result

    def _summary(self, rounds: list[tuple[Figures, list[str]]]) -> dict[str, Any]:
        good = [figures for figures, wrong in rounds if not wrong]
        result: dict[str, Any] = {"rounds": len(good)}
        void = [wrong for _, wrong in rounds if wrong]
        if void:
            result["void"] = void
        if any((figures["seconds"] or 0) < 0.9 * self._seconds for figures in good):
            result["shrunk"] = "the disk has no room for the whole time"
        for key in good[0] if good else ():
            values = [value for figures in good if (value := figures[key]) is not None]
            result[key] = spread(values) if values else None
        return result


def spread(values: list[float]) -> dict[str, float]:
    digits = 2 if max(values) < 100 else 0
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
    }


@contextmanager
def alone(target: Contestant, targets: list[Contestant]) -> Iterator[None]:
    """The brokers whose turn it is not are stopped: an idle JVM takes up to a tenth of a processor."""
    others = [other for other in targets if other is not target and other.contender.is_started_here]
    for other in others:
        other.process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for other in others:
            other.process.signal(signal.SIGCONT)


def run_mode(
    flush: str,
    cells: list[Cell],
    contenders: list[Contender],
    client: LoadClient,
    table: Table,
    arguments: argparse.Namespace,
) -> None:
    """All rounds of the cells of one flush mode: the brokers stay, and take turns cell by cell."""
    with ExitStack() as stack:
        path = stack.enter_context(scratch())
        targets: list[Contestant] = []
        for contender in contenders:
            with pinned(BROKER_CPU) if arguments.broker_cpus == "one" else nullcontext():
                address = stack.enter_context(contender.start(path / contender.name, flush))
            targets.append(target := Contestant(contender, address, client, path))
            stack.callback(target.close)
            with alone(target, targets):
                target.warm_up(cells)
        for _ in range(arguments.rounds):
            for cell in cells:
                for target in targets:
                    with alone(target, targets):
                        figures, wrong = target.measure_cell(cell, arguments.seconds)
                    table.add(cell.name, target.contender.name, figures, wrong)
                if cell.has_bare_loop:
                    table.add(cell.name, BARE, bare_loop(path, cell.body_bytes, arguments.seconds), [])


def bare_loop(directory: Path, body_bytes: int, seconds: float) -> Figures:
    """Sends of one client, answered when their bytes are on disk: by nothing but system calls.

    The file has been written before, so that fdatasync has no sizes or blocks to record.
    """
    data = bytes(RECORD_BYTES + body_bytes)
    here, there = socket.socketpair()
    latencies: list[float] = []
    with (directory / "bare").open("wb+", buffering=0) as file, here, there:
        file.write(bytes(BARE_FILE_BYTES))
        os.fsync(file.fileno())

        def answer() -> None:
            at = 0
            while received := there.recv(len(data), socket.MSG_WAITALL):
                os.pwrite(file.fileno(), received, at)
                os.fdatasync(file.fileno())
                at = (at + len(data)) % (BARE_FILE_BYTES - len(data))
                there.send(ANSWER)

        thread = threading.Thread(target=answer, name="bare-loop")
        thread.start()
        began = time.perf_counter()
        while (sent := time.perf_counter()) - began < seconds:
            here.sendall(data)
            here.recv(len(ANSWER), socket.MSG_WAITALL)
            latencies.append((time.perf_counter() - sent) * 1e6)
        here.shutdown(socket.SHUT_WR)
        thread.join()
    (directory / "bare").unlink()
    latencies.sort()
    return {
        "messages_per_s": round(len(latencies) / seconds, 1),
        "p50_us": latencies[len(latencies) // 2],
        "p99_us": latencies[len(latencies) * 99 // 100],
        "p999_us": latencies[len(latencies) * 999 // 1000],
        "broker_cpu_us": None,
        "seconds": seconds,
    }


def client_cell(client: LoadClient, seconds: float) -> dict[str, Any]:
    """What the client can drive: a broker's figures near these would be the client's."""
    result: dict[str, Any] = {}
    for body, body_bytes in BODIES.items():
        for in_flight in (1, 64, 1024):
            with client.answering(int(seconds) + 30) as address:
                load = Load(
                    address=address,
                    topic="benchmark",
                    body_bytes=body_bytes,
                    in_flight=in_flight,
                    warm_up_s=0.2,
                    seconds=seconds,
                )
                counted = client.run(load, cpu=CLIENT_CPU)
            latency = counted.latencies.percentiles()
            result[f"{in_flight}-{body}"] = {
                "messages_per_s": round(counted.answers / counted.seconds),
                "p50_us": latency.p50,
                "p99_us": latency.p99,
                "client_cpu_us": round(counted.client_cpu_us / counted.answers, 2),
            }
    return result


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [CLIENT_CELL, *(cell.name for cell in CELLS)]
    parser.add_argument("--cells", nargs="+", default=["*"], metavar="PATTERN", help=f"of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round of a cell")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", choices=["apache"], help="measure another system beside it, and the ratio")
    parser.add_argument("--server", metavar="HOST:PORT", help="measure this broker instead of starting ours")
    parser.add_argument("--flush", choices=list(FLUSH_TYPES), help="cells of this mode; how --server flushes")
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds for a JVM to compile itself")
    parser.add_argument("--broker-cpus", choices=["one", "all"], default="one", help="the client has one")
    arguments = parser.parse_args()
    arguments.names = [
        name for name in names if any(fnmatch.fnmatchcase(name, each) for each in arguments.cells)
    ]
    if not arguments.names:
        parser.error(f"no cell is called {' or '.join(arguments.cells)}; there are {', '.join(names)}")
    if arguments.server and not arguments.flush:
        arguments.flush = "async"
    return arguments


def main() -> None:
    arguments = parse_arguments()
    # An end from outside takes the brokers and their directories along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    contenders = [Contender("ours", ours)]
    if arguments.server:
        server = Contender("server", lambda *_: running(arguments.server), arguments.warm_up, False)
        contenders = [server]
    if arguments.peer:
        contenders.append(Contender("apache", apache, arguments.warm_up))
    table = Table(arguments.seconds)
    client = LoadClient()
    results: dict[str, Any] = {
        "conditions": {
            "client": client.kind,
            "broker_cpus": arguments.broker_cpus if can_pin() else "shared with the client",
            "seconds": arguments.seconds,
            "rounds": arguments.rounds,
        }
    }
    try:
        if CLIENT_CELL in arguments.names:
            results[CLIENT_CELL] = client_cell(client, min(arguments.seconds, 1.0))
        for flush in [arguments.flush] if arguments.flush else FLUSH_TYPES:
            cells = [cell for cell in CELLS if cell.name in arguments.names and cell.flush == flush]
            if cells:
                run_mode(flush, cells, contenders, client, table, arguments)
    except (RocketMQError, pytest.skip.Exception, pytest.fail.Exception) as error:
        results["failed"] = str(error)
    report("broker", results | table.results([contender.name for contender in contenders]))
    if "failed" in results:
        sys.exit(f"benchmark: {results['failed']}")


if __name__ == "__main__":
    main()
