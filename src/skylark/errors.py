"""All errors raised on purpose. Facts are fields, `text` is the sentence, flags state the retry policy.

RocketMQError
├─ SettingsError, BadJson, BadBody
├─ ProtocolError        the remoting protocol was violated
├─ RemotingError        the network failed; retriable
├─ BrokerError          a server replied with an error code
├─ StoreError           the message store failed
├─ ReplicationError     a broker cannot take its role among replicas
└─ ClientError          the client failed without a reply from a server
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar

AnyPath = str | PathLike[str]
RANGES_SHOWN = 5


class RocketMQError(Exception):
    """Base class of all errors raised on purpose.

    `retriable`: the same request may succeed on another broker. `refresh_route`: fetch the route before that.
    """

    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False
    text: ClassVar[str] = ""  # the sentence, with field names in braces
    advice: ClassVar[str] = ""  # what to do about errors of this class

    @property
    def hint(self) -> str:
        """What to do about this error, empty for most. Tracebacks and the command line show it."""
        return self.advice

    def __str__(self) -> str:
        return self.text.format_map(vars(self)) if self.text else super().__str__()

    def __post_init__(self) -> None:
        # Called by the dataclasses below. With its fields as `args` an error survives pickling, which errors
        # that cross processes need.
        self.args = tuple(vars(self).values())
        if self.hint:
            self.add_note(f"hint: {self.hint}")

    def shorten(self) -> None:
        """Drop the frames collected so far, also of the causes; then `raise` shows the caller's frames only.

        The others are of the client and its event loop: they explain nothing that the sentence does not.
        """
        error: BaseException | None = self
        while isinstance(error, RocketMQError):
            error.__traceback__ = None
            error = error.__cause__


# --- Settings and data ---


@dataclass(eq=False)
class SettingsError(RocketMQError):
    """A setting with an invalid value or an unknown name."""

    text = "setting {name}: {reason}"
    name: str
    reason: str


@dataclass(eq=False)
class BadSettingsFile(SettingsError):
    """A settings file, or a line in it, that cannot be used. `name` is the path, optionally with a line."""

    text = "{name}: {reason}"


@dataclass(eq=False)
class BadJson(RocketMQError, ValueError):
    """Text that even Java's tolerant JSON parser rejects. `position` counts characters from 0."""

    text = "bad JSON at character {position}: {reason}"
    position: int
    reason: str


@dataclass(eq=False)
class BadBody(RocketMQError, ValueError):
    """A message body that cannot be decompressed: damaged, too large, or its codec is not installed."""

    text = "body compressed with {compression} cannot be read: {reason}"
    compression: str
    reason: str


# --- Protocol and network ---


class ProtocolError(RocketMQError):
    """The remoting protocol was violated; the connection is unusable."""


class LocalProtocolError(ProtocolError):
    """This side tried something that the protocol forbids: a bug here or in the caller."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids."""


@dataclass(eq=False)
class MalformedFrame(RemoteProtocolError):
    """A frame with inconsistent lengths, or an invalid header or field."""

    text = "malformed frame: {reason}"
    reason: str


@dataclass(eq=False)
class FrameTooLarge(RemoteProtocolError):
    """A frame that announces more bytes than the limit."""

    text = "frame of {frame_bytes} bytes is larger than the limit of {frame_bytes_max}"
    frame_bytes: int
    frame_bytes_max: int


class RemotingError(RocketMQError):
    """The network failed; whether the peer handled the request is unknown."""

    retriable = True


@dataclass(eq=False)
class ConnectFailed(RemotingError):
    """A connection could not be opened. `broker` is its name, if a route has the address."""

    advice = "is it running? `skylark serve` starts servers here; `skylark doctor` checks them"

    address: str
    reason: str
    broker: str = ""
    is_name_server: bool = False

    def __str__(self) -> str:
        place = self.address
        if self.is_name_server:
            place = f"name server {place}"
        elif self.broker:
            place = f"broker {self.broker} at {place}"
        return f"cannot connect to {place}: {self.reason}"

    @property
    def hint(self) -> str:
        if self.is_name_server:
            return (
                "is it running? `skylark serve` starts one here; the address is from namesrv=, --namesrv, "
                "ClientSettings.name_servers or NAMESRV_ADDR"
            )
        if self.broker:
            return (
                "is it running? `skylark doctor` checks it; if it runs, but the address that it advertises "
                "cannot be reached from here, start it with --advertise HOST (brokerIP1)"
            )
        return self.advice


@dataclass(eq=False)
class ConnectionLost(RemotingError):
    """The connection closed before the reply arrived."""

    text = "connection to {address} lost: {reason}"
    address: str
    reason: str = "closed by the peer"


@dataclass(eq=False)
class RequestTimeout(RemotingError):
    """No reply within the timeout."""

    text = "no answer from {address} to {request} within {timeout_ms} ms"
    advice = "it may be overloaded or stopped; `skylark doctor` checks it"
    address: str
    request: str
    timeout_ms: int


# --- Broker ---


@dataclass(eq=False)
class BrokerError(RocketMQError):
    """A broker or name server replied with a response code that means failure."""

    code: int
    remark: str = ""

    def __str__(self) -> str:
        return f"response code {self.code}: {self.remark or 'no remark'}"

    @staticmethod
    def for_code(code: int, remark: str = "") -> BrokerError:
        """Return the error for a response code; its class carries the retry policy."""
        return _BROKER_ERRORS.get(code, BrokerError)(code, remark)


class BrokerSystemError(BrokerError):
    """Code 1: unspecified failure in the broker."""

    retriable = True


class SystemBusy(BrokerError):
    """Code 2: the broker is overloaded, or it is a slave, perhaps since a moment ago."""

    retriable = True
    refresh_route = True


class MessageIllegal(BrokerError):
    """Code 13: the message exceeds a limit or is malformed."""


class ServiceNotAvailable(BrokerError):
    """Code 14: the store cannot write (disk full, no longer the master, shutdown)."""

    retriable = True
    refresh_route = True


class NoPermission(BrokerError):
    """Code 16: denied by the permission bits of broker or topic, or by access control."""

    retriable = True


class TopicNotExist(BrokerError):
    """Code 17: no route or no configuration for the topic."""

    retriable = True
    refresh_route = True


class SubscriptionGroupNotExist(BrokerError):
    """Code 26: the consumer group does not exist and automatic creation is disabled."""


class NoBuyerId(BrokerError):
    """Code 204: obsolete, but still in Java's retry set."""

    retriable = True


class NotInCurrentUnit(BrokerError):
    """Code 205: obsolete, but still in Java's retry set."""

    retriable = True


class NotLeaderForQueue(BrokerError):
    """Code 501: the queue of a static topic has moved to another broker."""

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


# --- Store and replication ---


class StoreError(RocketMQError):
    """The message store failed."""


@dataclass(eq=False)
class CorruptRecord(StoreError):
    """An invalid record in the commit log. `expected` and `actual` are set where values were compared."""

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
    """A physical offset outside `min_offset` <= offset < `max_offset`."""

    text = "physical offset {physical_offset} is outside the log, which holds {min_offset} to {max_offset}"
    physical_offset: int
    min_offset: int
    max_offset: int


@dataclass(eq=False)
class MissingFile(StoreError):
    """A file is missing that other files of the store imply."""

    text = "file {path} is missing: {reason}"
    path: AnyPath
    reason: str = "expected by its neighbours"


@dataclass(eq=False)
class BadStoreFile(StoreError):
    """A store file with an invalid size, name, header or content."""

    text = "bad file {path}: {reason}"
    path: AnyPath
    reason: str


@dataclass(eq=False)
class UnsupportedStore(StoreError):
    """The directory holds data of Apache RocketMQ that this version would ignore; it is left as it is."""

    text = "store {path} cannot be served: {reason}"
    path: AnyPath
    reason: str


@dataclass(eq=False)
class DiskFull(StoreError):
    """The disk is full, or above the limit at which the store rejects writes. Reads continue."""

    text = "disk full at {path}: {reason}"
    path: AnyPath
    reason: str


@dataclass(eq=False)
class StoreClosed(StoreError):
    """The store is closed."""

    text = "store {path} is closed"
    path: AnyPath


@dataclass(eq=False)
class StoreFailed(StoreError):
    """A write or fsync failed. The state on disk is unknown, so writes stop until a restart recovers it."""

    text = "store {path} stopped writing: {reason}; restart it to recover"
    path: AnyPath
    reason: str


@dataclass(eq=False)
class StoreLocked(StoreError):
    """Another process has the store open for writing."""

    text = "store {path} is in use by another process"
    path: AnyPath


class ReplicationError(RocketMQError):
    """A broker cannot take its configured role among replicas."""


@dataclass(eq=False)
class CannotFollow(ReplicationError):
    """A slave cannot replicate from its master; the reason states what to do."""

    text = "cannot follow the master: {reason}"
    reason: str


@dataclass(eq=False)
class LogsDiverged(ReplicationError):
    """The logs of slave and master differ at the first record that was compared."""

    text = "the log differs from the master's at {physical_offset}, possibly earlier"
    physical_offset: int


@dataclass(eq=False)
class MasterExists(ReplicationError):
    """Another broker is already the master of this name."""

    text = (
        "broker {name} already has a master, {master}, according to name server {name_server}: "
        "stop that master, follow it (--slave-of {master}), or pass --force-master if it is gone for good"
    )
    name: str
    master: str
    name_server: str


# --- Client ---


class ClientError(RocketMQError):
    """The client failed before or without a reply from a server."""


@dataclass(eq=False)
class NoRoute(ClientError):
    """No name server has a route for the topic."""

    text = "No route info of this topic: {topic} ({reason})"
    refresh_route = True

    topic: str
    reason: str = "no name server has a route; create the topic or enable automatic topic creation"


@dataclass(eq=False)
class NotWritable(NoRoute):
    """The topic exists, but takes no messages: it is read-only, or its brokers are drained."""

    text = "topic {topic} takes no messages: {reason}"
    advice = (
        "`skylark topic route TOPIC` shows permissions; `skylark topic update TOPIC --permission rw` makes a "
        "topic writable, and `skylark broker drain BROKER --undo` a broker"
    )

    reason: str = "none of its queues is writable"

    @property
    def hint(self) -> str:
        return self.advice.replace("TOPIC", self.topic)


@dataclass(eq=False)
class NotANameServer(ClientError):
    """The server at the address of a name server is another one, mostly a broker."""

    text = "{address} is not a name server: it cannot answer {request}"
    advice = (
        "pass the address of a name server, whose port is mostly 9876; brokers listen on 10911. It is from "
        "namesrv=, --namesrv, ClientSettings.name_servers or NAMESRV_ADDR"
    )

    address: str
    request: str


@dataclass(eq=False)
class BrokerUnknown(ClientError):
    """No route contains an address of this broker."""

    text = "The broker[{broker}] not exist: no route contains its master's address"
    retriable = True
    refresh_route = True

    broker: str


@dataclass(eq=False)
class BadName(ClientError, ValueError):
    """An invalid topic or group name. `what` is `topic` or `group`."""

    text = "{what} {name!r}: {reason}"
    what: str
    name: str
    reason: str


@dataclass(eq=False)
class BadMessage(ClientError, ValueError):
    """A message that a broker would reject or misinterpret. `topic` is empty if there is none."""

    topic: str
    reason: str

    def __str__(self) -> str:
        return f"message for topic {self.topic!r}: {self.reason}" if self.topic else self.reason


@dataclass(eq=False)
class MessageTooLarge(ClientError):
    """A body above the client's limit, which applies before compression."""

    text = "message body of {body_bytes} bytes is larger than the limit of {body_bytes_max}"
    body_bytes: int
    body_bytes_max: int


@dataclass(eq=False)
class ClientClosed(ClientError):
    """The client is closed or was never started."""

    text = "{client} is not running: start it first; a stopped client cannot be restarted"
    client: str


@dataclass(eq=False)
class AlreadyStarted(ClientError):
    """A client object can be started only once."""

    text = "The {client} service state not OK, maybe started once, {state}"
    client: str
    state: str


@dataclass(eq=False)
class GroupInUse(ClientError):
    """A second producer, consumer or admin of the same group and client id."""

    text = "The {kind} group[{group}] has been created before, specify another name please."
    kind: str
    group: str


@dataclass(eq=False)
class ForkedClient(ClientError):
    """The client was started in another process: connections and loop do not survive a fork."""

    client: str
    started_in: int
    used_in: int

    def __str__(self) -> str:
        where = f"was started in process {self.started_in} and is used in its fork {self.used_in}"
        return f"{self.client} {where}: create and start clients after the fork, one per process"


@dataclass(eq=False)
class SendFailed(ClientError):
    """All attempts to send failed. `__cause__` is the error of the last attempt.

    `maybe_stored`: at least one attempt may have reached the broker, so sending again may store the message
    twice under the same unique key. `code` and `remark` are from the broker's reply, if there was one.
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
class RowsFailed(ClientError):
    """Some rows of `send_arrow` were not acknowledged. `result` (`SentRows`) says where every row is.

    `ranges` are the first and the last row of each request that failed; with a sharding key, a request holds
    only some of the rows in between. A failed row may be stored if the error of its range says so.
    """

    topic: str
    count: int
    total: int
    ranges: tuple[tuple[int, int], ...]
    reason: str
    result: Any = None

    def __str__(self) -> str:
        shown = ", ".join(f"{first}-{last}" for first, last in self.ranges[:RANGES_SHOWN])
        more = (
            f" and {len(self.ranges) - RANGES_SHOWN} more ranges" if len(self.ranges) > RANGES_SHOWN else ""
        )
        return (
            f"{self.count} of {self.total} rows were not acknowledged by topic {self.topic}: "
            f"rows {shown}{more}; the first error: {self.reason}"
        )


@dataclass(eq=False)
class SendUnknown(ClientError):
    """A send ended before its reply arrived: the message may or may not be stored."""

    text = "send to topic {topic}: {reason}; whether the message is stored is unknown"
    topic: str
    reason: str


@dataclass(eq=False)
class NoReply(ClientError):
    """A request was sent but no reply arrived in time. Its receiver may still be processing it."""

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
    """An operation succeeded on some servers and failed on others. `failures` is by address."""

    operation: str
    done: tuple[str, ...]
    failures: dict[str, RocketMQError]

    def __str__(self) -> str:
        failed = ", ".join(f"{address} ({error})" for address, error in self.failures.items())
        return f"{self.operation} failed at {failed}; done by {', '.join(self.done) or 'none'}"
