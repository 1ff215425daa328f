"""Runs a store through seeded work on a simulated disk, and knows at every moment what it promised."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from skylark.model.message import PutMessage, decode_properties, encode_properties
from skylark.model.record import BatchColumns, BatchElement
from skylark.settings import FlushMode, StoreSettings
from skylark.store.append_result import AppendedRecord, PutResult, Refused
from skylark.store.message_store import MessageStore
from skylark.store.recovery import RecoveryReport
from tests.support.clock import ManualClock
from tests.support.simulated_disk import SimulatedDisk

ROOT = Path("/store")
TOPICS = ("alpha", "beta")
QUEUE_IDS = (0, 1)
TAGS = ("red", "green")
# Few sizes: equal records make old bytes line up with new ones, which is when they could come back to life.
BODY_BYTES = (0, 16, 16, 16, 200, 200, 900)
BATCH_MAX = 5
FORCED_DELETION_RATIO = 0.87
CLOCK_JUMP_SHARE = 0.05
HOUR_MS = 3_600_000


def small_settings(flush_mode: FlushMode = FlushMode.SYNC, **changes: int | bool | Path) -> StoreSettings:
    """Files so small that a few dozen messages fill several of each kind."""
    settings = StoreSettings(
        path=ROOT,
        commit_log_file_bytes=4096,
        consume_queue_file_bytes=20 * 8,
        index_slots=16,
        index_items=24,
        flush_mode=flush_mode,
        message_bytes_max=2048,
        delete_pause_ms=0,
        delete_files_max=1,
    )
    return replace(settings, **changes)  # type: ignore[arg-type]


class Sent(NamedTuple):
    """A message that the store took, and where it said it put it."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    body: bytes
    key: str
    tag: str

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class Attempt(NamedTuple):
    """A message that was given to the store and not answered yet: it may be there or not."""

    topic: str
    queue_id: int
    body: bytes
    key: str


@dataclass
class Promises:
    """What must hold for the store if it stopped now."""

    sent: tuple[Sent, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    flushed: int = 0
    gone_below: int = 0
    """Records before this physical offset may have been deleted by retention."""
    forgotten: dict[str, int] = field(default_factory=dict)
    """Topic -> end of the log when its deletion began: what lies before may be gone, or still be there."""
    damaged: bool = False
    """Some recovery reported damage, so queues may have holes where messages are not promised."""
    excused: frozenset[bytes] = frozenset()
    """Bodies of messages that a test has damaged: they may be lost or altered, but someone must say so."""
    claimed: int = 0
    """Excused messages before this physical offset are known to the queues: their offsets stay given out."""

    def required(self, *, durable_only: bool) -> list[Sent]:
        """The messages that must be there: after a power loss those flushed, after a kill all."""
        return [
            sent
            for sent in self.sent
            if sent.body not in self.excused
            and sent.physical_offset >= max(self.gone_below, self.forgotten.get(sent.topic, 0))
            and (sent.end <= self.flushed or not durable_only)
        ]


class Workload:
    """A store, its disk and what it promised. Each step is one call of the store's owner."""

    def __init__(
        self,
        seed: int,
        settings: StoreSettings,
        disk: SimulatedDisk | None = None,
        promises: Promises | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.settings = settings
        self.clock = ManualClock()
        if disk is None:
            disk = SimulatedDisk(seed=seed, clock=self.clock)
            disk.make_directory(ROOT)
        self.disk = disk
        self.promises = promises or Promises()
        self._bodies = 0
        self._life = seed
        self.store = MessageStore(settings, disk=disk, clock=self.clock)

    def open(self) -> RecoveryReport:
        """Open the store: what it then shows it has also made durable."""
        report = self.store.open()
        promises = self.promises
        self.promises = replace(
            promises, flushed=self.store.appended_offset, damaged=promises.damaged or bool(report.damages)
        )
        return report

    # Messages

    def message(self, topic: str | None = None, queue_id: int | None = None) -> PutMessage:
        """A message like no other, of one of few sizes."""
        rng = self.rng
        self._bodies += 1
        body = f"{self._life}-{self._bodies} ".encode()
        body += rng.randbytes(max(rng.choice(BODY_BYTES) - len(body), 0))
        properties = {"TAGS": rng.choice(TAGS), "KEYS": f"key-{self._life}-{self._bodies}"}
        return PutMessage(
            topic or rng.choice(TOPICS),
            rng.choice(QUEUE_IDS) if queue_id is None else queue_id,
            body,
            encode_properties(properties),
            born_timestamp=self.clock.now_ms(),
        )

    def put(self, messages: Sequence[PutMessage]) -> Sequence[PutResult]:
        """Append messages; those that are taken are promised from the answer on."""
        return self._promise(messages, lambda: self.store.append(messages))

    def put_batch(self, messages: Sequence[PutMessage]) -> Sequence[PutResult]:
        """Append messages of one queue as a client's batch."""
        elements = [BatchElement(0, message.body, bytes(message.properties)) for message in messages]
        first = messages[0]
        head = PutMessage(first.topic, first.queue_id, b"", born_timestamp=first.born_timestamp)
        return self._promise(
            messages, lambda: self.store.append_batches([(head, BatchColumns.of(elements))])[0]
        )

    def _promise(
        self, messages: Sequence[PutMessage], append: Callable[[], Sequence[PutResult]]
    ) -> Sequence[PutResult]:
        before = self.promises
        attempts = tuple(
            Attempt(each.topic, each.queue_id, bytes(each.body), property_of(each, "KEYS"))
            for each in messages
        )
        self.promises = replace(before, attempts=before.attempts + attempts)
        results = append()
        # A single refusal may stand for a whole batch. What was refused by a failing disk may yet be on it.
        answers = [*results, *[results[-1]] * (len(messages) - len(results))]
        pairs = list(zip(messages, attempts, answers, strict=True))
        sent = tuple(
            sent_as(message, placed) for message, _, placed in pairs if isinstance(placed, AppendedRecord)
        )
        refused = tuple(attempt for _, attempt, result in pairs if isinstance(result, Refused))
        self.promises = replace(before, sent=before.sent + sent, attempts=before.attempts + refused)
        return results

    # Steps

    def flush_log(self) -> None:
        target = self.store.appended_offset
        self.store.flush_log()
        self.promises = replace(self.promises, flushed=target)

    def flush_queues(self) -> None:
        self.store.build_index()
        self.store.housekeeper.flush()

    def restart(self) -> None:
        """An orderly end and a new start."""
        target = self.store.appended_offset
        self.store.close()
        self.promises = replace(self.promises, flushed=target)
        self._reopen()

    def kill(self) -> None:
        """The process ends without a word; the machine runs on."""
        image = self.disk.kill_image()
        image.observer = self.disk.observer
        image.crash_at = self.disk.crash_at
        self.disk = image
        self._reopen()

    def _reopen(self) -> None:
        self.store = MessageStore(self.settings, disk=self.disk, clock=self.clock)
        self.open()

    def delete_oldest_file(self) -> None:
        """Retention under a disk that is too full: the oldest file goes, whatever its age."""
        starts = self.store.log.files.starts
        if len(starts) < 3:
            return
        self.promises = replace(self.promises, gone_below=starts[1])
        self.disk.used = FORCED_DELETION_RATIO
        self.store.housekeeper.clean()
        self.disk.used = None

    def delete_topic(self) -> None:
        topic = self.rng.choice(TOPICS)
        forgotten = {**self.promises.forgotten, topic: self.store.appended_offset}
        self.promises = replace(self.promises, forgotten=forgotten)
        self.store.housekeeper.delete_topic(topic)

    def put_some(self) -> None:
        self.put([self.message() for _ in range(self.rng.randint(1, 4))])
        self._flush_as_configured()

    def put_some_batch(self) -> None:
        topic, queue_id = self.rng.choice(TOPICS), self.rng.choice(QUEUE_IDS)
        self.put_batch([self.message(topic, queue_id) for _ in range(self.rng.randint(2, BATCH_MAX))])
        self._flush_as_configured()

    def _flush_as_configured(self) -> None:
        if self.settings.syncs_every_put:
            self.flush_log()

    def run(self, steps: int, *, deletes_topics: bool = False) -> None:
        """Do so many steps, drawn by the seed."""
        choices: dict[Callable[[], None], int] = {
            self.put_some: 12,
            self.put_some_batch: 5,
            self.flush_log: 2,
            self.flush_queues: 3,
            self.restart: 1,
            self.kill: 1,
            self.delete_oldest_file: 1,
            self.delete_topic: 2 if deletes_topics else 0,
        }
        for step in self.rng.choices(list(choices), list(choices.values()), k=steps):
            self.clock.advance(self.rng.choice((0, 1, 700)))
            if self.rng.random() < CLOCK_JUMP_SHARE:
                self.clock.jump(self.rng.choice((-HOUR_MS, HOUR_MS)))
            step()


def property_of(message: PutMessage, name: str) -> str:
    return decode_properties(message.properties)[name]


def sent_as(message: PutMessage, placed: AppendedRecord) -> Sent:
    return Sent(
        message.topic, message.queue_id, placed.queue_offset, placed.physical_offset, placed.size,
        bytes(message.body), property_of(message, "KEYS"), property_of(message, "TAGS"),
    )  # fmt: skip
