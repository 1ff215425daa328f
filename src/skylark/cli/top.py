"""`skylark top`: brokers, topics and groups on one screen, with rates between two samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from skylark.cli.group import named_groups
from skylark.cli.options import EVERY_S, NAMESRV, AsJson, Every, Namesrv, connected, in_parallel
from skylark.cli.output import Listing, Rate, Rates, Screen, Share, clean, counted, format_time, print_json
from skylark.cli.topic import named_topics
from skylark.errors import RocketMQError
from skylark.model.names import retry_topic

if TYPE_CHECKING:
    from skylark.admin.admin import Admin
    from skylark.admin.results import ClusterSummary, TopicStats

ROWS = 15
TOPICS_MAX = 500
"""Each takes requests for every sample."""
BROKER_COLUMNS = ("broker", "id", "address", "in/s", "out/s", "in today", "out today", "disk")
TOPIC_COLUMNS = ("topic", "messages", "in/s")
GROUP_COLUMNS = ("group", "topics", "lag", "retrying", "dead letters", "in flight", "out/s")


def top(
    once: Annotated[bool, typer.Option("--once", help="Take two samples, print, exit.")] = False,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, help="Number of topics and groups.")] = ROWS,
    every: Every = EVERY_S,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Watch the whole system: brokers, topics, groups, rates and lag.

    The busiest topics come first, and the groups that are furthest behind.

    Examples: skylark top

    skylark top --once --json
    """
    screen, view = Screen(), View(rows)
    with connected(namesrv) as admin:
        try:
            if once or not screen.out.is_terminal:
                view.tables(sample(admin))
                time.sleep(every)
                _print(view, sample(admin), screen, namesrv, as_json=as_json)
            elif as_json:
                while True:
                    print_json(view.document(sample(admin)))
                    time.sleep(every)
            else:
                _live(view, lambda: sample(admin), screen, namesrv, every)
        except KeyboardInterrupt:
            return


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group over all brokers."""

    name: str
    topics: tuple[str, ...]
    committed: int
    lag: int
    """With `retrying`, its part in the retry topic."""
    retrying: int
    dead_letters: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the system at one time. `failures` are sentences."""

    time_ms: int
    monotonic_s: float
    summary: ClusterSummary
    topics: tuple[TopicStats, ...]
    topic_count: int
    groups: tuple[GroupState, ...]
    failures: tuple[str, ...]


def sample(admin: Admin) -> Sample:
    """Ask all servers once. Raises RemotingError if no name server answers."""
    summary = admin.brokers.summary()
    names = named_topics(admin)
    asked = in_parallel(lambda name: _stats(admin, name), names[:TOPICS_MAX])
    groups, failures = _groups(admin, summary)
    known = set(named_groups(admin))
    return Sample(
        time_ms=round(time.time() * 1000),
        monotonic_s=time.monotonic(),
        summary=summary,
        topics=tuple(stats for stats in asked if stats is not None),
        topic_count=len(names),
        groups=tuple(state for state in groups if state.name in known),
        failures=failures,
    )


def _stats(admin: Admin, name: str) -> TopicStats | None:
    try:
        return admin.topics.stats(name)
    except RocketMQError:
        return None  # deleted meanwhile, or its brokers do not answer, which the summary reports


def _groups(admin: Admin, summary: ClusterSummary) -> tuple[list[GroupState], tuple[str, ...]]:
    """All groups that have offsets or dead letters, with one request to each master."""
    tables: dict[str, list[tuple[str, int, int, int]]] = {}
    failures: list[str] = []
    for broker in summary.brokers:
        if not broker.node.is_master:
            continue
        try:
            found = admin.brokers.consume_stats(broker.node.address)
        except RocketMQError as error:
            failures.append(f"no groups from {broker.node.name}: {error}")
            continue
        for groups in found.consume_stats_list:
            for name, parts in groups.items():
                for part in parts:
                    tables.setdefault(name, []).extend(
                        (queue.topic, at.consumer_offset, at.broker_offset, at.pull_offset)
                        for queue, at in part.offset_table.items()
                    )
    try:
        dead_letters = admin.dead_letters.counts()
    except RocketMQError as error:
        failures.append(f"dead letters are not counted: {error}")
        dead_letters = {}
    for name in dead_letters:
        tables.setdefault(name, [])
    states = [
        GroupState(
            name,
            tuple(sorted({topic for topic, *_ in rows if not topic.startswith("%")})),
            committed=sum(done for _, done, _, _ in rows),
            lag=sum(end - done for _, done, end, _ in rows),
            retrying=sum(end - done for topic, done, end, _ in rows if topic == retry_topic(name)),
            dead_letters=dead_letters[name].waiting if name in dead_letters else 0,
            in_flight=sum(max(pulled - done, 0) for _, done, _, pulled in rows),
        )
        for name, rows in sorted(tables.items())
    ]
    return states, tuple(failures)


class View:
    """The three tables, with rates since the previous sample."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._rates = Rates()

    def tables(self, now: Sample) -> tuple[Listing, Listing, Listing]:
        brokers = [
            (
                item.node.name, item.node.broker_id, item.node.address, Rate(item.puts_per_s),
                Rate(item.gets_per_s), item.puts_today, item.gets_today, Share(item.disk_used_ratio),
            )
            for item in now.summary.brokers
        ]  # fmt: skip
        topics = [(stats.topic, stats.messages, self._topic_rate(stats, now)) for stats in now.topics]
        topics.sort(key=lambda row: (-(row[2].per_s or 0.0), -row[1], row[0]))
        groups = [
            (
                state.name, state.topics, state.lag, state.retrying, state.dead_letters, state.in_flight,
                self._rates.per_s(("group", state.name), state.committed, now.monotonic_s),
            )
            for state in now.groups
        ]  # fmt: skip
        groups.sort(key=lambda row: (-row[2], -(row[6].per_s or 0.0), row[0]))
        return (
            Listing(BROKER_COLUMNS, brokers, failures=now.summary.failures),
            Listing(TOPIC_COLUMNS, topics[: self._rows_max]),
            Listing(GROUP_COLUMNS, groups[: self._rows_max], long=("topics",)),
        )

    def _topic_rate(self, stats: TopicStats, now: Sample) -> Rate:
        end = sum(part.end for part in stats.queues)
        return self._rates.per_s(("topic", stats.topic), end, now.monotonic_s)

    def document(self, now: Sample) -> dict[str, object]:
        brokers, topics, groups = self.tables(now)
        return {
            "time_ms": now.time_ms,
            "brokers": Listing(brokers.columns, brokers.rows).document(),
            "topics": topics.document(),
            "groups": groups.document(),
            "failures": [*brokers.failure_sentences(), *now.failures],
        }

    def renderable(self, now: Sample, screen: Screen, namesrv: str) -> RenderableType:
        listings = self.tables(now)
        counts = ", ".join(
            (
                counted(len(now.summary.brokers), "broker", "brokers"),
                counted(now.topic_count, "topic", "topics"),
                counted(len(now.groups), "group", "groups"),
            )
        )
        head = Text(f"skylark top  {namesrv}  {format_time(now.time_ms)[:19]}  {counts}", style="bold")
        failures = [Text(clean(text), style="yellow") for text in now.failures]
        parts: list[RenderableType] = [head]
        for listing in listings:
            if listing.rows or listing.failures:
                parts += [Text(), listing.renderable(screen)]
        return Group(*parts, *failures)


def _print(view: View, now: Sample, screen: Screen, namesrv: str, *, as_json: bool) -> None:
    if as_json:
        print_json(view.document(now))
    elif screen.out.is_terminal:
        screen.out.print(view.renderable(now, screen, namesrv))
    else:
        for number, listing in enumerate(view.tables(now)):
            if number:
                screen.line()
            listing.show(screen, as_json=False)


def _live(view: View, ask: Callable[[], Sample], screen: Screen, namesrv: str, every_s: float) -> None:
    """Raises RocketMQError if the first sample fails; later failures are shown on the screen."""
    from rich.live import Live  # noqa: PLC0415

    shown = view.renderable(ask(), screen, namesrv)
    with Live(console=screen.out, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        while True:
            live.update(shown, refresh=True)
            time.sleep(every_s)
            try:
                shown = view.renderable(ask(), screen, namesrv)
            except RocketMQError as error:
                shown = Text(f"skylark: {clean(str(error))}", style="yellow")
