"""Senders as a process: every message is one attempt, written down before and after.

python -m skylark.torture.sender JSON     (the fields of `SenderTask`)
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from pathlib import Path

import msgspec

from skylark.client.producer.producer import AsyncProducer
from skylark.client.producer.send_receipt import SendReceipt, SendStatus
from skylark.client.producer.transaction_producer import AsyncTransactionProducer, TransactionState
from skylark.client.received_message import ReceivedMessage
from skylark.errors import NoRoute, RocketMQError, SendFailed
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import ClientSettings, ProducerSettings
from skylark.torture import fates
from skylark.torture.child import Journal, Knob, Tail, end_with_parent
from skylark.torture.history import (
    QUIET_LINE,
    BrokerQueue,
    History,
    QueuePosition,
    Send,
    SendOutcome,
    attempt_line,
    body_of,
    number_in,
    outcome_line,
)

SEND_TIMEOUT_MS = 3000
PAUSE_AFTER_FAILURE_S = 0.05
DELAY_LEVEL_MS = {1: 1000, 2: 5000}
NUMBERS_OF_A_SENDER = 10**9
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"


class SenderTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of senders is to do."""

    index: int
    """Of this process: its messages have numbers and keys of their own."""
    keys: int
    """Each has its messages sent one after the other."""
    run: str
    topic: str
    namesrv: str
    journal: str
    quiet: str
    """A knob: when it is turned, no more is sent; questions about transactions are still answered."""
    queues: list[tuple[str, int]] = []
    """Each key has one of these queues, as ordered messages need it; none: any queue will do."""
    delayed: bool = False
    """Half of the messages wait for a second."""
    transactions: bool = False
    pause_ms: float = 4.0
    """Between two messages of one key, on average."""


class Senders:
    """Sends until the knob is turned, and stays until SIGTERM."""

    def __init__(self, task: SenderTask) -> None:
        """Raises OSError."""
        self._task = task
        history = History()
        history.take_sends(Tail(Path(task.journal)).read())
        self._next = max(history.sends, default=task.index * NUMBERS_OF_A_SENDER - 1) + 1
        self._journal = Journal(Path(task.journal))
        self._quiet = Knob(Path(task.quiet))
        self._chance = random.Random(self._next)  # noqa: S311 - only pauses
        self._producer = self._make_producer()

    def _make_producer(self) -> AsyncProducer:
        task = self._task
        # One attempt each: what is tried again by itself would be one message with two places.
        settings = ProducerSettings(retries=0, send_timeout_ms=SEND_TIMEOUT_MS)
        client = ClientSettings(
            instance_name=f"sender-{task.index}", heartbeat_interval_ms=1000, route_refresh_interval_ms=3000
        )
        group = f"P-{task.run}"
        if not task.transactions:
            return AsyncProducer(group, namesrv=task.namesrv, settings=settings, client=client)
        return AsyncTransactionProducer(
            group, execute=self._execute, check=self._check, namesrv=task.namesrv, settings=settings,
            client=client,
        )  # fmt: skip

    async def run(self) -> None:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        async with self._producer:
            async with asyncio.TaskGroup() as tasks:
                for key in range(self._task.keys):
                    tasks.create_task(self._send_key(key))
            self._journal.write(QUIET_LINE)
            await stopped.wait()

    async def _send_key(self, key: int) -> None:
        queues = self._task.queues
        queue = MessageQueue(self._task.topic, *queues[key % len(queues)]) if queues else None
        while not self._quiet.value:
            send = self._attempt(f"s{self._task.index}-k{key}")
            await self._send(send, queue)
            pause_s = self._task.pause_ms / 1000 if send.outcome is SendOutcome.OK else PAUSE_AFTER_FAILURE_S
            await asyncio.sleep(pause_s * 2 * self._chance.random())

    def _attempt(self, key: str) -> Send:
        number = self._next
        self._next += 1
        delay_ms = DELAY_LEVEL_MS[1] if self._task.delayed and number % 2 else 0
        # Brokers keep times in whole milliseconds.
        not_before_ns = time.monotonic_ns() + (delay_ms - 1) * 1_000_000 if delay_ms else 0
        send = Send(number, key, number, not_before_ns=not_before_ns)
        self._journal.write(attempt_line(send))
        return send

    async def _send(self, send: Send, queue: MessageQueue | None) -> None:
        message = Message(
            self._task.topic,
            body_of(self._task.run, send),
            keys=[f"{self._task.run}-{send.number}"],
            delay_level=1 if send.not_before_ns else 0,
        )
        try:
            if isinstance(self._producer, AsyncTransactionProducer):
                await self._producer.send_in_transaction(message, send)
                return  # `_execute` has noted that the half message is stored
            self._note(send, await self._producer.send(message, queue=queue))
        except NoRoute:
            send.outcome = SendOutcome.FAILED
        except SendFailed as error:
            send.outcome = SendOutcome.UNKNOWN if error.maybe_stored else SendOutcome.FAILED
        except RocketMQError:
            send.outcome = SendOutcome.UNKNOWN
        self._journal.write(outcome_line(send))

    def _note(self, send: Send, receipt: SendReceipt) -> None:
        if receipt.status is not SendStatus.OK:
            return
        send.outcome = SendOutcome.OK
        if not send.not_before_ns:  # else its first place is in the broker's own topic
            queue = BrokerQueue(receipt.queue.broker_name, receipt.queue.queue_id)
            send.place = QueuePosition(queue, receipt.queue_offset)

    # --- Transactions ---

    async def _execute(self, _: Message, send: Send) -> TransactionState:
        """The half message is stored: from here on the transaction must end as its fate says."""
        send.outcome = SendOutcome.OK
        self._journal.write(outcome_line(send))
        return fates.first_state(send.number)

    async def _check(self, message: ReceivedMessage) -> TransactionState:
        number = number_in(self._task.run, message.body)
        assert number is not None
        return fates.checked_state(number, int(message.properties.get(CHECK_TIMES, 0)))


def main(text: str) -> None:
    end_with_parent()
    asyncio.run(Senders(msgspec.json.decode(text, type=SenderTask)).run())


if __name__ == "__main__":
    main(sys.argv[1])
