"""A consumer process of a torture run: it journals every message before it acknowledges it.

python -m skylark.torture.member JSON     (the fields of `MemberTask`)
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.consumer.simple_consumer import AsyncSimpleConsumer
from skylark.client.received_message import ReceivedMessage
from skylark.errors import RocketMQError
from skylark.model.names import NO_RETRY
from skylark.settings.client import (
    ClientSettings,
    ConsumeFrom,
    PushConsumerSettings,
    SimpleConsumerSettings,
)
from skylark.torture.child import Journal, Knob
from skylark.torture.history import BrokerQueue, QueuePosition, Receipt, number_in, receipt_line

log = logging.getLogger(__name__)

START_PAUSE_S = 0.2
# A tenth of the default intervals, as in the brokers of a run: survivors take over soon.
SETTINGS = PushConsumerSettings(
    consume_from=ConsumeFrom.FIRST_OFFSET,
    batch_max=32,
    offset_persist_interval_ms=500,
    rebalance_interval_ms=2000,
    lock_interval_ms=2000,
    lock_expiry_ms=3000,
)

# Messages of a killed member come again while the run lasts.
POP_SETTINGS = SimpleConsumerSettings(
    consume_from=ConsumeFrom.FIRST_OFFSET, invisible_ms=8000, wait_ms=1000, attempts_max=1000
)


class MemberTask(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a consumer process."""

    namesrv: str
    topic: str
    group: str
    run: str
    journal: str
    slowness: str
    """File of a knob: milliseconds that it takes for each batch."""
    orderly: bool = False
    popping: bool = False


async def consume(task: MemberTask) -> None:
    """Consume until SIGTERM. Raises OSError."""
    journal, slowness = Journal(Path(task.journal)), Knob(Path(task.slowness))

    async def handle(messages: Sequence[ReceivedMessage]) -> None:
        journal.write(b"".join(_lines(task, messages, time.monotonic_ns())))
        if slowness.value:
            await asyncio.sleep(slowness.value / 1000)

    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    while not stopped.is_set():
        consumer = AsyncPushConsumer(
            task.group,
            namesrv=task.namesrv,
            settings=replace(SETTINGS, orderly=task.orderly),
            client=ClientSettings(
                instance_name=f"member-{os.getpid()}",
                heartbeat_interval_ms=3000,
                route_refresh_interval_ms=3000,
            ),
        )
        consumer.subscribe(task.topic, "*", handle)
        try:
            async with consumer:
                await stopped.wait()
        except RocketMQError as error:  # fails while no name server knows the topic
            log.warning("start failed, retrying reason=%s", error)
            await asyncio.sleep(START_PAUSE_S)


async def pop(task: MemberTask) -> None:
    """Receive and acknowledge until SIGTERM. Raises OSError."""
    journal, slowness = Journal(Path(task.journal)), Knob(Path(task.slowness))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    consumer = AsyncSimpleConsumer(
        task.group,
        namesrv=task.namesrv,
        settings=replace(POP_SETTINGS, orderly=task.orderly),
        client=ClientSettings(
            instance_name=f"member-{os.getpid()}", heartbeat_interval_ms=3000, route_refresh_interval_ms=3000
        ),
    )
    consumer.subscribe(task.topic)
    async with consumer:
        while not stopped.is_set():
            try:
                messages = await consumer.receive()
                journal.write(b"".join(_lines(task, messages, time.monotonic_ns())))
                if slowness.value:
                    await asyncio.sleep(slowness.value / 1000)
                await consumer.ack(*messages)
            except RocketMQError as error:
                log.warning("receive or acknowledgement failed, retrying reason=%s", error)
                await asyncio.sleep(START_PAUSE_S)


def _lines(task: MemberTask, messages: Sequence[ReceivedMessage], now_ns: int) -> Iterator[bytes]:
    for message in messages:
        number = number_in(task.run, message.body)
        if number is None:
            continue
        broker = message.broker_name
        # Retries are in a queue with its own offsets.
        if message.queue.topic != task.topic:
            broker += f"/{message.queue.topic}"
        elif message.handle is not None and message.handle.retry != NO_RETRY:
            broker += f"/retry-{message.handle.retry}"
        place = QueuePosition(BrokerQueue(broker, message.queue_id), message.queue_offset)
        yield receipt_line(Receipt(number, place, now_ns, ""))


def main(text: str) -> None:
    task = msgspec.json.decode(text, type=MemberTask)
    asyncio.run(pop(task) if task.popping else consume(task))


if __name__ == "__main__":
    main(sys.argv[1])
