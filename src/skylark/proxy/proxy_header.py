"""Sans-IO. The HAProxy PROXY header, versions 1 and 2: the address of the client behind a load balancer."""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

SIGNATURE_V1 = b"PROXY "
SIGNATURE_V2 = b"\r\n\r\n\0\r\nQUIT\n"
V1_BYTES_MAX = 107
_V2_HEAD = struct.Struct(">12sBBH")  # signature, version and command, family and protocol, bytes that follow
_V2_BYTES_MAX = 4096
_ADDRESS_BYTES = {0x11: 4, 0x21: 16}  # TCP over IPv4, over IPv6
_COMMAND_PROXY = 0x21
_COMMAND_LOCAL = 0x20


class ProxyHeader(NamedTuple):
    """A header of `length` bytes. The host is empty if it names no client."""

    length: int
    host: str
    port: int


class BadProxyHeader(ValueError):
    """Bytes that begin as a header and are none."""


def may_begin_header(data: bytes) -> bool:
    """Return whether these first bytes of a connection are the begin of a header, or could become one."""
    return any(
        data.startswith(signature) or signature.startswith(data) for signature in (SIGNATURE_V1, SIGNATURE_V2)
    )


def parse_header(data: bytes) -> ProxyHeader | None:
    """Return the header at the begin of a connection, None if it is incomplete. Raises BadProxyHeader."""
    if data.startswith(SIGNATURE_V1):
        return _parse_v1(data)
    if data.startswith(SIGNATURE_V2):
        return _parse_v2(data)
    return None


def _parse_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, V1_BYTES_MAX)
    if end < 0:
        if len(data) >= V1_BYTES_MAX:
            raise BadProxyHeader(f"no end of line in {V1_BYTES_MAX} bytes")
        return None
    words = data[:end].decode("ascii", "replace").split(" ")
    if words[1] == "UNKNOWN":
        return ProxyHeader(end + 2, "", 0)
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6") or not words[4].isdecimal():
        raise BadProxyHeader(f"not a header: {data[:end]!r}")
    try:
        host = str(ipaddress.ip_address(words[2]))
    except ValueError as error:
        raise BadProxyHeader(str(error)) from None
    return ProxyHeader(end + 2, host, int(words[4]))


def _parse_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < _V2_HEAD.size:
        return None
    _, command, family, more_bytes = _V2_HEAD.unpack_from(data)
    if command not in (_COMMAND_PROXY, _COMMAND_LOCAL) or more_bytes > _V2_BYTES_MAX:
        raise BadProxyHeader(f"command {command:#x} with {more_bytes} bytes")
    length = _V2_HEAD.size + more_bytes
    if len(data) < length:
        return None
    address_bytes = _ADDRESS_BYTES.get(family)
    if command == _COMMAND_LOCAL or address_bytes is None:
        return ProxyHeader(length, "", 0)
    if more_bytes < 2 * address_bytes + 4:
        raise BadProxyHeader(f"{more_bytes} bytes hold no addresses")
    start = _V2_HEAD.size
    host = str(ipaddress.ip_address(data[start : start + address_bytes]))
    (port,) = struct.unpack_from(">H", data, start + 2 * address_bytes)
    return ProxyHeader(length, host, port)
