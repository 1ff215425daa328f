"""Answers that another thread sends: whole, once, and never in the middle of what the loop sends."""

import asyncio
import select
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest

from skylark.remoting.server import OffloopReply, Peer
from tests.unit.remoting.rig import HOST, LOOPS, Rig, run_on, running, until

FRAME = b"an answer"
LARGE = bytes(range(256)) * (8 << 10)
"""More than the buffers of a connection hold."""

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.settimeout(20)
        yield ours, theirs


def in_thread(prepared: OffloopReply) -> None:
    thread = threading.Thread(target=prepared.send)
    thread.start()
    thread.join()


def received(client: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = client.recv(length - len(data))
        assert more
        data += more
    return data


def has_nothing(client: socket.socket) -> bool:
    return select.select([client], [], [], 0)[0] == []


# --- The answer alone ---


def test_it_is_sent_by_the_other_thread(pair: Pair) -> None:
    prepared = OffloopReply(pair[0].fileno(), FRAME)
    assert not prepared.is_sent
    in_thread(prepared)
    assert prepared.is_sent
    assert received(pair[1], len(FRAME)) == FRAME
    assert prepared.take_back() == b""


def test_what_was_taken_back_nobody_sends(pair: Pair) -> None:
    prepared = OffloopReply(pair[0].fileno(), FRAME)
    assert prepared.take_back() == b""
    in_thread(prepared)
    assert not prepared.is_sent
    assert has_nothing(pair[1])


def test_it_is_sent_once_however_often_the_other_thread_comes_by(pair: Pair) -> None:
    """A flush may end before the loop has taken back what the flush before it sent."""
    prepared = OffloopReply(pair[0].fileno(), FRAME)
    in_thread(prepared)
    in_thread(prepared)
    assert prepared.is_sent
    assert received(pair[1], len(FRAME)) == FRAME
    assert has_nothing(pair[1])


def test_the_rest_of_what_was_sent_in_part_is_given_back(pair: Pair) -> None:
    prepared = OffloopReply(pair[0].fileno(), LARGE)
    in_thread(prepared)
    rest = prepared.take_back()
    assert prepared.is_sent
    assert 0 < len(rest) < len(LARGE)
    assert received(pair[1], len(LARGE) - len(rest)) + rest == LARGE


def test_without_room_nothing_is_sent(pair: Pair) -> None:
    with pytest.raises(BlockingIOError):
        while True:
            pair[0].send(LARGE)
    prepared = OffloopReply(pair[0].fileno(), FRAME)
    in_thread(prepared)
    assert not prepared.is_sent
    assert prepared.take_back() == b""


def test_a_peer_that_is_gone_is_not_the_other_threads_business(pair: Pair) -> None:
    pair[1].close()
    prepared = OffloopReply(pair[0].fileno(), FRAME)
    in_thread(prepared)
    assert not prepared.is_sent


# --- On a server's connection ---


Scenario = Callable[[Peer, socket.socket], Awaitable[None]]


async def connected(rig: Rig, client: socket.socket) -> Peer:
    client.settimeout(20)
    await until(lambda: len(rig.server.peers) == 1)
    [peer] = rig.server.peers
    return peer


def on_each_loop(scenario: Scenario) -> Callable[[str], None]:
    """A test of a server's connection and the client at its other end, once with each kind of loop."""

    async def run() -> None:
        async with running() as rig:
            with socket.create_connection((HOST, rig.port)) as client:
                await scenario(await connected(rig, client), client)

    @pytest.mark.parametrize("loop", list(LOOPS))
    def test(loop: str) -> None:
        run_on(loop, run())

    return test


@on_each_loop
async def test_the_loop_need_not_have_a_turn(peer: Peer, client: socket.socket) -> None:
    prepared = peer.prepare(FRAME)
    assert prepared is not None
    assert peer.prepare(FRAME) is None  # one at a time
    in_thread(prepared)
    assert received(client, len(FRAME)) == FRAME
    peer.take_back(prepared)
    assert peer.prepare(FRAME) is not None


@on_each_loop
async def test_what_the_loop_sends_takes_it_back(peer: Peer, client: socket.socket) -> None:
    prepared = peer.prepare(FRAME)
    assert prepared is not None
    peer.write(b"first")
    assert peer.prepare(FRAME) is None
    assert await asyncio.to_thread(received, client, 5) == b"first"
    in_thread(prepared)
    assert not prepared.is_sent
    assert has_nothing(client)


@on_each_loop
async def test_the_rest_goes_before_all_else(peer: Peer, client: socket.socket) -> None:
    prepared = peer.prepare(LARGE * 4)
    assert prepared is not None
    in_thread(prepared)
    assert prepared.is_sent
    peer.write(b"next")
    peer.take_back(prepared)
    data = await asyncio.to_thread(received, client, len(LARGE) * 4 + 4)
    assert data == LARGE * 4 + b"next"


@on_each_loop
async def test_while_the_loop_still_sends_there_is_none(peer: Peer, client: socket.socket) -> None:
    peer.write(LARGE * 4)
    peer.flush()
    await asyncio.sleep(0)
    assert peer.prepare(FRAME) is None
    await asyncio.to_thread(received, client, len(LARGE) * 4)
    await until(lambda: peer.prepare(FRAME) is not None)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_on_a_closed_connection_nobody_sends(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            client = socket.create_connection((HOST, rig.port))
            peer = await connected(rig, client)
            prepared = peer.prepare(FRAME)
            assert prepared is not None
            client.close()
            await until(lambda: rig.gone == [peer])
            # Its descriptor is free, and the next connection has it.
            with socket.create_connection((HOST, rig.port)) as other:
                await connected(rig, other)
                in_thread(prepared)
                assert not prepared.is_sent
                assert has_nothing(other)
            assert peer.prepare(FRAME) is None

    run_on(loop, scenario())
