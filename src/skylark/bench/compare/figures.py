"""Pure. Rounds become spreads, spreads become ratios, ratios become verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from skylark.bench.compare.cells import APACHE, METRICS, OURS, Cell, Metric
from skylark.bench.results import Stamped

BENCHMARK = "compare"
AHEAD, BEHIND, EVEN = "ahead", "behind", "even"


class Spread(msgspec.Struct, frozen=True):
    """Of the rounds of one figure."""

    median: float
    low: float
    high: float
    rounds: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one cell on one system. `wrong` says why it does not count, if it does not."""

    cell: str
    system: str
    round: int
    figures: dict[str, float] = {}
    """By the names of metrics."""
    wrong: list[str] = []


class NotRun(msgspec.Struct, frozen=True):
    """What is missing from the figures, and why."""

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
        """`ahead` or `behind` if all rounds say so, otherwise `even`; empty without a ratio."""
        if self.ratio is None:
            return ""
        if self.ratio.low > 1:
            return AHEAD
        return BEHIND if self.ratio.high < 1 else EVEN

    @property
    def reached(self) -> bool | None:
        """Whether the medians reach the bar and the floor; None where there is none, or no figure."""
        wanted = [(self.ratio, self.bar), (self.ours, self.floor)]
        known = [spread.median >= least for spread, least in wanted if spread and least is not None]
        return all(known) if known else None


class SystemFacts(msgspec.Struct, frozen=True):
    """What ran, how it was set, and which client drove it."""

    name: str
    title: str
    settings: str
    client: str


class Comparison(Stamped, frozen=True, kw_only=True):
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
    """How many times better ours is; None where a figure is nothing."""
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
