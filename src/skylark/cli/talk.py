"""`skylark send` and `skylark tail`: the commands' options; the work is done in `sending` and `following`."""

from __future__ import annotations

from typing import Annotated

import typer

from skylark.cli.options import NAMESRV, AsJson, Namesrv, Topic
from skylark.cli.times import TIME_HELP

LAST = 10
EXIT_NOT_SAFE = 1
EXIT_INCOMPLETE = 1


def send(
    topic: Topic,
    body: Annotated[
        str | None, typer.Argument(metavar="BODY|-", help="The message; - or nothing: standard input.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tag", "-t", help="One word to filter by.")] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--key", "-k", help="To find it by; may be said several times.")
    ] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", metavar="KEY=VALUE", help="Of your own.")
    ] = None,
    order_by: Annotated[
        str | None, typer.Option("--order-by", metavar="KEY", help="Same key, same queue, in order.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="DURATION", help="Deliver after 10s, 5m, 2h, …")
    ] = None,
    delay_level: Annotated[
        int, typer.Option("--delay-level", min=0, max=18, help="Deliver after one of 18 fixed delays.")
    ] = 0,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Deliver then: '2026-11-15 10:30'.")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, help="So often; {n} in the body is the number.")
    ] = 1,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of standard input is a message.")] = False,
    from_json: Annotated[
        bool, typer.Option("--from-json", help="Each line is a message as `skylark tail --json` prints it.")
    ] = False,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", metavar="BROKER:ID", help="To this queue.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="For `skylark message trace`.")] = False,
    group: Annotated[str, typer.Option("--group", help="Of producers.")] = "skylark-send",
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Send a message, or many. Exit code 1 if a broker took one and could not say that it is safe.

    Examples: skylark send orders '{"id": 42}' --tag created --key 42

    skylark send orders 'order {n}' --count 1000

    skylark tail orders --no-follow --json | skylark send orders-copy --from-json
    """
    from skylark.cli import send  # noqa: PLC0415

    wanted = send.SendArguments(
        topic, body, tags, keys or (), properties or (), order_by, delay, delay_level, at, count, lines,
        from_json, queue,
    )  # fmt: skip
    if not send.send(wanted, group=group, namesrv=namesrv, trace=trace, as_json=as_json):
        raise typer.Exit(EXIT_NOT_SAFE)


def tail(
    topic: Topic,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help=f"begin, end, or a time: {TIME_HELP}.")
    ] = None,
    last: Annotated[int, typer.Option("-n", "--last", min=0, help="Begin with so many old ones.")] = LAST,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f/-F", help="Wait for more, or end with the last.")
    ] = True,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="End after so many.")] = None,
    tags: Annotated[str, typer.Option("--tags", "-t", help="Such as 'created || paid'.")] = "*",
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="CONDITION", help="Such as 'amount > 100'; see SQL92.")
    ] = None,
    body_only: Annotated[bool, typer.Option("--body", "-b", help="Bodies alone, as they are.")] = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Follow a topic: its last messages, then each new one, until Ctrl-C. No group's progress changes.

    Exit code 1 if a broker of the topic did not answer at the beginning.

    Examples: skylark tail orders

    skylark tail orders --from 30m --tags 'created || paid' --json

    skylark tail orders --from begin --no-follow --body > bodies.txt
    """
    from skylark.cli import tail  # noqa: PLC0415

    wanted = tail.TailArguments(topic, start, last, follow, limit, tags, sql)
    printing = tail.printer(as_json=as_json, body_only=body_only)
    if not tail.follow(wanted, namesrv=namesrv, printing=printing):
        raise typer.Exit(EXIT_INCOMPLETE)
