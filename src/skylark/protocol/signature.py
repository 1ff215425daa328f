"""Signatures of requests: HMAC-SHA1 over the ext fields, sorted by name, and the body.

The code of a request, its opaque and its flags are not covered, and nothing protects against replay: a
signature shows who made a request, not that it is new. Only TLS protects requests.
"""

from __future__ import annotations

import _hashlib
import ctypes
import hashlib
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hmac import compare_digest
from operator import itemgetter

from msgspec import field

from skylark.errors import SettingsError
from skylark.protocol.command import (
    PREFIX_BYTES,
    Buffer,
    RemotingCommand,
    TypedCommand,
    decode_header,
    encode,
)
from skylark.protocol.requests.send import SendMessageV2
from skylark.settings.credentials import Credentials

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 (the name of a field)
SIGNATURE = "Signature"
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
SIGNED_QUERY_VERSION = 399
"""Clients up to this version (4.9.3) add `_UNIQUE_KEY_QUERY` after they signed."""


def _libcrypto() -> ctypes.CDLL | None:
    """Return the library of `hashlib`, None if it is linked in another way."""
    try:
        library = ctypes.CDLL(_hashlib.__file__)
        if not (library.SHA1_Init and library.SHA1_Update and library.SHA1_Final):
            return None
    except (AttributeError, OSError):
        return None
    return library


LIBCRYPTO = _libcrypto()
"""For compiled code: a copy of an object of `hashlib` costs more than a short hash."""
_STATE_BYTES = 96  # SHA_CTX
_BLOCK_BYTES = 64
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))
_ORDERS_MAX = 128


class SigningKey:
    """The two SHA-1 states of a secret: a signature costs two short hashes more than its content."""

    __slots__ = ("_inner", "_outer", "states")

    def __init__(self, secret: str) -> None:
        """Raises SettingsError on systems whose policy forbids SHA-1 (FIPS)."""
        self.states: bytes | None = None
        """The two states as compiled code needs them; None if they cannot be had."""
        key = secret.encode()
        try:
            if len(key) > _BLOCK_BYTES:
                key = hashlib.sha1(key).digest()  # noqa: S324 (the protocol's algorithm)
            key = key.ljust(_BLOCK_BYTES, b"\0")
            self._inner = hashlib.sha1(key.translate(_INNER_PAD))  # noqa: S324
            self._outer = hashlib.sha1(key.translate(_OUTER_PAD))  # noqa: S324
            if LIBCRYPTO is not None:
                self.states = b"".join(
                    _state(LIBCRYPTO, key.translate(pad)) for pad in (_INNER_PAD, _OUTER_PAD)
                )
        except ValueError as error:
            raise SettingsError(
                "secret_key", f"requests cannot be signed: this system forbids SHA-1 ({error})"
            ) from error

    def after(self, content: bytes) -> SigningKey:
        """Return a key for the contents that begin with these bytes."""
        key = SigningKey.__new__(SigningKey)
        key._inner, key._outer, key.states = self._inner.copy(), self._outer, None
        key._inner.update(content)
        return key

    def signature(self, content: bytes, body: Buffer = b"") -> bytes:
        """Return the signature in Base64."""
        inner = self._inner.copy()
        inner.update(content)
        if body:
            inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)

    def has_signed(self, content: bytes, body: Buffer, signature: bytes) -> bool:
        """Return whether this is the signature, which is not in Base64."""
        inner = self._inner.copy()
        inner.update(content)
        inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return compare_digest(outer.digest(), signature)


def _state(library: ctypes.CDLL, block: bytes) -> bytes:
    """Return the state of SHA-1 behind a block."""
    state = ctypes.create_string_buffer(_STATE_BYTES)
    library.SHA1_Init(state)
    library.SHA1_Update(state, block, ctypes.c_size_t(len(block)))
    return state.raw


def signed_text(fields: Mapping[str, str]) -> bytes:
    """Return what is signed of the ext fields: their values in the order of their names."""
    return "".join(_values_in_order(tuple(fields))(fields)).encode(errors="replace")


@lru_cache(_ORDERS_MAX)  # clients send few sets of names, always in the same order
def _values_in_order(names: tuple[str, ...]) -> Callable[[Mapping[str, str]], tuple[str, ...]]:
    # Java compares UTF-16 code units.
    order = sorted(set(names) - {SIGNATURE}, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    if not order:
        return lambda fields: ()
    if len(order) == 1:
        (name,) = order
        return lambda fields: (fields[name],)
    return itemgetter(*order)


def is_signed(fields: Mapping[str, str], body: Buffer, key: SigningKey, version: int) -> bool:
    """Return whether the ext fields of a received request hold its signature. `version` is the client's."""
    given = fields.get(SIGNATURE)
    if not given:
        return False
    if version <= SIGNED_QUERY_VERSION and UNIQUE_KEY_QUERY in fields:
        fields = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
    return compare_digest(key.signature(signed_text(fields), body), given.encode(errors="replace"))


class SignedSend(SendMessageV2, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """A send (310 or 320) with user and signature, for servers: it has no other ext fields."""

    access_key: str = field(name=ACCESS_KEY)
    signature: bytes = field(name=SIGNATURE)  # decoded from Base64
    security_token: str = field(default="", name=SECURITY_TOKEN)


def are_signed(commands: Sequence[TypedCommand[SignedSend]], keys: Sequence[SigningKey | None]) -> list[bool]:
    """Return for each send whether it is signed with its key. A client that omits defaults may have signed
    it even if not.

    The values count, not their spelling: a number with a leading zero has the signature of the number.
    """
    # In two passes, which takes a fifth less time: the caches of the processor hold one of them, not both.
    contents = [
        # What a client signs if it writes numbers as usual. A quarter less time than an f-string takes.
        (
            "%s%s%s%s%s%d%d%d%d%d%s%d%s%s%s%s"  # noqa: UP031
            % (
                send.access_key,
                send.security_token,
                send.producer_group,
                send.topic,
                send.default_topic,
                send.default_topic_queue_nums,
                send.queue_id,
                send.sys_flag,
                send.born_timestamp,
                send.flag,
                send.properties,
                send.reconsume_times,
                "true" if send.unit_mode else "false",
                "" if send.max_reconsume_times is None else send.max_reconsume_times,
                "true" if send.batch else "false",
                send.broker_name or "",
            )
        ).encode()
        for send in [command.request for command in commands]
    ]
    return [
        key is not None and key.has_signed(content, command.body, command.request.signature)
        for key, content, command in zip(keys, contents, commands, strict=True)
    ]


class Signer:
    """Signs the requests of one user."""

    def __init__(self, credentials: Credentials) -> None:
        self.key = SigningKey(credentials.secret_key)
        self.fields = {ACCESS_KEY: credentials.access_key}
        """What is added to every request, besides the signature."""
        if credentials.security_token:
            self.fields[SECURITY_TOKEN] = credentials.security_token

    def sign(self, command: RemotingCommand) -> None:
        """Add the user and the signature to a request that will not change any more."""
        command.fields.update(self.fields)
        command.fields[SIGNATURE] = self.key.signature(signed_text(command.fields), command.body).decode()

    def encode(self, command: RemotingCommand) -> list[Buffer]:
        """Sign a request and return its frame in parts."""
        self.sign(command)
        return encode(command)

    def sign_frame(self, parts: list[Buffer]) -> list[Buffer]:
        """Return the signed form of an encoded request with a JSON header."""
        frame = memoryview(b"".join(parts))
        header_end = PREFIX_BYTES + int.from_bytes(frame[PREFIX_BYTES - 3 : PREFIX_BYTES])
        command = decode_header(frame[PREFIX_BYTES - 4], frame[PREFIX_BYTES:header_end])
        command.body = frame[header_end:]
        return self.encode(command)
