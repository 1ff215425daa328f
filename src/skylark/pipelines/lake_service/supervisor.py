"""Starts the processes that archive, and starts them again when they end, however they end."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from skylark.model.job_report import STOPPED
from skylark.pipelines.job_reporter import JobReporter
from skylark.pipelines.lake_service.engines import Engine, LocalEngine, SparkEngine
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable
from skylark.pipelines.lake_service.service import LakeService
from skylark.pipelines.lake_service.table_archiver import TableArchiver, query_name

log = logging.getLogger(__name__)

POLL_S = 0.2
PAUSE_MAX_S = 60.0
CALM_S = 120.0
"""A process that lived this long is started again at once."""
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class WorkerOrder:
    """What one process does. `master` is a Spark master; None archives in the process itself."""

    rules: LakeRules
    instance: str
    share: int = 0
    shares: int = 1
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    log_level: int = logging.WARNING


def tables_of(order: WorkerOrder) -> Sequence[LakeTable]:
    """Every `shares`th table."""
    return order.rules.tables[order.share :: order.shares]


def archivers(order: WorkerOrder, engine: Engine) -> list[TableArchiver]:
    """The archivers of a process. Raises SettingsError."""
    return [TableArchiver(order.rules, table, engine, order.instance) for table in tables_of(order)]


@contextlib.contextmanager
def opened_engine(order: WorkerOrder) -> Iterator[Engine]:
    """Raises SettingsError."""
    if order.master is None:
        yield LocalEngine()
        return
    from skylark.pipelines.jobs.session import SessionSettings, session  # noqa: PLC0415  starts a JVM

    with session(SessionSettings(master=order.master, conf=dict(order.conf))) as spark:
        yield SparkEngine(spark)


def work(order: WorkerOrder) -> None:
    """The whole life of a process that archives."""
    logging.basicConfig(level=order.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    parent, stop = os.getppid(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with opened_engine(order) as engine, _reporter(order) as reporter:

        def report(archiver: TableArchiver, messages: int, seconds: float) -> None:
            reporter.batch(
                number=archiver.state.batches,
                rows=messages,
                rows_per_s=messages / max(seconds, 0.001),
                lag=archiver.state.waiting,
            )

        service = LakeService(archivers(order, engine), on_batch=report)
        service.run(stop, is_orphan=lambda: os.getppid() != parent)
        reporter.end(STOPPED)


def _reporter(order: WorkerOrder) -> JobReporter:
    """Shows the process among the jobs of the cluster. Raises SettingsError."""
    tables = tables_of(order)
    share = f"-{order.share + 1}" if order.shares > 1 else ""
    return JobReporter(
        order.rules.namesrv,
        kind="lake",
        name=f"{query_name(order.rules.group)}-{order.instance}{share}",
        source=order.rules.namesrv,
        topics=sorted({topic for table in tables for topic in table.topics}),
        outputs=[str(table.output) for table in tables],
        group=order.rules.group,
    )


class WorkerSupervisor:
    """Keeps one process per order running. Main thread only."""

    def __init__(self, orders: list[WorkerOrder]) -> None:
        self._orders = orders
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[BaseProcess | None] = [None] * len(orders)
        self._started = [0.0] * len(orders)
        self._failures = [0] * len(orders)
        self.restarts = 0

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set, then end the processes after their turns."""
        try:
            while not stop.wait(POLL_S):
                for number in range(len(self._orders)):
                    self._look_after(number)
        finally:
            self._end()

    def _look_after(self, number: int) -> None:
        process, now = self._processes[number], time.monotonic()
        if process is not None and process.is_alive():
            return
        if process is not None:
            calm = now - self._started[number] >= CALM_S
            self._failures[number] = 0 if calm else self._failures[number] + 1
            log.warning("process ended pid=%s exit=%s; starting another", process.pid, process.exitcode)
            self.restarts += 1
            self._processes[number] = None
            # The pause is part of the start time: meanwhile the loop comes back here.
            self._started[number] = now + min(2.0 ** self._failures[number] - 1, PAUSE_MAX_S)
        if now < self._started[number]:
            return
        made = self._context.Process(target=work, args=(self._orders[number],), name=f"skylark-lake-{number}")
        made.start()
        self._processes[number], self._started[number] = made, now

    def _end(self) -> None:
        alive = [process for process in self._processes if process is not None]
        for process in alive:
            process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in alive:
            process.join(max(deadline - time.monotonic(), 0))
            if process.is_alive():
                process.kill()
                process.join()
