"""`skylark offset`: where groups stand, and moving them."""

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
)
from skylark.cli.output import Listing, done, show
from skylark.cli.times import TIME_HELP, parse_time

if TYPE_CHECKING:
    from skylark.admin.offsets import Reset

app = typer.Typer(no_args_is_help=True, help="Offsets of groups: read, reset, skip, clone.")

BEGIN_MS = 0
END_MS = -1
COLUMNS = ("broker", "queue", "offset")


@app.command("list")
def list_offsets(group: Group, topic: Topic, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show what a group has committed in each queue of a topic.

    Example: skylark offset list billing orders
    """
    with connected(namesrv) as admin:
        found = admin.offsets.committed(group, topic)
    rows = [(queue.broker_name, queue.queue_id, at) for queue, at in sorted(found.items())]
    show(Listing(("broker", "queue", "committed"), rows), as_json=as_json)


@app.command()
def reset(
    group: Group,
    topic: Topic,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help=f"begin, end, now, or a time: {TIME_HELP}.")
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
    """Send a group, online or not, to a time in all queues of a topic, or to an offset in one.

    Examples: skylark offset reset billing orders --to 30m --yes

    skylark offset reset billing orders --queue broker-a:0 --offset 1000 --yes
    """
    from skylark.protocol.bodies import MessageQueue  # noqa: PLC0415

    if (to is None) == (queue is None) or (queue is None) != (queue_offset is None):
        raise UsageError("say either --to TIME, or --queue BROKER:ID with --offset N")
    if to is not None:
        time_ms = _time_ms(to)
        confirm(f"Send group {group} to {to} in topic {topic}?", yes=yes)
        with connected(namesrv) as admin:
            _show(admin.offsets.reset(group, topic, time_ms), as_json=as_json)
        return
    assert queue is not None
    assert queue_offset is not None
    broker, queue_id = parse_queue(queue)
    confirm(f"Send group {group} to {queue_offset} in queue {queue} of topic {topic}?", yes=yes)
    with connected(namesrv) as admin:
        admin.offsets.reset_queue(group, MessageQueue(topic, broker, queue_id), queue_offset)
    show(Listing(COLUMNS, [(broker, queue_id, queue_offset)]), as_json=as_json)


@app.command()
def skip(
    group: Group, topic: Topic, yes: Yes = False, namesrv: Namesrv = NAMESRV, as_json: AsJson = False
) -> None:
    """Let a group skip all messages of a topic that it has not consumed yet.

    Example: skylark offset skip billing orders --yes
    """
    confirm(f"Let group {group} skip all that waits in topic {topic}?", yes=yes)
    with connected(namesrv) as admin:
        _show(admin.offsets.skip(group, topic), as_json=as_json)


@app.command()
def clone(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The group that has offsets.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The group that is to begin there.")],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only this topic.", autocompletion=complete_topic)
    ] = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Let a group begin where another one stands, in one topic or in all.

    Example: skylark offset clone billing billing-2
    """
    with connected(namesrv) as admin:
        topics = admin.offsets.clone(source, target, topic)
    if not topics:
        raise UsageError(f"group {source} has no offsets{f' in topic {topic}' if topic else ''}")
    sentence = f"group {target} stands where {source} does in {', '.join(topics)}"
    done(sentence, {"from": source, "to": target, "topics": topics}, as_json=as_json)


def _show(reset: Reset, *, as_json: bool) -> None:
    rows = [(queue.broker_name, queue.queue_id, at) for queue, at in reset.offsets.items()]
    facts = [("group", reset.group), ("topic", reset.topic)]
    show(Listing(COLUMNS, rows, facts, reset.failures, items="queues"), as_json=as_json)


def _time_ms(text: str) -> int:
    if text in ("begin", "end"):
        return BEGIN_MS if text == "begin" else END_MS
    return parse_time(text, "--to", round(time.time() * 1000))


def parse_queue(text: str) -> tuple[str, int]:
    """The broker and the number of a queue, from BROKER:ID. Raises Mistake."""
    broker, colon, number = text.rpartition(":")
    if not colon or not broker or not number.isdecimal():
        raise UsageError(f"queue {text}: BROKER:ID is expected, such as broker-a:0")
    return broker, int(number)
