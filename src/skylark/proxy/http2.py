"""Sans-IO. HTTP/2 (RFC 9113) as a server of gRPC needs it: no push, no priorities, no upgrade.

A connection takes bytes by `receive`, tells what they mean to its `Streams`, and collects in `output` what is
to be sent. Every frame that a client can repeat for nothing is counted, and so are bytes that wait.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Protocol

from skylark.proxy.header_blocks import BadHeaderBlock, HeaderDecoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STREAMS_MAX = 10_000
"""Calls of one connection at the same time."""
FRAME_BYTES_MAX = 16_384
HEADER_LIST_BYTES_MAX = 16_384
HEADER_FRAMES_MAX = 8
"""Frames of one header block."""
WINDOW_BYTES = 4 << 20
"""What a client may send ahead, on a stream and on the connection."""
IDLE_FRAMES_PER_S = 500
"""Frames of a connection in a second without call and data: resets, pings, settings, and empty ones.

Each data frame that we send allows one more: clients measure their connection by a ping for each of them.
"""
STREAMS_PER_FRAME = 100
"""Streams whose windows a SETTINGS frame changes for the price of an idle frame."""
DEFAULT_WINDOW = 65_535
WINDOW_MAX = (1 << 31) - 1
_FRAME = struct.Struct(">HBBBI")  # length (two fields), type, flags, stream
_UINT32 = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_FRAME_HEAD = 9

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_MAX_STREAMS, _WINDOW_SIZE, _FRAME_SIZE, _HEADER_LIST_SIZE = 3, 4, 5, 6


class ErrorCode(IntEnum):
    """Codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Failed(Exception):
    """The connection must be closed. The output ends with the reason for the client."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"{text} ({code.name})")
        self.code = code


class Http2Stream:
    """One call. `Http2Connection.take` removes bytes from `data`."""

    __slots__ = ("data", "granted", "headers", "is_closed", "is_ended", "number", "owed", "quota", "window")

    def __init__(self, number: int, headers: dict[str, str], window: int, *, is_ended: bool) -> None:
        self.number = number
        self.headers = headers
        self.window = window
        """What may be sent; negative after the client has made its windows smaller."""
        self.data = bytearray()
        self.granted = 0
        """Bytes of `data` that the client may send again already."""
        self.quota = WINDOW_BYTES
        """What the client may still send."""
        self.owed = 0
        """What it will be told that it may send in addition."""
        self.is_ended = is_ended
        """The client sends no more."""
        self.is_closed = False
        """Nothing can be sent any more."""


class Streams(Protocol):
    """What a connection tells."""

    def opened(self, stream: Http2Stream) -> None:
        """A call has begun."""

    def received(self, stream: Http2Stream) -> None:
        """There are more bytes, or the client has ended its side."""

    def cancelled(self, stream: Http2Stream) -> None:
        """The client does not want the call any more. The stream is closed."""

    def widened(self) -> None:
        """More bytes may be sent."""


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return _FRAME.pack(length >> 8, length & 0xFF, kind, flags, number) + payload


_GREETING = b"".join(
    (
        frame(
            SETTINGS,
            0,
            0,
            _SETTING.pack(_MAX_STREAMS, STREAMS_MAX)
            + _SETTING.pack(_WINDOW_SIZE, WINDOW_BYTES)
            + _SETTING.pack(_HEADER_LIST_SIZE, HEADER_LIST_BYTES_MAX),
        ),
        frame(WINDOW_UPDATE, 0, 0, _UINT32.pack(WINDOW_BYTES - DEFAULT_WINDOW)),
    )
)


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Http2Failed(ErrorCode.PROTOCOL_ERROR, "a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]


class Http2Connection:
    """The server's side of a connection."""

    def __init__(self, streams: Streams, bytes_max: int) -> None:
        """All streams together may hold `bytes_max` bytes that were not taken."""
        self._told = streams
        self._bytes_max = bytes_max
        self._decoder = HeaderDecoder(HEADER_LIST_BYTES_MAX)
        self._input = b""
        self._is_greeted = False
        self._last_number = 0
        self._block: tuple[int, int, list[bytes]] | None = None
        """Stream, flags and parts of a header block whose end has not come."""
        self._waiting_bytes = 0
        self._window = WINDOW_BYTES
        """What the client may still send on the connection."""
        self._owed = 0
        self._peer_window = DEFAULT_WINDOW
        self._peer_frame_bytes = FRAME_BYTES_MAX
        self._idle_frames = 0
        self._counted_since = 0.0
        self.send_window = DEFAULT_WINDOW
        self.streams: dict[int, Http2Stream] = {}
        """Calls that are not over on both sides."""
        self.output: list[bytes] = [_GREETING]

    # --- Receiving ---

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes of the client at a time in seconds. Raises Http2Failed."""
        try:
            self._receive(self._input + data if self._input else data, now)
        except Http2Failed as failure:
            self.goodbye(failure.code)
            raise

    def _receive(self, data: bytes, now: float) -> None:
        position = 0
        if not self._is_greeted:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise Http2Failed(ErrorCode.PROTOCOL_ERROR, "no preface of HTTP/2")
            if len(data) < len(PREFACE):
                self._input = data
                return
            position, self._is_greeted = len(PREFACE), True
        if now - self._counted_since >= 1.0:
            self._counted_since, self._idle_frames = now, 0
        end = len(data)
        while end - position >= _FRAME_HEAD:
            high, low, kind, flags, number = _FRAME.unpack_from(data, position)
            length = high << 8 | low
            if length > FRAME_BYTES_MAX:
                raise Http2Failed(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
            body = position + _FRAME_HEAD
            if end - body < length:
                break
            position = body + length
            self._take(kind, flags, number & WINDOW_MAX, data[body:position])
        self._input = data[position:]

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and kind != CONTINUATION:
            raise Http2Failed(ErrorCode.PROTOCOL_ERROR, "a header block is not finished")
        if kind == DATA:
            self._take_data(flags, number, payload)
        elif kind == HEADERS:
            self._take_headers(flags, number, payload)
        elif kind == WINDOW_UPDATE:
            self._take_window(number, payload)
        elif kind == CONTINUATION:
            self._take_continuation(flags, number, payload)
        else:
            self._count_idle()
            if kind == RST_STREAM:
                self._take_reset(number, payload)
            elif kind == SETTINGS:
                self._take_settings(flags, number, payload)
            elif kind == PING:
                self._take_ping(flags, number, payload)
            elif kind == PUSH_PROMISE:
                raise Http2Failed(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
            elif kind == PRIORITY and (number == 0 or len(payload) != 5):
                raise Http2Failed(ErrorCode.FRAME_SIZE_ERROR, "bad PRIORITY")

    def _count_idle(self, cost: int = 1) -> None:
        self._idle_frames += cost
        if self._idle_frames > IDLE_FRAMES_PER_S:
            raise Http2Failed(
                ErrorCode.ENHANCE_YOUR_CALM, f"more than {IDLE_FRAMES_PER_S} idle frames in a second"
            )

    def _stream(self, number: int) -> Http2Stream | None:
        """Return an open stream, None for one that was closed. Raises Http2Failed for one that never was."""
        stream = self.streams.get(number)
        if stream is None and (number == 0 or number > self._last_number or number % 2 == 0):
            raise Http2Failed(ErrorCode.PROTOCOL_ERROR, f"stream {number} is not open")
        return stream

    def _take_data(self, flags: int, number: int, payload: bytes) -> None:
        length = len(payload)
        if flags & PADDED:
            payload = _unpadded(payload)
        self._window -= length
        if self._window < 0:
            raise Http2Failed(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window of the connection")
        stream = self._stream(number)
        padding = length - len(payload)
        if stream is None or stream.is_closed:  # its end was on its way
            self._give_back(None, length)
            return
        if stream.is_ended:
            raise Http2Failed(ErrorCode.STREAM_CLOSED, f"data after the end of stream {number}")
        if not length and not flags & END_STREAM:
            self._count_idle()
            return
        stream.quota -= length
        if stream.quota < 0:
            raise Http2Failed(ErrorCode.FLOW_CONTROL_ERROR, f"more data than the window of stream {number}")
        self._waiting_bytes += length - padding
        if self._waiting_bytes > self._bytes_max + WINDOW_BYTES:
            raise Http2Failed(ErrorCode.ENHANCE_YOUR_CALM, "too many unfinished messages")
        if padding:
            self._give_back(stream, padding)
        stream.data += payload
        if flags & END_STREAM:
            stream.is_ended = True
        self._told.received(stream)

    def _take_headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = _unpadded(payload)
        if flags & HAS_PRIORITY:
            if len(payload) < 5:
                raise Http2Failed(ErrorCode.FRAME_SIZE_ERROR, "bad HEADERS")
            payload = payload[5:]
        if flags & END_HEADERS:
            self._finish_headers(number, flags, payload)
        else:
            self._block = (number, flags, [payload])

    def _take_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != number:
            raise Http2Failed(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        _, first_flags, parts = self._block
        parts.append(payload)
        if len(parts) > HEADER_FRAMES_MAX or sum(map(len, parts)) > 2 * HEADER_LIST_BYTES_MAX:
            raise Http2Failed(ErrorCode.ENHANCE_YOUR_CALM, "a header block has too many parts")
        if flags & END_HEADERS:
            self._block = None
            self._finish_headers(number, first_flags, b"".join(parts))

    def _finish_headers(self, number: int, flags: int, block: bytes) -> None:
        try:
            headers = self._decoder.decode(block)  # of trailers and refused calls, too: the table needs it
        except BadHeaderBlock as error:
            raise Http2Failed(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        is_ended = bool(flags & END_STREAM)
        if number <= self._last_number:
            self._take_trailers(number, is_ended=is_ended)
            return
        if number % 2 == 0:
            raise Http2Failed(ErrorCode.PROTOCOL_ERROR, f"stream {number} is not a client's")
        self._last_number = number
        if len(self.streams) >= STREAMS_MAX:
            self._count_idle()
            self.output.append(frame(RST_STREAM, 0, number, _UINT32.pack(ErrorCode.REFUSED_STREAM)))
            return
        stream = Http2Stream(number, headers, self._peer_window, is_ended=is_ended)
        self.streams[number] = stream
        self._told.opened(stream)

    def _take_trailers(self, number: int, *, is_ended: bool) -> None:
        stream = self._stream(number)
        if stream is None or stream.is_closed:
            return
        if not is_ended or stream.is_ended:
            raise Http2Failed(ErrorCode.PROTOCOL_ERROR, f"second headers on stream {number}")
        stream.is_ended = True
        self._told.received(stream)

    def _take_reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Failed(ErrorCode.FRAME_SIZE_ERROR, "bad RST_STREAM")
        stream = self._stream(number)
        if stream is not None:
            self._close(stream)
            self._told.cancelled(stream)

    def _take_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Http2Failed(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if len(payload) % 6 or (flags & ACK and payload):
            raise Http2Failed(ErrorCode.FRAME_SIZE_ERROR, "bad SETTINGS")
        if flags & ACK:
            return
        settings = dict(_SETTING.iter_unpack(payload))  # the last value of each counts
        if (window := settings.get(_WINDOW_SIZE, self._peer_window)) != self._peer_window:
            self._count_idle(len(self.streams) // STREAMS_PER_FRAME)
            self._change_windows(window)
        self._peer_frame_bytes = settings.get(_FRAME_SIZE, self._peer_frame_bytes)
        if not FRAME_BYTES_MAX <= self._peer_frame_bytes < 1 << 24:
            raise Http2Failed(ErrorCode.PROTOCOL_ERROR, f"frames of {self._peer_frame_bytes} bytes")
        self.output.append(frame(SETTINGS, ACK, 0))

    def _change_windows(self, value: int) -> None:
        if value > WINDOW_MAX:
            raise Http2Failed(ErrorCode.FLOW_CONTROL_ERROR, f"window of {value} bytes")
        change, self._peer_window = value - self._peer_window, value
        for stream in self.streams.values():
            stream.window += change
            if stream.window > WINDOW_MAX:
                raise Http2Failed(ErrorCode.FLOW_CONTROL_ERROR, f"window of stream {stream.number}")
        if change > 0:
            self._told.widened()

    def _take_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Http2Failed(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise Http2Failed(ErrorCode.FRAME_SIZE_ERROR, "bad PING")
        if not flags & ACK:
            self.output.append(frame(PING, ACK, 0, payload))

    def _take_window(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Failed(ErrorCode.FRAME_SIZE_ERROR, "bad WINDOW_UPDATE")
        more = _UINT32.unpack(payload)[0] & WINDOW_MAX
        if number == 0:
            self.send_window += more
            if not more or self.send_window > WINDOW_MAX:
                raise Http2Failed(ErrorCode.FLOW_CONTROL_ERROR, f"window of {self.send_window} bytes")
        else:
            stream = self._stream(number)
            if stream is None or stream.is_closed:
                return
            stream.window += more
            if not more or stream.window > WINDOW_MAX:
                self._count_idle()  # it costs us what a reset does
                self.reset(stream, ErrorCode.FLOW_CONTROL_ERROR)
                self._told.cancelled(stream)
                return
        self._told.widened()

    # --- Data of streams ---

    def take(self, stream: Http2Stream, count: int) -> bytes:
        """Remove so many bytes from the data of a stream, and return them."""
        data = bytes(stream.data[:count])
        del stream.data[:count]
        granted = min(count, stream.granted)
        stream.granted -= granted
        self._waiting_bytes -= count
        self._give_back(stream, count - granted)
        return data

    def grant(self, stream: Http2Stream) -> None:
        """Let a client send on whose message is longer than its window."""
        self._give_back(stream, len(stream.data) - stream.granted)
        stream.granted = len(stream.data)

    def _give_back(self, stream: Http2Stream | None, count: int) -> None:
        """Let the client send so many bytes more, of the stream if there is one and it is not over."""
        self._owed += count
        if self._owed >= WINDOW_BYTES // 2:
            self.output.append(frame(WINDOW_UPDATE, 0, 0, _UINT32.pack(self._owed)))
            self._window += self._owed
            self._owed = 0
        if stream is not None and not stream.is_ended:
            stream.owed += count
            if stream.owed >= WINDOW_BYTES // 2:
                self.output.append(frame(WINDOW_UPDATE, 0, stream.number, _UINT32.pack(stream.owed)))
                stream.quota += stream.owed
                stream.owed = 0

    # --- Sending ---

    def room(self, stream: Http2Stream) -> int:
        """Return how many bytes may be sent on a stream now."""
        return max(0, min(stream.window, self.send_window))

    def send_headers(self, stream: Http2Stream, block: bytes, *, ends: bool = False) -> None:
        """Send a header block that fits into a frame; with `ends` the stream is closed."""
        self.output.append(frame(HEADERS, END_HEADERS | (END_STREAM if ends else 0), stream.number, block))
        if ends:
            self._close(stream)

    def send_data(self, stream: Http2Stream, data: bytes) -> None:
        """Send bytes for which there is room."""
        length, limit, number = len(data), self._peer_frame_bytes, stream.number
        stream.window -= length
        self.send_window -= length
        if self._idle_frames:
            self._idle_frames -= 1
        if length <= limit:
            self.output.append(frame(DATA, 0, number, data))
        else:
            for first in range(0, length, limit):
                self.output.append(frame(DATA, 0, number, data[first : first + limit]))

    def send_all(self, stream: Http2Stream, first: bytes, data: bytes, last: bytes) -> bool:
        """Send header blocks with data between them and close the stream; False if there is no room."""
        length, number = len(data), stream.number
        if length > self._peer_frame_bytes or length > self.room(stream):
            return False
        self.send_window -= length
        if self._idle_frames:
            self._idle_frames -= 1
        self.output += (
            _FRAME.pack(0, len(first), HEADERS, END_HEADERS, number),
            first,
            _FRAME.pack(length >> 8, length & 0xFF, DATA, 0, number),
            data,
            _FRAME.pack(0, len(last), HEADERS, END_HEADERS | END_STREAM, number),
            last,
        )
        self._close(stream)
        return True

    def reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        """Close a stream at once."""
        if not stream.is_closed or not stream.is_ended:
            self.output.append(frame(RST_STREAM, 0, stream.number, _UINT32.pack(code)))
        self._close(stream)
        stream.is_ended = True

    def _close(self, stream: Http2Stream) -> None:
        stream.is_closed = True
        if stream.data:
            self.take(stream, len(stream.data))
        self.streams.pop(stream.number, None)

    def goodbye(self, code: ErrorCode) -> None:
        """Tell the client that its further calls are not served."""
        self.output.append(frame(GOAWAY, 0, 0, _UINT32.pack(self._last_number) + _UINT32.pack(code)))
