"""Senders: every message is one attempt, written down before and after."""

from __future__ import annotations

import asyncio
import random
import time

from skylark.client.producer import Producer
from skylark.client.receipt import SendReceipt, SendStatus
from skylark.errors import ConnectFailed, NoRoute, RocketMQError, SystemBusy
from skylark.model.message import Message
from skylark.settings.client import ClientSettings, ProducerSettings
from skylark.torture.history import History, Outcome, Place, Queue, Send, body_of

SEND_TIMEOUT_MS = 3000
PAUSE_AFTER_FAILURE_S = 0.05
DELAY_LEVEL_MS = {1: 1000, 2: 5000}


class Senders:
    """Several senders, each with a key of its own whose messages follow one another."""

    def __init__(
        self, history: History, *, run: str, topic: str, namesrv: str, count: int, chance: random.Random
    ) -> None:
        self._history = history
        self._run = run
        self._topic = topic
        self._chance = chance
        self._count = count
        self._stopping = asyncio.Event()
        # One attempt each: what is tried again by itself would be one message with two places.
        settings = ProducerSettings(retries=0, send_timeout_ms=SEND_TIMEOUT_MS)
        self._producer = Producer(
            f"P-{run}",
            namesrv=namesrv,
            settings=settings,
            client=ClientSettings(instance_name=f"torture-{run}"),
        )
        self.delayed = False
        """Half of the messages wait for a second."""
        self.pause_ms = 1.0
        """Between two messages of one sender."""

    async def run(self) -> None:
        """Send until `stop`."""
        async with self._producer, asyncio.TaskGroup() as tasks:
            for number in range(self._count):
                tasks.create_task(self._send_key(f"k{number}"))

    def stop(self) -> None:
        self._stopping.set()

    async def _send_key(self, key: str) -> None:
        sequence = 0
        while not self._stopping.is_set():
            send = self._history.attempt(key, sequence)
            sequence += 1
            await self._send(send)
            pause_s = self.pause_ms / 1000 if send.outcome is Outcome.OK else PAUSE_AFTER_FAILURE_S
            await asyncio.sleep(pause_s * 2 * self._chance.random())

    async def _send(self, send: Send) -> None:
        level = 1 if self.delayed and send.number % 2 else 0
        started_ns = time.monotonic_ns()
        message = Message(
            self._topic,
            body_of(self._run, send),
            keys=[f"{self._run}-{send.number}"],
            sharding_key=send.key,
            delay_level=level,
        )
        try:
            receipt = await self._producer.send(message)
        except (NoRoute, ConnectFailed, SystemBusy):
            send.outcome = Outcome.FAILED
        except RocketMQError:
            send.outcome = Outcome.UNKNOWN
        else:
            self._note(send, receipt, delayed=bool(level))
        if level:
            send.not_before_ns = started_ns + DELAY_LEVEL_MS[level] * 1_000_000

    def _note(self, send: Send, receipt: SendReceipt, *, delayed: bool) -> None:
        if receipt.status is not SendStatus.OK:
            return
        send.outcome = Outcome.OK
        if not delayed:  # its first place is in the broker's own topic
            queue = Queue(receipt.queue.broker_name, receipt.queue.queue_id)
            send.place = Place(queue, receipt.queue_offset)
