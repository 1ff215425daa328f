"""`skylark send`: build messages from the command line or standard input, and send them."""

from __future__ import annotations

import base64
import concurrent.futures
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import BinaryIO

import msgspec

from skylark.cli.errors import UsageError
from skylark.cli.offset import parse_queue
from skylark.cli.options import pairs
from skylark.cli.output import Screen, print_json
from skylark.cli.times import parse_duration_ms, parse_time
from skylark.client.producer.producer import Producer
from skylark.client.producer.send_receipt import SendReceipt
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import ProducerSettings

NUMBER = "{n}"
IN_FLIGHT_MAX = 256
COLUMNS = ("id", "broker", "queue", "offset", "status")
# What a message got on its way, not from its sender: a copy gets its own.
_OWN_PROPERTIES = frozenset(
    "UNIQ_KEY WAIT TAGS KEYS MSG_REGION TRACE_ON CLUSTER MIN_OFFSET MAX_OFFSET __SHARDINGKEY DELAY"
    " REAL_TOPIC REAL_QID PGROUP INSTANCE_ID TRAN_MSG".split()
)


@dataclass(frozen=True, slots=True)
class SendArguments:
    """As typed."""

    topic: str
    body: str | None = None
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Sequence[str] = ()
    order_by: str | None = None
    delay: str | None = None
    delay_level: int = 0
    at: str | None = None
    count: int = 1
    lines: bool = False
    from_json: bool = False
    queue: str | None = None


class JsonMessage(msgspec.Struct):
    """A line that `skylark tail --json` printed, or that a person wrote: `body` is enough."""

    body: str | None = None
    body_base64: str | None = None
    tags: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}


def messages(wanted: SendArguments, standard_input: BinaryIO, *, now_ms: int) -> Iterator[Message]:
    """What is to be sent. Raises Mistake, at the latest when the message at fault is asked for."""
    if sum((wanted.delay is not None, wanted.delay_level > 0, wanted.at is not None)) > 1:
        raise UsageError("say one of --delay, --delay-level and --at")
    reads = wanted.body in (None, "-")
    if (wanted.lines or wanted.from_json) and not reads:
        raise UsageError("--lines and --from-json read standard input: give no body, or -")
    if (wanted.lines or wanted.from_json) and wanted.count > 1:
        raise UsageError("--count repeats one body: it does not go with --lines and --from-json")
    if wanted.body is None and standard_input.isatty():
        raise UsageError(
            "there is nothing to send: give a body, or - and end it with Ctrl-D, or pipe something in"
        )
    template = Message(
        wanted.topic,
        b"",
        tags=wanted.tags,
        keys=tuple(wanted.keys),
        properties=dict(pairs(wanted.properties, "--property")),
        sharding_key=wanted.order_by,
        delay_level=wanted.delay_level,
        deliver_after=_after(wanted.delay),
        deliver_at=_at(wanted.at, now_ms),
    )
    if wanted.from_json:
        yield from _from_json(template, standard_input)
    elif wanted.lines:
        for line in standard_input:
            yield msgspec.structs.replace(template, body=line.rstrip(b"\r\n"))
    else:
        body = standard_input.read() if reads else os.fsencode(wanted.body or "")
        yield from _repeated(template, body, wanted.count)


def _after(delay: str | None) -> timedelta | None:
    return None if delay is None else timedelta(milliseconds=parse_duration_ms(delay, "--delay"))


def _at(text: str | None, now_ms: int) -> datetime | None:
    if text is None:
        return None
    time_ms = parse_time(text, "--at")
    if time_ms < now_ms:
        raise UsageError(f"--at {text} is in the past")
    return datetime.fromtimestamp(time_ms / 1000).astimezone()


def _repeated(template: Message, body: bytes, count: int) -> Iterator[Message]:
    for number in range(1, count + 1):
        own = body if count == 1 else body.replace(NUMBER.encode(), str(number).encode())
        yield msgspec.structs.replace(template, body=own)


def _from_json(template: Message, lines: Iterable[bytes]) -> Iterator[Message]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = msgspec.json.decode(line, type=JsonMessage)
            body = base64.b64decode(found.body_base64, validate=True) if found.body_base64 else None
        except (msgspec.DecodeError, ValueError) as error:
            raise UsageError(f"line {number} is no message as JSON: {error}") from None
        if body is None and found.body is None:
            raise UsageError(f"line {number} has neither body nor body_base64")
        own = {name: value for name, value in found.properties.items() if name not in _OWN_PROPERTIES}
        yield msgspec.structs.replace(
            template,
            body=body if body is not None else (found.body or "").encode(),
            tags=template.tags or found.tags,
            keys=template.keys or tuple(found.keys),
            properties={**own, **template.properties},
        )


def send(wanted: SendArguments, *, group: str, namesrv: str, trace: bool, as_json: bool) -> bool:
    """Send all and say where they are; whether brokers say that all are safe. Raises as `Producer` does."""
    queue = MessageQueue(wanted.topic, *parse_queue(wanted.queue)) if wanted.queue is not None else None
    to_send = messages(wanted, sys.stdin.buffer, now_ms=round(time.time() * 1000))
    report = _Report(as_json=as_json, one=not (wanted.count > 1 or wanted.lines or wanted.from_json))
    waiting: deque[concurrent.futures.Future[SendReceipt]] = deque()
    with Producer(group, namesrv=namesrv, settings=ProducerSettings(trace=trace)) as producer:
        for message in to_send:
            if queue is not None or message.sharding_key is not None:
                report.add(producer.send(message, queue=queue))  # one after the other keeps them in order
                continue
            waiting.append(producer.submit(message))
            if len(waiting) >= IN_FLIGHT_MAX:
                report.add(waiting.popleft().result())
        while waiting:
            report.add(waiting.popleft().result())
    report.end()
    return report.all_safe


class _Report:
    """Says of each message where it is; on a terminal of many messages how many there were."""

    def __init__(self, *, as_json: bool, one: bool) -> None:
        self._screen = Screen()
        self._as_json = as_json
        self._one = one
        self._started = time.monotonic()
        self._count = 0
        self.all_safe = True

    def add(self, receipt: SendReceipt) -> None:
        self._count += 1
        if not receipt.is_ok:
            self.all_safe = False
            self._screen.warn(f"message {receipt.message_id} was taken, but {receipt.status.value}")
        place = (receipt.queue.broker_name, receipt.queue.queue_id, receipt.queue_offset)
        row = (receipt.message_id, *place, receipt.status.value)
        if self._as_json:
            print_json(
                {**dict(zip(COLUMNS, row, strict=True)), "offset_message_id": receipt.offset_message_id}
            )
        elif not self._screen.out.is_terminal:
            self._screen.cells(row)
        elif self._one:
            broker, queue_id, queue_offset = place
            self._screen.line(f"sent {receipt.message_id} to {broker}:{queue_id}, offset {queue_offset}")

    def end(self) -> None:
        elapsed_s = time.monotonic() - self._started
        if not self._one and not self._as_json and self._screen.out.is_terminal:
            rate = self._count / elapsed_s if elapsed_s > 0 else 0.0
            self._screen.line(f"sent {self._count} messages in {elapsed_s:.2f} s ({rate:,.0f}/s)")
