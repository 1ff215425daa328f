"""Connection: turns received bytes into commands and matches replies to pending requests. Sans-IO.

All frames of one read are decoded together and in place. Only a partial frame at the end is copied.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from skylark.errors import FrameTooLarge, LocalProtocolError, MalformedFrame, RemoteProtocolError
from skylark.protocol.command import (
    DECODE_ERRORS,
    LENGTH,
    LENGTH_BYTES,
    PREFIX,
    PREFIX_BYTES,
    RESPONSE_FLAG,
    Encoding,
    RemotingCommand,
    TypedCommand,
    decode_header,
)
from skylark.protocol.request import Request
from skylark.protocol.requests.offset import UpdateConsumerOffset
from skylark.protocol.requests.pull import LitePullMessage, PullMessage
from skylark.protocol.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from skylark.protocol.signature import SignedSend

W = TypeVar("W")
Command = RemotingCommand | TypedCommand[Any]

_OPAQUE_MAX = (1 << 31) - 1
_ENCODINGS = frozenset(Encoding)

HOT_REQUESTS: tuple[type[Request[Any]], ...] = (
    SendMessage,
    SendMessageV2,
    SendBatchMessage,
    PullMessage,
    LitePullMessage,
    UpdateConsumerOffset,
)


class _HotDecoder(NamedTuple):
    code: int
    decode: Callable[[memoryview], TypedCommand[Any]]


_HOT_BY_CODE = {request.code.value: request for request in HOT_REQUESTS}
HEADER_START_BYTES = 12
"""Java, and clients with its member order, start a header with the code: these bytes tell requests apart."""


def header_start(code: int) -> bytes:
    """Return the beginning of a header with its members in the order of Java."""
    return (b'{"code":%d,"extFields' % code)[:HEADER_START_BYTES]


def _hot_decoders(types: Mapping[int, type[Request[Any]]]) -> dict[bytes, _HotDecoder]:
    return {
        header_start(code): _HotDecoder(
            code,
            msgspec.json.Decoder(TypedCommand[request], strict=False).decode,  # type: ignore[valid-type]
        )
        for code, request in types.items()
    }


_HOT_DECODERS = _hot_decoders(_HOT_BY_CODE)
_SIGNED_DECODERS = _hot_decoders(
    {SendMessageV2.code.value: SignedSend, SendBatchMessage.code.value: SignedSend}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on what a peer may send, checked before the bytes are buffered.

    A header may hold a property text of 32,767 bytes in which every byte is escaped as six.
    """

    frame_bytes_max: int = 16 << 20  # including the length field
    header_bytes_max: int = 256 << 10
    fields_max: int = 256
    pending_requests_max: int = 65_535


DEFAULT_LIMITS = Limits()


def typed_command(command: RemotingCommand) -> Command:
    """Return a request of a hot code in its typed form; others, and invalid ones, as they are."""
    request_type = _HOT_BY_CODE.get(command.code)
    if request_type is None:
        return command
    try:
        request = request_type.from_fields(command.fields)
    except RemoteProtocolError:
        return command
    return TypedCommand(
        code=command.code,
        opaque=command.opaque,
        flag=command.flag,
        version=command.version,
        language=command.language,
        remark=command.remark,
        body=command.body,
        request=request,
    )


class Connection(Generic[W]):
    """One side of a connection. W is the driver's waiter for a reply: a future, an event.

    With `typed`, requests of hot codes are decoded as TypedCommand; those with invalid fields as
    RemotingCommand, so that they can be rejected. With `admits` only signed sends that it accepts are typed.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS, *, typed: bool = False) -> None:
        self.limits = limits
        self.failure: RemoteProtocolError | None = None
        self._typed = typed
        self.admits: Callable[[list[TypedCommand[SignedSend]]], list[bool]] | None = None
        """Set by a server with a gate: returns which signed sends are allowed without further checks."""
        self.has_undecided = False
        """Whether the last `receive` returned requests that `admits` has not accepted, or replies."""
        self.take_frames: Callable[[bytes | bytearray], int] | None = None
        """Set by a server: handles the first frames that were received, undecoded, and returns their end."""
        self._partial = bytearray()
        self._partial_bytes_needed = 0
        self._pending: dict[int, W] = {}
        self._next_opaque = 0

    # --- Receiving ---

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the partial frame that are buffered."""
        return len(self._partial)

    def receive(self, data: bytes) -> list[Command]:
        """Consume received bytes and return the completed commands. Bodies are views into the buffer.

        On a protocol violation `failure` is set, the commands before it are returned, the rest is dropped,
        and the connection must be closed.
        """
        if self.failure is not None:
            return []
        buffer: bytes | bytearray = data
        if self._partial:
            self._partial += data
            if len(self._partial) < self._partial_bytes_needed:
                return []
            buffer = self._partial
            self._partial = bytearray()
        commands: list[Command] = []
        taken = 0 if self.take_frames is None else self.take_frames(buffer)
        try:
            position = self._decode_frames(buffer, commands, self._hot_decoders, taken)
        except RemoteProtocolError as error:
            self.failure = error
            position = len(buffer)
        if self.admits is not None:
            self._check_sends(buffer, taken, commands, self.admits)
        if position < len(buffer) and self.failure is None:
            self._partial = bytearray(memoryview(buffer)[position:])
        return commands

    def receive_in_place(self, data: memoryview) -> tuple[list[Command], int]:
        """As `receive`, for callers that own the buffer: also return the number of bytes consumed.

        Pass the remaining bytes again, followed by more; `frame_bytes_needed` is their final length.
        """
        commands: list[Command] = []
        try:
            return commands, self._decode_frames(data, commands, self._hot_decoders)
        except RemoteProtocolError as error:
            self.failure = error
            return commands, len(data)

    @property
    def frame_bytes_needed(self) -> int:
        """Length of the partial frame, or of its prefix while the length is unknown."""
        return self._partial_bytes_needed or PREFIX_BYTES

    @property
    def _hot_decoders(self) -> Mapping[bytes, _HotDecoder]:
        return _SIGNED_DECODERS if self.admits is not None else _HOT_DECODERS if self._typed else {}

    def _decode_frames(
        self,
        buffer: bytes | bytearray | memoryview,
        commands: list[Command],
        hot_decoders: Mapping[bytes, _HotDecoder],
        start: int = 0,
    ) -> int:
        """Decode all complete frames; return the start of the partial one. Raises RemoteProtocolError."""
        view = memoryview(buffer)
        end = len(buffer)
        self.has_undecided = False
        header_bytes_max = self.limits.header_bytes_max
        rest_bytes_max = self.limits.frame_bytes_max - PREFIX_BYTES
        while end - start >= PREFIX_BYTES:
            frame_bytes, word = PREFIX.unpack_from(buffer, start)
            header_bytes = word & 0xFFFFFF
            if (
                header_bytes > header_bytes_max
                or not header_bytes <= frame_bytes - LENGTH_BYTES <= rest_bytes_max
            ):
                raise self._broken(frame_bytes, header_bytes)
            header_start = start + PREFIX_BYTES
            header_end = header_start + header_bytes
            frame_end = start + LENGTH_BYTES + frame_bytes
            if frame_end > end:
                if word >> 24 not in _ENCODINGS:
                    raise MalformedFrame(f"unknown header encoding {word >> 24}")
                self._partial_bytes_needed = frame_end - start
                return start
            header = view[header_start:header_end]
            command: Command | None = None
            hot = hot_decoders and hot_decoders.get(
                bytes(buffer[header_start : header_start + HEADER_START_BYTES])
            )
            if hot and word == header_bytes:  # the encoding is JSON
                try:
                    command = hot.decode(header)
                except DECODE_ERRORS:
                    command = None  # another client's dialect, or invalid
            # A duplicate code member, or a response with the code of a hot request.
            if command is None or (hot and (command.code != hot.code or command.flag & RESPONSE_FLAG)):
                command = self._decode_any(word >> 24, header)
            if header_end < frame_end:
                command.body = view[header_end:frame_end]
            commands.append(command)
            start = frame_end
        if end - start >= LENGTH_BYTES:
            (frame_bytes,) = LENGTH.unpack_from(buffer, start)
            if not 0 <= frame_bytes - LENGTH_BYTES <= rest_bytes_max:
                raise self._broken(frame_bytes, 0)
        self._partial_bytes_needed = 0
        return start

    def _check_sends(
        self,
        buffer: bytes | bytearray,
        start: int,
        commands: list[Command],
        admits: Callable[[list[TypedCommand[Any]]], list[bool]],
    ) -> None:
        """Replace signed sends that are not admitted by their general form, which has all ext fields."""
        sends = cast("list[TypedCommand[Any]]", commands)
        if self.has_undecided:
            sends = [command for command in commands if isinstance(command, TypedCommand)]
        verdicts = admits(sends) if sends else []
        if all(verdicts):
            return
        # Rare enough to decode the whole read again.
        general: list[Command] = []
        try:
            self._decode_frames(buffer, general, {}, start)
        except RemoteProtocolError as error:
            self.failure = error
        refused = {id(send) for send, is_admitted in zip(sends, verdicts, strict=True) if not is_admitted}
        commands[:] = [
            other if id(command) in refused else command
            for command, other in zip(commands, general, strict=False)
        ]

    def _broken(self, frame_bytes: int, header_bytes: int) -> RemoteProtocolError:
        if frame_bytes + LENGTH_BYTES > self.limits.frame_bytes_max:
            return FrameTooLarge(frame_bytes + LENGTH_BYTES, self.limits.frame_bytes_max)
        if frame_bytes >= LENGTH_BYTES and header_bytes > self.limits.header_bytes_max:
            return FrameTooLarge(header_bytes, self.limits.header_bytes_max)
        return MalformedFrame(f"frame of {frame_bytes} bytes with a header of {header_bytes}")

    def _decode_any(self, encoding: int, header: memoryview) -> Command:
        self.has_undecided = True
        command = decode_header(encoding, header)
        if len(command.fields) > self.limits.fields_max:
            raise MalformedFrame(f"{len(command.fields)} ext fields, more than {self.limits.fields_max}")
        return typed_command(command) if self._typed and not command.is_response else command

    # --- Pending requests ---

    @property
    def pending_requests(self) -> int:
        return len(self._pending)

    def reserve_opaque(self, waiter: W) -> int:
        """Return the opaque for a request to be sent, and register its waiter.

        Raises LocalProtocolError if too many are pending.
        """
        if len(self._pending) >= self.limits.pending_requests_max:
            raise LocalProtocolError(f"too many pending requests on this connection: {len(self._pending)}")
        opaque = self._next_opaque
        while opaque in self._pending:
            self._advance_opaque()
            opaque = self._next_opaque
        self._pending[opaque] = waiter
        self._next_opaque = opaque + 1 if opaque < _OPAQUE_MAX else 0
        return opaque

    def take_waiter(self, opaque: int) -> W | None:
        """Pop the waiter of this reply; None if there is none."""
        return self._pending.pop(opaque, None)

    def waiters(self) -> list[W]:
        return list(self._pending.values())

    def take_all_waiters(self) -> list[W]:
        """Pop all waiters, when the connection is lost."""
        waiters = list(self._pending.values())
        self._pending.clear()
        return waiters

    def _advance_opaque(self) -> None:
        self._next_opaque = self._next_opaque + 1 if self._next_opaque < _OPAQUE_MAX else 0
