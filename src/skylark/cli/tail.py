"""`skylark tail`: print the last messages of a topic, then new ones, without joining a consumer group."""

from __future__ import annotations

import io
import logging
import select
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.errors import UsageError
from skylark.cli.options import NAMESRV, AsJson, Namesrv, Topic, connected, parsed
from skylark.cli.output import EXIT_INCOMPLETE, Screen, print_json
from skylark.errors import BadBody, CorruptRecord, RocketMQError
from skylark.quantities import PAST_TIME_HELP, parse_time_ms

if TYPE_CHECKING:
    from skylark.admin.results import QueueStats
    from skylark.client.consumer.pull_consumer import PullConsumer
    from skylark.client.received_message import ReceivedMessage
    from skylark.protocol.bodies import MessageQueue

LAST = 10
POLL_MS = 200
REFRESH_S = 5.0
"""How often new queues and brokers are looked for."""
HOLD_MS = 3000
PULL_MESSAGES = 256
Printing = Callable[["ReceivedMessage"], None]

log = logging.getLogger(__name__)


def tail(
    topic: Topic,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help=f"begin, end, or a time: {PAST_TIME_HELP}.")
    ] = None,
    last: Annotated[int, typer.Option("-n", "--last", min=0, help="Number of old messages.")] = LAST,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f/-F", help="Wait for new messages, or stop.")
    ] = True,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after this many.")] = None,
    tags: Annotated[str, typer.Option("--tags", "-t", help="Such as 'created || paid'.")] = "*",
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="CONDITION", help="SQL92, such as 'amount > 100'.")
    ] = None,
    body_only: Annotated[bool, typer.Option("--body", "-b", help="Print only bodies, as they are.")] = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Follow a topic: its last messages, then each new one, until Ctrl-C. No group's offsets change.

    Exit code 1 if a broker of the topic did not answer at the start.

    Examples: skylark tail orders

    skylark tail orders --from 30m --tags 'created || paid' --json

    skylark tail orders --from begin --no-follow --body > bodies.txt
    """
    wanted = TailArguments(topic, start, last, follow, limit, tags, sql)
    if not follow_topic(wanted, namesrv=namesrv, printing=printer(as_json=as_json, body_only=body_only)):
        raise typer.Exit(EXIT_INCOMPLETE)


@dataclass(frozen=True, slots=True)
class TailArguments:
    """The options, as typed."""

    topic: str
    start: str | None
    last: int
    follow: bool
    limit: int | None
    tags: str
    sql: str | None


def printer(*, as_json: bool, body_only: bool) -> Printing:
    """The function that prints one message. Raises UsageError."""
    from skylark.admin import message_json  # noqa: PLC0415
    from skylark.cli import message_text  # noqa: PLC0415 - `skylark tail --help` must not wait for it

    if as_json and body_only:
        raise UsageError("pass --json or --body, not both")
    screen = Screen()
    if as_json:
        return lambda message: print_json(message_json.document(message))
    if body_only:
        return _print_body
    if screen.out.is_terminal:
        return lambda message: screen.out.print(message_text.pretty(message))
    return lambda message: screen.cells(message_text.row(message))


def _print_body(message: ReceivedMessage) -> None:
    try:
        body = message.body
    except (BadBody, CorruptRecord) as error:
        sys.stderr.write(f"skylark: {error}\n")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(body + b"\n")


def follow_topic(wanted: TailArguments, *, namesrv: str, printing: Printing) -> bool:
    """Print until Ctrl-C, the end or the limit; return whether all brokers answered at the start.

    Raises UsageError, NoRoute, SettingsError.
    """
    from skylark.client.consumer.pull_consumer import PullConsumer  # noqa: PLC0415
    from skylark.model.names import TOOLS_GROUP  # noqa: PLC0415
    from skylark.settings.client import PullConsumerSettings  # noqa: PLC0415

    if wanted.sql is not None and wanted.tags != "*":
        raise UsageError("pass --tags or --sql, not both")
    if wanted.sql is not None:
        _check_sql(wanted.sql)
    start_ms = None
    if wanted.start is not None and wanted.start not in ("begin", "end"):
        start_ms = parsed(parse_time_ms, wanted.start, "--from", round(time.time() * 1000))
    with connected(namesrv) as admin:
        stats = admin.topics.stats(wanted.topic)
    for address, error in stats.failures.items():
        Screen().warn(f"no answer from {address}: {error}")
    queues = {part.queue: part for part in stats.queues}
    settings = PullConsumerSettings(
        auto_commit=False, hold_ms=HOLD_MS, pull_batch_max=PULL_MESSAGES, poll_timeout_ms=POLL_MS
    )
    consumer = PullConsumer(TOOLS_GROUP, namesrv=namesrv, settings=settings)
    consumer.assign(queues, wanted.tags, sql=wanted.sql)
    warnings = _warning_lines()
    logging.getLogger("skylark.client").addHandler(warnings)
    try:
        with consumer:
            _seek(consumer, wanted, start_ms, queues)
            _Following(consumer, wanted, queues, printing).run()
    except KeyboardInterrupt:
        pass  # the usual end
    finally:
        logging.getLogger("skylark.client").removeHandler(warnings)
        warnings.close()
    return not stats.failures


def _warning_lines() -> logging.Handler:
    """Prints warnings of the consumer: it retries for ever, and the user must learn why."""
    from skylark.cli.repeated_warnings import RepeatedWarnings  # noqa: PLC0415
    from skylark.cli.server_process import TextLines  # noqa: PLC0415

    lines = logging.StreamHandler()
    lines.setFormatter(TextLines("skylark: %(message)s"))
    handler = RepeatedWarnings(lines)
    handler.setLevel(logging.WARNING)
    return handler


def _check_sql(condition: str) -> None:
    """Checked here, because the consumer would retry a broker's refusal for ever. Raises UsageError."""
    from skylark.model.sql92 import BadSelector, compile_selector  # noqa: PLC0415

    try:
        compile_selector(condition)
    except BadSelector as error:
        raise UsageError(f"invalid --sql {condition!r}; {error}") from None


def _seek(
    consumer: PullConsumer,
    wanted: TailArguments,
    start_ms: int | None,
    queues: Mapping[MessageQueue, QueueStats],
) -> None:
    for queue, part in queues.items():
        if start_ms is not None:
            consumer.seek_to_time(queue, start_ms)
        elif wanted.start is None:
            consumer.seek(queue, max(part.begin, part.end - wanted.last))
        else:
            consumer.seek(queue, part.begin if wanted.start == "begin" else part.end)


def _output_is_closed() -> bool:
    """Return whether the reader of our output is gone. Writing would show it only at the next message."""
    try:
        output = sys.stdout.fileno()
    except io.UnsupportedOperation:
        return False  # not a file
    poll = select.poll()
    poll.register(output, 0)  # errors are always reported
    return any(event & select.POLLERR for _, event in poll.poll(0))


class _Following:
    """Messages below the queues' ends at the start are old."""

    def __init__(
        self,
        consumer: PullConsumer,
        wanted: TailArguments,
        queues: Mapping[MessageQueue, QueueStats],
        printing: Printing,
    ) -> None:
        self._consumer = consumer
        self._wanted = wanted
        self._ends = {queue: part.end for queue, part in queues.items()}
        self._printing = printing
        self._left = wanted.limit
        self._began_ms = round(time.time() * 1000)
        self._queues = set(queues)
        self._brokers = {queue.broker_name for queue in queues}
        self._refresh_at = time.monotonic() + REFRESH_S

    def run(self) -> None:
        if self._wanted.start is None:
            self._show_last()
        else:
            while self._left != 0 and not self._is_at_end():
                self._print(self._chosen(self._consumer.poll(POLL_MS)))
        while self._wanted.follow and self._left != 0:
            self._print(self._consumer.poll(POLL_MS))
            if _output_is_closed():
                raise BrokenPipeError
            if time.monotonic() >= self._refresh_at:
                self._add_new_queues()
                self._refresh_at = time.monotonic() + REFRESH_S

    def _add_new_queues(self) -> None:
        """Follow queues created since the start. Of new brokers, only messages stored since the start."""
        try:
            new = set(self._consumer.queues(self._wanted.topic)) - self._queues
            if not new:
                return
            self._consumer.assign(self._queues | new, self._wanted.tags, sql=self._wanted.sql)
            for queue in new:
                if queue.broker_name in self._brokers or self._wanted.start == "begin":
                    self._consumer.seek_to_begin(queue)
                else:
                    self._consumer.seek_to_time(queue, self._began_ms)
                self._queues.add(queue)
        except RocketMQError as error:
            log.warning("cannot follow new queues yet topic=%s error=%s", self._wanted.topic, error)

    def _show_last(self) -> None:
        """Print the last messages of all queues together, by time."""
        messages: list[ReceivedMessage] = []
        while not self._is_at_end():
            messages += self._chosen(self._consumer.poll(POLL_MS))
        messages.sort(key=lambda item: (item.store_timestamp, item.broker_name, item.physical_offset))
        old = [item for item in messages if self._is_old(item)]
        self._print(old[len(old) - min(len(old), self._wanted.last) :])
        self._print([item for item in messages if not self._is_old(item)])

    def _is_old(self, message: ReceivedMessage) -> bool:
        return message.queue_offset < self._ends[message.queue]

    def _chosen(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        return messages if self._wanted.follow else [item for item in messages if self._is_old(item)]

    def _is_at_end(self) -> bool:
        positions = self._consumer.positions()
        return all((positions.get(queue) or 0) >= end for queue, end in self._ends.items())

    def _print(self, messages: list[ReceivedMessage]) -> None:
        for message in messages if self._left is None else messages[: self._left]:
            self._printing(message)
        if self._left is not None:
            self._left -= min(self._left, len(messages))
        sys.stdout.flush()
