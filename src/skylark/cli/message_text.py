"""Messages as table rows, and laid out for a terminal."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from rich.console import Group, RenderableType
from rich.highlighter import JSONHighlighter
from rich.text import Text

from skylark.cli.output import When, clean, format_time

if TYPE_CHECKING:
    from skylark.admin.message_json import AnyMessage
    from skylark.client.received_message import ReceivedMessage
    from skylark.model.message import StoredMessage

BODY_SHOWN_CHARS_MAX = 200
PRETTY_BYTES_MAX = 64 << 10
"""Larger bodies are printed as they are: laying them out would delay the rest."""
COLUMNS = ("stored", "broker", "queue", "offset", "id", "tags", "keys", "body")
LONG_COLUMNS = ("tags", "keys", "body")
STORED_COLUMNS = ("topic", "queue", "offset", "physical", "stored", "size", "tags", "keys", "body")


def beginning(message: AnyMessage) -> str:
    """As much of the body as a table shows."""
    from skylark.admin.message_json import text_of  # noqa: PLC0415 - not for `--help`

    return text_of(message)[:BODY_SHOWN_CHARS_MAX]


def row(message: ReceivedMessage) -> tuple[object, ...]:
    """Cells of `COLUMNS`."""
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


def stored_row(message: StoredMessage) -> tuple[object, ...]:
    """Cells of `STORED_COLUMNS`."""
    return (
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        When(message.store_timestamp),
        message.size,
        message.tags or "",
        " ".join(message.keys),
        beginning(message),
    )


def facts(message: ReceivedMessage) -> list[tuple[str, object]]:
    """All of a message but its body."""
    return [
        ("topic", message.topic),
        ("queue", f"{message.broker_name}:{message.queue_id}"),
        ("offset", message.queue_offset),
        ("id", message.message_id),
        ("offset id", message.offset_message_id),
        ("tags", message.tags or ""),
        ("keys", " ".join(message.keys)),
        ("born", f"{format_time(message.born_timestamp)} at {message.born_host}"),
        ("stored", f"{format_time(message.store_timestamp)} at {message.store_host}"),
        ("reconsume times", message.reconsume_times),
        ("properties", " ".join(f"{name}={value}" for name, value in sorted(message.properties.items()))),
    ]


def pretty(message: ReceivedMessage) -> RenderableType:
    """For a terminal: a dim line with queue, offset, tags and keys, then the body, JSON indented."""
    head = Text(When(message.store_timestamp).short(datetime.now().date()), style="dim")
    head.append(f"  {message.broker_name}:{message.queue_id}@{message.queue_offset}")
    if message.tags:
        head.append(f"  {clean(message.tags)}", style="not dim bold cyan")
    if message.keys:
        head.append(f"  {clean(' '.join(message.keys))}", style="not dim yellow")
    return Group(head, pretty_body(message))


def pretty_body(message: ReceivedMessage) -> RenderableType:
    from skylark.admin.message_json import text_of  # noqa: PLC0415 - not for `--help`

    text = text_of(message)
    if text[:1] in ("{", "[") and len(text) <= PRETTY_BYTES_MAX:
        try:
            text = msgspec.json.format(text, indent=2)
        except msgspec.DecodeError:
            pass
        else:
            return JSONHighlighter()("\n".join(map(clean, text.splitlines())))
    return Text("\n".join(map(clean, text.splitlines())))
