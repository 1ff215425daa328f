"""`skylark top`: brokers, topics, groups and jobs on one screen, with rates between two samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group

from skylark.cli.options import EVERY_S, EVERY_S_MIN, NAMESRV, AsJson, Namesrv, connected, in_parallel
from skylark.cli.output import Listing, Rate, Rates, Screen, Share, counted, format_time, print_json
from skylark.cli.spark import JOB_COLUMNS, job_rows
from skylark.cli.top_screen import TopScreen
from skylark.errors import RocketMQError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from skylark.admin.admin import Admin
    from skylark.admin.overview import GroupState
    from skylark.admin.results import ClusterSummary, ReplicaState, TopicStats
    from skylark.model.job_report import JobReport

ROWS = 15
KEYS_S = 0.1
"""How often the screen looks for an answer or a new size, between keys."""
TOPICS_MAX = 500
"""Each takes requests for every sample."""
JOBS_HISTORY_MS = 3_600_000
"""How long a job that has ended is shown."""
BROKER_COLUMNS = ("broker", "id", "address", "in/s", "out/s", "in today", "out today", "disk")
REPLICA_COLUMNS = ("epoch", "in sync")
"""Only where a controller chooses the masters."""
TOPIC_COLUMNS = ("topic", "messages", "in/s")
GROUP_COLUMNS = ("group", "topics", "lag", "retrying", "dead letters", "in flight", "out/s")


def top(
    once: Annotated[bool, typer.Option("--once", help="Take two samples, print, exit.")] = False,
    rows: Annotated[
        int, typer.Option("--rows", "-n", min=1, help="Number of topics and groups, if not on a screen.")
    ] = ROWS,
    every: Annotated[
        float, typer.Option("--every", min=EVERY_S_MIN, metavar="SECONDS", help="Time between two samples.")
    ] = EVERY_S,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Watch brokers, topics, groups and jobs, with rates and lag.

    The busiest topics come first, and the groups that are furthest behind. With a controller, brokers have
    the epoch of their master, and masters the ids of the replicas in sync. Keys: q quits, Tab chooses a
    table, left and right choose the column that it is sorted by, r reverses the order, up, down, PgUp, PgDn,
    Home and End scroll.

    Examples: skylark top --every 0.5

    skylark top --once --json
    """
    screen = Screen()
    with connected(namesrv) as admin:
        try:
            if as_json and screen.out.is_terminal and not once:
                view = View(rows)
                while True:
                    print_json(view.document(sample(admin)))
                    time.sleep(every)
            elif once or not screen.out.is_terminal:
                view = View(rows)
                view.tables(sample(admin))
                time.sleep(every)
                _print(view, sample(admin), screen, namesrv, as_json=as_json)
            else:
                _live(lambda: sample(admin), screen, namesrv, every)
        except KeyboardInterrupt:
            return


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the system at one time. `failures` are sentences."""

    time_ms: int
    monotonic_s: float
    summary: ClusterSummary
    topics: tuple[TopicStats, ...]
    topic_count: int
    groups: tuple[GroupState, ...]
    jobs: tuple[JobReport, ...]
    failures: tuple[str, ...]


def sample(admin: Admin) -> Sample:
    """Ask all servers once. Raises RemotingError if no name server answers."""
    summary = admin.brokers.summary()
    names = admin.overview.topic_names()
    asked = in_parallel(lambda name: _stats(admin, name), names[:TOPICS_MAX])
    states = admin.overview.group_states(summary)
    known = set(admin.overview.group_names())
    return Sample(
        time_ms=round(time.time() * 1000),
        monotonic_s=time.monotonic(),
        summary=summary,
        topics=tuple(stats for stats in asked if stats is not None),
        topic_count=len(names),
        groups=tuple(state for state in states.groups if state.name in known),
        jobs=tuple(admin.pipelines.jobs(history_ms=JOBS_HISTORY_MS)),
        failures=states.failures,
    )


def _stats(admin: Admin, name: str) -> TopicStats | None:
    try:
        return admin.topics.stats(name)
    except RocketMQError:
        return None  # deleted meanwhile, or its brokers do not answer, which the summary reports


class View:
    """The tables, with rates since the previous sample."""

    def __init__(self, rows_max: int | None = None) -> None:
        self._rows_max = rows_max
        self._rates = Rates()

    def tables(self, now: Sample) -> tuple[Listing, Listing, Listing, Listing]:
        with_replicas = any(item.replica is not None for item in now.summary.brokers)
        brokers = [
            (
                item.node.name, item.node.broker_id, item.node.address, Rate(item.puts_per_s),
                Rate(item.gets_per_s), item.puts_today, item.gets_today, Share(item.disk_used_ratio),
                *(_replica(item.replica) if with_replicas else ()),
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
            Listing(
                (*BROKER_COLUMNS, *REPLICA_COLUMNS) if with_replicas else BROKER_COLUMNS,
                brokers,
                failures=now.summary.failures,
            ),
            Listing(TOPIC_COLUMNS, topics[: self._rows_max]),
            Listing(JOB_COLUMNS, job_rows(now.jobs, now.time_ms)[: self._rows_max], long=("topics", "to")),
            Listing(GROUP_COLUMNS, groups[: self._rows_max], long=("topics",)),
        )

    def _topic_rate(self, stats: TopicStats, now: Sample) -> Rate:
        end = sum(part.end for part in stats.queues)
        return self._rates.per_s(("topic", stats.topic), end, now.monotonic_s)

    def document(self, now: Sample) -> dict[str, object]:
        brokers, topics, jobs, groups = self.tables(now)
        return {
            "time_ms": now.time_ms,
            "brokers": Listing(brokers.columns, brokers.rows).document(),
            "topics": topics.document(),
            "jobs": jobs.document(),
            "groups": groups.document(),
            "failures": [*brokers.failure_sentences(), *now.failures],
        }


def _replica(state: ReplicaState | None) -> tuple[int | None, str]:
    """The epoch, and the ids of the members in sync as their master says."""
    if state is None:
        return None, ""
    members = " ".join(map(str, state.members))
    return state.epoch, f"{members}, no controller answers" if state.is_lapsed else members


def headline(now: Sample, namesrv: str) -> str:
    counts = ", ".join(
        (
            counted(len(now.summary.brokers), "broker", "brokers"),
            counted(now.topic_count, "topic", "topics"),
            counted(len(now.groups), "group", "groups"),
        )
    )
    return f"skylark top  {namesrv}  {format_time(now.time_ms)[:19]}  {counts}"


def _print(view: View, now: Sample, screen: Screen, namesrv: str, *, as_json: bool) -> None:
    if as_json:
        print_json(view.document(now))
    else:
        if screen.out.is_terminal:
            screen.line(headline(now, namesrv), "bold")
        for number, listing in enumerate(view.tables(now)):
            if listing.columns is JOB_COLUMNS and not listing.rows:
                continue
            if number or screen.out.is_terminal:
                screen.line()
            listing.show(screen, as_json=False)
        for sentence in now.failures:
            screen.warn(sentence)


def _live(ask: Callable[[], Sample], screen: Screen, namesrv: str, every_s: float) -> None:
    """Draw until q is pressed. Keys are handled while servers are asked, in another thread.

    Raises RocketMQError if the first sample fails; later failures are shown on the screen.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    from rich.live import Live  # noqa: PLC0415

    from skylark.cli.keyboard import Keyboard  # noqa: PLC0415

    view, shown = View(), TopScreen()
    _take(shown, view, ask(), namesrv)
    asking: Future[Sample] | None = None
    next_at, drawn_size = time.monotonic() + every_s, None
    pool = ThreadPoolExecutor(1, thread_name_prefix="skylark-top")
    try:
        with Keyboard() as keyboard, Live(console=screen.out, auto_refresh=False, screen=True) as live:
            while True:
                if screen.out.size != drawn_size:
                    drawn_size = screen.out.size
                    live.update(Group(*shown.lines(screen, drawn_size.height)), refresh=True)
                for key in keyboard.read(min(every_s, KEYS_S)):
                    if not shown.press(key):
                        return
                    drawn_size = None
                if asking is not None and asking.done():
                    _take_answer(shown, view, asking, namesrv)
                    asking, drawn_size = None, None
                elif asking is None and time.monotonic() >= next_at:
                    asking, next_at = pool.submit(ask), time.monotonic() + every_s
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _take(shown: TopScreen, view: View, now: Sample, namesrv: str) -> None:
    brokers, topics, jobs, groups = view.tables(now)
    shown.head = headline(now, namesrv)
    shown.warnings = [*brokers.failure_sentences(), *now.failures]
    shown.show("Brokers", brokers, "broker")
    shown.show("Topics", topics, "in/s")
    shown.show("Jobs", jobs, "lag")
    shown.show("Groups", groups, "lag")


def _take_answer(shown: TopScreen, view: View, answer: Future[Sample], namesrv: str) -> None:
    """Keep the last tables if the servers did not answer, and say so."""
    try:
        _take(shown, view, answer.result(), namesrv)
    except RocketMQError as error:
        shown.warnings = [f"skylark: {error}"]
