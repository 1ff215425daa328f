"""What tests of the running broker share: a raw client, captured exchanges to replay, a broker to kill."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skylark.broker.broker import Broker
from skylark.protocol.command import RemotingCommand
from skylark.remoting.address import split_address
from skylark.settings.fields import FAST_PORT_DISTANCE
from tests.support.broker import BrokerClient, until
from tests.unit.protocol.golden_frames import lines
from tests.unit.remoting.rig import RawClient

FAST_PEER = "client->broker-vip"
PEERS = ("client->broker", FAST_PEER)


@dataclass(frozen=True)
class Exchange:
    """One captured question and its answer, None if it got none."""

    code: int
    fields: dict[str, str]
    frame: bytes
    is_fast: bool
    answer: dict[str, Any] | None

    @property
    def remark(self) -> str:
        return (self.answer or {}).get("remark") or ""

    @property
    def answer_fields(self) -> dict[str, str]:
        return (self.answer or {}).get("extFields") or {}


def exchanges(scenario: str) -> Iterator[Exchange]:
    """Yield what clients asked the broker in a captured scenario, in order."""
    captured = list(lines(scenario))
    answers = {
        (line["conn"], line["header"]["opaque"]): line["header"]
        for line in captured
        if line["kind"] == "response" and line["direction"] == "response"
    }
    for line in captured:
        if line["peer"] in PEERS and line["kind"] != "response" and line["direction"] == "request":
            header = line["header"]
            yield Exchange(
                header["code"],
                header.get("extFields") or {},
                bytes.fromhex(line["frame_hex"]),
                line["peer"] == FAST_PEER,
                answers.get((line["conn"], header["opaque"])) if line["kind"] == "request" else None,
            )


class Wire(RawClient):
    """A raw client that can pick the answer to its question from among what the broker asks of its own."""

    async def answer(self, *, timeout_s: float = 60) -> RemotingCommand:
        async with asyncio.timeout(timeout_s):
            while True:
                command = await self.receive()
                if command.is_response:
                    return command

    async def ask(self, frame: bytes, *, timeout_s: float = 60) -> RemotingCommand:
        await self.send(frame)
        return await self.answer(timeout_s=timeout_s)


@contextlib.asynccontextmanager
async def wire(address: str) -> AsyncIterator[Wire]:
    """Open a raw connection for a while."""
    host, port = split_address(address)
    client = Wire(*await asyncio.open_connection(host, port, limit=1 << 16))
    try:
        yield client
    finally:
        await client.close()


def fast_address(broker: Broker) -> str:
    host, port = split_address(broker.address)
    return f"{host}:{port - FAST_PORT_DISTANCE}"


def anonymous_bytes(pid: int | str = "self") -> int:
    """The memory of a process that no file backs."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon here")


class Healthy:
    """A client that sends, pulls and shows that it lives, again and again; whatever others do."""

    def __init__(self, address: str, topic: str = "Healthy") -> None:
        self.rounds = 0
        self.slowest_s = 0.0
        self._address = address
        self._topic = topic

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        async with BrokerClient(self._address, "healthy@1") as client:
            while True:
                started = loop.time()
                body = b"healthy %d" % self.rounds
                queue_offset = (await client.send(self._topic, body)).queue_offset
                [message] = await client.pull(self._topic, 0, queue_offset, group="HealthyGroup")
                assert (message.body, message.queue_offset) == (body, queue_offset)
                await client.heartbeat(producers=["HealthyProducers"])
                self.slowest_s = max(self.slowest_s, loop.time() - started)
                self.rounds += 1
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def healthy_client(address: str) -> AsyncIterator[Healthy]:
    """Have a healthy client beside whatever is done; in the end it must have gone on all the time."""
    healthy = Healthy(address)
    running = asyncio.create_task(healthy.run())
    try:
        yield healthy
        await goes_on(healthy)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def goes_on(healthy: Healthy) -> None:
    """Wait until the healthy client has come round twice more."""
    rounds = healthy.rounds + 2
    await until(lambda: healthy.rounds >= rounds)
