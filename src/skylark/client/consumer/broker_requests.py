"""Requests of brokers to a consumer: rebalance, reset offsets, status, running info, consume directly."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, Protocol

from skylark._version import __version__
from skylark.client.consumer.listeners import Listeners, consume_once
from skylark.client.received_message import ReceivedMessage, decode_pull, find_retry_topic
from skylark.client.session.session import BrokerHandler
from skylark.errors import BadJson, BrokerError, RemoteProtocolError
from skylark.model import java
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    MessageQueue,
    encode_body,
)
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.client import ConsumeMessageDirectly, GetConsumerRunningInfo
from skylark.protocol.requests.offset import GetConsumerStatusFromClient, ResetConsumerClientOffset
from skylark.settings.client import PushConsumerSettings

log = logging.getLogger(__name__)

MINUTE_MS = 60_000


class ControlledConsumer(Protocol):
    """What the requests need of a consumer."""

    @property
    def group(self) -> str: ...

    def wake_rebalancer(self) -> None: ...

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None: ...

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]: ...

    def running_info(self, *, with_stacks: bool = False) -> ConsumerRunningInfo: ...


class BrokerRequests:
    """Answers the requests of brokers for one running consumer. Loop thread.

    `listeners` is None for pull consumers, which cannot consume a message directly.
    """

    def __init__(
        self, consumer: ControlledConsumer, listeners: Listeners | None = None, *, orderly: bool = False
    ) -> None:
        self._consumer = consumer
        self._listeners = listeners
        self._orderly = orderly

    def handlers(self) -> Mapping[int, BrokerHandler]:
        handlers: dict[int, BrokerHandler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
        }
        if self._listeners is not None:
            handlers[RequestCode.CONSUME_MESSAGE_DIRECTLY] = self._consume_directly
        return handlers

    def _members_changed(self, command: RemotingCommand, address: str) -> None:
        self._consumer.wake_rebalancer()

    async def _reset_offset(self, command: RemotingCommand, address: str) -> None:
        request = ResetConsumerClientOffset.from_command(command)
        offsets = read_reset_body(bytes(request.body))
        log.info("offsets are reset topic=%s queues=%d broker=%s", request.topic, len(offsets), address)
        await self._consumer.reset_offsets(request.topic, offsets)

    def _status(self, command: RemotingCommand, address: str) -> RemotingCommand:
        topic = GetConsumerStatusFromClient.from_command(command).topic
        status = ConsumerStatus(message_queue_table=self._consumer.offsets_of(topic))
        return command.reply(body=encode_body(status))

    def _running_info(self, command: RemotingCommand, address: str) -> RemotingCommand:
        request = GetConsumerRunningInfo.from_command(command)
        info = self._consumer.running_info(with_stacks=bool(request.jstack_enable))
        return command.reply(body=encode_body(info))

    async def _consume_directly(self, command: RemotingCommand, address: str) -> RemotingCommand:
        assert self._listeners is not None
        message = _message_of(ConsumeMessageDirectly.from_command(command))
        started = time.monotonic()
        outcome = await consume_once(self._listeners, message, self._consumer.group)
        result = ConsumeDirectlyResult(
            consume_result=outcome.verdict.value,
            order=self._orderly,
            remark=outcome.reason or None,
            spent_time_mills=round((time.monotonic() - started) * 1000),
        )
        return command.reply(body=encode_body(result))


def _message_of(request: ConsumeMessageDirectly) -> ReceivedMessage:
    queue = MessageQueue(request.topic or "", request.broker_name or "", 0)
    messages = decode_pull(request.body, queue)
    if not messages:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "the request contains no message")
    message = messages[0]
    original = find_retry_topic(message.properties_text)
    if message.topic.startswith(RETRY_TOPIC_PREFIX) and original is not None:
        message.topic = original.decode(errors="replace")
    return message


def read_reset_body(data: bytes) -> dict[MessageQueue, int]:
    """Decode the offsets of a reset request: a map with queues as keys, a list of pairs or of objects.

    Raises RemoteProtocolError.
    """
    try:
        document = java.loads(data)
    except BadJson as error:
        raise RemoteProtocolError(f"body of a reset: {error}") from None
    table = document.get("offsetTable") if isinstance(document, dict) else None
    try:
        if isinstance(table, Mapping):
            return {_queue(_key(key)): int(number) for key, number in table.items()}
        if isinstance(table, list):
            return dict(_entry(entry) for entry in table)
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"body of a reset: {type(error).__name__} {error}") from None
    raise RemoteProtocolError("body of a reset has no offsetTable")


def _key(key: object) -> Mapping[str, object]:
    # Some writers quote the key object.
    found = java.loads(key.encode()) if isinstance(key, str) else key
    if not isinstance(found, Mapping):
        raise TypeError(f"{key!r} is not a queue")
    return found


def _entry(entry: object) -> tuple[MessageQueue, int]:
    if isinstance(entry, Mapping):
        return _queue(entry), int(entry["offset"])
    if isinstance(entry, Iterable):
        members, number = entry
        return _queue(members), int(number)
    raise TypeError(f"{entry!r} is not an offset")


def _queue(members: Mapping[str, object]) -> MessageQueue:
    return MessageQueue(str(members["topic"]), str(members["brokerName"]), int(str(members["queueId"])))


# --- Running info ---


def common_properties(group: str, consume_type: str, name_servers: tuple[str, ...]) -> dict[str, str]:
    """Return the running-info properties of every consumer."""
    return {
        "consumerGroup": group,
        "PROP_CONSUME_TYPE": consume_type,
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in name_servers),
    }


def push_properties(settings: PushConsumerSettings, thread_count: int, started_ms: int) -> dict[str, str]:
    """Return the running-info properties of a push consumer: its settings under Java's names."""
    properties = {
        field.metadata["java"]: _java_text(getattr(settings, field.name)) for field in fields(settings)
    }
    return properties | {
        "consumeThreadMin": str(settings.threads_max),
        "consumeTimeout": str(settings.consume_timeout_ms // MINUTE_MS),
        "PROP_CONSUMEORDERLY": _java_text(settings.orderly),
        "PROP_THREADPOOL_CORE_SIZE": str(thread_count),
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        "PROP_CLIENT_VERSION": f"skylark {__version__}",
    }


def _java_text(value: Any) -> str:
    """Format a setting as Java prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value if isinstance(value, Enum) else value)


def thread_stacks() -> str:
    """Return the stack of every thread, in the form that Java's tools show."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
