"""The whole error tree. Every error carries its facts as attributes and reads as one sentence.

    RocketMQError                    retriable = False, refresh_route = False
    ├─ SettingsError                 a setting that cannot be used
    ├─ BadJson                       text outside Java's JSON dialect (also a ValueError)
    ├─ BadBody                       a body that cannot be decompressed (also a ValueError)
    ├─ ProtocolError
    │  ├─ LocalProtocolError         our side broke the rules
    │  └─ RemoteProtocolError        the peer broke the rules
    │     ├─ MalformedFrame
    │     └─ FrameTooLarge
    ├─ RemotingError (retriable)     ConnectFailed, ConnectionLost, RequestTimeout
    ├─ BrokerError(code, remark)     `BrokerError.for_code` gives the class of a response code
    ├─ StoreError
    │  ├─ CorruptRecord, OffsetOutOfRange, MissingFile, BadStoreFile
    │  └─ DiskFull, StoreClosed, StoreFailed, StoreLocked
    ├─ ReplicationError              CannotFollow, LogsDiverged, MasterExists
    └─ ClientError
       ├─ NoRoute, BrokerUnknown                  where to send or read is not known
       ├─ BadMessage, MessageTooLarge, BadName    refused before the network
       ├─ ClientClosed, AlreadyStarted, GroupInUse, ForkedClient
       └─ SendFailed, SendUnknown, NoReply, SomeServersFailed

Retry policy is data: `retriable` says that another attempt (on another broker) may succeed,
`refresh_route` that the route known to the client is out of date.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import ClassVar

AnyPath = str | PathLike[str]


class RocketMQError(Exception):
    """Root of all errors raised on purpose."""

    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False
    text: ClassVar[str] = ""  # the sentence, with the facts' names in braces

    def __str__(self) -> str:
        return self.text.format_map(vars(self)) if self.text else super().__str__()

    def __post_init__(self) -> None:
        # Called by the dataclasses below, when the instance holds its fields and nothing else:
        # with the facts as `args` an error survives pickling, as it must between processes.
        self.args = tuple(vars(self).values())


@dataclass(eq=False)
class SettingsError(RocketMQError):
    """A setting with a value that cannot be used, or a name nobody knows."""

    text = "setting {name}: {reason}"
    name: str
    reason: str


@dataclass(eq=False)
class BadJson(RocketMQError, ValueError):
    """Text that not even Java's tolerant JSON reader would take. `position` counts characters from 0."""

    text = "bad JSON at character {position}: {reason}"
    position: int
    reason: str


@dataclass(eq=False)
class BadBody(RocketMQError, ValueError):
    """A message body that cannot be decompressed: damaged, too large, or by a codec that is not installed."""

    text = "body compressed with {compression} cannot be read: {reason}"
    compression: str
    reason: str


class ProtocolError(RocketMQError):
    """The remoting protocol was broken; the connection cannot go on."""


class LocalProtocolError(ProtocolError):
    """This side tried something that the protocol forbids: a bug of ours or of the caller."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids."""


@dataclass(eq=False)
class MalformedFrame(RemoteProtocolError):
    """A frame whose lengths, header or fields do not make sense."""

    text = "malformed frame: {reason}"
    reason: str


@dataclass(eq=False)
class FrameTooLarge(RemoteProtocolError):
    """A frame that announces more bytes than we accept."""

    text = "frame of {frame_bytes} bytes is larger than the limit of {frame_bytes_max}"
    frame_bytes: int
    frame_bytes_max: int


class RemotingError(RocketMQError):
    """The network failed; nothing is known about the peer's view."""

    retriable = True


@dataclass(eq=False)
class ConnectFailed(RemotingError):
    """No connection could be made."""

    text = "cannot connect to {address}: {reason}"
    address: str
    reason: str


@dataclass(eq=False)
class ConnectionLost(RemotingError):
    """The connection ended before the answer came."""

    text = "connection to {address} lost: {reason}"
    address: str
    reason: str = "closed by the peer"


@dataclass(eq=False)
class RequestTimeout(RemotingError):
    """No answer within the time given."""

    text = "no answer from {address} to {request} within {timeout_ms} ms"
    address: str
    request: str
    timeout_ms: int


@dataclass(eq=False)
class BrokerError(RocketMQError):
    """A broker or name server answered with a response code that means failure."""

    code: int
    remark: str = ""

    def __str__(self) -> str:
        return f"response code {self.code}: {self.remark or 'no remark'}"

    @staticmethod
    def for_code(code: int, remark: str = "") -> BrokerError:
        """Return the error for a response code, of the class that knows its retry policy."""
        return _BROKER_ERRORS.get(code, BrokerError)(code, remark)


class BrokerSystemError(BrokerError):
    """Code 1: the broker failed in a way it has no better code for."""

    retriable = True


class SystemBusy(BrokerError):
    """Code 2: flow control or overload."""

    retriable = True


class MessageIllegal(BrokerError):
    """Code 13: the message breaks a limit or a rule of form."""


class ServiceNotAvailable(BrokerError):
    """Code 14: the store cannot write (disk full, slave, shutdown)."""

    retriable = True


class NoPermission(BrokerError):
    """Code 16: permission bits of broker or topic, or access control."""

    retriable = True


class TopicNotExist(BrokerError):
    """Code 17: no route or no configuration for the topic."""

    retriable = True
    refresh_route = True


class SubscriptionGroupNotExist(BrokerError):
    """Code 26: the consumer group is unknown and may not be created."""


class NoBuyerId(BrokerError):
    """Code 204: historical; still in Java's retry set."""

    retriable = True


class NotInCurrentUnit(BrokerError):
    """Code 205: historical; still in Java's retry set."""

    retriable = True


class NotLeaderForQueue(BrokerError):
    """Code 501: a static topic's queue lives on another broker now."""

    refresh_route = True


class GoAway(BrokerError):
    """Code 1500: the server is shutting down."""

    retriable = True


_BROKER_ERRORS: dict[int, type[BrokerError]] = {
    1: BrokerSystemError,
    2: SystemBusy,
    13: MessageIllegal,
    14: ServiceNotAvailable,
    16: NoPermission,
    17: TopicNotExist,
    26: SubscriptionGroupNotExist,
    204: NoBuyerId,
    205: NotInCurrentUnit,
    501: NotLeaderForQueue,
    1500: GoAway,
}


class StoreError(RocketMQError):
    """The store could not do what it was asked."""


@dataclass(eq=False)
class CorruptRecord(StoreError):
    """A record of the commit log whose bytes cannot be right. `expected` and `actual` where they say more."""

    physical_offset: int
    reason: str
    expected: int | None = None
    actual: int | None = None

    def __str__(self) -> str:
        sentence = f"corrupt record at physical offset {self.physical_offset}: {self.reason}"
        if self.expected is None and self.actual is None:
            return sentence
        return f"{sentence} (expected {self.expected}, found {self.actual})"


@dataclass(eq=False)
class OffsetOutOfRange(StoreError):
    """A physical offset outside the log, which holds `min_offset` <= offset < `max_offset`."""

    text = "physical offset {physical_offset} is outside the log, which holds {min_offset} to {max_offset}"
    physical_offset: int
    min_offset: int
    max_offset: int


@dataclass(eq=False)
class MissingFile(StoreError):
    """A file that the store's other files say must be there."""

    text = "file {path} is missing: {reason}"
    path: AnyPath
    reason: str = "expected by its neighbours"


@dataclass(eq=False)
class BadStoreFile(StoreError):
    """A file of the store that cannot be used: wrong size, name, header or text."""

    text = "bad file {path}: {reason}"
    path: AnyPath
    reason: str


@dataclass(eq=False)
class DiskFull(StoreError):
    """The disk is full, or so full that the store refuses to write; reads go on."""

    text = "disk full at {path}: {reason}"
    path: AnyPath
    reason: str


@dataclass(eq=False)
class StoreClosed(StoreError):
    """The store was closed and answers nothing any more."""

    text = "store {path} is closed"
    path: AnyPath


@dataclass(eq=False)
class StoreFailed(StoreError):
    """A write or an fsync failed. What the disk holds is unknown, so writes stop until a restart recovers."""

    text = "store {path} stopped writing: {reason}; restart it to recover"
    path: AnyPath
    reason: str


@dataclass(eq=False)
class StoreLocked(StoreError):
    """Another process has the store open for writing."""

    text = "store {path} is in use by another process"
    path: AnyPath


class ReplicationError(RocketMQError):
    """A broker that cannot have the part in a group of replicas that it was given."""


@dataclass(eq=False)
class CannotFollow(ReplicationError):
    """A slave that cannot follow its master, now or ever; the reason says what to do."""

    text = "cannot follow the master: {reason}"
    reason: str


@dataclass(eq=False)
class LogsDiverged(ReplicationError):
    """The logs of a slave and its master differ from the first record on that was compared."""

    text = "the log differs from the master's at {physical_offset}, and perhaps before"
    physical_offset: int


@dataclass(eq=False)
class MasterExists(ReplicationError):
    """A broker that would be the second master of its name."""

    text = (
        "broker {name} has a master already, {master}, says the name server {name_server}: "
        "stop that one, follow it (--slave-of {master}), or, if it is gone for good, --force-master"
    )
    name: str
    master: str
    name_server: str


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
