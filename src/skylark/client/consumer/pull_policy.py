"""Pure. Decisions around a pull: whether to wait first, where to begin, what to ask, what an answer means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from skylark.client.consumer.process_queue import MEBIBYTE, ProcessQueue
from skylark.client.consumer.subscription import TopicSubscription
from skylark.errors import RemoteProtocolError
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import (
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_LITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
)
from skylark.settings.client import ConsumeFrom, PushConsumerSettings


class PullStatus(Enum):
    """What became of a pull. None of them is an error."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


class PullRequest:
    """The pulling of one queue while it is ours. Exactly one circulates for each queue.

    `was_locked` is set by the first pull under a lock: what was committed before may be another's work.
    """

    __slots__ = ("failures", "group", "next_offset", "process_queue", "queue", "waits", "was_locked")

    def __init__(self, group: str, process_queue: ProcessQueue, next_offset: int) -> None:
        self.group = group
        self.queue = process_queue.queue
        self.process_queue = process_queue
        self.next_offset = next_offset
        self.was_locked = False
        self.waits = 0  # for room: every thousandth is told
        self.failures = 0  # in a row


class WaitReason(Enum):
    """Why a queue is not pulled right now."""

    PAUSED = "the consumer is suspended"
    COUNT = "too many messages wait here"
    SIZE = "too many bytes wait here"
    SPAN = "the first unfinished message is too far behind"
    NOT_LOCKED = "the queue is not locked"
    NOT_SUBSCRIBED = "the topic is no longer subscribed"


FLOW_CONTROL = frozenset({WaitReason.COUNT, WaitReason.SIZE, WaitReason.SPAN})
FLOW_CONTROL_TOLD_EVERY = 1000
BROKERS_GIVE_MAX = 32
"""Messages in an answer by RocketMQ's default, however many are asked for."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after so long."""

    delay_ms: int
    reason: WaitReason


@dataclass(slots=True)
class Thresholds:
    """How much of one queue may wait here. They shrink as more queues share a limit of the consumer."""

    messages_max: int
    mib_max: int

    def share(self, settings: PushConsumerSettings, queue_count: int) -> None:
        """Divide the limits of the whole consumer among its queues."""
        if not queue_count:
            return
        if settings.topic_messages_max != -1:
            self.messages_max = max(1, settings.topic_messages_max // queue_count)
        if settings.topic_mib_max != -1:
            self.mib_max = max(1, settings.topic_mib_max // queue_count)


def wait_before_pull(
    process_queue: ProcessQueue,
    thresholds: Thresholds,
    settings: PushConsumerSettings,
    *,
    paused: bool,
    must_lock: bool,
    subscription: TopicSubscription | None,
) -> Wait | None:
    """Say whether a queue must wait, and how long; None: pull now. At a threshold it still pulls."""
    if paused:
        return Wait(settings.paused_delay_ms, WaitReason.PAUSED)
    delay_ms = settings.flow_control_delay_ms
    if process_queue.message_count > thresholds.messages_max:
        return Wait(delay_ms, WaitReason.COUNT)
    if process_queue.message_bytes // MEBIBYTE > thresholds.mib_max:
        return Wait(delay_ms, WaitReason.SIZE)
    if not settings.orderly and process_queue.span > settings.span_max:
        return Wait(delay_ms, WaitReason.SPAN)
    if must_lock and not process_queue.locked:
        return Wait(settings.pull_failure_delay_ms, WaitReason.NOT_LOCKED)
    if subscription is None:
        return Wait(settings.pull_failure_delay_ms, WaitReason.NOT_SUBSCRIBED)
    return None


class StartQuery(Enum):
    """What a broker must be asked to know where to begin."""

    MAX_OFFSET = "the end of the queue"
    BY_TIMESTAMP = "the offset at a time"


def start_offset(stored: int | None, consume_from: ConsumeFrom, topic: str) -> int | StartQuery:
    """Where a newly assigned queue begins: where the group left off, else as `consume_from` says.

    A retry topic begins at its start, since whatever is in it failed before. An offset below the queue's
    smallest is repaired by the broker's answer to the first pull.
    """
    if stored is not None:
        return stored
    is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
    if consume_from is ConsumeFrom.TIMESTAMP:
        return StartQuery.MAX_OFFSET if is_retry else StartQuery.BY_TIMESTAMP
    if consume_from is ConsumeFrom.FIRST_OFFSET or is_retry:
        return 0
    return StartQuery.MAX_OFFSET


def pull_flags(
    *,
    commit: bool,
    suspend: bool = True,
    subscription: bool = False,
    class_filter: bool = False,
    lite: bool = False,
) -> int:
    """The system flag of a pull. Filter servers know the subscription: it is not sent to them."""
    return (
        (PULL_COMMIT_OFFSET if commit else 0)
        | (PULL_SUSPEND if suspend else 0)
        | (PULL_SUBSCRIPTION if subscription and not class_filter else 0)
        | (PULL_CLASS_FILTER if class_filter else 0)
        | (PULL_LITE if lite else 0)
    )


def bulk_bytes(messages_max: int, bytes_max: int) -> int | None:
    """Return how much a pull for more than that asks of Skylark's brokers; others do not know the field."""
    return bytes_max if messages_max > BROKERS_GIVE_MAX else None


def pull_status(code: int) -> PullStatus:
    """Return the status that a response code means. Raises RemoteProtocolError for others."""
    try:
        return PullStatus(code)
    except ValueError:
        raise RemoteProtocolError(f"response code {code} is no answer to a pull") from None


class SuggestedBrokers:
    """Which replica of a broker to pull a queue from: the master, until an answer suggests another."""

    def __init__(self) -> None:
        self._suggested: dict[MessageQueue, int] = {}

    def get(self, queue: MessageQueue) -> int:
        return self._suggested.get(queue, 0)

    def note(self, queue: MessageQueue, broker_id: int) -> None:
        if broker_id:
            self._suggested[queue] = broker_id
        else:
            self._suggested.pop(queue, None)
