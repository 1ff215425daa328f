"""Pure. Figures of a comparison: outcomes of rounds, ratios, verdicts, and several runs merged into one."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from benchmarks.compare.cells import APACHE, CELLS, METRICS, OURS, PEERS, Cell, Metric
from skylark.bench.machine import Machine
from skylark.bench.results import ResultFile, Value

BENCHMARK = "compare"
AHEAD, BEHIND, EVEN = "ahead", "behind", "even"


class Spread(msgspec.Struct, frozen=True):
    """Of the rounds of one figure."""

    median: float
    low: float
    high: float
    rounds: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one cell on one system. `wrong` has the reasons why it is void."""

    cell: str
    system: str
    round: int
    figures: dict[str, float] = {}
    """By the names of metrics."""
    wrong: list[str] = []


class NotRun(msgspec.Struct, frozen=True):
    """A missing figure and the reason."""

    cell: str
    system: str
    reason: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one cell, ours beside a peer's. The ratio is above 1 where ours is better."""

    cell: str
    metric: str
    unit: str
    peer: str
    """Empty in a cell that is about ours alone."""
    ours: Spread | None
    theirs: Spread | None
    ratio: Spread | None
    bar: float | None = None
    """Of the ratio."""
    floor: float | None = None
    """Of our own figure."""

    @property
    def verdict(self) -> str:
        """`ahead` or `behind` if all rounds agree, otherwise `even`; empty without a ratio."""
        if self.ratio is None:
            return ""
        if self.ratio.low > 1:
            return AHEAD
        return BEHIND if self.ratio.high < 1 else EVEN

    @property
    def reached(self) -> bool | None:
        """Whether the medians reach the bar and the floor; None without either, or without figures."""
        wanted = [(self.ratio, self.bar), (self.ours, self.floor)]
        known = [spread.median >= least for spread, least in wanted if spread and least is not None]
        return all(known) if known else None


class SystemFacts(msgspec.Struct, frozen=True):
    """A measured system, its settings and its client."""

    name: str
    title: str
    settings: str
    client: str


class Comparison(ResultFile, frozen=True, kw_only=True):
    """A whole run, or several that were merged, as `--json` and `--out` write it."""

    benchmark: str = BENCHMARK
    systems: list[SystemFacts]
    rows: list[Row]
    not_run: list[NotRun]
    outcomes: list[Outcome]


def spread(values: Sequence[float]) -> Spread:
    """Raises ValueError for none."""
    return Spread(
        median=_rounded(statistics.median(values)),
        low=_rounded(min(values)),
        high=_rounded(max(values)),
        rounds=len(values),
    )


def _rounded(value: float) -> float:
    """Three digits are more than the rounds agree on."""
    return float(f"{value:.4g}")


def ratio(metric: Metric, ours: float, theirs: float) -> float | None:
    """How many times better Skylark is; None if a figure is 0."""
    if not ours or not theirs:
        return None
    return ours / theirs if metric.more_is_better else theirs / ours


def rows_of(cells: Sequence[Cell], peers: Sequence[str], outcomes: Sequence[Outcome]) -> list[Row]:
    """A row for each figure of each cell and each peer that it is meant for, void rounds left out.

    A cell that is about ours alone has rows without a peer.
    """
    return [
        _row(cell, metric, peer, outcomes)
        for peer in (*peers, "")
        for cell in cells
        if peer in cell.systems or (not peer and cell.systems == {OURS})
        for metric in _metrics(cell, outcomes)
    ]


def _metrics(cell: Cell, outcomes: Sequence[Outcome]) -> list[Metric]:
    names = dict.fromkeys(
        name for outcome in outcomes if outcome.cell == cell.name for name in outcome.figures
    )
    return [METRICS[name] for name in names]


def _row(cell: Cell, metric: Metric, peer: str, outcomes: Sequence[Outcome]) -> Row:
    by_round = [
        {
            outcome.round: outcome.figures[metric.name]
            for outcome in outcomes
            if (outcome.cell, outcome.system) == (cell.name, system)
            and not outcome.wrong
            and metric.name in outcome.figures
        }
        for system in (OURS, peer)
    ]
    ours, theirs = by_round
    # Pairs of the same round were measured right after each other: what else the machine did hit both.
    pairs = [ratio(metric, ours[number], theirs[number]) for number in ours.keys() & theirs.keys()]
    good = [value for value in pairs if value is not None]
    return Row(
        cell=cell.name,
        metric=metric.name,
        unit=metric.unit,
        peer=peer,
        ours=spread(list(ours.values())) if ours else None,
        theirs=spread(list(theirs.values())) if theirs else None,
        ratio=spread(good) if good else None,
        bar=cell.bar(metric) if peer == APACHE else None,
        floor=cell.floor(metric),
    )


def losses(rows: Sequence[Row]) -> list[Row]:
    """Where ours is behind in every round, or below its bar."""
    return [row for row in rows if row.verdict == BEHIND or row.reached is False]


CELLS_CONDITION = "cells"
BETWEEN = " / "
PARTS = "; "
"""Separator of a system's settings."""


def merge(parts: Sequence[Comparison]) -> Comparison:
    """All of them, in the order given, of which there is at least one.

    What several of them measured counts as the last of these has it, rows and rounds.
    """
    outcomes = _outcomes(parts)
    return Comparison(
        made_at=_together(part.made_at for part in parts),
        skylark=_together(part.skylark for part in parts),
        machine=_machine([part.machine for part in parts]),
        conditions=_conditions(parts),
        systems=_systems(parts),
        rows=_rows(parts),
        not_run=_not_run(parts, outcomes.keys()),
        outcomes=[outcome for rounds in outcomes.values() for outcome in rounds],
    )


def _rows(parts: Sequence[Comparison]) -> list[Row]:
    chosen: dict[tuple[str, str, str], Row] = {}
    for part in parts:
        for row in part.rows:
            key = row.peer, row.cell, row.metric
            if key not in chosen or _is_whole(row) or not _is_whole(chosen[key]):
                chosen[key] = row
    cells = [cell.name for cell in CELLS]
    peers = [*PEERS, ""]
    return sorted(chosen.values(), key=lambda row: (peers.index(row.peer), cells.index(row.cell)))


def _is_whole(row: Row) -> bool:
    return row.ours is not None and (row.theirs is not None or not row.peer)


def _outcomes(parts: Sequence[Comparison]) -> dict[tuple[str, str], list[Outcome]]:
    """By cell and system."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for part in parts:
        of_part: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in part.outcomes:
            of_part.setdefault((outcome.cell, outcome.system), []).append(outcome)
        found |= of_part
    return found


def _not_run(parts: Sequence[Comparison], measured: Iterable[tuple[str, str]]) -> list[NotRun]:
    """Cells missing in all parts, and errors of the part that counts."""
    found: dict[tuple[str, str], NotRun] = {}
    tried = set(measured)
    for part in parts:
        here = {(each.cell, each.system) for each in part.outcomes}
        wrong = {(each.cell, each.system): each for each in part.not_run}
        found = {key: each for key, each in found.items() if key not in here}
        found |= {key: each for key, each in wrong.items() if key in here or key not in tried}
    return list(found.values())


def _systems(parts: Sequence[Comparison]) -> list[SystemFacts]:
    found: dict[str, SystemFacts] = {}
    for facts in (facts for part in parts for facts in part.systems):
        known = found.get(facts.name, facts)
        words = dict.fromkeys((*known.settings.split(PARTS), *facts.settings.split(PARTS)))
        found[facts.name] = SystemFacts(facts.name, facts.title, PARTS.join(words), facts.client)
    return [found[name] for name in (OURS, *PEERS) if name in found]


def _conditions(parts: Sequence[Comparison]) -> dict[str, Value]:
    names = dict.fromkeys(name for part in parts for name in part.conditions if name != CELLS_CONDITION)
    found: dict[str, Value] = {}
    for name in names:
        values = list(dict.fromkeys(part.conditions[name] for part in parts if name in part.conditions))
        found[name] = values[0] if len(values) == 1 else _together(map(str, values))
    measured = {outcome.cell for part in parts for outcome in part.outcomes}
    found[CELLS_CONDITION] = ", ".join(cell.name for cell in CELLS if cell.name in measured)
    return found


def _machine(machines: Sequence[Machine]) -> Machine:
    """The last, with the highest load of all."""
    return msgspec.structs.replace(
        machines[-1],
        processor=_together(machine.processor for machine in machines),
        load_1m=max(machine.load_1m for machine in machines),
        commit=_together(machine.commit for machine in machines if machine.commit) or None,
    )


def _together(values: Iterable[str]) -> str:
    """Each once, also of those that were merged before."""
    return BETWEEN.join(dict.fromkeys(part for value in values for part in value.split(BETWEEN)))
