"""Connection: lengths and limits before buffering, opaque matching."""

import struct

import pytest

from skylark.errors import FrameTooLarge, LocalProtocolError, MalformedFrame
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand, TypedCommand, encode, prefix
from skylark.protocol.connection import Connection, Limits
from skylark.protocol.requests.offset import UpdateConsumerOffset
from skylark.protocol.requests.send import SendBatchMessage

FRAME = b"".join(encode(RemotingCommand(code=105, opaque=1, fields={"topic": "t"}, body=b"body")))


def failure_of(data: bytes, limits: Limits | None = None) -> tuple[int, Exception | None, int]:
    connection: Connection[None] = Connection(limits or Limits())
    commands = connection.receive(data)
    return len(commands), connection.failure, connection.buffered_bytes


@pytest.mark.parametrize("length", [0, 1, 3, -1, -(1 << 31)])
@pytest.mark.parametrize("rest", [b"", b"\0\0\0\2{}", b"\0" * 100])
def test_lengths_too_small_for_a_frame(length: int, rest: bytes) -> None:
    commands, failure, buffered = failure_of(FRAME + struct.pack(">i", length) + rest)
    assert commands == 1
    assert isinstance(failure, MalformedFrame)
    assert buffered == 0


@pytest.mark.parametrize("length", [(1 << 31) - 1, (16 << 20) - 3, 0x16030100])
def test_lengths_above_the_limit_are_refused_by_four_bytes(length: int) -> None:
    commands, failure, buffered = failure_of(struct.pack(">i", length))
    assert commands == 0
    assert isinstance(failure, FrameTooLarge)
    assert failure.frame_bytes == length + 4
    assert buffered == 0


def test_the_largest_frame_is_taken() -> None:
    limits = Limits(frame_bytes_max=len(FRAME))
    assert failure_of(FRAME, limits) == (1, None, 0)
    limits = Limits(frame_bytes_max=len(FRAME) - 1)
    _, failure, _ = failure_of(FRAME, limits)
    assert isinstance(failure, FrameTooLarge)
    # Nothing is allocated for what has not come.
    connection: Connection[None] = Connection()
    connection.receive(prefix(2, (16 << 20) - 10) + b"{}")
    assert connection.failure is None
    assert connection.buffered_bytes == 10


def test_a_header_longer_than_its_frame() -> None:
    for rest in (b"", b"{}" * 100):
        _, failure, buffered = failure_of(struct.pack(">iI", 10, 100) + rest)
        assert isinstance(failure, MalformedFrame)
        assert buffered == 0


def test_a_header_above_its_limit_is_refused_before_it_comes() -> None:
    _, failure, buffered = failure_of(prefix(1001, 0), Limits(header_bytes_max=1000))
    assert isinstance(failure, FrameTooLarge)
    assert (failure.frame_bytes, failure.frame_bytes_max) == (1001, 1000)
    assert buffered == 0


def test_the_header_limit_lets_the_longest_legal_properties_pass() -> None:
    request = UpdateConsumerOffset("g", "\x01" * 32_767, 0, 1)
    connection: Connection[None] = Connection(typed=True)
    [command] = connection.receive(b"".join(encode(request.to_command())))
    assert isinstance(command, TypedCommand)
    assert command.request == request


def test_an_unknown_encoding_is_refused_before_the_frame_has_come() -> None:
    _, failure, buffered = failure_of(prefix(10, 1000, 7))
    assert isinstance(failure, MalformedFrame)
    assert buffered == 0


def test_too_many_fields() -> None:
    fields = {f"k{number}": "v" for number in range(257)}
    data = b"".join(encode(RemotingCommand(code=1, fields=fields)))
    _, failure, _ = failure_of(data)
    assert isinstance(failure, MalformedFrame)
    del fields["k0"]
    assert failure_of(b"".join(encode(RemotingCommand(code=1, fields=fields)))) == (1, None, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST",
        bytes.fromhex("16030100f1010000ed0303"),  # TLS client hello
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"\r\n\r\n\x00\r\nQUIT\n",  # PROXY, version 2
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
    ],
)
def test_other_protocols_are_refused_by_their_first_bytes(data: bytes) -> None:
    connection: Connection[None] = Connection()
    connection.receive(data[:4])
    assert isinstance(connection.failure, FrameTooLarge)


def test_many_frames_in_one_read_and_one_frame_in_many() -> None:
    connection: Connection[None] = Connection()
    commands = connection.receive(FRAME * 50 + FRAME[:20])
    assert len(commands) == 50
    assert connection.buffered_bytes == 20
    for byte in FRAME[20:-1]:
        assert connection.receive(bytes([byte])) == []
    [command] = connection.receive(FRAME[-1:] + FRAME[:2])
    assert command == commands[0]
    assert bytes(command.body) == b"body"
    assert connection.buffered_bytes == 2


def test_bodies_stay_valid_after_more_was_received() -> None:
    connection: Connection[None] = Connection()
    assert connection.receive(FRAME[:-2]) == []
    [first] = connection.receive(FRAME[-2:] + FRAME[:-2])
    [second] = connection.receive(b"XX" + FRAME[:-2])
    [third] = connection.receive(b"YY")
    assert [bytes(command.body) for command in (first, second, third)] == [b"body", b"boXX", b"boYY"]


def test_a_frame_without_a_body_has_an_empty_one() -> None:
    [command] = Connection[None]().receive(b"".join(encode(RemotingCommand(code=1))))
    assert command.body == b""


def test_a_request_with_a_body_of_a_hot_code() -> None:
    request = SendBatchMessage("g", "t", "TBW102", 4, 0, 0, 0, 0, "", batch=True, body=b"messages")
    [command] = Connection[None](typed=True).receive(b"".join(encode(request.to_command(oneway=True))))
    assert isinstance(command, TypedCommand)
    assert command.is_oneway
    assert command.code == RequestCode.SEND_BATCH_MESSAGE
    assert isinstance(command.request, SendBatchMessage)
    assert bytes(command.body) == b"messages"


# --- Requests that wait ---


def test_answers_find_who_waits_in_any_order_and_once() -> None:
    connection: Connection[str] = Connection()
    commands = [RemotingCommand(code=1) for _ in range(3)]
    for name, command in zip("abc", commands, strict=True):
        command.opaque = connection.reserve_opaque(name)
    assert len({command.opaque for command in commands}) == 3
    assert connection.pending_requests == 3
    assert connection.take_waiter(commands[2].opaque) == "c"
    assert connection.take_waiter(commands[2].opaque) is None
    assert connection.take_waiter(12345) is None
    assert connection.take_all_waiters() == ["a", "b"]
    assert connection.pending_requests == 0


def test_too_many_pending_requests() -> None:
    connection: Connection[int] = Connection(Limits(pending_requests_max=2))
    first = RemotingCommand(code=1)
    first.opaque = connection.reserve_opaque(1)
    connection.reserve_opaque(2)
    with pytest.raises(LocalProtocolError):
        connection.reserve_opaque(3)
    connection.take_waiter(first.opaque)
    connection.reserve_opaque(3)


def test_opaques_wrap_and_skip_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    connection: Connection[int] = Connection()
    held = RemotingCommand(code=1)
    held.opaque = connection.reserve_opaque(0)
    assert held.opaque == 0
    monkeypatch.setattr(connection, "_next_opaque", (1 << 31) - 1)
    last, wrapped = RemotingCommand(code=1), RemotingCommand(code=1)
    last.opaque = connection.reserve_opaque(1)
    wrapped.opaque = connection.reserve_opaque(2)
    assert last.opaque == (1 << 31) - 1
    assert wrapped.opaque == 1
