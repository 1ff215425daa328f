"""Pure. HTML reports: tables, and charts as SVG. One file without scripts or external resources."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import Any, Literal

import msgspec

WIDTH, HEIGHT = 900, 260
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 70, 10, 26, 46
BARS_MAX = 60
LABELS_MAX = 12
LABEL_CHARS_MAX = 19  # a time
CHAR_WIDTH = 7
TICKS = 4
STEPS_MAX = 5
COLOURS = ("#2f6fb0", "#d97a1f", "#3a8f5c", "#b3475f", "#7a5fb0", "#8a7a33", "#3f9ca3", "#777777")

Point = tuple[str, Any, float]
"""Series, label, value."""
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 960px; padding: 0 1rem;
       color: #1d2733; background: #ffffff; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
p.made, p.note { color: #5b6875; margin: .2rem 0 .8rem; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
div.wide { overflow-x: auto; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #dde3e9; text-align: left; }
th { border-bottom: 2px solid #b7c2cc; } td.number, th.number { text-align: right;
     font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: #5b6875; }
nav a { margin-right: 1rem; } details summary { cursor: pointer; color: #2f6fb0; }
@media (prefers-color-scheme: dark) {
  body { background: #14191f; color: #dfe6ec; } th, td { border-color: #2c3640; }
  p.made, p.note, svg text { color: #98a6b3; fill: #98a6b3; } a, details summary { color: #7fb2e5; } }
"""


class Chart(msgspec.Struct, frozen=True):
    """Columns to draw: bars of one column, or one line per value of another."""

    label: str
    value: str
    series: str | None = None
    unit: str = ""
    kind: Literal["bars", "lines"] = "bars"
    is_logarithmic: bool = False


class Section(msgspec.Struct, frozen=True):
    """One table of a report."""

    name: str
    title: str
    columns: list[str]
    rows: list[list[Any]]
    chart: Chart | None = None
    note: str = ""


class HtmlReport(msgspec.Struct, frozen=True):
    """A report page."""

    title: str
    made_at: str
    sections: list[Section]


def render(report: HtmlReport) -> str:
    """Return the report as an HTML page."""
    links = "".join(f'<a href="#{section.name}">{escape(section.title)}</a>' for section in report.sections)
    body = "".join(_section(section) for section in report.sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)}</title><style>{STYLE}</style></head><body>"
        f'<h1>{escape(report.title)}</h1><p class="made">{escape(report.made_at)}</p>'
        f"<nav>{links}</nav>{body}</body></html>\n"
    )


def _section(section: Section) -> str:
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    chart = _chart(section, section.chart) if section.chart is not None and section.rows else ""
    head = f"<h2>{escape(section.title)}</h2>{note}"
    return f'<section id="{section.name}">{head}{chart}{_table(section)}</section>'


def _table(section: Section) -> str:
    if not section.rows:
        return '<p class="note">Nothing to show.</p>'
    kinds = ["number" if _is_number(value) else "" for value in section.rows[0]]
    head = "".join(
        f'<th class="{kind}">{escape(name)}</th>' for name, kind in zip(section.columns, kinds, strict=True)
    )
    lines = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}">{escape(format_cell(value))}</td>'
            for value, kind in zip(row, kinds, strict=True)
        )
        + "</tr>"
        for row in section.rows
    )
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
    if len(section.rows) <= 2 * LABELS_MAX:
        return table
    # Collapsed if a chart shows the same data.
    opened = "" if section.chart is not None else " open"
    return f"<details{opened}><summary>{len(section.rows)} rows</summary>{table}</details>"


def format_cell(value: Any) -> str:
    """Format numbers with separators and None as empty."""
    if value is None:
        return ""
    return f"{value:,}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def drawing(section: Section) -> str:
    """Return the chart of a section as a standalone SVG. The section must have one."""
    assert section.chart is not None
    style = "<style>text { font: 11px system-ui, sans-serif; fill: #5b6875; }</style>"
    return (
        _chart(section, section.chart)
        .replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        .replace(">", f">{style}", 1)
        + "\n"
    )


def _chart(section: Section, chart: Chart) -> str:
    label, value = section.columns.index(chart.label), section.columns.index(chart.value)
    series = section.columns.index(chart.series) if chart.series is not None else None
    points = [
        (str(row[series]) if series is not None else "", row[label], row[value] or 0) for row in section.rows
    ]
    names = list(dict.fromkeys(name for name, _, _ in points))
    axis = Axis([value for _, _, value in points], chart)
    draw = _draw_lines if chart.kind == "lines" else _draw_bars
    title = f"{section.title}: {chart.value} by {chart.label}"
    legend = _legend(names) if series is not None else ""
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(draw(points, names, axis))}{legend}</svg>"
    )


def _draw_bars(points: list[Point], names: list[str], axis: Axis) -> list[str]:
    """Draw bars, grouped by label."""
    labels = list(dict.fromkeys(str(label) for _, label, _ in points))[-BARS_MAX:]
    totals: dict[tuple[str, str], float] = {}
    for name, label, value in points:
        totals[str(label), name] = totals.get((str(label), name), 0) + value
    axis.reach(totals.values())
    room = (WIDTH - MARGIN_LEFT - MARGIN_RIGHT) / len(labels)
    shapes = axis.drawn()
    step = _label_step(labels)
    for place, text in enumerate(labels):
        left = MARGIN_LEFT + place * room
        shapes += _bars(left, room, [(name, totals.get((text, name), 0)) for name in names], axis, text)
        if place % step == 0:
            shapes.append(_label(left + room / 2, text))
    return shapes


def _draw_lines(points: list[Point], names: list[str], axis: Axis) -> list[str]:
    """Draw one line per series. Numeric labels are placed by value, others evenly."""
    places, marks = _places(list(dict.fromkeys(label for _, label, _ in points)))
    width = WIDTH - MARGIN_LEFT - 3 * MARGIN_RIGHT
    shapes = axis.drawn()
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        own = [(label, value) for series, label, value in points if series == name]
        corners = [
            (MARGIN_LEFT + places[label] * width, axis.y(value), f"{label} {name}", value)
            for label, value in own
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in corners)
        shapes.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        shapes += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}">'
            f"<title>{escape(text)}: {escape(format_cell(value))}</title></circle>"
            for x, y, text, value in corners
        ]
    return shapes + [_label(MARGIN_LEFT + place * width, text) for place, text in marks]


def _places(labels: list[Any]) -> tuple[dict[Any, float], list[tuple[float, str]]]:
    """Return the positions of labels from 0 to 1, and the texts below the axis with their positions."""
    if all(map(_is_number, labels)):
        lowest, highest = min(labels), max(labels)
        span = (highest - lowest) or 1
        ticks = [lowest + (highest - lowest) * tick / TICKS for tick in range(TICKS + 1)]
        marks = [
            ((tick - lowest) / span, f"{tick:,.4g}" if tick < 1000 else f"{tick:,.0f}") for tick in ticks
        ]
        return {label: (label - lowest) / span for label in labels}, marks
    places = {label: place / max(len(labels) - 1, 1) for place, label in enumerate(labels)}
    return places, [(places[label], str(label)) for label in labels[:: _label_step(labels)]]


def _label_step(labels: list[Any]) -> int:
    """Return the step between labels that are written, so that they do not overlap."""
    widest = CHAR_WIDTH * (max(len(_short(str(label))) for label in labels) + 1)
    fitting = (WIDTH - MARGIN_LEFT - MARGIN_RIGHT) // widest
    return -(-len(labels) // min(fitting, LABELS_MAX))


def _label(x: float, text: str) -> str:
    y = HEIGHT - MARGIN_BOTTOM + 18
    return f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{escape(_short(text))}</text>'


class Axis:
    """The vertical axis of a chart."""

    def __init__(self, values: list[float], chart: Chart) -> None:
        self._unit = chart.unit
        self._is_logarithmic = chart.is_logarithmic
        self._is_whole = all(isinstance(value, int) for value in values)
        self._highest = 0.0
        self._lowest = min((value for value in values if value > 0), default=1.0)
        self.reach(values)

    def reach(self, values: Iterable[float]) -> None:
        """Extend the axis to these values."""
        self._highest = max([self._highest, *map(float, values)])

    def y(self, value: float) -> float:
        return HEIGHT - MARGIN_BOTTOM - self._share(value) * (HEIGHT - MARGIN_TOP - MARGIN_BOTTOM)

    def _share(self, value: float) -> float:
        if not self._is_logarithmic:
            return max(float(value), 0) / self._steps()[-1]
        bottom, top = self._powers()
        return (math.log10(max(value, 10**bottom)) - bottom) / (top - bottom)

    def _powers(self) -> tuple[int, int]:
        """Powers of ten that enclose all values."""
        bottom = math.floor(math.log10(self._lowest))
        return bottom, max(math.ceil(math.log10(max(self._highest, self._lowest))), bottom + 1)

    def _ticks(self) -> list[float]:
        if self._is_logarithmic:
            bottom, top = self._powers()
            return [10.0**power for power in range(bottom, top + 1)]
        return self._steps()

    def _steps(self) -> list[float]:
        """Ticks from 0 to above all values, in steps of 1, 2 or 5 times a power of ten."""
        highest = self._highest or 1.0
        power = 10.0 ** math.floor(math.log10(highest / STEPS_MAX))
        step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step * STEPS_MAX >= highest)
        if self._is_whole:
            step = max(step, 1.0)
        return [step * number for number in range(math.ceil(highest / step) + 1)]

    def drawn(self) -> list[str]:
        left = MARGIN_LEFT - 6
        lines = [f'<text x="{left}" y="{MARGIN_TOP - 14}" text-anchor="end">{escape(self._unit)}</text>']
        for value in self._ticks():
            y = self.y(value)
            text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            lines.append(
                f'<line x1="{MARGIN_LEFT}" x2="{WIDTH - MARGIN_RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                'stroke="#8894a0" stroke-opacity="0.35"/>'
                f'<text x="{left}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
            )
        return lines


def _bars(left: float, room: float, values: list[tuple[str, float]], axis: Axis, label: str) -> list[str]:
    width = room * 0.8 / len(values)
    shapes = []
    for place, (name, value) in enumerate(values):
        y = axis.y(value)
        tip = f"{label} {name}: {format_cell(value)}"
        shapes.append(
            f'<rect x="{left + room * 0.1 + place * width:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" '
            f'height="{HEIGHT - MARGIN_BOTTOM - y:.1f}" fill="{COLOURS[place % len(COLOURS)]}">'
            f"<title>{escape(tip)}</title></rect>"
        )
    return shapes


def _legend(names: list[str]) -> str:
    pieces, x = [], MARGIN_LEFT
    for place, name in enumerate(names[: len(COLOURS)]):
        y = HEIGHT - 14
        pieces.append(
            f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{COLOURS[place]}" class="key"/>'
            f'<text x="{x + 14}" y="{y}">{escape(_short(name))}</text>'
        )
        x += 30 + 7 * len(_short(name))
    return "".join(pieces)


def _short(text: str) -> str:
    return text if len(text) <= LABEL_CHARS_MAX else text[: LABEL_CHARS_MAX - 1] + "…"
