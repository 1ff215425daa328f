"""A comparison: start systems, measure cells in turn for several rounds, remove everything."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path

from benchmarks.compare.cells import (
    CELLS,
    FLUSHES,
    FRESH_METRICS,
    MEMORY,
    OURS,
    STOP_TIME,
    Cell,
    Kind,
    choose,
    is_long,
)
from benchmarks.compare.figures import BENCHMARK, Comparison, NotRun, Outcome, rows_of
from benchmarks.compare.measures import Effort, Measures, Round, read_with_spark
from benchmarks.compare.systems import SYSTEMS, System
from skylark.bench.load_client import LoadClient
from skylark.bench.machine import free_bytes, scratch
from skylark.errors import RocketMQError

STANDING = (Kind.THIN, Kind.JAVA, Kind.CONSUME, Kind.LATENCY, Kind.ROUTES)
JAVA_CLIENT = (Kind.JAVA, Kind.CONSUME, Kind.LATENCY)
DISK_RESERVE_BYTES = 8 << 30
RECOVER_SPACE_FACTOR = 1.5  # log, queues and index of one system
REASON_CHARS_MAX = 300
NOT_REACHED = "not reached"
LEFT_OUT_QUICK = "left out by --quick; name it with --cell"

Say = Callable[[str], None]
Keep = Callable[[Comparison], None]


def compare(
    peers: Sequence[str],
    patterns: Sequence[str],
    effort: Effort,
    *,
    quick: bool = False,
    say: Say = lambda _: None,
    keep: Keep = lambda _: None,
) -> Comparison:
    """Run the chosen cells on ours and on the peers. `keep` gets what was found so far after each round.

    Raises UnknownCell, and what our own server raises if it does not start. What a peer cannot do is in the
    result. Servers and directories are gone at the end, whatever that is.
    """
    cells = choose(patterns, peers, quick=quick)
    left_out = [
        NotRun(cell.name, OURS, LEFT_OUT_QUICK)
        for cell in CELLS
        if quick and not patterns and is_long(cell) and (cell.systems & set(peers) or len(cell.systems) == 1)
    ]
    with scratch() as directory:
        run = _Run(directory, list(peers), cells, left_out, effort, say, keep)
        run.all()
        return run.found()


class _Run:
    """The state of a comparison."""

    def __init__(
        self,
        directory: Path,
        peers: list[str],
        cells: list[Cell],
        left_out: list[NotRun],
        effort: Effort,
        say: Say,
        keep: Keep,
    ) -> None:
        self._directory = directory
        self._names = [OURS, *peers]
        self._cells = cells
        self._left_out = left_out
        self._effort = effort
        self._say = say
        self._keep = keep
        self._absent: dict[str, str] = {}
        """Peers that cannot be had, and why."""
        self._starts = 0
        self._began = time.monotonic()
        self._client = LoadClient()
        self._outcomes: list[Outcome] = []
        self._measures = Measures(effort, self._client)

    def all(self) -> None:
        """Every cell, grouped by the servers that it needs."""
        for name in self._names:
            try:
                SYSTEMS[name].fetch()
            except (RocketMQError, OSError) as error:
                self._absent[name] = _reason(error)
                self._say(f"{name}: {_reason(error)}")
        for flush in FLUSHES:
            standing = [cell for cell in self._cells if cell.kind in STANDING and cell.flush == flush]
            if standing:
                self._standing(flush, standing)
        for cell in self._of(Kind.TOPICS):
            self._topics(cell)
        if fresh := self._of(Kind.FRESH):
            self._fresh(fresh)
        for cell in self._of(Kind.RECOVER):
            self._recover(cell)
        for cell in self._of(Kind.SPARK):
            self._say("spark: reading")
            self._attempt(cell, OURS, 1, partial(read_with_spark, self._effort))

    def _of(self, kind: Kind) -> list[Cell]:
        return [cell for cell in self._cells if cell.kind is kind]

    def found(self) -> Comparison:
        """The result of the rounds so far."""
        flushes = [flush for flush in FLUSHES if any(cell.flush == flush for cell in self._cells)]
        _, *peers = self._names
        return Comparison.now(
            BENCHMARK,
            {
                **self._effort.conditions(),
                "taken_s": round(time.monotonic() - self._began),
                "thin_client": self._client.kind,
                "cells": ", ".join(cell.name for cell in self._cells),
            },
            systems=[SYSTEMS[name].facts(flushes, self._effort.heap_mb) for name in self._names],
            rows=rows_of(self._cells, peers, self._outcomes),
            not_run=[*self._not_run(), *self._left_out],
            outcomes=list(self._outcomes),
        )

    def _not_run(self) -> Iterator[NotRun]:
        """Missing rows, cell by cell."""
        for cell, name in product(self._cells, self._names):
            tried = [each for each in self._outcomes if (each.cell, each.system) == (cell.name, name)]
            if name not in cell.systems:
                yield NotRun(cell.name, name, cell.not_for)
            elif name in self._absent:
                yield NotRun(cell.name, name, self._absent[name])
            elif void := [each for each in tried if each.wrong]:
                some = f"{len(void)} of {len(tried)} rounds: " if len(void) < len(tried) else ""
                yield NotRun(cell.name, name, some + "; ".join(void[0].wrong))
            elif not tried:
                yield NotRun(cell.name, name, NOT_REACHED)

    # --- Systems ---

    def _systems(self, cells: Sequence[Cell]) -> list[str]:
        return [
            name
            for name in self._names
            if name not in self._absent and any(name in cell.systems for cell in cells)
        ]

    def _new(self, name: str, flush: str = "async") -> System:
        self._starts += 1
        return SYSTEMS[name](self._directory / f"{self._starts}-{name}", flush, self._effort.heap_mb)

    def _started(self, stack: ExitStack, flush: str, cells: Sequence[Cell]) -> dict[str, System]:
        """The systems of these cells, running. One that does not start is void in them; ours must."""
        systems: dict[str, System] = {}
        for name in self._systems(cells):
            try:
                system = stack.enter_context(self._new(name, flush))
                with _alone(None, systems.values()):
                    system.start()
                systems[name] = system
            except (RocketMQError, OSError) as error:
                if name == OURS:
                    raise
                for cell in cells:
                    self._add(cell, name, 1, Round(wrong=[_reason(error)]))
        return systems

    def _attempt(self, cell: Cell, name: str, number: int, measure: Callable[[], Round]) -> None:
        """A round; what goes wrong makes it void and the others go on."""
        try:
            found = measure()
        except (RocketMQError, OSError) as error:
            found = Round(wrong=[_reason(error)])
        self._add(cell, name, number, found)

    def _add(self, cell: Cell, name: str, number: int, found: Round) -> None:
        self._outcomes.append(
            Outcome(cell=cell.name, system=name, round=number, figures=found.figures, wrong=found.wrong)
        )
        figures = "  ".join(f"{metric} {value:,.4g}" for metric, value in found.figures.items())
        void = f"  VOID: {'; '.join(found.wrong)}" if found.wrong else ""
        self._say(f"{cell.name:20} {name:7} round {number}  {figures}{void}")
        self._keep(self.found())

    # --- Kinds of cells ---

    def _standing(self, flush: str, cells: list[Cell]) -> None:
        """Servers that stay for all rounds, and take turns cell by cell."""
        with ExitStack() as stack:
            systems = self._started(stack, flush, cells)
            for name, system in systems.items():
                with _alone(system, systems.values()):
                    self._warm_up(system, [cell for cell in cells if name in cell.systems])
            self._in_turn(cells, systems)

    def _in_turn(self, cells: Sequence[Cell], systems: dict[str, System]) -> None:
        for number in range(1, self._effort.rounds + 1):
            for cell in cells:
                for name, system in systems.items():
                    if name in cell.systems:
                        with _alone(system, systems.values()):
                            measure = partial(self._measures.measure, system, cell, self._effort.seconds)
                            self._attempt(cell, name, number, measure)

    def _warm_up(self, system: System, cells: list[Cell]) -> None:
        """Do a little of everything, then wait until the compilers that it woke have gone to rest.

        The server may use all processors for that: on one, compiling takes minutes.
        """
        cells = [cell for cell in cells if system.needs_warm_up or cell.kind in JAVA_CLIENT]
        if not cells or not self._effort.warm_up_s:
            return
        self._say(f"{system.name}: warming up")
        with system.process.spread():
            for cell in cells:
                try:
                    self._measures.measure(system, cell, self._effort.warm_up_s / len(cells))
                except (RocketMQError, OSError) as error:
                    self._say(f"{system.name}: {cell.name}: {_reason(error)}")  # the rounds will say it again
            if system.needs_warm_up:
                system.process.wait_settled()

    def _topics(self, cell: Cell) -> None:
        """On servers of its own: thousands of topics would disturb other cells."""
        with ExitStack() as stack:
            systems = self._started(stack, cell.flush, [cell])
            for name, system in list(systems.items()):
                with _alone(system, systems.values()):
                    self._say(f"{name}: making {cell.topics:,} topics")
                    try:
                        with system.process.spread():
                            self._measures.make_topics(system, cell)
                    except (RocketMQError, OSError) as error:
                        self._add(cell, name, 1, Round(wrong=[f"the topics: {_reason(error)}"]))
                        systems.pop(name).close()
                        continue
                    self._warm_up(system, [cell])
            self._in_turn([cell], systems)

    def _fresh(self, cells: list[Cell]) -> None:
        """Start time, memory and orderly end, of new servers in every round."""
        wanted = {cell.name for cell in cells}
        for number in range(1, self._effort.rounds + 1):
            for name in self._systems(cells):
                found = Round()
                try:
                    with self._new(name) as system:
                        found = self._measures.fresh(
                            system, memory=MEMORY in wanted, stop=STOP_TIME in wanted
                        )
                except (RocketMQError, OSError) as error:
                    found.wrong.append(_reason(error))
                for cell in cells:
                    names = {metric.name for metric in FRESH_METRICS[cell.name]} & found.figures.keys()
                    self._add(
                        cell,
                        name,
                        number,
                        Round({each: found.figures[each] for each in sorted(names)}, found.wrong),
                    )

    def _recover(self, cell: Cell) -> None:
        """Each system gets its log once and is killed in every round."""
        names = self._systems([cell])
        needed = round(self._effort.recover_bytes * RECOVER_SPACE_FACTOR) * len(names) + DISK_RESERVE_BYTES
        if free_bytes(self._directory) < needed:
            reason = f"{needed >> 30} GiB of free disk are needed: choose a smaller --recover-gib"
            for name in names:
                self._add(cell, name, 1, Round(wrong=[reason]))
            return
        with ExitStack() as stack:
            systems = self._started(stack, cell.flush, [cell])
            for name, system in list(systems.items()):
                self._say(f"{name}: writing {self._effort.recover_bytes / (1 << 30):g} GiB of log")
                with _alone(system, systems.values()):
                    try:
                        self._measures.fill_log(system)
                    except (RocketMQError, OSError) as error:
                        self._add(cell, name, 1, Round(wrong=[_reason(error)]))
                        systems.pop(name).close()
            for number in range(1, self._effort.rounds + 1):
                for name, system in systems.items():
                    with _alone(system, systems.values()):
                        self._attempt(cell, name, number, partial(self._measures.recover, system))


@contextmanager
def _alone(system: System | None, systems: Iterable[System]) -> Iterator[None]:
    """Freeze systems that use much processor time when idle while others are measured."""
    others = [other for other in systems if other is not system and other.stops_when_idle]
    for other in others:
        other.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for other in others:
            other.signal(signal.SIGCONT)


def _reason(error: Exception) -> str:
    """The error as one line of limited length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= REASON_CHARS_MAX else f"{text[:REASON_CHARS_MAX]}…"
