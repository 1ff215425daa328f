"""Pure. Messages as JSON, one shape for the command line, the console and its API."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, TypeAlias

from skylark.errors import BadBody, CorruptRecord
from skylark.model.message import StoredMessage, pack_host

if TYPE_CHECKING:
    from skylark.client.received_message import ReceivedMessage

    AnyMessage: TypeAlias = ReceivedMessage | StoredMessage


def document(message: AnyMessage, *, decompress: bool = True) -> dict[str, object]:
    """The JSON of a message, from a broker or from a store. `skylark send --from-json` reads it.

    The body is `body` if it is UTF-8 text, else `body_base64`. `broker` is null for messages of a store.
    A body that cannot be decompressed is given as stored, with the reason as `body_error`.
    """
    from skylark.model.body import compression_of  # noqa: PLC0415 - loads the codecs

    place = offset_id(message)
    members: dict[str, object] = {
        "topic": message.topic,
        "broker": None if isinstance(message, StoredMessage) else message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "message_id": message.unique_key or place,
        "offset_message_id": place,
        "tags": message.tags,
        "keys": message.keys,
        "born_ms": message.born_timestamp,
        "born_host": message.born_host,
        "stored_ms": message.store_timestamp,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "properties": dict(message.properties),
        "physical_offset": message.physical_offset,
        "size": message.size if isinstance(message, StoredMessage) else message.stored_bytes,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "body_crc": message.body_crc,
        "prepared_transaction_offset": message.prepared_transaction_offset,
    }
    if (compression := compression_of(message.sys_flag)) is not None:
        members["compression"] = compression
    try:
        body = body_of(message, decompress=decompress)
    except (BadBody, CorruptRecord) as error:
        members["body_error"] = str(error)
        body = message.body if isinstance(message, StoredMessage) else message.plain_body
    try:
        members["body"] = body.decode()
    except UnicodeDecodeError:
        members["body_base64"] = base64.b64encode(body).decode()
    return members


def offset_id(message: AnyMessage) -> str:
    """The id by which a broker finds a message: its store host and physical offset."""
    if not isinstance(message, StoredMessage):
        return message.offset_message_id
    from skylark.model.message_id import offset_message_id  # noqa: PLC0415

    host, _, port = message.store_host.rpartition(":")
    return offset_message_id(pack_host(host.strip("[]"), int(port)), message.physical_offset)


def body_of(message: AnyMessage, *, decompress: bool = True) -> bytes:
    """The body as it was sent. Raises BadBody, CorruptRecord."""
    if not isinstance(message, StoredMessage) or not decompress:
        return message.body
    from skylark.model.body import plain_body  # noqa: PLC0415

    return plain_body(message)


def text_of(message: AnyMessage) -> str:
    """The body as text, with replacement characters; the reason if it cannot be read."""
    try:
        return body_of(message).decode(errors="replace")
    except (BadBody, CorruptRecord) as error:
        return f"({error})"
