"""`skylark broker`: run one (see `servers`), or ask and tell those that run."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli import servers
from skylark.cli.errors import UsageError
from skylark.cli.options import (
    NAMESRV,
    AsJson,
    Broker,
    BrokerName,
    Cluster,
    Namesrv,
    Pairs,
    Yes,
    asked_at_once,
    confirm,
    connected,
    pairs,
)
from skylark.cli.output import Listing, Rate, When, done, print_json, show
from skylark.errors import RocketMQError

if TYPE_CHECKING:
    from skylark.admin.sync import Admin

app = servers.broker_app

UPKEEP = {
    "queues": "entries of queues whose messages are gone",
    "topics": "queues of topics that there are no more",
    "log": "files of the log that are old enough",
}
Like = Annotated[str, typer.Option("--like", help="Only keys that contain this.")]


@app.command("list")
def list_brokers(cluster: Cluster = None, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """List all brokers, masters and slaves.

    Example: skylark broker list
    """
    with connected(namesrv) as admin:
        nodes = admin.brokers.nodes(cluster=cluster)
    rows = [(node.cluster, node.name, node.broker_id, node.address) for node in nodes]
    show(Listing(("cluster", "broker", "id", "address"), rows), as_json=as_json)


def _show_table(table: dict[str, str], like: str, *, as_json: bool) -> None:
    chosen = {key: value for key, value in sorted(table.items()) if like.lower() in key.lower()}
    if as_json:
        print_json(chosen)
    else:
        show(Listing(("key", "value"), list(chosen.items())), as_json=False)


@app.command()
def status(broker: BrokerName, like: Like = "", namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show everything that a broker says of its run time, under RocketMQ's names.

    Example: skylark broker status broker-a --like tps
    """
    with connected(namesrv) as admin:
        _show_table(dict(admin.brokers.runtime(broker)), like, as_json=as_json)


@app.command()
def config(broker: BrokerName, like: Like = "", namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show a broker's settings, under RocketMQ's keys.

    Example: skylark broker config broker-a --like flush
    """
    with connected(namesrv) as admin:
        _show_table(admin.brokers.config(broker), like, as_json=as_json)


@app.command("set")
def set_config(
    settings: Pairs,
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Change settings of running brokers, under RocketMQ's keys: of all, of a cluster, or of one.

    Example: skylark broker set fileReservedTime=48 --broker broker-a
    """
    changes = pairs(settings, "setting")
    with connected(namesrv) as admin:
        brokers = [broker] if broker else sorted({node.name for node in admin.brokers.nodes(cluster=cluster)})
        _refuse_unknown(admin, changes, brokers)
        admin.brokers.update_config(changes, cluster=cluster, broker=broker)
    done(f"{', '.join(settings)} set on {broker or cluster or 'all brokers'}", changes, as_json=as_json)


def _refuse_unknown(admin: Admin, keys: Iterable[str], brokers: Iterable[str]) -> None:
    """Brokers pass over a key that they do not know, and whoever mistyped it would not hear of it.

    Raises Mistake.
    """
    from skylark.settings import BrokerSettings  # noqa: PLC0415
    from skylark.settings.loader import known_settings  # noqa: PLC0415
    from skylark.settings.rocketmq_keys import UNUSED_KEYS  # noqa: PLC0415

    known = {key for table in asked_at_once(lambda name: _config(admin, name), brokers) for key in table}
    known |= {key for key, setting in known_settings(BrokerSettings).items() if setting.java in known}
    for key in keys if known else ():
        if key in known:
            continue
        if key in UNUSED_KEYS:
            raise UsageError(f"{key} has no effect: {UNUSED_KEYS[key]}")
        near = get_close_matches(key, known, n=1)
        raise UsageError(f"no broker has a setting {key}{f', did you mean {near[0]}?' if near else ''}")


def _config(admin: Admin, broker: str) -> dict[str, str]:
    try:
        return admin.brokers.config(broker)
    except RocketMQError:
        return {}  # the change itself will tell


@app.command()
def progress(
    broker: BrokerName,
    behind: Annotated[int, typer.Option("--behind", min=0, help="Only groups with at least this lag.")] = 0,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show how far all groups are in the queues of a broker.

    Example: skylark broker progress broker-a --behind 1000
    """
    with connected(namesrv) as admin:
        found = admin.brokers.consume_stats(broker)
    rows = []
    for groups in found.consume_stats_list:
        for group, tables in sorted(groups.items()):
            for table in tables:
                for queue, at in sorted(table.offset_table.items()):
                    lag = at.broker_offset - at.consumer_offset
                    if lag >= behind:
                        last = When(at.last_timestamp or None)
                        rows.append((group, queue.topic, queue.queue_id, at.consumer_offset, lag, last))
    facts = [("broker", broker), ("lag", found.total_diff), ("in flight", found.total_inflight_diff)]
    columns = ("group", "topic", "queue", "committed", "lag", "last consumed")
    show(Listing(columns, rows, facts, items="queues"), as_json=as_json)


@app.command()
def stats(
    broker: BrokerName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as TOPIC_PUT_NUMS, GROUP_GET_NUMS.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="A topic, or TOPIC@GROUP.")],
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show what a broker has counted in the last minute, hour and day.

    Example: skylark broker stats broker-a TOPIC_PUT_NUMS orders
    """
    with connected(namesrv) as admin:
        found = admin.brokers.stats(broker, name, key)
    spans = (("minute", found.stats_minute), ("hour", found.stats_hour), ("day", found.stats_day))
    rows = [(span, part.sum, Rate(part.tps), round(part.avgpt, 2)) for span, part in spans]
    show(Listing(("last", "sum", "rate/s", "average"), rows), as_json=as_json)


@app.command()
def timers(broker: BrokerName, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show how many messages wait for their time, by topic.

    Example: skylark broker timers broker-a
    """
    with connected(namesrv) as admin:
        found = admin.brokers.timers(broker)
    rows = [
        (topic, part.count, When(part.time_stamp or None))
        for topic, part in sorted(found.timing_count.items())
    ]
    show(Listing(("topic", "waiting", "changed"), rows), as_json=as_json)


@app.command()
def clean(
    what: Annotated[str, typer.Argument(metavar="queues|topics|log", help="What is to be deleted.")],
    broker: Broker = None,
    cluster: Cluster = None,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Delete now what retention would delete later: expired entries of queues, unused topics, old log files.

    Example: skylark broker clean log --broker broker-a --yes
    """
    if what not in UPKEEP:
        raise UsageError(f"clean {what}: {', '.join(UPKEEP)} is possible")
    where = broker or cluster or "all brokers"
    confirm(f"Delete {UPKEEP[what]} on {where}?", yes=yes)
    with connected(namesrv) as admin:
        brokers = admin.brokers
        clean_up = {"queues": brokers.clean_queues, "topics": brokers.clean_topics}
        clean_up.get(what, brokers.delete_expired_log)(cluster=cluster, broker=broker)
    done(f"{UPKEEP[what]} are deleted on {where}", {"cleaned": what, "where": where}, as_json=as_json)


@app.command()
def drain(
    name: BrokerName,
    undo: Annotated[bool, typer.Option("--undo", help="Let producers come back.")] = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Take a broker's topics off producers, at all name servers; consumers go on. --undo lets them back.

    Example: skylark broker drain broker-a
    """
    with connected(namesrv) as admin:
        name = _name_of(admin, name)
        change = admin.brokers.add_write_permission if undo else admin.brokers.wipe_write_permission
        counts = change(name)
    state = "takes messages again" if undo else "gets no more messages"
    topics = max(counts.values(), default=0)
    done(
        f"broker {name} {state}: {topics} topics changed",
        {"broker": name, "writable": undo, "topics": dict(counts)},
        as_json=as_json,
    )


def _name_of(admin: Admin, broker: str) -> str:
    """The name under which name servers know a broker. Raises Mistake: they say nothing of a wrong one."""
    nodes = admin.brokers.nodes()
    for node in nodes:
        if broker in (node.name, node.address):
            return node.name
    known = ", ".join(sorted({node.name for node in nodes})) or "none"
    raise UsageError(f"there is no broker {broker}; known are: {known}")
