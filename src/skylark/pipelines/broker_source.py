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

from skylark.errors import BrokerError, RocketMQError, SettingsError
from skylark.model.record import RECORD_BYTES_MIN, decode_all, parse_offset_message_id
from skylark.model.tag_expression import MATCH_ALL, TAG
from skylark.pipelines.cluster_client import (
    BULK_BYTES,
    BULK_MESSAGES,
    PULL_MESSAGES,
    SAMPLE_UNITS,
    ClusterClient,
    SparkQueue,
    shared_client,
)
from skylark.pipelines.decode.record_layout import Ints, Records, locate, record_starts
from skylark.pipelines.message_source import LossPolicy, OffsetRange
from skylark.pipelines.options import SourceOptions
from skylark.pipelines.store_source import UNIT_TYPE
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Buffer, RemotingCommand, prefix
from skylark.protocol.requests.pull import PullMessage, PullResult
from skylark.remoting.blocking import BlockingConnection, PendingReply


class PulledRecords(NamedTuple):
    """What a pull brought: records, and their units if the broker gave them."""

    records: memoryview
    units: Buffer

    @property
    def block(self) -> object:
        """Where the bytes lie."""
        return self.records.obj

    @property
    def address(self) -> int:
        return int(pa.py_buffer(self.records).address)

    def goes_on(self, before: PulledRecords) -> bool:
        """Say whether this answer lies behind the one before in the same block.

        One that a broker had to read from its disk comes after those that were asked for later.
        """
        return self.block is before.block and self.address > before.address


def locate_pulled(answers: Sequence[PulledRecords], to_offset: int) -> Records:
    """The records of answers of which each goes on behind the one before, without those from `to_offset` on.

    A broker that gives units has not looked at the records: those that do not fit theirs are bad. Raises
    CorruptRecord.
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
    return records.only(records.bad | (records.heads["queue_offset"] < to_offset))


def _sizes(answers: Sequence[PulledRecords]) -> list[Ints] | None:
    """How large the records of each answer are by their units; None if those cannot all be right."""
    if not all(answer.units for answer in answers):
        return None
    sizes = [np.frombuffer(answer.units, UNIT_TYPE)["size"].astype(np.int64) for answer in answers]
    for answer, each in zip(answers, sizes, strict=True):
        if each.sum() != len(answer.records) or (each < RECORD_BYTES_MIN).any():
            return None
    return sizes


RECORD_BYTES_GUESS = 1024
"""Where no sample can be had."""
PULLS_IN_FLIGHT_MAX = 64
"""Asked for again by halves: many small requests cost less when they travel together."""
BYTES_IN_FLIGHT = 1 << 20
"""Of large answers fewer are on their way, but always as many as of bulk pulls."""
ANSWER_BYTES_GUESS = 64 << 10
"""Before the first has come."""
BULK_PULLS_IN_FLIGHT = 4
LOOKUP_BYTES_MAX = 4 << 20
"""Of records with a key: brokers leave out what is too much for an answer, and do not say so."""
MISSING_WAIT_S = 10.0
"""How long a broker that does not have what it once had may take to find it again: it may be recovering."""
MISSING_PAUSE_S = 0.2
WHOLE_ANSWERS_UNTIL_MORE = 128
"""Then more is asked for than an answer held so far: brokers give less of what they read from disk."""
SQL92 = "SQL92"
_GOES_ON = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)


class BrokerSource:
    """The brokers of a cluster as an origin."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.namesrv is not None
        self._options = options
        self._cluster: ClusterClient = shared_client(
            options.namesrv, options.request_timeout_ms / 1000, options.retry_timeout_ms / 1000
        )
        self._is_selector_known = options.sql92 is None

    # --- What there is ---

    def topics(self) -> list[str]:
        return self._cluster.topics()

    def queues(self, topic: str) -> list[SparkQueue]:
        """Raises SettingsError for a selector that the broker does not take: here, not in a task."""
        queues = self._cluster.queues(topic)
        if queues and not self._is_selector_known:
            request = self._cluster.pull_request(
                queues[0], 0, messages_max=1, expression=self._options.sql92 or "", expression_type=SQL92
            )
            try:
                self._cluster.ask_broker(queues[0], request)
            except BrokerError as error:
                raise SettingsError("sql92", error.remark) from error
            self._is_selector_known = True
        return queues

    def min_offsets(self, queues: Sequence[SparkQueue]) -> dict[SparkQueue, int]:
        return self._cluster.min_offsets(queues)

    def max_offsets(self, queues: Sequence[SparkQueue]) -> dict[SparkQueue, int]:
        return self._cluster.max_offsets(queues)

    def offsets_by_time(self, queues: Sequence[SparkQueue], timestamp_ms: int) -> dict[SparkQueue, int]:
        return self._cluster.offsets_by_time(queues, timestamp_ms)

    def group_offset(self, group: str, queue: SparkQueue) -> int | None:
        return self._cluster.group_offset(group, queue)

    # --- How much it is ---

    def record_bytes(self, ranges: Sequence[OffsetRange]) -> list[float]:
        places = [
            (wanted.queue, place)
            for wanted in ranges
            for place in (wanted.from_offset, max(wanted.to_offset - SAMPLE_UNITS, wanted.from_offset))
        ]
        try:
            sizes = self._cluster.record_bytes(places)
        except RocketMQError:  # a broker that does not show its queues
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

    def _one_of_each_broker(self, topics: Sequence[str]) -> list[SparkQueue]:
        queues = {queue.broker_name: queue for topic in topics for queue in self._cluster.queues(topic)}
        return list(queues.values())

    # --- Reading ---

    def read(self, wanted: OffsetRange, losses: LossPolicy) -> Iterator[Records]:
        answers: list[PulledRecords] = []
        taken, bytes_max = 0, self._options.batch_bytes
        for answer in _Pulls(self._cluster, self._options, wanted, losses):
            if answers and (taken >= bytes_max or not answer.goes_on(answers[-1])):
                yield locate_pulled(answers, wanted.to_offset)
                answers, taken = [], 0
            answers.append(answer)
            taken += len(answer.records)
        if answers:
            yield locate_pulled(answers, wanted.to_offset)


def _places(records: bytes, broker_name: str) -> list[OffsetRange]:
    return [
        OffsetRange(
            SparkQueue(message.topic, broker_name, message.queue_id),
            message.queue_offset,
            message.queue_offset + 1,
        )
        for message in decode_all(records, check_crc=False)
    ]


class _PullAsk(NamedTuple):
    """A pull like others: so many messages from a place on."""

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
        """Whether an answer is records, and all that were asked for: nearly all answers are."""
        fields = reply.fields
        return (
            reply.code == ResponseCode.SUCCESS
            and fields.get("nextBeginOffset") == str(self.place + self.messages)
            and "bulkUnits" not in fields
            and len(reply.body) > 0
        )


class _Pulls:
    """Pulls of one range. Iterating gives the answers that have records.

    Where nothing is filtered the offset that comes next is known, so several pulls are on their way at once.
    An answer that is shorter than was asked for makes those behind it useless: then no more is asked for than
    the largest one would hold.
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
        self._pull = brokers.pull_request(
            wanted.queue,
            wanted.from_offset,
            bulk_bytes=BULK_BYTES if options.bulk_pulls else None,
            bulk_units=options.bulk_pulls or None,
            expression=options.sql92 or options.tags or MATCH_ALL,
            expression_type=SQL92 if options.sql92 else TAG,
        )
        self._template = self._pull.template()
        self._is_filtered = self._pull.subscription != MATCH_ALL
        self._count_max = BULK_MESSAGES if options.bulk_pulls else PULL_MESSAGES
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
        """What has come for the place where we are; the next pulls are asked before it is waited for."""
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
        if self._is_filtered:
            return 1
        if self._count > PULL_MESSAGES:
            # The first answer says how many messages one holds.
            return BULK_PULLS_IN_FLIGHT if self._answer_bytes_max else 1
        return max(min(BYTES_IN_FLIGHT // self._answer_bytes, PULLS_IN_FLIGHT_MAX), BULK_PULLS_IN_FLIGHT)

    def _ask_more(self) -> None:
        """Ask for what comes next until the window is full or nothing is left."""
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
        """The answers that have come and hold just what was asked for: those need no other look.

        The first other one ends this, and is the next that is looked at: it may be an error. So does half a
        window: the next ones shall be on their way while these are decoded.
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
            if not self._is_filtered:
                self._learn(ask, next_offset, len(result.records))
            self._at, self._missing_since = next_offset, None
        else:
            self._wait_for_missing()

    def _learn(self, ask: _PullAsk, next_offset: int, answer_bytes: int) -> None:
        """Ask for as many messages as an answer can hold."""
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
        """The broker has nothing here although the range was planned."""
        self._asks.clear()
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        if now - self._missing_since < MISSING_WAIT_S:
            time.sleep(MISSING_PAUSE_S)
            return
        self._losses.aged_out(OffsetRange(self._queue, self._at, self._end), "the broker no longer has them")
        self._at = self._end
