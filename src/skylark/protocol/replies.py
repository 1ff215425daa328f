"""Answers of the hot path as byte templates: no objects, no dictionaries, one formatting per answer."""

from functools import lru_cache

import msgspec

from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import SERVER_LANGUAGE, VERSION, prefix

_encode_json = msgspec.json.Encoder().encode

# Takes the opaque, then the remark's member or nothing.
_TAIL = b',"flag":1,"language":"%b","opaque":%%d%%b,"serializeTypeCurrentRPC":"JSON","version":%d}' % (
    SERVER_LANGUAGE.encode(),
    VERSION,
)
_PULL = (
    b'{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","groupSysFlag":"%d","nextBeginOffset":"%d",'
    b'"maxOffset":"%d","minOffset":"%d","topicSysFlag":"%d"%b}' + _TAIL
)
_PLAIN = b'{"code":%d' + _TAIL
# Nearly all answers without a body have short headers.
_PREFIXES = [prefix(header_bytes, 0) for header_bytes in range(1024)]


def plain_reply(opaque: int, code: int = ResponseCode.SUCCESS, remark: str | None = None) -> bytes:
    """Return the frame of an answer that has neither ext fields nor a body."""
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
    """Return what goes before the records in the answer to a pull.

    `body_bytes` is the length of them all, and of the `bulk_units` units before them.
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
    """Return a template of what `pull_reply_head` makes, for answers that differ only in where they are.

    It takes the next offset, the maximum, the minimum and the opaque, and lacks the eight bytes before it.
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
    """Answers to sends of one broker, whose region and trace switch are in all of them."""

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
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
    ) -> bytes:
        """Return the frame that says where a message was stored.

        `transaction_id` is its unique key. `recall_handle`, of plain characters, takes it back.
        """
        transaction = b""
        if transaction_id is not None:
            # The client's own text: letters and digits from every client we know, but it may be anything.
            if transaction_id.isalnum():
                transaction = b',"transactionId":"%b"' % transaction_id
            else:
                transaction = b',"transactionId":' + _encode_json(transaction_id.decode(errors="replace"))
        if recall_handle is not None:
            transaction += b',"recallHandle":"%b"' % recall_handle
        return _frame(
            self._stored
            % (code, queue_id, transaction, msg_id, queue_offset, opaque, _remark(remark) if remark else b"")
        )

    def refused(self, opaque: int, code: int, remark: str) -> bytes:
        """Return the frame that says why a message was not stored."""
        return _frame(self._refused % (code, opaque, _remark(remark)))


def _frame(header: bytes) -> bytes:
    length = len(header)
    return (_PREFIXES[length] if length < len(_PREFIXES) else prefix(length, 0)) + header


@lru_cache(256)  # the status names of pulls, nearly always
def _remark(remark: str | None) -> bytes:
    return b"" if remark is None else b',"remark":' + _encode_json(remark)
