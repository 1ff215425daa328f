"""`skylark message`: find stored messages, show their traces, have one consumed again."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli import message_text
from skylark.cli.errors import UsageError
from skylark.cli.options import (
    NAMESRV,
    AsJson,
    Group,
    Namesrv,
    Topic,
    complete_topic,
    connected,
    parse_queue,
    parsed,
    tabular,
)
from skylark.cli.output import Listing, Screen, When, print_json, show
from skylark.errors import NoRoute
from skylark.model.names import LAKE_NAMESPACE
from skylark.quantities import PAST_TIME_HELP, parse_time_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skylark.admin.admin import Admin
    from skylark.admin.messages import Found
    from skylark.client.received_message import ReceivedMessage
    from skylark.pipelines.history import TopicHistory

app = typer.Typer(no_args_is_help=True, help="Stored messages: find, trace, consume again.")

FOUND_MAX = 64
LISTED_MAX = 1000
TRACES_MAX = 1000
EXIT_NOTHING_FOUND = 1
Id = Annotated[str, typer.Argument(metavar="ID", help="The unique id or the offset id of a message.")]
Queue = Annotated[str, typer.Argument(metavar="BROKER:ID", help="A queue, such as broker-a:0.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help=f"Stored then or later: {PAST_TIME_HELP}.")
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Stored before; in the forms of --since.")
]
OF_LAKE = "lake"
HistoryTable = Annotated[
    str | None,
    typer.Option(
        "--history",
        metavar="TABLE",
        help="Archive of the topic, such as delta:DIR; lake: the table in which skylark lake archives it.",
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many.")]


@app.command()
@tabular
def get(
    place: Annotated[
        list[str],
        typer.Argument(
            metavar="[TOPIC] ID",
            help="The topic and the unique id of a message, or its offset id alone.",
            autocompletion=complete_topic,
        ),
    ],
    track: Annotated[bool, typer.Option("--track", help="Also show its state for each group.")] = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show one message by its unique id or offset id.

    An offset id needs no topic: it holds the address of the broker.

    Example: skylark message get orders 7F00000112340A2B5C8D1E000001F3A7 --track
    """
    *topics, message_id = place
    if len(topics) > 1:
        raise UsageError(f"{len(place)} arguments, but a topic and an id are wanted: {' '.join(place)}")
    with connected(namesrv) as admin:
        if topics:
            message = admin.messages.get(topics[0], message_id)
        else:
            _check_offset_id(message_id)
            message = admin.messages.by_offset_id(message_id)
        tracks = admin.messages.track(message) if track else []
    rows = [(item.group, item.state.value, str(item.error or "")) for item in tracks]
    _show_one(
        message,
        Listing(("group", "state", "error"), rows, long=("error",)) if track else None,
        as_json=as_json,
    )


def _show_one(message: ReceivedMessage, tracks: Listing | None, *, as_json: bool) -> None:
    from skylark.admin import message_json  # noqa: PLC0415 - not for `--help`

    if as_json:
        members = message_json.document(message)
        print_json(members if tracks is None else {**members, "groups": tracks.document()})
        return
    screen = Screen()
    screen.facts(message_text.facts(message))
    if screen.out.is_terminal:
        screen.out.print(message_text.pretty_body(message))
    else:
        screen.cells(("body", message_json.text_of(message)))
    if tracks is not None:
        screen.line()
        tracks.show(screen, as_json=False)


@app.command()
@tabular
def key(
    topic: Topic,
    wanted: Annotated[str, typer.Argument(metavar="KEY", help="A key, or with --unique a unique id.")],
    unique: Annotated[bool, typer.Option("--unique", help="Search by unique id.")] = False,
    since: Since = None,
    until: Until = None,
    limit: Limit = FOUND_MAX,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """List the messages with a key, newest first. Exit code 1 if there are none.

    Example: skylark message key orders order-4242
    """
    begin_ms, end_ms = _span(since, until)
    with connected(namesrv) as admin:
        if unique:
            found = admin.messages.by_unique_key(topic, wanted)
            chosen = [item for item in found.messages if begin_ms <= item.store_timestamp < end_ms]
            found = replace(found, messages=tuple(chosen[:limit]))
        else:
            found = admin.messages.by_key(topic, wanted, begin_ms=begin_ms, end_ms=end_ms, messages_max=limit)
    _show_found(found, as_json=as_json)


@app.command("list")
@tabular
def list_messages(
    topic: Topic,
    since: Since = None,
    until: Until = None,
    tags: Annotated[str, typer.Option("--tags", help="Such as 'created || paid'.")] = "*",
    limit: Limit = LISTED_MAX,
    history: HistoryTable = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """List messages by time, oldest first. Exit code 1 if there are none. `skylark tail` follows a topic.

    With --history messages that the brokers have deleted are listed, too, from the archive's table.

    Examples: skylark message list orders --since 10m --tags paid

    skylark message list orders --since 2026-03-01 --history lake
    """
    begin_ms, end_ms = _span(since, until)
    with connected(namesrv) as admin:
        if history is None:
            found = admin.messages.between(topic, begin_ms, end_ms, expression=tags, messages_max=limit)
        else:
            table = _archive(admin, topic, history)
            found = _between_with_archive(admin, table, topic, begin_ms, end_ms, tags, limit)
    _show_found(found, as_json=as_json)


def _archive(admin: Admin, topic: str, table: str) -> TopicHistory:
    """Raises UsageError, SettingsError."""
    from skylark.cli.spark_jobs import need_extra  # noqa: PLC0415 - not for `--help`

    need_extra()
    from skylark.pipelines.history import TopicHistory  # noqa: PLC0415 - needs the extra
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415

    address = admin.name_servers.get(LAKE_NAMESPACE, topic) if table == OF_LAKE else table
    if address is None:
        raise UsageError(f"no lake archives topic {topic}; name the table: --history delta:DIR")
    output = parse_output(address)
    return TopicHistory(output.kind, output.where)


def _between_with_archive(
    admin: Admin, history: TopicHistory, topic: str, begin_ms: int, end_ms: int, tags: str, limit: int
) -> Found:
    """Old messages from the table, the rest from the log, oldest first."""
    from skylark.admin.messages import Found  # noqa: PLC0415
    from skylark.pipelines.archived_messages import archived_between  # noqa: PLC0415

    ends = history.ends  # before the log is read: what is archived meanwhile is in both
    old = archived_between(history, topic, begin_ms, end_ms, expression=tags, maximum=limit)
    try:
        new = admin.messages.between(
            topic, begin_ms, end_ms, expression=tags, messages_max=limit, from_offsets=ends
        )
    except NoRoute:
        new = Found((), {})  # deleted, but archived
    both = [*old, *new.messages]
    both.sort(key=lambda message: (message.store_timestamp, message.queue, message.queue_offset))
    return replace(new, messages=tuple(both[:limit]))


def _show_found(found: Found, *, as_json: bool) -> None:
    _show_messages(found.messages, as_json=as_json)
    screen = Screen()
    for broker, error in found.failures.items():
        screen.warn(f"no answer from {broker}: {error}")
    if found.failures or not found.messages:
        raise typer.Exit(EXIT_NOTHING_FOUND)


def _show_messages(messages: Sequence[ReceivedMessage], *, as_json: bool) -> None:
    from skylark.admin import message_json  # noqa: PLC0415 - not for `--help`

    if as_json:
        for message in messages:
            print_json(message_json.document(message))
    else:
        show(
            Listing(
                message_text.COLUMNS,
                [message_text.row(item) for item in messages],
                long=message_text.LONG_COLUMNS,
            ),
            as_json=False,
        )


@app.command()
def at(
    topic: Topic,
    queue: Queue,
    queue_offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0)],
    history: HistoryTable = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show the message at an offset of a queue; with --history also one that the broker has deleted.

    Example: skylark message at orders broker-a:0 1000
    """
    from skylark.protocol.bodies import MessageQueue  # noqa: PLC0415

    place = MessageQueue(topic, *parse_queue(queue))
    with connected(namesrv) as admin:
        message = admin.messages.at(place, queue_offset)
        if message is None and history is not None:
            archive = _archive(admin, topic, history)
            from skylark.pipelines.archived_messages import archived_at  # noqa: PLC0415 - needs the extra

            message = archived_at(archive, place, queue_offset)
    if message is None:
        raise UsageError(
            f"no message at offset {queue_offset} of queue {queue}, topic {topic};"
            f" `skylark topic status {topic}` shows the offsets of its queues"
        )
    _show_one(message, None, as_json=as_json)


def _check_offset_id(message_id: str) -> None:
    """Raises UsageError for an id that does not say where the message is."""
    from skylark.model.message_id import parse_offset_message_id  # noqa: PLC0415

    try:
        parse_offset_message_id(message_id)
    except ValueError as error:
        raise UsageError(
            f"{message_id}: {error}; name the topic, too: skylark message get TOPIC {message_id}"
        ) from None


@app.command("id")
def decode_id(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="An offset id or a unique id.")],
    as_json: AsJson = False,
) -> None:
    """Decode an id of a message.

    An offset id holds the broker's address and the physical offset; a unique id the client that made it.

    Example: skylark message id 7F00000100002A9F0000000000000000
    """
    facts = _id_facts(message_id)
    if as_json:
        print_json(
            {name.replace(" ", "_"): value.ms if isinstance(value, When) else value for name, value in facts}
        )
    else:
        Screen().facts(facts)


def _id_facts(message_id: str) -> list[tuple[str, object]]:
    from skylark.model.message import format_host  # noqa: PLC0415
    from skylark.model.message_id import parse_offset_message_id, parse_unique_id  # noqa: PLC0415

    try:
        host, physical_offset = parse_offset_message_id(message_id)
    except ValueError:
        try:
            parts = parse_unique_id(message_id, round(time.time() * 1000))
        except ValueError as error:
            raise UsageError(f"invalid id {message_id!r}: {error}") from None
        return [
            ("kind", "unique id"),
            ("client", parts.address),
            ("process", parts.process_id),
            ("made about", When(parts.created_ms)),
            ("counter", parts.counter),
        ]
    return [("kind", "offset id"), ("broker", format_host(host)), ("physical offset", physical_offset)]


@app.command()
@tabular
def trace(
    message_id: Id,
    trace_topic: Annotated[str, typer.Option("--trace-topic")] = "RMQ_SYS_TRACE_TOPIC",
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show the trace of a message as a timeline: sent, delivered, consumed.

    With a key instead of an id, the traces of all messages with this key. Exit code 1 without a trace.

    Example: skylark message trace 7F00000112340A2B5C8D1E000001F3A7
    """
    from skylark.admin import message_json  # noqa: PLC0415 - not for `--help`
    from skylark.admin.traces import read_steps  # noqa: PLC0415

    with connected(namesrv) as admin:
        try:
            found = admin.messages.by_key(trace_topic, message_id, messages_max=TRACES_MAX)
        except NoRoute:
            raise UsageError(
                f"no topic {trace_topic}; brokers create it with --set traceTopicEnable=true,"
                " and clients write to it with trace=True"
            ) from None
    steps = read_steps(message_json.text_of(item) for item in found.messages)
    own = [step for step in steps if step.message_id == message_id] or steps
    rows = [
        (
            When(step.time_ms), step.what, "ok" if step.is_ok else "FAILED", step.group, step.took_ms,
            step.details, step.message_id,
        )
        for step in own
    ]  # fmt: skip
    columns = ("time", "what", "outcome", "group", "took ms", "details", "message")
    show(Listing(columns, rows, failures=found.failures, long=("details",)), as_json=as_json)
    if not rows:
        Screen().warn(f"no trace of {message_id}; clients write traces with trace=True")
        raise typer.Exit(EXIT_NOTHING_FOUND)


@app.command()
def consume(
    group: Group,
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="As `skylark consumer list` shows it.")],
    topic: Topic,
    message_id: Id,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Have one consumer consume a stored message now, in its listener. Offsets do not change.

    Exit code 1 if it does not succeed.

    Example: skylark message consume billing 10.0.0.1@4711 orders 7F00000112340A2B5C8D1E000001F3A7
    """
    with connected(namesrv) as admin:
        message = admin.messages.get(topic, message_id)
        result = admin.clients.consume_directly(group, client, message)
    facts = [
        ("result", result.consume_result),
        ("took ms", result.spent_time_mills),
        ("remark", result.remark or ""),
    ]
    if as_json:
        print_json({name.replace(" ", "_"): value for name, value in facts})
    else:
        Screen().facts(facts)
    if result.consume_result != "CR_SUCCESS":
        raise typer.Exit(EXIT_NOTHING_FOUND)


@app.command()
@tabular
def units(
    topic: Topic,
    queue: Queue,
    queue_offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0)],
    limit: Limit = 10,
    group: Annotated[
        str, typer.Option("--group", help="Also show whether the filter of this group matches.")
    ] = "",
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show entries of a consume queue: physical offset, size, hash of the tags.

    Example: skylark message units orders broker-a:0 0
    """
    from skylark.protocol.bodies import MessageQueue  # noqa: PLC0415

    with connected(namesrv) as admin:
        target = MessageQueue(topic, *parse_queue(queue))
        found = admin.messages.units(target, queue_offset, count=limit, group=group or None)
    rows = [
        (queue_offset + number, unit.physic_offset, unit.physic_size, unit.tags_code, unit.msg or "")
        for number, unit in enumerate(found.queue_data)
    ]
    facts = [("begin", found.min_queue_index), ("end", found.max_queue_index)]
    columns = ("offset", "physical offset", "bytes", "tags hash", "remark")
    show(Listing(columns, rows, facts, items="units", long=("remark",)), as_json=as_json)


def _span(since: str | None, until: str | None) -> tuple[int, int]:
    from skylark.admin.messages import FOREVER_MS  # noqa: PLC0415

    now_ms = round(time.time() * 1000)
    begin_ms = 0 if since is None else parsed(parse_time_ms, since, "--since", now_ms)
    end_ms = FOREVER_MS if until is None else parsed(parse_time_ms, until, "--until", now_ms)
    if begin_ms > end_ms:
        raise UsageError(f"--since {since} is later than --until {until}")
    return begin_ms, end_ms
