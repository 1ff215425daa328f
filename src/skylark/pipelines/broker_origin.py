"""Messages from brokers: pulls with the next ones on their way, and the offsets that brokers know."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import structs

from skylark.errors import BrokerError, RocketMQError
from skylark.model.record import decode_all, parse_offset_message_id
from skylark.model.tag_expression import MATCH_ALL, TAG
from skylark.pipelines.answers import Answer, located
from skylark.pipelines.options import SourceOptions
from skylark.pipelines.origin import Losses, QueueRange
from skylark.pipelines.record_layout import Records
from skylark.pipelines.wire import (
    BULK_BYTES,
    BULK_MESSAGES,
    PULL_MESSAGES,
    SAMPLE_UNITS,
    Cluster,
    Queue,
    cluster,
)
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import PullMessage, PullResult
from skylark.remoting.blocking import Asked, BlockingConnection

RECORD_BYTES_GUESS = 1024
"""Where no sample can be had."""
PULLS_IN_FLIGHT = 32
"""Asked for again by halves: many small requests cost less when they travel together."""
BULK_PULLS_IN_FLIGHT = 4
MISSING_WAIT_S = 10.0
"""How long a broker that does not have what it once had may take to find it again: it may be recovering."""
MISSING_PAUSE_S = 0.2
WHOLE_ANSWERS_UNTIL_MORE = 16
SQL92 = "SQL92"
_GOES_ON = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)


class BrokerOrigin:
    """The brokers of a cluster as an origin."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.namesrv is not None
        self._options = options
        self._cluster: Cluster = cluster(
            options.namesrv, options.request_timeout_ms / 1000, options.retry_timeout_ms / 1000
        )

    # --- What there is ---

    def topics(self) -> list[str]:
        return self._cluster.topics()

    def queues(self, topic: str) -> list[Queue]:
        return self._cluster.queues(topic)

    def min_offsets(self, queues: Sequence[Queue]) -> dict[Queue, int]:
        return self._cluster.min_offsets(queues)

    def max_offsets(self, queues: Sequence[Queue]) -> dict[Queue, int]:
        return self._cluster.max_offsets(queues)

    def offsets_by_time(self, queues: Sequence[Queue], timestamp_ms: int) -> dict[Queue, int]:
        return self._cluster.offsets_by_time(queues, timestamp_ms)

    def group_offset(self, group: str, queue: Queue) -> int | None:
        return self._cluster.group_offset(group, queue)

    # --- How much it is ---

    def record_bytes(self, ranges: Sequence[QueueRange]) -> list[float]:
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

    def end_within(self, wanted: QueueRange, bytes_max: int, record_bytes: float) -> int:
        return min(wanted.to_offset, wanted.from_offset + int(bytes_max / max(record_bytes, 1)))

    # --- Lookups ---

    def by_key(self, topic: str, key: str, *, unique: bool, maximum: int) -> list[QueueRange] | None:
        found: list[QueueRange] = []
        for queue in self._one_of_each_broker([topic]):
            records = self._cluster.by_key(queue, key, maximum=maximum, unique=unique)
            places = _places(records, queue.broker_name)
            if len(places) >= maximum:
                return None
            found += places
        return found

    def by_message_id(self, topics: Sequence[str], message_id: str) -> list[QueueRange] | None:
        try:
            _, physical_offset = parse_offset_message_id(message_id)
        except ValueError:
            return []
        found: list[QueueRange] = []
        for queue in self._one_of_each_broker(topics):
            try:
                record = self._cluster.record_at(queue, physical_offset)
            except BrokerError:
                continue  # no record starts there
            found += [place for place in _places(record, queue.broker_name) if place.queue.topic in topics]
        return found

    def _one_of_each_broker(self, topics: Sequence[str]) -> list[Queue]:
        queues = {queue.broker_name: queue for topic in topics for queue in self._cluster.queues(topic)}
        return list(queues.values())

    # --- Reading ---

    def read(self, wanted: QueueRange, losses: Losses) -> Iterator[Records]:
        answers: list[Answer] = []
        taken = 0
        for answer in _Pulls(self._cluster, self._options, wanted, losses):
            if answers and (taken >= self._options.batch_bytes or answer.block is not answers[0].block):
                yield located(answers, wanted.to_offset)
                answers, taken = [], 0
            answers.append(answer)
            taken += len(answer.records)
        if answers:
            yield located(answers, wanted.to_offset)


def _places(records: bytes, broker_name: str) -> list[QueueRange]:
    return [
        QueueRange(
            Queue(message.topic, broker_name, message.queue_id),
            message.queue_offset,
            message.queue_offset + 1,
        )
        for message in decode_all(records, check_crc=False)
    ]


class _Ask(NamedTuple):
    """A pull on its way: so many messages from a place on."""

    place: int
    messages: int
    connection: BlockingConnection
    asked: Asked[PullResult]

    @property
    def next_place(self) -> int:
        return self.place + self.messages


class _Pulls:
    """Pulls of one range. Iterating gives the answers that have records.

    Where nothing is filtered the offset that comes next is known, so several pulls are on their way at once.
    Answers that are shorter than was thought make what is asked for smaller, until they are whole again.
    """

    def __init__(self, brokers: Cluster, options: SourceOptions, wanted: QueueRange, losses: Losses) -> None:
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
        self._is_filtered = self._pull.subscription != MATCH_ALL
        self._count_max = BULK_MESSAGES if options.bulk_pulls else PULL_MESSAGES
        self._count = self._count_max
        self._whole_answers = 0
        self._asks: deque[_Ask] = deque()
        self._missing_since: float | None = None

    def __iter__(self) -> Iterator[Answer]:
        while self._at < self._end:
            result = self._cluster.retried(self._next)
            if len(result.records):
                yield Answer(memoryview(result.records), result.units)

    def _next(self) -> PullResult:
        """The answer for the place where we are; the next ones are asked for before it is waited for."""
        try:
            if len(self._asks) <= self._window() // 2:
                self._ask_more()
            ask = self._asks.popleft()
            result = ask.connection.answer(ask.asked)
        except RocketMQError:
            self._asks.clear()
            self._cluster.forget_route(self._queue.topic)
            raise
        self._move_on(ask, result)
        return result

    def _window(self) -> int:
        if self._is_filtered:
            return 1
        return BULK_PULLS_IN_FLIGHT if self._count > PULL_MESSAGES else PULLS_IN_FLIGHT

    def _ask_more(self) -> None:
        """Ask for what comes next until the window is full or nothing is left."""
        connection = self._cluster.connection(self._cluster.address(self._queue))
        connection.block_bytes = self._block_bytes
        place = self._asks[-1].next_place if self._asks else self._at
        pulls: list[PullMessage] = []
        free = self._window() - len(self._asks)
        while len(pulls) < free and place < self._end:
            count = self._count if self._is_filtered else min(self._count, self._end - place)
            pulls.append(structs.replace(self._pull, queue_offset=place, max_msg_nums=count))
            place += count
        if pulls:
            asked = connection.ask_many(pulls, timeout_s=self._cluster.request_timeout_s)
            self._asks += [
                _Ask(pull.queue_offset, pull.max_msg_nums, connection, item)
                for pull, item in zip(pulls, asked, strict=True)
            ]

    def _move_on(self, ask: _Ask, result: PullResult) -> None:
        code, next_offset = result.code, result.reply.next_begin_offset
        if code == ResponseCode.PULL_OFFSET_MOVED and result.reply.min_offset > self._at:
            self._asks.clear()
            first = min(result.reply.min_offset, self._end)
            self._losses.aged_out(QueueRange(self._queue, self._at, first))
            self._at = first
        elif code in _GOES_ON and next_offset > self._at:
            if not self._is_filtered:
                self._learn(ask, next_offset)
            self._at, self._missing_since = next_offset, None
        else:
            self._wait_for_missing()

    def _learn(self, ask: _Ask, next_offset: int) -> None:
        """Ask for as many messages as an answer can hold."""
        if next_offset != ask.next_place:
            self._asks.clear()
            self._count = max(min(next_offset - ask.place, self._count) * 7 // 8, 1)
            self._whole_answers = 0
        elif self._count < self._count_max:
            self._whole_answers += 1
            if self._whole_answers % WHOLE_ANSWERS_UNTIL_MORE == 0:
                self._count = min(self._count + self._count // 8 + 1, self._count_max)

    def _wait_for_missing(self) -> None:
        """The broker has nothing here although the range was planned."""
        self._asks.clear()
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        if now - self._missing_since < MISSING_WAIT_S:
            time.sleep(MISSING_PAUSE_S)
            return
        self._losses.aged_out(QueueRange(self._queue, self._at, self._end), "the broker no longer has them")
        self._at = self._end
