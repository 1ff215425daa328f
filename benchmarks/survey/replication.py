"""The cost of replication: a master alone, with an asynchronous and with a synchronous slave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.periodic import watched
from skylark.bench.load import BadLoad, Load
from skylark.bench.load_client import LoadClient
from skylark.bench.load_target import LoadTarget, messages_that_fit
from skylark.bench.machine import BROKER_CPU, CLIENT_CPU, can_pin, scratch
from skylark.bench.results import Cell, Document, Value, make_document
from skylark.bench.servers import Progress, ServerChoice, own_broker, wait_for_slave
from skylark.errors import RemotingError
from skylark.protocol.requests.admin import GetBrokerHaStatus
from skylark.remoting.blocking_connection import BlockingConnection

ALONE = "alone"
LOOK_EVERY_S = 0.02
LOOKS_MIN = 10
ROLES = {ALONE: "ASYNC_MASTER", "async slave": "ASYNC_MASTER", "sync slave": "SYNC_MASTER"}


@contextmanager
def own_pair(directory: Path, role: str, choice: ServerChoice, *, has_slave: bool) -> Iterator[str]:
    """The address of a master with its slave connected. Raises ProcessFailed, LoadFailed."""
    with ExitStack() as stack:
        settings = {**choice.settings, "brokerRole": role}
        cpu = BROKER_CPU if choice.pin else None
        flags = ("--flush", choice.flush)
        master = own_broker(directory / "master", *flags, settings=settings, cpu=cpu)
        address = stack.enter_context(master).broker
        if has_slave:
            cpu = CLIENT_CPU if choice.pin else None
            follow = (*flags, "--slave-of", address)
            stack.enter_context(own_broker(directory / "slave", *follow, settings=choice.settings, cpu=cpu))
            wait_for_slave(address)
        yield address


class Lag:
    """How far a master's slave is behind, each time that it is looked at."""

    def __init__(self, master: BlockingConnection) -> None:
        self._master = master
        self._looks: list[tuple[float, int, int]] = []
        """Time, end of the master's log, and bytes that the slave lacks."""

    def look(self) -> bool:
        """False if the master does not reply; the load then fails."""
        try:
            status = self._master.call(GetBrokerHaStatus())
        except RemotingError:
            return False
        if status.ha_connection_info:
            lacking = max(slave.diff for slave in status.ha_connection_info)
            self._looks.append((time.monotonic(), status.master_commit_log_max_offset, lacking))
        return True

    def figures(self) -> dict[str, Value]:
        """Lag of the slave in milliseconds: missing bytes at the rate at which the log grew."""
        growing = [look for look in self._looks if look[1] < self._looks[-1][1]]
        if len(growing) < LOOKS_MIN:
            return {}
        (begin, first, _), (end, last, _) = growing[0], growing[-1]
        bytes_per_ms = max(last - first, 1) / ((end - begin) * 1000)
        behind = sorted(lacking / bytes_per_ms for _, _, lacking in growing)
        return {
            "slave_behind_p50_ms": round(behind[len(behind) // 2], 1),
            "slave_behind_p99_ms": round(behind[len(behind) * 99 // 100], 1),
        }


def measure_replication(choice: ServerChoice, load: Load, progress: Progress) -> Document:
    """The same load three times. Raises BadLoad unless servers are started, LoadFailed, RocketMQError."""
    if not choice.is_own:
        raise BadLoad("replication is measured between brokers of our own: leave the name server out")
    client = LoadClient()
    cells: list[Cell] = []
    for name, role in ROLES.items():
        with (
            scratch() as directory,
            own_pair(directory, role, choice, has_slave=name != ALONE) as address,
            LoadTarget(address, client, cpu=choice.client_cpu) as target,
        ):
            room = messages_that_fit(directory, load.body_bytes)
            fitted = replace(load, address=address, messages_max=min(load.messages_max or room, room))
            if name == ALONE:
                cells.append(target.measure(name, fitted, partial(progress, name)))
                continue
            with BlockingConnection(address) as connection:
                lag = Lag(connection)
                with watched(lag.look, LOOK_EVERY_S, "skylark-lag"):
                    cell = target.measure(name, fitted, partial(progress, name))
            wait_for_slave(address)
            cells.append(cell.beside(cells[0], **lag.figures()))
    conditions: dict[str, Value] = {
        "servers": "started for this run",
        "flush": choice.flush,
        "pinned": choice.pin and can_pin(),
        "seconds": load.seconds,
        "client": client.kind,
    }
    return make_document("replication", conditions, cells)
