"""A consumer as a process: it writes down every message it is given before it says that it is done.

python -m skylark.torture.member NAMESRV TOPIC GROUP RUN FILE [orderly]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from skylark.client.push_consumer import PushConsumer
from skylark.client.received import ReceivedMessage
from skylark.settings.client import ClientSettings
from skylark.settings.consumer import ConsumeFrom, PushConsumerSettings
from skylark.torture.history import Place, Queue, Receipt, number_in, receipt_line

# A tenth of the usual times, as the brokers of a run have it, so that the survivors take over soon.
SETTINGS = PushConsumerSettings(
    consume_from=ConsumeFrom.FIRST_OFFSET,
    batch_max=32,
    offset_persist_interval_ms=500,
    rebalance_interval_ms=2000,
    lock_interval_ms=2000,
    lock_expiry_ms=3000,
)


async def consume(namesrv: str, topic: str, group: str, run: str, file: Path, *, orderly: bool) -> None:
    """Consume until SIGTERM."""
    receipts = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    async def handle(messages: list[ReceivedMessage]) -> None:
        now_ns = time.monotonic_ns()
        os.write(receipts, b"".join(_lines(run, topic, messages, now_ns)))

    consumer = PushConsumer(
        group,
        namesrv=namesrv,
        settings=replace(SETTINGS, orderly=orderly),
        client=ClientSettings(
            instance_name=f"member-{os.getpid()}", heartbeat_interval_ms=3000, route_refresh_interval_ms=3000
        ),
    )
    consumer.subscribe(topic, "*", handle)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with consumer:
        await stopped.wait()


def _lines(run: str, topic: str, messages: list[ReceivedMessage], now_ns: int) -> list[bytes]:
    lines = []
    for message in messages:
        number = number_in(run, message.body)
        if number is not None:
            # What is tried again comes from another topic, whose offsets are others.
            broker = (
                message.broker_name if message.topic == topic else f"{message.broker_name}/{message.topic}"
            )
            place = Place(Queue(broker, message.queue_id), message.queue_offset)
            lines.append(receipt_line(Receipt(number, place, now_ns, "")))
    return lines


def main(arguments: list[str]) -> None:
    namesrv, topic, group, run, file, *more = arguments
    asyncio.run(consume(namesrv, topic, group, run, Path(file), orderly="orderly" in more))


if __name__ == "__main__":
    main(sys.argv[1:])
