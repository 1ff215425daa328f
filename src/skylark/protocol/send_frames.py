"""Sends as byte templates: what does not change between the messages for one queue is written once."""

import msgspec

from skylark.model.record import BATCH_ELEMENT, LENGTH
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import CLIENT_LANGUAGE, ONEWAY_FLAG, VERSION, Buffer, prefix

_encode_json = msgspec.json.Encoder().encode
pack_element = BATCH_ELEMENT.pack

Tail = tuple[int, bytes, bytes]
"""What surrounds a message's body and unique key in a batch: how long it is with the key, its bytes before
the key, and those after it. Messages without properties of their own share one."""
ELEMENT_PARTS = 5
KEY_PART = 3
"""Which of the parts of an element is the unique key: NO_KEY until all keys are put in at once."""
NO_KEY = b""


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


def element_tail(before: bytes, key_bytes: int, after: bytes) -> Tail:
    """Return the tail of an element whose properties stand before and after the unique key."""
    properties_bytes = len(before) + key_bytes + len(after)
    length = LENGTH.pack(properties_bytes)
    return BATCH_ELEMENT.size + len(length) + properties_bytes, length + before, after


def element_parts(body: bytes, flag: int, tail: Tail) -> tuple[bytes, ...]:
    """Return the parts of a message in a batch; the key is put in later."""
    tail_bytes, before, after = tail
    return pack_element(tail_bytes + len(body), 0, 0, flag, len(body)), body, before, NO_KEY, after
