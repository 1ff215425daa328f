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
    └─ ClientError                   NoRoute, MessageTooLarge, ClientClosed

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

    def __post_init__(self) -> None:
        # Called by the dataclasses below, when the instance holds its fields and nothing else:
        # with the facts as `args` an error survives pickling, as it must between processes.
        self.args = tuple(vars(self).values())


@dataclass(eq=False)
class SettingsError(RocketMQError):
    """A setting with a value that cannot be used, or a name nobody knows."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"setting {self.name}: {self.reason}"


@dataclass(eq=False)
class BadJson(RocketMQError, ValueError):
    """Text that not even Java's tolerant JSON reader would take. `position` counts characters from 0."""

    position: int
    reason: str

    def __str__(self) -> str:
        return f"bad JSON at character {self.position}: {self.reason}"


@dataclass(eq=False)
class BadBody(RocketMQError, ValueError):
    """A message body that cannot be decompressed: damaged, too large, or by a codec that is not installed."""

    compression: str
    reason: str

    def __str__(self) -> str:
        return f"body compressed with {self.compression} cannot be read: {self.reason}"


class ProtocolError(RocketMQError):
    """The remoting protocol was broken; the connection cannot go on."""


class LocalProtocolError(ProtocolError):
    """This side tried something that the protocol forbids: a bug of ours or of the caller."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids."""


@dataclass(eq=False)
class MalformedFrame(RemoteProtocolError):
    """A frame whose lengths, header or fields do not make sense."""

    reason: str

    def __str__(self) -> str:
        return f"malformed frame: {self.reason}"


@dataclass(eq=False)
class FrameTooLarge(RemoteProtocolError):
    """A frame that announces more bytes than we accept."""

    frame_bytes: int
    frame_bytes_max: int

    def __str__(self) -> str:
        return f"frame of {self.frame_bytes} bytes is larger than the limit of {self.frame_bytes_max}"


class RemotingError(RocketMQError):
    """The network failed; nothing is known about the peer's view."""

    retriable = True


@dataclass(eq=False)
class ConnectFailed(RemotingError):
    """No connection could be made."""

    address: str
    reason: str

    def __str__(self) -> str:
        return f"cannot connect to {self.address}: {self.reason}"


@dataclass(eq=False)
class ConnectionLost(RemotingError):
    """The connection ended before the answer came."""

    address: str
    reason: str = "closed by the peer"

    def __str__(self) -> str:
        return f"connection to {self.address} lost: {self.reason}"


@dataclass(eq=False)
class RequestTimeout(RemotingError):
    """No answer within the time given."""

    address: str
    request: str
    timeout_ms: int

    def __str__(self) -> str:
        return f"no answer from {self.address} to {self.request} within {self.timeout_ms} ms"


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

    physical_offset: int
    min_offset: int
    max_offset: int

    def __str__(self) -> str:
        return (
            f"physical offset {self.physical_offset} is outside the log, "
            f"which holds {self.min_offset} to {self.max_offset}"
        )


@dataclass(eq=False)
class MissingFile(StoreError):
    """A file that the store's other files say must be there."""

    path: AnyPath
    reason: str = "expected by its neighbours"

    def __str__(self) -> str:
        return f"file {self.path} is missing: {self.reason}"


@dataclass(eq=False)
class BadStoreFile(StoreError):
    """A file of the store that cannot be used: wrong size, name, header or text."""

    path: AnyPath
    reason: str

    def __str__(self) -> str:
        return f"bad file {self.path}: {self.reason}"


@dataclass(eq=False)
class DiskFull(StoreError):
    """The disk is full, or so full that the store refuses to write; reads go on."""

    path: AnyPath
    reason: str

    def __str__(self) -> str:
        return f"disk full at {self.path}: {self.reason}"


@dataclass(eq=False)
class StoreClosed(StoreError):
    """The store was closed and answers nothing any more."""

    path: AnyPath

    def __str__(self) -> str:
        return f"store {self.path} is closed"


@dataclass(eq=False)
class StoreFailed(StoreError):
    """A write or an fsync failed. What the disk holds is unknown, so writes stop until a restart recovers."""

    path: AnyPath
    reason: str

    def __str__(self) -> str:
        return f"store {self.path} stopped writing: {self.reason}; restart it to recover"


@dataclass(eq=False)
class StoreLocked(StoreError):
    """Another process has the store open for writing."""

    path: AnyPath

    def __str__(self) -> str:
        return f"store {self.path} is in use by another process"


class ClientError(RocketMQError):
    """The client could not do what it was asked, before or without a server's word on it."""


@dataclass(eq=False)
class NoRoute(ClientError):
    """No name server knows a broker for the topic."""

    refresh_route = True

    topic: str

    def __str__(self) -> str:
        return f"no route for topic {self.topic}"


@dataclass(eq=False)
class MessageTooLarge(ClientError):
    """A body above the client's limit, checked before compression."""

    body_bytes: int
    body_bytes_max: int

    def __str__(self) -> str:
        return f"message body of {self.body_bytes} bytes is larger than the limit of {self.body_bytes_max}"


@dataclass(eq=False)
class ClientClosed(ClientError):
    """The client was closed, or never started."""

    client: str

    def __str__(self) -> str:
        return f"{self.client} is not running"
