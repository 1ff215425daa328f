"""The public HTTP API: produce, read by cursor, offsets, administration. Nothing is kept between requests."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from skylark.admin.leases import LeaseReceipt, receipt_of
from skylark.admin.results import Group
from skylark.admin.server_calls import at_once, whole
from skylark.console.connections import WrongCredentials
from skylark.console.pages import access, dead_letters, messages, sql, users
from skylark.console.pages import brokers as servers
from skylark.console.pages.changes import set_broker
from skylark.console.pages.messages import STREAMS_MAX, cursor_text, message_document, parse_cursor, wanted
from skylark.console.pages.resets import move, plan
from skylark.console.view import Ask, BadForm, Console, NotThere, Page, PageView, document_of, failures_of
from skylark.errors import (
    BadMessage,
    BadName,
    BrokerError,
    ClientError,
    NoRoute,
    RemotingError,
    RocketMQError,
)
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.pop import POP_MESSAGES_MAX
from skylark.quantities import parse_duration_ms, parse_time_ms

PREFIX = "/api/v1"
BATCH_MAX = 1000
READ_MAX = 1000
WAIT_S_MAX = 60.0
LOOK_EVERY_S = 0.2
PROPERTY_IDEMPOTENCY_KEY = "IDEMPOTENCY_KEY"


class NewMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message to send: `body` is text, `json` any value, `body_base64` bytes."""

    body: str | None = None
    json: Any = msgspec.UNSET
    body_base64: str | None = None
    tag: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    order_key: str | None = None
    delay: str | None = None
    deliver_at: datetime | None = None


class NewMessages(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[NewMessage]


class NewTopic(msgspec.Struct, forbid_unknown_fields=True):
    queues: int = 8
    type: str = ""


class NewGroup(msgspec.Struct, forbid_unknown_fields=True):
    enabled: bool = True
    retries: int = 16
    orderly: bool = False


class NewOffsets(msgspec.Struct, forbid_unknown_fields=True):
    """`offsets` as a cursor (`broker-a:0:12,broker-a:1:7`), or `to`: begin, end, a time, `group:NAME`."""

    offsets: str | None = None
    to: str | None = None


class NewSettings(msgspec.Struct, forbid_unknown_fields=True):
    """Settings of a broker by RocketMQ's keys."""

    settings: dict[str, str]


class NewUser(msgspec.Struct, forbid_unknown_fields=True):
    is_super: bool = msgspec.field(name="super", default=False)
    is_enabled: bool = msgspec.field(name="enabled", default=True)


class NewResend(msgspec.Struct, forbid_unknown_fields=True):
    """`letters` are ids, none for all that wait; `rate` such as `20/s`."""

    letters: list[str] = []
    rate: str = ""
    to_all_groups: bool = False


class NewReceive(msgspec.Struct, forbid_unknown_fields=True):
    """`tags` as in `created || paid`, or an SQL92 condition; `from` counts for a group without offsets."""

    topic: str
    tags: str = "*"
    sql: str | None = None
    limit: int = 32
    invisible: str = "30s"
    wait: str = "0s"
    start: Literal["begin", "end"] = msgspec.field(default="begin", name="from")


class NewAcks(msgspec.Struct, forbid_unknown_fields=True):
    """Receipts of messages that were processed."""

    receipts: list[str]


class NewLease(msgspec.Struct, forbid_unknown_fields=True):
    """`invisible`: how long from now on; `0s` has the message delivered again at once."""

    receipt: str
    invisible: str


Call = Callable[[Ask], Awaitable[Any]]


async def _read(ask: Ask, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(await ask.request.body() or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise BadForm(str(error)) from None
    except msgspec.DecodeError as error:
        raise BadForm(f"the request is not JSON: {error}") from None


# --- Messages ---


async def produce(ask: Ask) -> Any:
    """Send one message, or up to 1,000 under `messages`; answers after the broker has."""
    topic = ask.path("topic")
    if ask.request.headers.get("content-type", "").partition(";")[0].strip() == "application/json":
        body = await ask.request.body()
        is_many = b'"messages"' in body[:64]
        given = (await _read(ask, NewMessages)).messages if is_many else [await _read(ask, NewMessage)]
        messages = [_made(topic, item) for item in given]
    else:
        messages = [await _raw(ask, topic)]
        is_many = False
    if not 1 <= len(messages) <= BATCH_MAX:
        raise BadForm(f"{len(messages)} messages; send 1 to {BATCH_MAX} at once")
    if key := ask.request.headers.get("idempotency-key"):
        messages = [
            msgspec.structs.replace(item, properties={**item.properties, PROPERTY_IDEMPOTENCY_KEY: key})
            for item in messages
        ]
    producer = await ask.connection.producer()
    receipts = await at_once(producer.send, messages)
    results = [
        {"error": str(receipt)}
        if isinstance(receipt, RocketMQError)
        else {
            "message_id": receipt.message_id,
            "offset_message_id": receipt.offset_message_id,
            "broker": receipt.queue.broker_name,
            "queue": receipt.queue.queue_id,
            "offset": receipt.queue_offset,
            "status": receipt.status.value,
        }
        for receipt in receipts
    ]
    if not is_many:
        [receipt] = receipts
        if isinstance(receipt, RocketMQError):
            raise receipt
        return results[0]
    return {"results": results}


def _made(topic: str, item: NewMessage) -> Message:
    given = [item.body is not None, item.json is not msgspec.UNSET, item.body_base64 is not None]
    if sum(given) != 1:
        raise BadForm("pass exactly one of body, json and body_base64")
    if item.body is not None:
        body = item.body.encode()
    elif item.body_base64 is not None:
        try:
            body = base64.b64decode(item.body_base64, validate=True)
        except binascii.Error as error:
            raise BadForm(f"body_base64: {error}") from None
    else:
        body = msgspec.json.encode(item.json)
    return Message(
        topic,
        body,
        tags=item.tag,
        keys=item.keys,
        properties=item.properties,
        sharding_key=item.order_key,
        deliver_at=item.deliver_at,
        deliver_after=None if item.delay is None else _delay(item.delay),
    )


def _delay(text: str) -> timedelta:
    return timedelta(milliseconds=_duration_ms(text))


async def _raw(ask: Ask, topic: str) -> Message:
    """The body as it is, with the rest in headers: X-Tag, X-Keys, X-Property-NAME, X-Order-Key, X-Delay."""
    headers = ask.request.headers
    properties = {
        name[len("x-property-") :]: value for name, value in headers.items() if name.startswith("x-property-")
    }
    delay = headers.get("x-delay")
    return Message(
        topic,
        await ask.request.body(),
        tags=headers.get("x-tag"),
        keys=headers.get("x-keys", "").split(),
        properties=properties,
        sharding_key=headers.get("x-order-key"),
        deliver_after=None if delay is None else _delay(delay),
    )


async def consume(ask: Ask) -> Any:
    """Messages after a cursor, oldest first. `wait` waits for the first one; also as a stream."""
    topic = ask.path("topic")
    limit = ask.number("limit", 100)
    if not 1 <= limit <= READ_MAX:
        raise BadForm(f"invalid limit {limit}; pass 1 to {READ_MAX}")
    is_stream = "text/event-stream" in ask.request.headers.get("accept", "")
    text = ask.request.headers.get("last-event-id") or ask.arg("after")
    at = parse_cursor(topic, text) or await _start(ask, topic)
    if is_stream:
        if ask.console.streams >= STREAMS_MAX:
            return Response(status_code=503)
        return StreamingResponse(_stream(ask, topic, at, limit), media_type="text/event-stream")
    wait_s = min(float(ask.number("wait", 0)), WAIT_S_MAX)
    until = time.monotonic() + wait_s
    while True:
        found, after, failures = await _next(ask, topic, at, limit)
        if found or time.monotonic() >= until:
            break
        at = after
        await asyncio.sleep(LOOK_EVERY_S)
    return {
        "messages": found,
        "after": cursor_text(after),
        **({"failures": list(failures)} if failures else {}),
    }


async def _start(ask: Ask, topic: str) -> dict[MessageQueue, int]:
    """`from`: begin (the default), end, or a time."""
    word = ask.arg("from", "begin")
    stats = await ask.admin.topics.stats(topic)
    if word in ("begin", "end"):
        return {part.queue: part.begin if word == "begin" else part.end for part in stats.queues}
    try:
        time_ms = parse_time_ms(word, round(time.time() * 1000))
    except ValueError as error:
        raise BadForm(str(error)) from None

    async def find(queue: MessageQueue) -> int:
        return await ask.admin.offsets.at_time(queue, time_ms)

    queues = [part.queue for part in stats.queues]
    return whole(dict(zip(queues, await at_once(find, queues), strict=True)))


async def _next(
    ask: Ask, topic: str, at: Mapping[MessageQueue, int], limit: int
) -> tuple[list[dict[str, object]], dict[MessageQueue, int], tuple[str, ...]]:
    stats = await ask.admin.topics.stats(topic)
    after = {part.queue: at.get(part.queue, part.begin) for part in stats.queues}
    behind = {
        part.queue: max(part.begin, after[part.queue])
        for part in stats.queues
        if part.end > after[part.queue]
    }
    if not behind:
        return [], after, failures_of(stats.failures)
    found = await ask.admin.messages.since(topic, behind, messages_max=limit)
    is_wanted = wanted(ask)
    for message in found.messages:
        after[message.queue] = max(after[message.queue], message.queue_offset + 1)
    chosen = [message_document(ask, message) for message in found.messages if is_wanted(message)]
    return chosen, after, failures_of({**stats.failures, **found.failures})


async def _stream(ask: Ask, topic: str, at: dict[MessageQueue, int], limit: int) -> AsyncIterator[bytes]:
    ask.console.streams += 1
    try:
        while True:
            try:
                found, at, _ = await _next(ask, topic, at, limit)
            except RocketMQError as error:
                yield b"event: failed\ndata: " + msgspec.json.encode(str(error)) + b"\n\n"
                found = []
            for number, message in enumerate(found, 1):
                cursor = f"id: {cursor_text(at)}\n".encode() if number == len(found) else b""
                yield cursor + b"data: " + msgspec.json.encode(message) + b"\n\n"
            if not found:
                yield b": \n\n"
                await asyncio.sleep(LOOK_EVERY_S)
    finally:
        ask.console.streams -= 1


async def one_message(ask: Ask) -> Any:
    """A message by either of its ids."""
    try:
        return message_document(ask, await ask.admin.messages.get(ask.path("topic"), ask.path("id")))
    except NoRoute:
        raise
    except ClientError as error:
        raise NotThere(str(error)) from None


# --- Leases, with brokers that have pop ---


async def receive(ask: Ask) -> Any:
    """Receive up to 32 messages of a group, each with a receipt; others do not get them meanwhile.

    The lease is kept by the broker: any console or gateway can acknowledge it. What is not acknowledged in
    time is delivered again, and after the group's attempts it becomes a dead letter. The group must exist.
    """
    given = await _read(ask, NewReceive)
    if not 1 <= given.limit <= POP_MESSAGES_MAX:
        raise BadForm(f"invalid limit {given.limit}; pass 1 to {POP_MESSAGES_MAX}")
    found = await ask.admin.leases.receive(
        ask.path("group"),
        given.topic,
        expression=given.tags,
        sql=given.sql,
        messages_max=given.limit,
        invisible_ms=_duration_ms(given.invisible),
        wait_ms=min(_duration_ms(given.wait), round(WAIT_S_MAX * 1000)),
        from_end=given.start == "end",
    )
    return {
        "messages": [
            {**message_document(ask, message), "receipt": receipt_of(message).text} for message in found
        ]
    }


async def ack(ask: Ask) -> Any:
    """Acknowledge received messages: they are not delivered again. A result per receipt."""
    given = await _read(ask, NewAcks)
    if not 1 <= len(given.receipts) <= BATCH_MAX:
        raise BadForm(f"{len(given.receipts)} receipts; pass 1 to {BATCH_MAX}")
    group, receipts = ask.path("group"), [_receipt(text) for text in given.receipts]

    async def acknowledge(receipt: LeaseReceipt) -> None:
        await ask.admin.leases.ack(group, receipt)

    results = await at_once(acknowledge, receipts)
    return {
        "results": [
            {"receipt": receipt.text, **({"error": str(result)} if isinstance(result, RocketMQError) else {})}
            for receipt, result in zip(receipts, results, strict=True)
        ]
    }


async def lease(ask: Ask) -> Any:
    """Change how long a received message stays with its receiver. The answer has its new receipt."""
    given = await _read(ask, NewLease)
    receipt = _receipt(given.receipt)
    changed = await ask.admin.leases.hide(ask.path("group"), receipt, _duration_ms(given.invisible))
    return {"receipt": changed.text}


def _receipt(text: str) -> LeaseReceipt:
    try:
        return LeaseReceipt.read(text)
    except ClientError as error:
        raise BadForm(str(error)) from None


def _duration_ms(text: str) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise BadForm(str(error)) from None


# --- Offsets ---


async def offsets(ask: Ask) -> Any:
    """Where a group is in each queue."""
    progress = await ask.admin.groups.progress(ask.path("group"), ask.arg("topic") or None)
    return {
        "lag": progress.lag,
        "queues": [
            {
                "topic": part.queue.topic,
                "broker": part.queue.broker_name,
                "queue": part.queue.queue_id,
                "committed": part.committed,
                "end": part.end,
                "lag": part.lag,
            }
            for part in progress.queues
        ],
    }


async def put_offsets(ask: Ask) -> Any:
    """Commit a cursor, or reset to a time; with `dry_run` only what would happen."""
    group, topic, wanted_at = ask.path("group"), ask.path("topic"), await _read(ask, NewOffsets)
    if (wanted_at.offsets is None) == (wanted_at.to is None):
        raise BadForm("pass either offsets or to")
    if wanted_at.to is not None:
        planned = await plan(ask, group, topic, wanted_at.to)
        old, new = planned.old, dict(planned.new)
    else:
        old = await ask.admin.offsets.committed(group, topic)
        new = parse_cursor(topic, wanted_at.offsets) or {}
    before = cursor_text({queue: at for queue, at in old.items() if at is not None})
    result = {"before": before, "after": cursor_text(new)}
    if "dry_run" in ask.request.query_params:
        return result
    if wanted_at.to is not None:
        await move(ask, planned, wanted_at.to)
    else:
        await ask.admin.offsets.commit(group, new)
    ask.record(
        "reset", f"{group} {topic}", before={"group": group, "topic": topic, "offsets": before}, after=result
    )
    return result


# --- Administration ---


async def topics(ask: Ask) -> Any:
    """All topics with their queues."""
    found = await ask.admin.topics.on_brokers()
    names: dict[str, int] = {}
    for parts in found.answers.values():
        for topic in parts:
            names[topic.name] = names.get(topic.name, 0) + topic.read_queues
    return {"topics": [{"topic": name, "queues": queues} for name, queues in sorted(names.items())]}


async def topic(ask: Ask) -> Any:
    """Begin and end of each queue of a topic."""
    stats = await ask.admin.topics.stats(ask.path("topic"))
    return {
        "topic": stats.topic,
        "messages": stats.messages,
        "queues": [
            {
                "broker": part.queue.broker_name,
                "queue": part.queue.queue_id,
                "begin": part.begin,
                "end": part.end,
                "last_stored_ms": part.last_stored_ms,
            }
            for part in stats.queues
        ],
    }


async def put_topic(ask: Ask) -> Any:
    """Create a topic, or replace its settings."""
    name, given = ask.path("topic"), await _read(ask, NewTopic)
    attributes = {"message.type": given.type} if given.type else None
    await ask.admin.topics.create(name, queues=given.queues, attributes=attributes)
    ask.record("create_topic", name, after=msgspec.to_builtins(given))
    return {"topic": name, **msgspec.to_builtins(given)}


async def delete_topic(ask: Ask) -> Any:
    """Delete a topic and its messages."""
    name = ask.path("topic")
    await ask.admin.topics.route(name)
    await ask.admin.topics.delete(name)
    ask.record("delete_topic", name)
    return {"topic": name, "deleted": True}


async def groups(ask: Ask) -> Any:
    """All groups."""
    return {"groups": await ask.admin.overview.group_names()}


async def put_group(ask: Ask) -> Any:
    """Create a group, or replace its settings."""
    name, given = ask.path("group"), await _read(ask, NewGroup)
    wanted_group = Group(
        name, consume_enabled=given.enabled, retries_max=given.retries, orderly=given.orderly
    )
    await ask.admin.groups.create(wanted_group)
    ask.record("update_group", name, after=msgspec.to_builtins(given))
    return {"group": name, **msgspec.to_builtins(given)}


async def delete_group(ask: Ask) -> Any:
    """Delete a group with its offsets."""
    name = ask.path("group")
    await ask.admin.groups.delete(name)
    ask.record("delete_group", name)
    return {"group": name, "deleted": True}


async def brokers(ask: Ask) -> Any:
    """All brokers with their rates and disks."""
    summary = await ask.admin.brokers.summary()
    return {
        "brokers": [
            {
                "broker": item.node.name,
                "id": item.node.broker_id,
                "address": item.node.address,
                "version": item.version,
                "in_per_s": item.puts_per_s,
                "out_per_s": item.gets_per_s,
                "disk_used_ratio": item.disk_used_ratio,
            }
            for item in summary.brokers
        ],
        "failures": list(failures_of(summary.failures)),
    }


def shown_by(name: str, page: Page) -> Call:
    """A call that answers with what a page shows."""

    async def call(ask: Ask) -> Any:
        found = await page(ask)
        return document_of(found) if isinstance(found, PageView) else found

    call.__name__, call.__doc__ = name, page.__doc__
    return call


async def put_broker_settings(ask: Ask) -> Any:
    """Change live settings of a broker."""
    given = await _read(ask, NewSettings)
    return {"before": (await set_broker(ask, given.settings)).before, "after": given.settings}


async def put_user(ask: Ask) -> Any:
    """Make a user, whose secret only this answer has, or change one."""
    name, given = ask.path("user"), await _read(ask, NewUser)
    user = await ask.admin.users.get(name)
    if user is None or not user.name:
        if not given.is_enabled:
            raise BadForm(f"user {name} does not exist; make it enabled")
        return {"user": name, "secret": await users.make_user(ask, name, is_super=given.is_super)}
    await users.set_user(ask, user, is_enabled=given.is_enabled, is_super=given.is_super)
    return {"user": name, "super": given.is_super, "enabled": given.is_enabled}


async def delete_user(ask: Ask) -> Any:
    """Delete a user with its rules."""
    name = (await users.account(ask)).name
    await ask.admin.users.delete(name)
    ask.record("delete_user", name)
    return {"user": name, "deleted": True}


async def resend(ask: Ask) -> Any:
    """Send dead letters of a group again; a result for each."""
    given = await _read(ask, NewResend)
    results = await dead_letters.send_again(ask, given.letters, given.rate, to_all=given.to_all_groups)
    return {"results": dead_letters.result_rows(results)}


async def query(ask: Ask) -> Any:
    """The answer of an SQL query over topics, store files and tables of the lake."""
    found = await sql.answered(ask, ask.arg("query"))
    if found.error:
        raise BadForm(found.error)
    return {
        "columns": [{"name": name, "type": kind} for name, kind in found.columns],
        "rows": found.rows,
        "has_more": found.has_more,
        "read": found.notes,
    }


CALLS: tuple[tuple[str, str, Call, type[Any] | None, tuple[str, ...]], ...] = (
    ("GET", "topics", topics, None, ()),
    ("GET", "topics/{topic}", topic, None, ()),
    ("PUT", "topics/{topic}", put_topic, NewTopic, ()),
    ("DELETE", "topics/{topic}", delete_topic, None, ()),
    ("POST", "topics/{topic}/messages", produce, NewMessage, ()),
    (
        "GET",
        "topics/{topic}/messages",
        consume,
        None,
        ("after", "from", "tag", "text", "where", "limit", "wait"),
    ),
    ("GET", "topics/{topic}/messages/{id}", one_message, None, ()),
    ("GET", "topics/{topic}/messages/{id}/journey", shown_by("journey", messages.journey), None, ()),
    ("GET", "groups", groups, None, ()),
    ("PUT", "groups/{group}", put_group, NewGroup, ()),
    ("DELETE", "groups/{group}", delete_group, None, ()),
    ("GET", "groups/{group}/offsets", offsets, None, ("topic",)),
    ("PUT", "groups/{group}/offsets/{topic}", put_offsets, NewOffsets, ("dry_run",)),
    ("POST", "groups/{group}/receive", receive, NewReceive, ()),
    ("POST", "groups/{group}/ack", ack, NewAcks, ()),
    ("POST", "groups/{group}/lease", lease, NewLease, ()),
    ("GET", "dead-letters", shown_by("dead_letters", dead_letters.index), None, ("q", "page")),
    ("GET", "dead-letters/{group}", shown_by("letters", dead_letters.letters), None, ("all", "q", "page")),
    ("POST", "dead-letters/{group}/resend", resend, NewResend, ()),
    ("GET", "brokers", brokers, None, ()),
    ("GET", "brokers/{broker}/settings", shown_by("broker_settings", servers.settings), None, ()),
    ("PUT", "brokers/{broker}/settings", put_broker_settings, NewSettings, ()),
    ("GET", "clients", shown_by("clients", servers.clients), None, ("q", "page")),
    ("GET", "users", shown_by("users", access.index), None, ()),
    ("GET", "users/{user}", shown_by("user", users.one), None, ()),
    ("PUT", "users/{user}", put_user, NewUser, ()),
    ("DELETE", "users/{user}", delete_user, None, ()),
    ("GET", "sql", query, None, ("query", "messages")),
)
"""Method, path under a cluster, function, body, and parameters."""


PARAMETERS = {
    "after": "The cursor of the last answer; the messages behind it are returned.",
    "from": "Without a cursor: begin (the default), end, or a time such as 1h or 2026-11-15T10:30Z.",
    "tag": "Only messages with this tag.",
    "text": "Only bodies that contain this text.",
    "where": "Only messages that match an SQL92 condition over properties, TAGS, KEYS and body.FIELD.",
    "limit": "Maximum number of messages, 1 to 1000; default 100.",
    "wait": "Seconds to wait for the first message, at most 60.",
    "topic": "Only this topic.",
    "query": "A SELECT; tables are topics, `store.TOPIC` and `lake.TABLE`.",
    "messages": "Number of newest messages of a topic that are read; default 10000, at most 100000.",
    "q": "Only what contains this text.",
    "page": "The number of the page, 50 rows each; default 1.",
    "all": "1: with letters that were sent again.",
    "dry_run": "Only show what would happen.",
}
"""What the parameters of queries mean."""


def openapi(clusters: list[str]) -> dict[str, Any]:
    """The description of all calls, from their functions and bodies."""
    kinds = [*(kind for *_, kind, _ in CALLS if kind is not None), NewMessages]
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for method, path, call, kind, parameters in CALLS:
        names = [part.strip("{}") for part in path.split("/") if part.startswith("{")]
        operation: dict[str, Any] = {
            "operationId": call.__name__,
            "summary": _paragraphs(call)[0],
            "description": "\n\n".join(_paragraphs(call)[1:]),
            "parameters": [
                {
                    "name": "cluster",
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string", "enum": clusters},
                },
                *(
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                    for name in names
                ),
                *(
                    {
                        "name": name,
                        "in": "query",
                        "description": PARAMETERS[name],
                        "schema": {"type": "string"},
                    }
                    for name in parameters
                ),
            ],
            "responses": {
                "200": {"description": "done"},
                "default": {"description": "a problem", "content": {"application/problem+json": {}}},
            },
        }
        if kind is not None:
            schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
            operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
        paths.setdefault(f"{PREFIX}/{{cluster}}/{path}", {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Skylark", "version": "1", "description": "Only grows within version 1."},
        "paths": paths,
        "components": {"schemas": components},
    }


def _paragraphs(call: Call) -> list[str]:
    return [" ".join(part.split()) for part in (call.__doc__ or "").split("\n\n")]


def routes(console: Console) -> list[Route]:
    """The routes of the API; without changes in a console that only reads."""
    made = [Route(f"{PREFIX}/openapi.json", _described(console))]
    for method, path, call, _, _ in CALLS:
        if method == "GET" or not console.settings.read_only:
            made.append(Route(f"{PREFIX}/{{cluster}}/{path}", _answering(console, call), methods=[method]))
    return made


def _described(console: Console) -> Callable[[Request], Awaitable[Response]]:
    document = msgspec.json.encode(openapi(list(console.settings.clusters)))

    async def endpoint(_: Request) -> Response:
        return Response(document, media_type="application/json")

    return endpoint


def _answering(console: Console, call: Call) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        alias = str(request.path_params["cluster"])
        try:
            connection = await console.connections.get(alias, request.state.visitor.credentials)
        except KeyError:
            return problem(404, f"no cluster {alias}; known clusters: {', '.join(console.settings.clusters)}")
        except WrongCredentials as error:
            return problem(401, str(error))
        except RocketMQError as error:
            return problem(504, str(error))
        try:
            found = await call(Ask(console, request, connection))
        except (NoRoute, NotThere) as error:
            return problem(404, str(error))
        except (BadForm, BadMessage, BadName) as error:
            return problem(400, str(error))
        except BrokerError as error:
            return problem(502, error.remark or str(error), code=int(error.code))
        except RemotingError as error:
            return problem(504, str(error))
        except RocketMQError as error:
            return problem(502, str(error))
        if isinstance(found, Response):
            return found
        return Response(msgspec.json.encode(found, enc_hook=str), media_type="application/json")

    return endpoint


def problem(status: int, title: str, **more: object) -> Response:
    """An error as `application/problem+json`."""
    body = msgspec.json.encode({"title": title, "status": status, **more})
    return Response(body, status, media_type="application/problem+json")
