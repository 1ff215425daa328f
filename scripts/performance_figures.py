"""Figures in the sentences of docs/performance.md, from the page's own tables.

A figure stands between `<!-- figure: NAME -->` and `<!-- end -->`, so that no sentence says another number
than the table below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

Table = Mapping[str, list[str]]
"""The cells of a row by its first one, without marks of bold."""

NUMBER = re.compile(r"\d[\d,]*\.?\d*")
OURS, APACHE = 0, 1
OUR_WAITS, APACHE_WAITS, TIMES = 2, 3, 6
"""Columns of the table beside Apache, after the first."""
SYNC_MANY = ("synchronous flush, 64", "synchronous flush, 1,024")
WAITS_P50, WAITS_P99, WAITS_P999 = 0, 1, 2
PLAIN_BATCHES = r"batches of \d+, (?=1)"
"""Not those to BatchCQ topics."""


def parsed(text: str) -> Table:
    """A table as it stands on the page, with whatever is above it."""
    _, *lines = [line for line in text.replace("**", "").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def numbers(cell: str) -> list[float]:
    """All that a cell says: `0.592 / 4.78` are two."""
    return [float(found.replace(",", "")) for found in NUMBER.findall(cell)]


VOID = "(not measured)"
"""What a sentence says where its table has no such row, or no number in it: somebody has to rewrite it."""


def short(value: float) -> str:
    """As many digits as the tables have of ratios."""
    return f"{value:.3g}"


def between(values: Iterable[float]) -> str:
    """`1.9 to 2.2`, or one of them if they look alike."""
    lowest, *_, highest = sorted(values) * 2
    texts = dict.fromkeys((short(lowest), short(highest)))
    return " to ".join(texts)


# --- Beside Apache ---


def _times(table: Table, *words: str) -> list[float]:
    """How many times Apache's rate ours is, in rows that begin so: `words` are regular expressions."""
    return [
        numbers(cells[TIMES])[0]
        for name, cells in table.items()
        if any(re.match(word, name) for word in words) and numbers(cells[TIMES])
    ]


def lower_p99(table: Table) -> str:
    """In how many of the cells ours is the lower 99th percentile."""
    pairs = [
        (numbers(cells[OUR_WAITS])[WAITS_P99], numbers(cells[APACHE_WAITS])[WAITS_P99])
        for cells in table.values()
        if len(cells) > TIMES and all(len(numbers(cells[at])) > 1 for at in (OUR_WAITS, APACHE_WAITS))
    ]
    return f"{sum(ours < theirs for ours, theirs in pairs)} of {len(pairs)}"


def lost(table: Table) -> str:
    """The cells in which Apache's rate is higher."""
    names = [name for name, cells in table.items() if (times := numbers(cells[TIMES])) and times[0] < 1]
    return "; ".join(names) or "none"


def small_batch(table: Table, column: int) -> str:
    """The median wait for batches of small messages to a plain topic."""
    (row,) = [cells for name, cells in table.items() if re.fullmatch(PLAIN_BATCHES + "128 B", name)]
    return short(numbers(row[column])[WAITS_P50])


# --- Beside all ---


def ratio(table: Table, begin: str, *, ours_first: bool = False, at: int = 0) -> str:
    """Of the row that begins so: Apache's by ours, or ours by Apache's; its figure number `at`."""
    (row,) = [cells for name, cells in table.items() if name.startswith(begin)]
    ours, theirs = numbers(row[OURS])[at], numbers(row[APACHE])[at]
    return short(ours / theirs if ours_first else theirs / ours)


def consumed_times(table: Table) -> str:
    """How many times the rate that Java's consumer has at Apache's broker it has at ours, over all bodies."""
    rows = [cells for name, cells in table.items() if name.startswith("a backlog")]
    return between(numbers(cells[OURS])[0] / numbers(cells[APACHE])[0] for cells in rows)


def topics_share(table: Table) -> str:
    """Of the rate of one topic, once all files are there."""
    (row,) = [cells for name, cells in table.items() if name.endswith(" 10000 topics")]
    return f"{numbers(row[-1])[0]:.2f}"


FIGURES: dict[str, tuple[str, Callable[[Table], str]]] = {
    "send-times": (
        "apache",
        lambda table: between(_times(table, "1 in", "64 in", "1,024 in", "synchronous flush")),
    ),
    "whole-many-times": (
        "apache-whole",
        lambda table: between(_times(table, "64 in flight", "1,024 in flight", *SYNC_MANY)),
    ),
    "whole-lone-times": ("apache-whole", lambda table: between(_times(table, "1 in flight"))),
    "whole-lone-sync-times": (
        "apache-whole",
        lambda table: between(_times(table, "synchronous flush, 1 in flight")),
    ),
    "whole-batch-times": ("apache-whole", lambda table: between(_times(table, PLAIN_BATCHES))),
    "whole-pull-times": ("apache-whole", lambda table: between(_times(table, "pulls of 32, backlog"))),
    "whole-lost": ("apache-whole", lost),
    "many-times": ("apache", lambda table: between(_times(table, "64 in flight", "1,024 in flight"))),
    "pull-times": ("apache", lambda table: between(_times(table, "pulls of 32, backlog"))),
    "lone-times": ("apache", lambda table: between(_times(table, "1 in flight"))),
    "lone-sync-times": ("apache", lambda table: between(_times(table, "synchronous flush, 1 in flight"))),
    "batch-times": ("apache", lambda table: between(_times(table, PLAIN_BATCHES))),
    "batch-p50": ("apache", lambda table: small_batch(table, OUR_WAITS)),
    "batch-p50-apache": ("apache", lambda table: small_batch(table, APACHE_WAITS)),
    "p99-lower": ("apache", lower_p99),
    "java-batch-share": ("peers", lambda table: ratio(table, "batches of 32", ours_first=True)),
    "consumed-times": ("peers", consumed_times),
    "latency-share": ("peers", lambda table: ratio(table, "end to end", ours_first=True, at=WAITS_P999)),
    "start-times": ("peers", lambda table: ratio(table, "start")),
    "memory-share": ("peers", lambda table: ratio(table, "anonymous memory", ours_first=True, at=1)),
    "recover-times": ("peers", lambda table: ratio(table, "kill -9")),
    "topics-share": ("servers", topics_share),
}
"""By name: the table that tells it, and how."""
FIGURE = re.compile(r"(<!-- figure: (\S+) -->)(.*?)(<!-- end -->)")


def with_figures(page: str, tables: Mapping[str, str]) -> str:
    """The page with the figures that its tables tell, by their names. Raises KeyError for one not known."""

    def text(found: re.Match[str]) -> str:
        table, make = FIGURES[found[2]]
        try:
            figure = make(parsed(tables[table]))
        except (ValueError, IndexError):
            figure = VOID
        return found[1] + figure + found[4]

    return FIGURE.sub(text, page)
