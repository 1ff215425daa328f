"""RemotingCommand: one frame of the protocol, and its two header encodings.

    offset  bytes  field
    0       4      frame length, itself not counted: 4 + header + body
    4       1      header encoding: 0 JSON, 1 ROCKETMQ (binary)
    5       3      header length
    8       …      header, then body

Headers are decoded in place from the receive buffer; bodies are views into it.
"""

import re
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from skylark.errors import LocalProtocolError, MalformedFrame
from skylark.protocol.codes import LanguageCode, ResponseCode

Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Buffer = bytes | memoryview
R = TypeVar("R")

VERSION = 479  # the ordinal of RocketMQ 5.3.3
# Servers claim to be Java: the only language that every client accepts in a reply.
SERVER_LANGUAGE = LanguageCode.JAVA.name
CLIENT_LANGUAGE = LanguageCode.PYTHON.name

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2

LENGTH = struct.Struct(">i")  # frame_bytes
LENGTH_BYTES = LENGTH.size
PREFIX = struct.Struct(">iI")  # frame_bytes, encoding << 24 | header_bytes
PREFIX_BYTES = PREFIX.size

if TYPE_CHECKING:
    RawBody = Buffer
else:
    RawBody = Any  # never decoded from a header: msgspec does not accept this union
BODY_MEMBER = "*body"  # a name that no header field has


class Encoding(IntEnum):
    """Encoding of a header."""

    JSON = 0
    ROCKETMQ = 1


class _Command(Struct, gc=False):
    """Common fields of both kinds of command. `language` is a name of LanguageCode or an unknown one."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = 0
    language: str = LanguageCode.OTHER.name
    remark: str | None = None
    body: RawBody = field(default=b"", name=BODY_MEMBER)

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & ONEWAY_FLAG != 0

    def reply(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        body: Buffer = b"",
    ) -> "RemotingCommand":
        """Return a server's reply to this request."""
        return RemotingCommand(
            code=code,
            opaque=self.opaque,
            flag=RESPONSE_FLAG,
            version=VERSION,
            language=SERVER_LANGUAGE,
            remark=remark,
            body=body,
            fields=dict(fields) if fields else {},
        )


class RemotingCommand(_Command, gc=False):
    """A request or response with its ext fields as text. Null ext fields are absent."""

    fields: dict[str, str] = field(default_factory=dict, name="extFields")


class TypedCommand(_Command, Generic[R], gc=False, kw_only=True):
    """A request whose ext fields were decoded directly into the request type: hot codes on servers."""

    request: R = field(name="extFields")


# --- Decoding ---

# All that the decoders raise for an invalid header.
DECODE_ERRORS = (msgspec.DecodeError, ValueError, RecursionError)

_decode_json = msgspec.json.Decoder(RemotingCommand).decode
_FIXED = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, remark_bytes
_KEY_BYTES = struct.Struct(">h")
_VALUE_BYTES = struct.Struct(">i")
_LANGUAGE_NAMES = {code.value: code.name for code in LanguageCode}
# Raw control characters, which .NET leaves in strings; white space between members is legal.
_RAW_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def decode_header(encoding: int, header: memoryview) -> RemotingCommand:
    """Decode a header of either encoding; the caller sets the body. Raises MalformedFrame."""
    try:
        if encoding == Encoding.JSON:
            try:
                return _decode_json(header)
            except DECODE_ERRORS:
                return _decode_foreign_json(header)
        if encoding == Encoding.ROCKETMQ:
            return _decode_binary(header)
    except (*DECODE_ERRORS, struct.error) as error:
        raise MalformedFrame(f"header: {error}") from None
    raise MalformedFrame(f"unknown header encoding {encoding}")


def _decode_foreign_json(header: memoryview) -> RemotingCommand:
    """Decode what fastjson tolerates from other clients: ext fields that are numbers, booleans or null, null
    members, unknown languages, raw control characters in strings."""
    text = _RAW_CONTROL.sub(lambda match: b"\\u%04x" % match[0][0], bytes(header))
    members = msgspec.json.decode(text, type=dict[str, Any])
    known = {name: value for name, value in members.items() if value is not None}
    fields = msgspec.convert(known.get("extFields", {}), dict[str, Any])
    known["extFields"] = {name: _field_text(value) for name, value in fields.items() if value is not None}
    if not isinstance(known.get("language"), str):
        known.pop("language", None)
    return msgspec.convert(known, RemotingCommand, strict=False)


def _field_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise ValueError(f"ext field is a {type(value).__name__}")


def _decode_binary(header: memoryview) -> RemotingCommand:
    code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(header)
    position = _FIXED.size
    remark, position = _text(header, position, remark_bytes)
    (fields_bytes,) = _VALUE_BYTES.unpack_from(header, position)
    position += _VALUE_BYTES.size
    end = position + fields_bytes
    if not position <= end <= len(header):
        raise ValueError(f"{fields_bytes} bytes of ext fields in a header of {len(header)}")
    fields: dict[str, str] = {}
    block = header[:end]
    while position < end:
        (key_bytes,) = _KEY_BYTES.unpack_from(block, position)
        key, position = _text(block, position + _KEY_BYTES.size, key_bytes)
        (value_bytes,) = _VALUE_BYTES.unpack_from(block, position)
        value, position = _text(block, position + _VALUE_BYTES.size, value_bytes)
        if value:  # an empty value is Java's null
            fields[key] = value
    return RemotingCommand(
        code=code,
        opaque=opaque,
        flag=flag,
        version=version,
        language=_LANGUAGE_NAMES.get(language, LanguageCode.OTHER.name),
        remark=remark or None,
        fields=fields,
    )


def _text(header: memoryview, start: int, text_bytes: int) -> tuple[str, int]:
    end = start + text_bytes
    if not start <= end <= len(header):
        raise ValueError(f"text of {text_bytes} bytes at {start} in a block of {len(header)}")
    return str(header[start:end], "utf-8"), end


# --- Encoding ---


class _JsonHeader(Struct, omit_defaults=True, kw_only=True):
    """A header as Java writes it: members in this order, unset ones omitted."""

    code: int
    fields: dict[str, str] | None = field(default=None, name="extFields")
    flag: int
    language: str
    opaque: int
    remark: str | None = None
    encoding: str = field(name="serializeTypeCurrentRPC")
    version: int


_encode_json = msgspec.json.Encoder().encode


def encode(command: RemotingCommand, encoding: Encoding = Encoding.JSON) -> list[Buffer]:
    """Return the frame in parts, without copying the body. Raises LocalProtocolError."""
    header = _json_header(command) if encoding is Encoding.JSON else _binary_header(command)
    head = prefix(len(header), len(command.body), encoding) + header
    return [head, command.body] if command.body else [head]


def prefix(header_bytes: int, body_bytes: int, encoding: int = Encoding.JSON) -> bytes:
    """Return the eight bytes before a header."""
    if header_bytes > 0xFFFFFF:
        raise LocalProtocolError(f"header of {header_bytes} bytes is larger than the limit of {0xFFFFFF}")
    frame_bytes = LENGTH_BYTES + header_bytes + body_bytes
    return PREFIX.pack(frame_bytes, encoding << 24 | header_bytes)


def _json_header(command: RemotingCommand) -> bytes:
    header = _JsonHeader(
        code=command.code,
        fields=command.fields or None,
        flag=command.flag,
        language=command.language,
        opaque=command.opaque,
        remark=command.remark,
        encoding=Encoding.JSON.name,
        version=command.version,
    )
    try:
        return _encode_json(header)
    except (ValueError, TypeError) as error:
        raise LocalProtocolError(f"cannot encode header as JSON: {error}") from error


def _binary_header(command: RemotingCommand) -> bytes:
    try:
        remark = (command.remark or "").encode()
        block = bytearray()
        for name, value in command.fields.items():
            key, data = name.encode(), value.encode()
            block += _KEY_BYTES.pack(len(key)) + key + _VALUE_BYTES.pack(len(data)) + data
        language = LanguageCode.__members__.get(command.language, LanguageCode.OTHER)
        fixed = _FIXED.pack(
            command.code, language, command.version, command.opaque, command.flag, len(remark)
        )
    except (struct.error, ValueError) as error:
        # Codes above 32767 (the pop family) fit JSON headers only.
        raise LocalProtocolError(f"cannot encode header as ROCKETMQ: {error}") from error
    return b"".join((fixed, remark, _VALUE_BYTES.pack(len(block)), block))
