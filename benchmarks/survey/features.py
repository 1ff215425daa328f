"""What features of messages, filters and route requests cost: measured by the load client alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from skylark.bench.consumer import FILTERED
from skylark.bench.load import Load, LoadKind, discrepancies
from skylark.bench.load_client import Watch
from skylark.bench.load_target import LoadTarget, Usage, cell_of
from skylark.bench.machine import ListeningProcess
from skylark.bench.results import Cell, Document, make_document
from skylark.bench.servers import Progress, ServerChoice, create_topics, running_servers

FEATURES: dict[str, dict[str, str]] = {
    "plain": {},
    "tag": {"TAGS": "TagA"},
    "key": {"KEYS": "key-@NUMBER@"},
    "ten properties": {f"property-{number}": "some text" for number in range(10)},
    "delay level": {"DELAY": "1"},
    "timer": {"TIMER_DELAY_MS": "1000"},
}
"""Properties of messages; the first is the baseline."""
FILTERS = {
    "everything": ("*", "TAG"),
    "by tag": ("TagA", "TAG"),
    "by SQL92": ("number > 4 AND region = 'north'", "SQL92"),
}
"""Expressions and their types; messages with the properties FILTERED match all of them."""


def measure_features(choice: ServerChoice, load: Load, progress: Progress) -> Document:
    """The same load once for each feature. Raises LoadFailed, RocketMQError."""
    cells: list[Cell] = []
    with running_servers(choice) as servers, servers.target() as target:
        for name, properties in FEATURES.items():
            topic = f"{load.topic}-{name.replace(' ', '-')}"
            featured = servers.fitted(replace(load, topic=topic, properties=properties))
            target.create(featured)
            stored, log_end = target.stored(featured), target.log_end()
            cell = target.measure(name, featured, partial(progress, name))
            in_log = (target.log_end() - log_end) / max(target.stored(featured) - stored, 1)
            cells.append(cell.beside(cells[0] if cells else cell, log_bytes=round(in_log)))
        return make_document("features", servers.conditions(seconds=load.seconds), cells)


def measure_filters(choice: ServerChoice, load: Load, backlog: int, progress: Progress) -> Document:
    """Pulls of the same backlog without a filter, by tag and by SQL92. Raises LoadFailed, RocketMQError."""
    cells: list[Cell] = []
    with running_servers(choice) as servers, servers.target() as target:
        pulls = servers.fitted(replace(load, kind=LoadKind.PULL, properties=FILTERED))
        target.fill(pulls, backlog)
        for name, (expression, kind) in FILTERS.items():
            filtered = replace(pulls, expression=expression, expression_type=kind)
            cell = target.measure(name, filtered, partial(progress, name))
            cells.append(cell.beside(cells[0]) if cells else cell)
        return make_document("filters", servers.conditions(seconds=load.seconds), cells)


def measure_routes(choice: ServerChoice, load: Load, progress: Progress) -> Document:
    """Route requests for the load's topics. Raises LoadFailed, RocketMQError."""
    with running_servers(choice) as servers, servers.target() as target:
        name = f"{load.topics} topics, {load.in_flight} in flight"
        asking = replace(load, address=servers.name_server)
        cell = ask_routes(target, name, asking, partial(progress, name))
        return make_document("routes", servers.conditions(seconds=load.seconds), [cell])


def ask_routes(target: LoadTarget, name: str, load: Load, watch: Watch | None = None) -> Cell:
    """Create the load's topics and request their routes from the name server at the load's address."""
    asking = replace(load, kind=LoadKind.ROUTE)
    create_topics(target, load.address, asking)
    usage = Usage(ListeningProcess(load.address), watch)
    counted = target.run(asking, usage.hear)
    return cell_of(name, asking, counted, usage, discrepancies(counted, 0, 0))
