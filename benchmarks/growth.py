"""How the cost of a send grows with messages, topics, queues, connections and log of a broker.

Processor time of the broker is taken, not the rate: a busy machine changes it less. Each point is measured in
some rounds and the least counts, as the others were disturbed more.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from skylark.bench.load import Load
from skylark.bench.load_client import LoadClient
from skylark.bench.load_target import DISK_RESERVE_BYTES, LoadTarget
from skylark.bench.machine import BROKER_CPU, CLIENT_CPU, free_bytes
from skylark.bench.results import Cell, Document, Value, make_document
from skylark.bench.servers import own_servers
from skylark.html_report import Chart, Section, drawing

BODY_BYTES = 256
IN_FLIGHT = 64
LARGE_BODY_BYTES = 256 << 10
DESCRIPTORS_SPARE = 200
CALL_TIMEOUT_S = 30
TITLES = {
    "messages": "messages stored",
    "topics": "topics that take turns",
    "queues": "queues of one topic",
    "connections": "other connections, idle",
    "log": "MiB of log",
}
POINTS: dict[str, tuple[int, ...]] = {
    "messages": (0, 100_000, 300_000, 1_000_000),
    "topics": (1, 10, 100, 1000, 10_000),
    "queues": (1, 8, 64, 512),
    "connections": (0, 10, 100, 1000, 5000),
    "log": (0, 256, 1024, 4096),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthOptions:
    """Options. `scale` shrinks every point but the first, for a quick look."""

    directory: Path
    dimensions: Sequence[str] = tuple(POINTS)
    messages: int = 40_000
    """Messages per round of a point."""
    rounds: int = 3
    scale: float = 1.0

    def points(self, dimension: str) -> list[int]:
        first, *others = POINTS[dimension]
        return list(dict.fromkeys([first, *(max(round(point * self.scale), 1) for point in others)]))


class Growth:
    """All dimensions, each on its own broker. `say` is called with every point."""

    def __init__(self, wanted: GrowthOptions, say: Callable[[Cell], None]) -> None:
        self._wanted = wanted
        self._say = say
        self._client = LoadClient()
        self._notes: list[str] = []

    def run(self) -> Document:
        """Raises LoadFailed, ProcessFailed, RocketMQError."""
        cells: list[Cell] = []
        for dimension in self._wanted.dimensions:
            with (
                own_servers(self._wanted.directory / dimension, cpu=BROKER_CPU) as served,
                LoadTarget(served.broker, self._client, cpu=CLIENT_CPU) as target,
            ):
                for cell in self._dimension(dimension, target):
                    cells.append(cell)
                    self._say(cell)
        conditions: dict[str, Value] = {
            "client": self._client.kind,
            "body_bytes": BODY_BYTES,
            "in_flight": IN_FLIGHT,
            "messages": self._wanted.messages,
            "rounds": self._wanted.rounds,
        }
        grown = [
            f"{name}: {times:g} times the cost at the last point." for name, times in growth_of(cells).items()
        ]
        return make_document("growth", conditions, cells, [*grown, *self._notes])

    def _dimension(self, dimension: str, target: LoadTarget) -> Iterator[Cell]:
        load = Load(
            address=target.address,
            body_bytes=BODY_BYTES,
            in_flight=IN_FLIGHT,
            messages_max=self._wanted.messages,
            seconds=CALL_TIMEOUT_S,
            warm_up_s=0.0,
        )
        target.measure("warm-up", replace(load, topic="warm"))
        for point in self._wanted.points(dimension):
            match dimension:
                case "topics":
                    yield self._point(
                        dimension, point, target, replace(load, topics=point, queues=1, topic=f"t{point}")
                    )
                case "queues":
                    yield self._point(
                        dimension, point, target, replace(load, queues=point, topic=f"q{point}")
                    )
                case "connections":
                    count = min(point, _descriptors_left())
                    if count < point:
                        self._notes.append(f"{count} connections instead of {point}: no more descriptors")
                    with connected(target.address, count):
                        yield self._point(dimension, count, target, load)
                case "messages":
                    self._fill(target, replace(load, topic="kept"), point)
                    yield self._point(dimension, point, target, replace(load, topic="kept"))
                case _:
                    mib = self._room(point)
                    large = replace(load, topic="large", body_bytes=LARGE_BODY_BYTES)
                    self._fill(target, large, mib * (1 << 20) // LARGE_BODY_BYTES)
                    yield self._point(dimension, mib, target, load)

    def _fill(self, target: LoadTarget, load: Load, messages: int) -> None:
        """Fill the load's topic up to this many messages."""
        target.create(load)
        missing = messages - target.stored(load)
        if missing > 0:
            target.fill(load, missing)

    def _room(self, mib: int) -> int:
        room = (free_bytes(self._wanted.directory) - DISK_RESERVE_BYTES) >> 20
        if room < mib:
            self._notes.append(f"a log of {max(room, 0)} MiB instead of {mib}: the disk has no more room")
        return max(min(room, mib), 0)

    def _point(self, dimension: str, point: int, target: LoadTarget, load: Load) -> Cell:
        """The round with the least processor time."""
        name = f"{dimension} {point}"
        cells = [target.measure(name, load) for _ in range(self._wanted.rounds)]
        good = [cell for cell in cells if not cell.is_void and cell.server_cpu_us is not None]
        best = min(good, key=lambda cell: cell.server_cpu_us or 0.0) if good else cells[0]
        return msgspec.structs.replace(
            best,
            settings={**best.settings, "dimension": dimension, "point": point, "load_1m": os.getloadavg()[0]},
        )


def _descriptors_left() -> int:
    """How many connections this process may open."""
    return max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_SPARE, 0)


@contextmanager
def connected(address: str, count: int) -> Iterator[None]:
    """Connections that do nothing."""
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection((host, int(port)), CALL_TIMEOUT_S))
        yield


# --- For people ---


def section(dimension: str, cells: Iterable[Cell]) -> Section:
    """The points of a dimension as a table and a chart."""
    found = [cell for cell in cells if cell.settings.get("dimension") == dimension]
    rows = [
        [f"{cell.settings['point']:,}", cell.server_cpu_us, round(cell.per_s), cell.anonymous_mib]
        for cell in found
    ]
    columns = [TITLES[dimension], "µs of a core", "messages/s", "memory MiB"]
    chart = Chart(label=TITLES[dimension], value="µs of a core", unit="µs", kind="lines")
    return Section(dimension, f"Cost of a send by {TITLES[dimension]}", columns, rows, chart)


def sections(document: Document) -> list[Section]:
    dimensions = dict.fromkeys(str(cell.settings["dimension"]) for cell in document.cells)
    return [section(dimension, document.cells) for dimension in dimensions]


def write_charts(document: Document, directory: Path) -> None:
    """A drawing for each dimension. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for each in sections(document):
        (directory / f"growth-{each.name}.svg").write_text(drawing(each), encoding="utf-8")


def growth_of(cells: Sequence[Cell]) -> dict[str, float]:
    """By dimension: the cost at the last point, times that at the first; where both were measured."""
    ends: dict[str, tuple[Cell, Cell]] = {}
    for cell in cells:
        dimension = str(cell.settings["dimension"])
        ends[dimension] = (ends.get(dimension, (cell, cell))[0], cell)
    return {
        dimension: round(last.server_cpu_us / first.server_cpu_us, 2)
        for dimension, (first, last) in ends.items()
        if first.server_cpu_us and last.server_cpu_us and not (first.is_void or last.is_void)
    }
