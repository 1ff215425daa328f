"""Mutated frames of clients against a live broker: it answers or closes, and others do not notice.

    python -m fuzz.broker --seconds 30 [--seed N] [--directory DIR]

A failure prints the seed and the bytes; the same seed makes the same bytes again.
"""

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvloop

from fuzz.frames import mutate
from skylark.remoting.address import split_address
from tests.integration.broker_rig import PEERS, anonymous_bytes, goes_on, healthy_client
from tests.support.broker import running_broker, until
from tests.unit.protocol.golden_frames import FRAMES, NOT_FRAMES, lines

FRAME_BYTES_MAX = 20_000
ROUND_INPUTS = 50
READ_S = 0.02
SHOWN_CHARS = 400
GROWTH_BYTES_MAX = 128 << 20
UPDATE_BROKER_CONFIG = 25  # what would be in force afterwards is not what is tested here
UNTHOUGHT_OF = ("handler failed", "a task failed", "answer cannot be sent")


@dataclass(frozen=True)
class Report:
    """What was done."""

    inputs: int
    grown_bytes: int


class Watch(logging.Handler):
    """Keeps what the broker logs of errors that nobody thought of."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(UNTHOUGHT_OF):
            self.found.append(f"{text}: {record.exc_info[1] if record.exc_info else ''!r}")


def client_frames() -> list[bytes]:
    """What clients were seen to send to a broker."""
    names = sorted(path.name.removesuffix(".jsonl.gz") for path in FRAMES.glob("*.jsonl.gz"))
    found: dict[tuple[str, int], bytes] = {}
    for name in names:
        for line in lines(name) if name not in NOT_FRAMES else ():
            is_question = line["peer"] in PEERS and line["direction"] == "request"
            if is_question and line["header"]["code"] != UPDATE_BROKER_CONFIG:
                frame = bytes.fromhex(line["frame_hex"])
                if len(frame) < FRAME_BYTES_MAX:
                    found[name, line["n"]] = frame
    return list(found.values())


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    watch = Watch()
    logger = logging.getLogger("skylark")
    logger.addHandler(watch)
    try:
        yield watch
    finally:
        logger.removeHandler(watch)


async def feed(address: str, data: bytes, seed: int) -> None:
    """Send bytes on a connection of their own, read for a moment, and go: orderly, or not."""
    pick = random.Random(seed)  # noqa: S311 (to be repeatable)
    reader, writer = await asyncio.open_connection(*split_address(address))
    with contextlib.suppress(OSError):  # the broker may hang up at any time
        if pick.random() < 0.2:
            middle = pick.randrange(len(data) + 1)
            writer.write(data[:middle])
            await asyncio.sleep(0)
            data = data[middle:]
        writer.write(data)
        if pick.random() < 0.3:
            writer.write_eof()
        async with asyncio.timeout(READ_S):
            while await reader.read(1 << 16):
                pass
    if pick.random() < 0.5:
        writer.transport.abort()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def inputs(frames: list[bytes], pick: random.Random) -> list[bytes]:
    """One round's worth."""
    return [
        b"".join(mutate(pick.choice(frames), pick) for _ in range(pick.choice([1, 1, 2, 5])))
        for _ in range(ROUND_INPUTS)
    ]


@contextlib.asynccontextmanager
async def loaded_broker(directory: Path) -> AsyncIterator[tuple[str, AsyncIterator[None]]]:
    """A broker with a healthy client; the iterator says, step by step, that both are still well."""
    async with running_broker(directory, offset_persist_interval_ms=500) as broker:
        async with healthy_client(broker.address) as healthy:

            async def well() -> AsyncIterator[None]:
                while True:
                    await goes_on(healthy)
                    yield

            yield broker.address, well()
        await until(lambda: not broker._server.peers)
        assert broker._server.bytes_in_flight == 0
        assert broker.long_polling.count == 0


async def attack(seconds: float, seed: int, directory: Path) -> Report:
    frames = client_frames()
    pick = random.Random(seed)  # noqa: S311 (to be repeatable)
    end = time.monotonic() + seconds
    tried, before = 0, 0
    with watching() as watch:
        async with loaded_broker(directory) as (address, well):
            while time.monotonic() < end or not tried:
                round_inputs = inputs(frames, pick)
                # Each has its own choices: how the loop takes turns must not change the inputs.
                feeds = [feed(address, data, pick.getrandbits(32)) for data in round_inputs]
                try:
                    await asyncio.gather(*feeds)
                    await anext(well)
                    assert not watch.found, watch.found
                except BaseException as error:
                    shown = "\n".join(data.hex()[:SHOWN_CHARS] for data in round_inputs)
                    error.add_note(f"seed={seed}, among the {len(feeds)} inputs after {tried}:\n{shown}")
                    raise
                tried += len(round_inputs)
                before = before or anonymous_bytes()
            grown = anonymous_bytes() - before
    assert grown < GROWTH_BYTES_MAX, f"seed={seed}: {grown} bytes more after {tried} inputs"
    return Report(tried, grown)


def run(seconds: float, seed: int, directory: Path) -> Report:
    """Fuzz for a time. Raises what a bug raises, with a note of the inputs."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(attack(seconds, seed, directory))


def main() -> None:
    """Parse the flags and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=None, help="what makes the inputs; random if not given")
    parser.add_argument("--directory", type=Path, default=None, help="where the store lies; else temporary")
    flags = parser.parse_args()
    seed = flags.seed if flags.seed is not None else random.SystemRandom().randrange(1 << 32)
    with tempfile.TemporaryDirectory() as temporary:
        report = run(flags.seconds, seed, flags.directory or Path(temporary))
    sys.stdout.write(f"seed={seed} inputs={report.inputs} grown={report.grown_bytes >> 20} MiB: all well\n")


if __name__ == "__main__":
    main()
