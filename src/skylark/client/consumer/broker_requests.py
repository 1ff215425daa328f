"""Requests that brokers send to a consumer: reset offsets, status, running info, consume directly."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, Protocol

from skylark._version import __version__
from skylark.client.consumer.consume_rates import ConsumeRates
from skylark.client.consumer.listeners import ConsumeOutcome, Listeners, consume_once
from skylark.client.consumer.offset_store import OffsetTable, read_reset_body
from skylark.client.consumer.process_queue import MEBIBYTE, PulledQueue
from skylark.client.consumer.rebalancer import PushRebalancer
from skylark.client.consumer.subscription import TopicSubscription
from skylark.client.received_message import ReceivedMessage, decode_pull, find_retry_topic
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import CONSUMER, BrokerHandler
from skylark.clock import Clock
from skylark.errors import BrokerError
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumerStatus,
    MessageQueue,
    ProcessQueueInfo,
    encode_body,
)
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.client import ConsumeMessageDirectly, GetConsumerRunningInfo
from skylark.protocol.requests.offset import GetConsumerStatusFromClient, ResetConsumerClientOffset
from skylark.settings.client import PullConsumerSettings, PushConsumerSettings

log = logging.getLogger(__name__)

MINUTE_MS = 60_000


class ControlledConsumer(Protocol):
    """What remote control needs of a consumer."""

    settings: PushConsumerSettings
    subscriptions: dict[str, TopicSubscription]
    listeners: Listeners

    @property
    def group(self) -> str: ...

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None: ...


class PushBrokerRequests:
    """Answers the requests of brokers for one running consumer. Loop thread."""

    def __init__(
        self,
        consumer: ControlledConsumer,
        assignment: PushRebalancer,
        offsets: OffsetTable,
        stats: ConsumeRates,
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
        result = ConsumeDirectlyResult(
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


def _remark(outcome: ConsumeOutcome) -> str | None:
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


CONSUME_TYPE = "CONSUME_ACTIVELY"


class ControlledPullConsumer(Protocol):
    """What is needed of the consumer."""

    settings: PullConsumerSettings

    @property
    def group(self) -> str: ...

    @property
    def subscriptions(self) -> Mapping[str, TopicSubscription]: ...

    @property
    def assigned(self) -> Collection[MessageQueue]: ...

    @property
    def name_servers(self) -> tuple[str, ...]: ...

    @property
    def held(self) -> Mapping[MessageQueue, PulledQueue]: ...

    def look_again(self) -> None: ...

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None: ...


class PullBrokerRequests:
    """Implements `session.Member`. Loop thread."""

    kind = CONSUMER

    def __init__(self, consumer: ControlledPullConsumer) -> None:
        self._consumer = consumer

    @property
    def group(self) -> str:
        return self._consumer.group

    def heartbeat_data(self) -> ConsumerData:
        settings = self._consumer.settings
        return ConsumerData(
            group_name=self.group,
            consume_type=CONSUME_TYPE,
            message_model=settings.model.value,
            consume_from_where=settings.consume_from.value,
            subscription_data_set=[wanted.data() for wanted in self._consumer.subscriptions.values()],
        )

    def topics(self) -> Iterable[str]:
        return {*self._consumer.subscriptions, *(queue.topic for queue in self._consumer.assigned)}

    def on_route_change(self, route: TopicRoute) -> None:
        if route.topic in self._consumer.subscriptions:
            self._consumer.look_again()

    def on_connected(self, address: str) -> None:
        self._consumer.look_again()

    def handlers(self) -> Mapping[int, BrokerHandler]:
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
        }

    def _members_changed(self, command: RemotingCommand, address: str) -> None:
        self._consumer.look_again()

    async def _reset(self, command: RemotingCommand, address: str) -> None:
        request = ResetConsumerClientOffset.from_command(command)
        await self._consumer.reset(read_reset_body(bytes(request.body)))

    def _status(self, command: RemotingCommand, address: str) -> RemotingCommand:
        topic = GetConsumerStatusFromClient.from_command(command).topic
        positions = {
            queue: held.position
            for queue, held in self._consumer.held.items()
            if queue.topic == topic and held.position is not None
        }
        return command.reply(body=encode_body(ConsumerStatus(message_queue_table=positions)))

    def _running_info(self, command: RemotingCommand, address: str) -> RemotingCommand:
        consumer = self._consumer
        info = ConsumerRunningInfo(
            properties={
                "consumerGroup": self.group,
                "PROP_CONSUME_TYPE": CONSUME_TYPE,
                "PROP_NAMESERVER_ADDR": "".join(f"{server};" for server in consumer.name_servers),
            },
            subscription_set=[wanted.data() for wanted in consumer.subscriptions.values()],
            mq_table={
                queue: ProcessQueueInfo(
                    commit_offset=-1 if held.done is None else held.done,
                    cached_msg_count=held.message_count,
                    cached_msg_size_in_mi_b=held.message_bytes // MEBIBYTE,
                )
                for queue, held in consumer.held.items()
            },
        )
        return command.reply(body=encode_body(info))
