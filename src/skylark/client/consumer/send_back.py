"""Send back: returns failed messages to their broker, or sends a copy to the group's retry topic."""

from __future__ import annotations

import logging
import random

from skylark.client.namespace import with_namespace
from skylark.client.received_message import PROPERTY_RETRY_TOPIC, PROPERTY_TRANSACTION, ReceivedMessage
from skylark.client.session.session import Session
from skylark.errors import BrokerUnknown, RocketMQError
from skylark.model import names
from skylark.model.message import PROPERTY_DELAY_LEVEL, encode_properties
from skylark.model.record import UNWRAPPED_BY_CLIENTS
from skylark.protocol.requests.send import ConsumerSendMsgBack, SendMessageV2

log = logging.getLogger(__name__)

INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
FIRST_LEVEL = 3
NEW_TOPIC_QUEUES = 4


class SendBack:
    """Sends failed messages of one group back. Loop thread."""

    def __init__(self, session: Session, group: str, *, attempts_max: int, timeout_ms: int) -> None:
        self._session = session
        self._group = group
        self._attempts_max = attempts_max
        self._timeout_ms = timeout_ms

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Send a message back for redelivery after a delay; False if that fails both ways."""
        if message.sys_flag & UNWRAPPED_BY_CLIENTS:  # the broker would have to send back its whole batch
            return await self.send_to_retry_topic(message)
        request = ConsumerSendMsgBack(
            group=self._group,
            physical_offset=message.physical_offset,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=self._wire_topic(message),
            max_reconsume_times=self._attempts_max,
            broker_name=message.broker_name,
        )
        try:
            await self._session.call(self._broker_of(message), request, timeout_ms=self._timeout_ms)
        except RocketMQError as error:
            log.warning("send back failed, using the retry topic id=%s error=%s", message.message_id, error)
            return await self.send_to_retry_topic(message)
        return True

    def _broker_of(self, message: ReceivedMessage) -> str:
        try:
            return self._session.routes.master(message.broker_name)
        except BrokerUnknown:
            return message.store_host

    def _wire_topic(self, message: ReceivedMessage) -> str:
        """Return the original topic with its namespace, for tools that resend it."""
        return with_namespace(self._session.settings.namespace, message.topic)

    async def send_to_retry_topic(self, message: ReceivedMessage) -> bool:
        """Send a copy to the group's retry topic; the broker dead-letters it after too many attempts."""
        times = message.reconsume_times
        properties = dict(message.properties)
        properties.pop(PROPERTY_TRANSACTION, None)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.message_id)
        properties[PROPERTY_RETRY_TOPIC] = self._wire_topic(message)
        properties[PROPERTY_DELAY_LEVEL] = str(FIRST_LEVEL + times)
        topic = names.retry_topic(self._group)
        try:
            queue = random.choice((await self._session.find_route(topic)).write_queues)  # noqa: S311
            request = SendMessageV2(
                producer_group=INNER_PRODUCER_GROUP,
                topic=topic,
                default_topic=names.AUTO_CREATE_TOPIC,
                default_topic_queue_nums=NEW_TOPIC_QUEUES,
                queue_id=queue.queue_id,
                sys_flag=message.sys_flag if message.body_is_bad else 0,
                born_timestamp=message.born_timestamp,
                flag=message.flag,
                properties=encode_properties(properties).decode(),
                reconsume_times=times + 1,
                max_reconsume_times=self._attempts_max,
                broker_name=queue.broker_name,
                body=message.plain_body,
            )
            address = self._session.routes.master(queue.broker_name)
            await self._session.call(address, request, timeout_ms=self._timeout_ms)
        except (RocketMQError, IndexError) as error:
            log.warning("message not sent to the retry topic id=%s error=%s", message.message_id, error)
            return False
        return True
