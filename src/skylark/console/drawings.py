"""Pure. SVG drawings: sparklines, line charts, bars, the map of a cluster. The style sheet colours them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from skylark.console.grid import format_moment, shown

Point = tuple[int, float | None]
"""Time in milliseconds, value; None where it is not known."""
SERIES_MAX = 8
GRID_LINES = 3
WIDTH, HEIGHT = 720, 140
STRIP_HEIGHT = 48


def sparkline(points: Sequence[Point], *, width: int = 96, height: int = 24) -> Markup:
    """The shape of a curve, without axes; empty with fewer than two values."""
    values = [value for _, value in points if value is not None]
    if len(values) < 2:
        return Markup("")
    top = max(values) or 1.0
    path = _path(points, (0, width), (height - 1.5, 1.5), top)
    return Markup(  # noqa: S704 - numbers only
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'aria-hidden="true"><path class="line" d="{path}"/></svg>'
    )


def chart(series: Sequence[tuple[str, Sequence[Point]]], *, title: str, kind: str = "number") -> Markup:
    """Curves over time with three grid lines; the title and the last values are its description."""
    drawn = [(name, points) for name, points in series if len(points) > 1][:SERIES_MAX]
    values = [value for _, points in drawn for _, value in points if value is not None]
    if not values:
        return Markup("")
    top = _nice(max(values))
    parts, labels = [], []
    for step in range(GRID_LINES, -1, -1):
        y = HEIGHT * (1 - step / GRID_LINES)
        parts.append(f'<line class="rule" x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        value = top * step / GRID_LINES
        label = shown(round(value, 1), kind) if top < GRID_LINES else shown(round(value), "number")
        labels.append(f"<span>{escape(label)}</span>")
    times = [time_ms for _, points in drawn for time_ms, _ in points]
    span = (min(times), max(times))
    for number, (_, points) in enumerate(drawn):
        path = _path(points, (0, WIDTH), (HEIGHT, 0), top, span)
        if len(drawn) == 1:
            parts.append(f'<path class="area s{number}" d="{path} L{WIDTH} {HEIGHT} L0 {HEIGHT} Z"/>')
        parts.append(f'<path class="line s{number}" d="{path}"/>')
    ends = "".join(
        f'<time data-ms="{time_ms}" data-short>{format_moment(time_ms)[11:19]}</time>' for time_ms in span
    )
    last = "; ".join(f"{name} {shown(points[-1][1], kind)}" for name, points in drawn)
    return Markup(  # noqa: S704 - names are escaped
        f'<figure class="chart"><div class="up" aria-hidden="true">{"".join(labels)}</div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}: {escape(last)}" '
        f'preserveAspectRatio="none">{"".join(parts)}</svg><div class="along">{ends}</div></figure>'
    )


def share_bar(ratio: float | None, level: str = "") -> Markup:
    """A horizontal bar, 0.0 to 1.0."""
    if ratio is None:
        return Markup("")
    width = min(1.0, max(0.0, ratio)) * 64
    return Markup(  # noqa: S704 - numbers and our own word
        f'<svg class="bar {level}" viewBox="0 0 64 6" width="64" height="6" preserveAspectRatio="none" '
        'aria-hidden="true">'
        '<rect class="ground" width="64" height="6" rx="3"/>'
        f'<rect width="{width:.1f}" height="6" rx="3"/></svg>'
    )


def bars(rows: Sequence[tuple[str, float]], *, title: str) -> Markup:
    """A bar for each name, from 0 to the right; values below 0 have none."""
    top = max((value for _, value in rows), default=0.0)
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{share_bar(value / top if top > 0 else 0.0)}</td>'
        f"<td>{escape(shown(value, 'number'))}</td></tr>"
        for name, value in rows
    )
    return Markup(f'<table class="bars"><caption>{escape(title)}</caption>{lines}</table>')  # noqa: S704 - escaped


def strip(bars: Sequence[tuple[int, str, str]], *, title: str) -> Markup:
    """Counts over time as bars that are links: count, address, and what a bar says."""
    top = max((count for count, _, _ in bars), default=0) or 1
    step = WIDTH / max(1, len(bars))
    drawn = []
    for number, (count, href, text) in enumerate(bars):
        x, height = number * step, STRIP_HEIGHT * count / top
        drawn.append(
            f'<a href="{escape(href)}"><title>{escape(text)}</title>'
            f'<rect class="ground" x="{x:.1f}" width="{step:.1f}" height="{STRIP_HEIGHT}"/>'
            f'<rect x="{x + 1:.1f}" y="{STRIP_HEIGHT - height:.1f}" width="{step - 2:.1f}" '
            f'height="{height:.1f}"/></a>'
        )
    return Markup(  # noqa: S704 - escaped
        f'<svg class="strip-chart" viewBox="0 0 {WIDTH} {STRIP_HEIGHT}" preserveAspectRatio="none" '
        f'role="group" aria-label="{escape(title)}">{"".join(drawn)}</svg>'
    )


def _path(
    points: Sequence[Point],
    across: tuple[float, float],
    up: tuple[float, float],
    top: float,
    span: tuple[int, int] | None = None,
) -> str:
    first, last = span or (points[0][0], points[-1][0])
    length = (last - first) or 1
    words, is_down = [], False
    for time_ms, value in points:
        if value is None:
            is_down = False
            continue
        x = across[0] + (across[1] - across[0]) * (time_ms - first) / length
        y = up[0] + (up[1] - up[0]) * (value / top if top else 0.0)
        words.append(f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}")
        is_down = True
    return " ".join(words)


def _nice(value: float) -> float:
    """The next round number, which three grid lines divide."""
    if value <= 0:
        return 3.0
    step = 1.0
    while step * 10 < value:
        step *= 10
    while step > value:
        step /= 10
    for factor in (1.5, 3, 6, 9, 15):
        if step * factor >= value:
            return step * factor
    return value


# --- The map of a cluster ---


@dataclass(frozen=True, slots=True)
class MapBox:
    """A box of the map. `key` is unique in its column; `level` colours its dot."""

    key: str
    title: str
    note: str = ""
    level: str = "off"
    href: str = ""


MAP_WIDTH = 1136
BOX_WIDTH, BOX_HEIGHT, BOX_STEP = 212, 44, 56
TITLE_CHARS_MAX = 25


def cluster_map(
    columns: Sequence[tuple[str, Sequence[MapBox]]], links: Iterable[tuple[int, str, str]]
) -> Markup:
    """Columns of boxes with headings, and links from a box of a column to one of the next."""
    gap = (MAP_WIDTH - len(columns) * BOX_WIDTH) / max(len(columns) - 1, 1)
    height = 32 + BOX_STEP * max((len(boxes) for _, boxes in columns), default=1)
    places: dict[tuple[int, str], tuple[float, float]] = {}
    drawn = []
    for number, (heading, boxes) in enumerate(columns):
        x = number * (BOX_WIDTH + gap)
        drawn.append(f'<text class="heading" x="{x:.0f}" y="14">{escape(heading)}</text>')
        for row, box in enumerate(boxes):
            y = 32 + row * BOX_STEP
            places[number, box.key] = (x, y + BOX_HEIGHT / 2)
            drawn.append(_box(box, x, y))
    lines = []
    for number, left, right in links:
        start, end = places.get((number, left)), places.get((number + 1, right))
        if start is not None and end is not None:
            x1, x2 = start[0] + BOX_WIDTH, end[0]
            middle = (x1 + x2) / 2
            lines.append(
                f'<path class="link" d="M{x1:.0f} {start[1]:.0f} C{middle:.0f} {start[1]:.0f} '
                f'{middle:.0f} {end[1]:.0f} {x2:.0f} {end[1]:.0f}"/>'
            )
    return Markup(  # noqa: S704 - names are escaped
        f'<svg class="map" viewBox="0 0 {MAP_WIDTH} {height}" width="{MAP_WIDTH}" height="{height}">'
        f"{''.join(lines)}{''.join(drawn)}</svg>"
    )


def _box(box: MapBox, x: float, y: float) -> str:
    title = box.title if len(box.title) <= TITLE_CHARS_MAX else f"{box.title[: TITLE_CHARS_MAX - 1]}…"
    inside = (
        f'<rect x="{x:.0f}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>'
        f'<circle class="{escape(box.level)}" cx="{x + 14:.0f}" cy="{y + 15}" r="3.5"/>'
        f'<text class="name" x="{x + 26:.0f}" y="{y + 19}">{escape(title)}</text>'
        f'<text class="note" x="{x + 26:.0f}" y="{y + 35}">{escape(box.note)}</text>'
    )
    if not box.href:
        return f"<g>{inside}</g>"
    return f'<a href="{escape(box.href)}"><title>{escape(box.title)}</title>{inside}</a>'
