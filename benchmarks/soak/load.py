"""A mixed load at a fixed rate, by our own clients; every message is accounted for.

Sent are several sizes, batches, delays and transactions; consumers take by tag, by SQL92 and by pull.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from skylark.admin.admin import AsyncAdmin
from skylark.bench.latencies import LatencyHistogram
from skylark.client.consumer.pull_consumer import AsyncPullConsumer
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.producer.producer import AsyncProducer
from skylark.client.producer.transaction_producer import AsyncTransactionProducer, TransactionState
from skylark.client.received_message import ReceivedMessage
from skylark.errors import RocketMQError
from skylark.model.message import Message
from skylark.settings.client import (
    ClientSettings,
    ConsumeFrom,
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)

MAIN, LATER, TRADES = "soak-main", "soak-later", "soak-trades"
BY_TAG, BY_SQL, BY_PULL, WAITING = "soak-by-tag", "soak-by-sql", "soak-by-pull", "soak-waiting"
GROUPS = (BY_TAG, BY_SQL, BY_PULL, WAITING)
QUEUES = 4
SIZES = (128, 128, 128, 128, 128, 128, 1024, 1024, 1024, 8192)
"""Bodies, in turn. The largest is above the size from which clients compress."""
BODY_BYTES_MEAN = sum(SIZES) / len(SIZES)
NUMBER_BYTES = 8
CYCLE = 40
BATCH = 10
"""The first messages of each cycle; transactions and delayed messages follow."""
TRADING, DELAYED = range(11, 13), range(13, 17)
DELAY_LEVEL, DELAY_S = 1, 1.0
TAG_WANTED = "TagA"
SQL, DIGIT_MIN = "number > 4", 5
TICK_S = 0.002
WAITING_MAX = 512
"""Batches and transactions under way."""
SEND_TIMEOUT_MS = 30_000
POLL_MS = 500
BEHIND_MAX = 1000
"""Maximum lag of the pull consumer while the maximum rate is measured."""


def is_rolled_back(number: int) -> bool:
    """One of five transactions is rolled back; its message must stay invisible."""
    return number % CYCLE in TRADING and number // CYCLE % 5 == 0


def tag_of(number: int) -> str:
    return f"Tag{'AB'[number // 3 % 2]}"


def groups_of(number: int) -> list[str]:
    """The groups that must receive a message."""
    if number % CYCLE in TRADING or number % CYCLE in DELAYED:
        return [] if is_rolled_back(number) else [WAITING]
    by_tag = [BY_TAG] if tag_of(number) == TAG_WANTED else []
    by_sql = [BY_SQL] if number % 10 >= DIGIT_MIN else []
    return [BY_PULL, *by_tag, *by_sql]


@dataclass(slots=True)
class Ledger:
    """Which group still expects which message, and counts of the others."""

    pending: dict[str, dict[int, int]] = field(default_factory=lambda: {group: {} for group in GROUPS})
    """By group and number: the time at which it was due, in ns."""
    doubtful: set[int] = field(default_factory=set)
    """Sends that failed: they may be stored."""
    sent: int = 0
    failed: int = 0
    received: int = 0
    again: int = 0
    unexpected: int = 0
    """Rolled back, and yet received."""
    stray: int = 0
    """Received by a group that has not asked for it, or never sent."""
    _end: int = 0
    """No message that is sent has this number or a greater one."""

    def expect(self, number: int, due_ns: int) -> None:
        """A message is about to be sent."""
        self._end = max(self._end, number + 1)
        for group in groups_of(number):
            self.pending[group][number] = due_ns

    def doubt(self, number: int) -> None:
        """A send failed: the message may arrive, but need not."""
        self.failed += 1
        self.doubtful.add(number)
        for pending in self.pending.values():
            pending.pop(number, None)

    def take(self, group: str, number: int) -> int | None:
        """The time at which a message was due that now has come; None if it came before or was not due."""
        due_ns = self.pending[group].pop(number, None)
        if due_ns is not None:
            self.received += 1
        elif is_rolled_back(number):
            self.unexpected += 1
        elif number >= self._end or group not in groups_of(number):
            self.stray += 1
        elif number not in self.doubtful:
            self.again += 1
        return due_ns

    @property
    def missing(self) -> int:
        return sum(map(len, self.pending.values()))


@dataclass(slots=True)
class Timed:
    """Latencies since the last look, and of the whole run."""

    recent: LatencyHistogram = field(default_factory=LatencyHistogram)
    whole: LatencyHistogram = field(default_factory=LatencyHistogram)

    def turn(self) -> LatencyHistogram:
        """Return the recent latencies and reset them."""
        recent, self.recent = self.recent, LatencyHistogram()
        self.whole.add(recent)
        return recent


class MixedLoad:
    """Producers and consumers on one loop. `run` sends; consumers work from the entering to the leaving."""

    def __init__(self, namesrv: str) -> None:
        self.ledger = Ledger()
        self.sends, self.arrivals = Timed(), Timed()
        self._namesrv = namesrv
        self._number = 0
        self._stack = AsyncExitStack()
        self._payload = random.Random(1).randbytes(max(SIZES))
        self._busy = asyncio.Semaphore(WAITING_MAX)
        settings = ProducerSettings(send_timeout_ms=SEND_TIMEOUT_MS)
        self._producer = AsyncProducer(
            "soak", namesrv=namesrv, settings=settings, client=ClientSettings(instance_name="soak")
        )
        self._transactions = AsyncTransactionProducer(
            "soak-trader",
            execute=_decide,
            check=_check,
            namesrv=namesrv,
            settings=settings,
            client=ClientSettings(instance_name="soak-trader"),
        )

    async def __aenter__(self) -> MixedLoad:
        async with AsyncAdmin(namesrv=self._namesrv) as admin:
            for topic in (MAIN, LATER, TRADES):
                await admin.topics.create(topic, queues=QUEUES)
        await self._stack.__aenter__()
        await self._stack.enter_async_context(self._producer)
        await self._stack.enter_async_context(self._transactions)
        await self._stack.enter_async_context(self._push(BY_TAG, {MAIN: TAG_WANTED}))
        await self._stack.enter_async_context(self._push(BY_SQL, {MAIN: None}))
        await self._stack.enter_async_context(self._push(WAITING, {LATER: "*", TRADES: "*"}))
        pull = AsyncPullConsumer(
            BY_PULL,
            namesrv=self._namesrv,
            settings=PullConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, pull_batch_max=32),
            client=ClientSettings(instance_name=BY_PULL),
        )
        pull.subscribe(MAIN)
        await self._stack.enter_async_context(pull)
        polling = asyncio.ensure_future(self._poll(pull))
        self._stack.push_async_callback(_cancelled, polling)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def _push(self, group: str, topics: dict[str, str | None]) -> AsyncPushConsumer:
        """A consumer of topics by tags, or by our SQL92 condition for None."""
        consumer = AsyncPushConsumer(
            group,
            namesrv=self._namesrv,
            settings=PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, batch_max=32),
            client=ClientSettings(instance_name=group),
        )

        async def handle(messages: Sequence[ReceivedMessage]) -> None:
            self._arrived(group, messages)

        for topic, tags in topics.items():
            if tags is None:
                consumer.subscribe(topic, listener=handle, sql=SQL)
            else:
                consumer.subscribe(topic, tags, handle)
        return consumer

    async def _poll(self, consumer: AsyncPullConsumer) -> None:
        while True:
            self._arrived(BY_PULL, await consumer.poll(timeout_ms=POLL_MS))

    def _arrived(self, group: str, messages: Sequence[ReceivedMessage]) -> None:
        now_ns = time.monotonic_ns()
        for message in messages:
            due_ns = self.ledger.take(group, int.from_bytes(message.body[:NUMBER_BYTES]))
            if due_ns is not None and group == BY_TAG:
                self.arrivals.recent.record(now_ns - due_ns)

    # --- Sending ---

    async def run(self, seconds: float, rate: float) -> None:
        """Send for so long, each message timed from the moment at which it was due; then wait for answers."""
        started_ns, first = time.monotonic_ns(), self._number
        async with asyncio.TaskGroup() as tasks:
            while (passed := (time.monotonic_ns() - started_ns) / 1e9) < seconds:
                while (sent := self._number - first) < passed * rate:
                    await self._launch(started_ns + round(sent / rate * 1e9), tasks)
                await asyncio.sleep(TICK_S)
        await self._producer.flush()

    async def find_maximum(self, seconds: float) -> float:
        """Send as fast as messages are consumed; returns messages a second. Resets latencies."""
        started, first = time.monotonic(), self._number
        behind = self.ledger.pending[BY_PULL]
        async with asyncio.TaskGroup() as tasks:
            while (taken_s := time.monotonic() - started) < seconds:
                if len(behind) < BEHIND_MAX:
                    await self._launch(time.monotonic_ns(), tasks)
                else:
                    await asyncio.sleep(TICK_S)
            done = self._number - first - len(behind)
        await self._producer.flush()
        self.sends, self.arrivals = Timed(), Timed()
        return done / taken_s

    async def _launch(self, due_ns: int, tasks: asyncio.TaskGroup) -> None:
        """Begin to send the next message, or batch."""
        number = self._number
        kind = number % CYCLE
        self._number += BATCH if kind == 0 else 1
        if kind == 0:
            await self._busy.acquire()
            tasks.create_task(self._send_batch(number, due_ns))
        elif kind in TRADING:
            await self._busy.acquire()
            tasks.create_task(self._trade(number, due_ns))
        else:
            self.ledger.expect(number, due_ns)
            if kind in DELAYED:
                message = Message(LATER, self._body(number), delay_level=DELAY_LEVEL)
            else:
                message = self._plain(number)
            future = await self._producer.submit(message)
            future.add_done_callback(partial(self._answered, number, due_ns))

    def _body(self, number: int) -> bytes:
        size = SIZES[number // CYCLE % len(SIZES)]
        return number.to_bytes(NUMBER_BYTES) + self._payload[NUMBER_BYTES:size]

    def _plain(self, number: int) -> Message:
        return Message(
            MAIN,
            self._body(number),
            tags=tag_of(number),
            keys=[f"soak-{number}"],
            properties={"number": str(number % 10)},
        )

    def _answered(self, number: int, due_ns: int, future: asyncio.Future[object]) -> None:
        if future.cancelled() or future.exception() is not None:
            self.ledger.doubt(number)
            return
        self.ledger.sent += 1
        self.sends.recent.record(time.monotonic_ns() - due_ns)

    async def _send_batch(self, number: int, due_ns: int) -> None:
        numbers = range(number, number + BATCH)
        for each in numbers:
            self.ledger.expect(each, due_ns)
        try:
            await self._producer.send_batch([self._plain(each) for each in numbers])
            self.ledger.sent += BATCH
        except RocketMQError:
            for each in numbers:
                self.ledger.doubt(each)
        finally:
            self._busy.release()

    async def _trade(self, number: int, due_ns: int) -> None:
        commit = not is_rolled_back(number)
        self.ledger.expect(number, due_ns)
        try:
            message = Message(TRADES, self._body(number), properties={"commit": str(int(commit))})
            await self._transactions.send_in_transaction(message, commit)
            self.ledger.sent += 1
        except RocketMQError:
            self.ledger.doubt(number)
        finally:
            self._busy.release()


async def _decide(message: Message, commit: bool) -> TransactionState:
    return TransactionState.COMMIT if commit else TransactionState.ROLLBACK


async def _check(message: ReceivedMessage) -> TransactionState:
    """Answer a transaction check from the message itself."""
    commit = message.properties.get("commit") == "1"
    return TransactionState.COMMIT if commit else TransactionState.ROLLBACK


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
