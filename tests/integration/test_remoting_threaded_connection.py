"""One blocking connection for many threads: each gets its own answer; a lost one is opened again."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import msgspec
import pytest

from skylark.errors import ConnectFailed, ConnectionLost, MalformedFrame, RequestTimeout
from skylark.protocol.command import RemotingCommand, encode
from skylark.remoting.threaded_connection import ThreadedConnection
from tests.support.black_hole import black_hole

PREFIX = struct.Struct(">iI")
Answer = Callable[[socket.socket, list[int]], None]


class Server:
    """A server of a few lines, so that a test can say when it answers what."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections: list[socket.socket] = []
        self.answer: Answer = answer_all
        self.threads: list[threading.Thread] = []

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self.listener.accept()
                self.connections.append(connected)
                thread = threading.Thread(target=self.serve, args=(connected,))
                self.threads.append(thread)
                thread.start()

    def serve(self, connected: socket.socket) -> None:
        received = b""
        with contextlib.suppress(OSError):
            while data := connected.recv(65536):
                received += data
                opaques = []
                while len(received) >= 8:
                    frame_bytes, header_bytes = PREFIX.unpack_from(received)
                    if len(received) < 4 + frame_bytes:
                        break
                    header = msgspec.json.decode(received[8 : 8 + header_bytes])
                    opaques.append(header["opaque"])
                    received = received[4 + frame_bytes :]
                self.answer(connected, opaques)

    def close(self) -> None:
        # Closing alone would not wake those who wait.
        for each in (self.listener, *self.connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def answer_all(connected: socket.socket, opaques: list[int]) -> None:
    for opaque in opaques:
        connected.sendall(reply(opaque))


def reply(opaque: int) -> bytes:
    return b"".join(encode(RemotingCommand(code=0, opaque=opaque, flag=1, remark=f"to {opaque}")))


def frame(opaque: int) -> tuple[bytes, ...]:
    return tuple(bytes(part) for part in encode(RemotingCommand(code=1, opaque=opaque, body=b"x" * 100)))


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    accepting = threading.Thread(target=made.run)
    accepting.start()
    yield made
    made.close()
    for thread in (accepting, *made.threads):
        thread.join(10)


@pytest.fixture
def connection(server: Server) -> Iterator[ThreadedConnection]:
    made = ThreadedConnection(server.address)
    yield made
    made.close()


def ask(connection: ThreadedConnection, timeout_s: float = 20) -> RemotingCommand:
    sent: list[int] = []

    def make(opaque: int) -> tuple[bytes, ...]:
        sent.append(opaque)
        return frame(opaque)

    answer = connection.exchange(make, deadline=time.monotonic() + timeout_s, request="ASK")
    assert answer.remark == f"to {sent[0]}"
    return answer


def in_threads(number: int, work: Callable[[int], object]) -> list[Exception]:
    errors: list[Exception] = []

    def run(index: int) -> None:
        try:
            work(index)
        except Exception as error:  # noqa: BLE001 (handed to the test)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return errors


def test_threads_share_a_connection_and_each_gets_its_own_answer(
    server: Server, connection: ThreadedConnection
) -> None:
    def work(_: int) -> None:
        for _ in range(100):
            ask(connection)

    assert in_threads(8, work) == []
    assert len(server.connections) == 1


def test_answers_may_come_in_any_order(server: Server, connection: ThreadedConnection) -> None:
    held: list[int] = []
    lock = threading.Lock()

    def in_reverse(connected: socket.socket, opaques: list[int]) -> None:
        with lock:
            held.extend(opaques)
            if len(held) == 6:
                answer_all(connected, sorted(held, reverse=True))

    server.answer = in_reverse
    assert in_threads(6, lambda _: ask(connection)) == []


def test_one_that_waits_in_vain_does_not_hold_up_the_others(
    server: Server, connection: ThreadedConnection
) -> None:
    def not_the_first(connected: socket.socket, opaques: list[int]) -> None:
        answer_all(connected, [opaque for opaque in opaques if opaque])

    server.answer = not_the_first
    started = threading.Event()

    def work(index: int) -> None:
        if index == 0:
            started.set()
            ask(connection, 0.4)
        else:
            started.wait(10)
            time.sleep(0.05)  # the first one reads by now
            for _ in range(20):
                ask(connection)

    errors = in_threads(4, work)
    assert [type(error) for error in errors] == [RequestTimeout]
    assert len(server.connections) == 1, "others were answered meanwhile: it is alive"


def test_a_silent_connection_is_closed_and_the_next_one_is_new(
    server: Server, connection: ThreadedConnection
) -> None:
    ask(connection)
    server.answer = lambda *_: None
    with pytest.raises(RequestTimeout, match="ASK"):
        ask(connection, 0.1)
    server.answer = answer_all
    ask(connection)
    assert len(server.connections) == 2


def test_a_lost_connection_fails_all_who_wait_and_is_opened_again(
    server: Server, connection: ThreadedConnection
) -> None:
    held: list[int] = []

    def close_after_three(connected: socket.socket, opaques: list[int]) -> None:
        held.extend(opaques)
        if len(held) >= 3:
            connected.shutdown(socket.SHUT_RDWR)

    server.answer = close_after_three
    errors = in_threads(3, lambda _: ask(connection))
    assert [type(error) for error in errors] == [ConnectionLost] * 3
    server.answer = answer_all
    ask(connection)


def test_closing_wakes_who_waits(server: Server, connection: ThreadedConnection) -> None:
    server.answer = lambda *_: threading.Timer(0.05, connection.close).start()
    with pytest.raises(ConnectionLost, match="closed"):
        ask(connection)


def test_nonsense_ends_the_connection(server: Server, connection: ThreadedConnection) -> None:
    server.answer = lambda connected, _: connected.sendall(PREFIX.pack(100, 0x7F000000) + bytes(100))
    with pytest.raises(MalformedFrame):
        ask(connection)


def test_a_frame_that_cannot_be_made_leaves_nothing_behind(connection: ThreadedConnection) -> None:
    def refuse(_: int) -> tuple[bytes, ...]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        connection.exchange(refuse, deadline=time.monotonic() + 5, request="ASK")
    ask(connection)


def test_an_idle_connection_that_the_server_closed_is_noticed_before_it_is_used(
    server: Server, connection: ThreadedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.remoting.threaded_connection.IDLE_CHECK_S", 0.01)
    ask(connection)
    time.sleep(0.05)
    ask(connection)
    assert len(server.connections) == 1
    server.connections[0].shutdown(socket.SHUT_RDWR)
    time.sleep(0.05)
    ask(connection)
    assert len(server.connections) == 2


def test_nobody_at_the_address_is_told() -> None:
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
        ask(ThreadedConnection("127.0.0.1:1"))
    with pytest.raises(ConnectFailed, match="host:port"):
        ask(ThreadedConnection("nonsense"))


# --- Addresses that swallow connections ---


def test_connecting_takes_no_more_time_than_there_is() -> None:
    with black_hole() as address:
        connection = ThreadedConnection(address, connect_timeout_s=60)
        began = time.monotonic()
        with pytest.raises(ConnectFailed, match="timed out"):
            ask(connection, 0.2)
        assert time.monotonic() - began < 20


def test_threads_that_wait_for_a_connection_fail_together() -> None:
    with black_hole() as address:
        connection = ThreadedConnection(address, connect_timeout_s=1)
        began = time.monotonic()
        errors = in_threads(20, lambda _: ask(connection))
        assert time.monotonic() - began < 15
        assert [type(error) for error in errors] == [ConnectFailed] * 20


def test_a_thread_does_not_wait_for_its_turn_beyond_its_time() -> None:
    with black_hole() as address:
        connection = ThreadedConnection(address, connect_timeout_s=3)
        patient = threading.Thread(target=lambda: in_threads(1, lambda _: ask(connection)))
        patient.start()
        while not connection._sending.locked():
            time.sleep(0.001)
        with pytest.raises(ConnectFailed, match="other threads"):
            ask(connection, 0.1)
        assert patient.is_alive()
        patient.join(60)


class Interrupted(Exception):
    """What a signal's handler raises."""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals for threads")
def test_nothing_follows_a_frame_that_was_interrupted(server: Server, connection: ThreadedConnection) -> None:
    may_read = threading.Event()
    sender = threading.main_thread().ident
    serve = server.serve

    def interrupt(connected: socket.socket) -> None:
        connected.recv(1, socket.MSG_PEEK)  # some of it has left
        assert sender is not None
        signal.pthread_kill(sender, signal.SIGUSR1)
        may_read.wait(60)
        serve(connected)

    def handle(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    server.serve = interrupt  # type: ignore[method-assign]
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(Interrupted):
            connection.exchange(
                lambda opaque: (*frame(opaque)[:-1], b"x" * (64 << 20)),
                deadline=time.monotonic() + 60,
                request="ASK",
            )
    finally:
        signal.signal(signal.SIGUSR1, before)
        server.serve = serve  # type: ignore[method-assign]
        may_read.set()
    ask(connection, 20)
    assert len(server.connections) == 2
