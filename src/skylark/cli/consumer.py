"""`skylark consumer`: connected members of consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from skylark.cli.options import NAMESRV, AsJson, Group, Namesrv, Topic, connected, tabular
from skylark.cli.output import Listing, Screen, When, print_json, show

if TYPE_CHECKING:
    from skylark.protocol.bodies import ConsumerRunningInfo

app = typer.Typer(no_args_is_help=True, help="Connected consumers and their state.")

Client = Annotated[
    str | None, typer.Argument(metavar="CLIENT", help="From `skylark consumer list`; all by default.")
]


@app.command("list")
@tabular
def list_consumers(group: Group, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """List the connected members of a group and its subscriptions.

    Example: skylark consumer list billing
    """
    with connected(namesrv) as admin:
        found = admin.clients.consumers(group)
    wants = [
        f"{topic} {subscription.sub_string or ''}".strip()
        for topic, subscription in sorted(found.subscriptions.items())
    ]
    facts = [
        ("group", group),
        ("consumes", found.consume_type),
        ("model", found.message_model),
        ("begins", found.consume_from),
        ("subscribes", "; ".join(map(str, found.different_subscriptions)) or "; ".join(wants)),
    ]
    rows = [
        (client.client_id, client.address, client.language, client.version, client.brokers)
        for client in found.clients
    ]
    columns = ("client", "address", "language", "version", "brokers")
    show(Listing(columns, rows, facts, found.failures, items="clients", long=("brokers",)), as_json=as_json)


@app.command()
@tabular
def status(
    group: Group,
    client: Client = None,
    stack: Annotated[bool, typer.Option("--stack", help="Also show stacks of its threads.")] = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show the state that members report: rates, times, queues and cached messages.

    Example: skylark consumer status billing
    """
    with connected(namesrv) as admin:
        members = [client] if client else [one.client_id for one in admin.clients.consumers(group).clients]
        infos = {name: admin.clients.running_info(group, name, with_stack=stack) for name in members}
    if as_json:
        print_json({name: _document(info) for name, info in infos.items()})
        return
    screen = Screen()
    topics = [
        (
            name, topic, round(state.consume_ok_tps, 1), round(state.consume_failed_tps, 1),
            round(state.consume_rt, 1), round(state.pull_tps, 1), round(state.pull_rt, 1),
        )
        for name, info in infos.items()
        for topic, state in sorted(info.status_table.items())
    ]  # fmt: skip
    Listing(("client", "topic", "ok/s", "failed/s", "ms each", "pulled/s", "pull ms"), topics).show(
        screen, as_json=False
    )
    queues = [
        (
            name, queue.topic, queue.broker_name, queue.queue_id, state.commit_offset,
            state.cached_msg_count, state.locked, When(state.last_pull_timestamp or None),
            When(state.last_consume_timestamp or None),
        )
        for name, info in infos.items()
        for queue, state in sorted(info.mq_table.items())
    ]  # fmt: skip
    columns = (
        "client", "topic", "broker", "queue", "committed", "waiting", "locked", "last pull", "last consumed",
    )  # fmt: skip
    Listing(columns, queues).show(screen, as_json=False)
    for name, info in infos.items():
        if info.jstack:
            screen.section(f"Threads of {name}", info.jstack.splitlines())


def _document(info: ConsumerRunningInfo) -> dict[str, object]:
    return {
        "properties": info.properties,
        "topics": {topic: structs.asdict(state) for topic, state in info.status_table.items()},
        "queues": [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                **structs.asdict(state),
            }
            for queue, state in sorted(info.mq_table.items())
        ],
        "stack": info.jstack,
    }


@app.command()
@tabular
def positions(group: Group, topic: Topic, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show the position of each member in its queues; `skylark group status` shows committed offsets.

    Example: skylark consumer positions billing orders
    """
    with connected(namesrv) as admin:
        tables = admin.clients.positions(group, topic)
    rows = [
        (name, queue.broker_name, queue.queue_id, queue_offset)
        for name, table in sorted(tables.items())
        for queue, queue_offset in sorted(table.items())
    ]
    show(Listing(("client", "broker", "queue", "offset"), rows), as_json=as_json)
