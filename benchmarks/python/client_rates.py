"""What other systems' asyncio clients do on this machine.

    client_rates.py aiokafka|nats-py ADDRESS BODY_BYTES

Each line of input is a cell and a number of seconds; each is answered with "rate" and messages a second. Runs
in an environment of its own, which has these clients and nothing of ours.
"""

from __future__ import annotations

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

IN_FLIGHT = 256
GATHERED = 4096
BURST = 32
BACKLOG = 100_000
PULLED = 1024
TOPIC = "benchmark"
BACKLOG_TOPIC = "backlog"


class Client(ABC):
    """One system's client."""

    @abstractmethod
    async def start(self, address: str) -> None: ...

    @abstractmethod
    async def submit(self, topic: str, body: bytes) -> Awaitable[Any]:
        """Send, and return what is done when the server has it."""

    @abstractmethod
    async def read(self) -> Callable[[], Awaitable[int]]:
        """Return what reads the next messages of the backlog, from its beginning, and how many they were."""

    @abstractmethod
    async def stop(self) -> None: ...


class AioKafka(Client):
    """acks=all. It makes batches of all that waits: it has no other way to send."""

    async def start(self, address: str) -> None:
        from aiokafka import AIOKafkaProducer  # type: ignore[import-not-found]  # noqa: PLC0415

        self._address = address
        self._producer: Any = AIOKafkaProducer(bootstrap_servers=address, acks="all")
        await self._producer.start()

    async def submit(self, topic: str, body: bytes) -> Awaitable[Any]:
        sent: Awaitable[Any] = await self._producer.send(topic, body)
        return sent

    async def read(self) -> Callable[[], Awaitable[int]]:
        from aiokafka import AIOKafkaConsumer  # noqa: PLC0415

        consumer: Any = AIOKafkaConsumer(
            BACKLOG_TOPIC, bootstrap_servers=self._address, auto_offset_reset="earliest"
        )
        await consumer.start()
        left = BACKLOG

        async def pull() -> int:
            nonlocal left
            found = await consumer.getmany(timeout_ms=1000, max_records=PULLED)
            count = sum(map(len, found.values()))
            left -= count
            if left <= 0:
                await consumer.stop()
            return count

        return pull

    async def stop(self) -> None:
        await self._producer.stop()


class NatsPy(Client):
    """JetStream, streams in files; the consumer acknowledges nothing."""

    async def start(self, address: str) -> None:
        import nats  # type: ignore[import-not-found]  # noqa: PLC0415

        self._connection: Any = await nats.connect(f"nats://{address}")
        self._stream: Any = self._connection.jetstream(publish_async_max_pending=2 * GATHERED)
        for name in (TOPIC, BACKLOG_TOPIC):
            await self._stream.add_stream(name=name, subjects=[name])

    async def submit(self, topic: str, body: bytes) -> Awaitable[Any]:
        sent: Awaitable[Any] = await self._stream.publish_async(topic, body)
        return sent

    async def read(self) -> Callable[[], Awaitable[int]]:
        from nats.js.api import (  # type: ignore[import-not-found]  # noqa: PLC0415
            AckPolicy,
            ConsumerConfig,
        )

        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        pulling: Any = await self._stream.pull_subscribe(BACKLOG_TOPIC, config=config)

        async def pull() -> int:
            return len(await pulling.fetch(PULLED))

        return pull

    async def stop(self) -> None:
        await self._connection.close()


async def keep_in_flight(client: Client, body: bytes, window: int, seconds: float) -> float:
    started = time.perf_counter()
    end = started + seconds
    count = 0
    waiting: deque[Awaitable[Any]] = deque()
    burst = min(window, BURST)
    while time.perf_counter() < end:
        for _ in range(burst):
            waiting.append(await client.submit(TOPIC, body))
        count += burst
        while len(waiting) >= window:
            await waiting.popleft()
    while waiting:
        await waiting.popleft()
    return count / (time.perf_counter() - started)


async def fill(client: Client, body: bytes) -> None:
    for _ in range(BACKLOG // PULLED + 1):
        for sent in [await client.submit(BACKLOG_TOPIC, body) for _ in range(PULLED)]:
            await sent


async def read_backlog(client: Client) -> float:
    """From the first messages to the last."""
    pull = await client.read()
    first = await pull()
    while not first:
        first = await pull()
    started = time.perf_counter()
    count = 0
    while first + count < BACKLOG:
        count += await pull()
    return count / (time.perf_counter() - started)


async def serve(client: Client, address: str, body: bytes) -> None:
    await client.start(address)
    await fill(client, body)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        cell, seconds = line.split()
        if cell == "backlog":
            rate = await read_backlog(client)
        else:
            rate = await keep_in_flight(client, body, int(cell), float(seconds))
        print("rate", rate, flush=True)
    await client.stop()


if __name__ == "__main__":
    clients: dict[str, type[Client]] = {"aiokafka": AioKafka, "nats-py": NatsPy}
    asyncio.run(serve(clients[sys.argv[1]](), sys.argv[2], bytes(int(sys.argv[3]))))
