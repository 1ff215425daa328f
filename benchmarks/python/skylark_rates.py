"""Our clients for Python, measured as `client_rates.py` measures those of other systems.

python -m benchmarks.python.skylark_rates NAME_SERVER BODY_BYTES
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import uvloop

from benchmarks.python.client_rates import (
    BACKLOG,
    BACKLOG_TOPIC,
    BURST,
    FEW,
    GATHERED,
    PULLED,
    TOPIC,
    Backlog,
    Cell,
    Client,
    Result,
    Watch,
    repeated,
    serve,
)
from skylark import (
    Admin,
    ConsumeFrom,
    Message,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
    SendReceipt,
    aio,
)

COLUMNS = ("topic", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "body")
TABLE_ROWS = 16_384
BATCH_TOPIC = "batched"
BATCH_BYTES = 256 << 10  # librdkafka's limit is 1 MB
POSTED = 100_000  # as librdkafka
PARTITIONS = 4
CONSUME_TIMEOUT_S = 120
FIRST = ConsumeFrom.FIRST_OFFSET


class Skylark(Client):
    """Producers and consumers, blocking and for asyncio (on uvloop)."""

    def start(self, address: str, body: bytes) -> None:
        self._address = address
        self._body = body
        self._groups = itertools.count()
        self._producer = Producer("blocking", namesrv=address).start()
        self._table = pa.record_batch({"body": pa.array([body] * TABLE_ROWS, pa.binary())})
        backlog = pa.record_batch({"body": pa.array([body] * BACKLOG, pa.binary())})
        self._producer.send_arrow(backlog, topic=BACKLOG_TOPIC, body="body").check()
        with Admin(namesrv=address) as admin:
            admin.topics.create(BATCH_TOPIC, queues=PARTITIONS, attributes={"queue.type": "BatchCQ"})

    def stop(self) -> None:
        self._producer.stop()

    def cells(self) -> dict[str, Cell]:
        return {
            "send-1": self._one,
            "send-many": lambda seconds: uvloop.run(self._many(seconds)),
            "send-posts": lambda seconds: uvloop.run(self._posts(seconds, TOPIC)),
            "send-posts-batch": lambda seconds: uvloop.run(self._posts(seconds, BATCH_TOPIC)),
            "send-arrow": lambda seconds: self._arrow(seconds, TOPIC),
            "send-arrow-batch": lambda seconds: self._arrow(seconds, BATCH_TOPIC),
            "consume": lambda _: uvloop.run(self._push(PULLED, read=False)),
            "consume-read": lambda _: uvloop.run(self._push(PULLED, read=True)),
            "consume-32": lambda _: uvloop.run(self._push(FEW, read=False)),
            "consume-threads": lambda _: self._push_in_threads(),
            "consume-pull": lambda _: self._pull(read=False),
            "consume-arrow": lambda _: self._pull_arrow(),
        }

    # --- Sends ---

    def _one(self, seconds: float) -> Result:
        def step() -> int:
            self._producer.send(Message(TOPIC, self._body))
            return 1

        return repeated(step, seconds)

    def _batching(self) -> aio.Producer:
        settings = ProducerSettings(
            batching=True, batch_bytes_max=BATCH_BYTES, in_flight_max=1 << 14, send_timeout_ms=30_000
        )
        return aio.Producer("asyncio", namesrv=self._address, settings=settings)

    async def _many(self, seconds: float) -> Result:
        """Each message has its future."""
        async with self._batching() as producer:
            watch, count = Watch(), 0
            end = time.perf_counter() + seconds
            waiting: deque[asyncio.Future[Any]] = deque()
            while time.perf_counter() < end:
                for _ in range(BURST):
                    waiting.append(await producer.submit(Message(TOPIC, self._body)))
                count += BURST
                while len(waiting) >= GATHERED:
                    await waiting.popleft()
            while waiting:
                await waiting.popleft()
            return watch.result(count)

    async def _posts(self, seconds: float, topic: str) -> Result:
        """Each message has its callback, and as many are in flight as `confluent-kafka` takes."""
        done, sent = 0, 0

        def on_outcome(message: Message, outcome: SendReceipt | Exception) -> None:
            nonlocal done
            if isinstance(outcome, Exception):
                raise outcome
            done += 1

        async with self._batching() as producer:
            watch = Watch()
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                for _ in range(BURST):
                    while not producer.post(Message(topic, self._body), on_outcome):
                        await producer.drain()
                sent += BURST
                await producer.drain()
                while sent - done >= POSTED:
                    await producer.drain()
            await producer.flush()
            while done < sent:
                await producer.drain()
            return watch.result(done)

    def _arrow(self, seconds: float, topic: str) -> Result:
        def step() -> int:
            sent = self._producer.send_arrow(self._table, topic=topic, body="body")
            sent.check()
            return len(sent)

        return repeated(step, seconds)

    # --- Consumers: each of a new group, from the first message of the backlog ---

    def _group(self) -> str:
        return f"consumers-{next(self._groups)}"

    def _push_settings(self, pulled: int) -> PushConsumerSettings:
        return PushConsumerSettings(
            consume_from=FIRST, batch_max=pulled, pull_batch_max=pulled, first_pull_delay_ms=0
        )

    async def _push(self, pulled: int, *, read: bool) -> Result:
        settings = self._push_settings(pulled)
        consumer = aio.PushConsumer(self._group(), namesrv=self._address, settings=settings)
        backlog, done = Backlog(), asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> None:
            if read:
                read_all(messages)
            if backlog.take(len(messages)):
                done.set()

        consumer.subscribe(BACKLOG_TOPIC, "*", listen)
        async with consumer, asyncio.timeout(CONSUME_TIMEOUT_S):
            await done.wait()
        return backlog.result

    def _push_in_threads(self) -> Result:
        consumer = PushConsumer(self._group(), namesrv=self._address, settings=self._push_settings(PULLED))
        backlog, done, lock = Backlog(), threading.Event(), threading.Lock()

        def listen(messages: Sequence[ReceivedMessage]) -> None:
            with lock:
                if backlog.take(len(messages)):
                    done.set()

        consumer.subscribe(BACKLOG_TOPIC, "*", listen)
        with consumer:
            if not done.wait(CONSUME_TIMEOUT_S):
                raise TimeoutError("the backlog was not consumed in time")
        return backlog.result

    def _puller(self) -> PullConsumer:
        settings = PullConsumerSettings(consume_from=FIRST, pull_batch_max=PULLED)
        return PullConsumer(self._group(), namesrv=self._address, settings=settings)

    def _pull(self, *, read: bool) -> Result:
        backlog, last = Backlog(), False
        with self._puller() as consumer:
            consumer.subscribe(BACKLOG_TOPIC)
            while not last:
                messages = consumer.poll()
                if read:
                    read_all(messages)
                last = bool(messages) and backlog.take(len(messages))
        return backlog.result

    def _pull_arrow(self) -> Result:
        backlog, last = Backlog(), False
        with self._puller() as consumer:
            consumer.subscribe(BACKLOG_TOPIC)
            while not last:
                rows = len(consumer.poll_arrow(columns=COLUMNS))
                last = rows > 0 and backlog.take(rows)
        return backlog.result


def read_all(messages: Sequence[ReceivedMessage]) -> None:
    for message in messages:
        _ = message.body, message.keys


if __name__ == "__main__":
    serve(Skylark(), sys.argv[1], int(sys.argv[2]))
