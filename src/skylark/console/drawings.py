"""Pure. SVG drawings: sparklines, line charts, bars. Colours come from the style sheet's classes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

from skylark.console.grid import format_moment, shown

Point = tuple[int, float | None]
"""Time in milliseconds, value; None where it is not known."""
SERIES_MAX = 8
GRID_LINES = 3
WIDTH, HEIGHT, LEFT, BOTTOM = 720, 160, 52, 20


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
    parts = []
    for step in range(GRID_LINES + 1):
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 8) * step / GRID_LINES
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = escape(
            shown(
                round(top * step / GRID_LINES, 1) if top < GRID_LINES else round(top * step / GRID_LINES),
                kind,
            )
        )
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    times = [time_ms for _, points in drawn for time_ms, _ in points]
    span = (min(times), max(times))
    for number, (_, points) in enumerate(drawn):
        path = _path(points, (LEFT, WIDTH), (HEIGHT - BOTTOM, 8), top, span)
        if len(drawn) == 1:
            area = f"{path} L{WIDTH} {HEIGHT - BOTTOM} L{LEFT} {HEIGHT - BOTTOM} Z"
            parts.append(f'<path class="area s{number}" d="{area}"/>')
        parts.append(f'<path class="line s{number}" d="{path}"/>')
    for time_ms, x, anchor in ((span[0], LEFT, "start"), (span[1], WIDTH, "end")):
        text = format_moment(time_ms)[11:19]
        parts.append(
            f'<text x="{x}" y="{HEIGHT - 4}" text-anchor="{anchor}" data-ms="{time_ms}">{text}</text>'
        )
    last = "; ".join(f"{name} {shown(points[-1][1], kind)}" for name, points in drawn)
    return Markup(  # noqa: S704 - names are escaped
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}: {escape(last)}" preserveAspectRatio="none">{"".join(parts)}</svg>'
    )


def share_bar(ratio: float | None, level: str = "") -> Markup:
    """A horizontal bar, 0.0 to 1.0."""
    if ratio is None:
        return Markup("")
    width = min(1.0, max(0.0, ratio)) * 64
    return Markup(  # noqa: S704 - numbers and our own word
        f'<svg class="bar {level}" viewBox="0 0 64 6" width="64" height="6" aria-hidden="true">'
        '<rect class="ground" width="64" height="6" rx="3"/>'
        f'<rect width="{width:.1f}" height="6" rx="3"/></svg>'
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
