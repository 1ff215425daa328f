"""What replication costs: a master alone, with a slave that follows, and one that waits for its slave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from skylark.bench.load import BadLoad, Load
from skylark.bench.machine import scratch
from skylark.bench.measuring import Target, messages_that_fit
from skylark.bench.place import Place
from skylark.bench.processes import BROKER_CPU, CLIENT_CPU, can_pin
from skylark.bench.results import Cell, Document, Value, make_document
from skylark.bench.sending import Progress
from skylark.bench.servers import own_broker, wait_for_slave
from skylark.bench.thin import ThinClient

ALONE = "alone"
ROLES = {ALONE: "ASYNC_MASTER", "async slave": "ASYNC_MASTER", "sync slave": "SYNC_MASTER"}


@contextmanager
def own_pair(directory: Path, role: str, place: Place, *, has_slave: bool) -> Iterator[str]:
    """The address of a master, which has its slave already. Raises ProcessFailed, LoadFailed."""
    with ExitStack() as stack:
        settings = {**place.settings, "brokerRole": role}
        cpu = BROKER_CPU if place.pin else None
        flags = ("--flush", place.flush)
        master = own_broker(directory / "master", *flags, settings=settings, cpu=cpu)
        address = stack.enter_context(master).broker
        if has_slave:
            cpu = CLIENT_CPU if place.pin else None
            follow = (*flags, "--slave-of", address)
            stack.enter_context(own_broker(directory / "slave", *follow, settings=place.settings, cpu=cpu))
            wait_for_slave(address)
        yield address


def measure_replication(place: Place, load: Load, progress: Progress) -> Document:
    """The same load three times. Raises BadLoad if the place is not our own, LoadFailed, RocketMQError."""
    if not place.is_own:
        raise BadLoad("replication is measured between brokers of our own: leave the name server out")
    client = ThinClient()
    cells: list[Cell] = []
    for name, role in ROLES.items():
        with (
            scratch() as directory,
            own_pair(directory, role, place, has_slave=name != ALONE) as address,
            Target(address, client, cpu=place.client_cpu) as target,
        ):
            room = messages_that_fit(directory, load.body_bytes)
            fitted = replace(load, address=address, messages_max=min(load.messages_max or room, room))
            cell = target.measure(name, fitted, partial(progress, name))
            if cells:
                started = time.perf_counter()
                wait_for_slave(address)
                caught_up_ms = round((time.perf_counter() - started) * 1000, 1)
                cell = cell.beside(cells[0], slave_has_all_after_ms=caught_up_ms)
            cells.append(cell)
    conditions: dict[str, Value] = {
        "servers": "our own, started for this run",
        "flush": place.flush,
        "pinned": place.pin and can_pin(),
        "seconds": load.seconds,
        "client": client.kind,
    }
    return make_document("replication", conditions, cells)
