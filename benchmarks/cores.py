"""Two cores: two brokers of ours beside one of Apache, which uses several cores by itself.

python -m benchmarks.cores                              ours alone
python -m benchmarks.cores --peer apache                and beside it, in turn, Apache RocketMQ 5.3.3
python -m benchmarks.cores --cells 'async-64-*'

Nothing is pinned. Two thin clients, each a process, load two brokers of ours, as those of
`skylark serve --brokers 2` are, or both the same broker of Apache. The rate is that of both clients together,
the processor time that of all brokers. Ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks._common import report
from benchmarks.broker import CELLS, Cell, Contender, Contestant, apache, ours
from skylark.bench.load_client import LoadClient
from skylark.bench.machine import describe, scratch
from skylark.bench.servers import own_broker
from skylark.errors import RocketMQError

CLIENTS = 2
SHOWN = ("async-1-128B", "async-64-128B", "async-64-1KiB", "async-1024-128B", "batch-128B", "pull-128B")
Addresses = Callable[[Path], AbstractContextManager[list[str]]]


@contextmanager
def two_of_ours(path: Path) -> Iterator[list[str]]:
    with own_broker(path / "broker-a") as first, own_broker(path / "broker-b") as second:
        yield [first.broker, second.broker]


@contextmanager
def one_of_apache(path: Path) -> Iterator[list[str]]:
    with apache(path, "async") as address:
        yield [address] * CLIENTS


class VoidRound(Exception):
    """Messages that were sent, acknowledged and stored differ in number; or sends were refused."""


class Pair:
    """The targets of two clients, loaded at the same time."""

    def __init__(self, name: str, addresses: list[str], path: Path) -> None:
        contender = Contender(name, ours)
        self.name = name
        self._brokers = len(set(addresses))
        # Topics of its own for each client: stored messages are counted by topic.
        self._targets = [
            Contestant(contender, address, LoadClient(), path, cpu=None, topics=f"client-{number}")
            for number, address in enumerate(addresses)
        ]
        self._threads = ThreadPoolExecutor(CLIENTS)

    def close(self) -> None:
        self._threads.shutdown()
        for target in self._targets:
            target.close()

    def measure(self, cell: Cell, seconds: float) -> dict[str, float]:
        """Raises VoidRound if counts differ."""
        rounds = list(self._threads.map(lambda target: target.measure_cell(cell, seconds), self._targets))
        if wrong := [reason for _, reasons in rounds for reason in reasons]:
            raise VoidRound("; ".join(wrong))
        rates = [figures["messages_per_s"] or 0.0 for figures, _ in rounds]
        # Each client counts the time of its broker's process for its own messages.
        costs = [figures["broker_cpu_us"] or 0.0 for figures, _ in rounds]
        used = sum(cost * rate for cost, rate in zip(costs, rates, strict=True))
        share = self._brokers / CLIENTS
        return {
            "messages_per_s": round(sum(rates)),
            "broker_cpu_us": round(used * share / sum(rates), 2),
            "p99_us": max(figures["p99_us"] or 0.0 for figures, _ in rounds),
        }


def summary(rounds: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    result: dict[str, Any] = {
        name: {key: statistics.median(each[key] for each in found) for key in found[0]}
        for name, found in rounds.items()
    }
    if len(rounds) == CLIENTS:
        mine, other = rounds.values()
        times = [a["messages_per_s"] / b["messages_per_s"] for a, b in zip(mine, other, strict=True)]
        result["ratio"] = {
            "median": round(statistics.median(times), 2), "min": round(min(times), 2),
            "max": round(max(times), 2),
        }  # fmt: skip
    return result


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cells", nargs="+", default=list(SHOWN), metavar="PATTERN", help="of benchmarks.broker"
    )
    parser.add_argument("--peer", choices=["apache"])
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round of a cell")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=float, default=40.0, help="seconds for a JVM to compile itself")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    cells = [
        cell
        for cell in CELLS
        if cell.flush == "async" and any(fnmatch.fnmatchcase(cell.name, each) for each in arguments.cells)
    ]
    starts: dict[str, Addresses] = {"ours": two_of_ours}
    if arguments.peer:
        starts["apache"] = one_of_apache
    found: dict[str, dict[str, list[dict[str, float]]]] = {cell.name: {} for cell in cells}
    try:
        with scratch() as path, ExitStack() as stack:
            pairs: list[Pair] = []
            for name, start in starts.items():
                pairs.append(pair := Pair(name, stack.enter_context(start(path / name)), path))
                stack.callback(pair.close)
                for cell in cells if name == "apache" else ():
                    pair.measure(cell, arguments.warm_up / len(cells))
            for _ in range(arguments.rounds):
                for cell in cells:
                    try:
                        figures = {pair.name: pair.measure(cell, arguments.seconds) for pair in pairs}
                    except VoidRound as void:
                        print(f"{cell.name} VOID: {void}", file=sys.stderr)
                        continue
                    for name, each in figures.items():
                        found[cell.name].setdefault(name, []).append(each)
                        print(f"{cell.name:16} {name:8} {each['messages_per_s']:>9,.0f}/s", file=sys.stderr)
    except (RocketMQError, VoidRound, pytest.skip.Exception, pytest.fail.Exception) as error:
        sys.exit(f"benchmark: {error}")
    conditions = {"cores": describe().cores, "clients": CLIENTS}
    conditions |= {"seconds": arguments.seconds, "rounds": arguments.rounds}
    cells_found = {name: summary(rounds) for name, rounds in found.items() if rounds}
    report("cores", {"conditions": conditions, "cells": cells_found})


if __name__ == "__main__":
    main()
