"""`skylark send`: build messages from the command line or standard input, and send them."""

from __future__ import annotations

import base64
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, BinaryIO

import msgspec
import typer

from skylark.cli.errors import UsageError
from skylark.cli.options import NAMESRV, AsJson, Namesrv, Topic, pairs, parse_queue, parsed
from skylark.cli.output import Screen, print_json
from skylark.quantities import TIME_HELP, parse_duration_ms, parse_time_ms

if TYPE_CHECKING:
    import concurrent.futures

    from skylark.client.producer.send_receipt import SendReceipt
    from skylark.model.message import Message

NUMBER = "{n}"
IN_FLIGHT_MAX = 256
EXIT_NOT_SAFE = 1
COLUMNS = ("id", "broker", "queue", "offset", "status")
# Properties that clients and brokers set: a copy of a message gets its own.
_OWN_PROPERTIES = frozenset(
    "UNIQ_KEY WAIT TAGS KEYS MSG_REGION TRACE_ON CLUSTER MIN_OFFSET MAX_OFFSET __SHARDINGKEY DELAY"
    " REAL_TOPIC REAL_QID PGROUP INSTANCE_ID TRAN_MSG".split()
)


def send(
    topic: Topic,
    body: Annotated[
        str | None, typer.Argument(metavar="BODY|-", help="The message; - or nothing: standard input.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tag", "-t", help="A tag, to filter by.")] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--key", "-k", help="A key, to find it by; may be repeated.")
    ] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", metavar="KEY=VALUE", help="A user property.")
    ] = None,
    order_by: Annotated[
        str | None, typer.Option("--order-by", metavar="KEY", help="Same key: same queue, in order.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="DURATION", help="Deliver after 10s, 5m, 2h, …")
    ] = None,
    delay_level: Annotated[
        int, typer.Option("--delay-level", min=0, max=18, help="Deliver after one of 18 fixed delays.")
    ] = 0,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help=f"Deliver at a time: {TIME_HELP}.")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, help="Number of copies; {n} in the body is the number.")
    ] = 1,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of standard input is a message.")] = False,
    from_json: Annotated[
        bool, typer.Option("--from-json", help="Each line is a message as `skylark tail --json` prints it.")
    ] = False,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", metavar="BROKER:ID", help="Send to this queue.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Trace it, for `skylark message trace`.")] = False,
    group: Annotated[str, typer.Option("--group", help="The producer group.")] = "skylark-send",
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Send a message, or many. Exit code 1 if a broker stored one without confirming flush or replication.

    Examples: skylark send orders '{"id": 42}' --tag created --key 42

    skylark send orders 'order {n}' --count 1000

    skylark tail orders --no-follow --json | skylark send orders-copy --from-json
    """
    wanted = SendArguments(
        topic, body, tags, keys or (), properties or (), order_by, delay, delay_level, at, count, lines,
        from_json, queue,
    )  # fmt: skip
    if not send_all(wanted, group=group, namesrv=namesrv, trace=trace, as_json=as_json):
        raise typer.Exit(EXIT_NOT_SAFE)


@dataclass(frozen=True, slots=True)
class SendArguments:
    """The options, as typed."""

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
    """A line of `skylark tail --json` or `store dump --json`, or one written by hand: `body` is enough."""

    body: str | None = None
    body_base64: str | None = None
    body_error: str | None = None
    tags: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}


def messages(wanted: SendArguments, standard_input: BinaryIO, *, now_ms: int) -> Iterator[Message]:
    """The messages to send. Raises UsageError, at the latest when the invalid message is reached."""
    from skylark.model.message import Message  # noqa: PLC0415 - `skylark send --help` must not wait for it

    if sum((wanted.delay is not None, wanted.delay_level > 0, wanted.at is not None)) > 1:
        raise UsageError("pass only one of --delay, --delay-level and --at")
    reads = wanted.body in (None, "-")
    if (wanted.lines or wanted.from_json) and not reads:
        raise UsageError("--lines and --from-json read standard input: omit the body, or pass -")
    if (wanted.lines or wanted.from_json) and wanted.count > 1:
        raise UsageError("--count repeats one body: do not combine it with --lines or --from-json")
    if wanted.body is None and standard_input.isatty():
        raise UsageError("nothing to send: pass a body, pipe one in, or pass - and end it with Ctrl-D")
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
    return None if delay is None else timedelta(milliseconds=parsed(parse_duration_ms, delay, "--delay"))


def _at(text: str | None, now_ms: int) -> datetime | None:
    if text is None:
        return None
    time_ms = parsed(parse_time_ms, text, "--at")
    if time_ms < now_ms:
        raise UsageError(f"--at {text} is in the past; pass a later time")
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
            raise UsageError(f"line {number}: invalid message JSON: {error}") from None
        if found.body_error is not None:
            raise UsageError(f"line {number}: the body is damaged: {found.body_error}")
        if body is None and found.body is None:
            raise UsageError(f"line {number}: neither body nor body_base64")
        own = {name: value for name, value in found.properties.items() if name not in _OWN_PROPERTIES}
        yield msgspec.structs.replace(
            template,
            body=body if body is not None else (found.body or "").encode(),
            tags=template.tags or found.tags,
            keys=template.keys or tuple(found.keys),
            properties={**own, **template.properties},
        )


def send_all(wanted: SendArguments, *, group: str, namesrv: str, trace: bool, as_json: bool) -> bool:
    """Send all and print where they are stored; return whether all were confirmed. Raises as `Producer`."""
    from skylark.client.producer.producer import Producer  # noqa: PLC0415
    from skylark.protocol.bodies import MessageQueue  # noqa: PLC0415
    from skylark.settings.client import ProducerSettings  # noqa: PLC0415

    queue = MessageQueue(wanted.topic, *parse_queue(wanted.queue)) if wanted.queue is not None else None
    to_send = messages(wanted, sys.stdin.buffer, now_ms=round(time.time() * 1000))
    report = _SendReport(as_json=as_json, one=not (wanted.count > 1 or wanted.lines or wanted.from_json))
    waiting: deque[concurrent.futures.Future[SendReceipt]] = deque()
    with Producer(group, namesrv=namesrv, settings=ProducerSettings(trace=trace)) as producer:
        for message in to_send:
            if queue is not None or message.sharding_key is not None:
                report.add(producer.send(message, queue=queue))  # one at a time, to keep the order
                continue
            waiting.append(producer.submit(message))
            if len(waiting) >= IN_FLIGHT_MAX:
                report.add(waiting.popleft().result())
        while waiting:
            report.add(waiting.popleft().result())
    report.end()
    return report.all_safe


class _SendReport:
    """Prints where each message is stored; on a terminal, for many messages, only their number."""

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
            self._screen.warn(f"message {receipt.message_id} is stored, but {receipt.status.value}")
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
