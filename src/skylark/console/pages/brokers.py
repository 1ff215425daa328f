"""Brokers with their run-time values and settings, and name servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from skylark import health
from skylark.admin.results import ConnectedConsumers
from skylark.admin.server_calls import at_once
from skylark.console.grid import Grid, GridColumn
from skylark.console.pages.overview import brokers_grid
from skylark.console.pages.topics import settings_grid
from skylark.console.view import LIST, Ask, NotThere, PageSection, PageView, failures_of, list_page
from skylark.errors import RocketMQError, SomeServersFailed
from skylark.health import HealthState
from skylark.protocol.codes import version_name

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
GROUPS_MAX = 200
"""Groups that the page of clients asks for; a group's own page has no limit."""


async def index(ask: Ask) -> PageView:
    """All brokers with rates and disk."""
    look = await ask.look()
    return PageView(
        template="list.html",
        nav="brokers",
        title=ask.t("brokers"),
        sentence=ask.t("brokers.sentence", count=len(look.summary.brokers), away=len(look.summary.failures)),
        grids=(brokers_grid(ask, look),),
        data=LIST,
        code=(
            ("skylark", f"skylark cluster list --namesrv {ask.connection.namesrv}"),
            ("python", "admin.brokers.summary()"),
        ),
        failures=look.failures,
        live_s=2,
    )


BROKERS = PageSection("brokers", {"runtime": "", "settings": "settings"})


async def _broker_page(
    ask: Ask, view: str, read: Callable[[str], Awaitable[Mapping[str, str]]], code: str
) -> PageView:
    """The figures of a broker, and a table of names with their values."""
    name, wanted_id = ask.path("broker"), ask.number("id", 0)
    nodes = [node for node in await ask.admin.brokers.nodes() if node.name == name]
    node = next((node for node in nodes if node.broker_id == wanted_id), nodes[0] if nodes else None)
    if node is None:
        raise NotThere(ask.t("broker.missing", broker=name))
    values = await read(node.address)
    summary = next((item for item in (await ask.look()).summary.brokers if item.node == node), None)
    facts = [
        ("role", "master" if node.is_master else "slave", "state", None),
        ("in_per_s", None if summary is None else summary.puts_per_s, "rate", None),
        ("out_per_s", None if summary is None else summary.gets_per_s, "rate", None),
        ("disk", None if summary is None else summary.disk_used_ratio, "percent", None),
        ("version", None if summary is None else summary.version, "text", None),
        ("earliest", None if summary is None else summary.earliest_message_ms, "time", None),
    ]
    word = ask.arg("q").lower()
    rows = [
        {"name": key, "value": value}
        for key, value in sorted(values.items(), key=lambda item: item[0].lower())
        if word in key.lower() or word in value.lower()
    ]
    return PageView(
        template="broker.html",
        nav="brokers",
        title=name,
        sentence=ask.t("broker.sentence", address=node.address, cluster=node.cluster),
        crumbs=BROKERS.crumbs(ask, name),
        tabs=BROKERS.tabs(ask, name, view),
        grids=(Grid(view, (GridColumn("name", "code"), GridColumn("value", "code")), rows),),
        data={"facts": facts, "broker": name, "can_set": view == "settings" and not ask.settings.read_only},
        document={"broker": name, "address": node.address, view: dict(values)},
        code=(
            ("skylark", f"skylark broker {code} {name} --namesrv {ask.connection.namesrv}"),
            ("python", f'admin.brokers.{view.replace("settings", "config")}("{name}")'),
        ),
    )


async def runtime(ask: Ask) -> PageView:
    """Run-time values of one broker, by RocketMQ's names."""
    return await _broker_page(ask, "runtime", ask.admin.brokers.runtime, "status")


async def settings(ask: Ask) -> PageView:
    """Settings of one broker, and a form that changes one."""
    return await _broker_page(ask, "settings", ask.admin.brokers.config, "config")


async def name_servers(ask: Ask) -> PageView:
    """What each name server knows, its settings, and a table of values; differences are marked."""
    addresses = ask.admin.name_servers.addresses
    found = dict(zip(addresses, await at_once(ask.admin.name_servers.known, addresses), strict=True))
    failures = {address: error for address, error in found.items() if isinstance(error, RocketMQError)}
    servers = [
        {
            "address": address,
            "state": "away" if isinstance(known, RocketMQError) else "ok",
            "brokers": None if isinstance(known, RocketMQError) else known.brokers,
            "topics_known": None if isinstance(known, RocketMQError) else known.topics,
        }
        for address, known in found.items()
    ]
    counts = {(row["brokers"], row["topics_known"]) for row in servers if row["state"] == "ok"}
    for row in servers:
        row["differs"] = len(counts) > 1
    grids = [
        Grid(
            "name_servers",
            (
                GridColumn("address", "code"),
                GridColumn("state", "state"),
                GridColumn("brokers", "number"),
                GridColumn("topics_known", "number"),
            ),
            servers,
        )
    ]
    namespace = ask.arg("namespace", ORDER_NAMESPACE)
    table = await ask.admin.name_servers.table(namespace)
    rows = [{"key": key, "value": value} for key, value in sorted(table.items())]
    grids.append(Grid("kv", (GridColumn("key", "name"), GridColumn("value", "code")), rows))
    try:
        config = await ask.admin.name_servers.config()
    except SomeServersFailed as error:
        config, failures = {}, {**failures, **error.failures}
    word = ask.arg("q").lower()
    values = {
        address: {key: value for key, value in sorted(part.items()) if word in f"{key} {value}".lower()}
        for address, part in config.items()
    }
    grids.append(replace(settings_grid(values), sortable=frozenset({"setting"})))
    return PageView(
        template="name_servers.html",
        nav="name_servers",
        title=ask.t("name_servers"),
        sentence=ask.t("name_servers.sentence", count=len(addresses), away=len(failures)),
        grids=tuple(grids),
        data={"namespace": namespace},
        code=(
            ("skylark", f"skylark namesrv config --namesrv {ask.connection.namesrv}"),
            ("python", "admin.name_servers.config()"),
        ),
        failures=failures_of(failures),
    )


async def clients(ask: Ask) -> PageView:
    """Producers of all brokers, and the members of groups, of those that the filter finds first."""
    look = await ask.look()
    found = await at_once(ask.admin.clients.all_producers, look.masters)
    rows: dict[tuple[str, str], dict[str, object]] = {}
    failures = [
        f"no clients from {address}: {table}"
        for address, table in zip(look.masters, found, strict=True)
        if isinstance(table, RocketMQError)
    ]
    for group, members in (
        item for table in found if not isinstance(table, RocketMQError) for item in table.items()
    ):
        for member in members:
            rows[group, member.client_id] = {
                "role": ask.t("producer"),
                "group": group,
                "client": member.client_id,
                "address": member.remote_ip.removeprefix("/"),
                "language": member.language,
                "version": version_name(member.version),
            }
    word = ask.arg("q").lower()
    names = sorted(look.inventory.groups, key=lambda name: (word not in name.lower(), name))[:GROUPS_MAX]
    for name, online in (await ask.connection.watch.members(names)).items():
        for client in online.clients if isinstance(online, ConnectedConsumers) else ():
            rows[f"%{name}", client.client_id] = {
                "role": ask.t("consumer"),
                "group": name,
                "client": client.client_id,
                "address": client.address,
                "language": client.language,
                "version": version_name(client.version),
                "href": ask.href("groups", name),
                "member": ask.href("groups", name, "members", client.client_id),
            }
    columns = (
        GridColumn("role"),
        GridColumn("group", "name", lambda row: row.get("href")),
        GridColumn("client", "code", lambda row: row.get("member")),
        GridColumn("address", "code"),
        GridColumn("language"),
        GridColumn("version"),
    )
    sortable = frozenset({"role", "group", "client", "address", "language", "version"})
    if len(look.inventory.groups) > len(names):
        counts = {"count": len(names), "total": f"{len(look.inventory.groups):,}"}
        failures.append(ask.t("clients.some", **counts))
    return await list_page(
        ask,
        "clients",
        Grid("clients", columns, list(rows.values()), sort="group", sortable=sortable),
        code=(
            ("skylark", f"skylark producer list --namesrv {ask.connection.namesrv}"),
            ("python", "admin.clients.all_producers(broker)"),
        ),
        failures=tuple(failures),
        live_s=10,
    )


async def check_health(ask: Ask) -> PageView:
    """The checks of `skylark doctor` on the servers, with advice."""
    found = await asyncio.to_thread(lambda: list(health.servers(ask.connection.namesrv)))
    words = {HealthState.OK: "ok", HealthState.NOTE: "note", HealthState.FAULT: "fault"}
    rows = [
        {"state": words[check.state], "check": check.name, "found": check.found, "advice": check.advice}
        for check in sorted(found, key=lambda check: list(HealthState).index(check.state), reverse=True)
    ]
    columns = (
        GridColumn("state", "state"),
        GridColumn("check", "name"),
        GridColumn("found"),
        GridColumn("advice"),
    )
    faults = sum(1 for check in found if check.state is HealthState.FAULT)
    return PageView(
        template="list.html",
        nav="health",
        title=ask.t("health"),
        sentence=ask.t("health.sentence", count=len(rows), faults=faults),
        grids=(Grid("checks", columns, rows),),
        data=LIST,
        code=(("skylark", f"skylark doctor --namesrv {ask.connection.namesrv}"),),
    )
