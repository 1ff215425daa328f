"""The main job from end to end, as far as it exists: a store is written, killed, recovered, read, verified.

Run as a module it is the writer that is killed: it prints how many orders are safe on disk, again and again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from skylark.model.java import java_hash
from skylark.model.message import PutMessage, encode_properties
from skylark.settings import FlushMode, StoreSettings
from skylark.store.message_store import MessageStore
from skylark.store.placed import PutStatus
from skylark.store.reader import StoreReader
from skylark.store.verify import verify

ORDERS = 10_000
ORDERS_BEFORE_KILL = 4_000
"""Written and closed in good order, with asynchronous flush; the rest is written with synchronous flush."""
KILL_AT = 6_000
TOPICS = ("orders", "payments", "shipments")
QUEUES = 4
TAGS = ("created", "paid", "sent", "returned")
ASYNC_BATCH = 64
SYNC_BATCH = 32
KEYS_LOOKED_UP = 500
CHILD_TIMEOUT_S = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Check:
    """A count that must come out."""

    name: str
    expected: int
    found: int

    @property
    def holds(self) -> bool:
        return self.expected == self.found


@dataclass(slots=True)
class Outcome:
    """What was done, how fast, and whether it all agreed."""

    checks: list[Check] = field(default_factory=list)
    rates: list[tuple[str, int, float]] = field(default_factory=list)
    """What, how many, seconds."""

    @property
    def agrees(self) -> bool:
        return bool(self.checks) and all(check.holds for check in self.checks)

    def check(self, name: str, expected: int, found: int) -> None:
        self.checks.append(Check(name, expected, found))

    def rate(self, name: str, count: int, started: float) -> None:
        self.rates.append((name, count, time.perf_counter() - started))


class Order(msgspec.Struct):
    """The body of a message, as JSON."""

    number: int
    customer: str
    amount_cents: int
    state: str


def order(number: int) -> Order:
    return Order(
        number, f"customer-{number % 499}", 100 + number * 37 % 90_000, TAGS[number // 7 % len(TAGS)]
    )


def place(number: int) -> tuple[str, int]:
    """Topic and queue of an order."""
    return TOPICS[number % len(TOPICS)], number // len(TOPICS) % QUEUES


def message(number: int) -> PutMessage:
    made = order(number)
    topic, queue_id = place(number)
    properties = {"KEYS": f"order-{number} {made.customer}", "TAGS": made.state, "WAIT": "true"}
    return PutMessage(topic, queue_id, msgspec.json.encode(made), encode_properties(properties))


def settings(directory: Path, flush_mode: FlushMode) -> StoreSettings:
    """Small files, so that even this little demonstration fills several."""
    return StoreSettings(path=directory, commit_log_file_bytes=1 << 20, flush_mode=flush_mode)


def run(directory: Path, say: Say) -> Outcome:
    """Do it all in an empty directory. Raises OSError and what the store raises."""
    outcome = Outcome()
    say(f"writing {ORDERS_BEFORE_KILL} orders, asynchronous flush")
    _write_async(directory, outcome)
    mark_ms = _pass_a_millisecond()
    say("another process goes on, synchronous flush: each order is on disk before it counts")
    acknowledged = _write_and_kill(directory, outcome)
    say(f"killed with SIGKILL after {acknowledged} orders were acknowledged; recovering")
    store = MessageStore(settings(directory, FlushMode.SYNC))
    started = time.perf_counter()
    report = store.open()
    store.start()
    try:
        outcome.rate("recovered", report.records, started)
        present = _numbers(store)
        lost = len(set(range(acknowledged)) - present)
        outcome.check("acknowledged orders lost by the kill", 0, lost)
        say(f"{len(present)} orders are there, {lost} of the acknowledged are lost; writing the rest")
        rest = [number for number in range(ORDERS) if number not in present]
        _write_sync(store, rest)
        say("reading back: all, by tag, by time, by key")
        _read_all(store, outcome)
        _read_by_tag(store, outcome)
        _read_by_time(store, mark_ms, outcome)
    finally:
        store.close()
    _read_by_key(directory, outcome)
    say("verifying every record, consume queue and index item")
    _verify(directory, outcome)
    return outcome


# Writing


def _write_async(directory: Path, outcome: Outcome) -> None:
    store = MessageStore(settings(directory, FlushMode.ASYNC))
    store.open()
    store.start()
    try:
        started = time.perf_counter()
        for first in range(0, ORDERS_BEFORE_KILL, ASYNC_BATCH):
            numbers = range(first, min(first + ASYNC_BATCH, ORDERS_BEFORE_KILL))
            store.append([message(number) for number in numbers])
        outcome.rate("written, asynchronous flush", ORDERS_BEFORE_KILL, started)
    finally:
        store.close()


def _write_and_kill(directory: Path, outcome: Outcome) -> int:
    """Let a child write, kill it in the middle; return how many orders it said were safe."""
    started = time.perf_counter()
    acknowledged = ORDERS_BEFORE_KILL
    command = [sys.executable, "-m", "skylark.demo", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:  # noqa: S603  ourselves
        assert writer.stdout is not None
        for line in writer.stdout:
            acknowledged = int(line)
            if acknowledged >= KILL_AT:
                writer.kill()
                break
        # What it had said before it died counts, too.
        acknowledged = max([acknowledged, *(int(line) for line in writer.stdout if line.endswith("\n"))])
        if writer.wait(CHILD_TIMEOUT_S) != -signal.SIGKILL:
            raise OSError(f"the writing process ended by itself, with code {writer.returncode}")
    outcome.rate("written, synchronous flush", acknowledged - ORDERS_BEFORE_KILL, started)
    return acknowledged


def write_until_killed(directory: Path) -> None:
    """What the child does: write the orders behind the first ones, say after each batch what is on disk."""
    store = MessageStore(settings(directory, FlushMode.SYNC))
    store.open()
    store.start()
    for first in range(ORDERS_BEFORE_KILL, ORDERS, SYNC_BATCH):
        numbers = range(first, min(first + SYNC_BATCH, ORDERS))
        _write_sync(store, list(numbers))
        sys.stdout.write(f"{numbers[-1] + 1}\n")
        sys.stdout.flush()
    store.close()


def _write_sync(store: MessageStore, numbers: list[int]) -> None:
    for first in range(0, len(numbers), SYNC_BATCH):
        placed = store.append([message(number) for number in numbers[first : first + SYNC_BATCH]])
        if placed[-1].status is not PutStatus.PUT_OK or store.wait_flushed(store.appended_offset) is not (
            PutStatus.PUT_OK
        ):
            raise OSError(f"order {numbers[first]} could not be stored: {placed[-1]}")


def _pass_a_millisecond() -> int:
    """A time that lies between everything stored before and everything stored after."""
    mark_ms = time.time_ns() // 1_000_000 + 1
    while time.time_ns() // 1_000_000 <= mark_ms:
        time.sleep(0.001)
    return mark_ms


# Reading


def _bodies(store: MessageStore, tag: str | None = None) -> Iterator[Order]:
    """Orders of all queues, read as a consumer reads them; a tag is compared by its hash, then by itself."""
    tags_filter = (lambda code: code == java_hash(tag)) if tag is not None else None
    for topic in TOPICS:
        for queue_id in range(QUEUES):
            queue_offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            while queue_offset < end:
                got = store.get(topic, queue_id, queue_offset, 32, tags_filter=tags_filter)
                yield from (
                    msgspec.json.decode(each.body, type=Order)
                    for each in got.messages()
                    if tag is None or each.tags == tag
                )
                queue_offset = got.next_offset


def _numbers(store: MessageStore) -> set[int]:
    return {each.number for each in _bodies(store)}


def _read_all(store: MessageStore, outcome: Outcome) -> None:
    started = time.perf_counter()
    orders = list(_bodies(store))
    outcome.rate("read back", len(orders), started)
    outcome.check("messages in all queues", ORDERS, len(orders))
    outcome.check(
        "different orders, as they were sent", ORDERS, len({o.number for o in orders if o == order(o.number)})
    )


def _read_by_tag(store: MessageStore, outcome: Outcome) -> None:
    for tag in TAGS:
        expected = sum(order(number).state == tag for number in range(ORDERS))
        outcome.check(f"orders tagged {tag!r}", expected, sum(1 for _ in _bodies(store, tag)))


def _read_by_time(store: MessageStore, mark_ms: int, outcome: Outcome) -> None:
    later = sum(
        store.max_offset(topic, queue_id) - store.offset_by_time(topic, queue_id, mark_ms)
        for topic in TOPICS
        for queue_id in range(QUEUES)
    )
    outcome.check("orders stored after the first part", ORDERS - ORDERS_BEFORE_KILL, later)


def _read_by_key(directory: Path, outcome: Outcome) -> None:
    reader = StoreReader(directory)
    numbers = range(0, ORDERS, ORDERS // KEYS_LOOKED_UP)
    started = time.perf_counter()
    found = 0
    for number in numbers:
        topic, _ = place(number)
        messages = reader.by_key(topic, f"order-{number}")
        found += [msgspec.json.decode(each.body, type=Order).number for each in messages] == [number]
    outcome.rate("looked up by key", len(numbers), started)
    outcome.check("orders found by their key", len(numbers), found)


def _verify(directory: Path, outcome: Outcome) -> None:
    started = time.perf_counter()
    result = verify(StoreReader(directory))
    outcome.rate("verified", result.counts.records, started)
    outcome.check("findings of the verification", 0, result.total)


if __name__ == "__main__":
    write_until_killed(Path(sys.argv[1]))
