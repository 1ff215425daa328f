"""Listeners of every shape, and what their answers mean for a batch."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from skylark import PullConsumer, PushConsumer, TransactionProducer
from skylark.client.consumer import listeners
from skylark.client.consumer.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeContext,
    ConsumeOrderlyStatus,
    ConsumeOutcome,
    ConsumeResult,
    ConsumeVerdict,
    Handler,
    Listeners,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    consume_once,
)
from skylark.client.received_message import ReceivedMessage
from skylark.errors import SettingsError
from tests.unit.client.messages import QUEUE, received

Messages = Sequence[ReceivedMessage]
BATCH = tuple(received(number) for number in range(10))


def context() -> ConsumeContext:
    return ConsumeContext(QUEUE, "G")


async def outcome_of(listener: Any, done: int | None = None) -> ConsumeOutcome:
    handler, told = Handler(listener), context()
    told.done = done
    if handler.is_async:
        return await handler.run_async(BATCH, told)
    return await asyncio.to_thread(handler.run, BATCH, told, asyncio.get_running_loop())


def returning(value: Any) -> Any:
    def listener(messages: Messages) -> Any:
        return value

    return listener


def java_returning(value: Any) -> MessageListenerConcurrently:
    class Listener(MessageListenerConcurrently):
        def consume_message(self, messages: Messages, context: ConsumeContext) -> Any:
            return value

    return Listener()


@pytest.mark.parametrize(
    ("value", "done", "expected"),
    [
        (None, None, ConsumeOutcome(ConsumeVerdict.SUCCESS, 10)),
        (None, 4, ConsumeOutcome(ConsumeVerdict.SUCCESS, 4)),
        (None, 99, ConsumeOutcome(ConsumeVerdict.SUCCESS, 10)),
        (None, -3, ConsumeOutcome(ConsumeVerdict.SUCCESS, 0)),
        (ConsumeResult.SUCCESS, None, ConsumeOutcome(ConsumeVerdict.SUCCESS, 10)),
        (ConsumeResult.LATER, None, ConsumeOutcome(ConsumeVerdict.LATER, 0)),
        (ConsumeResult.LATER, 4, ConsumeOutcome(ConsumeVerdict.LATER, 4)),
        ("nonsense", None, ConsumeOutcome(ConsumeVerdict.SUCCESS, 10)),
        (False, None, ConsumeOutcome(ConsumeVerdict.SUCCESS, 10)),
        (ConsumeConcurrentlyStatus.RECONSUME_LATER, None, ConsumeOutcome(ConsumeVerdict.LATER, 0)),
    ],
)
async def test_sf_030_what_a_function_returns(value: Any, done: int | None, expected: ConsumeOutcome) -> None:
    assert await outcome_of(returning(value), done) == expected


@pytest.mark.parametrize(
    ("value", "done", "expected"),
    [
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, None, ConsumeOutcome(ConsumeVerdict.SUCCESS, 10)),
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, 5, ConsumeOutcome(ConsumeVerdict.SUCCESS, 5)),
        (ConsumeConcurrentlyStatus.RECONSUME_LATER, 5, ConsumeOutcome(ConsumeVerdict.LATER, 0)),
        (None, None, ConsumeOutcome(ConsumeVerdict.RETURNED_NULL, 0)),
        ("nonsense", None, ConsumeOutcome(ConsumeVerdict.LATER, 0)),
        (ConsumeOrderlyStatus.COMMIT, None, ConsumeOutcome(ConsumeVerdict.COMMIT, 10)),
        (ConsumeOrderlyStatus.ROLLBACK, None, ConsumeOutcome(ConsumeVerdict.ROLLBACK, 0)),
    ],
)
async def test_sf_026_036_what_a_java_shaped_listener_returns(
    value: Any, done: int | None, expected: ConsumeOutcome
) -> None:
    assert await outcome_of(java_returning(value), done) == expected


async def test_one_warning_for_each_mistake(caplog: pytest.LogCaptureFixture) -> None:
    handler = Handler(java_returning(None))
    for _ in range(5):
        handler.run(BATCH, context(), asyncio.get_running_loop())
    assert len(caplog.messages) == 1
    assert "Listener.consume_message returned None, which counts as RECONSUME_LATER" in caplog.text


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()]
)
async def test_whatever_a_listener_raises_is_later(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def listener(messages: Messages, told: ConsumeContext) -> None:
        told.done = 3
        raise error

    outcome = await outcome_of(listener)
    assert (outcome.verdict, outcome.done, outcome.failed) == (ConsumeVerdict.RAISED, 3, True)
    assert type(error).__name__ in outcome.reason
    assert "listener" in caplog.records[0].getMessage()


async def test_an_error_that_cannot_say_what_it_is_is_later_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # PySpark, once imported, formats records by the error's text; the standard formatter copes without one.
    monkeypatch.setattr(listeners.log, "propagate", False)

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def listener(messages: Messages) -> None:
        raise Mute

    outcome = await outcome_of(listener)
    assert (outcome.verdict, outcome.reason) == (ConsumeVerdict.RAISED, "Mute")


async def test_a_coroutine_that_is_cancelled_from_inside_is_later_and_from_outside_is_cancelled() -> None:
    async def inside(messages: Messages) -> None:
        raise asyncio.CancelledError

    assert (await outcome_of(inside)).verdict is ConsumeVerdict.RAISED

    async def endless(messages: Messages) -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(Handler(endless).run_async(BATCH, context()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_functions_of_one_and_of_two_arguments() -> None:
    seen: list[Any] = []

    class Callable:
        def __call__(self, messages: Messages) -> None:
            seen.append("object")

    class AsyncCallable:
        async def __call__(self, messages: Messages, told: ConsumeContext) -> None:
            seen.append(told.queue)

    def two(messages: Messages, told: ConsumeContext) -> None:
        seen.append(told.group)

    def optional(messages: Messages, context: ConsumeContext | None = None) -> None:
        seen.append(context is not None)

    def anything(*arguments: Any) -> None:
        seen.append(len(arguments))

    def three(prefix: str, messages: Messages, told: ConsumeContext) -> None:
        seen.append(prefix)

    of_loop = [lambda messages, number=number: seen.append(number) for number in range(2)]
    partial = functools.partial(three, "partial")
    for listener in (Callable(), AsyncCallable(), two, optional, anything, partial, seen.append, *of_loop):
        assert (await outcome_of(listener)).verdict is ConsumeVerdict.SUCCESS
    assert seen == ["object", QUEUE, "G", True, 2, "partial", BATCH, 0, 1]


async def test_a_function_that_returns_a_coroutine_is_awaited() -> None:
    async def later(messages: Messages) -> ConsumeResult:
        return ConsumeResult.LATER

    assert (await outcome_of(later)).verdict is ConsumeVerdict.LATER


def test_sf_001_other_objects_are_refused() -> None:
    for thing in (None, 5, "text", object(), MessageListenerOrderly):
        with pytest.raises(SettingsError, match="a function, or an instance of MessageListenerOrderly"):
            Handler(thing)  # type: ignore[arg-type]


def test_sf_001_a_listener_that_cannot_be_called_is_refused_when_it_is_given() -> None:
    def none() -> None: ...

    def three(message: Any, context: Any, more: Any) -> None: ...

    def by_name(messages: Any, *, database: Any) -> None: ...

    def lazy(messages: Any) -> Iterator[None]:
        yield

    mistakes: list[tuple[Any, str]] = [
        (none, r"none\(\) cannot be called with \(messages\): too many positional arguments"),
        (
            three,
            r"three\(message, context, more\) cannot be called with \(messages, context\): missing .* 'more'",
        ),
        (by_name, "missing a required argument: 'database'"),
        (lazy, "contains yield, so calling it would run nothing"),
        (lambda: None, "too many positional arguments"),
    ]
    for listener, reason in mistakes:
        for give in (Handler, PushConsumer("G", namesrv="127.0.0.1:1").subscribe("T")):
            with pytest.raises(SettingsError, match=reason):
                give(listener)


def test_other_callbacks_that_cannot_be_called_are_refused_when_they_are_given() -> None:
    push, pull = PushConsumer("G", namesrv="127.0.0.1:1"), PullConsumer("G", namesrv="127.0.0.1:1")
    takers: list[Any] = [push.use, push.on_queues_changed, functools.partial(pull.on_queues_changed, "T")]
    for give in takers:
        with pytest.raises(SettingsError, match="cannot be called with"):
            give(lambda: None)
    for execute, check in ((lambda message: None, max), (lambda message, argument: None, lambda: None)):
        with pytest.raises(SettingsError, match="cannot be called with"):
            TransactionProducer("G", namesrv="127.0.0.1:1", execute=execute, check=check)  # type: ignore[arg-type]


def test_kinds() -> None:
    assert Handler(java_returning(None)).is_orderly is False
    assert Handler(MessageListenerOrderly()).is_orderly is True
    assert Handler(print).is_orderly is None


def test_ack_index_is_java_s_word_for_done() -> None:
    told = context()
    assert told.ack_index is None
    told.ack_index = 4
    assert told.done == 5
    told.ack_index = -1
    assert told.done == 0


async def test_listeners_by_topic(caplog: pytest.LogCaptureFixture) -> None:
    listeners = Listeners()
    listeners.set(returning(None))
    listeners.set(returning(ConsumeResult.LATER), "T")
    message = received(0)
    assert (await consume_once(listeners, message, "G")).verdict is ConsumeVerdict.LATER
    message.topic = "Other"
    assert (await consume_once(listeners, message, "G")).verdict is ConsumeVerdict.SUCCESS
    listeners.remove("T")
    assert listeners.topics() == []
    with caplog.at_level(logging.WARNING):
        nobody = await consume_once(Listeners(), message, "G")
    assert nobody.verdict is ConsumeVerdict.RAISED
    assert "no listener for topic Other" in nobody.reason


async def test_middlewares_wrap_once_and_may_make_a_listener_async() -> None:
    order: list[str] = []

    def named(name: str) -> Any:
        def middleware(handle: Any) -> Any:
            async def around(messages: Messages, told: ConsumeContext) -> Any:
                order.append(name)
                value = handle(messages, told)
                return await value if asyncio.iscoroutine(value) else value

            return around

        return middleware

    listeners = Listeners()
    listeners.set(returning(None))
    assert listeners.find("T") is not None
    for name in ("outer", "inner"):
        listeners.use(named(name))
    assert listeners.get("T").is_async
    assert (await consume_once(listeners, received(0), "G")).verdict is ConsumeVerdict.SUCCESS
    assert order == ["outer", "inner"]
