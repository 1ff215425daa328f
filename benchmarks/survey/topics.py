"""The cost of spreading a load over many topics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import msgspec

from skylark.bench.load import Load
from skylark.bench.load_target import LoadTarget
from skylark.bench.results import Cell, Document, Value, make_document
from skylark.bench.servers import BenchServers, Progress, ServerChoice, running_servers

ROUNDS = 5
"""Odd: the one in the middle counts."""
ROUND_S_MIN = 2.0
SETTLE_S = 0.01
"""For each new queue, until its file is made: a broker of ours makes 128 a second."""
SETTLE_S_MAX = 75.0
"""Once a minute it makes all that are missing."""
REST_S = 0.002
"""Rest per queue until its last entries are written; a broker takes 20 s for any number."""
REST_S_MAX = 21.0


def measure_topics(choice: ServerChoice, load: Load, counts: Sequence[int], progress: Progress) -> Document:
    """The same load spread over more and more topics: of many both while they are new and later.

    Machines have quick and slow minutes. So the first count is measured again right before each of the
    others, where servers are our own in a broker that has no other topics. Later there are several such
    rounds, with rests between: the one with the middle share of the first's rate counts, and the lowest and
    the highest share are told. Raises LoadFailed, RocketMQError.
    """
    with (
        running_servers(choice) as lone,
        _another(lone) as servers,
        lone.target() as alone,
        servers.target() as target,
    ):
        turns = _Turns(alone, lone.fitted(_spread(load, counts[0])), target, progress)
        if len(counts) == 1:
            turns.measure_first(load.seconds)
        cells: list[Cell] = []
        for count in counts[1:]:
            spread = servers.fitted(_spread(load, count))
            started = time.perf_counter()
            target.create(spread)
            made_per_s = round(count / (time.perf_counter() - started))
            # The first messages of a queue make its files, which brokers do meanwhile or a while later.
            cells.append(turns.measure(f"{count} new topics", spread, topics_created_per_s=made_per_s))
            time.sleep(min(count * load.queues * SETTLE_S, SETTLE_S_MAX))
            cells.append(turns.measure_often(f"{count} topics", spread))
        conditions = servers.conditions(seconds=load.seconds, warm_up_s=load.warm_up_s, rounds=ROUNDS)
        return make_document("topics", conditions, [turns.first, *cells])


class _Turns:
    """A first load and others: one of these is measured right after the first was."""

    def __init__(self, alone: LoadTarget, few: Load, target: LoadTarget, progress: Progress) -> None:
        self._alone = alone
        self._few = few
        self._name = f"{few.topics} topics"
        self._target = target
        self._progress = progress
        self._firsts: list[Cell] = []

    def measure_first(self, seconds: float) -> Cell:
        cell = self._measure(self._alone, self._name, replace(self._few, seconds=seconds))
        self._firsts.append(cell)
        return cell

    def measure(self, name: str, load: Load, **figures: Value) -> Cell:
        """Measure a load, beside the first."""
        first = self.measure_first(load.seconds)
        return self._measure(self._target, name, load).beside(first, **figures)

    def measure_often(self, name: str, load: Load) -> Cell:
        """Measure it several times, for shorter: the middle one, void if any was."""
        short = replace(load, seconds=max(load.seconds / ROUNDS, min(load.seconds, ROUND_S_MIN)))
        rounds = [self.measure(name, short)]
        while len(rounds) < ROUNDS:
            time.sleep(min(load.topics * load.queues * REST_S, REST_S_MAX))
            rounds.append(self.measure(name, short))
        lowest, middle, highest = sorted(rounds, key=_share)[:: ROUNDS // 2]
        shares: dict[str, Value] = {
            "lowest_rate_of_first": _share(lowest),
            "highest_rate_of_first": _share(highest),
        }
        figures = {**middle.figures, **shares}
        return msgspec.structs.replace(middle, figures=figures, wrong=_wrong_among(rounds))

    @property
    def first(self) -> Cell:
        """Of all that was measured of the first, the middle one by its rate, void if any was."""
        by_rate = sorted(self._firsts, key=lambda cell: cell.per_s)
        middle = by_rate[len(by_rate) // 2]
        return msgspec.structs.replace(middle.beside(middle), wrong=_wrong_among(by_rate))

    def _measure(self, target: LoadTarget, name: str, load: Load) -> Cell:
        return target.measure(name, load, partial(self._progress, name))


def _share(cell: Cell) -> float:
    """0 for a cell that is void."""
    return float(cell.figures.get("rate_of_first") or 0)


def _wrong_among(cells: Sequence[Cell]) -> list[str]:
    return [sentence for cell in cells for sentence in cell.wrong]


def _spread(load: Load, count: int) -> Load:
    return replace(load, topics=count, topic=f"{load.topic}-{count}")


@contextmanager
def _another(servers: BenchServers) -> Iterator[BenchServers]:
    """Another started broker; the same servers where they were not started here."""
    if not servers.choice.is_own:
        yield servers
        return
    with running_servers(servers.choice) as other:
        yield other
