"""Pop and acknowledge: batches of 32 by remoting, and our simple consumer, in messages a second.

python -m benchmarks.pop                                  a broker of ours, started for the run
python -m benchmarks.pop --namesrv HOST:PORT              servers that run already, Apache's too

`single_acks` pops 32 messages and acknowledges each by its own request, pipelined, as Java's consumer does;
`batch_acks` acknowledges them by one request, four workers at a time. Both use `skylark.aio.SimpleConsumer`;
`per_core` counts the processor time of the client alone.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import ExitStack
from typing import Any

from benchmarks._common import report
from skylark import ConsumeFrom, Message, SimpleConsumerSettings, aio
from skylark.bench.machine import scratch
from skylark.bench.servers import SETTINGS, SkylarkServers
from skylark.client.received_message import ReceivedMessage

BODY = bytes(128)
BATCH = 32
QUEUES = 8
WORKERS = 4


async def fill(namesrv: str, topic: str, count: int) -> None:
    async with aio.Admin(namesrv=namesrv) as admin:
        await admin.topics.create(topic, queues=QUEUES)
    async with aio.Producer("benchmark", namesrv=namesrv) as producer:
        for first in range(0, count, BATCH):
            await producer.send_batch([Message(topic, BODY)] * min(BATCH, count - first))


async def consume(namesrv: str, topic: str, count: int, cell: str) -> dict[str, Any]:
    """Receive and acknowledge all messages of a topic, by several workers on one connection."""
    settings = SimpleConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, wait_ms=500)
    left = count
    async with aio.SimpleConsumer(f"G-{topic}", namesrv=namesrv, settings=settings) as consumer:
        consumer.subscribe(topic)

        async def acknowledge(messages: list[ReceivedMessage]) -> None:
            if cell == "single_acks":
                await asyncio.gather(*(consumer.ack(message) for message in messages))
            else:
                await consumer.ack(*messages)

        async def work() -> None:
            nonlocal left
            while left > 0:
                messages = await consumer.receive(BATCH)
                if messages:
                    left -= len(messages)
                    await acknowledge(messages)

        started, processor = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(WORKERS)))
        elapsed_s, busy_s = time.perf_counter() - started, time.process_time() - processor
    return {"per_second": round(count / elapsed_s), "per_core": round(count / busy_s), "messages": count}


async def measure(namesrv: str, count: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for cell in ("single_acks", "batch_acks"):
        topic = f"pop-{cell.replace('_', '-')}-{time.time_ns()}"
        await fill(namesrv, topic, count)
        results[cell] = await consume(namesrv, topic, count, cell)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--namesrv", default="", help="Servers that run already.")
    parser.add_argument("--messages", type=int, default=100_000)
    options = parser.parse_args()
    with ExitStack() as stack:
        namesrv = options.namesrv
        if not namesrv:
            servers = stack.enter_context(SkylarkServers(stack.enter_context(scratch()), SETTINGS))
            namesrv = servers.name_server
        report("pop", asyncio.run(measure(namesrv, options.messages)))


if __name__ == "__main__":
    main()
