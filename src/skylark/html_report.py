"""Pure. HTML reports: verdict, totals, tables, charts. One file without scripts or external resources."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from html import escape
from typing import Any, Literal

import msgspec

BARS_MAX = 60
LABELS_MAX = 12
LABEL_CHARS_MAX = 19  # a time
CHAR_WIDTH = 7
TICKS = 4
STEPS_MAX = 5
ROWS_OPEN_MAX = 24
"""Longer tables are collapsed if a chart shows the same data, and can be collapsed otherwise."""
COLOURS = ("#3b82c4", "#e08a2e", "#3f9d68", "#c4546f", "#8a6fc4", "#a08f3c", "#3fa3ab", "#8a8f96")
TIME = re.compile(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d")
CAMEL_CASE = re.compile(r"[a-z]{2,}(?:[A-Z][a-z]*)*")

Point = tuple[str, Any, float]
"""Series, label, value."""
STYLE = """
:root { --page: #ffffff; --text: #1c2733; --faint: #5c6b79; --line: #dfe5ea; --card: #f5f7f9; --link: #23639f;
  --good: #17693f; --good-card: #e7f4ec; --look: #8a4b00; --look-card: #fdf1dd; }
@media (prefers-color-scheme: dark) { :root { --page: #12171d; --text: #e2e8ee; --faint: #95a3b1;
  --line: #2a343f; --card: #1a2129; --link: #7fb5e8; --good: #7fd3a4; --good-card: #16281f;
  --look: #f0b866; --look-card: #2e2413; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1000px; padding: 1.6rem 1.2rem 3rem;
  color: var(--text); background: var(--page); overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .2rem; }
p { margin: .2rem 0 .8rem; } p.made, p.note, footer { color: var(--faint); }
a, summary { color: var(--link); } summary { cursor: pointer; margin: .4rem 0; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 1rem 0; } nav a { text-decoration: none; }
.verdict { border-left: 5px solid; border-radius: 6px; padding: .7rem 1rem; margin: 1rem 0; }
.verdict strong { font-size: 1.1rem; } .verdict p { margin: .15rem 0 0; color: var(--text); }
.good { color: var(--good); background: var(--good-card); }
.look { color: var(--look); background: var(--look-card); }
.totals { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: .7rem;
  margin: 1rem 0; }
.totals div { background: var(--card); border-radius: 8px; padding: .6rem .8rem; }
.totals b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.totals span { color: var(--faint); font-size: .85rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
  overflow-wrap: normal; }
th { white-space: nowrap; color: var(--faint); font-weight: 600; }
tfoot td { font-weight: 600; border-bottom: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number, td.time { white-space: nowrap; }
figure { margin: .6rem 0; } svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--faint); } svg.narrow { display: none; }
figcaption { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; font-size: .85rem; color: var(--faint); }
figcaption i { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; margin-right: .35rem; }
@media (max-width: 620px) { svg.broad { display: none; } svg.narrow { display: block; }
  body { padding: 1rem .9rem 2rem; } .totals { grid-template-columns: repeat(2, 1fr); } }
"""


class Frame(msgspec.Struct, frozen=True):
    """Size of a drawing and its margins, in pixels."""

    name: str
    width: int
    height: int
    left: int
    right: int = 10
    top: int = 26
    bottom: int = 28

    @property
    def room(self) -> int:
        """Width between the margins."""
        return self.width - self.left - self.right


BROAD = Frame("broad", 900, 250, 70)
NARROW = Frame("narrow", 340, 210, 52)
ALONE = Frame("alone", 900, 260, 70, bottom=46)
"""With room for the legend."""


class Chart(msgspec.Struct, frozen=True):
    """Columns to draw: bars of one column, or one line per value of another."""

    label: str | tuple[str, ...]
    """Several columns are joined with a slash."""
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
    total: list[Any] | None = None
    """The last row of the table."""
    is_folded: bool = False
    """The table is shown on demand: the chart or the note says the same."""


class Verdict(msgspec.Struct, frozen=True):
    """What the reader should know first."""

    is_good: bool
    title: str
    sentences: list[str] = []


class Total(msgspec.Struct, frozen=True):
    """A figure at the top of a page."""

    name: str
    value: str


class HtmlReport(msgspec.Struct, frozen=True):
    """A report page."""

    title: str
    made_at: str
    sections: list[Section]
    verdict: Verdict | None = None
    totals: list[Total] = []


def render(report: HtmlReport) -> str:
    """Return the report as an HTML page."""
    links = "".join(f'<a href="#{section.name}">{escape(section.title)}</a>' for section in report.sections)
    body = "".join(_section(section) for section in report.sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)}</title><style>{STYLE}</style></head><body>"
        f'<h1>{escape(report.title)}</h1><p class="made">{escape(report.made_at)}</p>'
        f"{_verdict(report.verdict)}{_totals(report.totals)}<nav>{links}</nav>{body}</body></html>\n"
    )


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    kind, sign = ("good", "✓") if verdict.is_good else ("look", "!")
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in verdict.sentences)
    return f'<div class="verdict {kind}"><strong>{sign} {escape(verdict.title)}</strong>{sentences}</div>'


def _totals(totals: list[Total]) -> str:
    cards = "".join(
        f"<div><b>{escape(total.value)}</b><span>{escape(total.name)}</span></div>" for total in totals
    )
    return f'<div class="totals">{cards}</div>' if cards else ""


def _section(section: Section) -> str:
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    chart = _figure(section, section.chart) if section.chart is not None and section.rows else ""
    head = f"<h2>{escape(section.title)}</h2>{note}"
    return f'<section id="{section.name}">{head}{chart}{_table(section)}</section>'


def _table(section: Section) -> str:
    if not section.rows:
        return "" if section.note else '<p class="note">Nothing to show.</p>'
    kinds = [_kind(section.rows, place) for place in range(len(section.columns))]
    head = "".join(
        f'<th class="{kind}">{escape(heading(name))}</th>'
        for name, kind in zip(section.columns, kinds, strict=True)
    )
    lines = "".join(_row(row, kinds) for row in section.rows)
    foot = f"<tfoot>{_row(section.total, kinds)}</tfoot>" if section.total is not None else ""
    table = (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody>{foot}</table></div>'
    )
    if len(section.rows) <= ROWS_OPEN_MAX and not section.is_folded:
        return table
    # Collapsed if a chart shows the same data.
    opened = "" if section.chart is not None or section.is_folded else " open"
    return f"<details{opened}><summary>{len(section.rows)} rows</summary>{table}</details>"


def _kind(rows: list[list[Any]], place: int) -> str:
    """The class of a column: that of its first value."""
    first = next((row[place] for row in rows if row[place] is not None), None)
    if _is_number(first):
        return "number"
    return "time" if TIME.match(str(first)) else ""


def _row(row: list[Any], kinds: list[str]) -> str:
    cells = (
        f'<td class="{kind}">{escape(format_cell(value))}</td>'
        for value, kind in zip(row, kinds, strict=True)
    )
    return f"<tr>{''.join(cells)}</tr>"


def heading(name: str) -> str:
    """`meanBytes` as `Mean bytes`, `queueId` as `Queue`; other names as they are."""
    if not CAMEL_CASE.fullmatch(name):
        return name
    short = name.removesuffix("Name").removesuffix("Id")
    words = re.sub(r"([A-Z])", lambda match: f" {match[1].lower()}", short)
    return words[0].upper() + words[1:]


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
    points, names = _points(section, section.chart)
    style = "<style>text { font: 11px system-ui, sans-serif; fill: #5b6875; }</style>"
    legend = _legend(names, ALONE) if section.chart.series is not None else ""
    svg = _svg(section, section.chart, points, names, ALONE, legend)
    return (
        svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", f">{style}", 1)
        + "\n"
    )


def _figure(section: Section, chart: Chart) -> str:
    """The chart for broad and for narrow screens, of which the style shows one, with its legend."""
    points, names = _points(section, chart)
    drawn = "".join(_svg(section, chart, points, names, frame) for frame in (BROAD, NARROW))
    keys = (
        f'<span><i style="background:{COLOURS[place % len(COLOURS)]}"></i>{escape(name)}</span>'
        for place, name in enumerate(names)
    )
    legend = f"<figcaption>{''.join(keys)}</figcaption>" if chart.series is not None else ""
    return f"<figure>{drawn}{legend}</figure>"


def _points(section: Section, chart: Chart) -> tuple[list[Point], list[str]]:
    """The points of a chart, and the names of its series."""
    columns = (chart.label,) if isinstance(chart.label, str) else chart.label
    labels = [section.columns.index(name) for name in columns]
    value = section.columns.index(chart.value)
    series = section.columns.index(chart.series) if chart.series is not None else None
    points = [
        (
            str(row[series]) if series is not None else "",
            row[labels[0]] if len(labels) == 1 else "/".join(str(row[place]) for place in labels),
            row[value] or 0,
        )
        for row in section.rows
    ]
    return points, list(dict.fromkeys(name for name, _, _ in points))


def _svg(
    section: Section, chart: Chart, points: list[Point], names: list[str], frame: Frame, legend: str = ""
) -> str:
    axis = Axis([value for _, _, value in points], chart, frame)
    draw = _draw_lines if chart.kind == "lines" else _draw_bars
    label = chart.label if isinstance(chart.label, str) else " and ".join(chart.label)
    title = f"{section.title}: {heading(chart.value)} by {heading(label)}"
    return (
        f'<svg viewBox="0 0 {frame.width} {frame.height}" class="{frame.name}" role="img" '
        f'aria-label="{escape(title)}">{"".join(draw(points, names, axis, frame))}{legend}</svg>'
    )


def _draw_bars(points: list[Point], names: list[str], axis: Axis, frame: Frame) -> list[str]:
    """Draw bars, grouped by label."""
    labels = list(dict.fromkeys(str(label) for _, label, _ in points))[-BARS_MAX:]
    totals: dict[tuple[str, str], float] = {}
    for name, label, value in points:
        totals[str(label), name] = totals.get((str(label), name), 0) + value
    axis.reach(totals.values())
    room = frame.room / len(labels)
    shapes = axis.drawn()
    written = _without_date(labels)
    step = _label_step(written, frame)
    for place, text in enumerate(labels):
        left = frame.left + place * room
        shapes += _bars(left, room, [(name, totals.get((text, name), 0)) for name in names], axis, text)
        if place % step == 0:
            shapes += _label(left + room / 2, written[place], frame)
    return shapes


def _draw_lines(points: list[Point], names: list[str], axis: Axis, frame: Frame) -> list[str]:
    """Draw one line per series. Numeric labels are placed by value, others evenly."""
    places, marks = _places(list(dict.fromkeys(label for _, label, _ in points)), frame)
    width = frame.room - 2 * frame.right
    shapes = axis.drawn()
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        own = [(label, value) for series, label, value in points if series == name]
        corners = [
            (frame.left + places[label] * width, axis.y(value), f"{label} {name}", value)
            for label, value in own
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in corners)
        shapes.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        shapes += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}">'
            f"<title>{escape(text)}: {escape(format_cell(value))}</title></circle>"
            for x, y, text, value in corners
        ]
    return shapes + [
        each for place, text in marks for each in _label(frame.left + place * width, text, frame)
    ]


def _places(labels: list[Any], frame: Frame) -> tuple[dict[Any, float], list[tuple[float, str]]]:
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
    written = _without_date([str(label) for label in labels])
    step = _label_step(written, frame)
    return places, [
        (places[label], written[place]) for place, label in enumerate(labels) if place % step == 0
    ]


def _without_date(labels: list[str]) -> list[str]:
    """Labels without the words that they all begin with, such as the date of times of one day."""
    words = {label.partition(" ")[0] for label in labels}
    if len(words) > 1 or not all(label.partition(" ")[2] for label in labels):
        return labels
    return [label.partition(" ")[2] for label in labels]


def _label_step(labels: list[str], frame: Frame) -> int:
    """Return the step between labels that are written, so that they do not overlap."""
    widest = CHAR_WIDTH * (max(len(_short(label)) for label in labels) + 1)
    fitting = max(frame.room // widest, 1)
    return -(-len(labels) // min(fitting, LABELS_MAX))


def _label(x: float, text: str, frame: Frame) -> list[str]:
    """A text below the axis; none if it would end outside."""
    y, shown = frame.height - frame.bottom + 18, _short(text)
    if x + CHAR_WIDTH * len(shown) / 2 > frame.width:
        return []
    return [f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{escape(shown)}</text>']


class Axis:
    """The vertical axis of a chart."""

    def __init__(self, values: list[float], chart: Chart, frame: Frame) -> None:
        self._frame = frame
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
        return self.bottom - self._share(value) * (self.bottom - self._frame.top)

    @property
    def bottom(self) -> int:
        """Where the bars stand."""
        return self._frame.height - self._frame.bottom

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
        frame = self._frame
        left = frame.left - 6
        lines = [f'<text x="0" y="{frame.top - 14}">{escape(self._unit)}</text>']
        for value in self._ticks():
            y = self.y(value)
            text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            lines.append(
                f'<line x1="{frame.left}" x2="{frame.width - frame.right}" y1="{y:.1f}" y2="{y:.1f}" '
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
            f'height="{axis.bottom - y:.1f}" fill="{COLOURS[place % len(COLOURS)]}">'
            f"<title>{escape(tip)}</title></rect>"
        )
    return shapes


def _legend(names: list[str], frame: Frame) -> str:
    pieces, x = [], frame.left
    for place, name in enumerate(names[: len(COLOURS)]):
        y = frame.height - 14
        pieces.append(
            f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{COLOURS[place]}" class="key"/>'
            f'<text x="{x + 14}" y="{y}">{escape(_short(name))}</text>'
        )
        x += 30 + 7 * len(_short(name))
    return "".join(pieces)


def _short(text: str) -> str:
    return text if len(text) <= LABEL_CHARS_MAX else text[: LABEL_CHARS_MAX - 1] + "…"
