"""The costs of a message on this machine for `skylark plan`, derived from loads on a broker.

What takes long to measure stays as it was shipped: Spark, our own clients.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import msgspec

from benchmarks.growth import connected
from skylark.bench.load import Load, LoadFailed, LoadKind
from skylark.bench.load_client import LoadClient
from skylark.bench.load_target import FILL_TIMEOUT_S, LoadTarget
from skylark.bench.machine import BROKER_CPU, CLIENT_CPU, ListeningProcess, describe
from skylark.bench.plan import FEW_QUEUES, Costs
from skylark.bench.servers import own_broker, own_servers, wait_for_slave

SMALL_KIB, LARGE_KIB, HUGE_KIB = 128 / 1024, 1.0, 16.0
HUGE_MESSAGES = 6_000
"""Less than may be unflushed: the wait for a slow disk is not a cost of a send."""
HUGE_WARM_UP_S = 0.02
IN_FLIGHT = 64
BATCH, SMALL_BATCH = 32, 8
BACKLOG = 100_000
CONNECTIONS = 500
TOPICS = 1000
QUEUES = 8
TOPIC = "plan-topics"
"""Prefix of TOPICS topics with QUEUES queues each."""
WARM_UP_MESSAGES = 2_000
"""Sent before memory is measured: the first messages allocate memory once."""
ROUNDS, TRIES = 3, 3
SYNCS = 200
SYNC_BYTES = 4096

Used = Mapping[str, float]
"""Microseconds of the broker's processor for a message, by cell."""
Say = Callable[[str, float], None]


def loads(address: str, seconds: float) -> dict[str, Load]:
    """The cells; pulls need a backlog of their size."""
    base = Load(address=address, seconds=seconds, warm_up_s=min(seconds / 4, 1.0), in_flight=IN_FLIGHT)
    found = {"send-1": replace(base, in_flight=1, topic="plan-send")}
    for name, body_bytes in (("small", 128), ("large", 1024)):
        sized = replace(base, body_bytes=body_bytes)
        found[f"send-{name}"] = replace(sized, topic="plan-send")
        found[f"batch-{name}"] = replace(sized, topic="plan-batch", batch=BATCH)
        found[f"pull-{name}"] = replace(sized, topic=f"plan-{name}", kind=LoadKind.PULL, batch=BATCH)
    found["send-huge"] = replace(
        base, topic="plan-send", body_bytes=round(HUGE_KIB * 1024), messages_max=HUGE_MESSAGES,
        warm_up_s=HUGE_WARM_UP_S,
    )  # fmt: skip
    found["batch-few"] = replace(found["batch-small"], batch=SMALL_BATCH)
    found["pull-1"] = replace(found["pull-small"], batch=1)
    found["send-queues"] = replace(found["send-small"], topic=TOPIC, topics=TOPICS, queues=QUEUES)
    return found


def fit(used: Used, base: Costs) -> Costs:
    """Costs of the parts, derived from those of the cells. Other costs are taken from `base`."""
    # The bytes of a KiB hardly show beside the rest; those of 16 do.
    send_kib = max((used["send-huge"] - used["send-small"]) / (HUGE_KIB - SMALL_KIB), 0.0)
    single = used["send-1"] - SMALL_KIB * send_kib
    many = used["send-small"] - SMALL_KIB * send_kib
    wake = max((single - many) / (1 - 1 / IN_FLIGHT), 0.0)
    send = max(many - wake / IN_FLIGHT, 0.0)
    batch_kib = _slope(used, "batch")
    few, some = SMALL_BATCH * used["batch-few"], BATCH * used["batch-small"]
    batched = max((some - few) / (BATCH - SMALL_BATCH), 0.0)
    batch = max(some - wake / IN_FLIGHT - BATCH * batched, 0.0)
    pull_kib = _slope(used, "pull")
    pull = max((used["pull-1"] - used["pull-small"]) / (1 - 1 / BATCH), 0.0)
    synced = used["sync-small"] - used["send-small"]
    flush = max((used["sync-1"] - used["send-1"] - synced) / (1 - 1 / IN_FLIGHT), 0.0)
    dearer = used["send-queues"] / used["send-small"] - 1
    growth = dearer / math.log10(TOPICS * QUEUES / FEW_QUEUES)
    return msgspec.structs.replace(
        base,
        wake_us=round(wake, 2),
        send_us=round(send, 2),
        send_kib_us=round(send_kib, 2),
        batch_us=round(batch, 2),
        batch_message_us=round(max(batched - SMALL_KIB * batch_kib, 0.0), 2),
        batch_kib_us=round(batch_kib, 2),
        pull_us=round(pull, 2),
        pull_message_us=round(max(used["pull-1"] - pull - SMALL_KIB * pull_kib, 0.0), 2),
        pull_kib_us=round(pull_kib, 2),
        sync_us=round(max(synced - flush / IN_FLIGHT, 0.0), 2),
        flush_us=round(flush, 2),
        replica_us=round(max(used["master-large"] - used["send-large"], 0.0), 2),
        slave_us=round(max(used["slave-small"] - SMALL_KIB * _slope(used, "slave"), 0.0), 2),
        slave_kib_us=round(_slope(used, "slave"), 2),
        queues_growth=round(min(max(growth, 0.0), 1.0), 3),
    )


def _slope(used: Used, kind: str) -> float:
    """Microseconds for a KiB more."""
    return max((used[f"{kind}-large"] - used[f"{kind}-small"]) / (LARGE_KIB - SMALL_KIB), 0.0)


def measure_costs(directory: Path, seconds: float, base: Costs, say: Say) -> Costs:
    """`seconds` for each cell, all its rounds together. Raises LoadFailed, ProcessFailed, RocketMQError."""
    client, used, round_s = LoadClient(), dict[str, float](), seconds / ROUNDS
    with (
        own_servers(directory / "async", cpu=BROKER_CPU) as served,
        LoadTarget(served.broker, client, cpu=CLIENT_CPU) as target,
    ):
        memory = _memory(target)  # first: later, what loads have freed would be used again
        cells = loads(served.broker, round_s)
        for name in ("pull-small", "pull-large"):
            target.fill(cells[name], BACKLOG)
        used |= _in_rounds(target, cells, say)
        loaded = target.process.anonymous_mib()
    with (
        own_servers(directory / "sync", flush="sync", cpu=BROKER_CPU) as served,
        LoadTarget(served.broker, client, cpu=CLIENT_CPU) as target,
    ):
        cells = loads(served.broker, round_s)
        used |= _in_rounds(target, {f"sync-{name}": cells[f"send-{name}"] for name in ("1", "small")}, say)
    used |= _replicated(directory, client, round_s, say)
    machine = describe()
    return msgspec.structs.replace(
        fit(used, base),
        measured=datetime.now(UTC).date().isoformat(),
        machine=f"{machine.processor}, {machine.cores} cores, load {machine.load_1m}",
        commit=machine.commit or "unknown",
        broker_mib=round(max((loaded or base.broker_mib) - memory["topics"] - memory["queues"], 1.0), 1),
        connection_kib=round(memory["connections"] * 1024 / CONNECTIONS, 2),
        topic_kib=round(memory["topics"] * 1024 / TOPICS, 2),
        queue_kib=round(memory["queues"] * 1024 / (TOPICS * (QUEUES - 1)), 2),
        sync_ms=round(sync_ms(directory), 4),
    )


class Least:
    """The least that each cell cost: rounds in which it was more, or which were void, were disturbed.

    A void round is tried again, now and then in vain: a disk may stand still for longer than a round.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._used: dict[str, float] = {}
        self._void: dict[str, LoadFailed] = {}

    def add(self, name: str, cost_us: float) -> None:
        self._say(name, cost_us)
        self._used[name] = min(self._used.get(name, cost_us), cost_us)

    def measure(self, target: LoadTarget, name: str, load: Load) -> None:
        """A round of a cell."""
        for _ in range(TRIES):
            cell = target.measure(name, load)
            if cell.server_cpu_us and not cell.is_void:
                self.add(name, cell.server_cpu_us)
                return
            reason = "; ".join(cell.wrong) or "the broker's processor time cannot be seen, or was too short"
            self._void[name] = LoadFailed(f"{name}: {reason}")

    def found(self) -> dict[str, float]:
        """By cell. Raises LoadFailed if one was void in all rounds."""
        for name, error in self._void.items():
            if name not in self._used:
                raise error
        return self._used


def _in_rounds(target: LoadTarget, cells: Mapping[str, Load], say: Say) -> dict[str, float]:
    least = Least(say)
    for _ in range(ROUNDS):
        for name, load in cells.items():
            least.measure(target, name, load)
    return least.found()


def _replicated(directory: Path, client: LoadClient, round_s: float, say: Say) -> dict[str, float]:
    """The cost of a message for a master with a slave, and for the slave."""
    least = Least(say)
    with (
        own_broker(directory / "master", cpu=BROKER_CPU) as master,
        own_broker(directory / "slave", "--slave-of", master.broker, cpu=CLIENT_CPU) as slave,
        LoadTarget(master.broker, client, cpu=CLIENT_CPU) as target,
    ):
        wait_for_slave(master.broker)
        follower = ListeningProcess(slave.broker)
        for number, size in product(range(ROUNDS), ("small", "large")):
            load = replace(
                loads(master.broker, round_s)[f"send-{size}"], topic=f"plan-{size}-{number}", warm_up_s=0.0
            )
            before_us = follower.cpu_us() or 0.0
            least.measure(target, f"master-{size}", load)
            wait_for_slave(master.broker)
            copied_us = (follower.cpu_us() or 0.0) - before_us
            least.add(f"slave-{size}", copied_us / max(target.stored(load), 1))
    return least.found()


def _memory(target: LoadTarget) -> dict[str, float]:
    """MiB that connections, topics and queues add; each queue gets a message."""
    load = Load(
        address=target.address,
        topic=TOPIC,
        topics=TOPICS,
        queues=1,
        messages_max=TOPICS,
        seconds=FILL_TIMEOUT_S,
        warm_up_s=0.0,
    )
    single = replace(load, topic="plan-send", topics=1)
    _store(target, "warm-up", replace(single, messages_max=WARM_UP_MESSAGES))
    taken: dict[str, float] = {}
    with ExitStack() as stack:
        before = target.process.anonymous_mib() or 0.0
        stack.enter_context(connected(target.address, CONNECTIONS))
        _store(target, "connections", single)
        taken["connections"] = _more(target, before)
    for name, queues in (("topics", 1), ("queues", QUEUES)):
        before = target.process.anonymous_mib() or 0.0
        _store(target, name, replace(load, queues=queues, messages_max=TOPICS * queues))
        taken[name] = _more(target, before)
    return taken


def _store(target: LoadTarget, name: str, load: Load) -> None:
    """All messages of a load. Raises LoadFailed."""
    if wrong := target.measure(name, load).wrong:
        raise LoadFailed(f"{name}: {'; '.join(wrong)}")


def _more(target: LoadTarget, before: float) -> float:
    return max((target.process.anonymous_mib() or 0.0) - before, 0.0)


def sync_ms(directory: Path) -> float:
    """The median time of a flush of a small write at the end of a file."""
    taken = []
    descriptor = os.open(directory / "flushed", os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, SYNCS * SYNC_BYTES)
        for number in range(SYNCS):
            os.pwrite(descriptor, bytes(SYNC_BYTES), number * SYNC_BYTES)
            started = time.perf_counter()
            os.fdatasync(descriptor)
            taken.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
    return statistics.median(taken) * 1000
