"""The seam to the gRPC library: a call as its handler sees it, and the three shapes of handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from skylark.protocol.codes import LanguageCode
from skylark.remoting.address import join_address

CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"
CLIENT_VERSION = "x-mq-client-version"
DATE_TIME = "x-mq-date-time"
AUTHORIZATION = "authorization"


class Call(msgspec.Struct, frozen=True):
    """One call: its metadata, the client's address and the deadline in monotonic seconds."""

    method: str
    metadata: Mapping[str, str]
    host: str
    port: int
    deadline: float | None = None

    @property
    def client_id(self) -> str:
        return self.metadata.get(CLIENT_ID, "").strip()

    @property
    def language(self) -> str:
        """A name that remoting knows."""
        given = self.metadata.get(LANGUAGE, "").upper()
        return given if given in LanguageCode.__members__ else LanguageCode.OTHER.name

    @property
    def version(self) -> str:
        return self.metadata.get(CLIENT_VERSION, "")

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    def remaining_s(self, now: float) -> float | None:
        """Return the time to the deadline, None without one."""
        return None if self.deadline is None else max(self.deadline - now, 0.0)


Send = Callable[[Any], Awaitable[None]]
"""Takes a message, or a list of encoded ones."""
UnaryHandler = Callable[[Call, Any], Awaitable[Any]]
"""Returns a coroutine, or a future whose reply is on its way already."""
StreamHandler = Callable[[Call, Any, Send], Awaitable[None]]
DuplexHandler = Callable[[Call, AsyncIterator[Any], Send], Awaitable[None]]


class CallShape(Enum):
    """How many messages a client and the server send in a call."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    DUPLEX = "duplex"


@dataclass(slots=True, frozen=True)
class Method:
    """A method of the service. The handler has the type of its shape; a unary one may return the reply."""

    shape: CallShape
    request: Any
    reply: Any
    handler: Callable[..., Any]


class ClientGone(Exception):
    """Raised by `Send`: the client has left its call, so that nothing can be sent any more."""


class StreamFailed(Exception):
    """Ends a stream with an error of gRPC. `is_argument` if the client's messages are at fault."""

    def __init__(self, message: str, *, is_argument: bool) -> None:
        super().__init__(message)
        self.message = message
        self.is_argument = is_argument


async def together(parts: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run the parts of a call at the same time; a single one, as most are, without a task of its own."""
    return [await parts[0]] if len(parts) == 1 else await asyncio.gather(*parts)
