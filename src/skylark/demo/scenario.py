"""The demo scenario: orders are sent (some in transactions), billed, retried, resent from the dead letter
queue, and archived.

Everything except Spark runs in this process, in a directory of its own. All counts are checked at the end.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from skylark.admin.admin import AsyncAdmin
from skylark.client.consumer.listeners import ConsumeResult
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.producer.transaction_producer import AsyncTransactionProducer, TransactionState
from skylark.client.received_message import ReceivedMessage
from skylark.embedded import Embedded
from skylark.errors import RocketMQError
from skylark.model.message import Message
from skylark.model.names import dead_letter_topic
from skylark.settings import BrokerSettings, NameServerSettings, StoreSettings
from skylark.settings.broker import TransactionSettings
from skylark.settings.client import ClientSettings, ConsumeFrom, ProducerSettings, PushConsumerSettings

TRANSACTION_EVERY = 50
FIRST_TRANSACTION = 10


class TransactionFate(Enum):
    """Outcome of an order's transaction."""

    COMMIT = "committed"
    ROLLBACK = "rolled back"
    COMMIT_WHEN_CHECKED = "committed on check"
    ROLLBACK_WHEN_CHECKED = "rolled back on check"

    @property
    def is_delivered(self) -> bool:
        return self in (TransactionFate.COMMIT, TransactionFate.COMMIT_WHEN_CHECKED)

    @property
    def is_undecided(self) -> bool:
        return self in (TransactionFate.COMMIT_WHEN_CHECKED, TransactionFate.ROLLBACK_WHEN_CHECKED)


def fate(number: int) -> TransactionFate | None:
    """Return the outcome of an order's transaction; None for an order without one."""
    if number % TRANSACTION_EVERY != FIRST_TRANSACTION:
        return None
    fates = list(TransactionFate)
    return fates[number // TRANSACTION_EVERY % len(fates)]


class Shop:
    """The local side of the transactions. It leaves some undecided until the broker checks them."""

    def __init__(self) -> None:
        self.checked: set[int] = set()
        """Orders decided by a check of the broker."""

    async def execute(self, message: Message, number: int) -> TransactionState:
        outcome = _fate(number)
        if outcome.is_undecided:
            return TransactionState.UNKNOWN
        return _state(outcome)

    async def check(self, message: ReceivedMessage) -> TransactionState:
        number = int(message.json()["id"])
        outcome = _fate(number)
        if outcome.is_undecided:
            self.checked.add(number)
        return _state(outcome)


def _fate(number: int) -> TransactionFate:
    outcome = fate(number)
    assert outcome is not None
    return outcome


def _state(outcome: TransactionFate) -> TransactionState:
    return TransactionState.COMMIT if outcome.is_delivered else TransactionState.ROLLBACK


TOPIC = "orders"
TOTALS_TOPIC = "order-totals"
GROUP = "billing"
QUEUES = 4
STATES = ("created", "paid", "sent", "returned")
DELAYED_EVERY = 100
FLAKY_EVERY = 250
BAD_EVERY = 500
ATTEMPTS = 2
"""Retries before a message becomes a dead letter."""
# Delay levels of retries, from the third on: seconds instead of minutes.
DELAY_LEVELS = "1s 1s 1s 1s 1s 1s"
# Unfinished transactions are checked after a second instead of half a minute.
TRANSACTIONS = TransactionSettings(timeout_ms=1000, check_interval_ms=500)
# Offsets and traces in time for the report, which tells of lag and of the delay until consumed.
OFFSETS_MS = 500
TRACES_MS = 500
IN_FLIGHT = 256
SEND_TIMEOUT_MS = 60_000
"""Generous, because everything runs on one machine that may be busy."""
WAIT_S = 60.0
POLL_S = 0.05

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of the demo. The directory is empty or does not exist."""

    directory: Path
    orders: int

    @property
    def rolled_back(self) -> set[int]:
        """Orders that must never be delivered."""
        fates = ((number, fate(number)) for number in range(self.orders))
        return {number for number, end in fates if end is not None and not end.is_delivered}

    @property
    def delivered(self) -> int:
        return self.orders - len(self.rolled_back)


@dataclass(frozen=True, slots=True)
class DemoCheck:
    """A count to verify."""

    name: str
    expected: int
    found: int

    @property
    def holds(self) -> bool:
        return self.expected == self.found


@dataclass(slots=True)
class DemoResult:
    """Result of the demo: verified counts, rates and output paths."""

    checks: list[DemoCheck] = field(default_factory=list)
    rates: list[tuple[str, int, float]] = field(default_factory=list)
    """Name, count, seconds."""
    places: dict[str, Path] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        return all(check.holds for check in self.checks)

    def check(self, name: str, expected: int, found: int) -> None:
        self.checks.append(DemoCheck(name, expected, found))


Archive = Callable[[DemoOptions, str, Say, DemoResult], Awaitable[None]]
"""The part that needs Spark; receives the name server's address."""


def order(number: int) -> Message:
    """Return the message of an order. Some are delayed, some fail at first, some always fail."""
    value = {
        "id": number,
        "customer": f"customer-{number * 7919 % 1000}",
        "amount": number * 31 % 10_000 / 100,
        "state": STATES[number % len(STATES)],
        "flaky": number % FLAKY_EVERY == FLAKY_EVERY - 1,
        "bad": number % BAD_EVERY == BAD_EVERY - 1,
    }
    return Message.json(
        TOPIC,
        value,
        tags=STATES[number % len(STATES)],
        keys=[f"order-{number}"],
        delay_level=1 if number % DELAYED_EVERY == 1 else 0,
    )


class Billing:
    """The consumer: fails once for flaky orders, and for bad ones until `fixed` is set."""

    def __init__(self) -> None:
        self.billed: Counter[int] = Counter()
        self.tried: Counter[int] = Counter()
        self.fixed = False

    async def handle(self, messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        [message] = messages
        value = message.json()
        number = value["id"]
        self.tried[number] += 1
        if (value["bad"] and not self.fixed) or (value["flaky"] and self.tried[number] == 1):
            return ConsumeResult.LATER
        self.billed[number] += 1
        return ConsumeResult.SUCCESS


async def run(options: DemoOptions, say: Say, archive: Archive | None = None) -> DemoResult:
    """Run the scenario; without `archive`, skip the Spark part. Raises RocketMQError, OSError."""
    result = DemoResult(places={"store": options.directory / "store"})
    store = StoreSettings(path=options.directory / "store", delay_levels=DELAY_LEVELS)
    servers = Embedded(
        NameServerSettings(port=0, kv_config_path=options.directory / "kvConfig.json"),
        BrokerSettings(port=0, metrics_port=0, store=store, transactions=TRANSACTIONS, trace_topic=True),
    )
    await servers.start()
    try:
        namesrv = servers.name_server.address
        say(f"started a name server and a broker: {namesrv}")
        await _Scenario(options, namesrv, say, result).run(archive)
    finally:
        await servers.stop()
    return result


class _Scenario:
    def __init__(self, options: DemoOptions, namesrv: str, say: Say, result: DemoResult) -> None:
        self._options = options
        self._namesrv = namesrv
        self._say = say
        self._result = result
        self._billing = Billing()
        self._shop = Shop()
        self._bad = {number for number in range(options.orders) if number % BAD_EVERY == BAD_EVERY - 1}

    async def run(self, archive: Archive | None) -> None:
        async with AsyncAdmin(namesrv=self._namesrv, client=_client("admin")) as admin:
            await admin.topics.create(TOPIC, queues=QUEUES)
            await admin.topics.create(TOTALS_TOPIC, queues=1)
            consumer = AsyncPushConsumer(
                GROUP,
                namesrv=self._namesrv,
                settings=PushConsumerSettings(
                    consume_from=ConsumeFrom.FIRST_OFFSET,
                    reconsume_times_max=ATTEMPTS,
                    first_pull_delay_ms=0,
                    offset_persist_interval_ms=OFFSETS_MS,
                    offset_persist_first_ms=OFFSETS_MS,
                    trace=True,
                    trace_flush_ms=TRACES_MS,
                ),
                client=_client("consumer"),
            )
            consumer.subscribe(TOPIC, "*", self._billing.handle)
            async with consumer, self._producer() as producer:
                await self._send(producer)
                await self._bill(admin)
                await self._resend(admin)
                if archive is not None:
                    await archive(self._options, self._namesrv, self._say, self._result)

    def _producer(self) -> AsyncTransactionProducer:
        return AsyncTransactionProducer(
            "shop",
            execute=self._shop.execute,
            check=self._shop.check,
            namesrv=self._namesrv,
            settings=ProducerSettings(batching=False, send_timeout_ms=SEND_TIMEOUT_MS),
            client=_client("producer"),
        )

    async def _send(self, producer: AsyncTransactionProducer) -> None:
        orders, started = self._options.orders, time.monotonic()
        room = asyncio.Semaphore(IN_FLIGHT)
        receipts = []

        async def send(number: int) -> None:
            async with room:
                if fate(number) is None:
                    receipts.append(await producer.send(order(number)))
                else:
                    receipts.append((await producer.send_in_transaction(order(number), number)).receipt)

        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(orders):
                    tasks.create_task(send(number))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # one error stands for all
        seconds = time.monotonic() - started
        self._result.rates.append(("sent", orders, seconds))
        self._result.check("orders acknowledged", orders, sum(receipt.is_ok for receipt in receipts))
        self._say(f"sent {orders} orders, every hundredth with a delay of one second")
        fates = Counter(filter(None, map(fate, range(orders))))
        counts = ", ".join(f"{count} {end.value}" for end, count in fates.items())
        self._say(f"{fates.total()} of them in transactions: {counts}")

    async def _bill(self, admin: AsyncAdmin) -> None:
        started, good = time.monotonic(), self._options.delivered - len(self._bad)
        await self._until(lambda: _is(len(self._billing.billed) >= good), "all good orders to be billed")
        self._result.rates.append(("consumed", good, time.monotonic() - started))
        self._result.check("orders billed", good, len(self._billing.billed))

        async def are_dead() -> bool:
            return len(await admin.dead_letters.find(GROUP)) >= len(self._bad)

        await self._until(are_dead, "bad orders to become dead letters")
        letters = await admin.dead_letters.find(GROUP)
        self._result.check("dead letters", len(self._bad), len(letters))
        self._say(
            f"{good} are billed, some at the second try; {len(letters)} are in {dead_letter_topic(GROUP)}"
        )

    async def _resend(self, admin: AsyncAdmin) -> None:
        self._billing.fixed = True
        report = await admin.dead_letters.resend(GROUP)
        self._result.check("dead letters resent", len(self._bad), len(report.resent) - len(report.failures))
        expected = self._options.delivered
        await self._until(lambda: _is(len(self._billing.billed) >= expected), "resent orders to be billed")
        self._result.check("orders billed after the resend", expected, len(self._billing.billed))
        self._say("fixed the consumer; dead letters resent and billed")
        await self._check_transactions()

    async def _check_transactions(self) -> None:
        undecided = {
            number
            for number in range(self._options.orders)
            if (end := fate(number)) is not None and end.is_undecided
        }
        await self._until(lambda: _is(self._shop.checked >= undecided), "transaction checks")
        self._result.check("transactions checked by the broker", len(undecided), len(self._shop.checked))
        seen = self._options.rolled_back & self._billing.tried.keys()
        self._result.check("rolled-back orders delivered", 0, len(seen))

    async def _until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for a condition; a timeout shows up in the checks."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                if await condition():
                    return
            except RocketMQError as error:
                self._say(f"waiting for {what}: {error}")
            await asyncio.sleep(POLL_S)
        self._say(f"timed out after {WAIT_S:g} s waiting for {what}")


async def _is(value: bool) -> bool:
    return value


def _client(name: str) -> ClientSettings:
    return replace(ClientSettings(), instance_name=f"demo-{name}")
