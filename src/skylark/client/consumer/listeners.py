"""Listeners: functions, coroutine functions and Java-style objects, and the meaning of their results."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from skylark.client.callback import check_callback, name_of
from skylark.client.received_message import ReceivedMessage
from skylark.errors import SettingsError
from skylark.protocol.bodies import MessageQueue

log = logging.getLogger(__name__)

Messages = Sequence[ReceivedMessage]


class ConsumeResult(Enum):
    """What a listener function may return. No return value means SUCCESS, an exception means LATER."""

    SUCCESS = "SUCCESS"
    LATER = "LATER"


class ConsumeConcurrentlyStatus(Enum):
    """What a `MessageListenerConcurrently` returns."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """What a `MessageListenerOrderly` returns.

    COMMIT and ROLLBACK are for listeners without `auto_commit`.
    """

    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class ConsumeContext:
    """Information about a batch, and options that a listener may set besides its result.

    `done` counts the finished messages of the batch: a listener that handles them one by one sets it as it
    proceeds, and only the rest is retried, after success and failure alike. Unset, success means all and
    failure none. Orderly consumption ignores it.

    `delay_level` applies to failed messages: 0 lets the broker choose, above 0 is a delay level, -1 sends a
    dead letter. For orderly consumption, `suspend_ms` is the pause of the queue after a failure (-1: as in
    the settings), and a listener that sets `auto_commit` to False returns COMMIT or ROLLBACK itself.
    """

    __slots__ = ("auto_commit", "delay_level", "done", "group", "queue", "suspend_ms")

    def __init__(self, queue: MessageQueue, group: str) -> None:
        self.queue = queue
        self.group = group
        self.done: int | None = None
        self.delay_level = 0
        self.auto_commit = True
        self.suspend_ms = -1

    @property
    def ack_index(self) -> int | None:
        """Java's name for `done`: the index of the last finished message."""
        return None if self.done is None else self.done - 1

    @ack_index.setter
    def ack_index(self, index: int) -> None:
        self.done = index + 1


class MessageListenerConcurrently:
    """A listener object as in Java: it must return a status; None counts as RECONSUME_LATER."""

    def consume_message(self, messages: Messages, context: ConsumeContext) -> ConsumeConcurrentlyStatus:
        raise NotImplementedError


class MessageListenerOrderly:
    """As `MessageListenerConcurrently`, for the messages of a queue in order."""

    def consume_message(self, messages: Messages, context: ConsumeContext) -> ConsumeOrderlyStatus:
        raise NotImplementedError


ListenerResult = ConsumeResult | ConsumeConcurrentlyStatus | ConsumeOrderlyStatus | None
Listener = (
    Callable[[Messages], ListenerResult | Awaitable[ListenerResult]]
    | Callable[[Messages, ConsumeContext], ListenerResult | Awaitable[ListenerResult]]
    | MessageListenerConcurrently
    | MessageListenerOrderly
)
"""A function or coroutine function of messages, or of messages and context; or an object as in Java."""
Handle = Callable[[Messages, ConsumeContext], Any]
Middleware = Callable[[Handle], Handle]
"""Takes the handler of a batch and returns a replacement, which is `async` if the listener is."""


class ConsumeVerdict(Enum):
    """The result of a batch."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    COMMIT = "CR_COMMIT"
    ROLLBACK = "CR_ROLLBACK"
    RETURNED_NULL = "CR_RETURN_NULL"
    RAISED = "CR_THROW_EXCEPTION"


class ConsumeOutcome(NamedTuple):
    """The verdict, and the number of finished messages from the front."""

    verdict: ConsumeVerdict
    done: int
    reason: str = ""

    @property
    def failed(self) -> bool:
        return self.verdict not in (ConsumeVerdict.SUCCESS, ConsumeVerdict.COMMIT)


_SUCCESSES = [ConsumeOutcome(ConsumeVerdict.SUCCESS, size) for size in range(1025)]
"""Created once: nearly all outcomes are one of these."""
_STATUSES: dict[Any, ConsumeVerdict] = {
    ConsumeResult.SUCCESS: ConsumeVerdict.SUCCESS,
    ConsumeResult.LATER: ConsumeVerdict.LATER,
    ConsumeConcurrentlyStatus.CONSUME_SUCCESS: ConsumeVerdict.SUCCESS,
    ConsumeConcurrentlyStatus.RECONSUME_LATER: ConsumeVerdict.LATER,
    ConsumeOrderlyStatus.SUCCESS: ConsumeVerdict.SUCCESS,
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: ConsumeVerdict.LATER,
    ConsumeOrderlyStatus.COMMIT: ConsumeVerdict.COMMIT,
    ConsumeOrderlyStatus.ROLLBACK: ConsumeVerdict.ROLLBACK,
}


class Handler:
    """A uniform wrapper of one listener. `is_orderly` is None for functions."""

    def __init__(self, listener: Listener) -> None:
        self.is_java = isinstance(listener, MessageListenerConcurrently | MessageListenerOrderly)
        self.is_orderly: bool | None = None
        function: Any
        if isinstance(listener, MessageListenerConcurrently | MessageListenerOrderly):
            self.is_orderly = isinstance(listener, MessageListenerOrderly)
            function = listener.consume_message
            self.name = f"{type(listener).__qualname__}.consume_message"
        elif callable(listener) and not isinstance(listener, type):
            function = listener
            self.name = name_of(listener)
        else:
            raise SettingsError(
                "listener",
                "must be a function, or an instance of MessageListenerOrderly or "
                f"MessageListenerConcurrently, not {listener!r:.80}",
            )
        takes_context = _takes_context(function)
        check_callback("listener", function, *(("messages", "context") if takes_context else ("messages",)))
        self._bare: Handle = function if takes_context else _messages_only(function)
        self._bare_is_async = _is_async(function)
        self._warned: set[str] = set()
        self.wrap(())

    def wrap(self, middlewares: Sequence[Middleware]) -> None:
        """Set the middlewares around the listener; the first is the outermost."""
        self.handle: Handle = self._bare
        for middleware in reversed(middlewares):
            self.handle = middleware(self.handle)
        self.is_async = self._bare_is_async or _is_async(self.handle)

    def judge(self, value: Any, context: ConsumeContext, size: int) -> ConsumeOutcome:
        """Return the outcome for a return value and a batch of this size."""
        if value is None and context.done is None and not self.is_java and size < len(_SUCCESSES):
            return _SUCCESSES[size]
        verdict = _STATUSES.get(value) if isinstance(value, Enum) else None
        if verdict is None:
            verdict = self._judge_other(value)
        done = context.done
        if verdict is ConsumeVerdict.SUCCESS or verdict is ConsumeVerdict.COMMIT:
            return ConsumeOutcome(verdict, size if done is None else _clamp(done, size))
        return ConsumeOutcome(verdict, 0 if done is None or self.is_java else _clamp(done, size))

    def _judge_other(self, value: Any) -> ConsumeVerdict:
        if not self.is_java:
            if value is not None:
                self._warn_once(f"returned {value!r:.80}, which is ignored: returning means success")
            return ConsumeVerdict.SUCCESS
        if value is None:
            self._warn_once("returned None, which counts as RECONSUME_LATER: return a status")
            return ConsumeVerdict.RETURNED_NULL
        self._warn_once(f"returned {value!r:.80}, which is not a status and counts as RECONSUME_LATER")
        return ConsumeVerdict.LATER

    def warn_of_commit(self, verdict: ConsumeVerdict) -> None:
        """Warn that COMMIT and ROLLBACK have no effect with `auto_commit`."""
        self._warn_once(f"returned {verdict.name}, which is deprecated: with auto_commit it means SUCCESS")

    def _warn_once(self, what: str) -> None:
        if what not in self._warned and len(self._warned) < _WARNINGS_MAX:
            self._warned.add(what)
            log.warning("listener %s %s", self.name, what)

    def judge_error(
        self, error: BaseException, messages: Messages, context: ConsumeContext
    ) -> ConsumeOutcome:
        """Return the outcome for an exception, and log it with its traceback."""
        log.warning(
            "listener %s failed, messages are redelivered topic=%s queue=%d offset=%d count=%d",
            self.name, messages[0].topic, messages[0].queue_id, messages[0].queue_offset, len(messages),
            exc_info=error,
        )  # fmt: skip
        done = 0 if context.done is None or self.is_java else _clamp(context.done, len(messages))
        return ConsumeOutcome(ConsumeVerdict.RAISED, done, _text_of(error))

    def run(
        self, messages: Messages, context: ConsumeContext, loop: asyncio.AbstractEventLoop
    ) -> ConsumeOutcome:
        """Call a blocking listener in a worker thread. Never raises."""
        try:
            value = self.handle(messages, context)
            if value is not None and inspect.isawaitable(value):  # a plain function that returns a coroutine
                value = asyncio.run_coroutine_threadsafe(_awaited(value), loop).result()
            return self.judge(value, context, len(messages))
        except BaseException as error:  # noqa: BLE001 (no error of a listener may end the worker)
            return self.judge_error(error, messages, context)

    async def run_async(self, messages: Messages, context: ConsumeContext) -> ConsumeOutcome:
        """Await a listener on the loop. Raises only the caller's own cancellation."""
        try:
            value = self.handle(messages, context)
            if value is not None and inspect.isawaitable(value):
                value = await value
            return self.judge(value, context, len(messages))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self.judge_error(error, messages, context)
        except Exception as error:  # noqa: BLE001 (as above)
            return self.judge_error(error, messages, context)


_WARNINGS_MAX = 16


def _clamp(done: int, size: int) -> int:
    return max(0, min(done, size))


def _text_of(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 (an error whose str() fails must not end the worker)
        return type(error).__name__


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _is_async(function: Callable[..., Any]) -> bool:
    called = getattr(function, "__call__", function)  # noqa: B004 (an object may have an async `__call__`)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _takes_context(function: Callable[..., Any]) -> bool:
    """Return whether a listener has a parameter for the context, beside the one for messages.

    The second parameter is the context if it has no default or is called `context`: a default often binds a
    loop variable, as in `lambda messages, number=number: …`.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins have no signature
        return False
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters[:2]):
        return True
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(positional) > 1 and (
        positional[1].default is positional[1].empty or positional[1].name == "context"
    )


def _messages_only(function: Callable[..., Any]) -> Handle:
    return lambda messages, _: function(messages)


class Listeners:
    """The listeners of a consumer: one per topic, and one for all other topics."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Handler] = {}
        self._for_all: Handler | None = None
        self._middlewares: list[Middleware] = []

    def set(self, listener: Listener, topic: str | None = None) -> None:
        """Set the listener of a topic, or of all topics without their own. Raises SettingsError."""
        handler = Handler(listener)
        handler.wrap(self._middlewares)
        if topic is None:
            self._for_all = handler
        else:
            self._by_topic[topic] = handler

    def remove(self, topic: str) -> None:
        self._by_topic.pop(topic, None)

    def use(self, middleware: Middleware) -> None:
        """Add a middleware to all listeners, inside the existing ones. Raises SettingsError."""
        check_callback("middleware", middleware, "handle")
        self._middlewares.append(middleware)
        for handler in self.all():
            handler.wrap(self._middlewares)

    def topics(self) -> list[str]:
        """Return the topics that have their own listener."""
        return list(self._by_topic)

    def all(self) -> list[Handler]:
        return [*self._by_topic.values(), *([self._for_all] if self._for_all else [])]

    def find(self, topic: str) -> Handler | None:
        return self._by_topic.get(topic, self._for_all)

    def get(self, topic: str) -> Handler:
        """Return the handler of a topic; without one, a handler that fails."""
        return self.find(topic) or _NO_LISTENER


def _no_listener(messages: Messages) -> None:
    raise LookupError(
        f"no listener for topic {messages[0].topic}: its messages are retried and dead-lettered in the end"
    )


_NO_LISTENER = Handler(_no_listener)


async def consume_once(listeners: Listeners, message: ReceivedMessage, group: str) -> ConsumeOutcome:
    """Call the listener of one message for a tool, without changing offsets or statistics."""
    handler = listeners.get(message.topic)
    context = ConsumeContext(message.queue, group)
    if handler.is_async:
        return await handler.run_async((message,), context)
    return await asyncio.to_thread(handler.run, (message,), context, asyncio.get_running_loop())
