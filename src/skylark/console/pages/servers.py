"""The servers of a cluster: a map with its clients, what stores hold and delete next, and controllers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from skylark.admin.results import BrokerNode
from skylark.admin.server_calls import at_once
from skylark.console.drawings import MapBox, cluster_map
from skylark.console.grid import Grid, GridColumn
from skylark.console.pages.topics import LIST
from skylark.console.view import Ask, PageView
from skylark.console.watch import Look
from skylark.errors import RocketMQError

BOXES_MAX = 30
"""Boxes of a column; the rest is counted."""
LAG_WARN, LAG_BAD = 1000, 100_000
HOUR_MS = 3_600_000


# --- Map ---


async def show_map(ask: Ask) -> PageView:
    """Producers, brokers with their replicas, consumer groups, and who talks to whom."""
    look = await ask.look()
    masters = [item.node for item in look.summary.brokers if item.node.is_master]
    found = await at_once(ask.admin.clients.all_producers, [node.address for node in masters])
    producers: dict[str, int] = {}
    links: list[tuple[int, str, str]] = []
    failures = list(look.failures)
    for node, table in zip(masters, found, strict=True):
        if isinstance(table, RocketMQError):
            failures.append(f"no clients from {node.address}: {table}")
            continue
        for group, members in table.items():
            producers[group] = max(producers.get(group, 0), len(members))
            links.append((0, group, node.name))
    for name, state in look.groups.items():
        brokers = {broker for topic in state.topics for broker in look.inventory.topics.get(topic, ())}
        links += [(1, broker, name) for broker in sorted(brokers)]
    senders = [
        MapBox(name, name, ask.t("map.clients", count=count), "good", ask.href("clients", q=name))
        for name, count in sorted(producers.items())
    ]
    columns = [
        (ask.t("map.producers"), _first(ask, senders)),
        (ask.t("brokers"), _first(ask, _brokers(ask, look))),
        (ask.t("groups"), _first(ask, _groups(ask, look))),
    ]
    servers = ask.admin.name_servers.addresses
    return PageView(
        template="map.html",
        nav="map",
        title=ask.t("map"),
        sentence=ask.t("map.sentence", servers=", ".join(servers)),
        data={"drawing": cluster_map(columns, links)},
        document={
            "name_servers": list(servers),
            "producers": producers,
            "brokers": [_node(item.node) for item in look.summary.brokers],
            "groups": {name: state.lag for name, state in look.groups.items()},
            "links": [{"from": left, "to": right} for _, left, right in links],
        },
        code=(("skylark", f"skylark cluster list --namesrv {ask.connection.namesrv}"),),
        failures=tuple(failures),
        live_s=5,
    )


def _node(node: BrokerNode) -> dict[str, object]:
    return {"broker": node.name, "id": node.broker_id, "address": node.address, "cluster": node.cluster}


def _first(ask: Ask, boxes: Iterable[MapBox]) -> list[MapBox]:
    boxes = list(boxes)
    if len(boxes) <= BOXES_MAX:
        return boxes
    return [*boxes[:BOXES_MAX], MapBox("", ask.t("map.more", count=len(boxes) - BOXES_MAX))]


def _brokers(ask: Ask, look: Look) -> list[MapBox]:
    """A box per broker name: its master, or that there is none, and its slaves."""
    nodes: dict[str, list[BrokerNode]] = {}
    for item in look.summary.brokers:
        nodes.setdefault(item.node.name, []).append(item.node)
    boxes = []
    for name, replicas in sorted(nodes.items()):
        master = next((node for node in replicas if node.is_master), None)
        slaves = len(replicas) - (master is not None)
        words = master.address if master is not None else ask.t("map.no_master")
        note = f"{words} {ask.t('map.slaves', count=slaves)}" if slaves else words
        level = "good" if master is not None else "bad"
        boxes.append(MapBox(name, name, note, level, ask.href("brokers", name)))
    return boxes


def _groups(ask: Ask, look: Look) -> list[MapBox]:
    """The furthest behind first."""
    states = sorted(look.groups.values(), key=lambda state: (-state.lag, state.name))
    return [
        MapBox(
            state.name,
            state.name,
            ask.t("map.lag", lag=f"{state.lag:,}"),
            "bad" if state.lag >= LAG_BAD else "warn" if state.lag >= LAG_WARN else "good",
            ask.href("groups", state.name),
        )
        for state in states
    ]


# --- Stores ---


async def stores(ask: Ask) -> PageView:
    """What the store of each broker holds, what is not safe yet, and when messages are deleted."""
    look = await ask.look()
    nodes = [item.node for item in look.summary.brokers]
    tables = await at_once(ask.admin.brokers.runtime, [node.address for node in nodes])
    settings = await at_once(ask.admin.brokers.config, [node.address for node in nodes])
    rows, failures = [], list(look.failures)
    for node, runtime, config in zip(nodes, tables, settings, strict=True):
        if isinstance(runtime, RocketMQError):
            failures.append(f"no answer from {node.address}: {runtime}")
            continue
        known: Mapping[str, str] = {} if isinstance(config, RocketMQError) else config
        rows.append(_store_row(node, runtime, known))
    columns = (
        GridColumn("broker", "name", lambda row: ask.href("brokers", row["broker"], id=row["id"])),
        GridColumn("role", "state"),
        GridColumn("disk", "percent"),
        GridColumn("log_bytes", "bytes"),
        GridColumn("earliest", "time"),
        GridColumn("kept_for", "duration"),
        GridColumn("deleted_from", "time"),
        GridColumn("unflushed"),
        GridColumn("undispatched", "bytes"),
        GridColumn("replication_lag"),
    )
    return PageView(
        template="list.html",
        nav="store",
        title=ask.t("store"),
        sentence=ask.t("store.sentence"),
        grids=(Grid("stores", columns, rows),),
        data=LIST,
        code=(
            ("skylark", "skylark store verify DIR"),
            ("skylark", "skylark store info DIR"),
            ("python", 'admin.brokers.runtime("broker-a")'),
        ),
        failures=tuple(failures),
        live_s=5,
    )


def _store_row(node: BrokerNode, runtime: Mapping[str, str], config: Mapping[str, str]) -> dict[str, Any]:
    begin, end = _number(runtime, "commitLogMinOffset"), _number(runtime, "commitLogMaxOffset")
    earliest, hours = _number(runtime, "earliestMessageTimeStamp"), _number(config, "fileReservedTime")
    oldest = earliest if earliest is not None and earliest > 0 else None
    ratio = runtime.get("commitLogDiskRatio", "")
    return {
        "broker": node.name,
        "id": node.broker_id,
        "role": "master" if node.is_master else "slave",
        "disk": float(ratio) if ratio.replace(".", "", 1).isdecimal() else None,
        "log_bytes": None if begin is None or end is None else end - begin,
        "earliest": oldest,
        "kept_for": None if hours is None else hours * HOUR_MS,
        "deleted_from": None if oldest is None or hours is None else oldest + hours * HOUR_MS,
        "unflushed": runtime.get("remainHowManyDataToFlush"),
        "undispatched": _number(runtime, "dispatchBehindBytes"),
        "replication_lag": runtime.get("replicationLagSeconds") or runtime.get("replicationLagBytes"),
    }


def _number(table: Mapping[str, str], name: str) -> int | None:
    text = table.get(name, "")
    return int(text) if text.lstrip("-").isdecimal() else None


# --- Controllers ---


async def controllers(ask: Ask) -> PageView:
    """Who leads the controllers that the brokers name, and the replicas that they elected."""
    nodes = await ask.admin.brokers.nodes()
    settings = await at_once(ask.admin.brokers.config, [node.address for node in nodes])
    named = {
        config.get("controllerAddr", "").strip()
        for config in settings
        if not isinstance(config, RocketMQError) and config.get("enableControllerMode") == "true"
    }
    groups = sorted(named - {""})
    members, replicas, failures = [], [], []
    for addresses in groups:
        try:
            for address, metadata in (await ask.admin.controllers.metadata(addresses)).items():
                role = "leader" if metadata.is_leader else "follower"
                leader = metadata.controller_leader_address
                members.append({"address": address, "role": role, "leader": leader, "peers": metadata.peers})
            for name, info in (await ask.admin.controllers.replicas(addresses)).items():
                in_sync = [each.broker_address or "" for each in info.in_sync_replicas]
                behind = [each.broker_address or "" for each in info.not_in_sync_replicas]
                replicas.append(
                    {
                        "broker": name,
                        "master": info.master_address,
                        "epoch": info.master_epoch,
                        "in_sync": in_sync,
                        "out_of_sync": behind,
                    }
                )
        except RocketMQError as error:
            failures.append(f"no answer from the controllers {addresses}: {error}")
    member_columns = (
        GridColumn("address", "code"), GridColumn("role", "state"), GridColumn("leader", "code"),
        GridColumn("peers", "code"),
    )  # fmt: skip
    replica_columns = (
        GridColumn("broker", "name", lambda row: ask.href("brokers", row["broker"])),
        GridColumn("master", "code"),
        GridColumn("epoch", "number"),
        GridColumn("in_sync", "words"),
        GridColumn("out_of_sync", "words"),
    )
    return PageView(
        template="list.html",
        nav="controllers",
        title=ask.t("controllers"),
        sentence=ask.t("controllers.sentence" if groups else "controllers.none", count=len(members)),
        grids=(Grid("controllers", member_columns, members), Grid("replicas", replica_columns, replicas)),
        data=LIST,
        code=(("skylark", f"skylark controller status --controller '{';'.join(groups)}'"),),
        failures=tuple(failures),
        live_s=5,
    )
