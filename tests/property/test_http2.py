"""Our HTTP/2 against the libraries h2 and hpack: what they send we understand, what we send they do."""

from __future__ import annotations

import h2.events
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hypothesis import given
from hypothesis import strategies as st

from skylark.proxy.header_blocks import BadHeaderBlock, HeaderDecoder, encode_headers
from skylark.proxy.http2 import HEADER_LIST_BYTES_MAX, WINDOW_BYTES, Http2Connection, Http2Failed, Http2Stream

WORDS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40)
NAMES = st.sampled_from([":path", "content-type", "te", "x-mq-client-id", "grpc-timeout", "x-new"]) | st.text(
    st.characters(categories=["Ll"], max_codepoint=0x7A), min_size=1, max_size=200
)
FRAMES = 640  # more than two windows
BLOCKS = st.lists(st.lists(st.tuples(NAMES, WORDS), max_size=12), max_size=8)


class Heard:
    """A server that keeps what it hears, and takes all data at once."""

    def __init__(self) -> None:
        self.connection = Http2Connection(self, 1 << 30)
        self.streams: dict[int, Http2Stream] = {}
        self.bodies: dict[int, bytes] = {}
        self.gone: set[int] = set()

    def opened(self, stream: Http2Stream) -> None:
        self.streams[stream.number] = stream
        self.bodies[stream.number] = b""

    def received(self, stream: Http2Stream) -> None:
        self.bodies[stream.number] += self.connection.take(stream, len(stream.data))

    def cancelled(self, stream: Http2Stream) -> None:
        self.gone.add(stream.number)

    def widened(self) -> None: ...

    def output(self) -> bytes:
        data = b"".join(self.connection.output)
        self.connection.output.clear()
        return data


def client() -> H2Connection:
    connection = H2Connection(H2Configuration(client_side=True, validate_outbound_headers=False))
    connection.initiate_connection()
    return connection


@given(BLOCKS, st.booleans(), st.lists(st.integers(0, 4096), max_size=3))
def test_blocks_of_hpack_are_understood(
    blocks: list[list[tuple[str, str]]], huffman: bool, sizes: list[int]
) -> None:
    encoder, decoder = Encoder(), HeaderDecoder(1 << 20)
    changes = dict(enumerate(sizes))
    for number, headers in enumerate(blocks):
        if number in changes:
            encoder.header_table_size = changes[number]
        assert decoder.decode(encoder.encode(headers, huffman=huffman)) == dict(headers)


@given(st.lists(st.tuples(NAMES, WORDS), max_size=12))
def test_our_blocks_are_understood_by_hpack(headers: list[tuple[str, str]]) -> None:
    found = Decoder().decode(encode_headers(headers), raw=True)
    assert [tuple(each) for each in found] == [(name.encode(), value.encode()) for name, value in headers]


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_bytes_at_random_are_refused_as_by_hpack(blocks: list[bytes]) -> None:
    theirs, ours = Decoder(), HeaderDecoder(1 << 20)
    for block in blocks:
        try:
            expected = {
                bytes(name).decode("latin-1"): bytes(value).decode("latin-1")
                for name, value in theirs.decode(block, raw=True)
            }
        except (HPACKError, UnicodeDecodeError):
            try:
                ours.decode(block)
            except BadHeaderBlock:
                return
            # hpack refuses a table that was not announced, and long integers, as we do; we pass nothing else.
            raise AssertionError(f"{block!r} was accepted") from None
        assert ours.decode(block) == expected


@given(
    st.lists(st.tuples(st.lists(st.binary(max_size=40_000), max_size=3), st.booleans()), max_size=6),
    st.integers(1, 70_000),
)
def test_calls_of_h2_arrive_in_any_pieces(calls: list[tuple[list[bytes], bool]], piece: int) -> None:
    theirs, ours = client(), Heard()
    expected: dict[int, tuple[bytes, bool]] = {}
    for parts, is_cancelled in calls:
        number = theirs.get_next_available_stream_id()
        theirs.send_headers(number, [(":method", "POST"), (":path", f"/{number}"), ("x", "y" * 300)])
        data = b"".join(parts)[: theirs.local_flow_control_window(number)]
        for first in range(0, len(data), theirs.max_outbound_frame_size):
            theirs.send_data(number, data[first : first + theirs.max_outbound_frame_size])
        if is_cancelled:
            theirs.reset_stream(number)
        else:
            theirs.end_stream(number)
        expected[number] = (data, is_cancelled)
    sent = theirs.data_to_send()
    for first in range(0, len(sent), piece):
        ours.connection.receive(sent[first : first + piece], 0.0)
    assert ours.bodies == {number: data for number, (data, _) in expected.items()}
    assert ours.gone == {number for number, (_, is_cancelled) in expected.items() if is_cancelled}
    for number, stream in ours.streams.items():
        assert stream.headers == {":method": "POST", ":path": f"/{number}", "x": "y" * 300}
        assert stream.is_ended is not expected[number][1]


@given(st.lists(st.binary(max_size=100_000), min_size=1, max_size=4), st.integers(1, 200_000))
def test_replies_arrive_as_windows_and_frames_allow(messages: list[bytes], window: int) -> None:
    theirs, ours = client(), Heard()
    theirs.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
    theirs.send_headers(1, [(":method", "POST"), (":path", "/")], end_stream=True)
    found: list[h2.events.Event] = []

    def exchange() -> None:
        ours.connection.receive(theirs.data_to_send(), 0.0)
        if data := ours.output():
            found.extend(theirs.receive_data(data))

    exchange()
    stream = ours.streams[1]
    ours.connection.send_headers(stream, encode_headers([(":status", "200")]))
    left = b"".join(messages)
    while left:
        room = min(ours.connection.room(stream), len(left))
        assert room > 0
        ours.connection.send_data(stream, left[:room])
        left = left[room:]
        exchange()
        theirs.increment_flow_control_window(room)
        theirs.increment_flow_control_window(room, 1)
        exchange()
    ours.connection.send_headers(stream, encode_headers([("grpc-status", "0")]), ends=True)
    exchange()
    data = b"".join(event.data for event in found if isinstance(event, h2.events.DataReceived))
    assert data == b"".join(messages)
    [trailers] = [event for event in found if isinstance(event, h2.events.TrailersReceived)]
    assert dict(trailers.headers) == {b"grpc-status": b"0"}
    assert ours.connection.streams == {}


def test_windows_are_given_back_as_data_is_taken() -> None:
    """h2 counts its windows itself and raises if a server gives back too much."""
    theirs, ours = client(), Heard()
    ours.connection.receive(theirs.data_to_send(), 0.0)
    theirs.receive_data(ours.output())
    theirs.send_headers(1, [(":method", "POST"), (":path", "/")])
    for _ in range(FRAMES):
        theirs.send_data(1, bytes(16_384))
        ours.connection.receive(theirs.data_to_send(), 0.0)
        theirs.receive_data(ours.output())
    assert len(ours.bodies[1]) == FRAMES * 16_384
    assert theirs.local_flow_control_window(1) > WINDOW_BYTES // 2 - 16_384


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_bytes_at_random_raise_nothing_else(pieces: list[bytes]) -> None:
    ours, greeted = Heard(), Heard()
    preface = client().data_to_send()
    for server, data in ((ours, b""), (greeted, preface)):
        try:
            for piece in [data, *pieces]:
                server.connection.receive(piece, 0.0)
        except Http2Failed:
            pass


@pytest.mark.parametrize("length", [100, HEADER_LIST_BYTES_MAX - 200, HEADER_LIST_BYTES_MAX])
def test_large_headers_come_in_parts_or_are_refused(length: int) -> None:
    theirs, ours = client(), Heard()
    theirs.send_headers(1, [(":method", "POST"), ("x", "%" * length)], end_stream=True)
    try:
        ours.connection.receive(theirs.data_to_send(), 0.0)
    except Http2Failed:
        assert length == HEADER_LIST_BYTES_MAX
    else:
        assert ours.streams[1].headers["x"] == "%" * length
