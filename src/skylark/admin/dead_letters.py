"""Dead letters of groups: count and list them, and send them again with a record of each."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass

from skylark.admin.messages import AsyncMessages
from skylark.admin.offsets import AsyncOffsets
from skylark.admin.results import BrokerQueues, Failures, TopicStats
from skylark.admin.server_calls import ServerCalls, at_once, whole
from skylark.client.received_message import ReceivedMessage
from skylark.clock import Clock, SystemClock
from skylark.errors import NoRoute, NotWritable, RocketMQError
from skylark.model.message import (
    DEAD_LETTER_TOPIC_PREFIX,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQUE_KEY,
    encode_properties,
)
from skylark.model.message_id import UniqueIds
from skylark.model.names import AUTO_CREATE_TOPIC, dead_letter_topic, retry_topic
from skylark.protocol.bodies import MASTER_ID, PERM_WRITE, MessageQueue
from skylark.protocol.requests.name_server import GetAllTopicListFromNameServer
from skylark.protocol.requests.send import SendMessageV2
from skylark.protocol.requests.topic import GetTopicStatsInfo

log = logging.getLogger(__name__)

PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_RESENT_FROM = "SKYLARK_RESENT_FROM"
PROPERTY_RESENT_TIME = "SKYLARK_RESENT_TIME"
PROPERTY_EDITED_FROM = "SKYLARK_EDITED_FROM"
SENDER_GROUP = "CLIENT_INNER_PRODUCER"
LETTERS_MAX = 1000
STEP_LETTERS = 100
# Properties of the first delivery: an old delay would apply again, old counts would end it at once.
_DROPPED = (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_RECONSUME_TIME,
    "CLUSTER",
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message in a group's dead-letter topic."""

    group: str
    message: ReceivedMessage

    @property
    def topic(self) -> str:
        """The topic it was first sent to."""
        return self.message.properties.get(PROPERTY_RETRY_TOPIC, self.message.topic)

    @property
    def origin_message_id(self) -> str:
        """The offset id of the original message."""
        return self.message.properties.get(PROPERTY_ORIGIN_MESSAGE_ID, self.message.offset_message_id)

    @property
    def died_ms(self) -> int:
        """When it became a dead letter, in milliseconds since 1970."""
        return self.message.store_timestamp


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """The dead letters of a group: all that are stored, and those that were not sent again."""

    group: str
    stored: int = 0
    waiting: int = 0
    last_ms: int | None = None
    """When the last one was stored, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Resent:
    """The result for one dead letter: a new id, or the error."""

    letter: DeadLetter
    target_topic: str
    message_id: str | None
    resent_ms: int
    error: RocketMQError | None = None


@dataclass(frozen=True, slots=True)
class ResendReport:
    """All results, in order. A queue's first failure stops that queue. `failures` are by queue."""

    group: str
    resent: tuple[Resent, ...]
    failures: Failures

    @property
    def done(self) -> int:
        return sum(1 for item in self.resent if item.error is None)


class AsyncDeadLetters:
    """Part of `AsyncAdmin`. The group's offset in its dead-letter topic marks what was sent again."""

    def __init__(
        self, servers: ServerCalls, messages: AsyncMessages, offsets: AsyncOffsets, clock: Clock | None = None
    ) -> None:
        self._servers = servers
        self._messages = messages
        self._offsets = offsets
        self._clock = clock or SystemClock()
        self._ids = UniqueIds(os.urandom(4), self._clock.now_ms())

    async def count(self, group: str) -> DeadLetterCount:
        """Zero for a group without any. Costs three requests for a topic with one queue.

        Raises RemotingError, BrokerError, SomeServersFailed.
        """
        topic = dead_letter_topic(group)
        try:
            route = await self._servers.route(topic)
        except NoRoute:
            return DeadLetterCount(group)
        done = await self._offsets.committed(group, topic, route=route)
        brokers = [broker.address for broker in route.brokers if broker.address is not None]
        gathered = await self._servers.ask_each(brokers, GetTopicStatsInfo(topic))
        stats = TopicStats.read(topic, gathered.complete(f"count dead letters of {group}").values(), {})
        return DeadLetterCount(
            group,
            stored=stats.messages,
            waiting=sum(part.end - max(part.begin, done.get(part.queue) or 0) for part in stats.queues),
            last_ms=max((part.last_stored_ms or 0 for part in stats.queues), default=0) or None,
        )

    async def counts(self) -> dict[str, DeadLetterCount]:
        """By group, of all groups that have a dead-letter topic. Raises as `count`."""
        topics = (await self._servers.ask_name_server(GetAllTopicListFromNameServer())).topic_list
        groups = sorted(
            topic.removeprefix(DEAD_LETTER_TOPIC_PREFIX)
            for topic in topics
            if topic.startswith(DEAD_LETTER_TOPIC_PREFIX)
        )
        return whole(dict(zip(groups, await at_once(self.count, groups), strict=True)))

    async def find(
        self, group: str, *, all_letters: bool = False, letters_max: int = LETTERS_MAX
    ) -> list[DeadLetter]:
        """A group's dead letters that were not sent again, or all; oldest first, at most `letters_max`.

        Empty for a group without any. Raises RemotingError, BrokerError.
        """
        topic = dead_letter_topic(group)
        try:
            committed = await self._offsets.committed(group, topic)
        except NoRoute:
            return []
        starts = {queue: 0 if all_letters else done or 0 for queue, done in committed.items()}
        found = await self._messages.since(topic, starts, messages_max=letters_max)
        if found.failures:
            raise next(iter(found.failures.values()))
        return [DeadLetter(group, message) for message in found.messages]

    async def resend(
        self, group: str, letters: Iterable[DeadLetter] | None = None, *, to_all_groups: bool = False
    ) -> ResendReport:
        """Send dead letters again: the given ones, or all that were not sent again, which are then marked.

        They go to the group's retry topic, which no other group reads; with `to_all_groups` to their original
        topic. Properties record the origin (`SKYLARK_RESENT_FROM`, `SKYLARK_RESENT_TIME`). Their attempts
        start from 0. The report has the failures.
        """
        resent: list[Resent] = []
        if letters is not None:
            resent += await self._resend_all(letters, to_all_groups=to_all_groups)
        else:
            # In steps, each marked before the next: a crash repeats one step at most.
            while batch := await self.find(group, letters_max=STEP_LETTERS):
                done = await self._resend_all(batch, to_all_groups=to_all_groups)
                resent += done
                await self._mark(group, done)
                if any(item.error is not None for item in done):
                    break
        failures = {str(item.letter.message.queue): item.error for item in resent if item.error is not None}
        return ResendReport(group, tuple(resent), failures)

    async def resend_edited(self, letter: DeadLetter, body: bytes, *, to_all_groups: bool = False) -> Resent:
        """Send a dead letter again with another body and a new unique key; a property has the old one."""
        message = letter.message
        properties = {**message.properties, PROPERTY_UNIQUE_KEY: self._ids.next(self._clock.now_ms())}
        if message.unique_key is not None:
            properties[PROPERTY_EDITED_FROM] = message.unique_key
        edited = message.edited(body, properties)
        return await self._resend(DeadLetter(letter.group, edited), to_all_groups=to_all_groups)

    async def _resend_all(self, letters: Iterable[DeadLetter], *, to_all_groups: bool) -> list[Resent]:
        resent: list[Resent] = []
        stuck: set[MessageQueue] = set()
        for letter in letters:
            if letter.message.queue not in stuck:
                item = await self._resend(letter, to_all_groups=to_all_groups)
                resent.append(item)
                if item.error is not None:
                    stuck.add(letter.message.queue)
        return resent

    async def _resend(self, letter: DeadLetter, *, to_all_groups: bool) -> Resent:
        target = letter.topic if to_all_groups else retry_topic(letter.group)
        now_ms = self._clock.now_ms()
        try:
            message_id = await self._send(letter, target, now_ms)
        except RocketMQError as error:
            log.warning(
                "dead letter not sent again group=%s message=%s reason=%s",
                letter.group,
                letter.origin_message_id,
                error,
            )
            return Resent(letter, target, None, now_ms, error)
        log.info(
            "dead letter sent again group=%s message=%s topic=%s new=%s",
            letter.group,
            letter.origin_message_id,
            target,
            message_id,
        )
        return Resent(letter, target, message_id, now_ms)

    async def _send(self, letter: DeadLetter, target: str, now_ms: int) -> str:
        message = letter.message
        properties = {key: value for key, value in message.properties.items() if key not in _DROPPED}
        properties[PROPERTY_RESENT_FROM] = message.offset_message_id
        properties[PROPERTY_RESENT_TIME] = str(now_ms)
        if target == letter.topic:
            properties.pop(PROPERTY_RETRY_TOPIC, None)
        broker = await self._writable(target, message.broker_name)
        request = SendMessageV2(
            producer_group=SENDER_GROUP,
            topic=target,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=broker.write_queues,
            queue_id=message.queue_offset % broker.write_queues,
            sys_flag=0,
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=encode_properties(properties).decode(),
            broker_name=broker.broker_name,
            body=message.body,
        )
        return (await self._servers.ask(broker.addresses[MASTER_ID], request)).reply.msg_id

    async def _writable(self, topic: str, preferred: str) -> BrokerQueues:
        """A writable broker, preferably that of the dead letter. Raises NoRoute."""
        route = await self._servers.route(topic)
        able = [
            broker
            for broker in route.brokers
            if broker.permission & PERM_WRITE and broker.write_queues and MASTER_ID in broker.addresses
        ]
        if not able:
            raise NotWritable(topic)
        return min(able, key=lambda broker: broker.broker_name != preferred)

    async def _mark(self, group: str, resent: Iterable[Resent]) -> None:
        """Commit what was sent. Raises BrokerError: the letters are sent, but not marked."""
        offsets: dict[MessageQueue, int] = {}
        for item in resent:
            if item.error is None:
                message = item.letter.message
                offsets[message.queue] = max(offsets.get(message.queue, 0), message.queue_offset + 1)
        await self._offsets.commit(group, offsets)
