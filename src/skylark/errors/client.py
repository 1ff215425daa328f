"""What a client cannot do, before or without a server's word on it."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.errors.root import RocketMQError


class ClientError(RocketMQError):
    """The client could not do what it was asked, before or without a server's word on it."""


@dataclass(eq=False)
class NoRoute(ClientError):
    """No name server knows a broker for the topic."""

    text = "No route info of this topic: {topic} ({reason})"
    refresh_route = True

    topic: str
    reason: str = "no name server knows it; create it, or let a broker create topics by itself"


@dataclass(eq=False)
class BrokerUnknown(ClientError):
    """No route names an address of this broker (any more)."""

    text = "The broker[{broker}] not exist: no route names its master's address"
    retriable = True
    refresh_route = True

    broker: str


@dataclass(eq=False)
class BadName(ClientError, ValueError):
    """A name of a topic or a group that cannot be one. `what` is topic or group."""

    text = "{what} {name!r}: {reason}"
    what: str
    name: str
    reason: str


@dataclass(eq=False)
class BadMessage(ClientError, ValueError):
    """A message that no broker would take, or not as it is meant."""

    text = "message for topic {topic!r}: {reason}"
    topic: str
    reason: str


@dataclass(eq=False)
class MessageTooLarge(ClientError):
    """A body above the client's limit, checked before compression."""

    text = "message body of {body_bytes} bytes is larger than the limit of {body_bytes_max}"
    body_bytes: int
    body_bytes_max: int


@dataclass(eq=False)
class ClientClosed(ClientError):
    """The client was closed, or never started."""

    text = "{client} is not running: start it first; once stopped it cannot be used again"
    client: str


@dataclass(eq=False)
class AlreadyStarted(ClientError):
    """A client object is started once only."""

    text = "The {client} service state not OK, maybe started once, {state}"
    client: str
    state: str


@dataclass(eq=False)
class GroupInUse(ClientError):
    """A second producer (consumer, admin) of one group under one client id."""

    text = "The {kind} group[{group}] has been created before, specify another name please."
    kind: str
    group: str


@dataclass(eq=False)
class ForkedClient(ClientError):
    """A client that was started in another process: connections and loop do not survive a fork."""

    client: str
    started_in: int
    used_in: int

    def __str__(self) -> str:
        where = f"was started in process {self.started_in} and is used in its fork {self.used_in}"
        return f"{self.client} {where}: make and start clients after the fork, in each process its own"


@dataclass(eq=False)
class SendFailed(ClientError):
    """All attempts to send failed; the cause is the last one's error.

    `maybe_stored` says that at least one attempt may have reached the broker: sending again may then store
    the message twice, under the same unique key. `code` and `remark` are the broker's, if it answered.
    """

    topic: str
    brokers: tuple[str, ...]
    elapsed_ms: int
    reason: str
    maybe_stored: bool = False
    code: int | None = None
    remark: str = ""

    def __str__(self) -> str:
        sent = f"Send [{len(self.brokers)}] times, still failed, cost [{self.elapsed_ms}]ms"
        return f"{sent}, Topic: {self.topic}, BrokersSent: [{', '.join(self.brokers)}]: {self.reason}"


@dataclass(eq=False)
class SendUnknown(ClientError):
    """A send that ended before its answer came: the message may be stored, or not."""

    text = "send to topic {topic}: {reason}; whether the message is stored is unknown"
    topic: str
    reason: str


@dataclass(eq=False)
class NoReply(ClientError):
    """A request that was sent, but to which no reply came in time. It may still be worked on."""

    text = (
        "send request message to <{topic}> OK, but wait reply message timeout, {timeout_ms} ms. "
        "(message {message_id}, correlation id {correlation_id})"
    )
    topic: str
    timeout_ms: int
    message_id: str
    correlation_id: str


@dataclass(eq=False)
class SomeServersFailed(ClientError):
    """An operation on several servers that some did and some did not; `failures` is by address."""

    operation: str
    done: tuple[str, ...]
    failures: dict[str, RocketMQError]

    def __str__(self) -> str:
        failed = ", ".join(f"{address} ({error})" for address, error in self.failures.items())
        return f"{self.operation} failed at {failed}; done by {', '.join(self.done) or 'none'}"
