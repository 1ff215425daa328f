"""The sink with `delivery=exactly-once`: rows as half messages, which the driver ends batch by batch.

A task sends its rows as half messages, which no consumer sees, and appends a manifest that says where they
are. The driver decides a batch by one record in the commit topic, which has a single queue: of several
records about a batch or a manifest the first counts, whoever wrote it. Then it commits what was decided and
rolls back the rest. Ending a half message twice has no effect on Skylark's brokers, so a driver that was
killed repeats all of it. See docs/design/exactly-once-sink.md.
"""

from __future__ import annotations

import hashlib
import logging
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from pyspark.sql.datasource import WriterCommitMessage

from skylark.clock import now_ms
from skylark.errors import BrokerError, NoRoute, RocketMQError, SettingsError
from skylark.model.message import SystemFlag, encode_properties
from skylark.model.message_id import parse_offset_message_id
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.model.record import decode_all
from skylark.pipelines.cluster_client import ClusterClient
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import PullMessage
from skylark.protocol.requests.send import SendMessageV2, SendResult
from skylark.protocol.requests.transaction import COMMIT, ROLLBACK, EndTransaction

log = logging.getLogger(__name__)

HALF = int(SystemFlag.TRANSACTION_PREPARED)
MANIFEST_HALVES_MAX = 100_000
"""A manifest is one message, and 16 bytes for each half message stay below its limit."""
ENDS_AT_ONCE = 4096
SHOWN_TIMEOUT_S = 10.0
SHOWN_PAUSE_S = 0.02
RECORD_TAG = "record"
MANIFEST_TAG = "manifest"


class Halves(msgspec.Struct, frozen=True):
    """Half messages on one broker: queue offset and physical offset of each, as 64-bit integers."""

    topic: str
    broker: str
    places: bytes

    def __iter__(self) -> Iterator[tuple[int, int]]:
        places = array("q", self.places)
        return zip(places[0::2], places[1::2], strict=True)


class Manifest(msgspec.Struct, frozen=True):
    """What a task attempt has sent, or a part of it."""

    halves: list[Halves]


class BatchRecord(msgspec.Struct, frozen=True):
    """A decision about manifests of one batch, named by their offsets in the commit topic.

    `is_void`: they must not be committed by any later record.
    """

    scope: str
    batch: int
    manifests: list[int]
    is_void: bool = False


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """A task's commit message: its rows wait on the brokers, undecided."""

    rows: int
    bytes: int
    scope: str
    batch: int
    manifests: tuple[int, ...]


@dataclass(slots=True)
class SentHalves:
    """Notes where the half messages of one task are."""

    places: dict[tuple[str, str], array[int]] = field(default_factory=dict)

    def note(self, queue: MessageQueue, result: SendResult) -> None:
        _, physical_offset = parse_offset_message_id(result.reply.msg_id)
        places = self.places.setdefault((queue.topic, queue.broker_name), array("q"))
        places.extend((result.reply.queue_offset, physical_offset))

    def halves(self) -> list[Halves]:
        return [Halves(topic, broker, places.tobytes()) for (topic, broker), places in self.places.items()]

    def manifests(self) -> Iterator[Manifest]:
        for each in self.halves():
            bytes_max = MANIFEST_HALVES_MAX * 2 * array("q").itemsize
            for start in range(0, len(each.places), bytes_max):
                part = each.places[start : start + bytes_max]
                yield Manifest([Halves(each.topic, each.broker, part)])


class CommitTopic:
    """The records and manifests of all exactly-once queries of a cluster, in one queue."""

    def __init__(self, brokers: ClusterClient, topic: str, group: str) -> None:
        """Raises SettingsError unless the topic has exactly one queue."""
        self._brokers = brokers
        self._group = group
        try:
            queues = brokers.queues(topic)
        except NoRoute:
            queues = []
        if len(queues) != 1:
            found = f"has {len(queues)} queues" if queues else "does not exist, or its broker is away"
            raise SettingsError(
                "commitTopic",
                f"topic {topic} {found}; create it with one queue on one broker: "
                f"skylark topic create {topic} --queues 1 --broker ADDRESS",
            )
        (self._queue,) = queues

    # --- Records ---

    def append(self, record: Manifest | BatchRecord) -> int:
        """Append and return the offset. Raises RocketMQError; the record may be there nevertheless."""
        tag = MANIFEST_TAG if isinstance(record, Manifest) else RECORD_TAG
        request = SendMessageV2(
            producer_group=self._group,
            topic=self._queue.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=1,
            queue_id=self._queue.queue_id,
            sys_flag=0,
            born_timestamp=now_ms(),
            flag=0,
            properties=encode_properties({"TAGS": tag}).decode(),
            broker_name=self._queue.broker_name,
            body=msgspec.msgpack.encode(record),
        )
        result = self._brokers.ask_broker(self._queue, request)
        if result.code != ResponseCode.SUCCESS:
            raise BrokerError(result.code, "a commit record is stored, but not confirmed by disk or replica")
        return result.reply.queue_offset

    def manifest(self, offset: int) -> Manifest:
        """Raises RocketMQError if it is not there any more."""
        result = self._brokers.pull(self._queue, offset, messages_max=1)
        for message in decode_all(result.records):
            if message.queue_offset == offset:
                return msgspec.msgpack.decode(message.body, type=Manifest)
        raise SettingsError("commitTopic", f"offset {offset} of {self._queue.topic} is not there any more")

    def records(self, scope: str, end_min: int = 0) -> Iterator[tuple[int, BatchRecord]]:
        """The records of a query from its last remembered one on, with their offsets.

        Waits for offsets below `end_min`: a broker may need a moment to show what it has stored.
        """
        at = self._brokers.group_offset(position_group(scope), self._queue)
        at = max(at or 0, self._brokers.min_offsets([self._queue])[self._queue])
        end = max(self._brokers.max_offsets([self._queue])[self._queue], end_min)
        deadline = time.monotonic() + SHOWN_TIMEOUT_S
        while at < end:
            request = PullMessage.plain(self._queue, at, expression=RECORD_TAG)
            result = self._brokers.ask_broker(self._queue, request)
            for message in decode_all(result.records):
                record = msgspec.msgpack.decode(message.body, type=BatchRecord)
                if record.scope == scope:
                    yield message.queue_offset, record
            if result.reply.next_begin_offset > at:
                at = result.reply.next_begin_offset
            elif time.monotonic() < deadline:
                time.sleep(SHOWN_PAUSE_S)
            else:
                raise SettingsError("commitTopic", f"offset {at} of {self._queue.topic} cannot be read")

    def remember(self, scope: str, offset: int) -> None:
        """Start reading the query's records there from now on; never raises, as this only saves time."""
        try:
            self._brokers.commit_offsets(position_group(scope), {self._queue: offset})
        except RocketMQError as error:
            log.warning("cannot remember the last batch scope=%s error=%s", scope, error)


def position_group(scope: str) -> str:
    """The consumer group whose offset is the position of a query in the commit topic."""
    return f"skylark-spark-{hashlib.sha256(scope.encode()).hexdigest()[:24]}"


def valid_records(records: Iterable[tuple[int, BatchRecord]]) -> dict[int, tuple[int, BatchRecord]]:
    """The record that decides each batch: its first that names no manifest declared void before. Pure."""
    void: set[int] = set()
    found: dict[int, tuple[int, BatchRecord]] = {}
    for offset, record in records:
        if record.is_void:
            void.update(record.manifests)
        elif void.isdisjoint(record.manifests):
            found.setdefault(record.batch, (offset, record))
    return found


class BatchTransaction:
    """Ends the half messages of a batch, in the driver."""

    def __init__(self, brokers: ClusterClient, topic: CommitTopic, group: str) -> None:
        self._brokers = brokers
        self._topic = topic
        self._group = group

    def commit(self, messages: Sequence[Staged], *, is_stream: bool) -> None:
        """Commit what is decided for the batch: these rows, or those of an earlier attempt.

        Repeating it has no effect. Raises RocketMQError; then the batch must be run again, or aborted.
        """
        if not any(message.rows for message in messages):
            return
        scope, batch = messages[0].scope, messages[0].batch
        staged = [offset for message in messages for offset in message.manifests]
        decided = self._decided(scope, batch)
        if decided is None:
            mine = self._topic.append(BatchRecord(scope, batch, staged))
            decided = self._decided(scope, batch, mine + 1)
            if decided is None:
                raise SettingsError("delivery", f"batch {batch} of {scope} was aborted by another driver")
        offset, record = decided
        self.end(self._manifests(record.manifests), COMMIT)
        self._roll_back([each for each in staged if each not in record.manifests])
        if is_stream:
            self._topic.remember(scope, offset)

    def abort(self, messages: Sequence[Staged]) -> None:
        """Roll back rows of a failed batch, unless they are decided already. Raises RocketMQError."""
        staged = [offset for message in messages for offset in message.manifests]
        if not staged:
            return
        scope, batch = messages[0].scope, messages[0].batch
        mine = self._topic.append(BatchRecord(scope, batch, staged, is_void=True))
        decided = valid_records(self._topic.records(scope, mine + 1)).values()
        if all(set(staged).isdisjoint(record.manifests) for _, record in decided):
            self._roll_back(staged)

    def _decided(self, scope: str, batch: int, end_min: int = 0) -> tuple[int, BatchRecord] | None:
        found = valid_records(self._topic.records(scope, end_min))
        if (last := max(found, default=batch)) > batch:
            raise SettingsError(
                "delivery",
                f"batch {batch} of {scope} comes after batch {last} was committed: another driver runs this "
                "query, or its checkpoint was removed (then use a new exactlyOnceId)",
            )
        return found.get(batch)

    def end(self, halves: Iterable[Halves], outcome: int) -> None:
        """End half messages. Raises RocketMQError."""
        for each in halves:
            queue = MessageQueue(each.topic, each.broker, 0)
            places = list(each)
            for start in range(0, len(places), ENDS_AT_ONCE):
                ends = [self._end(*place, outcome) for place in places[start : start + ENDS_AT_ONCE]]
                self._brokers.ask_all([(queue, end) for end in ends])

    def _end(self, queue_offset: int, physical_offset: int, outcome: int) -> EndTransaction:
        return EndTransaction(
            producer_group=self._group,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            commit_or_rollback=outcome,
            msg_id="",
        )

    def _roll_back(self, manifests: Sequence[int]) -> None:
        """Never raises: rows that are not rolled back stay invisible until the broker drops them."""
        try:
            self.end(self._manifests(manifests), ROLLBACK)
        except RocketMQError as error:
            log.warning("cannot roll back manifests=%s error=%s", manifests, error)

    def _manifests(self, offsets: Iterable[int]) -> Iterator[Halves]:
        for offset in offsets:
            yield from self._topic.manifest(offset).halves
