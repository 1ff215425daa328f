"""Brokers with their run-time values and settings, and name servers."""

from __future__ import annotations

import asyncio

from skylark import health
from skylark.admin.results import ConnectedConsumers
from skylark.admin.server_calls import at_once
from skylark.console.grid import Grid, GridColumn
from skylark.console.pages.groups import members_of
from skylark.console.pages.overview import brokers_grid
from skylark.console.pages.topics import LIST
from skylark.console.view import Ask, NotThere, PageView, failures_of
from skylark.errors import RocketMQError, SomeServersFailed
from skylark.health import HealthState

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


async def one(ask: Ask) -> PageView:
    """Run-time values and settings of one broker."""
    name, wanted_id = ask.path("broker"), ask.number("id", 0)
    nodes = [node for node in await ask.admin.brokers.nodes() if node.name == name]
    node = next((node for node in nodes if node.broker_id == wanted_id), nodes[0] if nodes else None)
    if node is None:
        raise NotThere(ask.t("broker.missing", broker=name))
    runtime = await ask.admin.brokers.runtime(node.address)
    config = await ask.admin.brokers.config(node.address)
    columns = (GridColumn("name", "code"), GridColumn("value", "code"))
    word = ask.arg("q").lower()

    def rows(values: dict[str, str]) -> list[dict[str, str]]:
        return [
            {"name": key, "value": value}
            for key, value in sorted(values.items())
            if word in key.lower() or word in value.lower()
        ]

    summary = next((item for item in (await ask.look()).summary.brokers if item.node == node), None)
    facts = [
        ("role", "master" if node.is_master else "slave", "state", None),
        ("in_per_s", None if summary is None else summary.puts_per_s, "rate", None),
        ("out_per_s", None if summary is None else summary.gets_per_s, "rate", None),
        ("disk", None if summary is None else summary.disk_used_ratio, "percent", None),
        ("version", None if summary is None else summary.version, "text", None),
        ("address", node.address, "code", None),
    ]
    return PageView(
        template="broker.html",
        nav="brokers",
        title=name,
        sentence=ask.t("broker.sentence", address=node.address, cluster=node.cluster),
        crumbs=((ask.t("brokers"), ask.href("brokers")), (name, ask.href("brokers", name))),
        grids=(Grid("runtime", columns, rows(dict(runtime))), Grid("settings", columns, rows(config))),
        data={"facts": facts, "broker": name},
        document={"broker": name, "address": node.address, "runtime": dict(runtime), "settings": config},
        code=(
            ("skylark", f"skylark broker status {name} --namesrv {ask.connection.namesrv}"),
            ("python", f'admin.brokers.runtime("{name}")'),
        ),
    )


async def name_servers(ask: Ask) -> PageView:
    """The settings of each name server, and the table of fixed orders."""
    failures: tuple[str, ...] = ()
    try:
        found = await ask.admin.name_servers.config()
    except SomeServersFailed as error:
        found, failures = {}, failures_of(error.failures)
    keys = sorted({key for values in found.values() for key in values})
    rows: list[dict[str, object]] = [
        {"setting": key, **{address: values.get(key) for address, values in found.items()}} for key in keys
    ]
    for row in rows:
        row["differs"] = len({value for key, value in row.items() if key != "setting"}) > 1
    columns = (GridColumn("setting", "code"), *(GridColumn(address, "code") for address in found))
    orders = await ask.admin.name_servers.table(ORDER_NAMESPACE)
    order_rows = [{"topic": topic, "order": text} for topic, text in sorted(orders.items())]
    grids = [Grid("settings", columns, rows)]
    if order_rows:
        grids.append(Grid("orders", (GridColumn("topic"), GridColumn("order", "code")), order_rows))
    return PageView(
        template="list.html",
        nav="name_servers",
        title=ask.t("name_servers"),
        sentence=ask.t("name_servers.sentence", addresses=", ".join(ask.admin.name_servers.addresses)),
        grids=tuple(grids),
        data=LIST,
        code=(("skylark", f"skylark namesrv config --namesrv {ask.connection.namesrv}"),),
        failures=failures,
    )


async def clients(ask: Ask) -> PageView:
    """Producers of all brokers, and the members of the groups that are online."""
    look = await ask.look()
    masters = [item.node.address for item in look.summary.brokers if item.node.is_master]
    found = await at_once(ask.admin.clients.all_producers, masters)
    rows: dict[tuple[str, str], dict[str, object]] = {}
    failures = []
    for address, table in zip(masters, found, strict=True):
        if isinstance(table, RocketMQError):
            failures.append(f"no clients from {address}: {table}")
            continue
        for group, members in table.items():
            for member in members:
                rows[group, member.client_id] = {
                    "role": ask.t("producer"),
                    "group": group,
                    "client": member.client_id,
                    "address": member.remote_ip,
                    "language": member.language,
                    "version": member.version,
                }
    names = list(look.inventory.groups)[:GROUPS_MAX]

    async def ask_members(name: str) -> ConnectedConsumers | None:
        return await members_of(ask, name)

    for name, online in zip(names, await at_once(ask_members, names), strict=True):
        if online is None or isinstance(online, RocketMQError):
            continue
        for client in online.clients:
            rows[f"%{name}", client.client_id] = {
                "role": ask.t("consumer"),
                "group": name,
                "client": client.client_id,
                "address": client.address,
                "language": client.language,
                "version": client.version,
                "href": ask.href("groups", name, "members", client.client_id),
            }
    columns = (
        GridColumn("role"),
        GridColumn("group", "name"),
        GridColumn("client", "code", lambda row: row.get("href")),
        GridColumn("address", "code"),
        GridColumn("language"),
        GridColumn("version", "number"),
    )
    sortable = frozenset({"role", "group", "client", "address", "language"})
    grid = ask.arranged(Grid("clients", columns, list(rows.values()), sort="group", sortable=sortable))
    return PageView(
        template="list.html",
        nav="clients",
        title=ask.t("clients"),
        sentence=ask.t("clients.sentence", count=grid.total or 0),
        grids=(grid,),
        data=LIST,
        code=(("skylark", "skylark producer list"), ("python", "admin.clients.all_producers(broker)")),
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
