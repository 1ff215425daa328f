"""Pure. Pull policy: when a queue must wait, the flags of a pull, and the meaning of its reply."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from skylark.client.consumer.process_queue import MEBIBYTE, ProcessQueue
from skylark.client.consumer.subscription import TopicSubscription
from skylark.errors import RemoteProtocolError
from skylark.protocol.bodies import MASTER_ID, MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import (
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_LITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
)
from skylark.settings.client import PushConsumerSettings


class PullStatus(Enum):
    """The status of a pull. None of them is an error."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


class PullRequest:
    """State of the pulls of one queue while this member owns it. Exactly one exists for each queue.

    `was_locked` is set by the first pull under a lock: before that, another member may have committed.
    """

    __slots__ = ("failures", "group", "next_offset", "process_queue", "queue", "waits", "was_locked")

    def __init__(self, group: str, process_queue: ProcessQueue, next_offset: int) -> None:
        self.group = group
        self.queue = process_queue.queue
        self.process_queue = process_queue
        self.next_offset = next_offset
        self.was_locked = False
        self.waits = 0  # for room; every FLOW_CONTROL_LOGGED_EVERY-th is logged
        self.failures = 0  # in a row


class WaitReason(Enum):
    """Why a queue is not pulled now."""

    PAUSED = "the consumer is suspended"
    COUNT = "too many messages are cached"
    SIZE = "too many bytes are cached"
    SPAN = "the first unfinished message is too far behind"
    NOT_LOCKED = "the queue is not locked"
    NOT_SUBSCRIBED = "the topic is no longer subscribed"


FLOW_CONTROL = frozenset({WaitReason.COUNT, WaitReason.SIZE, WaitReason.SPAN})
FLOW_CONTROL_LOGGED_EVERY = 1000
BROKERS_GIVE_MAX = 32
"""RocketMQ's default limit for the messages of one reply, however many are requested."""
REPLICA_AVOIDED_S = 30.0
"""As long as routes are cached by default: by then the name server has removed a dead replica."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Check again after this delay."""

    delay_ms: int
    reason: WaitReason


@dataclass(slots=True)
class Thresholds:
    """Cache limits of one queue. They shrink as more queues share a limit of the consumer."""

    messages_max: int
    mib_max: int

    def share(self, settings: PushConsumerSettings, queue_count: int) -> None:
        """Divide the consumer's limits among its queues."""
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
    """Return why and how long a queue must wait, None to pull now. At a threshold it still pulls."""
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


def pull_flags(
    *,
    commit: bool,
    suspend: bool = True,
    subscription: bool = False,
    class_filter: bool = False,
    lite: bool = False,
) -> int:
    """Return the system flag of a pull. The subscription is not sent to filter servers, which know it."""
    return (
        (PULL_COMMIT_OFFSET if commit else 0)
        | (PULL_SUSPEND if suspend else 0)
        | (PULL_SUBSCRIPTION if subscription and not class_filter else 0)
        | (PULL_CLASS_FILTER if class_filter else 0)
        | (PULL_LITE if lite else 0)
    )


def bulk_bytes(messages_max: int, bytes_max: int) -> int | None:
    """Return the byte limit for a large pull from Skylark's brokers; other brokers ignore the field."""
    return bytes_max if messages_max > BROKERS_GIVE_MAX else None


def pull_status(code: int) -> PullStatus:
    """Return the status of a response code. Raises RemoteProtocolError for other codes."""
    try:
        return PullStatus(code)
    except ValueError:
        raise RemoteProtocolError(f"unexpected response code {code} to a pull") from None


class SuggestedBrokers:
    """The replica to pull each queue from: the master, until a reply suggests another one.

    A replica that failed is avoided for REPLICA_AVOIDED_S, though masters may go on suggesting it.
    """

    def __init__(self) -> None:
        self._suggested: dict[MessageQueue, int] = {}
        self._avoided_until: dict[tuple[str, int], float] = {}

    def get(self, queue: MessageQueue, now: float) -> int:
        """Return the id of the replica to pull from. `now` is in monotonic seconds."""
        broker_id = self._suggested.get(queue, MASTER_ID)
        if broker_id != MASTER_ID and self._avoided_until:
            if now < self._avoided_until.get((queue.broker_name, broker_id), now):
                return MASTER_ID
        return broker_id

    def avoid(self, broker: str, broker_id: int, now: float) -> None:
        """Do not use a replica for a while, for any queue."""
        self._avoided_until[broker, broker_id] = now + REPLICA_AVOIDED_S

    def note(self, queue: MessageQueue, broker_id: int) -> None:
        if broker_id:
            self._suggested[queue] = broker_id
        else:
            self._suggested.pop(queue, None)
