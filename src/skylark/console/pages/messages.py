"""Messages: the newest first without end, by time, key, id, tag or content; one message; live; sending."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
from markupsafe import Markup, escape
from starlette.responses import Response, StreamingResponse

from skylark.admin.journey import JourneyStep, read_journey
from skylark.admin.message_json import document, text_of
from skylark.admin.messages import SCANNED_MAX, MessagePage
from skylark.admin.server_calls import at_once, whole
from skylark.client.received_message import ReceivedMessage
from skylark.console import drawings
from skylark.console.grid import Grid, GridColumn, format_moment
from skylark.console.pages.topics import TOPICS
from skylark.console.settings import ConsoleSettings
from skylark.console.view import Ask, BadForm, NotThere, PageView, failures_of, redirect
from skylark.errors import BadBody, ClientError, CorruptRecord, NoRoute, RocketMQError
from skylark.model.message import Message
from skylark.model.names import UNSENDABLE_TOPICS
from skylark.model.sql92 import BadSelector, compile_selector
from skylark.protocol.bodies import MessageQueue
from skylark.quantities import parse_duration_ms, parse_time_ms

MESSAGES_MAX = 50
PREVIEW_CHARS = 200
BODY_SHOWN_BYTES = 256 << 10
HEX_SHOWN_BYTES = 16 << 10
STREAMS_MAX = 64
TAIL_EVERY_S = 0.5
TAIL_ROWS_MAX = 50
"""Per step; the rest is counted."""
TAIL_READ_MAX = 5000
"""Messages that a filter looks at in a step; without a filter only those that are shown are read."""
COLUMNS_MAX = 8
DENSITY_PARTS, DENSITY_REQUESTS_MAX = 48, 400
PROPERTIES = "properties."
FILTERS = ("id", "key", "tag", "text", "where", "from", "to", "queue")
_TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*")(?=\s*:)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)'
)
_FIELD = re.compile(r"'(?:[^']|'')*'|\bbody((?:\.\w+)+)|(?<![\w.])(\d{1,15})(?![\w.])")
"""A text in quotes, a field of the body, a whole number."""


# --- The list ---


async def index(ask: Ask) -> PageView:
    """The newest messages, or those that the filters find."""
    topic = ask.path("topic")
    page = await found_by(ask, topic)
    chosen = chosen_columns(ask)
    rows = [message_row(ask, message, chosen) for message in page.messages]
    columns = (
        GridColumn("stored", "time", lambda row: row["href"]),
        GridColumn("queue", "place", lambda row: row["href"]),
        GridColumn("offset", "number"),
        GridColumn("tag", "tag"),
        GridColumn("keys", "words"),
        GridColumn("size", "bytes"),
        *(GridColumn(name, "field") for name in chosen or ("preview",)),
    )
    older = None if page.next_before is None else ask.here(before=cursor_text(page.next_before))
    is_filtered = any(ask.arg(name) for name in FILTERS)
    sentence = ask.t(
        "messages.found" if is_filtered else "messages.newest", count=len(rows), scanned=f"{page.scanned:,}"
    )
    return PageView(
        template="messages.html",
        nav="topics",
        title=topic,
        sentence=sentence,
        crumbs=TOPICS.crumbs(ask, topic),
        tabs=TOPICS.tabs(ask, topic, "messages"),
        grids=(Grid("messages", columns, rows),),
        data={
            "topic": topic,
            "fields": chosen or ["preview"],
            "density": await _density(ask, topic) if ask.arg("density") == "1" else None,
            "older": older,
            "is_first": not ask.arg("before"),
            "is_filtered": is_filtered,
            "filters": {name: ask.arg(name) for name in (*FILTERS, "columns")},
            "can_send": not ask.settings.read_only and topic not in UNSENDABLE_TOPICS,
        },
        document={
            "messages": [message_document(ask, message) for message in page.messages],
            "scanned": page.scanned,
            "next_before": None if page.next_before is None else cursor_text(page.next_before),
        },
        code=(
            ("skylark", f"skylark message list {topic} --since 1h --namesrv {ask.connection.namesrv}"),
            ("python", f'admin.messages.newest("{topic}").messages'),
        ),
        failures=failures_of(page.failures),
    )


async def _density(ask: Ask, topic: str) -> Markup:
    """How many messages were stored in each part of the chosen time; the number of requests is limited."""
    queues = await ask.admin.topics.queues(topic)
    parts = min(DENSITY_PARTS, DENSITY_REQUESTS_MAX // max(1, len(queues)))
    found = await at_once(ask.admin.offsets.earliest_time_ms, queues)
    oldest = [at for at in found if at is not None and not isinstance(at, RocketMQError)]
    now_ms = round(time.time() * 1000)
    end = _moment(ask, "to", now_ms)
    start = max(_moment(ask, "from", 0), min(oldest, default=end))
    if parts < 2 or start >= end:
        return Markup("")
    edges = [start + (end - start) * number // parts for number in range(parts + 1)]
    places = [(queue, edge) for queue in queues for edge in edges]

    async def find(place: tuple[MessageQueue, int]) -> int:
        return await ask.admin.offsets.at_time(*place)

    offsets = whole(dict(zip(places, await at_once(find, places), strict=True)))
    bars = []
    for left, right in pairwise(edges):
        count = sum(offsets[queue, right] - offsets[queue, left] for queue in queues)
        times = [format_moment(edge).replace(" ", "T") + "Z" for edge in (left, right)]
        href = ask.here(**{"from": times[0], "to": times[1], "before": ""})
        bars.append((count, href, f"{times[0]} to {times[1]}: {count:,}"))
    return drawings.strip(bars, title=ask.t("messages.density"))


async def found_by(ask: Ask, topic: str) -> MessagePage:
    """The messages that the address asks for. Raises BadForm, NoRoute."""
    messages = ask.admin.messages
    if message_id := ask.arg("id"):
        try:
            found = (await messages.get(topic, message_id),)
        except NoRoute:
            raise
        except ClientError:
            by_key = await messages.by_key(topic, message_id)
            return MessagePage(by_key.messages, len(by_key.messages), None, by_key.failures)
        return MessagePage(found, 1, None, {})
    is_wanted = wanted(ask)
    if key := ask.arg("key"):
        by_key = await messages.by_key(topic, key)
        chosen = tuple(message for message in by_key.messages if is_wanted(message))
        return MessagePage(chosen, len(by_key.messages), None, by_key.failures)
    before = parse_cursor(topic, ask.arg("before"))
    if before is None:
        before = await _before(ask, topic)
    return await messages.newest(
        topic,
        before=before,
        is_wanted=is_wanted,
        since_ms=_moment(ask, "from", 0),
        messages_max=MESSAGES_MAX,
        scanned_max=SCANNED_MAX,
    )


async def _before(ask: Ask, topic: str) -> dict[MessageQueue, int] | None:
    """Where reading begins for the filters `to` and `queue`; None: at the ends of all queues."""
    queue_text, to_ms = ask.arg("queue"), _moment(ask, "to", -1)
    if not queue_text and to_ms < 0:
        return None
    queues = await ask.admin.topics.queues(topic)
    if queue_text:
        queues = [queue for queue in queues if f"{queue.broker_name}:{queue.queue_id}" == queue_text]
        if not queues:
            raise BadForm(ask.t("messages.no_queue", queue=queue_text))

    async def end(queue: MessageQueue) -> int:
        return await (ask.admin.offsets.end(queue) if to_ms < 0 else ask.admin.offsets.at_time(queue, to_ms))

    return whole(dict(zip(queues, await at_once(end, queues), strict=True)))


def _moment(ask: Ask, name: str, fallback: int) -> int:
    text = ask.arg(name)
    if not text:
        return fallback
    try:
        return parse_time_ms(text, round(time.time() * 1000))
    except ValueError as error:
        raise BadForm(f"{name}: {error}") from None


def wanted(ask: Ask) -> Callable[[ReceivedMessage], bool]:
    """The filters on tag, text and condition as one function. Raises BadForm."""
    tag, text, where = ask.arg("tag"), ask.arg("text").lower(), ask.arg("where")
    if ask.settings.hide_bodies and (text or "body." in where):
        raise BadForm(ask.t("messages.hidden"))
    condition = _condition(where) if where else None

    def is_wanted(message: ReceivedMessage) -> bool:
        return (
            (not tag or message.tags == tag)
            and (not text or text in text_of(message).lower())
            and (condition is None or condition(message))
        )

    return is_wanted


def _condition(where: str) -> Callable[[ReceivedMessage], bool]:
    """SQL92 over properties, TAGS, KEYS and fields of a JSON body such as `body.customer.id`.

    Brokers compare a whole number only with whole numbers; fields of bodies may have fractions.
    """
    has_body = any(match[1] for match in _FIELD.finditer(where))

    def renamed(match: re.Match[str]) -> str:
        field, number = match.groups()
        if field is not None:
            return "body" + str(field).replace(".", "$")
        return f"{number}.0" if number is not None and has_body else match[0]

    try:
        selector = compile_selector(_FIELD.sub(renamed, where))
    except BadSelector as error:
        raise BadForm(f"where: {error}") from None

    def holds(message: ReceivedMessage) -> bool:
        properties = dict(message.properties)
        if has_body:
            fields = _body_fields(message, "$")
            if fields is None:
                return False
            properties |= fields
        return selector.matches(properties)

    return holds


def _body_fields(message: ReceivedMessage, separator: str) -> dict[str, str] | None:
    """The fields of a JSON body by names such as `body.customer.id`; None for other bodies."""
    fields: dict[str, str] = {}
    try:
        _flatten(msgspec.json.decode(message.body), "body", separator, fields)
    except (msgspec.DecodeError, BadBody, CorruptRecord):
        return None
    return fields


def _flatten(value: Any, name: str, separator: str, out: dict[str, str]) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _flatten(part, f"{name}{separator}{key}", separator, out)
    elif isinstance(value, bool):
        out[name] = str(value).lower()
    elif isinstance(value, str | int | float):
        out[name] = str(value)


def chosen_columns(ask: Ask) -> list[str]:
    """Fields that the address asks for in place of the preview: `body.…`, or properties. Raises BadForm."""
    words = [word.strip() for word in ask.arg("columns").split(",")]
    names = [word if word.startswith("body.") else f"{PROPERTIES}{word}" for word in words if word]
    if ask.settings.hide_bodies and any(name.startswith("body.") for name in names):
        raise BadForm(ask.t("messages.hidden"))
    return list(dict.fromkeys(names))[:COLUMNS_MAX]


def message_row(ask: Ask, message: ReceivedMessage, columns: Sequence[str] = ()) -> dict[str, Any]:
    """A row of the list. Names of fields have a dot, so that none replaces another cell."""
    fields: dict[str, str] = {}
    if any(name.startswith("body.") for name in columns):
        fields = _body_fields(message, ".") or {}
    properties = {f"{PROPERTIES}{name}": value for name, value in message.properties.items()}
    return {
        **{name: (properties | fields).get(name, "") for name in columns},
        "stored": message.store_timestamp,
        "queue": f"{message.broker_name}:{message.queue_id}",
        "offset": message.queue_offset,
        "tag": message.tags or "",
        "keys": message.keys,
        "size": message.stored_bytes,
        "preview": "" if ask.settings.hide_bodies else preview(message, ask.settings),
        "href": place_href(ask, message),
    }


def decoded(message: ReceivedMessage, settings: ConsoleSettings) -> str | None:
    """What the decoder of its topic makes of a body, or its error; None without a decoder."""
    decode = settings.decoder_of(message.topic)
    if decode is None:
        return None
    try:
        value = decode(message.body)
        return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    except Exception as error:  # noqa: BLE001 - somebody else's function; its error is shown
        return f"{type(error).__name__}: {error}"


def preview(message: ReceivedMessage, settings: ConsoleSettings) -> str:
    """The beginning of the body, on one line and printable."""
    found = decoded(message, settings)
    text = (text_of(message) if found is None else found)[:PREVIEW_CHARS]
    return "".join(char if char.isprintable() else " " for char in text)


def place_href(ask: Ask, message: ReceivedMessage) -> str:
    """The address of a message, which stays."""
    return ask.href(
        "topics", message.queue.topic, "at", message.broker_name, message.queue_id, message.queue_offset
    )


def message_document(ask: Ask, message: ReceivedMessage) -> dict[str, object]:
    """As the command line prints it; without the body if bodies are hidden."""
    members = document(message)
    if ask.settings.hide_bodies:
        members.pop("body", None)
        members.pop("body_base64", None)
    return members


def cursor_text(offsets: Mapping[MessageQueue, int]) -> str:
    return ",".join(f"{queue.broker_name}:{queue.queue_id}:{at}" for queue, at in sorted(offsets.items()))


def parse_cursor(topic: str, text: str) -> dict[MessageQueue, int] | None:
    """None for an empty text. Raises BadForm."""
    if not text:
        return None
    offsets = {}
    for part in text.split(","):
        broker, colon, rest = part.partition(":")
        queue_id, other, at = rest.partition(":")
        if not (colon and other and queue_id.isdecimal() and at.isdecimal()):
            raise BadForm(f"invalid cursor {part!r}; copy it from `next_before` or a link")
        offsets[MessageQueue(topic, broker, int(queue_id))] = int(at)
    return offsets


# --- One message ---


async def one(ask: Ask) -> PageView | Response:
    """A message by its id: its page has the address of its place."""
    message = await ask.admin.messages.get(ask.path("topic"), ask.path("id"))
    return redirect(place_href(ask, message))


async def stored_at(ask: Ask, topic: str, broker: str, queue_text: str, offset_text: str) -> ReceivedMessage:
    """Raises NotThere."""
    if not (queue_text.isdecimal() and offset_text.isdecimal()):
        raise NotThere(ask.t("message.missing", place=f"{broker}:{queue_text}:{offset_text}"))
    queue = MessageQueue(topic, broker, int(queue_text))
    message = await ask.admin.messages.at(queue, int(offset_text))
    if message is None:
        raise NotThere(ask.t("message.missing", place=f"{broker}:{queue_text}:{offset_text}"))
    return message


async def at_place(ask: Ask) -> PageView:
    """Body, properties, and the state for each group."""
    topic = ask.path("topic")
    message = await stored_at(ask, topic, ask.path("broker"), ask.path("queue"), ask.path("offset"))
    try:
        tracks = await ask.admin.messages.track(message)
    except RocketMQError:
        tracks = []
    columns = (GridColumn("group", "name", lambda row: ask.href("groups", row["group"])), GridColumn("what"))
    rows = [{"group": track.group, "what": ask.t(f"track.{track.state.name}")} for track in tracks]
    queue = ("topics", topic, "at", message.broker_name, message.queue_id)
    place = f"{message.broker_name}:{message.queue_id}:{message.queue_offset}"
    can_send = not ask.settings.read_only and topic not in UNSENDABLE_TOPICS
    named = f"{topic} {message.message_id}"
    return PageView(
        template="message.html",
        nav="topics",
        title=message.message_id,
        sentence=ask.t(
            "message.sentence",
            topic=topic,
            queue=f"{message.broker_name}:{message.queue_id}",
            offset=f"{message.queue_offset:,}",
        ),
        crumbs=(*TOPICS.crumbs(ask, topic), (str(message.queue_offset), ask.here())),
        grids=(Grid("tracks", columns, rows),),
        data={
            "message": message,
            "facts": message_facts(message),
            "properties": dict(sorted(message.properties.items())),
            "forms": {} if ask.settings.hide_bodies else body_forms(message, ask.settings),
            "before": ask.href(*queue, message.queue_offset - 1),
            "after": ask.href(*queue, message.queue_offset + 1),
            "journey": ask.href("topics", topic, "journey", message.message_id),
            "resend": ask.href("topics", topic, "send", like=place) if can_send else None,
        },
        document={**message_document(ask, message), "groups": rows},
        code=(
            ("skylark", f"skylark message get {named} --namesrv {ask.connection.namesrv}"),
            ("python", f'admin.messages.get("{topic}", "{message.message_id}")'),
        ),
    )


def message_facts(message: ReceivedMessage) -> list[tuple[str, object]]:
    """All but body and properties."""
    return [
        ("id", message.message_id),
        ("offset_id", message.offset_message_id),
        ("tag", message.tags or ""),
        ("keys", " ".join(message.keys)),
        ("place", f"{message.broker_name}:{message.queue_id}:{message.queue_offset}"),
        ("born", message.born_timestamp),
        ("born_host", message.born_host),
        ("stored", message.store_timestamp),
        ("store_host", message.store_host),
        ("attempts", message.reconsume_times),
        ("size", message.stored_bytes),
    ]


def _pretty(text: str) -> str | Markup:
    try:
        return coloured(msgspec.json.format(text, indent=2))
    except msgspec.DecodeError:
        return text


def body_forms(message: ReceivedMessage, settings: ConsoleSettings) -> dict[str, str | Markup]:
    """The body by its decoder, as JSON if it is, as text if it is, and always as hexadecimal digits."""
    try:
        body = message.body
    except (BadBody, CorruptRecord) as error:
        return {"text": str(error), "hex": hex_dump(message.plain_body[:HEX_SHOWN_BYTES])}
    forms: dict[str, str | Markup] = {}
    if (text := decoded(message, settings)) is not None:
        forms["decoded"] = _pretty(text)
    if body[:1] in (b"{", b"[") and len(body) <= BODY_SHOWN_BYTES:
        try:
            forms["json"] = coloured(msgspec.json.format(body, indent=2).decode())
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    try:
        forms["text"] = body[:BODY_SHOWN_BYTES].decode()
    except UnicodeDecodeError as error:
        if error.start > BODY_SHOWN_BYTES - 4 and len(body) > BODY_SHOWN_BYTES:
            forms["text"] = body[: error.start].decode()
    forms["hex"] = hex_dump(body[:HEX_SHOWN_BYTES])
    return forms


def coloured(text: str) -> Markup:
    """JSON with a class for each kind of value."""
    parts, at = [], 0
    for match in _TOKEN.finditer(text):
        parts.append(escape(text[at : match.start()]))
        parts.append(Markup('<span class="json-{}">{}</span>').format(match.lastgroup, match[0]))
        at = match.end()
    parts.append(escape(text[at:]))
    return Markup("").join(parts)


def hex_dump(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {text}")
    return "\n".join(lines)


# --- Live ---


async def tail(ask: Ask) -> Response:
    """New messages as server-sent events, at most TAIL_ROWS_MAX a step; the rest is counted."""
    topic, is_wanted, columns = ask.path("topic"), wanted(ask), chosen_columns(ask)
    if ask.console.streams >= STREAMS_MAX:
        return Response(f"{STREAMS_MAX} streams are open already\n", 503, media_type="text/plain")
    at = {part.queue: part.end for part in (await ask.admin.topics.stats(topic)).queues}
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(
        _events(ask, topic, at, is_wanted, columns), media_type="text/event-stream", headers=headers
    )


async def _events(
    ask: Ask,
    topic: str,
    at: dict[MessageQueue, int],
    is_wanted: Callable[[ReceivedMessage], bool],
    columns: Sequence[str],
) -> AsyncIterator[bytes]:
    ask.console.streams += 1
    is_filtered = any(ask.arg(name) for name in ("tag", "text", "where"))
    read_max = TAIL_READ_MAX if is_filtered else TAIL_ROWS_MAX
    try:
        yield b"retry: 2000\n\n"
        while True:
            try:
                stats = await ask.admin.topics.stats(topic)
                moved = {
                    part.queue: max(at.get(part.queue, part.begin), part.end - read_max)
                    for part in stats.queues
                    if part.end > at.get(part.queue, part.begin)
                }
                skipped = sum(start - at.get(queue, start) for queue, start in moved.items())
                messages_max = min(read_max * len(moved), TAIL_READ_MAX)
                found = (
                    await ask.admin.messages.since(topic, moved, messages_max=messages_max) if moved else None
                )
            except RocketMQError as error:
                yield f"event: failed\ndata: {msgspec.json.encode(str(error)).decode()}\n\n".encode()
                found = None
            if found is not None:
                at |= moved
                for message in found.messages:
                    at[message.queue] = max(at.get(message.queue, 0), message.queue_offset + 1)
                chosen = [message for message in found.messages if is_wanted(message)]
                shown = [message_row(ask, message, columns) for message in chosen[-TAIL_ROWS_MAX:]]
                event = {"rows": shown, "passed": skipped + len(chosen) - len(shown)}
                yield b"data: " + msgspec.json.encode(event) + b"\n\n"
            else:
                yield b": \n\n"
            await asyncio.sleep(TAIL_EVERY_S)
    finally:
        ask.console.streams -= 1


# --- Sending ---


async def send_form(ask: Ask) -> PageView:
    """The form for a new message, empty or filled from another message."""
    topic = ask.path("topic")
    filled = {"body": "", "tag": "", "keys": "", "properties": "", "delay": "", "order_key": "", "count": "1"}
    if like := ask.arg("like"):
        broker, queue, at = [*like.rsplit(":", 2), "", ""][:3]
        message = await stored_at(ask, topic, broker, queue, at)
        own = own_properties(message.properties)
        filled |= {
            "body": "" if ask.settings.hide_bodies else text_of(message),
            "tag": message.tags or "",
            "keys": " ".join(message.keys),
            "properties": "\n".join(f"{name}={value}" for name, value in sorted(own.items())),
        }
    return _form(ask, topic, filled, "")


def own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Those that an application set: system properties are in capitals."""
    return {
        name: value
        for name, value in properties.items()
        if not name.replace("_", "").replace("#", "").isupper()
    }


def _form(ask: Ask, topic: str, filled: Mapping[str, str], fault: str) -> PageView:
    return PageView(
        template="send.html",
        nav="topics",
        title=ask.t("send.title", topic=topic),
        crumbs=(*TOPICS.crumbs(ask, topic), (ask.t("send"), ask.here())),
        data={"topic": topic, "filled": filled, "fault": fault},
        code=(
            ("skylark", f"skylark send {topic} 'hello' --tag created --key order-77"),
            ("python", f'producer.send(Message("{topic}", b"hello", tags="created", keys=["order-77"]))'),
        ),
        status=400 if fault else 200,
    )


async def send(ask: Ask) -> PageView | Response:
    """Send what the form holds, then show the stored message."""
    topic, form = ask.path("topic"), await ask.form()
    filled = {
        name: form.get(name, "")
        for name in ("body", "tag", "keys", "properties", "delay", "order_key", "count")
    }
    try:
        message, count = made_of(topic, filled)
        producer = await ask.connection.producer()
        receipt = None
        for _ in range(count):
            receipt = await producer.send(message)
    except (ValueError, RocketMQError) as error:
        return _form(ask, topic, filled, str(error))
    assert receipt is not None
    change = ask.record("send", topic, after={"count": count, "message_id": receipt.message_id})
    queue = receipt.queue
    if filled["delay"]:
        return redirect(ask.href("topics", topic, "messages", changed=change.number))
    return redirect(
        ask.href(
            "topics",
            topic,
            "at",
            queue.broker_name,
            queue.queue_id,
            receipt.queue_offset,
            changed=change.number,
        )
    )


def made_of(topic: str, filled: Mapping[str, str]) -> tuple[Message, int]:
    """The message of a form, and how often to send it. Raises ValueError."""
    count = filled["count"] or "1"
    if not count.isdecimal() or not 1 <= int(count) <= 1000:
        raise ValueError(f"invalid count {count!r}; pass 1 to 1000")
    properties = {}
    for line in filled["properties"].splitlines():
        if line.strip():
            name, equals, value = line.partition("=")
            if not equals or not name.strip():
                raise ValueError(f"invalid property {line!r}; write NAME=VALUE")
            properties[name.strip()] = value.strip()
    delay = timedelta(milliseconds=parse_duration_ms(filled["delay"])) if filled["delay"] else None
    body = filled["body"].replace("\r\n", "\n").encode()
    made = Message(
        topic,
        body,
        tags=filled["tag"] or None,
        keys=filled["keys"].split(),
        properties=properties,
        sharding_key=filled["order_key"] or None,
        deliver_after=delay,
    )
    return made, int(count)


# --- The journey ---


async def journey(ask: Ask) -> PageView:
    """What happened to a message, in order; every step says where it is known from."""
    topic = ask.path("topic")
    found = await read_journey(ask.admin.messages, topic, ask.path("id"))
    steps = [
        {
            "time": step.time_ms,
            "what": ask.t(f"journey.{step.what}"),
            "group": step.group,
            "details": _details(ask, step),
            "source": step.source,
            "level": _level(step),
            "href": None if step.message is None else place_href(ask, step.message),
        }
        for step in found.steps
    ]
    columns = (
        GridColumn("time", "time"),
        GridColumn("what"),
        GridColumn("group"),
        GridColumn("details"),
        GridColumn("source", "code"),
    )
    return PageView(
        template="journey.html",
        nav="topics",
        title=found.message.message_id,
        sentence=ask.t("journey.with_traces" if found.is_traced else "journey.untraced"),
        crumbs=(*TOPICS.crumbs(ask, topic), (ask.t("journey"), ask.here())),
        grids=(Grid("journey", columns, steps),),
        data={"steps": steps, "back": place_href(ask, found.message)},
        code=(("skylark", f"skylark message trace {found.message.message_id}"),),
    )


def _details(ask: Ask, step: JourneyStep) -> str:
    if step.what in ("passed", "waiting"):
        return ask.t(f"track.{step.details}")
    if step.what in ("retried", "dead", "resent"):
        return ask.t("journey.attempts", count=step.details)
    return step.details


def _level(step: JourneyStep) -> str:
    if step.what in ("waiting", "retried", "delayed"):
        return "warn"
    return "good" if step.is_ok else "bad"
