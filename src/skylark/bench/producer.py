"""`skylark bench producer` and `pull`: loads that the load client runs alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from skylark.bench.load import Load
from skylark.bench.results import Cell, Document, make_document
from skylark.bench.servers import ServerChoice, running_servers

Progress = Callable[[str, str], None]
"""Called with a cell's name and the words of a `Watch`."""


def measure_loads(
    benchmark: str, choice: ServerChoice, loads: Mapping[str, Load], progress: Progress, *, backlog: int = 0
) -> Document:
    """Run named loads one after the other on one broker; fills in their addresses.

    With a backlog, this many messages are stored before each. Raises LoadFailed, RocketMQError.
    """
    cells: list[Cell] = []
    with running_servers(choice) as servers, servers.target() as target:
        for name, load in loads.items():
            fitted = servers.fitted(load)
            if backlog:
                target.fill(fitted, backlog)
            cells.append(target.measure(name, fitted, partial(progress, name)))
        first = next(iter(loads.values()))
        conditions = servers.conditions(seconds=first.seconds, warm_up_s=first.warm_up_s)
        return make_document(benchmark, conditions, cells)
