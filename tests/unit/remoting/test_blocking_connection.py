"""What a blocking connection reads lies in blocks: bodies are whole and stay as they are."""

import random
import socket
import threading

import pytest

from skylark.protocol.command import Buffer, RemotingCommand, encode
from skylark.protocol.connection import Connection
from skylark.protocol.requests.pull import QueryMessage
from skylark.remoting.blocking_connection import BLOCK_BYTES, BLOCKS_KEPT, BlockingConnection
from tests.unit.remoting.rig import HOST

TIMEOUT_S = 60
SIZES = [0, 1, 100, 5000, 70_000, BLOCK_BYTES - 200, BLOCK_BYTES, 3 * BLOCK_BYTES + 17]


def answer_in_pieces(listener: socket.socket, bodies: list[bytes], rand: random.Random) -> None:
    """Answer as many requests as there are bodies, cut anywhere."""
    connected, _ = listener.accept()
    connected.settimeout(TIMEOUT_S)
    codec: Connection[None] = Connection()
    commands: list[RemotingCommand] = []
    with connected:
        while len(commands) < len(bodies):
            commands += codec.receive(connected.recv(65536))  # type: ignore[arg-type]
        pairs = zip(commands, bodies, strict=True)
        data = b"".join(part for command, body in pairs for part in encode(command.reply(body=body)))
        at = 0
        while at < len(data):
            size = rand.choice([1, 7, 8, 1000, 65_536, 500_000])
            connected.sendall(data[at : at + size])
            at += size
        connected.recv(1)  # until the other side has read all


@pytest.mark.parametrize("block_bytes", [1, 1000, BLOCK_BYTES, 6 << 20])
def test_bodies_are_whole_and_stay_as_they_are(block_bytes: int) -> None:
    rand = random.Random(block_bytes)
    bodies = [rand.randbytes(rand.choice(SIZES)) for _ in range(60)]
    question = QueryMessage("t", "k", 1, 0, 1)
    with socket.create_server((HOST, 0)) as listener:
        server = threading.Thread(target=answer_in_pieces, args=(listener, bodies, rand))
        server.start()
        with BlockingConnection(f"{HOST}:{listener.getsockname()[1]}") as connection:
            connection.block_bytes = block_bytes
            asked = connection.ask_many([question] * len(bodies), timeout_s=TIMEOUT_S)
            found: list[Buffer] = [connection.answer(item) for item in asked]
        server.join(TIMEOUT_S)
    assert [bytes(body) for body in found] == bodies


@pytest.mark.parametrize("is_held", [False, True])
def test_blocks_are_filled_again_when_nobody_looks_at_them(is_held: bool) -> None:
    rand = random.Random(1)
    bodies = [rand.randbytes(rand.randrange(1, 60_000)) for _ in range(100)]
    question = QueryMessage("t", "k", 1, 0, 1)
    blocks: list[bytearray] = []
    held: list[tuple[bytes, Buffer]] = []
    with socket.create_server((HOST, 0)) as listener:
        server = threading.Thread(target=answer_in_pieces, args=(listener, bodies, rand))
        server.start()
        with BlockingConnection(f"{HOST}:{listener.getsockname()[1]}") as connection:
            connection.block_bytes = 100_000
            asked = connection.ask_many([question] * len(bodies), timeout_s=TIMEOUT_S)
            for body in bodies:
                view = memoryview(connection.answer(asked.pop(0)))
                assert view == body
                if is_held and rand.random() < 0.5:
                    held.append((body, view))
                del view
                if len(asked) == len(bodies) // 2:
                    blocks = connection._blocks
        server.join(TIMEOUT_S)
    assert all(view == body for body, view in held)
    assert (connection._blocks is blocks) != is_held
    assert len(connection._blocks) <= BLOCKS_KEPT
