"""Pure. Frames with places that the thin client fills in, written as the Java client writes them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

from skylark.bench.load import STAMP, Kind, Load
from skylark.model.message import encode_properties
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import VERSION, prefix
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION

GROUP = "benchmark"
DUE = b"@DUE_NS@"
ONEWAY_FLAG = 2
# element_bytes, magic, body_crc, flag, body_bytes: clients leave the second to the fourth
ELEMENT = struct.Struct(">iiiii")
PROPERTIES_BYTES = struct.Struct(">h")


def frames_of(load: Load, now_ns: int) -> bytes:
    """One frame for every queue of every topic, of routes one for every topic. `now_ns`: no other run's."""
    if load.kind is Kind.ROUTE:
        return b"".join(_frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": t}) for t in load.topic_names)
    one_topic = _pull_frames if load.kind is Kind.PULL else _send_frames
    return b"".join(one_topic(load, topic, now_ns) for topic in load.topic_names)


def _send_frames(load: Load, topic: str, now_ns: int) -> bytes:
    """One 310 per queue, or one 320 with a batch; each message has a unique key."""
    properties = {"UNIQ_KEY": f"7F000001{now_ns:016X}@NUMBER@", "WAIT": "true", **load.properties}
    body = load.body
    if load.is_stamped:
        body = DUE + body[STAMP.size :]
    code = RequestCode.SEND_MESSAGE_V2
    if load.batch > 1:
        body = _element(body, encode_properties(properties)) * load.batch
        code = RequestCode.SEND_BATCH_MESSAGE
        properties = {name: properties[name] for name in ("UNIQ_KEY", "WAIT")}
    fields = {
        "a": GROUP, "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": str(now_ns // 1_000_000), "h": "0",
        "i": encode_properties(properties).decode(), "j": "0", "k": "false",
        "m": "true" if load.batch > 1 else "false", "n": "broker-a",
    }  # fmt: skip
    flag = ONEWAY_FLAG if load.kind is Kind.ONEWAY else 0
    return b"".join(_frame(code, fields | {"e": str(queue)}, body, flag) for queue in range(load.queues))


def _pull_frames(load: Load, topic: str, now_ns: int) -> bytes:
    """One 11 per queue: messages from a place that the client fills in, no waiting."""
    fields = {
        "queueId": "0", "commitOffset": "0", "subscription": load.expression, "suspendTimeoutMillis": "0",
        "bname": "broker-a", "sysFlag": str(PULL_SUBSCRIPTION), "expressionType": load.expression_type,
        "ReqT": "0", "topic": topic, "consumerGroup": GROUP, "maxMsgNums": str(load.batch),
        "queueOffset": "@OFFSET@", "subVersion": "0", "maxMsgBytes": "2147483647",
    }  # fmt: skip
    pull = RequestCode.PULL_MESSAGE
    return b"".join(_frame(pull, fields | {"queueId": str(queue)}) for queue in range(load.queues))


def _element(body: bytes, properties: bytes) -> bytes:
    """A message within a batch."""
    length = ELEMENT.size + len(body) + PROPERTIES_BYTES.size + len(properties)
    head = ELEMENT.pack(length, 0, 0, 0, len(body))
    return head + body + PROPERTIES_BYTES.pack(len(properties)) + properties


def _frame(code: RequestCode, fields: Mapping[str, str], body: bytes = b"", flag: int = 0) -> bytes:
    members = {
        "code": int(code), "extFields": fields, "flag": flag, "language": "JAVA", "opaque": "@OPAQUE@",
        "serializeTypeCurrentRPC": "JSON", "version": VERSION,
    }  # fmt: skip
    header = json.dumps(members, separators=(",", ":")).replace('"@OPAQUE@"', "@OPAQUE@").encode()
    return prefix(len(header), len(body)) + header + body
