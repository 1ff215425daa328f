"""Sends as byte templates: what does not change between the messages for one queue is written once."""

import struct
from collections.abc import Iterable

import msgspec

from skylark.protocol.codes import RequestCode
from skylark.protocol.command import CLIENT_LANGUAGE, ONEWAY_FLAG, VERSION, Buffer, prefix

_encode_json = msgspec.json.Encoder().encode
BATCH_ELEMENT = struct.Struct(">iiiii")  # total, magic 0, crc 0, flag, body_bytes
BATCH_PROPERTIES = struct.Struct(">h")  # properties_bytes
_ELEMENT_BYTES = BATCH_ELEMENT.size + BATCH_PROPERTIES.size


def _text(value: str) -> bytes:
    """The JSON of a text, safe inside a template."""
    return _encode_json(value).replace(b"%", b"%%")


class SendTemplate:
    """The frames of sends by one group to one queue, with the short names of 310, 320 and 325.

    `default_topic` and `default_queues` tell the broker how to create a topic that does not exist yet.
    """

    def __init__(
        self, *, group: str, topic: str, broker: str, queue_id: int, default_topic: str, default_queues: int
    ) -> None:
        self._header = (
            b'{"code":%%d,"extFields":{"a":%b,"b":%b,"c":%b,"d":"%d","e":"%d","f":"%%d","g":"%%d","h":"%%d",'
            b'"i":%%b,"j":"%%d","k":"false"%%b,"m":"%%b","n":%b},"flag":%%d,"language":"%b","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (
            _text(group),
            _text(topic),
            _text(default_topic),
            default_queues,
            queue_id,
            _text(broker),
            CLIENT_LANGUAGE.encode(),
            VERSION,
        )

    def frame(
        self,
        opaque: int,
        body: Buffer,
        *,
        properties: str,
        sys_flag: int,
        born_ms: int,
        flag: int = 0,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
        is_batch: bool = False,
        is_reply: bool = False,
        is_oneway: bool = False,
    ) -> tuple[bytes, Buffer]:
        """Return head and body of one request. Raises UnicodeEncodeError for a text with lone surrogates."""
        code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
        header = self._header % (
            RequestCode.SEND_REPLY_MESSAGE_V2 if is_reply else code,
            sys_flag,
            born_ms,
            flag,
            _encode_json(properties),
            reconsume_times,
            b"" if max_reconsume_times is None else b',"l":"%d"' % max_reconsume_times,
            b"true" if is_batch else b"false",
            ONEWAY_FLAG if is_oneway else 0,
            opaque,
        )
        return prefix(len(header), len(body)) + header, body


def batch_body(elements: Iterable[tuple[Buffer, bytes, int]]) -> bytes:
    """Return the body of a batch of (body, properties, flag)."""
    parts: list[Buffer] = []
    for body, properties, flag in elements:
        body_bytes, properties_bytes = len(body), len(properties)
        total = _ELEMENT_BYTES + body_bytes + properties_bytes
        parts += (
            BATCH_ELEMENT.pack(total, 0, 0, flag, body_bytes),
            body,
            BATCH_PROPERTIES.pack(properties_bytes),
            properties,
        )
    return b"".join(parts)
