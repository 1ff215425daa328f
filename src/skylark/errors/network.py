"""Broken rules of the protocol, and a network that fails."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.errors.root import RocketMQError


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
