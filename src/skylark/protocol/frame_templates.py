"""Hot frames as byte templates: a broker's replies, a producer's sends. One formatting per frame."""

from functools import lru_cache

import msgspec

from skylark.model.record import BATCH_ELEMENT, LENGTH
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import (
    CLIENT_LANGUAGE,
    ONEWAY_FLAG,
    SERVER_LANGUAGE,
    VERSION,
    Buffer,
    prefix,
)
from skylark.protocol.signature import Signer

_encode_json = msgspec.json.Encoder().encode

# Takes the opaque, then the remark member or nothing.
_TAIL = b',"flag":1,"language":"%b","opaque":%%d%%b,"serializeTypeCurrentRPC":"JSON","version":%d}' % (
    SERVER_LANGUAGE.encode(),
    VERSION,
)
_PULL = (
    b'{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","groupSysFlag":"%d","nextBeginOffset":"%d",'
    b'"maxOffset":"%d","minOffset":"%d","topicSysFlag":"%d"%b}' + _TAIL
)
_PLAIN = b'{"code":%d' + _TAIL
# Nearly all replies without a body have short headers.
_PREFIXES = [prefix(header_bytes, 0) for header_bytes in range(1024)]


def plain_reply(opaque: int, code: int = ResponseCode.SUCCESS, remark: str | None = None) -> bytes:
    """Return the frame of a reply without ext fields and body."""
    return _frame(_PLAIN % (code, opaque, _remark(remark)))


def pull_reply_head(
    opaque: int,
    *,
    code: int,
    remark: str,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
    body_bytes: int = 0,
    suggest_which_broker_id: int = 0,
    topic_sys_flag: int = 0,
    group_sys_flag: int = 0,
    bulk_units: int = 0,
) -> bytes:
    """Return the head of a pull reply, which precedes the records.

    `body_bytes` is the length of the records and of the `bulk_units` queue entries before them.
    """
    header = _PULL % (
        code,
        suggest_which_broker_id,
        group_sys_flag,
        next_begin_offset,
        max_offset,
        min_offset,
        topic_sys_flag,
        b',"bulkUnits":"%d"' % bulk_units if bulk_units else b"",
        opaque,
        _remark(remark),
    )
    return prefix(len(header), body_bytes) + header


@lru_cache(256)
def pull_reply_template(
    *,
    code: int,
    remark: str,
    suggest_which_broker_id: int = 0,
    topic_sys_flag: int = 0,
    group_sys_flag: int = 0,
) -> bytes:
    """Return a template of `pull_reply_head` for replies that differ only in their offsets.

    It takes next, maximum and minimum offset and the opaque. The eight-byte frame prefix is not included.
    """
    free = b"%d"
    return _PULL.replace(b"%d", b"%b") % (
        b"%d" % code,
        b"%d" % suggest_which_broker_id,
        b"%d" % group_sys_flag,
        *(free, free, free),
        b"%d" % topic_sys_flag,
        b"",
        free,
        _remark(remark).replace(b"%", b"%%"),
    )


class SendReplies:
    """Replies to sends. Region and trace switch of the broker are part of each."""

    def __init__(self, *, region: str = "DefaultRegion", trace_on: bool = True) -> None:
        constant = b'"TRACE_ON":"%b","MSG_REGION":%b' % (
            b"true" if trace_on else b"false",
            _encode_json(region).replace(b"%", b"%%"),
        )
        where = b'{"code":%d,"extFields":{"queueId":"%d"%b,"msgId":"%b",'
        self._stored = where + constant + b',"queueOffset":"%d"}' + _TAIL
        self._refused = b'{"code":%d,"extFields":{' + constant + b"}" + _TAIL

    def stored(
        self,
        opaque: int,
        msg_id: bytes,
        queue_id: int,
        queue_offset: int,
        *,
        transaction_id: bytes | None = None,
        recall_handle: bytes | None = None,
        is_inner_batch: bool = False,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
    ) -> bytes:
        """Return the reply for a stored message.

        `transaction_id` is its unique key. `recall_handle` (plain ASCII) can cancel a delayed message.
        `is_inner_batch`: it is a batch that was stored as one record.
        """
        transaction = b""
        if transaction_id is not None:
            # Chosen by the client: letters and digits from all known clients, but any text is possible.
            if transaction_id.isalnum():
                transaction = b',"transactionId":"%b"' % transaction_id
            else:
                transaction = b',"transactionId":' + _encode_json(transaction_id.decode(errors="replace"))
        if is_inner_batch:
            transaction += transaction.replace(b"transactionId", b"batchUniqId", 1)
        if recall_handle is not None:
            transaction += b',"recallHandle":"%b"' % recall_handle
        return _frame(
            self._stored
            % (code, queue_id, transaction, msg_id, queue_offset, opaque, _remark(remark) if remark else b"")
        )

    def stored_parts(self) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes]:
        """Return the constant parts of the header of a successful `stored`.

        In between are queue id, unique key, message id, queue offset and opaque.
        """
        mark = b"\0"  # in no JSON text
        key = b',"transactionId":"%b"' % mark
        header = self._stored.replace(b"%d", b"%b") % (b"0", mark, key, mark, mark, mark, b"")
        first, before_key, before_id, before_offset, before_opaque, last = header.split(mark)
        return first, before_key, before_id, before_offset, before_opaque, last

    def refused(self, opaque: int, code: int, remark: str) -> bytes:
        """Return the reply for a message that was not stored."""
        return _frame(self._refused % (code, opaque, _remark(remark)))


def _frame(header: bytes) -> bytes:
    length = len(header)
    return (_PREFIXES[length] if length < len(_PREFIXES) else prefix(length, 0)) + header


@lru_cache(256)  # nearly always the status names of pulls
def _remark(remark: str | None) -> bytes:
    return b"" if remark is None else b',"remark":' + _encode_json(remark)


pack_element = BATCH_ELEMENT.pack

Tail = tuple[int, bytes, bytes]
"""Bytes around body and unique key of a message in a batch: total length with the key, bytes before the key,
bytes after it. Messages without properties of their own share one."""


def _text(value: str) -> bytes:
    """Return a text as JSON, escaped for use in a template."""
    return _encode_json(value).replace(b"%", b"%%")


class SendTemplate:
    """Frames of sends by one group to one queue, with the short field names of 310, 320 and 325.

    The broker uses `default_topic` and `default_queues` to create a missing topic. With a signer, sends are
    signed; the hash of the fields that do not change is computed once.
    """

    def __init__(
        self,
        *,
        group: str,
        topic: str,
        broker: str,
        queue_id: int,
        default_topic: str,
        default_queues: int,
        signer: Signer | None = None,
    ) -> None:
        user = {} if signer is None else signer.fields
        self._header = (
            b'{"code":%%d,"extFields":{%%b%b"a":%b,"b":%b,"c":%b,"d":"%d","e":"%d","f":"%%d","g":"%%d","h":"%%d",'
            b'"i":%%b,"j":"%%d","k":"false"%%b,"m":"%%b","n":%b},"flag":%%d,"language":"%b","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (
            b"".join(b"%b:%b," % (_text(name), _text(value)) for name, value in user.items()),
            _text(group),
            _text(topic),
            _text(default_topic),
            default_queues,
            queue_id,
            _text(broker),
            CLIENT_LANGUAGE.encode(),
            VERSION,
        )
        first = (*user.values(), group, topic, default_topic, str(default_queues), str(queue_id))
        self._key = None if signer is None else signer.key.after("".join(first).encode())
        self._broker = broker.encode()

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
        """Return head and body of a request. Raises UnicodeEncodeError for a text with lone surrogates."""
        code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
        batch = b"true" if is_batch else b"false"
        signature = b""
        if self._key is not None:
            content = b"%d%d%d%b%dfalse%b%b%b" % (
                sys_flag,
                born_ms,
                flag,
                properties.encode(),
                reconsume_times,
                b"" if max_reconsume_times is None else b"%d" % max_reconsume_times,
                batch,
                self._broker,
            )
            signature = b'"Signature":"%b",' % self._key.signature(content, body)
        header = self._header % (
            RequestCode.SEND_REPLY_MESSAGE_V2 if is_reply else code,
            signature,
            sys_flag,
            born_ms,
            flag,
            _encode_json(properties),
            reconsume_times,
            b"" if max_reconsume_times is None else b',"l":"%d"' % max_reconsume_times,
            batch,
            ONEWAY_FLAG if is_oneway else 0,
            opaque,
        )
        return prefix(len(header), len(body)) + header, body


def element_tail(before: bytes, key_bytes: int, after: bytes) -> Tail:
    """Return the tail of an element from the properties before and after the unique key."""
    properties_bytes = len(before) + key_bytes + len(after)
    length = LENGTH.pack(properties_bytes)
    return BATCH_ELEMENT.size + len(length) + properties_bytes, length + before, after
