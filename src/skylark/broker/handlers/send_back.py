"""Messages that a consumer could not handle come back (36): to be tried again later, or as dead letters."""

from __future__ import annotations

import logging
from typing import NamedTuple

from skylark.broker.error_replies import (
    FAQ,
    SLAVE_REMARK,
    group_not_exist,
    no_permission,
    system_busy,
    system_error,
)
from skylark.broker.handlers.send import RETRY_BY_HEADER_VERSION
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.errors import CorruptRecord, OffsetOutOfRange
from skylark.model import names
from skylark.model.message import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_WAIT,
    PutMessage,
    decode_properties,
    encode_properties,
)
from skylark.model.record import RecordParts, offset_message_id, split
from skylark.protocol.bodies import PERM_WRITE, SubscriptionGroupConfig, TopicConfig
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.send import ConsumerSendMsgBack
from skylark.remoting.server import Peer
from skylark.store.append_result import Refused

log = logging.getLogger(__name__)

PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
FIRST_LEVEL = 3
"""The delay level of the first retry, where the client leaves it to the broker; the next ones are higher."""


class _Failed(NamedTuple):
    """The message that comes back: as it is in the log, and with the properties of one that came back."""

    parts: RecordParts
    body: bytes
    properties: dict[str, str]

    @property
    def reconsume_times(self) -> int:
        return self.parts.head[12]


async def send_back(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Store a message again, for the group's retry topic after a delay, or for its dead letters.

    The answer does not wait for the disk, not even under sync flush: RocketMQ's does not either, and the
    client that gets none sends the message back once more.
    """
    if broker.role.is_slave:
        raise system_busy(SLAVE_REMARK)
    request = ConsumerSendMsgBack.from_command(command)
    now_ms = broker.clock.now_ms()
    group = _group(broker, request, now_ms)
    if group.retry_queue_nums <= 0:
        return command.reply()
    retry_topic = _retry_topic(broker, group, request, now_ms)
    failed = await _read(broker, request.physical_offset)
    attempts_max = group.retry_max_times
    if request.max_reconsume_times is not None and command.version >= RETRY_BY_HEADER_VERSION:
        attempts_max = request.max_reconsume_times
    if failed.reconsume_times >= attempts_max or request.delay_level < 0:
        message = _dead_letter(broker, group.group_name, failed, now_ms)
    else:
        level = request.delay_level or FIRST_LEVEL + failed.reconsume_times
        queue_id = broker.random_queue(min(group.retry_queue_nums, retry_topic.write_queue_nums))
        message = _message(failed, retry_topic.topic_name, queue_id)
        broker.schedule.delay(message, failed.properties, level)
    _put(broker, message)
    topic = failed.properties[PROPERTY_RETRY_TOPIC]
    if broker.topics.get(topic) is not None:  # senders may set the property to anything
        broker.stats.count_send_back(topic, group.group_name)
    return command.reply()


def _group(broker: BrokerState, request: ConsumerSendMsgBack, now_ms: int) -> SubscriptionGroupConfig:
    group = broker.groups.find(request.group, now_ms=now_ms)
    if group is None:
        raise group_not_exist(f"subscription group not exist, {request.group} {FAQ}")
    if not broker.live.current.permission & PERM_WRITE:
        raise no_permission(f"the broker[{broker.advertised_host}] sending message is forbidden")
    return group


def _retry_topic(
    broker: BrokerState, group: SubscriptionGroupConfig, request: ConsumerSendMsgBack, now_ms: int
) -> TopicConfig:
    topic = broker.topics.ensure_retry_topic(group, unit_mode=request.unit_mode, now_ms=now_ms)
    if not topic.perm & PERM_WRITE:
        raise no_permission(f"the topic[{topic.topic_name}] sending message is forbidden")
    return topic


async def _read(broker: BrokerState, physical_offset: int) -> _Failed:
    """Return the message at a place in the log. Raises BrokerError 1 if there is none, or not a whole one."""
    reader = broker.store.reader
    try:
        if physical_offset >= reader.hot.written_from:
            record = reader.record_at(physical_offset)
        else:
            record = await broker.read_cold(lambda: reader.record_at(physical_offset))
        return _failed(record, physical_offset)
    except (OffsetOutOfRange, CorruptRecord) as error:
        log.warning("message sent back cannot be read: %s", error)
        raise system_error(f"look message by offset failed, {physical_offset}") from None


def _failed(record: bytes, physical_offset: int) -> _Failed:
    """Take a record apart. Raises CorruptRecord: clients may name any place, and damage is not copied."""
    parts = split(record)
    head = parts.head
    body = parts.body(record)
    if head[6] != physical_offset:
        raise CorruptRecord(physical_offset, f"it names another place, {head[6]}")
    properties = decode_properties(parts.properties)
    properties.setdefault(PROPERTY_RETRY_TOPIC, parts.topic.decode())
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, offset_message_id(head[11], physical_offset))
    properties[PROPERTY_WAIT] = "false"
    return _Failed(parts, body, properties)


def _dead_letter(broker: BrokerState, group: str, failed: _Failed, now_ms: int) -> PutMessage:
    """Give up on a message: it goes where only people look."""
    topic = broker.topics.ensure_topic(names.dead_letter_topic(group), now_ms=now_ms).topic_name
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


def _message(failed: _Failed, topic: str, queue_id: int) -> PutMessage:
    """Return the message for another topic, tried once more; its properties are still to be set."""
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


def _put(broker: BrokerState, message: PutMessage) -> None:
    results = broker.store.append([message])
    broker.stats.count_puts(results)
    result = results[0]
    if isinstance(result, Refused):
        raise system_error(result.status.name)


ROUTES: dict[RequestCode, BrokerHandler] = {RequestCode.CONSUMER_SEND_MSG_BACK: send_back}
