"""Pure. A load as a value, the request frames that it consists of, and the counts of a client that ran it."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, Self

from skylark.bench.latencies import LatencyHistogram
from skylark.errors import RocketMQError
from skylark.model.message import encode_properties
from skylark.model.names import BENCHMARK_TOPIC
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import ONEWAY_FLAG, VERSION, prefix
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION
from skylark.protocol.requests.transaction import COMMIT
from skylark.protocol.signature import SIGNATURE, Signer, signed_text

TOPIC = BENCHMARK_TOPIC
"""Every broker has this topic from its first start, with 1,024 queues."""
QUEUES = 4
IN_FLIGHT_MAX = 1 << 15
"""Limit of one connection of the load client: its ring of open requests has twice as many slots."""
TOPICS_MAX = 10_000
STAMP = struct.Struct(">q")
"""Due time in nanoseconds of the monotonic clock, at the start of a body."""
PROCESSES_MAX = 64


class LoadKind(Enum):
    """The requests of a load."""

    SEND = "send"
    """Sends, answered when the messages are stored."""
    ONEWAY = "oneway"
    """One-way sends."""
    TRANSACTION = "transaction"
    """Half messages, each committed when it is stored; the reply to the commit counts."""
    PULL = "pull"
    """Pulls that read the queues repeatedly from their start: one in flight per queue."""
    ROUTE = "route"
    """Route requests to a name server."""


class BadLoad(RocketMQError):
    """An invalid load."""


class LoadFailed(RocketMQError):
    """The load client failed."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """A load for the load client. Raises BadLoad."""

    address: str
    """Broker address; the name server's for ROUTE."""
    kind: LoadKind = LoadKind.SEND
    topic: str = TOPIC
    topics: int = 1
    """With more than one, `topic-0`, `topic-1`, … are used in turn."""
    queues: int = QUEUES
    attributes: str = ""
    """Attributes of new topics, such as `+queue.type=BatchCQ`."""
    body_bytes: int = 128
    batch: int = 1
    """Messages per send; the maximum per pull."""
    in_flight: int = 64
    """Requests in flight, of all processes together; with a rate, the maximum."""
    rate: float = 0.0
    """Messages a second (open loop), each timed from when it was due; 0: as fast as replies come (closed
    loop)."""
    seconds: float = 10.0
    warm_up_s: float = 1.0
    messages_max: int = 0
    """Stop after this many messages, warm-up included; 0: when the time is over."""
    processes: int = 1
    properties: dict[str, str] = field(default_factory=lambda: {"TAGS": "TagA"})
    """Properties of each message besides its unique key; `@NUMBER@` in a value becomes a unique number."""
    expression: str = "*"
    """Filter of the pulls; every message must match it."""
    expression_type: str = "TAG"
    late_s: float = 0.0
    """Delay between the reply to a send and the message in its queue, for delayed messages."""
    is_stamped: bool = False
    """Bodies begin with a STAMP."""

    def __post_init__(self) -> None:
        limits = {
            "topics": (self.topics, 1, TOPICS_MAX),
            "queues": (self.queues, 1, 1024),
            "body_bytes": (self.body_bytes, 0, 4 << 20),
            "batch": (self.batch, 1, 4096),
            "processes": (self.processes, 1, PROCESSES_MAX),
            "in_flight": (self.in_flight, self.processes, self.processes * IN_FLIGHT_MAX),
            "messages_max": (self.messages_max, 0, 1 << 40),
        }
        for name, (value, lowest, highest) in limits.items():
            if not lowest <= value <= highest:
                raise BadLoad(f"invalid {name} {value}; choose {lowest} to {highest}")
        if self.seconds <= 0 or self.warm_up_s < 0 or self.rate < 0:
            raise BadLoad(
                f"invalid seconds {self.seconds}, warm_up_s {self.warm_up_s} or rate {self.rate}:"
                " seconds must be positive, the others not negative"
            )
        if self.is_stamped and self.body_bytes < STAMP.size:
            raise BadLoad(f"invalid body_bytes {self.body_bytes}; the send time needs at least {STAMP.size}")

    @property
    def topic_names(self) -> list[str]:
        return [self.topic] if self.topics == 1 else [f"{self.topic}-{n}" for n in range(self.topics)]

    @property
    def body(self) -> bytes:
        """The body of every message: incompressible, the same in every run."""
        return random.Random(self.body_bytes).randbytes(self.body_bytes)  # noqa: S311

    @property
    def frames_per_s(self) -> float:
        return self.rate / self.batch

    @property
    def frames_max(self) -> int:
        return -(-self.messages_max // self.batch)

    def shares(self) -> list[Self]:
        """The load of each process."""
        n = self.processes
        return [
            replace(
                self,
                processes=1,
                in_flight=self.in_flight // n + (number < self.in_flight % n),
                rate=self.rate / n,
                messages_max=-(-self.messages_max // n),
            )
            for number in range(n)
        ]


@dataclass(frozen=True)
class Counted:
    """Counts of a client.

    `seconds`, `answers`, `records`, `latencies`, `client_cpu_us` and `series` cover the measured window, the
    others the whole run. `records` counts pulled messages, all others count frames.
    """

    seconds: float
    sent: int
    acknowledged: int
    refused: int
    refusal_code: int
    unexpected: int
    unsent: int
    """Frames due in an open loop that were never sent because too many were in flight."""
    answers: int
    records: int
    client_cpu_us: float
    latencies: LatencyHistogram
    series: list[tuple[float, int]] = field(default_factory=list)

    @classmethod
    def together(cls, parts: list[Self]) -> Self:
        """The sum of clients that ran at the same time."""
        latencies = LatencyHistogram()
        for part in parts:
            latencies.add(part.latencies)
        return cls(
            seconds=max(part.seconds for part in parts),
            sent=sum(part.sent for part in parts),
            acknowledged=sum(part.acknowledged for part in parts),
            refused=sum(part.refused for part in parts),
            refusal_code=max(part.refusal_code for part in parts),
            unexpected=sum(part.unexpected for part in parts),
            unsent=sum(part.unsent for part in parts),
            answers=sum(part.answers for part in parts),
            records=sum(part.records for part in parts),
            client_cpu_us=sum(part.client_cpu_us for part in parts),
            latencies=latencies,
            series=_sum_of_series([part.series for part in parts]),
        )


def _sum_of_series(series: list[list[tuple[float, int]]]) -> list[tuple[float, int]]:
    """The nth reports of all clients, which come once a second, are added."""
    return [
        (max(second for second, _ in reports), sum(count for _, count in reports))
        for reports in zip(*series, strict=False)
    ]


def discrepancies(counted: Counted, expected: int, stored: int) -> list[str]:
    """One sentence per difference between the numbers sent, acknowledged and stored."""
    wrong = []
    if counted.refused:
        wrong.append(f"{counted.refused} refused, the last with code {counted.refusal_code}")
    if counted.unexpected:
        wrong.append(f"{counted.unexpected} unexpected replies, or replies with wrong records")
    if counted.unsent:
        wrong.append(f"rate not reached: {counted.unsent} messages were due and not sent")
    if counted.acknowledged != counted.sent:
        wrong.append(f"{counted.acknowledged} of {counted.sent} acknowledged")
    if stored != expected:
        wrong.append(f"{stored} messages stored, expected {expected}")
    return wrong


GROUP = "benchmark"
DUE = b"@DUE_NS@"
# element_bytes, magic, body_crc, flag, body_bytes; clients leave magic, body_crc and flag 0
ELEMENT = struct.Struct(">iiiii")
PROPERTIES_BYTES = struct.Struct(">h")


TEXT_BYTES = struct.Struct(">I")


class _Asked(NamedTuple):
    """A request of a load, with places that the client fills in."""

    code: RequestCode
    fields: Mapping[str, str]
    body: bytes = b""
    flag: int = 0


def frames_of(load: Load, now_ns: int, signer: Signer | None = None) -> bytes:
    """One frame per queue of each topic; for routes one per topic. `now_ns` makes keys unique."""
    more = {} if signer is None else signer.fields | {SIGNATURE: "@SIGNED@"}
    return b"".join(_frame(each._replace(fields={**each.fields, **more})) for each in _asked(load, now_ns))


def texts_of(load: Load, now_ns: int, signer: Signer, secret: str) -> bytes:
    """The secret, and what is signed of each of the frames besides its body; each text behind its length."""
    texts = [
        secret.encode(),
        *(signed_text({**each.fields, **signer.fields}) for each in _asked(load, now_ns)),
    ]
    return b"".join(TEXT_BYTES.pack(len(text)) + text for text in texts)


def _asked(load: Load, now_ns: int) -> Iterator[_Asked]:
    for topic in load.topic_names:
        if load.kind is LoadKind.ROUTE:
            yield _Asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        else:
            yield from _pulls(load, topic) if load.kind is LoadKind.PULL else _sends(load, topic, now_ns)
    if load.kind is LoadKind.TRANSACTION:
        end = {
            "producerGroup": GROUP, "tranStateTableOffset": "@QUEUED@", "commitLogOffset": "@PLACED@",
            "commitOrRollback": str(COMMIT), "fromTransactionCheck": "false", "msgId": "",
        }  # fmt: skip
        yield _Asked(RequestCode.END_TRANSACTION, end)


def _sends(load: Load, topic: str, now_ns: int) -> Iterator[_Asked]:
    """One request 310 per queue, or 320 for a batch; each message has a unique key."""
    properties = {"UNIQ_KEY": f"7F000001{now_ns:016X}@NUMBER@", "WAIT": "true", **load.properties}
    if load.kind is LoadKind.TRANSACTION:
        properties |= {"TRAN_MSG": "true", "PGROUP": GROUP}
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
    flag = ONEWAY_FLAG if load.kind is LoadKind.ONEWAY else 0
    for queue in range(load.queues):
        yield _Asked(code, fields | {"e": str(queue)}, body, flag)


def _pulls(load: Load, topic: str) -> Iterator[_Asked]:
    """One request 11 per queue, without long polling, from an offset that the client fills in."""
    fields = {
        "queueId": "0", "commitOffset": "0", "subscription": load.expression, "suspendTimeoutMillis": "0",
        "bname": "broker-a", "sysFlag": str(PULL_SUBSCRIPTION), "expressionType": load.expression_type,
        "ReqT": "0", "topic": topic, "consumerGroup": GROUP, "maxMsgNums": str(load.batch),
        "queueOffset": "@OFFSET@", "subVersion": "0", "maxMsgBytes": "2147483647",
    }  # fmt: skip
    for queue in range(load.queues):
        yield _Asked(RequestCode.PULL_MESSAGE, fields | {"queueId": str(queue)})


def _element(body: bytes, properties: bytes) -> bytes:
    """One message of a batch body."""
    length = ELEMENT.size + len(body) + PROPERTIES_BYTES.size + len(properties)
    head = ELEMENT.pack(length, 0, 0, 0, len(body))
    return head + body + PROPERTIES_BYTES.pack(len(properties)) + properties


def _frame(asked: _Asked) -> bytes:
    members = {
        "code": int(asked.code), "extFields": asked.fields, "flag": asked.flag, "language": "JAVA",
        "opaque": "@OPAQUE@", "serializeTypeCurrentRPC": "JSON", "version": VERSION,
    }  # fmt: skip
    header = json.dumps(members, separators=(",", ":")).replace('"@OPAQUE@"', "@OPAQUE@").encode()
    return prefix(len(header), len(asked.body)) + header + asked.body
