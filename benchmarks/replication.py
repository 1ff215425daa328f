"""What replication costs a master: processor time with a slave, and the rate of a synchronous pair.

python -m benchmarks.replication                     ours alone
python -m benchmarks.replication --peer apache       and the synchronous pair beside Apache RocketMQ 5.3.3's

Cells: async-64-1KiB, 64 sends in flight, without a slave and with one that follows: processor time per
message; sync-64-1KiB, 64 in flight on a synchronous master with one slave: messages a second. The master has
one processor, client and slave share the other. A round with an answer that is not SEND_OK is void.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks._common import report
from benchmarks.broker import Cell, Contender, Contestant, Table, alone
from benchmarks.peers.apache import POM, ApacheNameServer, MeasuredBroker
from benchmarks.survey.replication import own_pair
from skylark.bench.load_client import LoadClient
from skylark.bench.machine import BROKER_CPU, CLIENT_CPU, pinned, scratch
from skylark.bench.servers import SETTINGS, ServerChoice, wait_for_slave
from skylark.errors import RocketMQError
from tests.support.java import jars_of

ASYNC = Cell("async-64-1KiB", "async", 1024, 64)
SYNC = Cell("sync-64-1KiB", "async", 1024, 64)
EXPECTED_CPU_RATIO = 1.25
PINNED = ServerChoice()


@contextmanager
def apache(directory: Path) -> Iterator[str]:
    """A synchronous pair of Apache's, which waits for its slave."""
    classpath = jars_of(POM)
    replicas: dict[str, str | int] = {"totalReplicas": 2, "inSyncReplicas": 2}
    brokers: list[tuple[str, int, dict[str, str | int]]] = [
        ("master", BROKER_CPU, {"brokerRole": "SYNC_MASTER"}),
        ("slave", CLIENT_CPU, {"brokerRole": "SLAVE", "brokerId": 1}),
    ]
    with ExitStack() as stack:
        name_server = stack.enter_context(ApacheNameServer(classpath, directory / "name-server"))
        for name, cpu, settings in brokers:
            broker = MeasuredBroker(
                classpath,
                directory / name / "home",
                directory / name / "store",
                name_server=name_server.address,
                settings={**SETTINGS, **replicas, **settings},
            )
            with pinned(cpu):
                stack.enter_context(broker)
            if name == "master":
                address = broker.address
        wait_for_slave(address)
        yield address


def run_cell(
    cell: Cell, contenders: list[Contender], client: LoadClient, arguments: argparse.Namespace
) -> Table:
    """All rounds of one cell, the contenders in turn."""
    table = Table(arguments.seconds)
    with ExitStack() as stack:
        path = stack.enter_context(scratch())
        targets: list[Contestant] = []
        for contender in contenders:
            address = stack.enter_context(contender.start(path / contender.name, cell.flush))
            targets.append(target := Contestant(contender, address, client, path))
            stack.callback(target.close)
            with alone(target, targets):
                target.warm_up([cell])
        for _ in range(arguments.rounds):
            for target in targets:
                with alone(target, targets):
                    if target.contender.name != "alone":
                        wait_for_slave(target.address)
                    figures, wrong = target.measure_cell(cell, arguments.seconds)
                table.add(cell.name, target.contender.name, figures, wrong)
    return table


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round of a cell")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--peer", choices=["apache"], help="measure the pair of another system, and the ratio"
    )
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds for a JVM to compile itself")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    client = LoadClient()
    results: dict[str, Any] = {
        "conditions": {"client": client.kind, "seconds": arguments.seconds, "rounds": arguments.rounds}
    }
    with_slave = Contender("slave", lambda path, _: own_pair(path, "ASYNC_MASTER", PINNED, has_slave=True))
    without = Contender("alone", lambda path, _: own_pair(path, "ASYNC_MASTER", PINNED, has_slave=False))
    pairs = [Contender("ours", lambda path, _: own_pair(path, "SYNC_MASTER", PINNED, has_slave=True))]
    if arguments.peer:
        pairs.append(Contender("apache", lambda path, _: apache(path), arguments.warm_up))
    try:
        table = run_cell(ASYNC, [with_slave, without], client, arguments)
        results |= table.results([with_slave.name, without.name])
        cpu = results[ASYNC.name]["cpu_ratio"]
        results[ASYNC.name] = {
            "slave": results[ASYNC.name]["slave"],
            "alone": results[ASYNC.name]["alone"],
            "cpu_ratio": cpu | {"expected_at_most": EXPECTED_CPU_RATIO},
        }
        table = run_cell(SYNC, pairs, client, arguments)
        results |= table.results([contender.name for contender in pairs])
    except (RocketMQError, pytest.skip.Exception, pytest.fail.Exception) as error:
        results["failed"] = str(error)
    report("replication", results)
    if "failed" in results:
        sys.exit(f"benchmark: {results['failed']}")


if __name__ == "__main__":
    main()
