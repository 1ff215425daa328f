"""Users and ACLs (3001 to 3010), and the rights to stored messages that requests name by their position."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from skylark.auth.administration import UserAdministration
from skylark.auth.gate import Gate
from skylark.auth.rights import RECORD_RIGHTS
from skylark.broker.handlers.message_queries import record_at
from skylark.broker.handlers.served_requests import serves_command
from skylark.broker.record_loader import ReadCold
from skylark.broker.replication.role import Role
from skylark.model import names
from skylark.model.message import PROPERTY_REAL_TOPIC
from skylark.model.message_id import parse_offset_message_id
from skylark.model.record import decode
from skylark.protocol.bodies import encode_body
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.request import Request
from skylark.protocol.requests import REQUESTS
from skylark.remoting.link import Answer, Handler
from skylark.remoting.server import BatchRoute, Peer, Routes
from skylark.store.message_store import MessageStore

OFFSET_FIELDS = {
    RequestCode.VIEW_MESSAGE_BY_ID: "offset",
    RequestCode.CONSUMER_SEND_MSG_BACK: "offset",
    RequestCode.END_TRANSACTION: "commitLogOffset",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "msgId",
    RequestCode.RESUME_CHECK_HALF_MESSAGE: "msgId",
}
"""Where requests have the physical offset of a message, or an id with it."""
assert OFFSET_FIELDS.keys() == RECORD_RIGHTS.keys()

ID_CHARS_MIN = 32
ForwardChange = Callable[[Request[Any], str], Awaitable[None]]


@dataclass(frozen=True, slots=True, eq=False)
class AuthHandlers:
    administration: UserAdministration
    save: Callable[[], Awaitable[None]]
    """Returns when users and ACLs are on disk."""
    role: Role
    forward: ForwardChange | None
    """On a slave: makes the change on the master. None on a broker that is never a slave."""

    @serves_command(RequestCode.AUTH_CREATE_USER)
    @serves_command(RequestCode.AUTH_UPDATE_USER)
    @serves_command(RequestCode.AUTH_DELETE_USER)
    @serves_command(RequestCode.AUTH_CREATE_ACL)
    @serves_command(RequestCode.AUTH_UPDATE_ACL)
    @serves_command(RequestCode.AUTH_DELETE_ACL)
    async def change(self, _: Peer, command: RemotingCommand) -> RemotingCommand:
        request = REQUESTS[RequestCode(command.code)].from_command(command)
        operator = self.administration.operator(command.fields)
        if self.forward is not None and self.role.is_slave:
            self.administration.check_served()
            await self.forward(request, operator)
        else:
            self.administration.change(request, operator)
        await self.save()
        return command.reply()

    @serves_command(RequestCode.AUTH_GET_USER)
    @serves_command(RequestCode.AUTH_LIST_USER)
    @serves_command(RequestCode.AUTH_GET_ACL)
    @serves_command(RequestCode.AUTH_LIST_ACL)
    def read(self, _: Peer, command: RemotingCommand) -> RemotingCommand:
        request = REQUESTS[RequestCode(command.code)].from_command(command)
        found = self.administration.read(request, self.administration.operator(command.fields))
        return command.reply(body=encode_body(found) if found else b"")


def with_record_rights(routes: Routes, gate: Gate, store: MessageStore, read_cold: ReadCold) -> Routes:
    """Return routes that also check the rights to the topic of a message that a request names by position."""

    def checked(handler: Handler, field: str) -> Handler:
        async def handle(peer: Peer, command: RemotingCommand) -> Answer:
            offset, topic = _offset(command.fields.get(field, "")), None
            if offset is not None:
                topic = await read_cold(lambda: topic_at(store, offset))
            if topic is not None:  # otherwise the handler reports that there is no message
                gate.check_record(command, topic, peer.address, peer.host)
            answer = handler(peer, command)
            return answer if answer is None or isinstance(answer, RemotingCommand) else await answer

        return handle

    gated = dict(routes)
    for code, field in OFFSET_FIELDS.items():
        handler = routes[code]
        assert not isinstance(handler, BatchRoute)
        gated[code] = checked(handler, field)
    return gated


def _offset(text: str) -> int | None:
    """Return the physical offset in a field; None if the handler will refuse the field."""
    try:
        return parse_offset_message_id(text)[1] if len(text) >= ID_CHARS_MIN else int(text)
    except ValueError:
        return None


def topic_at(store: MessageStore, physical_offset: int) -> str | None:
    """Return the topic that the message at a physical offset is for; None without a message. May block."""
    record = record_at(store, physical_offset)
    if record is None:
        return None
    message = decode(record)
    if message.topic not in names.UNSENDABLE_TOPICS:
        return message.topic
    return message.properties.get(PROPERTY_REAL_TOPIC, message.topic)  # delayed, timed or half
