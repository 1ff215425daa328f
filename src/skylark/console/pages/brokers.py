"""Brokers with their run-time values and settings, and name servers."""

from __future__ import annotations

from skylark.console.grid import Grid, GridColumn
from skylark.console.pages.overview import brokers_grid
from skylark.console.pages.topics import LIST
from skylark.console.view import Ask, NotThere, PageView, failures_of
from skylark.errors import SomeServersFailed

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"


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
