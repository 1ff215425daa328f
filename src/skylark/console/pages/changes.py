"""The log of changes, putting one back, and the forms that change topics, groups and brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from skylark.console.changes import Change
from skylark.console.grid import Grid, GridColumn
from skylark.console.pages import resets, users
from skylark.console.view import Ask, BadForm, NotThere, PageView, redirect

PERMISSIONS = {"rw": 6, "r": 4, "w": 2}


async def index(ask: Ask) -> PageView:
    """Who did what, newest first."""
    rows = [
        {
            "time": change.time_ms,
            "number": change.number,
            "action": ask.t(f"action.{change.action}"),
            "target": change.target,
            "user": change.user or change.address,
            "before": "" if change.before is None else _text(change.before),
            "after": _text(change.after),
            "state": "undone" if change.undone_by else "",
            "can_be_undone": change.can_be_undone and not ask.settings.read_only,
        }
        for change in ask.console.changes.of(ask.alias)
    ]
    columns = (
        GridColumn("time", "time"),
        GridColumn("user"),
        GridColumn("action"),
        GridColumn("target", "name"),
        GridColumn("before", "code"),
        GridColumn("after", "code"),
        GridColumn("state", "state"),
    )
    return PageView(
        template="changes.html",
        nav="changes",
        title=ask.t("changes"),
        sentence=ask.t("changes.sentence", count=len(rows)),
        grids=(Grid("changes", columns, rows),),
        data={"rows": rows},
    )


def _text(value: Any) -> str:
    return ", ".join(
        f"{name}: {part if isinstance(part, str) else msgspec.json.encode(part).decode()}"
        for name, part in value.items()
    )


async def _undo_topic(ask: Ask, before: dict[str, Any]) -> None:
    await ask.admin.topics.update(
        before["topic"],
        read_queues=before["read_queues"],
        write_queues=before["write_queues"],
        permission=before["permission"],
    )


async def _undo_group(ask: Ask, before: dict[str, Any]) -> None:
    await ask.admin.groups.update(before["group"], **before["fields"])


async def _undo_broker(ask: Ask, before: dict[str, Any]) -> None:
    await ask.admin.brokers.update_config(before["settings"], broker=before["broker"])


async def _undo_value(ask: Ask, before: dict[str, Any]) -> None:
    await _set_value(ask, before["namespace"], before["key"], before["value"])


UNDOS: dict[str, Callable[[Ask, dict[str, Any]], Awaitable[None]]] = {
    "reset": resets.put_back,
    "update_topic": _undo_topic,
    "update_group": _undo_group,
    "update_broker": _undo_broker,
    "put_value": _undo_value,
    "delete_value": _undo_value,
    "create_user": users.undo_create,
    "update_user": users.undo_update,
    "put_rule": users.undo_rule,
    "delete_rule": users.undo_rule,
}
"""How a change is put back, by its action."""


async def undo(ask: Ask) -> Response:
    """Restore what was before a change."""
    number = ask.path("number")
    change = ask.console.changes.get(int(number)) if number.isdecimal() else None
    if change is None or change.cluster != ask.alias:
        raise NotThere(ask.t("changes.missing", number=number))
    if not change.can_be_undone or change.before is None:
        raise BadForm(ask.t("changes.final"))
    await UNDOS[change.action](ask, dict(change.before))
    done = ask.record("undo", f"{ask.t(f'action.{change.action}')} {change.target}", after=change.before)
    ask.console.changes.undone(change.number, done.number)
    return redirect(ask.href("changes", changed=done.number))


# --- Topics ---


async def new_topic_form(ask: Ask) -> PageView:
    return PageView(
        template="new_topic.html",
        nav="topics",
        title=ask.t("new_topic"),
        crumbs=((ask.t("topics"), ask.href("topics")), (ask.t("new_topic"), ask.here())),
        code=(
            ("skylark", "skylark topic create orders --queues 8"),
            ("python", 'admin.topics.create("orders", queues=8)'),
        ),
    )


async def new_topic(ask: Ask) -> Response:
    """Create a topic on all brokers."""
    fields = await ask.form()
    topic, queues = fields.get("topic", "").strip(), _count(fields, "queues", 8)
    if topic in await ask.admin.topics.names():
        raise BadForm(ask.t("topic.exists", topic=topic))
    kind = fields.get("type", "")
    await ask.admin.topics.create(topic, queues=queues, attributes={"message.type": kind} if kind else None)
    change = ask.record("create_topic", topic, after={"queues": queues, "type": kind})
    return redirect(ask.href("topics", topic, changed=change.number))


async def update_topic(ask: Ask) -> Response:
    """Change queues and permission on each broker."""
    topic, fields = ask.path("topic"), await ask.form()
    old = next(iter((await ask.admin.topics.config(topic)).answers.values()))
    wanted: dict[str, Any] = {
        "read_queues": _count(fields, "read_queues", old.read_queues),
        "write_queues": _count(fields, "write_queues", old.write_queues),
        "permission": PERMISSIONS.get(fields.get("permission", ""), old.permission),
    }
    before = {
        "topic": topic,
        "read_queues": old.read_queues,
        "write_queues": old.write_queues,
        "permission": old.permission,
    }
    await ask.admin.topics.update(topic, **wanted)
    change = ask.record("update_topic", topic, before=before, after=wanted)
    return redirect(ask.href("topics", topic, "settings", changed=change.number))


async def delete_topic(ask: Ask) -> Response:
    """Only if the name was typed."""
    topic, fields = ask.path("topic"), await ask.form()
    if fields.get("name", "").strip() != topic:
        raise BadForm(ask.t("delete.name", name=topic))
    await ask.admin.topics.delete(topic)
    change = ask.record("delete_topic", topic)
    return redirect(ask.href("topics", changed=change.number))


def _count(fields: dict[str, str], name: str, fallback: int) -> int:
    text = fields.get(name, "").strip()
    if not text:
        return fallback
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise BadForm(f"invalid {name} {text!r}; pass 1 to 1024")
    return int(text)


# --- Groups and servers ---


async def update_group(ask: Ask) -> Response:
    """Change whether a group may consume, and its attempts."""
    group, fields = ask.path("group"), await ask.form()
    found = (await ask.admin.groups.config(group)).answers
    if not found:
        raise NotThere(ask.t("group.missing", group=group))
    old = next(iter(found.values()))
    retries = fields.get("retries", "").strip()
    if not retries.isdecimal():
        raise BadForm(f"invalid retries {retries!r}; pass a number")
    wanted: dict[str, Any] = {"consume_enabled": fields.get("enabled") == "1", "retries_max": int(retries)}
    before = {name: getattr(old, name) for name in wanted}
    await ask.admin.groups.update(group, **wanted)
    change = ask.record("update_group", group, before={"group": group, "fields": before}, after=wanted)
    return redirect(ask.href("groups", group, "settings", changed=change.number))


async def update_broker(ask: Ask) -> Response:
    """Change one setting of a broker."""
    fields = await ask.form()
    name = fields.get("name", "").strip()
    change = await set_broker(ask, {name: fields.get("value", "").strip()})
    return redirect(ask.href("brokers", ask.path("broker"), "settings", q=name, changed=change.number))


async def set_broker(ask: Ask, wanted: Mapping[str, str]) -> Change:
    """Change settings of the broker that the address names. Raises NotThere, BadForm."""
    broker = ask.path("broker")
    # Not an address: the request is signed as the person who is logged in.
    if all(node.name != broker for node in await ask.admin.brokers.nodes()):
        raise NotThere(ask.t("broker.missing", broker=broker))
    old = await ask.admin.brokers.config(broker)
    if unknown := [name for name in wanted if name not in old]:
        raise BadForm(ask.t("broker.no_setting", name=unknown[0]))
    await ask.admin.brokers.update_config(wanted, broker=broker)
    before = {"broker": broker, "settings": {name: old[name] for name in wanted}}
    return ask.record("update_broker", f"{broker} {' '.join(wanted)}", before=before, after=wanted)


async def put_value(ask: Ask) -> Response:
    """Set or delete a value of the name servers' table."""
    fields = await ask.form()
    namespace, key = fields.get("namespace", "").strip(), fields.get("key", "").strip()
    if not namespace or not key:
        raise BadForm(ask.t("kv.incomplete"))
    wanted = None if fields.get("delete") else fields.get("value", "").strip()
    place = {"namespace": namespace, "key": key}
    before = {**place, "value": await ask.admin.name_servers.get(namespace, key)}
    await _set_value(ask, namespace, key, wanted)
    action = "delete_value" if wanted is None else "put_value"
    change = ask.record(action, f"{namespace} {key}", before=before, after={"value": wanted})
    return redirect(ask.href("name-servers", namespace=namespace, changed=change.number))


async def _set_value(ask: Ask, namespace: str, key: str, value: str | None) -> None:
    if value is None:
        await ask.admin.name_servers.delete(namespace, key)
    else:
        await ask.admin.name_servers.put(namespace, key, value)
