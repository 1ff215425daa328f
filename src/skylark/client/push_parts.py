"""The parts of a push consumer that exist while it runs: built, started and stopped together."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from skylark.client.assignment import Assignment, Owner
from skylark.client.concurrent import ConcurrentConsumption
from skylark.client.consume_stats import SAMPLE_INTERVAL_MS, ConsumeStats
from skylark.client.consumption import ConsumptionParts
from skylark.client.offset_store import BrokerOffsetStore, LocalOffsetStore, OffsetStore, local_offsets_path
from skylark.client.orderly import OrderlyConsumption
from skylark.client.pull_loop import PullLoop
from skylark.client.queue_locks import QueueLocks
from skylark.client.queue_offsets import StartOffsets
from skylark.client.rebalance import Strategy
from skylark.client.remote_control import Controlled, RemoteControl
from skylark.client.send_back import SendBack
from skylark.client.session import Session
from skylark.client.trace import ConsumeTrace
from skylark.clock import Clock
from skylark.protocol.bodies import MessageQueue
from skylark.settings.consumer import OFFSET_DIRECTORY, MessageModel, PushConsumerSettings
from skylark.tasks import Tasks


class Consumer(Owner, Controlled, Protocol):
    """The consumer whose parts these are."""

    strategy: Strategy
    offset_store: OffsetStore | None
    clock: Clock
    name_servers: tuple[str, ...]
    timestamp_ms: int


class PushParts:
    """Everything that works for one consumer on one session. Loop thread."""

    def __init__(self, consumer: Consumer, session: Session, settings: PushConsumerSettings) -> None:
        group = consumer.group
        clustering = settings.model is MessageModel.CLUSTERING
        self.session = session
        self._stop_wait_ms = settings.stop_wait_ms
        self.offsets = consumer.offset_store or _offset_store(session, group, settings)
        self.stats = ConsumeStats()
        self.tasks = Tasks()
        self.locks = (
            QueueLocks(session, group, settings.lock_timeout_ms) if clustering and settings.orderly else None
        )
        send_back = None
        if clustering:
            send_back = SendBack(
                session, group, attempts_max=settings.attempts_max, timeout_ms=settings.send_back_timeout_ms
            )
        start_offsets = StartOffsets(session, self.offsets, settings.consume_from, consumer.timestamp_ms)
        table = self.offsets.table
        self.pulls = PullLoop(
            session, group, settings, consumer.subscriptions, table, start_offsets, self.stats, self._repair,
        )  # fmt: skip
        self.trace = ConsumeTrace(session, group, settings) if settings.trace else None
        parts = ConsumptionParts(
            group, settings, consumer.listeners, table, send_back, self.stats, self.pulls.made_room,
            self.trace,
        )  # fmt: skip
        self.consumption: ConcurrentConsumption | OrderlyConsumption
        if settings.orderly:
            self.consumption = OrderlyConsumption(parts, self.locks)
        else:
            self.consumption = ConcurrentConsumption(parts)
        self.pulls.submit = self.consumption.submit
        self.assignment = Assignment(
            session, group, settings, consumer.strategy, consumer, self.offsets, start_offsets, self.locks,
            self.consumption.wait_until_free if isinstance(self.consumption, OrderlyConsumption) else None,
        )  # fmt: skip
        self.control = RemoteControl(
            consumer, self.assignment, table, self.stats, consumer.clock, consumer.name_servers,
            lambda: self.consumption.threads.thread_count,
        )  # fmt: skip

    def begin(self, settings: PushConsumerSettings) -> None:
        """Start what happens regularly."""
        every, process_queues = self.tasks.every, self.assignment.process_queues
        self.tasks.spawn(self.assignment.run(), "rebalance")
        every(
            settings.offset_persist_interval_ms,
            lambda: self.offsets.persist_all(list(process_queues)),
            "keep offsets",
            first_ms=settings.offset_persist_first_ms,
        )
        every(SAMPLE_INTERVAL_MS, lambda: self.stats.take_sample(time.monotonic()), "sample")
        locks, consumption = self.locks, self.consumption
        if locks is not None:
            every(
                settings.lock_interval_ms,
                lambda: locks.renew(process_queues.values(), time.monotonic()),
                "renew locks",
                first_ms=settings.lock_first_ms,
            )
        if isinstance(consumption, ConcurrentConsumption):
            every(
                settings.consume_timeout_ms,
                lambda: consumption.clean_expired(process_queues.values()),
                "clean expired messages",
            )

    def _repair(self, queue: MessageQueue, queue_offset: int) -> None:
        self.tasks.spawn(self.assignment.repair(queue, queue_offset), f"repair {queue}")

    async def end(self) -> None:
        """Stop in order: no new messages, listeners finish, progress is kept.

        Cancelled, it waits for no listener any more, but leaves nothing behind that goes on.
        """
        try:
            await self.assignment.finish_round()
            await self._end(self._stop_wait_ms)
        except BaseException:
            await self._end(0)
            raise

    async def _end(self, listeners_wait_ms: int) -> None:
        await self.tasks.close()
        await self.pulls.stop()
        await self.consumption.stop(listeners_wait_ms)
        queues = list(self.assignment.process_queues)
        await self.offsets.persist_all(queues)
        if self.locks is not None:
            await self.locks.unlock_all(queues)
        if self.trace is not None:
            await self.trace.line.close(self.session.settings.stop_timeout_ms / 1000)


def _offset_store(session: Session, group: str, settings: PushConsumerSettings) -> OffsetStore:
    if settings.model is MessageModel.CLUSTERING:
        return BrokerOffsetStore(session, group, settings.offset_timeout_ms)
    directory = settings.offset_directory or Path.home() / OFFSET_DIRECTORY
    return LocalOffsetStore(local_offsets_path(directory, session.client_id, group))
