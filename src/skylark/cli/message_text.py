"""A stored message as JSON, or as a row of a table."""

from __future__ import annotations

import base64
from dataclasses import asdict

from skylark.cli.output import format_time
from skylark.errors import BadBody
from skylark.model.body import compression_of, plain_body
from skylark.model.message import StoredMessage, pack_host
from skylark.model.record import offset_message_id

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
