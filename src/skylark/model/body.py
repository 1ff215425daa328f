"""Pure. Compression and decompression of message bodies."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from zlib_ng import zlib_ng

from skylark.errors import BadBody
from skylark.model.message import COMPRESSION_MASK, StoredMessage, SystemFlag

BODY_BYTES_MAX = 64 << 20
"""Limit of a decompressed body: protects from small bodies that claim a huge size."""


_COMPRESSED = SystemFlag.COMPRESSED.value  # the operators of a flag take longer than all else


def compression_of(sys_flag: int) -> str | None:
    """Return the codec's name, None for a plain body. Without a type, as from old clients, it is zlib."""
    if not sys_flag & _COMPRESSED:
        return None
    kind = sys_flag & COMPRESSION_MASK
    return _NAMES.get(kind, f"unknown type {kind >> 8}")


def decompress(body: bytes, sys_flag: int, *, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the decompressed body. Raises BadBody."""
    compression = compression_of(sys_flag)
    if compression is None:
        return body
    read = _READERS.get(compression)
    if read is None:
        raise BadBody(compression, "unknown codec")
    return read(body, bytes_max)


def compress(body: bytes, compression: str, level: int) -> tuple[bytes, int]:
    """Return the body compressed with ZLIB, LZ4 or ZSTD, and its system flag. Raises BadBody."""
    if compression == "ZLIB":
        return zlib_ng.compress(body, level), SystemFlag.COMPRESSED | SystemFlag.ZLIB
    if compression == "LZ4":
        data: bytes = _extra("LZ4", "lz4.frame").compress(body, compression_level=level)
        return data, SystemFlag.COMPRESSED | SystemFlag.LZ4
    data = _extra("Zstandard", "zstandard").ZstdCompressor(level=level).compress(body)
    return data, SystemFlag.COMPRESSED | SystemFlag.ZSTD


def plain_body(message: StoredMessage, *, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return a stored message's decompressed body. Raises BadBody."""
    return decompress(message.body, message.sys_flag, bytes_max=bytes_max)


def _zlib(body: bytes, bytes_max: int) -> bytes:
    # The type stub declares the error class as an instance.
    return _stream("zlib", zlib_ng.decompressobj(), zlib_ng.error, body, bytes_max)  # type: ignore[arg-type]


def _lz4(body: bytes, bytes_max: int) -> bytes:
    frame = _extra("LZ4", "lz4.frame")
    return _stream("LZ4", frame.LZ4FrameDecompressor(), RuntimeError, body, bytes_max)


def _stream(
    compression: str, decompressor: Any, error_type: type[Exception], body: bytes, bytes_max: int
) -> bytes:
    try:
        # One byte more than allowed: a body that fills it is too large, and nothing larger is produced.
        data: bytes = decompressor.decompress(body, bytes_max + 1)
    except error_type as error:
        raise BadBody(compression, str(error)) from error
    if len(data) > bytes_max:
        raise BadBody(compression, f"it is larger than {bytes_max} bytes")
    if not decompressor.eof:
        raise BadBody(compression, "it is truncated")
    return data


def _zstd(body: bytes, bytes_max: int) -> bytes:
    zstandard = _extra("Zstandard", "zstandard")
    try:
        # `max_output_size` does not limit a frame that declares its size.
        if zstandard.frame_content_size(body) > bytes_max:
            raise BadBody("Zstandard", f"it is larger than {bytes_max} bytes")
        data: bytes = zstandard.ZstdDecompressor().decompress(body, max_output_size=bytes_max)
    except zstandard.ZstdError as error:
        reason = f"{error}; it is damaged, or larger than {bytes_max} bytes"
        raise BadBody("Zstandard", reason) from error
    return data


def _extra(compression: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadBody(compression, "codec not installed; install skylarkmq[compression]") from error


_NAMES = {
    0: "zlib",
    int(SystemFlag.LZ4): "LZ4",
    int(SystemFlag.ZSTD): "Zstandard",
    int(SystemFlag.ZLIB): "zlib",
}
_READERS: dict[str, Callable[[bytes, int], bytes]] = {"zlib": _zlib, "LZ4": _lz4, "Zstandard": _zstd}
