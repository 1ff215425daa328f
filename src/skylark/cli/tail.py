"""`skylark tail`: print the last messages of a topic, then new ones, without joining a consumer group."""

from __future__ import annotations

import io
import logging
import select
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from skylark.admin.messages import TOOLS_GROUP
from skylark.admin.results import QueueStats
from skylark.cli import message_text
from skylark.cli.errors import UsageError
from skylark.cli.options import connected
from skylark.cli.output import Screen, print_json
from skylark.cli.times import parse_time
from skylark.client.consumer.pull_consumer import PullConsumer
from skylark.client.received_message import ReceivedMessage
from skylark.errors import BadBody, CorruptRecord, RocketMQError
from skylark.model.sql92 import BadSelector, compile_selector
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import PullConsumerSettings

POLL_MS = 200
LOOK_AGAIN_S = 5.0
"""How often new queues and brokers are looked for."""
HOLD_MS = 3000
PULL_MESSAGES = 256
WARNINGS_MAX = 100
Printing = Callable[[ReceivedMessage], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TailArguments:
    """As typed."""

    topic: str
    start: str | None
    last: int
    follow: bool
    limit: int | None
    tags: str
    sql: str | None


def printer(*, as_json: bool, body_only: bool) -> Printing:
    """How a message is printed. Raises Mistake."""
    if as_json and body_only:
        raise UsageError("say --json or --body, not both")
    screen = Screen()
    if as_json:
        return lambda message: print_json(message_text.received_document(message))
    if body_only:
        return _print_body
    if screen.out.is_terminal:
        return lambda message: screen.out.print(message_text.pretty(message))
    return lambda message: screen.cells(message_text.received_row(message))


def _print_body(message: ReceivedMessage) -> None:
    try:
        body = message.body
    except (BadBody, CorruptRecord) as error:
        sys.stderr.write(f"skylark: {error}\n")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(body + b"\n")


def follow(wanted: TailArguments, *, namesrv: str, printing: Printing) -> bool:
    """Until Ctrl-C, the end or the limit; whether all brokers of the topic were there at the beginning.

    Raises Mistake, NoRoute, SettingsError.
    """
    if wanted.sql is not None and wanted.tags != "*":
        raise UsageError("say --tags or --sql, not both")
    if wanted.sql is not None:
        _check_sql(wanted.sql)
    start_ms = None
    if wanted.start is not None and wanted.start not in ("begin", "end"):
        start_ms = parse_time(wanted.start, "--from", round(time.time() * 1000))
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
    warnings = _Warnings(logging.WARNING)
    logging.getLogger("skylark.client").addHandler(warnings)
    try:
        with consumer:
            _seek(consumer, wanted, start_ms, queues)
            _Following(consumer, wanted, queues, printing).run()
    except KeyboardInterrupt:
        pass  # the usual end
    finally:
        logging.getLogger("skylark.client").removeHandler(warnings)
    return not stats.failures


class _Warnings(logging.Handler):
    """Tells on standard error why nothing comes: a consumer tries again for ever. Each reason once."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        sentence = record.getMessage()
        if sentence not in self._told and len(self._told) < WARNINGS_MAX:
            self._told.add(sentence)
            sys.stderr.write(f"skylark: {sentence}\n")


def _check_sql(condition: str) -> None:
    """Here, because a broker's refusal would be tried again for ever. Raises Mistake."""
    try:
        compile_selector(condition)
    except BadSelector as error:
        raise UsageError(f"--sql {condition!r}: {error}") from None


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


def _reader_has_left() -> bool:
    """Say whether nobody reads our output any more, which else only the next message would show."""
    try:
        output = sys.stdout.fileno()
    except io.UnsupportedOperation:
        return False  # it goes to no file
    poll = select.poll()
    poll.register(output, 0)  # errors are told in any case
    return any(event & select.POLLERR for _, event in poll.poll(0))


class _Following:
    """What was there when it began is known by the queues' ends at that time."""

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
        self._look_at = time.monotonic() + LOOK_AGAIN_S

    def run(self) -> None:
        if self._wanted.start is None:
            self._show_last()
        else:
            while self._left != 0 and not self._is_at_end():
                self._print(self._chosen(self._consumer.poll(POLL_MS)))
        while self._wanted.follow and self._left != 0:
            self._print(self._consumer.poll(POLL_MS))
            if _reader_has_left():
                raise BrokenPipeError
            if time.monotonic() >= self._look_at:
                self._take_new_queues()
                self._look_at = time.monotonic() + LOOK_AGAIN_S

    def _take_new_queues(self) -> None:
        """Follow queues that came since. Of a broker that was not there, only what came since, too."""
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
            log.warning("new queues are not followed yet topic=%s error=%s", self._wanted.topic, error)

    def _show_last(self) -> None:
        """The last ones of all queues together, by time: as many of each queue are read."""
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
