"""One broker under load: create topics, run a load, check the counts, record processor time and memory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from skylark.bench.load import BadLoad, Counted, Load, LoadFailed, LoadKind, discrepancies
from skylark.bench.load_client import LoadClient, Watch
from skylark.bench.machine import ListeningProcess, free_bytes
from skylark.bench.results import Cell, Value, make_cell
from skylark.model.names import AUTO_CREATE_TOPIC, SYSTEM_TOPICS
from skylark.protocol.request import Request
from skylark.protocol.requests.admin import GetBrokerRuntimeInfo
from skylark.protocol.requests.offset import GetMaxOffset, GetMinOffset
from skylark.protocol.requests.topic import GetAllTopicConfig, UpdateAndCreateTopic

T = TypeVar("T")

STORED_TIMEOUT_S = 30
"""Maximum time without a newly stored message."""
STORED_POLL_S = 0.05
CALL_TIMEOUT_S = 30
ASKED_AT_ONCE = 256
FILL_TIMEOUT_S = 120
BUSY_PAUSE_S = 0.5
FILL_BATCH = 32
FILL_IN_FLIGHT = 16
FILL_FRAME_BYTES = 1 << 20
"""Limit of a batch: a broker accepts at most 4 MiB."""
DISK_RESERVE_BYTES = 4 << 30
RECORD_OVERHEAD_BYTES = 400
"""Upper estimate of the size of a stored message without its body, with queue and index entries."""


class LoadTarget:
    """A running RocketMQ-compatible broker under load. One thread."""

    def __init__(self, address: str, client: LoadClient, *, cpu: int | None = None) -> None:
        """`cpu` is that of the client, see `pinned`."""
        self.address = address
        self.process = ListeningProcess(address)
        self.client = client
        self._cpu = cpu
        self._connection = client.connection(address)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def measure(self, name: str, load: Load, watch: Watch | None = None) -> Cell:
        """Create the topics, run the load, check that what was acknowledged is stored.

        Pulls need a backlog, see `fill`. Raises LoadFailed, RocketMQError.
        """
        self.create(load)
        before = self.stored(load)
        usage = Usage(self.process, watch)
        counted = self.run(load, usage.hear)
        expected = before + (0 if load.kind is LoadKind.PULL else counted.acknowledged * load.batch)
        wrong = discrepancies(counted, expected, self.wait_stored(load, expected))
        # Dirty pages of this load must not be written during the next one.
        os.sync()
        return cell_of(name, load, counted, usage, wrong)

    def run(self, load: Load, watch: Watch | None = None) -> Counted:
        """Run the client alone, without creating topics or checking counts. Raises LoadFailed."""
        return self.client.run(load, watch, self._cpu)

    def fill(self, load: Load, messages: int) -> None:
        """Store at least this many messages for pulls of this load, waiting while a busy broker rejects them.

        Raises LoadFailed if nothing more is stored for two minutes, or not the number that was acknowledged.
        """
        batch = max(min(FILL_BATCH, FILL_FRAME_BYTES // max(load.body_bytes, 1)), 1)
        fill = replace(
            load, kind=LoadKind.SEND, batch=batch, in_flight=FILL_IN_FLIGHT, processes=1, rate=0.0,
            warm_up_s=0.0, seconds=FILL_TIMEOUT_S,
        )  # fmt: skip
        self.create(load)
        stored = self.stored(load)
        end = stored + messages
        deadline = time.monotonic() + FILL_TIMEOUT_S
        while stored < end:
            counted = self.run(replace(fill, messages_max=end - stored))
            expected = stored + counted.acknowledged * batch
            stored = self.wait_stored(load, expected)
            if counted.acknowledged:
                deadline = time.monotonic() + FILL_TIMEOUT_S
            if counted.refused:
                time.sleep(BUSY_PAUSE_S)  # its disk has to keep up first
            if stored != expected or counted.unexpected or time.monotonic() > deadline:
                wrong = "; ".join(discrepancies(counted, expected, stored))
                raise LoadFailed(f"cannot store the backlog: {wrong}")

    def create(self, load: Load) -> None:
        """Create the load's topics with its number of queues. Built-in topics are left unchanged."""
        names = [topic for topic in load.topic_names if topic not in SYSTEM_TOPICS]
        # Creating thousands again would take minutes; listing them does not. Attributes cannot be set again.
        is_listed = len(names) > 1 or bool(load.attributes)
        known = self._connection.call(GetAllTopicConfig()).topic_config_table if is_listed else {}
        requests = [
            UpdateAndCreateTopic(
                topic=topic, default_topic=AUTO_CREATE_TOPIC, read_queue_nums=load.queues,
                write_queue_nums=load.queues, perm=6, topic_filter_type="SINGLE_TAG", order=False,
                topic_sys_flag=0, attributes=load.attributes or None,
            )
            for topic in names
            if topic not in known or known[topic].write_queue_nums != load.queues
        ]  # fmt: skip
        self._answers(requests)

    def stored(self, load: Load) -> int:
        """Sum of the maximum offsets of the load's queues."""
        return sum(self._answers([GetMaxOffset(*queue) for queue in _queues(load)]))

    def held(self, load: Load) -> int:
        """Number of messages in the load's queues."""
        return self.stored(load) - sum(self._answers([GetMinOffset(*queue) for queue in _queues(load)]))

    def log_end(self) -> int:
        """Physical offset of the end of the log."""
        return int(self._connection.call(GetBrokerRuntimeInfo()).table["commitLogMaxOffset"])

    def _answers(self, requests: Sequence[Request[T]]) -> list[T]:
        answers = []
        for start in range(0, len(requests), ASKED_AT_ONCE):
            some = requests[start : start + ASKED_AT_ONCE]
            asked = [self._connection.ask(request, timeout_s=CALL_TIMEOUT_S) for request in some]
            answers += [self._connection.answer(item) for item in asked]
        return answers

    def wait_stored(self, load: Load, expected: int) -> int:
        """Wait until the queues hold `expected` messages or no more arrive; returns the number."""
        patience_s = STORED_TIMEOUT_S + load.late_s
        stored, deadline = self.stored(load), time.monotonic() + patience_s
        while stored < expected and time.monotonic() < deadline:
            time.sleep(STORED_POLL_S)
            before, stored = stored, self.stored(load)
            if stored > before:
                deadline = time.monotonic() + patience_s
        return stored


def _queues(load: Load) -> list[tuple[str, int]]:
    return [(topic, queue) for topic in load.topic_names for queue in range(load.queues)]


class Usage:
    """Processor time and memory of a server in a measured window."""

    def __init__(self, process: ListeningProcess, watch: Watch | None) -> None:
        self._process = process
        self._watch = watch or (lambda _: None)
        self._cpu_us: dict[str, float | None] = {}
        self.anonymous_mib: float | None = None

    def hear(self, word: str) -> None:
        if word in ("begin", "end"):
            self._cpu_us[word] = self._process.cpu_us()
            self.anonymous_mib = self._process.anonymous_mib()
        self._watch(word)

    def cpu_us_of(self, operations: int) -> float | None:
        begin, end = self._cpu_us.get("begin"), self._cpu_us.get("end")
        return (
            round((end - begin) / operations, 2)
            if begin is not None and end is not None and operations
            else None
        )


def cell_of(name: str, load: Load, counted: Counted, usage: Usage, wrong: Sequence[str]) -> Cell:
    messages = counted.records if load.kind is LoadKind.PULL else counted.answers * load.batch
    series_of = 1 if load.kind is LoadKind.PULL else load.batch
    return make_cell(
        name,
        messages,
        counted.seconds,
        latencies=counted.latencies,
        operation_bytes=0 if load.kind is LoadKind.ROUTE else load.body_bytes,
        unit="routes" if load.kind is LoadKind.ROUTE else "messages",
        settings=settings_of(load),
        failed=counted.refused * load.batch,
        server_cpu_us=usage.cpu_us_of(messages),
        client_cpu_us=round(counted.client_cpu_us / messages, 2) if messages else None,
        anonymous_mib=round(usage.anonymous_mib, 1) if usage.anonymous_mib is not None else None,
        series=[(second, count * series_of) for second, count in counted.series],
        wrong=[*wrong, *([] if messages else ["no reply in the measured time"])],
    )


def settings_of(load: Load) -> dict[str, Value]:
    return {
        "kind": load.kind.value,
        "topics": load.topics,
        "queues": load.queues,
        "body_bytes": load.body_bytes,
        "batch": load.batch,
        "in_flight": load.in_flight,
        "rate": load.rate,
        "processes": load.processes,
    }


def messages_that_fit(directory: Path, body_bytes: int) -> int:
    """Messages that fit on the disk with a reserve. Raises BadLoad if none do."""
    free = free_bytes(directory)
    room = (free - DISK_RESERVE_BYTES) // (body_bytes + RECORD_OVERHEAD_BYTES)
    if room < 1:
        raise BadLoad(
            f"{directory.parent} has {free >> 20} MiB free, {DISK_RESERVE_BYTES >> 20} MiB are reserved: "
            "set TMPDIR to a larger disk"
        )
    return room
