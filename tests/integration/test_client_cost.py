"""What clients cost their program: nothing that grows with the messages, and next to nothing when idle."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from skylark.testing import EmbeddedServers

TOPIC = "orders"
GROWTH_BYTES_MAX = 100  # a message: anything that is kept of each is larger
SLACK_BYTES = 8 << 20  # what an allocator may keep, however many messages
IDLE_SHARE_MAX = 0.1  # of one processor; it is about a hundredth

LOAD = textwrap.dedent(
    """
    import asyncio, gc, sys
    from skylark import ConsumeFrom, Message, Producer, ProducerSettings, PushConsumerSettings, aio
    from skylark.bench.machine import anonymous_bytes

    count, topic = int(sys.argv[1]), sys.argv[2]
    received = 0

    async def send(producer, number):
        for _ in range(number // 100):
            message = Message(topic, b"x" * 500, tags="a", keys=["k"])
            sent = [await producer.submit(message) for _ in range(100)]
            await asyncio.gather(*sent)

    async def listen(messages):
        global received
        received += len(messages)

    def block(number):
        for _ in range(number):
            blocking.send(Message(topic, b"x" * 500))

    async def main():
        batching = ProducerSettings(batching=True)
        settings = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, batch_max=64)
        consumer = aio.PushConsumer("readers", settings=settings)
        consumer.subscribe(topic, "*", listen)
        async with aio.Producer("one") as one, aio.Producer("many", settings=batching) as many, consumer:
            for phase in range(1, 4):
                await send(many, count * 8 // 10)
                await send(one, count // 10)
                await asyncio.to_thread(block, count // 10)
                async with asyncio.timeout(600):
                    while received < count * phase:
                        await asyncio.sleep(0.05)
                gc.collect()
                print(anonymous_bytes(), flush=True)

    with Producer("blocking") as blocking:
        asyncio.run(main())
    """
)

IDLE = textwrap.dedent(
    """
    import sys, time
    from skylark import Message, Producer, PullConsumer, PushConsumer

    topic = sys.argv[1]
    pushed = PushConsumer("pushed")
    seen = []
    pushed.subscribe(topic, "*", seen.extend)
    with Producer("shop") as producer, PullConsumer("pulled") as pulled, pushed:
        pulled.subscribe(topic)
        while not seen:  # both groups begin at the end of queues that they have found
            producer.send(Message(topic, b"hello"))
            pulled.poll(100)
        wall, used = time.monotonic(), time.process_time()
        pulled.poll(3000)
        print((time.process_time() - used) / (time.monotonic() - wall))
    """
)


@pytest.fixture
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers(store={"commit_log_file_bytes": 64 << 20}) as running:
        running.create_topic(TOPIC)
        yield running


def run(servers: EmbeddedServers, code: str, *arguments: str, timeout_s: float) -> list[float]:
    """The numbers that a program of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "NAMESRV_ADDR": servers.namesrv},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


@pytest.mark.parametrize("count", [8_000, pytest.param(333_000, marks=pytest.mark.nightly)])
@pytest.mark.timeout(1800)
def test_memory_does_not_grow_with_the_messages(servers: EmbeddedServers, count: int) -> None:
    first, _, last = run(servers, LOAD, str(count), TOPIC, timeout_s=1700)
    assert last - first < SLACK_BYTES + 2 * count * GROWTH_BYTES_MAX


def test_idle_clients_leave_the_processor_alone(servers: EmbeddedServers) -> None:
    [share] = run(servers, IDLE, TOPIC, timeout_s=120)
    assert share < IDLE_SHARE_MAX
