"""OpenTelemetry: a span for every send attempt and every listener call, linked into one trace.

Names and attributes follow OpenTelemetry's messaging conventions. Needs the extra `otel`; without it the
module can be imported but not used.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from skylark.client.consumer.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeContext,
    ConsumeOrderlyStatus,
    ConsumeResult,
    Handle,
    Messages,
    Middleware,
)
from skylark.client.producer.send_hooks import SendContext, SendHook
from skylark.client.received_message import ReceivedMessage
from skylark.errors import BrokerError, SettingsError
from skylark.model.message import Message, split_keys

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ModuleNotFoundError:
    _is_installed = False
else:
    _is_installed = True

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
PARTITION = "messaging.destination.partition.id"
CLIENT_ID = "messaging.client.id"
CONSUMER_GROUP = "messaging.consumer.group.name"
CLIENT_GROUP = "messaging.rocketmq.client_group"
BATCH_COUNT = "messaging.batch.message_count"
MESSAGE_ID = "messaging.message.id"
BODY_SIZE = "messaging.message.body.size"
TAG = "messaging.rocketmq.message.tag"
KEYS = "messaging.rocketmq.message.keys"
SHARDING_KEY = "messaging.rocketmq.message.group"
DELAY_LEVEL = "messaging.rocketmq.message.delay_time_level"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"

_SPAN = "opentelemetry.span"  # key of the span in `SendContext.notes`
_FAILURES = frozenset(
    {
        ConsumeResult.LATER,
        ConsumeConcurrentlyStatus.RECONSUME_LATER,
        ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT,
        ConsumeOrderlyStatus.ROLLBACK,
    }
)


class TelemetryHook(SendHook):
    """Creates a span for every send attempt, a child of the caller's span, and propagates it in the message.

    >>> producer.add_hook(TelemetryHook())

    Any thread may send. Spans go to `provider`, or to OpenTelemetry's global provider.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """Raises SettingsError if OpenTelemetry is not installed."""
        self._tracer = _tracer(provider)

    def before(self, context: SendContext) -> None:
        host, _, port = context.broker_address.rpartition(":")
        attributes: dict[str, Any] = {
            **_common("send", context.queue.topic, context.queue.queue_id),
            CLIENT_ID: context.client_id,
            CLIENT_GROUP: context.group,
            SERVER_ADDRESS: host,
            SERVER_PORT: int(port),
        }
        if len(context.messages) == 1:
            attributes |= {MESSAGE_ID: context.unique_keys[0], **_sent(context.messages[0])}
        else:
            attributes[BATCH_COUNT] = len(context.messages)
        span = self._tracer.start_span(
            f"send {context.queue.topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        context.notes[_SPAN] = span
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        for name, value in carrier.items():
            context.add_property(name, value)

    def after(self, context: SendContext) -> None:
        span: Span | None = context.notes.get(_SPAN)
        if span is None:
            return
        if context.error is not None:
            _fail(span, context.error)
        span.end()


def telemetry_middleware(provider: TracerProvider | None = None) -> Middleware:
    """Return a middleware that creates a span for every listener call.

    >>> consumer.use(telemetry_middleware())

    The span is linked to the spans of the sends; with a single message it is a child of its send. Raises
    SettingsError if OpenTelemetry is not installed.
    """
    tracer = _tracer(provider)

    def middleware(handle: Handle) -> Handle:
        def traced(messages: Messages, context: ConsumeContext) -> Any:
            span = _processing(tracer, messages, context)
            try:
                with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                    value = handle(messages, context)
            except BaseException as error:
                _fail(span, error)
                span.end()
                raise
            if inspect.isawaitable(value):
                return _awaited(value, span)
            _judge(span, value)
            return value

        return traced

    return middleware


async def _awaited(work: Awaitable[Any], span: Span) -> Any:
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            value = await work
    except BaseException as error:
        _fail(span, error)
        span.end()
        raise
    _judge(span, value)
    return value


def _tracer(provider: TracerProvider | None) -> Tracer:
    if not _is_installed:
        raise SettingsError("telemetry", "OpenTelemetry is not installed: pip install 'skylarkmq[otel]'")
    return trace.get_tracer("skylark", tracer_provider=provider)


def _processing(tracer: Tracer, messages: Sequence[ReceivedMessage], context: ConsumeContext) -> Span:
    first = messages[0]
    attributes: dict[str, Any] = {
        **_common("process", first.topic, first.queue_id),
        CONSUMER_GROUP: context.group,
    }
    # Into an empty context: this task inherited the context of the code that started the consumer.
    origins = [propagate.extract(message.properties, Context()) for message in messages]
    links = [
        Link(found)
        for origin in origins
        if (found := trace.get_current_span(origin).get_span_context()).is_valid
    ]
    if len(messages) == 1:
        attributes |= _received(first)
    else:
        attributes[BATCH_COUNT] = len(messages)
    return tracer.start_span(
        f"process {first.topic}",
        context=origins[0] if len(messages) == 1 else Context(),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=links,
    )


def _common(operation: str, topic: str, queue_id: int) -> dict[str, Any]:
    return {
        SYSTEM: "rocketmq",
        OPERATION_NAME: operation,
        OPERATION_TYPE: operation,
        DESTINATION: topic,
        PARTITION: str(queue_id),
    }


def _sent(message: Message) -> Mapping[str, Any]:
    attributes: dict[str, Any] = {BODY_SIZE: len(message.body)}
    keys = split_keys(message.keys) if isinstance(message.keys, str) else list(message.keys)
    if message.tags:
        attributes[TAG] = message.tags
    if keys:
        attributes[KEYS] = keys
    if message.sharding_key is not None:
        attributes[SHARDING_KEY] = message.sharding_key
    if message.delay_level:
        attributes[DELAY_LEVEL] = message.delay_level
    return attributes


def _received(message: ReceivedMessage) -> Mapping[str, Any]:
    attributes: dict[str, Any] = {MESSAGE_ID: message.message_id, BODY_SIZE: len(message.plain_body)}
    if message.tags:
        attributes[TAG] = message.tags
    if message.keys:
        attributes[KEYS] = message.keys
    return attributes


def _judge(span: Span, value: Any) -> None:
    if isinstance(value, Enum) and value in _FAILURES:
        span.set_attribute(ERROR_TYPE, value.name)
        span.set_status(Status(StatusCode.ERROR, value.name))
    span.end()


def _fail(span: Span, error: BaseException) -> None:
    kind = str(error.code) if isinstance(error, BrokerError) else type(error).__qualname__
    span.set_attribute(ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    span.record_exception(error)
