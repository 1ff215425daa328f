"""Request: base class of all requests, with `to_command()` to send and `parse(reply)` to read the reply.

Headers are structs: snake_case here, camelCase on the wire, every ext field as text.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, get_args

import msgspec
from msgspec import Struct

from skylark.errors import BrokerError, RemoteProtocolError
from skylark.protocol.bodies import decode_body, encode_body
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import (
    BODY_MEMBER,
    CLIENT_LANGUAGE,
    ONEWAY_FLAG,
    VERSION,
    Buffer,
    RemotingCommand,
    encode,
)

T = TypeVar("T")


class Header(Struct, frozen=True, rename="camel"):
    """Typed ext fields of a request or response. None stands for an absent field."""

    def to_fields(self) -> dict[str, str]:
        fields = {}
        for attribute, name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, attribute)
            if value is None or name == BODY_MEMBER:
                continue
            if isinstance(value, bool):
                fields[name] = "true" if value else "false"
            else:
                fields[name] = str(value)
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Decode ext fields, ignoring unknown ones. Raises RemoteProtocolError for an invalid one."""
        try:
            return msgspec.convert(fields, cls, strict=False)
        except msgspec.ValidationError:
            pass
        try:
            return msgspec.convert(_as_java_reads(fields, cls), cls, strict=False)
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"fields of {cls.__name__}: {error}") from None


def _as_java_reads(fields: Mapping[str, Any], cls: type[Header]) -> dict[str, Any]:
    """Convert as Java does: any text is a boolean, an empty text is an absent number."""
    fields = dict(fields)
    for name, types in _member_types(cls).items():
        value = fields.get(name)
        if not isinstance(value, str):
            continue
        if bool in types:
            fields[name] = value.lower() in ("true", "1")  # C++ sends "1"
        elif value == "" and str not in types:
            del fields[name]
    return fields


@cache
def _member_types(cls: type[Header]) -> dict[str, tuple[Any, ...]]:
    return {
        member.encode_name: (member.type, *get_args(member.type)) for member in msgspec.structs.fields(cls)
    }


@cache
def _body_type(cls: type[Header]) -> Any:
    """Return the type of a request's `body`: a struct, Any for bytes as they are, None if it has none."""
    for member in msgspec.structs.fields(cls):
        if member.encode_name == BODY_MEMBER:
            return member.type
    return None


class Request(Header, Generic[T], frozen=True):
    """A request; T is the type of its parsed reply.

    A member named `body` is the frame's body: bytes, or a struct encoded as JSON. All other members are ext
    fields.
    """

    code: ClassVar[RequestCode]
    # Content of a good reply: a Header for its ext fields, the type of its body, or None.
    answer: ClassVar[Any] = None
    good_codes: ClassVar[frozenset[int]] = frozenset({ResponseCode.SUCCESS})

    def to_command(self, *, oneway: bool = False) -> RemotingCommand:
        """Return the command; the connection assigns its opaque."""
        body = getattr(self, "body", b"")
        return RemotingCommand(
            code=self.code,
            flag=ONEWAY_FLAG if oneway else 0,
            version=VERSION,
            language=CLIENT_LANGUAGE,
            fields=self.to_fields(),
            body=b"" if body is None else body if isinstance(body, Buffer) else encode_body(body),
        )

    def frame(self, opaque: int) -> list[Buffer]:
        """Return the encoded frame in parts."""
        command = self.to_command()
        command.opaque = opaque
        return encode(command)

    @classmethod
    def from_command(cls, command: RemotingCommand) -> Self:
        """Decode a received request. Raises RemoteProtocolError."""
        body_type = _body_type(cls)
        if body_type is None:
            return cls.from_fields(command.fields)
        if body_type is Any:
            return cls.from_fields({**command.fields, BODY_MEMBER: command.body})
        if not command.body and type(None) in get_args(body_type):
            return cls.from_fields(command.fields)
        return cls.from_fields({**command.fields, BODY_MEMBER: decode_body(command.body, body_type)})

    def parse(self, reply: RemotingCommand) -> T:
        """Parse a good reply. Raises RemoteProtocolError if it is invalid."""
        if self.answer is None:
            return cast("T", None)
        if isinstance(self.answer, type) and issubclass(self.answer, Header):
            return cast("T", self.answer.from_fields(reply.fields))
        if not reply.body and type(None) in get_args(self.answer):
            return cast("T", None)
        return cast("T", decode_body(reply.body, self.answer))

    def result(self, reply: RemotingCommand) -> T:
        """Parse a reply. Raises BrokerError for a code that is not in `good_codes`."""
        if reply.code not in self.good_codes:
            raise BrokerError.for_code(reply.code, reply.remark or "")
        return self.parse(reply)
