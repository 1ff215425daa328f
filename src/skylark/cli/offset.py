"""`skylark offset`: committed offsets of groups: list, reset, skip, clone."""

from __future__ import annotations

import time
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
from skylark.cli.output import Listing, done, show
from skylark.quantities import PAST_TIME_HELP, parse_time_ms

if TYPE_CHECKING:
    from skylark.admin.offsets import Reset

app = typer.Typer(no_args_is_help=True, help="Offsets of groups: list, reset, skip, clone.")

BEGIN_MS = 0
END_MS = -1
COLUMNS = ("broker", "queue", "offset")


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
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Reset a group, online or not, to a time in all queues of a topic, or to an offset in one.

    Examples: skylark offset reset billing orders --to 30m --yes

    skylark offset reset billing orders --queue broker-a:0 --offset 1000 --yes
    """
    from skylark.protocol.bodies import MessageQueue  # noqa: PLC0415

    if (to is None) == (queue is None) or (queue is None) != (queue_offset is None):
        raise UsageError("pass either --to TIME, or --queue BROKER:ID with --offset N")
    if to is not None:
        time_ms = _time_ms(to)
        confirm(f"Reset group {group} to {to} in topic {topic}?", yes=yes)
        with connected(namesrv) as admin:
            _show(admin.offsets.reset(group, topic, time_ms), as_json=as_json)
        return
    assert queue is not None
    assert queue_offset is not None
    broker, queue_id = parse_queue(queue)
    confirm(f"Reset group {group} to {queue_offset} in queue {queue} of topic {topic}?", yes=yes)
    with connected(namesrv) as admin:
        admin.offsets.reset_queue(group, MessageQueue(topic, broker, queue_id), queue_offset)
    show(Listing(COLUMNS, [(broker, queue_id, queue_offset)]), as_json=as_json)


@app.command()
@tabular
def skip(
    group: Group, topic: Topic, yes: Yes = False, namesrv: Namesrv = NAMESRV, as_json: AsJson = False
) -> None:
    """Skip all messages of a topic that a group has not consumed yet.

    Example: skylark offset skip billing orders --yes
    """
    confirm(f"Skip all unconsumed messages of topic {topic} for group {group}?", yes=yes)
    with connected(namesrv) as admin:
        _show(admin.offsets.skip(group, topic), as_json=as_json)


@app.command()
def clone(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The group with offsets.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The group that gets them.")],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only this topic.", autocompletion=complete_topic)
    ] = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Copy the offsets of a group to another one, in one topic or in all.

    Example: skylark offset clone billing billing-2
    """
    with connected(namesrv) as admin:
        topics = admin.offsets.clone(source, target, topic)
    if not topics:
        raise UsageError(f"group {source} has no offsets{f' in topic {topic}' if topic else ''}")
    sentence = f"offsets of group {source} copied to {target} in {', '.join(topics)}"
    done(sentence, {"from": source, "to": target, "topics": topics}, as_json=as_json)


def _show(reset: Reset, *, as_json: bool) -> None:
    rows = [(queue.broker_name, queue.queue_id, at) for queue, at in reset.offsets.items()]
    facts = [("group", reset.group), ("topic", reset.topic)]
    show(Listing(COLUMNS, rows, facts, reset.failures, items="queues"), as_json=as_json)


def _time_ms(text: str) -> int:
    if text in ("begin", "end"):
        return BEGIN_MS if text == "begin" else END_MS
    return parsed(parse_time_ms, text, "--to", round(time.time() * 1000))
