"""HTTP/2 of the gRPC port: what a client may not do, and what happens if it does."""

from __future__ import annotations

import struct

import pytest

from skylark.proxy.header_blocks import encode_headers
from skylark.proxy.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    GOAWAY,
    HEADER_FRAMES_MAX,
    HEADERS,
    IDLE_FRAMES_PER_S,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAMS_MAX,
    STREAMS_PER_FRAME,
    WINDOW_BYTES,
    WINDOW_MAX,
    WINDOW_UPDATE,
    ErrorCode,
    Http2Connection,
    Http2Failed,
    Http2Stream,
    frame,
)

CALL = encode_headers([(":method", "POST"), (":path", "/x")])
BYTES_MAX = 8 << 20


class Server:
    """Keeps what it is told; takes no data."""

    def __init__(self) -> None:
        self.connection = Http2Connection(self, BYTES_MAX)
        self.connection.receive(PREFACE + frame(SETTINGS, 0, 0), 0.0)
        self.connection.output.clear()
        self.opened_streams: list[Http2Stream] = []
        self.cancelled_streams: list[Http2Stream] = []

    def opened(self, stream: Http2Stream) -> None:
        self.opened_streams.append(stream)

    def received(self, stream: Http2Stream) -> None: ...

    def cancelled(self, stream: Http2Stream) -> None:
        self.cancelled_streams.append(stream)

    def widened(self) -> None: ...

    def receive(self, *frames: bytes, now: float = 0.0) -> None:
        self.connection.receive(b"".join(frames), now)

    def open(self, number: int = 1) -> Http2Stream:
        self.receive(frame(HEADERS, END_HEADERS, number, CALL))
        return self.opened_streams[-1]

    def refuses(self, code: ErrorCode, *frames: bytes) -> None:
        """The connection fails with this code, and the client is told."""
        with pytest.raises(Http2Failed) as failed:
            self.receive(*frames, now=1.0)
        assert failed.value.code is code, failed.value
        last = self.connection.output[-1]
        assert (last[3], struct.unpack(">I", last[-4:])[0]) == (GOAWAY, code)


@pytest.fixture
def server() -> Server:
    return Server()


def test_changes_of_all_windows_are_limited_by_the_number_of_streams(server: Server) -> None:
    for number in range(1, 2 * STREAMS_MAX, 2):
        server.open(number)
    sizes = struct.Struct(">HI")
    many = b"".join(sizes.pack(4, 100_000 + size) for size in range(2000))
    allowed = IDLE_FRAMES_PER_S // (STREAMS_MAX // STREAMS_PER_FRAME + 1)
    for number in range(allowed):  # one change of all windows each, however many values a frame has
        server.receive(frame(SETTINGS, 0, 0, sizes.pack(4, number) + many[: 6 * (number + 1)]))
        assert server.opened_streams[0].window == 100_000 + number
    server.refuses(
        ErrorCode.ENHANCE_YOUR_CALM,
        *(frame(SETTINGS, 0, 0, sizes.pack(4, number)) for number in range(allowed + 1)),
    )


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(PING, ACK, 0, bytes(8)),
        frame(SETTINGS, 0, 0),
        frame(SETTINGS, ACK, 0),
        frame(PRIORITY, 0, 1, bytes(5)),
        frame(DATA, 0, 1),
        frame(99, 0, 0, b"unknown"),
    ],
)
def test_frames_without_call_and_data_are_limited(server: Server, flood: bytes) -> None:
    server.open()
    for second in range(3):
        server.receive(flood * IDLE_FRAMES_PER_S, now=float(second + 1))
    with pytest.raises(Http2Failed) as failed:
        server.receive(flood, now=3.5)
    assert failed.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_client_that_opens_and_resets_calls_is_cut_off(server: Server) -> None:
    def pairs(count: int) -> bytes:
        begin = 2 * len(server.opened_streams) + 1
        return b"".join(
            frame(HEADERS, END_HEADERS, number, CALL) + frame(RST_STREAM, 0, number, bytes(4))
            for number in range(begin, begin + 2 * count, 2)
        )

    server.receive(pairs(IDLE_FRAMES_PER_S), now=1.0)
    assert len(server.cancelled_streams) == IDLE_FRAMES_PER_S
    assert server.connection.streams == {}
    server.refuses(ErrorCode.ENHANCE_YOUR_CALM, pairs(1))


def test_a_client_that_makes_us_reset_its_calls_is_cut_off(server: Server) -> None:
    def pair(number: int) -> bytes:
        return frame(HEADERS, END_HEADERS, number, CALL) + frame(WINDOW_UPDATE, 0, number, bytes(4))

    server.receive(*map(pair, range(1, 2 * IDLE_FRAMES_PER_S, 2)), now=1.0)
    assert len(server.cancelled_streams) == IDLE_FRAMES_PER_S
    server.refuses(ErrorCode.ENHANCE_YOUR_CALM, pair(2 * IDLE_FRAMES_PER_S + 1))


def test_each_reply_allows_a_ping(server: Server) -> None:
    """The Java client sends one for each data frame."""
    for number in range(1, 4 * IDLE_FRAMES_PER_S, 2):
        stream = server.open(number)
        server.connection.send_window = WINDOW_BYTES
        server.connection.send_data(stream, b"reply")
        server.connection.send_headers(stream, CALL, ends=True)
        server.receive(frame(PING, 0, 0, bytes(8)))


def test_parts_of_a_header_block_are_limited(server: Server) -> None:
    parts = [frame(CONTINUATION, 0, 1) for _ in range(HEADER_FRAMES_MAX)]
    server.refuses(ErrorCode.ENHANCE_YOUR_CALM, frame(HEADERS, 0, 1, CALL), *parts)


def test_the_bytes_of_a_header_block_are_limited(server: Server) -> None:
    part = bytes(FRAME_BYTES_MAX)
    server.refuses(
        ErrorCode.ENHANCE_YOUR_CALM,
        frame(HEADERS, 0, 1, part),
        frame(CONTINUATION, 0, 1, part),
        frame(CONTINUATION, 0, 1, part),
    )


def test_calls_beyond_the_limit_are_refused_and_the_others_go_on(server: Server) -> None:
    for number in range(1, 2 * STREAMS_MAX, 2):
        server.open(number)
    server.receive(frame(HEADERS, END_HEADERS, 2 * STREAMS_MAX + 1, CALL))
    assert len(server.opened_streams) == STREAMS_MAX
    assert server.connection.output == [
        frame(RST_STREAM, 0, 2 * STREAMS_MAX + 1, struct.pack(">I", ErrorCode.REFUSED_STREAM))
    ]
    server.connection.send_headers(server.opened_streams[0], CALL, ends=True)
    server.open(2 * STREAMS_MAX + 3)
    assert len(server.opened_streams) == STREAMS_MAX + 1


def test_a_client_cannot_send_more_than_its_window(server: Server) -> None:
    server.open()
    part = frame(DATA, 0, 1, bytes(FRAME_BYTES_MAX))
    server.receive(part * (WINDOW_BYTES // FRAME_BYTES_MAX))
    server.refuses(ErrorCode.FLOW_CONTROL_ERROR, frame(DATA, 0, 1, b"x"))


def test_unfinished_messages_are_limited(server: Server) -> None:
    """A message may be longer than a window, which is then given back before it is complete."""
    part = frame(DATA, 0, 1, bytes(FRAME_BYTES_MAX))
    stream = server.open()
    with pytest.raises(Http2Failed) as failed:
        for _ in range((BYTES_MAX + WINDOW_BYTES) // FRAME_BYTES_MAX + 1):
            server.receive(part)
            server.connection.grant(stream)
    assert failed.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_data_of_a_closed_call_is_dropped_and_its_window_given_back(server: Server) -> None:
    stream = server.open()
    server.connection.send_headers(stream, CALL, ends=True)
    part = frame(DATA, 0, 1, bytes(FRAME_BYTES_MAX))
    for _ in range(3 * WINDOW_BYTES // FRAME_BYTES_MAX):
        server.receive(part)
    assert stream.data == b""


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        (ErrorCode.FRAME_SIZE_ERROR, b"\x00\x40\x01" + bytes(6)),
        (ErrorCode.PROTOCOL_ERROR, frame(DATA, 0, 0, b"x")),
        (ErrorCode.PROTOCOL_ERROR, frame(DATA, 0, 5, b"x")),
        (ErrorCode.PROTOCOL_ERROR, frame(HEADERS, END_HEADERS, 2, CALL)),
        (ErrorCode.PROTOCOL_ERROR, frame(HEADERS, END_HEADERS, 1, CALL)),
        (ErrorCode.PROTOCOL_ERROR, frame(HEADERS, 0, 3, CALL) + frame(PING, 0, 0, bytes(8))),
        (ErrorCode.PROTOCOL_ERROR, frame(CONTINUATION, END_HEADERS, 1, CALL)),
        (ErrorCode.PROTOCOL_ERROR, frame(PUSH_PROMISE, 0, 1, bytes(4))),
        (ErrorCode.PROTOCOL_ERROR, frame(DATA, PADDED, 1, b"\x05abc")),
        (ErrorCode.PROTOCOL_ERROR, frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 100))),
        (ErrorCode.PROTOCOL_ERROR, frame(PING, 0, 1, bytes(8))),
        (ErrorCode.FRAME_SIZE_ERROR, frame(PING, 0, 0, b"x")),
        (ErrorCode.FRAME_SIZE_ERROR, frame(SETTINGS, 0, 0, b"x")),
        (ErrorCode.FRAME_SIZE_ERROR, frame(RST_STREAM, 0, 1, b"x")),
        (ErrorCode.FRAME_SIZE_ERROR, frame(WINDOW_UPDATE, 0, 1, b"x")),
        (ErrorCode.FLOW_CONTROL_ERROR, frame(SETTINGS, 0, 0, struct.pack(">HI", 4, WINDOW_MAX + 1))),
        (ErrorCode.FLOW_CONTROL_ERROR, frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW_MAX))),
        (ErrorCode.FLOW_CONTROL_ERROR, frame(WINDOW_UPDATE, 0, 0, bytes(4))),
        (ErrorCode.COMPRESSION_ERROR, frame(HEADERS, END_HEADERS, 3, b"\xff\xff\xff\xff\xff\xff")),
        (ErrorCode.STREAM_CLOSED, frame(DATA, END_STREAM, 1, b"x") + frame(DATA, 0, 1, b"x")),
    ],
)
def test_frames_that_break_the_rules_end_the_connection(server: Server, code: ErrorCode, bad: bytes) -> None:
    server.open()
    server.refuses(code, bad)


def test_a_window_of_a_call_that_overflows_ends_only_the_call(server: Server) -> None:
    stream = server.open()
    server.receive(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", WINDOW_MAX)))
    assert server.cancelled_streams == [stream]
    assert server.connection.output[-1][3] == RST_STREAM


def test_a_preface_of_another_protocol_is_refused() -> None:
    connection = Http2Connection(Server(), BYTES_MAX)
    with pytest.raises(Http2Failed):
        connection.receive(b"GET / HTTP/1.1\r\n\r\n", 0.0)


def test_a_whole_reply_is_the_same_frames_as_its_parts() -> None:
    at_once, in_parts = Server(), Server()
    one, other = at_once.open(), in_parts.open()
    assert at_once.connection.send_all(one, b"head", b"data", b"last")
    in_parts.connection.send_headers(other, b"head")
    in_parts.connection.send_data(other, b"data")
    in_parts.connection.send_headers(other, b"last", ends=True)
    assert b"".join(at_once.connection.output) == b"".join(in_parts.connection.output)
    assert at_once.connection.send_window == in_parts.connection.send_window
    assert one.is_closed and not at_once.connection.streams


@pytest.mark.parametrize("bytes_of_data", [DEFAULT_WINDOW + 1, FRAME_BYTES_MAX + 1])
def test_a_reply_without_room_for_all_of_it_is_not_begun(bytes_of_data: int) -> None:
    server = Server()
    stream = server.open()
    assert not server.connection.send_all(stream, b"head", bytes(bytes_of_data), b"last")
    assert not server.connection.output and not stream.is_closed
