"""Other systems' clients for Python on this machine: messages a second, and processor time of the client.

    client_rates.py confluent-kafka|aiokafka|nats-py ADDRESS BODY_BYTES

Each line of input is a cell and a number of seconds; the answer is "rate", messages a second, microseconds of
a core for each message, and the number of messages. Runs in an environment of its own, which has these
clients and nothing of ours; `skylark_rates.py` answers the same lines with our client.
"""

from __future__ import annotations

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

GATHERED = 4096
BURST = 32
BACKLOG = 1_000_000
PULLED = 1024
FEW = 32
TUNED = {"fetch.queue.backoff.ms": 1}
"""By default librdkafka waits a second before it fetches again, once its queue was full."""
TOPIC = "benchmark"
BACKLOG_TOPIC = "backlog"
FILL_TIMEOUT_S = 180.0
TOPIC_TIMEOUT_S = 60.0

Result = tuple[int, float, float]
"""Messages, seconds, and seconds of processor time of this process."""
Cell = Callable[[float], Result]
"""Takes the seconds for which to send."""


class Client(ABC):
    """One system's client."""

    backlog = BACKLOG
    """Several times what a client fetches ahead: librdkafka takes up to 100,000 messages of a partition."""

    @abstractmethod
    def start(self, address: str, body: bytes) -> None:
        """Connect, and send the backlog."""

    @abstractmethod
    def cells(self) -> dict[str, Cell]: ...

    @abstractmethod
    def stop(self) -> None: ...


class Watch:
    """Measures from its creation to `result`."""

    def __init__(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def result(self, count: int) -> Result:
        started, used = self._started
        return count, time.perf_counter() - started, time.process_time() - used


class Backlog:
    """Counts messages, and measures from the first to the last."""

    def __init__(self, size: int = BACKLOG) -> None:
        self._watch: Watch | None = None
        self._left = size
        self._count = 0
        self.result: Result = (0, 0.0, 0.0)

    def take(self, count: int) -> bool:
        """Count some messages. Were these the last? The first ones start the watch and do not count."""
        if self._watch is None:
            self._watch, self._left = Watch(), self._left - count
            return False
        self._count += count
        if self._count < self._left:
            return False
        self.result = self._watch.result(self._count)
        return True


def repeated(step: Callable[[], int], seconds: float) -> Result:
    watch, count = Watch(), 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        count += step()
    return watch.result(count)


class ConfluentKafka(Client):
    """librdkafka, acks=all. It batches what waits, in threads of its own; each message has its callback."""

    def start(self, address: str, body: bytes) -> None:
        import confluent_kafka  # type: ignore[import-not-found]  # noqa: PLC0415

        self._kafka = confluent_kafka
        self._address = address
        self._body = body
        self._done = 0
        self._producer = self._new_producer(**{"linger.ms": 5})
        self._lone = self._new_producer(**{"linger.ms": 0})
        for topic in (TOPIC, BACKLOG_TOPIC):
            self._create(topic)
        self._send(BACKLOG_TOPIC, self.backlog)

    def _create(self, topic: str) -> None:
        """Have the server create a topic: messages that come before it are failed by a slow one."""
        deadline = time.monotonic() + TOPIC_TIMEOUT_S
        while (error := self._producer.list_topics(topic).topics[topic].error) is not None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"topic {topic} is not created: {error}")
            time.sleep(0.1)

    def _new_producer(self, **settings: int) -> Any:
        return self._kafka.Producer({"bootstrap.servers": self._address, "acks": "all", **settings})

    def _acknowledged(self, error: Any, message: Any) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        self._done += 1

    def _send(self, topic: str, count: int) -> None:
        produce, poll, body = self._producer.produce, self._producer.poll, self._body
        wanted = self._done + count
        left = count
        while left:
            try:
                produce(topic, body, on_delivery=self._acknowledged)
            except BufferError:  # librdkafka's queue is full
                poll(0.1)
                continue
            left -= 1
            if left % BURST == 0:
                poll(0)
        self._producer.flush(FILL_TIMEOUT_S)
        if self._done != wanted:
            raise RuntimeError(f"{wanted - self._done} messages were not acknowledged")

    def cells(self) -> dict[str, Cell]:
        return {
            "send-1": self._one,
            "send-many": self._many,
            "consume": lambda _: self._consume(1000, read=False),
            "consume-tuned": lambda _: self._consume(1000, read=False, **TUNED),
            "consume-read": lambda _: self._consume(1000, read=True),
            "consume-32": lambda _: self._consume(FEW, read=False),
        }

    def _one(self, seconds: float) -> Result:
        def step() -> int:
            self._lone.produce(TOPIC, self._body, on_delivery=self._acknowledged)
            self._lone.flush()
            return 1

        return repeated(step, seconds)

    def _many(self, seconds: float) -> Result:
        """As many in flight as librdkafka takes: by default 100,000."""
        producer, produce, body = self._producer, self._producer.produce, self._body
        before = self._done

        def step() -> int:
            for _ in range(BURST):
                try:
                    produce(TOPIC, body, on_delivery=self._acknowledged)
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
            return 0

        watch = Watch()
        repeated(step, seconds)
        producer.flush(FILL_TIMEOUT_S)
        return watch.result(self._done - before)

    def _consume(self, count: int, *, read: bool, **more: int) -> Result:
        settings = {"bootstrap.servers": self._address, "group.id": "g", "auto.offset.reset": "earliest"}
        consumer = self._kafka.Consumer({**settings, **more})
        parts = consumer.list_topics(BACKLOG_TOPIC).topics[BACKLOG_TOPIC].partitions
        start = self._kafka.OFFSET_BEGINNING
        consumer.assign([self._kafka.TopicPartition(BACKLOG_TOPIC, part, start) for part in parts])
        backlog, last = Backlog(), False
        while not last:
            found = consumer.consume(count, 1.0)
            if read:
                for message in found:
                    message.value()
                    message.key()
            last = bool(found) and backlog.take(len(found))
        consumer.close()
        return backlog.result

    def stop(self) -> None:
        self._producer.flush(FILL_TIMEOUT_S)


class AsyncioClient(Client):
    """A client for asyncio, on uvloop."""

    def start(self, address: str, body: bytes) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._body = body
        self._runner.run(self.connect(address))
        self._runner.run(self._fill())

    def stop(self) -> None:
        self._runner.run(self.close())
        self._runner.close()

    def cells(self) -> dict[str, Cell]:
        return {
            "send-1": lambda seconds: self._runner.run(self._one(seconds)),
            "send-many": lambda seconds: self._runner.run(self._many(seconds)),
            "consume": lambda _: self._runner.run(self._consume(PULLED, read=False)),
            "consume-read": lambda _: self._runner.run(self._consume(PULLED, read=True)),
            "consume-32": lambda _: self._runner.run(self._consume(FEW, read=False)),
        }

    @abstractmethod
    async def connect(self, address: str) -> None: ...

    @abstractmethod
    async def send(self, topic: str, body: bytes) -> None:
        """Send and wait until the server has it."""

    @abstractmethod
    async def submit(self, topic: str, body: bytes) -> Awaitable[Any]:
        """Send, and return what is done when the server has it."""

    @abstractmethod
    async def consume(self, backlog: Backlog, count: int, *, read: bool) -> None:
        """Read the backlog, up to `count` messages at once, and all bodies and keys if `read`."""

    @abstractmethod
    async def close(self) -> None: ...

    async def _one(self, seconds: float) -> Result:
        watch, count = Watch(), 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await self.send(TOPIC, self._body)
            count += 1
        return watch.result(count)

    async def _many(self, seconds: float) -> Result:
        watch, count = Watch(), 0
        end = time.perf_counter() + seconds
        waiting: deque[Awaitable[Any]] = deque()
        while time.perf_counter() < end:
            for _ in range(BURST):
                waiting.append(await self.submit(TOPIC, self._body))
            count += BURST
            while len(waiting) >= GATHERED:
                await waiting.popleft()
        while waiting:
            await waiting.popleft()
        return watch.result(count)

    async def _fill(self) -> None:
        left = self.backlog
        while left:
            count = min(left, GATHERED)
            for sent in [await self.submit(BACKLOG_TOPIC, self._body) for _ in range(count)]:
                await sent
            left -= count

    async def _consume(self, count: int, *, read: bool) -> Result:
        backlog = Backlog(self.backlog)
        await self.consume(backlog, count, read=read)
        return backlog.result


class AioKafka(AsyncioClient):
    """acks=all. It makes batches of all that waits: it has no other way to send."""

    async def connect(self, address: str) -> None:
        from aiokafka import AIOKafkaProducer  # type: ignore[import-not-found]  # noqa: PLC0415

        self._address = address
        self._producer: Any = AIOKafkaProducer(bootstrap_servers=address, acks="all")
        await self._producer.start()

    async def send(self, topic: str, body: bytes) -> None:
        await self._producer.send_and_wait(topic, body)

    async def submit(self, topic: str, body: bytes) -> Awaitable[Any]:
        sent: Awaitable[Any] = await self._producer.send(topic, body)
        return sent

    async def consume(self, backlog: Backlog, count: int, *, read: bool) -> None:
        from aiokafka import AIOKafkaConsumer  # noqa: PLC0415

        settings = {"bootstrap_servers": self._address, "auto_offset_reset": "earliest"}
        consumer: Any = AIOKafkaConsumer(BACKLOG_TOPIC, **settings)
        await consumer.start()
        last = False
        while not last:
            found = [
                message
                for part in (await consumer.getmany(timeout_ms=1000, max_records=count)).values()
                for message in part
            ]
            if read:
                for message in found:
                    _ = message.value, message.key
            last = bool(found) and backlog.take(len(found))
        await consumer.stop()

    async def close(self) -> None:
        await self._producer.stop()


class NatsPy(AsyncioClient):
    """JetStream, streams in files; the consumer acknowledges nothing."""

    backlog = BACKLOG // 20  # it fetches nothing ahead, and 40,000 a second

    async def connect(self, address: str) -> None:
        import nats  # type: ignore[import-not-found]  # noqa: PLC0415

        self._connection: Any = await nats.connect(f"nats://{address}")
        self._stream: Any = self._connection.jetstream(publish_async_max_pending=2 * GATHERED)
        for name in (TOPIC, BACKLOG_TOPIC):
            await self._stream.add_stream(name=name, subjects=[name])

    async def send(self, topic: str, body: bytes) -> None:
        await self._stream.publish(topic, body)

    async def submit(self, topic: str, body: bytes) -> Awaitable[Any]:
        sent: Awaitable[Any] = await self._stream.publish_async(topic, body)
        return sent

    async def consume(self, backlog: Backlog, count: int, *, read: bool) -> None:
        from nats.js.api import (  # type: ignore[import-not-found]  # noqa: PLC0415
            AckPolicy,
            ConsumerConfig,
        )

        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        pulling: Any = await self._stream.pull_subscribe(BACKLOG_TOPIC, config=config)
        last = False
        while not last:
            found = await pulling.fetch(count)
            if read:
                for message in found:
                    _ = message.data, message.subject
            last = bool(found) and backlog.take(len(found))
        await pulling.unsubscribe()

    async def close(self) -> None:
        await self._connection.close()


def serve(client: Client, address: str, body_bytes: int) -> None:
    """Answer the lines of the input."""
    client.start(address, bytes(range(256))[:body_bytes].ljust(body_bytes))
    cells = client.cells()
    print("cells", *cells, flush=True)
    for line in sys.stdin:
        name, seconds = line.split()
        count, took, used = cells[name](float(seconds))
        print("rate", count / took, used / count * 1e6, count, flush=True)
    client.stop()


if __name__ == "__main__":
    clients: dict[str, type[Client]] = {
        "confluent-kafka": ConfluentKafka,
        "aiokafka": AioKafka,
        "nats-py": NatsPy,
    }
    serve(clients[sys.argv[1]](), sys.argv[2], int(sys.argv[3]))
