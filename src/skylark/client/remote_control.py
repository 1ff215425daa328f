"""What brokers ask of a consumer: look at your queues, go elsewhere, tell how you are, consume this now."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, Protocol

from skylark._version import __version__
from skylark.client.assignment import Assignment
from skylark.client.consume_stats import ConsumeStats
from skylark.client.listeners import Listeners, Outcome, consume_once
from skylark.client.offset_table import OffsetTable, read_reset_body
from skylark.client.received import ReceivedMessage, decode_pull, find_retry_topic
from skylark.client.session import BrokerHandler
from skylark.client.subscription import Subscription
from skylark.clock import Clock
from skylark.errors import BrokerError
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import MessageQueue, encode_body
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.heartbeat import ConsumeMessageDirectly, GetConsumerRunningInfo
from skylark.protocol.requests.offset import GetConsumerStatusFromClient, ResetConsumerClientOffset
from skylark.protocol.stats_bodies import ConsumeResult, ConsumerRunningInfo, ConsumerStatus
from skylark.settings.consumer import PushConsumerSettings

log = logging.getLogger(__name__)

MINUTE_MS = 60_000


class Controlled(Protocol):
    """What remote control needs of a consumer."""

    settings: PushConsumerSettings
    subscriptions: dict[str, Subscription]
    listeners: Listeners

    @property
    def group(self) -> str: ...

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None: ...


class RemoteControl:
    """Answers the requests of brokers for one running consumer. Loop thread."""

    def __init__(
        self,
        consumer: Controlled,
        assignment: Assignment,
        offsets: OffsetTable,
        stats: ConsumeStats,
        clock: Clock,
        name_servers: Iterable[str],
        thread_count: Callable[[], int],
    ) -> None:
        self._consumer = consumer
        self._assignment = assignment
        self._offsets = offsets
        self._stats = stats
        self._clock = clock
        self._name_servers = tuple(name_servers)
        self._thread_count = thread_count
        self._started_ms = clock.now_ms()

    def handlers(self) -> Mapping[int, BrokerHandler]:
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def _members_changed(self, command: RemotingCommand, address: str) -> None:
        self._assignment.wake()

    async def _reset_offset(self, command: RemotingCommand, address: str) -> None:
        request = ResetConsumerClientOffset.from_command(command)
        offsets = read_reset_body(bytes(request.body))
        log.info("offsets are reset topic=%s queues=%d broker=%s", request.topic, len(offsets), address)
        await self._consumer.reset_offsets(request.topic, offsets)

    def _status(self, command: RemotingCommand, address: str) -> RemotingCommand:
        request = GetConsumerStatusFromClient.from_command(command)
        status = ConsumerStatus(message_queue_table=self._offsets.of_topic(request.topic))
        return command.reply(body=encode_body(status))

    # --- Running info ---

    def _running_info(self, command: RemotingCommand, address: str) -> RemotingCommand:
        request = GetConsumerRunningInfo.from_command(command)
        info = self.running_info(with_stacks=bool(request.jstack_enable))
        return command.reply(body=encode_body(info))

    def running_info(self, *, with_stacks: bool = False) -> ConsumerRunningInfo:
        """What this consumer says about itself."""
        now = time.monotonic()
        wall_minus_monotonic = self._clock.now_ms() - now * 1000
        consumer = self._consumer
        return ConsumerRunningInfo(
            properties=self._properties(),
            subscription_set=[subscription.data() for subscription in consumer.subscriptions.values()],
            mq_table={
                queue: held.info(_or_minus_one(self._offsets.get(queue)), wall_minus_monotonic)
                for queue, held in self._assignment.process_queues.items()
            },
            status_table={topic: self._stats.status(topic, now) for topic in consumer.subscriptions},
            jstack=_stacks() if with_stacks else None,
        )

    def _properties(self) -> dict[str, str]:
        settings = self._consumer.settings
        properties = {
            field.metadata["java"]: _text(getattr(settings, field.name)) for field in fields(settings)
        }
        properties |= {
            "consumerGroup": self._consumer.group,
            "consumeThreadMin": str(settings.threads_max),
            "consumeTimeout": str(settings.consume_timeout_ms // MINUTE_MS),
            "PROP_CONSUMEORDERLY": _text(settings.orderly),
            "PROP_THREADPOOL_CORE_SIZE": str(self._thread_count()),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in self._name_servers),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CLIENT_VERSION": f"skylark {__version__}",
        }
        return properties

    # --- Consuming directly ---

    async def _consume_directly(self, command: RemotingCommand, address: str) -> RemotingCommand:
        request = ConsumeMessageDirectly.from_command(command)
        message = self._message(request)
        started = time.monotonic()
        outcome = await consume_once(self._consumer.listeners, message, self._consumer.group)
        result = ConsumeResult(
            consume_result=outcome.verdict.value,
            order=self._consumer.settings.orderly,
            remark=_remark(outcome),
            spent_time_mills=round((time.monotonic() - started) * 1000),
        )
        return command.reply(body=encode_body(result))

    def _message(self, request: ConsumeMessageDirectly) -> ReceivedMessage:
        queue = MessageQueue(request.topic or "", request.broker_name or "", 0)
        messages = decode_pull(request.body, queue)
        if not messages:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "there is no message in the request")
        message = messages[0]
        original = find_retry_topic(message.properties_text)
        if message.topic.startswith(RETRY_TOPIC_PREFIX) and original is not None:
            message.topic = original.decode(errors="replace")
        return message


def _remark(outcome: Outcome) -> str | None:
    return outcome.reason or None


def _or_minus_one(queue_offset: int | None) -> int:
    return -1 if queue_offset is None else queue_offset


def _text(value: Any) -> str:
    """A setting as Java prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value if isinstance(value, Enum) else value)


def _stacks() -> str:
    """Where every thread is, as Java's tools show it."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
