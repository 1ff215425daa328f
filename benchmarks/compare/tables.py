"""Pure. A comparison as tables by peer, lists of losses and missing cells, and an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.compare.cells import METRICS, PER_S
from benchmarks.compare.figures import Comparison, Row, Spread, losses
from skylark.bench.results import conditions_section
from skylark.html_report import Chart, HtmlReport, Section, render

COLUMNS = ("cell", "figure", "ours", "peer", "ratio", "of the rounds", "bar", "verdict")
NOTHING = "-"
RATIO_NOTE = (
    "A ratio is above 1 where ours is better, whatever is measured: the median of the rounds, and all."
)


def number(value: float) -> str:
    """As many digits as mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def amount(spread: Spread | None) -> str:
    """The median and, of several rounds, what they reached from and to."""
    if spread is None:
        return NOTHING
    if spread.rounds == 1:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.low)} to {number(spread.high)})"


def figure(row: Row) -> str:
    """The metric and its unit."""
    unit = METRICS[row.metric].unit
    if not unit or unit.startswith("/"):
        return row.metric + unit
    return f"{row.metric}, {unit}"


def verdict(row: Row) -> str:
    if row.reached is None:
        return row.verdict or NOTHING
    return f"{row.verdict}, {'bar reached' if row.reached else 'below the bar'}"


def wanted(row: Row) -> str:
    """The bar of the ratio, and the floor of our own figure; empty without either."""
    bar = [f"{row.bar:g}"] if row.bar is not None else []
    floor = [f"ours {row.floor:g}"] if row.floor is not None else []
    return ", ".join(bar + floor)


def cells_of(row: Row) -> list[str]:
    """A line of a table."""
    ratio = row.ratio
    return [
        row.cell,
        figure(row),
        amount(row.ours),
        amount(row.theirs),
        f"{ratio.median:.2f}" if ratio is not None else NOTHING,
        f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio is not None and ratio.rounds > 1 else NOTHING,
        wanted(row) or NOTHING,
        verdict(row),
    ]


def peers_of(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(row.peer for row in comparison.rows))


def rows_for(comparison: Comparison, peer: str) -> list[Row]:
    return [row for row in comparison.rows if row.peer == peer]


def title_of(comparison: Comparison, peer: str) -> str:
    """The full name of a peer."""
    return next((facts.title for facts in comparison.systems if facts.name == peer), "ours alone")


def loss_lines(rows: Sequence[Row]) -> list[str]:
    """A sentence for each figure in which ours is worse, or below its bar."""
    return [
        f"{row.cell}, {figure(row)}: {amount(row.ours)} against {amount(row.theirs)} of {row.peer}, "
        f"{row.ratio.median:.2f}" + (f" (bar {wanted(row)})" if wanted(row) else "")
        for row in losses(rows)
        if row.ratio is not None
    ]


def missing_lines(comparison: Comparison) -> list[str]:
    return [f"{each.cell}, {each.system}: {each.reason}" for each in comparison.not_run]


def page(comparison: Comparison) -> str:
    """The comparison as one HTML page that fetches nothing."""
    sections = [_peer_section(comparison, peer) for peer in peers_of(comparison)]
    charts = [_charts(comparison, peer) for peer in peers_of(comparison) if peer]
    sections += [chart for chart in charts if chart.rows]
    lost = [[line] for line in loss_lines(comparison.rows)]
    sections += [
        Section("losses", "Where ours is worse, or below its bar", ["figure"], lost),
        Section(
            "missing",
            "Not run, or void",
            ["cell", "system", "reason"],
            [[each.cell, each.system, each.reason] for each in comparison.not_run],
        ),
        _systems(comparison),
        conditions_section(comparison),
    ]
    return render(HtmlReport("python -m benchmarks compare", comparison.made_at, sections))


def _peer_section(comparison: Comparison, peer: str) -> Section:
    rows = [cells_of(row) for row in rows_for(comparison, peer)]
    title = f"Ours and {title_of(comparison, peer)}" if peer else "Ours alone"
    return Section(f"peer-{peer or 'none'}", title, list(COLUMNS), rows, note=RATIO_NOTE if peer else "")


def _charts(comparison: Comparison, peer: str) -> Section:
    rows: list[list[Any]] = [
        [row.cell, row.ratio.median]
        for row in rows_for(comparison, peer)
        if row.ratio is not None and row.metric == PER_S.name
    ]
    chart = Chart(label="cell", value="ratio", unit="times")
    title = f"Rates of ours as multiples of {title_of(comparison, peer)}"
    return Section(f"rates-{peer}", title, ["cell", "ratio"], rows, chart)


def _systems(comparison: Comparison) -> Section:
    rows = [[facts.name, facts.title, facts.settings, facts.client] for facts in comparison.systems]
    return Section("systems", "What ran", ["name", "system", "settings", "client"], rows)
