"""`skylark offset`: committed offsets of groups: list, reset, skip, clone."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.errors import UsageError
from skylark.cli.options import (
    NAMESRV,
    AsJson,
    Group,
    Namesrv,
    Topic,
    Yes,
    complete_topic,
    confirm,
    connected,
    parse_queue,
    parsed,
    tabular,
)
from skylark.cli.output import Listing, Screen, done, show
from skylark.quantities import PAST_TIME_HELP, parse_time_ms

if TYPE_CHECKING:
    from skylark.admin.admin import Admin
    from skylark.admin.offsets import Reset
    from skylark.admin.results import Failures
    from skylark.protocol.bodies import MessageQueue

app = typer.Typer(no_args_is_help=True, help="Offsets of groups: list, reset, skip, clone.")

BEGIN_MS = 0
END_MS = -1
COLUMNS = ("broker", "queue", "old", "new", "change")
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the old and the new offsets.")]


@app.command("list")
@tabular
def list_offsets(group: Group, topic: Topic, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show the committed offset of a group in each queue of a topic.

    Example: skylark offset list billing orders
    """
    with connected(namesrv) as admin:
        found = admin.offsets.committed(group, topic)
    rows = [(queue.broker_name, queue.queue_id, at) for queue, at in sorted(found.items())]
    show(Listing(("broker", "queue", "committed"), rows), as_json=as_json)


@app.command()
@tabular
def reset(
    group: Group,
    topic: Topic,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help=f"begin, end, now, or a time: {PAST_TIME_HELP}."),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", metavar="BROKER:ID", help="Only this queue, with --offset.")
    ] = None,
    queue_offset: Annotated[
        int | None, typer.Option("--offset", min=0, help="An offset in the --queue.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Reset a group, online or not, to a time in all queues of a topic, or to an offset in one.

    Shows the old and the new offset of each queue.

    Examples: skylark offset reset billing orders --to 30m --dry-run

    skylark offset reset billing orders --queue broker-a:0 --offset 1000 --yes
    """
    from skylark.protocol.bodies import MessageQueue  # noqa: PLC0415

    if (to is None) == (queue is None) or (queue is None) != (queue_offset is None):
        raise UsageError("pass either --to TIME, or --queue BROKER:ID with --offset N")
    with connected(namesrv) as admin:
        if to is not None:
            time_ms = _time_ms(to)
            change = _to_time(admin, group, topic, time_ms)
            if _is_wanted(change, f"Reset group {group} to {to}?", dry_run=dry_run, yes=yes, as_json=as_json):
                made = change.done(admin.offsets.reset(group, topic, time_ms))
                _show(change, made, yes=yes, as_json=as_json)
            return
        assert queue is not None
        assert queue_offset is not None
        target = MessageQueue(topic, *parse_queue(queue))
        old = admin.offsets.committed(group, topic)
        if target not in old:
            raise UsageError(f"topic {topic} has no queue {queue}; `skylark topic status {topic}` lists them")
        change = OffsetChange(group, topic, {target: old[target]}, {target: queue_offset})
        question = f"Reset group {group} to {queue_offset}?"
        if _is_wanted(change, question, dry_run=dry_run, yes=yes, as_json=as_json):
            admin.offsets.reset_queue(group, target, queue_offset)
            _show(change, change, yes=yes, as_json=as_json)


@app.command()
@tabular
def skip(
    group: Group,
    topic: Topic,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Skip all messages of a topic that a group has not consumed yet.

    Example: skylark offset skip billing orders --yes
    """
    with connected(namesrv) as admin:
        change = _to_time(admin, group, topic, END_MS)
        question = f"Skip all unconsumed messages for group {group}?"
        if _is_wanted(change, question, dry_run=dry_run, yes=yes, as_json=as_json):
            _show(change, change.done(admin.offsets.skip(group, topic)), yes=yes, as_json=as_json)


@app.command()
def clone(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The group with offsets.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The group that gets them.")],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only this topic.", autocompletion=complete_topic)
    ] = None,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Copy the offsets of a group to another one, in one topic or in all. Asks if the other one has offsets.

    Example: skylark offset clone billing billing-2 --yes
    """
    with connected(namesrv) as admin:
        overwritten = set(admin.groups.topics(target)) & set(admin.groups.topics(source))
        if topic is not None:
            overwritten &= {topic}
        if overwritten:
            confirm(f"Overwrite the offsets of group {target} in {', '.join(sorted(overwritten))}?", yes=yes)
        topics = admin.offsets.clone(source, target, topic)
    if not topics:
        raise UsageError(f"group {source} has no offsets{f' in topic {topic}' if topic else ''}")
    sentence = f"offsets of group {source} copied to {target} in {', '.join(topics)}"
    done(sentence, {"from": source, "to": target, "topics": topics}, as_json=as_json)


@dataclass(frozen=True)
class OffsetChange:
    """Old and new offsets of a group, by queue; an old one is None where the group has none."""

    group: str
    topic: str
    old: Mapping[MessageQueue, int | None]
    new: Mapping[MessageQueue, int]
    failures: Failures = field(default_factory=dict)

    def done(self, reset: Reset) -> OffsetChange:
        """With the offsets that brokers have set."""
        return replace(self, new=reset.offsets, failures=reset.failures)

    def listing(self) -> Listing:
        rows = []
        for queue, new in sorted(self.new.items()):
            old = self.old.get(queue)
            rows.append((queue.broker_name, queue.queue_id, old, new, None if old is None else new - old))
        moves = [row[-1] or 0 for row in rows]
        facts = [
            ("group", self.group),
            ("topic", self.topic),
            ("skipped", sum(move for move in moves if move > 0)),
            ("again", -sum(move for move in moves if move < 0)),
        ]
        return Listing(COLUMNS, rows, facts, self.failures, items="queues")


def _to_time(admin: Admin, group: str, topic: str, time_ms: int) -> OffsetChange:
    """What a reset to a time would do."""
    planned = admin.offsets.preview(group, topic, time_ms)
    return OffsetChange(group, topic, planned.old, planned.new)


def _is_wanted(change: OffsetChange, question: str, *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Show the change and ask, unless it is confirmed. False for a dry run."""
    if dry_run:
        change.listing().show(Screen(), as_json=as_json)
        if not as_json:
            Screen().line("nothing was changed")
        return False
    if not yes and sys.stdin.isatty():
        change.listing().show(Screen(), as_json=False)
    confirm(question, yes=yes)
    return True


def _show(planned: OffsetChange, done: OffsetChange, *, yes: bool, as_json: bool) -> None:
    """The change, or that it was done as it was shown with the question."""
    if yes or as_json or done != planned:
        show(done.listing(), as_json=as_json)
    else:
        Screen().line("done")


def _time_ms(text: str) -> int:
    if text in ("begin", "end"):
        return BEGIN_MS if text == "begin" else END_MS
    return parsed(parse_time_ms, text, "--to", round(time.time() * 1000))
