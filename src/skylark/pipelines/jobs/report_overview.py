"""Pure. The top of a report: a verdict in words, and totals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from skylark.html_report import HtmlReport, Total, Verdict
from skylark.pipelines.jobs.consumer_groups import GroupStanding


@dataclass(slots=True, kw_only=True)
class Figures:
    """What the sections of a report have found."""

    topics: list[str]
    messages: int = 0
    body_bytes: int = 0
    body_bytes_max: int = 0
    oldest: str | None = None
    newest: str | None = None
    span_ms: int = 0
    """Between the first and the last message."""
    queue_columns: list[str] = field(default_factory=list)
    queue_rows: list[list[Any]] = field(default_factory=list)
    peak_per_s: float = 0.0
    delay_stage: str = ""
    delay_p99_ms: int | None = None
    retries: int = 0
    dead_letters: int = 0
    """Dead letters of these topics, counted in the messages; `standings` has those of other topics, too."""
    duplicates: int = 0
    standings: list[GroupStanding] = field(default_factory=list)


def overview(figures: Figures) -> HtmlReport:
    """A page with verdict and totals, without sections."""
    return HtmlReport("", "", [], _verdict(figures), list(_totals(figures)))


def _verdict(figures: Figures) -> Verdict:
    if not figures.messages:
        return Verdict(False, "No messages", ["The topics hold no messages in this range."])
    concerns = list(_concerns(figures))
    if concerns:
        title = "One thing to look at" if len(concerns) == 1 else f"{len(concerns)} things to look at"
        return Verdict(False, title, concerns)
    if not figures.standings:
        unknown = "No consumer group is known for these topics."
        return Verdict(True, f"{figures.messages:,} messages, none sent twice", [unknown])
    names = ", ".join(standing.group for standing in figures.standings)
    told = [f"{names} consumed all {figures.messages:,} messages; nothing waits."]
    if figures.dead_letters:
        letters = f"{figures.dead_letters:,} dead letters, which were sent again"
        told.append(f"There were {figures.retries:,} retries and {letters}.")
    elif figures.retries:
        told.append(f"There were {figures.retries:,} retries.")
    return Verdict(True, "Everything was consumed", told)


def _concerns(figures: Figures) -> Iterator[str]:
    for each in figures.standings:
        if each.lag:
            yield f"Group {each.group} is {each.lag:,} messages behind."
        if each.retries_waiting:
            yield f"{each.retries_waiting:,} retries of group {each.group} wait."
        if each.dead_letters_waiting:
            yield (
                f"{each.dead_letters_waiting:,} dead letters of group {each.group} wait: "
                f"skylark dlq show {each.group}"
            )
    if figures.duplicates:
        yield f"{figures.duplicates:,} messages were sent twice."


def _totals(figures: Figures) -> Iterator[Total]:
    yield Total("messages", f"{figures.messages:,}")
    yield Total("of bodies", format_bytes(figures.body_bytes))
    if figures.messages:
        yield Total("from first to last", format_ms(figures.span_ms))
        peak = figures.peak_per_s
        yield Total("per second at peak", f"{peak:,.0f}" if peak >= 10 else f"{peak:.1f}")
    if figures.delay_p99_ms is not None:
        yield Total(f"{figures.delay_stage} (p99)", format_ms(figures.delay_p99_ms))
    yield Total("retries", f"{figures.retries:,}")
    yield Total("dead letters", f"{figures.dead_letters:,}")
    if figures.standings:
        yield Total("lag of all groups", f"{sum(each.lag for each in figures.standings):,}")
    brokers = len({row[1] for row in figures.queue_rows})
    if brokers:
        queues = len(figures.queue_rows)
        yield Total(f"queues on {brokers} broker{'s' if brokers > 1 else ''}", f"{queues:,}")


def format_bytes(size: int) -> str:
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:,.1f} {unit}"
    return f"{size} B"


def format_ms(ms: int) -> str:
    for size, unit in ((86_400_000, "days"), (3_600_000, "h"), (60_000, "min"), (5000, "s")):
        if ms >= 2 * size:
            return f"{ms / (1000 if unit == 's' else size):,.1f} {unit}"
    return f"{ms:,} ms"
