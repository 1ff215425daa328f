"""Messages as JSON, as table rows, and laid out for a terminal."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec
from rich.console import Group, RenderableType
from rich.highlighter import JSONHighlighter
from rich.text import Text

from skylark.cli.output import When, clean, format_time
from skylark.errors import BadBody, CorruptRecord
from skylark.model.body import compression_of, plain_body
from skylark.model.message import StoredMessage, pack_host
from skylark.model.record import offset_message_id

if TYPE_CHECKING:
    from skylark.client.received_message import ReceivedMessage

BODY_SHOWN_CHARS_MAX = 200
PRETTY_BYTES_MAX = 64 << 10
"""A larger body is shown as it is: laying it out would hold up the rest."""
RECEIVED_COLUMNS = ("stored", "broker", "queue", "offset", "id", "tags", "keys", "body")


def received_document(message: ReceivedMessage) -> dict[str, object]:
    """All that there is; the body as `body` where it is text and as `body_base64` where it is not.

    `skylark send --from-json` takes it.
    """
    members: dict[str, object] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "tags": message.tags,
        "keys": message.keys,
        "born_ms": message.born_timestamp,
        "born_host": message.born_host,
        "stored_ms": message.store_timestamp,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "properties": dict(message.properties),
    }
    try:
        members["body"] = message.body.decode()
    except UnicodeDecodeError:
        members["body_base64"] = base64.b64encode(message.body).decode()
    except (BadBody, CorruptRecord) as error:
        members["body_error"] = str(error)
    return members


def text_of(message: ReceivedMessage) -> str:
    """The body as text; what is no text is replaced, what cannot be read is said."""
    try:
        return message.body.decode(errors="replace")
    except (BadBody, CorruptRecord) as error:
        return f"({error})"


def beginning(message: ReceivedMessage) -> str:
    """As much of the body as a table has room for."""
    return text_of(message)[:BODY_SHOWN_CHARS_MAX]


def received_row(message: ReceivedMessage) -> tuple[object, ...]:
    """As `COLUMNS` say, with the beginning of the body."""
    return (
        When(message.store_timestamp),
        message.broker_name,
        message.queue_id,
        message.queue_offset,
        message.message_id,
        message.tags or "",
        " ".join(message.keys),
        beginning(message),
    )


def facts(message: ReceivedMessage) -> list[tuple[str, object]]:
    """One message in full, its body aside."""
    return [
        ("topic", message.topic),
        ("queue", f"{message.broker_name}:{message.queue_id}"),
        ("offset", message.queue_offset),
        ("id", message.message_id),
        ("id of its place", message.offset_message_id),
        ("tags", message.tags or ""),
        ("keys", " ".join(message.keys)),
        ("born", f"{format_time(message.born_timestamp)} at {message.born_host}"),
        ("stored", f"{format_time(message.store_timestamp)} at {message.store_host}"),
        ("tried before", message.reconsume_times),
        ("properties", " ".join(f"{name}={value}" for name, value in sorted(message.properties.items()))),
    ]


def pretty(message: ReceivedMessage) -> RenderableType:
    """For a terminal: a dim line that says which one it is, then the body, laid out if it is JSON."""
    head = Text(format_time(message.store_timestamp), style="dim")
    head.append(f"  {message.broker_name}:{message.queue_id}@{message.queue_offset}")
    if message.tags:
        head.append(f"  {clean(message.tags)}", style="not dim bold cyan")
    if message.keys:
        head.append(f"  {clean(' '.join(message.keys))}", style="not dim yellow")
    return Group(head, pretty_body(message))


def pretty_body(message: ReceivedMessage) -> RenderableType:
    text = text_of(message)
    if text[:1] in ("{", "[") and len(text) <= PRETTY_BYTES_MAX:
        try:
            text = msgspec.json.format(text, indent=2)
        except msgspec.DecodeError:
            pass
        else:
            return JSONHighlighter()("\n".join(map(clean, text.splitlines())))
    return Text("\n".join(map(clean, text.splitlines())))


BODY_SHOWN_MAX = 200


def document(message: StoredMessage, *, decompress: bool = True) -> dict[str, object]:
    """All fields; the body as `body` where it is text and as `body_base64` where it is not."""
    members = {"message_id": message_id(message), **asdict(message)}
    body = members.pop("body")
    compression = compression_of(message.sys_flag)
    if compression is not None:
        members["compression"] = compression
    if decompress:
        try:
            body = plain_body(message)
        except BadBody as error:
            members["body_error"] = str(error)
    try:
        members["body"] = body.decode()
    except UnicodeDecodeError:
        members["body_base64"] = base64.b64encode(body).decode()
    return members


def message_id(message: StoredMessage) -> str:
    """The id by which a broker finds it: its store host and physical offset."""
    host, _, port = message.store_host.rpartition(":")
    return offset_message_id(pack_host(host.strip("[]"), int(port)), message.physical_offset)


def row(message: StoredMessage) -> list[object]:
    """Topic, queue, queue offset, physical offset, store time, size, tags, keys, body."""
    try:
        body = plain_body(message)[:BODY_SHOWN_MAX].decode(errors="replace")
    except BadBody as error:
        body = f"({error})"
    return [
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        format_time(message.store_timestamp),
        message.size,
        message.tags or "",
        " ".join(message.keys),
        body,
    ]


COLUMNS = ("topic", "queue", "offset", "physical", "stored", "size", "tags", "keys", "body")
