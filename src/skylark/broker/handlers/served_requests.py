"""Marks methods as request handlers, and builds the routes of the objects that have them.

A handler returns its result: None for plain success, a `Header` for fields, bytes or a body struct for the
body, a `HandlerReply` for anything else. It may be a coroutine. A BrokerError becomes the reply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, NamedTuple, TypeVar

from skylark.broker.replication.role import Role, SlaveRefusal
from skylark.protocol.bodies import Body, encode_body
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import Buffer, RemotingCommand
from skylark.protocol.request import Header, Request
from skylark.remoting.link import Answer, Handler
from skylark.remoting.server import Peer


class HandlerReply(NamedTuple):
    """A reply with more than one part, or with another code than success."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    fields: Header | Mapping[str, str] | None = None
    body: Body | Buffer = b""


Result = HandlerReply | Header | Body | Buffer | None
Served = Result | Coroutine[Any, Any, Result]

Q = TypeVar("Q", bound=Request[Any])
M = TypeVar("M", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Route:
    """`adapt` turns the bound method into a handler of commands."""

    adapt: Callable[[Any], Handler]
    on_slave: SlaveRefusal | None
    needs_copy: bool


_ROUTES: dict[Any, dict[RequestCode, _Route]] = {}
"""The routes of each function that is marked."""


def serves(
    request_type: type[Q], *, on_slave: SlaveRefusal | None = None, needs_copy: bool = False
) -> Callable[[Callable[[Any, Q], Served]], Callable[[Any, Q], Served]]:
    """Mark a method that takes the typed request.

    `on_slave` makes the error with which a slave refuses it; `needs_copy`: see `Role.check_copy`.
    """

    def adapt(method: Callable[[Q], Served]) -> Handler:
        return lambda _, command: _finish(command, method(request_type.from_command(command)))

    return _marking(request_type.code, _Route(adapt, on_slave, needs_copy))


def serves_code(
    code: RequestCode, *, needs_copy: bool = False, on_slave: SlaveRefusal | None = None
) -> Callable[[Callable[[Any], Served]], Callable[[Any], Served]]:
    """Mark a method that needs nothing of the request."""

    def adapt(method: Callable[[], Served]) -> Handler:
        return lambda _, command: _finish(command, method())

    return _marking(code, _Route(adapt, on_slave, needs_copy))


def serves_command(
    code: RequestCode, *, on_slave: SlaveRefusal | None = None, needs_copy: bool = False
) -> Callable[[M], M]:
    """Mark a method that takes the peer and the command, and returns the reply's command itself."""
    return _marking(code, _Route(lambda method: method, on_slave, needs_copy))


def _marking(code: RequestCode, route: _Route) -> Callable[[M], M]:
    def mark(function: M) -> M:
        _ROUTES.setdefault(function, {})[code] = route
        return function

    return mark


def codes_of(*handlers: type) -> list[RequestCode]:
    """Return the request codes that classes serve."""
    return [code for each in handlers for member in vars(each).values() for code in _routes_of(member)]


def routes_of(handlers: object, role: Role) -> dict[int, Handler]:
    """Build the routes of an object whose methods are marked."""
    routes: dict[int, Handler] = {}
    for name, member in vars(type(handlers)).items():
        for code, route in _routes_of(member).items():
            handler = route.adapt(getattr(handlers, name))
            routes[code] = _guarded(handler, route, role)
    return routes


def _routes_of(member: Any) -> dict[RequestCode, _Route]:
    return _ROUTES.get(member, {}) if callable(member) else {}


def _guarded(handler: Handler, route: _Route, role: Role) -> Handler:
    on_slave = route.on_slave
    if on_slave is not None:

        def on_master(peer: Peer, command: RemotingCommand) -> Answer | Awaitable[Answer]:
            role.check_master(on_slave)
            return handler(peer, command)

        return on_master
    if route.needs_copy:

        def on_copy(peer: Peer, command: RemotingCommand) -> Answer | Awaitable[Answer]:
            role.check_copy()
            return handler(peer, command)

        return on_copy
    return handler


def _finish(command: RemotingCommand, served: Served) -> Answer | Awaitable[Answer]:
    if isinstance(served, CoroutineType):
        return _finish_later(command, served)
    return _reply(command, served)  # type: ignore[arg-type]


async def _finish_later(command: RemotingCommand, served: Coroutine[Any, Any, Result]) -> Answer:
    return _reply(command, await served)


def _reply(command: RemotingCommand, result: Result) -> RemotingCommand:
    if result is None:
        return command.reply()
    if isinstance(result, HandlerReply):
        code, remark, fields, body = result
        if isinstance(fields, Header):
            fields = fields.to_fields()
        return command.reply(code, remark, fields=fields, body=_encoded(body))
    if isinstance(result, Header):
        return command.reply(fields=result.to_fields())
    return command.reply(body=_encoded(result))


def _encoded(body: Body | Buffer) -> Buffer:
    return encode_body(body) if isinstance(body, Body) else body
