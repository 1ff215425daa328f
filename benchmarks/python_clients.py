"""Python beside Python: our clients and those of Kafka and NATS, each with its own server, in one run.

python -m benchmarks.python_clients                              all systems, all cells
python -m benchmarks.python_clients --peer confluent-kafka
python -m benchmarks.python_clients --cells consume consume-arrow --rounds 5

Every system has one server with four queues or partitions and one client process; bodies have 128 B. Cells
take turns, round by round, while the other servers are idle. Rates are medians of the rounds with their
lowest and highest; beside them stands the processor time of the client and of the server process for a
message (the server's with that of connecting), and the share of all cores that both left idle. Other systems'
clients and servers are fetched on first use; those that cannot be had are left out, with the reason.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks._common import report
from benchmarks._other_clients import KAFKA_HEAP_MB, PARTITIONS, UNAVAILABLE, ClientProcess
from benchmarks.peers import kafka, nats
from benchmarks.peers.java import fetch_jars
from skylark.bench.machine import ListeningProcess, scratch
from skylark.processes import Server
from tests.support.foreign import virtualenv
from tests.support.skylark_servers import SkylarkServers

BODY_BYTES = 128
OURS = "skylark"
STORE = {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 6_000_000}
PROGRAMS = Path(__file__).parent / "python"
EXPECTED = {
    ("consume", "consume"): 1.2,
    ("consume-arrow", "consume"): 2.0,
    ("send-posts", "send-many"): 1.0,
    ("send-arrow", "send-many"): 1.0,
    ("send-arrow-batch", "send-many"): 1.5,
    ("send-1", "send-1"): 1.0,
}
"""By our cell and the cell of confluent-kafka: how many times its rate ours shall be."""
JUDGE = "confluent-kafka"
LEFT_OUT = {"pulsar-client": "not measured: there is no launcher for its server"}


def _kafka(home: Path) -> Server:
    settings: dict[str, str | int] = {"num.partitions": PARTITIONS}
    server = kafka.KafkaServer(fetch_jars(kafka.POM), home, heap_mb=KAFKA_HEAP_MB, settings=settings)
    server.format()
    return server


def _nats(home: Path) -> Server:
    return nats.NatsServer(nats.fetch_server(), home, sync=False)


PEERS: dict[str, Callable[[Path], Server]] = {JUDGE: _kafka, "aiokafka": _kafka, "nats-py": _nats}
"""The server of each client."""


class Figure(NamedTuple):
    """One round of a cell."""

    per_s: float
    client_us: float
    server_us: float

    @property
    def idle_share(self) -> float:
        """The share of the machine's cores that client and server did not use."""
        used = self.per_s * (self.client_us + self.server_us) / 1e6 / len(os.sched_getaffinity(0))
        return max(0.0, 1 - used)


class MeasuredClient(NamedTuple):
    """A client and the process of its server."""

    process: ClientProcess
    server: ListeningProcess

    def figure(self, cell: str, seconds: float) -> Figure:
        before = self.server.cpu_us() or 0.0
        per_s, client_us, count = self.process.answer(cell, seconds)
        return Figure(per_s, client_us, ((self.server.cpu_us() or 0.0) - before) / count)


@contextmanager
def our_client(path: Path) -> Iterator[MeasuredClient]:
    with SkylarkServers(path / OURS, STORE) as servers:
        program = [sys.executable, "-m", "benchmarks.python.skylark_rates"]
        with ClientProcess(OURS, [*program, servers.name_server, str(BODY_BYTES)]) as client:
            yield MeasuredClient(client, ListeningProcess(servers.broker))


@contextmanager
def peer_client(name: str, path: Path) -> Iterator[MeasuredClient]:
    python = virtualenv(PROGRAMS / "requirements.txt")
    with PEERS[name](path / name) as server:
        program = [str(python), str(PROGRAMS / "client_rates.py"), name]
        with ClientProcess(name, [*program, server.address, str(BODY_BYTES)]) as client:
            yield MeasuredClient(client, ListeningProcess(server.address))


def measured(
    clients: Sequence[MeasuredClient],
    cells: Sequence[str],
    seconds: float,
    rounds: int,
    left_out: dict[str, str],
) -> dict[str, dict[str, list[Figure]]]:
    """Figures by cell and client. A round before the first one counts for nothing: programs warm up in it.

    A client that ends early is left out from then on, with the reason; ours must not.
    """
    found: dict[str, dict[str, list[Figure]]] = {}
    for number in range(rounds + 1):
        for client in clients:
            name = client.process.name
            for cell in client.process.cell_names:
                if name in left_out or (cells and cell not in cells):
                    continue
                try:
                    figure = client.figure(cell, seconds)
                except RuntimeError as error:
                    if name == OURS:
                        raise
                    left_out[name] = f"{error} (cell {cell}, round {number})"
                    continue
                print(f"{number} {name:16} {cell:16} {figure.per_s:>10,.0f}/s", file=sys.stderr)
                if number:
                    found.setdefault(cell, {}).setdefault(name, []).append(figure)
    return found


def summary(figures: Sequence[Figure]) -> dict[str, float]:
    rates = [figure.per_s for figure in figures]
    return {
        "median_per_s": round(statistics.median(rates)),
        "lowest_per_s": round(min(rates)),
        "highest_per_s": round(max(rates)),
        "client_us": round(statistics.median(figure.client_us for figure in figures), 2),
        "server_us": round(statistics.median(figure.server_us for figure in figures), 2),
        "idle_share": round(statistics.median(figure.idle_share for figure in figures), 2),
    }


def ratios(found: dict[str, dict[str, list[Figure]]]) -> dict[str, dict[str, float | bool]]:
    """Medians over the rounds of our rate through that of confluent-kafka in the same round."""
    result: dict[str, dict[str, float | bool]] = {}
    for (ours, theirs), expected in EXPECTED.items():
        our_rounds = found.get(ours, {}).get(OURS)
        their_rounds = found.get(theirs, {}).get(JUDGE)
        if our_rounds and their_rounds:
            # One that ended early has fewer rounds.
            times = [one.per_s / other.per_s for one, other in zip(our_rounds, their_rounds, strict=False)]
            median = round(statistics.median(times), 2)
            result[f"{ours} / {JUDGE} {theirs}"] = {
                "median": median, "lowest": round(min(times), 2), "highest": round(max(times), 2),
                "expected": expected, "met": median >= expected,
            }  # fmt: skip
    return result


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=list(PEERS), help="default: all")
    parser.add_argument("--cells", nargs="+", metavar="CELL", default=[])
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round of sends")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    left_out = dict(LEFT_OUT)
    with scratch() as path, ExitStack() as stack:
        clients = [stack.enter_context(our_client(path))]
        for name in arguments.peer:
            try:
                clients.append(stack.enter_context(peer_client(name, path)))
            except UNAVAILABLE as error:
                left_out[name] = str(error)
        found = measured(clients, arguments.cells, arguments.seconds, arguments.rounds, left_out)
    conditions = {"seconds": arguments.seconds, "rounds": arguments.rounds, "body_bytes": BODY_BYTES}
    cells = {
        cell: {client: summary(figures) for client, figures in of_cell.items()}
        for cell, of_cell in found.items()
    }
    results = {"conditions": conditions, "cells": cells, "ratios": ratios(found), "left_out": left_out}
    report("python_clients", results)


if __name__ == "__main__":
    main()
