"""Messages that a consumer sends back (36): they are retried after a delay, or become dead letters."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple

from skylark.broker.delayed.delay_levels import DelayLevels
from skylark.broker.error_replies import (
    FAQ,
    group_not_exist,
    messages_are_copied,
    no_permission,
    system_error,
)
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.handlers.send import RETRY_BY_HEADER_VERSION
from skylark.broker.handlers.served_requests import serves_command
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.record_loader import ReadCold
from skylark.broker.topics import TopicTable, random_queue
from skylark.clock import Clock
from skylark.errors import CorruptRecord, OffsetOutOfRange
from skylark.model import names
from skylark.model.message import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_WAIT,
    PutMessage,
    decode_properties,
    encode_properties,
)
from skylark.model.message_id import offset_message_id
from skylark.model.record import RecordParts, split
from skylark.protocol.bodies import PERM_WRITE, SubscriptionGroupConfig, TopicConfig
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.send import ConsumerSendMsgBack
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import Refused
from skylark.store.message_store import MessageStore

log = logging.getLogger(__name__)

PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
FIRST_LEVEL = 3
"""The delay level of the first retry, if the client sends none; each further retry adds one."""


class _Failed(NamedTuple):
    """A message that was sent back: as stored, with the properties that its retry gets."""

    parts: RecordParts
    body: bytes
    properties: dict[str, str]

    @property
    def reconsume_times(self) -> int:
        return self.parts.head[12]


@dataclass(frozen=True, slots=True, eq=False)
class SendBackHandlers:
    live: LiveSettings[BrokerSettings]
    clock: Clock
    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroups
    stats: BrokerStats
    delay_levels: DelayLevels
    read_cold: ReadCold
    host: str

    @serves_command(RequestCode.CONSUMER_SEND_MSG_BACK, on_slave=messages_are_copied)
    async def send_back(self, _: Peer, command: RemotingCommand) -> RemotingCommand:
        """Store a message again, for the group's retry topic after a delay, or for its dead letters.

        The reply does not wait for the disk, not even under sync flush: RocketMQ's does not either, and a
        client that gets no reply sends the message back once more.
        """
        request = ConsumerSendMsgBack.from_command(command)
        now_ms = self.clock.now_ms()
        group = self._group(request, now_ms)
        if group.retry_queue_nums <= 0:
            return command.reply()
        retry_topic = self._retry_topic(group, request, now_ms)
        failed = await self._read(request.physical_offset)
        attempts_max = group.retry_max_times
        if request.max_reconsume_times is not None and command.version >= RETRY_BY_HEADER_VERSION:
            attempts_max = request.max_reconsume_times
        if failed.reconsume_times >= attempts_max or request.delay_level < 0:
            message = self._dead_letter(group.group_name, failed, now_ms)
        else:
            level = request.delay_level or FIRST_LEVEL + failed.reconsume_times
            queue_id = random_queue(min(group.retry_queue_nums, retry_topic.write_queue_nums))
            message = _message(failed, retry_topic.topic_name, queue_id)
            self.delay_levels.delay(message, failed.properties, level)
        self._put(message)
        topic = failed.properties[PROPERTY_RETRY_TOPIC]
        if self.topics.get(topic) is not None:  # senders may set the property to anything
            self.stats.count_send_back(topic, group.group_name)
        return command.reply()

    def _group(self, request: ConsumerSendMsgBack, now_ms: int) -> SubscriptionGroupConfig:
        group = self.groups.find(request.group, now_ms=now_ms)
        if group is None:
            raise group_not_exist(f"subscription group not exist, {request.group} {FAQ}")
        if not self.live.current.permission & PERM_WRITE:
            raise no_permission(f"the broker[{self.host}] sending message is forbidden")
        return group

    def _retry_topic(
        self, group: SubscriptionGroupConfig, request: ConsumerSendMsgBack, now_ms: int
    ) -> TopicConfig:
        topic = self.topics.ensure_retry_topic(group, unit_mode=request.unit_mode, now_ms=now_ms)
        if not topic.perm & PERM_WRITE:
            raise no_permission(f"the topic[{topic.topic_name}] sending message is forbidden")
        return topic

    async def _read(self, physical_offset: int) -> _Failed:
        """Raises BrokerError 1 if no whole message starts at the offset."""
        reader = self.store.reader
        try:
            if physical_offset >= reader.hot.written_from:
                record = reader.record_at(physical_offset)
            else:
                record = await self.read_cold(lambda: reader.record_at(physical_offset))
            return _failed(record, physical_offset)
        except (OffsetOutOfRange, CorruptRecord) as error:
            log.warning("cannot read message that was sent back: %s", error)
            raise system_error(f"look message by offset failed, {physical_offset}") from None

    def _dead_letter(self, group: str, failed: _Failed, now_ms: int) -> PutMessage:
        topic = self.topics.ensure_topic(names.dead_letter_topic(group), now_ms=now_ms).topic_name
        failed.properties[PROPERTY_DELAY_LEVEL] = "0"
        message = _message(failed, topic, 0)
        message.properties = encode_properties(failed.properties)
        log.info(
            "dead letter topic=%s group=%s message=%s",
            failed.properties[PROPERTY_RETRY_TOPIC],
            group,
            failed.properties[PROPERTY_ORIGIN_MESSAGE_ID],
        )
        return message

    def _put(self, message: PutMessage) -> None:
        results = self.store.append([message])
        self.stats.count_puts(results)
        if isinstance(result := results[0], Refused):
            raise system_error(result.status.name)


def _failed(record: bytes, physical_offset: int) -> _Failed:
    """Raises CorruptRecord: clients may name any offset, and damaged records are not copied."""
    parts = split(record)
    head = parts.head
    body = parts.body(record)
    if head[6] != physical_offset:
        raise CorruptRecord(physical_offset, f"the record names another offset, {head[6]}")
    properties = decode_properties(parts.properties)
    properties.setdefault(PROPERTY_RETRY_TOPIC, parts.topic.decode())
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, offset_message_id(head[11], physical_offset))
    properties[PROPERTY_WAIT] = "false"
    return _Failed(parts, body, properties)


def _message(failed: _Failed, topic: str, queue_id: int) -> PutMessage:
    """Make the retry of a message, for another topic; the caller sets its properties."""
    head = failed.parts.head
    return PutMessage(
        topic,
        queue_id,
        failed.body,
        flag=head[4],
        sys_flag=head[7],
        born_timestamp=head[8],
        born_host=head[9],
        reconsume_times=failed.reconsume_times + 1,
        wait=False,
    )
