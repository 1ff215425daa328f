"""What the thin client measures alone: sends, batches, pulls, filters, routes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from skylark.bench.load import Load, LoadKind, discrepancies
from skylark.bench.load_client import Watch
from skylark.bench.load_target import LoadTarget, Usage, cell_of
from skylark.bench.machine import ListeningProcess
from skylark.bench.results import Cell, Document, make_document
from skylark.bench.servers import BenchServers, ServerChoice, standing
from skylark.errors import BrokerError, NoRoute
from skylark.protocol.requests.name_server import GetRouteInfoByTopic
from skylark.remoting.blocking_connection import BlockingConnection

Progress = Callable[[str, str], None]
"""Hears a cell's name and what a `Watch` hears."""
FEATURES: dict[str, dict[str, str]] = {
    "plain": {},
    "tag": {"TAGS": "TagA"},
    "key": {"KEYS": "key-@NUMBER@"},
    "ten properties": {f"property-{number}": "some text" for number in range(10)},
    "delay level": {"DELAY": "1"},
    "timer": {"TIMER_DELAY_MS": "1000"},
}
"""What messages have, of which each costs something; the first has nothing."""
FILTERED = {"TAGS": "TagA", "number": "7", "region": "north"}
FILTERS = {
    "everything": ("*", "TAG"),
    "by tag": ("TagA", "TAG"),
    "by SQL92": ("number > 4 AND region = 'north'", "SQL92"),
}
"""Expressions, and their types, that all messages with those properties match."""
ROUTE_TIMEOUT_S = 60
ROUTE_POLL_S = 0.05


def measure_loads(
    benchmark: str, place: ServerChoice, loads: Mapping[str, Load], progress: Progress, *, backlog: int = 0
) -> Document:
    """Run named loads one after the other against one broker; their addresses are filled in.

    With a backlog, so many messages are stored before each. Raises LoadFailed, RocketMQError.
    """
    cells: list[Cell] = []
    with standing(place) as site, site.target() as target:
        for name, load in loads.items():
            fitted = site.fitted(load)
            if backlog:
                target.fill(fitted, backlog)
            cells.append(target.measure(name, fitted, partial(progress, name)))
        return make_document(benchmark, site.conditions(**_times(loads)), cells)


def measure_features(place: ServerChoice, load: Load, progress: Progress) -> Document:
    """The same load with one thing more each time. Raises LoadFailed, RocketMQError."""
    cells: list[Cell] = []
    with standing(place) as site, site.target() as target:
        for name, properties in FEATURES.items():
            topic = f"{load.topic}-{name.replace(' ', '-')}"
            featured = site.fitted(replace(load, topic=topic, properties=properties))
            target.create(featured)
            stored, log_end = target.stored(featured), target.log_end()
            cell = target.measure(name, featured, partial(progress, name))
            in_log = (target.log_end() - log_end) / max(target.stored(featured) - stored, 1)
            cells.append(cell.beside(cells[0] if cells else cell, log_bytes=round(in_log)))
        return make_document("features", site.conditions(**_times({"": load})), cells)


def measure_filters(place: ServerChoice, load: Load, backlog: int, progress: Progress) -> Document:
    """The same backlog pulled whole, by tag and by SQL92; all of it matches. Raises as `measure_loads`."""
    cells: list[Cell] = []
    with standing(place) as site, site.target() as target:
        pulls = site.fitted(replace(load, kind=LoadKind.PULL, properties=FILTERED))
        target.fill(pulls, backlog)
        for name, (expression, kind) in FILTERS.items():
            filtered = replace(pulls, expression=expression, expression_type=kind)
            cell = target.measure(name, filtered, partial(progress, name))
            cells.append(cell.beside(cells[0]) if cells else cell)
        return make_document("filters", site.conditions(**_times({"": load})), cells)


def measure_routes(place: ServerChoice, load: Load, progress: Progress) -> Document:
    """Questions to a name server about the load's topics. Raises LoadFailed, RocketMQError."""
    with standing(place) as site, site.target() as target:
        name = f"{load.topics} topics, {load.in_flight} in flight"
        asking = replace(load, address=site.name_server)
        cell = ask_routes(target, name, asking, partial(progress, name))
        return make_document("routes", site.conditions(**_times({"": load})), [cell])


def ask_routes(target: LoadTarget, name: str, load: Load, watch: Watch | None = None) -> Cell:
    """Make the load's topics, ask the name server at its address about them. Raises as `measure_routes`."""
    asking = replace(load, kind=LoadKind.ROUTE)
    _make_known(target, load.address, asking)
    usage = Usage(ListeningProcess(load.address), watch)
    counted = target.run(asking, usage.hear)
    return cell_of(name, asking, counted, usage, discrepancies(counted, 0, 0))


def _make_known(target: LoadTarget, namesrv: str, load: Load) -> int:
    """Make topics, wait until the name server knows them: how many queues the last has. Raises NoRoute."""
    target.create(load)
    deadline = time.monotonic() + ROUTE_TIMEOUT_S
    with BlockingConnection(namesrv) as connection:
        while True:
            try:
                connection.call(GetRouteInfoByTopic(load.topic_names[0]))
                route = connection.call(GetRouteInfoByTopic(load.topic_names[-1]))
            except BrokerError:
                if time.monotonic() > deadline:
                    raise NoRoute(load.topic_names[-1]) from None
                time.sleep(ROUTE_POLL_S)
            else:
                return max(queues.write_queue_nums for queues in route.queue_datas)


def made_known(site: BenchServers, load: Load) -> Load:
    """Make the load's topic and wait until clients can find it. The load, with the queues that it really has.

    Raises NoRoute, RocketMQError.
    """
    with site.target() as target:
        return replace(load, queues=_make_known(target, site.name_server, load))


def _times(loads: Mapping[str, Load]) -> dict[str, float]:
    load = next(iter(loads.values()))
    return {"seconds": load.seconds, "warm_up_s": load.warm_up_s}
