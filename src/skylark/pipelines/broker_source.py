"""Messages from brokers: pipelined pulls, and the offsets that brokers report.

Pulled records stay in the buffer the socket filled: no copy, and no loop over records.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from skylark.arrow.record_layout import Ints, Records, locate, record_starts, unit_sizes, unwrapped
from skylark.errors import BrokerError, RocketMQError, SettingsError
from skylark.model.message_id import parse_offset_message_id
from skylark.model.record import decode_all, starts_with_batch
from skylark.model.tag_expression import MATCH_ALL, TAG
from skylark.pipelines.cluster_client import (
    BULK_BYTES,
    BULK_MESSAGES,
    SAMPLE_UNITS,
    ClusterClient,
    shared_client,
)
from skylark.pipelines.message_source import LossPolicy, OffsetRange
from skylark.pipelines.options import SourceOptions
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Buffer, RemotingCommand, prefix
from skylark.protocol.requests.pull import PLAIN_MESSAGES, PullMessage, PullResult
from skylark.remoting.blocking_connection import BlockingConnection, PendingReply


class PulledRecords(NamedTuple):
    """Records of one pull reply, and their queue entries if the broker sent them."""

    records: memoryview
    units: Buffer

    @property
    def block(self) -> object:
        """The buffer that holds the records."""
        return self.records.obj

    @property
    def address(self) -> int:
        return int(pa.py_buffer(self.records).address)

    def goes_on(self, before: PulledRecords) -> bool:
        """Return whether this reply lies after `before` in the same buffer.

        Replies may arrive out of order: a read from disk takes longer than later reads from memory.
        """
        return self.block is before.block and self.address > before.address


def locate_pulled(answers: Sequence[PulledRecords], to_offset: int, from_offset: int = 0) -> Records:
    """Locate the records of consecutive replies in one buffer, leaving out those from `to_offset` on.

    Messages of an inner batch before `from_offset` are left out, too.

    A broker that sends queue entries has not checked the records: one that does not match its entry is bad.
    Raises CorruptRecord.
    """
    block = pa.py_buffer(answers[0].block)
    places = [answer.address - block.address for answer in answers]
    sizes = _sizes(answers)
    if sizes is None:
        ends = [place + len(answer.records) for place, answer in zip(places, answers, strict=True)]
        stretches = list(zip(places, ends, strict=True))
        records = locate(block, record_starts(memoryview(block), stretches))
    else:
        starts = [place + np.cumsum(each) - each for place, each in zip(places, sizes, strict=True)]
        records = locate(block, np.concatenate(starts), np.concatenate(sizes))
    records = unwrapped(records, from_offset)
    return records.only(records.bad | (records.heads["queue_offset"] < to_offset))


def _sizes(answers: Sequence[PulledRecords]) -> list[Ints] | None:
    """Record sizes by the replies' queue entries; None if they do not add up."""
    if not all(answer.units for answer in answers):
        return None
    sizes: list[Ints] = []
    for answer in answers:
        found = unit_sizes(answer.units, len(answer.records))
        if found is None:
            return None
        sizes.append(found)
    return sizes


RECORD_BYTES_GUESS = 1024
"""Used if the broker gives no sample."""
PULLS_IN_FLIGHT_MAX = 64
"""The window is refilled when half empty: small requests cost less when sent together."""
BYTES_IN_FLIGHT = 1 << 20
"""Large replies shrink the window, down to BULK_PULLS_IN_FLIGHT."""
ANSWER_BYTES_GUESS = 64 << 10
"""Until the first reply arrives."""
BULK_PULLS_IN_FLIGHT = 4
LOOKUP_BYTES_MAX = 4 << 20
"""Brokers silently truncate a key lookup that exceeds one reply."""
MISSING_WAIT_S = 10.0
"""How long to wait for planned messages that the broker does not return: it may be recovering."""
MISSING_PAUSE_S = 0.2
WHOLE_ANSWERS_UNTIL_MORE = 128
"""Full replies before the pull size grows again: brokers return less per pull when reading from disk."""
SQL92 = "SQL92"
_GOES_ON = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)


class BrokerSource:
    """Reads messages from the brokers of a cluster."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.namesrv is not None
        self._options = options
        self._cluster: ClusterClient = shared_client(
            options.namesrv,
            options.request_timeout_ms / 1000,
            options.retry_timeout_ms / 1000,
            options.credentials,
            options.tls_settings,
        )
        self._is_selector_known = options.sql92 is None

    # --- Topics, queues and offsets ---

    def topics(self) -> list[str]:
        return self._cluster.topics()

    def queues(self, topic: str) -> list[MessageQueue]:
        """Raises SettingsError for a selector that the broker rejects, before any task starts."""
        queues = self._cluster.queues(topic)
        if queues and not self._is_selector_known:
            request = PullMessage.plain(
                queues[0], 0, messages_max=1, expression=self._options.sql92 or "", expression_type=SQL92
            )
            try:
                self._cluster.ask_broker(queues[0], request)
            except BrokerError as error:
                raise SettingsError("sql92", error.remark) from error
            self._is_selector_known = True
        return queues

    def min_offsets(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        return self._cluster.min_offsets(queues)

    def max_offsets(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        return self._cluster.max_offsets(queues)

    def offsets_by_time(self, queues: Sequence[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        return self._cluster.offsets_by_time(queues, timestamp_ms)

    def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        return self._cluster.group_offset(group, queue)

    # --- Sizes ---

    def record_bytes(self, ranges: Sequence[OffsetRange]) -> list[float]:
        places = [
            (wanted.queue, place)
            for wanted in ranges
            for place in (wanted.from_offset, max(wanted.to_offset - SAMPLE_UNITS, wanted.from_offset))
        ]
        try:
            sizes = self._cluster.record_bytes(places)
        except RocketMQError:  # the broker does not support the request
            return [RECORD_BYTES_GUESS for _ in ranges]
        pairs = [first + last for first, last in zip(sizes[0::2], sizes[1::2], strict=True)]
        return [sum(pair) / len(pair) if pair else RECORD_BYTES_GUESS for pair in pairs]

    def end_within(self, wanted: OffsetRange, bytes_max: int, record_bytes: float) -> int:
        return min(wanted.to_offset, wanted.from_offset + int(bytes_max / max(record_bytes, 1)))

    # --- Lookups ---

    def by_key(self, topic: str, key: str, *, unique: bool, maximum: int) -> list[OffsetRange] | None:
        found: list[OffsetRange] = []
        for queue in self._one_of_each_broker([topic]):
            records = self._cluster.by_key(queue, key, maximum=maximum, unique=unique)
            places = _places(records, queue.broker_name)
            if len(places) >= maximum or len(records) > LOOKUP_BYTES_MAX:
                return None
            found += places
        return found

    def by_message_id(self, topics: Sequence[str], message_id: str) -> list[OffsetRange] | None:
        try:
            _, physical_offset = parse_offset_message_id(message_id)
        except ValueError:
            return []
        found: list[OffsetRange] = []
        for queue in self._one_of_each_broker(topics):
            try:
                record = self._cluster.record_at(queue, physical_offset)
            except BrokerError:
                continue  # no record starts there
            found += [place for place in _places(record, queue.broker_name) if place.queue.topic in topics]
        return found

    def _one_of_each_broker(self, topics: Sequence[str]) -> list[MessageQueue]:
        queues = {queue.broker_name: queue for topic in topics for queue in self._cluster.queues(topic)}
        return list(queues.values())

    # --- Reading ---

    def read(self, wanted: OffsetRange, losses: LossPolicy) -> Iterator[Records]:
        answers: list[PulledRecords] = []
        taken, bytes_max = 0, self._options.batch_bytes
        for answer in _Pulls(self._cluster, self._options, wanted, losses):
            if answers and (taken >= bytes_max or not answer.goes_on(answers[-1])):
                yield locate_pulled(answers, wanted.to_offset, wanted.from_offset)
                answers, taken = [], 0
            answers.append(answer)
            taken += len(answer.records)
        if answers:
            yield locate_pulled(answers, wanted.to_offset, wanted.from_offset)


def _places(records: bytes, broker_name: str) -> list[OffsetRange]:
    return [
        OffsetRange(
            MessageQueue(message.topic, broker_name, message.queue_id),
            message.queue_offset,
            message.queue_offset + 1,
        )
        for message in decode_all(records, check_crc=False)
    ]


class _PullAsk(NamedTuple):
    """One pull of `messages` messages from offset `place`."""

    pull: PullMessage
    template: bytes
    place: int
    messages: int
    connection: BlockingConnection

    @property
    def code(self) -> RequestCode:
        return self.pull.code

    @property
    def next_place(self) -> int:
        return self.place + self.messages

    def frame(self, opaque: int) -> list[Buffer]:
        header = self.template % (self.place, self.messages, 0, opaque)
        return [prefix(len(header), 0), header]

    def result(self, reply: RemotingCommand) -> PullResult:
        return self.pull.result(reply)

    def is_whole(self, reply: RemotingCommand) -> bool:
        """Return whether a reply holds all requested messages and nothing unusual: nearly all do."""
        fields = reply.fields
        return (
            reply.code == ResponseCode.SUCCESS
            and fields.get("nextBeginOffset") == str(self.place + self.messages)
            and "bulkUnits" not in fields
            and len(reply.body) > 0
        )


class _Pulls:
    """Pulls of one range. Iterating yields the replies that hold records.

    Without a filter the next offset is known in advance, so several pulls are in flight. A reply shorter than
    requested invalidates those after it; later pulls then request only what the largest reply can hold.
    """

    def __init__(
        self, brokers: ClusterClient, options: SourceOptions, wanted: OffsetRange, losses: LossPolicy
    ) -> None:
        self._cluster = brokers
        self._queue = wanted.queue
        self._at = wanted.from_offset
        self._end = wanted.to_offset
        self._losses = losses
        self._block_bytes = options.batch_bytes
        self._pull = PullMessage.plain(
            wanted.queue,
            wanted.from_offset,
            bulk_bytes=BULK_BYTES if options.bulk_pulls else None,
            bulk_units=options.bulk_pulls or None,
            expression=options.sql92 or options.tags or MATCH_ALL,
            expression_type=SQL92 if options.sql92 else TAG,
        )
        self._template = self._pull.template()
        self._is_filtered = self._pull.subscription != MATCH_ALL
        self._is_batched = False
        """Whether records hold several messages: a reply then ends between two, not where it was asked to."""
        self._count_max = BULK_MESSAGES if options.bulk_pulls else PLAIN_MESSAGES
        self._count = self._count_max
        self._whole_answers = 0
        self._answer_bytes = ANSWER_BYTES_GUESS
        self._answer_bytes_max = 0
        self._asks: deque[tuple[_PullAsk, PendingReply[PullResult]]] = deque()
        self._missing_since: float | None = None

    def __iter__(self) -> Iterator[PulledRecords]:
        while self._at < self._end:
            yield from self._cluster.retried(self._next)

    def _next(self) -> list[PulledRecords]:
        """Return the replies for the current offset; the next pulls are sent before waiting."""
        try:
            if len(self._asks) <= self._window() // 2:
                self._ask_more()
            ask, asked = self._asks[0]
            reply = ask.connection.reply(asked)
            if answers := self._take_whole():
                return answers
            self._asks.popleft()
            result = ask.result(reply)
        except RocketMQError:
            self._asks.clear()
            self._cluster.forget_route(self._queue.topic)
            raise
        self._answer_bytes_max = max(self._answer_bytes_max, len(result.records))
        self._move_on(ask, result)
        return [PulledRecords(memoryview(result.records), result.units)] if len(result.records) else []

    def _window(self) -> int:
        if self._is_filtered or self._is_batched:
            return 1
        if self._count > PLAIN_MESSAGES:
            # The first reply shows how many messages fit into one.
            return BULK_PULLS_IN_FLIGHT if self._answer_bytes_max else 1
        return max(min(BYTES_IN_FLIGHT // self._answer_bytes, PULLS_IN_FLIGHT_MAX), BULK_PULLS_IN_FLIGHT)

    def _ask_more(self) -> None:
        """Send pulls until the window is full or the range is covered."""
        connection = self._cluster.connection(self._cluster.address(self._queue))
        connection.block_bytes = self._block_bytes
        place = self._asks[-1][0].next_place if self._asks else self._at
        asks: list[_PullAsk] = []
        free = self._window() - len(self._asks)
        while len(asks) < free and place < self._end:
            count = self._count if self._is_filtered else min(self._count, self._end - place)
            asks.append(_PullAsk(self._pull, self._template, place, count, connection))
            place += count
        if asks:
            asked = connection.ask_many(asks, timeout_s=self._cluster.request_timeout_s)
            self._asks.extend(zip(asks, asked, strict=True))

    def _take_whole(self) -> list[PulledRecords]:
        """Take received replies that hold exactly what was requested; they need no further checks.

        Stops at the first other reply, which `_next` handles, and at half a window, so that new pulls are in
        flight while these are decoded.
        """
        answers: list[PulledRecords] = []
        if self._is_filtered or self._count < self._count_max:
            return answers
        asks, answers_max = self._asks, self._window() // 2
        while asks and len(answers) < answers_max:
            ask, asked = asks[0]
            if asked.reply is None or not ask.is_whole(asked.reply):
                break
            answers.append(PulledRecords(memoryview(asked.reply.body), b""))
            self._at = ask.next_place
            asks.popleft()
        if answers:
            self._missing_since, self._answer_bytes = None, len(answers[-1].records)
        return answers

    def _move_on(self, ask: _PullAsk, result: PullResult) -> None:
        code, next_offset = result.code, result.reply.next_begin_offset
        if code == ResponseCode.PULL_OFFSET_MOVED and result.reply.min_offset > self._at:
            self._asks.clear()
            first = min(result.reply.min_offset, self._end)
            self._losses.aged_out(OffsetRange(self._queue, self._at, first))
            self._at = first
        elif code in _GOES_ON and next_offset > self._at:
            self._is_batched = self._is_batched or starts_with_batch(result.records)
            if self._is_batched:
                self._asks.clear()
            elif not self._is_filtered:
                self._learn(ask, next_offset, len(result.records))
            self._at, self._missing_since = next_offset, None
        else:
            self._wait_for_missing()

    def _learn(self, ask: _PullAsk, next_offset: int, answer_bytes: int) -> None:
        """Adapt the pull size to what a reply can hold."""
        if next_offset != ask.next_place:
            self._asks.clear()
            self._count = max(min(next_offset - ask.place, self._count) * 15 // 16, 1)
            self._whole_answers = 0
        elif self._count < self._count_max:
            self._whole_answers += 1
            fitting = self._answer_bytes_max * ask.messages // max(answer_bytes, 1) * 15 // 16
            if self._whole_answers % WHOLE_ANSWERS_UNTIL_MORE == 0:
                fitting = self._count + self._count // 8 + 1
            self._count = min(max(fitting, self._count), self._count_max)

    def _wait_for_missing(self) -> None:
        """Wait for a planned offset that the broker does not return, then report it as lost."""
        self._asks.clear()
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        if now - self._missing_since < MISSING_WAIT_S:
            time.sleep(MISSING_PAUSE_S)
            return
        self._losses.aged_out(OffsetRange(self._queue, self._at, self._end), "the broker no longer has them")
        self._at = self._end
