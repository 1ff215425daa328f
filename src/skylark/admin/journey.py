"""The journey of a message: born, stored, delivered, retried, dead, resent. Each step names its source."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.admin.dead_letters import PROPERTY_RESENT_FROM
from skylark.admin.message_json import text_of
from skylark.admin.messages import AsyncMessages, Track, TrackState
from skylark.admin.server_calls import at_once
from skylark.admin.traces import TraceStep, read_steps
from skylark.client.received_message import ReceivedMessage
from skylark.errors import NoRoute, RocketMQError
from skylark.model.message import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION,
)
from skylark.model.names import TRACE_TOPIC, dead_letter_topic, retry_topic

DELAYS = (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
)
TRACES_MAX = 1000


@dataclass(frozen=True, slots=True)
class JourneyStep:
    """`what` is one of born, transaction, delayed, stored, sent_again, retried, dead, resent, traced, and a
    group's state: passed, waiting. `time_ms` is None where no record has it."""

    what: str
    source: str
    time_ms: int | None
    group: str = ""
    details: str = ""
    message: ReceivedMessage | None = None
    is_ok: bool = True


@dataclass(frozen=True, slots=True)
class Journey:
    """Steps with a time in its order, then those without. `is_traced`: some client wrote traces."""

    message: ReceivedMessage
    steps: tuple[JourneyStep, ...]
    is_traced: bool


async def read_journey(messages: AsyncMessages, topic: str, message_id: str) -> Journey:
    """From the message, its copies in retry and dead-letter topics, offsets, and traces if there are any.

    Raises ClientError if there is no such message, NoRoute.
    """
    message = await messages.get(topic, message_id)
    steps = list(_own_steps(message))
    key = message.unique_key
    tracks = await messages.track(message)
    if key is not None:
        copies = (await messages.by_unique_key(topic, key)).messages
        steps += [
            JourneyStep("sent_again", topic, copy.store_timestamp, message=copy)
            for copy in copies
            if copy.offset_message_id != message.offset_message_id
        ]

        async def ask(group: str) -> list[JourneyStep]:
            return [
                *await _copies(messages, key, group, retry_topic(group)),
                *await _copies(messages, key, group, dead_letter_topic(group)),
            ]

        for found in await at_once(ask, [track.group for track in tracks]):
            steps += [] if isinstance(found, RocketMQError) else found
    failed = {step.group for step in steps if step.group}  # their offsets in the topic say nothing more
    steps += [_state(track) for track in tracks if track.group not in failed]
    traced = await _traces(messages, message)
    steps += [
        JourneyStep(
            "traced", TRACE_TOPIC, step.time_ms, step.group, f"{step.what}: {step.details}", is_ok=step.is_ok
        )
        for step in traced
    ]
    steps.sort(key=lambda step: (step.time_ms is None, step.time_ms or 0))
    return Journey(message, tuple(steps), bool(traced))


def _own_steps(message: ReceivedMessage) -> list[JourneyStep]:
    steps = [JourneyStep("born", message.queue.topic, message.born_timestamp, details=message.born_host)]
    if PROPERTY_TRANSACTION in message.properties:
        steps.append(JourneyStep("transaction", message.queue.topic, message.born_timestamp))
    if delays := [f"{name}={message.properties[name]}" for name in DELAYS if name in message.properties]:
        steps.append(
            JourneyStep("delayed", message.queue.topic, message.born_timestamp, details=" ".join(delays))
        )
    place = f"{message.broker_name}:{message.queue_id}:{message.queue_offset}"
    steps.append(
        JourneyStep("stored", message.queue.topic, message.store_timestamp, details=place, message=message)
    )
    return steps


async def _copies(messages: AsyncMessages, key: str, group: str, topic: str) -> list[JourneyStep]:
    """The copies of a message in a group's retry or dead-letter topic."""
    try:
        found = (await messages.by_unique_key(topic, key)).messages
    except NoRoute:
        return []
    steps = []
    for copy in found:
        what = "retried" if topic == retry_topic(group) else "dead"
        if PROPERTY_RESENT_FROM in copy.properties:
            what = "resent"
        details = str(copy.reconsume_times)
        steps.append(
            JourneyStep(what, topic, copy.store_timestamp, group, details, copy, is_ok=what == "resent")
        )
    return steps


def _state(track: Track) -> JourneyStep:
    is_past = track.state in (TrackState.CONSUMED, TrackState.PASSED, TrackState.FILTERED)
    return JourneyStep("passed" if is_past else "waiting", "offsets", None, track.group, track.state.name)


async def _traces(messages: AsyncMessages, message: ReceivedMessage) -> list[TraceStep]:
    try:
        found = await messages.by_key(TRACE_TOPIC, message.message_id, messages_max=TRACES_MAX)
    except RocketMQError:
        return []  # without the topic there are no traces
    steps = read_steps(text_of(item) for item in found.messages)
    return [step for step in steps if step.message_id == message.message_id]
