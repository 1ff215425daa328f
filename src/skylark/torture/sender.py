"""A sender process of a torture run: every message is one attempt, journaled before and after.

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
from skylark.torture.child import Journal, Knob, Tail
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


COMMIT_SHARE, ROLLBACK_SHARE = 80, 10
"""Percent of transactions; the rest is unknown at first."""
UNKNOWN_TWICE_SHARE = 2
"""Percent of transactions that are still unknown at the first check."""
GOLDEN = 0x9E3779B1


# --- The state of a transaction: a function of the message's number ---


def first_state(number: int) -> TransactionState:
    """The result of the local transaction."""
    share = _share(number)
    if share < COMMIT_SHARE:
        return TransactionState.COMMIT
    return TransactionState.ROLLBACK if share < COMMIT_SHARE + ROLLBACK_SHARE else TransactionState.UNKNOWN


def checked_state(number: int, check_times: int) -> TransactionState:
    """The answer to a check, the first being 1."""
    if _share(number) >= 100 - UNKNOWN_TWICE_SHARE and check_times < 2:
        return TransactionState.UNKNOWN
    return TransactionState.COMMIT if is_committed(number) else TransactionState.ROLLBACK


def is_committed(number: int) -> bool:
    """The final state."""
    state = first_state(number)
    if state is TransactionState.UNKNOWN:
        return _share(number) % 2 == 0
    return state is TransactionState.COMMIT


def _share(number: int) -> int:
    """0 to 99, evenly distributed."""
    return (number * GOLDEN % (1 << 32)) * 100 >> 32


# --- The process ---


class SenderTask(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a sender process."""

    index: int
    """Number of this process; gives its messages numbers and keys of their own."""
    keys: int
    """Number of keys; the messages of a key are sent one after the other."""
    run: str
    topic: str
    namesrv: str
    journal: str
    quiet: str
    """File of a knob: once turned, sending stops; transaction checks are still answered."""
    queues: list[tuple[str, int]] = []
    """One queue per key, for ordered messages; empty: any queue."""
    delayed: bool = False
    """Delay half of the messages by a second."""
    transactions: bool = False
    pause_ms: float = 4.0
    """Mean pause between two messages of a key."""


class Senders:
    """Sends until the knob is turned, then runs until SIGTERM."""

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
        # One attempt each: a retried message could be stored at two positions.
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
        return first_state(send.number)

    async def _check(self, message: ReceivedMessage) -> TransactionState:
        number = number_in(self._task.run, message.body)
        assert number is not None
        return checked_state(number, int(message.properties.get(CHECK_TIMES, 0)))


def main(text: str) -> None:
    asyncio.run(Senders(msgspec.json.decode(text, type=SenderTask)).run())


if __name__ == "__main__":
    main(sys.argv[1])
