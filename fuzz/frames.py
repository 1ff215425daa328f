"""Mutated frames against the protocol: whatever comes in, nothing but the documented errors comes out.

    python -m fuzz.frames --seconds 30 [--seed N]

A failure prints the seed and the bytes; the same seed makes the same bytes again.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from skylark.errors import BrokerError, LocalProtocolError, RemoteProtocolError
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import PREFIX, PREFIX_BYTES, Encoding, RemotingCommand, encode
from skylark.protocol.connection import Command, Connection, Limits
from skylark.protocol.request import Request
from skylark.protocol.requests import REQUESTS
from tests.unit.protocol.golden_frames import captured

LIMITS = Limits(frame_bytes_max=64 << 10, header_bytes_max=48 << 10)
HEADER_PIECES = [
    b"null", b"NaN", b"-1", b"1e400", b"99999999999999999999", b"[]", b"{}", b'"', b"\\ud800", b"\x00",
    b"\xff", b"true", b'"x"', b"[" * 500, b'{"a":' * 500, b'{"code":310,', b'"extFields":{', b",", b":",
]  # fmt: skip


def mutate(frame: bytes, pick: random.Random) -> bytes:
    """Return the frame with one to four things wrong, or none."""
    data = bytearray(frame)
    for _ in range(pick.randint(0, 4)):
        pick.choice(MUTATIONS)(data, pick)
    return bytes(data)


def _flip(data: bytearray, pick: random.Random) -> None:
    if data:
        data[pick.randrange(len(data))] ^= 1 << pick.randrange(8)


def _overwrite(data: bytearray, pick: random.Random) -> None:
    start = pick.randrange(len(data) + 1)
    data[start : start + pick.randint(1, 8)] = pick.randbytes(pick.randint(0, 8))


def _cut(data: bytearray, pick: random.Random) -> None:
    del data[pick.randrange(len(data) + 1) :]


def _double(data: bytearray, pick: random.Random) -> None:
    start = pick.randrange(len(data) + 1)
    end = pick.randrange(start, len(data) + 1)
    data[start:start] = data[start:end]


def _lie(data: bytearray, pick: random.Random) -> None:
    """Change one of the lengths."""
    if len(data) >= PREFIX_BYTES:
        start = pick.choice([0, 4])
        length = int.from_bytes(data[start : start + 4], "big")
        lie = pick.choice([0, 1, 3, 4, 7, 8, length - 1, length + 1, -1, (1 << 31) - 1])
        data[start : start + 4] = (lie & 0xFFFFFFFF).to_bytes(4, "big")


def _insert_and_fit(data: bytearray, pick: random.Random) -> None:
    """Put something into the header and make the lengths right again."""
    if len(data) < PREFIX_BYTES:
        return
    _, word = PREFIX.unpack_from(data)
    header_end = PREFIX_BYTES + (word & 0xFFFFFF)
    if header_end <= len(data):
        at = pick.randrange(PREFIX_BYTES, header_end + 1)
        piece = pick.choice(HEADER_PIECES)
        gone = pick.choice([0, 0, 1, 4]) if at + 4 < header_end else 0
        data[at : at + gone] = piece
        PREFIX.pack_into(data, 0, len(data) - 4, word + len(piece) - gone & 0xFFFFFFFF)


MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [
    _flip, _flip, _overwrite, _cut, _double, _lie, _insert_and_fit, _insert_and_fit,
]  # fmt: skip


def check(data: bytes, pick: random.Random) -> int:
    """Feed the bytes whole and in pieces, and use what comes out. Return the number of commands."""
    typed = pick.random() < 0.5
    whole: Connection[None] = Connection(LIMITS, typed=typed)
    commands = whole.receive(data)
    assert whole.buffered_bytes <= min(len(data), LIMITS.frame_bytes_max)
    pieces: Connection[None] = Connection(LIMITS, typed=typed)
    again: list[Command] = []
    position = 0
    while position < len(data):
        step = pick.choice([1, 2, 7, 64, 1000, len(data)])
        again += pieces.receive(data[position : position + step])
        position += step
        assert pieces.buffered_bytes <= min(position, LIMITS.frame_bytes_max)
    assert again == commands, "pieces give other commands than the whole"
    assert type(pieces.failure) is type(whole.failure), (pieces.failure, whole.failure)
    for command in commands:
        if isinstance(command, RemotingCommand):
            use(command, pick)
    return len(commands)


def use(command: RemotingCommand, pick: random.Random) -> None:
    """Do with a command what servers and clients do."""
    request = REQUESTS.get(command.code)  # type: ignore[call-overload]
    if request is not None and not command.is_response:
        try:
            request.from_command(command).to_command()
        except (RemoteProtocolError, LocalProtocolError):
            pass
    for asked in pick.sample(asked_requests(), 8) if command.is_response else ():
        try:
            asked.result(command)
        except (BrokerError, RemoteProtocolError):
            pass
    for encoding in Encoding:
        try:
            parts = encode(command, encoding)
        except LocalProtocolError:
            continue
        back: Connection[None] = Connection(Limits(header_bytes_max=1 << 20, fields_max=1 << 20))
        [same] = back.receive(b"".join(parts))
        assert (same.code, same.opaque, same.flag) == (command.code, command.opaque, command.flag)
        assert bytes(same.body) == bytes(command.body)
        if encoding is Encoding.JSON:
            assert same == command, (same, command)


@cache
def asked_requests() -> list[Request[Any]]:
    """Return one captured request of every code, to read answers with."""
    requests: dict[int, Request[Any]] = {}
    for frame in captured():
        if frame.kind != "response" and frame.code in REQUESTS and frame.code not in requests:
            [command] = Connection[None]().receive(frame.frame)
            assert isinstance(command, RemotingCommand)
            requests[frame.code] = REQUESTS[RequestCode(frame.code)].from_command(command)
    return list(requests.values())


def run(seconds: float, seed: int) -> int:
    """Fuzz for a time. Return the number of inputs. Raises what a bug raises, with a note of the input."""
    frames = [frame.frame for frame in captured() if len(frame.frame) < 20_000]
    pick = random.Random(seed)  # noqa: S311 (to be repeatable)
    end = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < end:
        count = pick.choice([1, 1, 1, 2, 3])
        data = b"".join(mutate(pick.choice(frames), pick) for _ in range(count))
        state = pick.getstate()
        try:
            check(data, pick)
        except BaseException as error:
            error.add_note(f"seed={seed} input number {tried}: {data.hex()}")
            raise
        pick.setstate(state)
        tried += 1
    return tried


def main() -> None:
    """Parse the flags and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=None, help="what makes the inputs; random if not given")
    flags = parser.parse_args()
    seed = flags.seed if flags.seed is not None else random.SystemRandom().randrange(1 << 32)
    tried = run(flags.seconds, seed)
    sys.stdout.write(f"seed={seed} inputs={tried}: nothing found\n")


if __name__ == "__main__":
    main()
