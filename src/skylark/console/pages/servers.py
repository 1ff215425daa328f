"""The servers of a cluster: a map with its clients, stores, controllers, proxies."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from skylark.admin.results import BrokerNode
from skylark.admin.server_calls import at_once
from skylark.console.drawings import MapBox, cluster_map
from skylark.console.grid import Grid, GridColumn, shown
from skylark.console.view import LIST, Ask, PageView, list_page
from skylark.console.watch import Look
from skylark.errors import RocketMQError
from skylark.model.job_report import RUNNING, JobReport

BOXES_MAX = 30
"""Boxes of a column; the rest is counted."""
LAG_WARN, LAG_BAD = 1000, 100_000
HOUR_MS = 3_600_000
PROXY_S = 3.0
PROXY_BYTES_MAX = 4 << 20
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([\d.eE+-]+)$", re.MULTILINE)
JOB = "job "
"""Before the key of a job's box: a group may have the same name."""


# --- Map ---


async def show_map(ask: Ask) -> PageView:
    """Producers, brokers, topics, and who consumes them: groups and pipelines."""
    look = await ask.look()
    masters = [item.node for item in look.summary.brokers if item.node.is_master]
    found = await at_once(ask.admin.clients.all_producers, [node.address for node in masters])
    jobs = [job for job in await ask.admin.pipelines.jobs() if job.state == RUNNING]
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
    topics = _topics(ask, look)
    for box in topics:
        links += [(1, broker, box.key) for broker in sorted(look.inventory.topics[box.key])]
    links += [(2, topic, name) for name, state in look.groups.items() for topic in state.topics]
    links += [(2, topic, f"{JOB}{job.name}") for job in jobs for topic in job.topics]
    arrows = [{"from": left, "to": right.removeprefix(JOB)} for _, left, right in links]
    senders = [
        MapBox(name, name, ask.t("map.clients", count=count), "good", ask.href("clients", q=name))
        for name, count in sorted(producers.items())
    ]
    columns = [
        (ask.t("map.producers"), _first(ask, senders)),
        (ask.t("brokers"), _first(ask, _brokers(ask, look))),
        (ask.t("topics"), _first(ask, topics)),
        (ask.t("map.consumers"), _first(ask, [*_jobs(ask, jobs), *_groups(ask, look)])),
    ]
    return PageView(
        template="map.html",
        nav="map",
        title=ask.t("map"),
        sentence=ask.t("map.sentence"),
        grids=(Grid("links", (GridColumn("from"), GridColumn("to")), arrows),),
        data={"drawing": cluster_map(columns, links)},
        document={
            "name_servers": list(ask.admin.name_servers.addresses),
            "producers": producers,
            "brokers": [_node(item.node) for item in look.summary.brokers],
            "topics": [box.key for box in topics],
            "groups": {name: state.lag for name, state in look.groups.items()},
            "pipelines": {job.name: job.lag for job in jobs},
            "links": arrows,
        },
        code=(("skylark", f"skylark cluster list --namesrv {ask.connection.namesrv}"),),
        failures=tuple(failures),
        live_s=5,
    )


def _topics(ask: Ask, look: Look) -> list[MapBox]:
    """The busiest first."""
    watch = ask.connection.watch
    names = [name for name in look.inventory.topics if look.is_plain(name)]
    names.sort(key=lambda name: (-(watch.sent_per_s(name) or 0), name))
    return [
        MapBox(
            name,
            name,
            "" if (sent := watch.sent_per_s(name)) is None else ask.t("map.rate", rate=shown(sent, "rate")),
            "good" if sent else "off",
            ask.href("topics", name, "messages"),
        )
        for name in names
    ]


def _jobs(ask: Ask, jobs: Sequence[JobReport]) -> list[MapBox]:
    return [
        MapBox(
            f"{JOB}{job.name}",
            job.name,
            ask.t("map.lag", lag=shown(job.lag, "lag")),
            "good",
            ask.href("pipelines", job.name),
        )
        for job in jobs
    ]


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
        grids=(
            Grid("controllers", member_columns, members),
            *((Grid("replicas", replica_columns, replicas),) if groups else ()),
        ),
        data=LIST,
        code=(("skylark", f"skylark controller status --controller '{';'.join(groups)}'"),),
        failures=tuple(failures),
        live_s=5,
    )


# --- Proxies ---


async def proxies(ask: Ask) -> PageView:
    """What the metrics pages of the proxies for RocketMQ 5 clients say."""
    names = list(ask.settings.proxies)
    found = await asyncio.gather(
        *(asyncio.to_thread(_samples, ask.settings.proxies[name]) for name in names), return_exceptions=True
    )
    rows, failures = [], []
    for name, samples in zip(names, found, strict=True):
        row: dict[str, Any] = {
            "proxy": name,
            "state": "ok",
            "address": urlsplit(ask.settings.proxies[name]).netloc,
        }
        if isinstance(samples, BaseException):
            failures.append(f"no answer from {name}: {samples}")
            rows.append({**row, "state": "away"})
            continue
        calls = samples.get("skylark_proxy_calls_total", {})
        counts = {
            "connections": _total(samples, "skylark_proxy_connections"),
            "clients": _total(samples, "skylark_proxy_clients"),
            "streams": _total(samples, "skylark_proxy_streams"),
            "renewed": _total(samples, "skylark_proxy_renewed_messages"),
            "calls": round(sum(calls.values())),
            "calls_failed": round(sum(count for labels, count in calls.items() if 'code="OK"' not in labels)),
        }
        rows.append({**row, **counts})
    numbers = ("connections", "clients", "streams", "renewed", "calls", "calls_failed")
    columns = (
        GridColumn("proxy", "name"),
        GridColumn("state", "state"),
        GridColumn("address", "code"),
        *(GridColumn(key, "number") for key in numbers),
    )
    return await list_page(
        ask,
        "proxies",
        Grid("proxies", columns, rows),
        data={"empty": "skylark console --proxy edge=http://127.0.0.1:5557/metrics"},
        code=(("skylark", "skylark proxy --help"),),
        failures=tuple(failures),
        live_s=5,
    )


def _samples(url: str) -> dict[str, dict[str, float]]:
    """The samples of a metrics page by name and labels; may block. Raises OSError."""
    with urllib.request.urlopen(url, timeout=PROXY_S) as page:  # noqa: S310 - named when the console starts
        text = page.read(PROXY_BYTES_MAX).decode(errors="replace")
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        found.setdefault(name, {})[labels] = float(value)
    return found


def _total(samples: Mapping[str, Mapping[str, float]], name: str) -> int | None:
    return round(sum(samples[name].values())) if name in samples else None
