"""Pure. A report as one HTML page: tables and charts drawn as SVG, nothing fetched, no script."""

from __future__ import annotations

from html import escape
from typing import Any

from skylark.pipelines.jobs.report import Chart, Report, Section

WIDTH, HEIGHT = 900, 260
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 70, 10, 14, 46
BARS_MAX = 60
LABELS_MAX = 12
LABEL_CHARS_MAX = 18
TICKS = 4
COLOURS = ("#2f6fb0", "#d97a1f", "#3a8f5c", "#b3475f", "#7a5fb0", "#8a7a33", "#3f9ca3", "#777777")
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 960px; padding: 0 1rem;
       color: #1d2733; background: #ffffff; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
p.made, p.note { color: #5b6875; margin: .2rem 0 .8rem; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #dde3e9; text-align: left; overflow-wrap: anywhere; }
th { border-bottom: 2px solid #b7c2cc; } td.number, th.number { text-align: right;
     font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: #5b6875; }
nav a { margin-right: 1rem; } details summary { cursor: pointer; color: #2f6fb0; }
@media (prefers-color-scheme: dark) {
  body { background: #14191f; color: #dfe6ec; } th, td { border-color: #2c3640; }
  p.made, p.note, svg text { color: #98a6b3; fill: #98a6b3; } a, details summary { color: #7fb2e5; } }
"""


def render(report: Report) -> str:
    """The page."""
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
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    is_long = len(section.rows) > 2 * LABELS_MAX
    return f"<details><summary>{len(section.rows)} rows</summary>{table}</details>" if is_long else table


def format_cell(value: Any) -> str:
    """Numbers with separators, nothing for nothing."""
    if value is None:
        return ""
    return f"{value:,}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _chart(section: Section, chart: Chart) -> str:
    """Bars, side by side in groups of the same label, one colour for each series."""
    label, value = section.columns.index(chart.label), section.columns.index(chart.value)
    series = section.columns.index(chart.series) if chart.series is not None else None
    names = list(dict.fromkeys(str(row[series]) if series is not None else "" for row in section.rows))
    labels = list(dict.fromkeys(str(row[label]) for row in section.rows))[-BARS_MAX:]
    totals: dict[tuple[str, str], float] = {}
    for row in section.rows:
        key = (str(row[label]), str(row[series]) if series is not None else "")
        totals[key] = totals.get(key, 0) + (row[value] or 0)
    highest = max([*totals.values(), 1])
    room = (WIDTH - MARGIN_LEFT - MARGIN_RIGHT) / len(labels)
    shapes = _axis(highest, chart.unit)
    for place, text in enumerate(labels):
        left = MARGIN_LEFT + place * room
        shapes += _bars(left, room, [(name, totals.get((text, name), 0)) for name in names], highest, text)
        if place % -(-len(labels) // LABELS_MAX) == 0:
            shapes.append(
                f'<text x="{left + room / 2:.1f}" y="{HEIGHT - MARGIN_BOTTOM + 15}" text-anchor="middle">'
                f"{escape(_short(text))}</text>"
            )
    title = f"{section.title}: {chart.value} by {chart.label}"
    legend = _legend(names) if series is not None else ""
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(shapes)}{legend}</svg>"
    )


def _axis(highest: float, unit: str) -> list[str]:
    left = MARGIN_LEFT - 6
    lines = [f'<text x="{left}" y="{MARGIN_TOP - 3}" text-anchor="end">{escape(unit)}</text>']
    for tick in range(TICKS + 1):
        value = highest * tick / TICKS
        y = _y(value, highest)
        lines.append(
            f'<line x1="{MARGIN_LEFT}" x2="{WIDTH - MARGIN_RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="#8894a0" stroke-opacity="0.35"/>'
            f'<text x="{left}" y="{y + 4:.1f}" text-anchor="end">{value:,.4g}</text>'
        )
    return lines


def _bars(left: float, room: float, values: list[tuple[str, float]], highest: float, label: str) -> list[str]:
    width = room * 0.8 / len(values)
    shapes = []
    for place, (name, value) in enumerate(values):
        y = _y(max(value, 0), highest)
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


def _y(value: float, highest: float) -> float:
    return HEIGHT - MARGIN_BOTTOM - value / highest * (HEIGHT - MARGIN_TOP - MARGIN_BOTTOM)


def _short(text: str) -> str:
    return text if len(text) <= LABEL_CHARS_MAX else text[: LABEL_CHARS_MAX - 1] + "…"
