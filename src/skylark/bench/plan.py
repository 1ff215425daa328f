"""How many brokers, machines and Spark cores a load needs, computed from the recorded cost of a message.

A broker is one process and uses one core; more load means more brokers. Each limit states how much of a
resource the load needs and how much one broker, or one machine, has. Brokers and machines are added until
no limit is exceeded; the limit that is then used most binds first when the load grows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec

from skylark.errors import RocketMQError

SHIPPED = "costs.json"

Microseconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


@dataclass(eq=False)
class BadCosts(RocketMQError):
    """An invalid file of costs."""

    text = "{path}: {reason}"
    path: str
    reason: str


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Costs measured on one machine. Microseconds are processor time; `kib` refers to the message body."""

    measured: str
    machine: str
    commit: str

    wake_us: Microseconds
    """A wake-up of the broker, shared by all sends that it then handles."""
    send_us: Microseconds
    """A send of one message."""
    send_kib_us: Microseconds
    batch_us: Microseconds
    """A send of a batch, without its messages."""
    batch_message_us: Microseconds
    """Each message of a batch."""
    batch_kib_us: Microseconds
    sync_us: Microseconds
    """Extra cost per message with synchronous flush."""
    flush_us: Microseconds
    """A synchronous flush, shared by all sends that it completes."""
    pull_us: Microseconds
    """A pull, without its messages."""
    pull_message_us: Microseconds
    pull_kib_us: Microseconds
    replica_us: Microseconds
    """A message sent by the master to a slave."""
    slave_us: Microseconds
    """A message received by a slave."""
    slave_kib_us: Microseconds
    queues_growth: Annotated[float, msgspec.Meta(ge=0, le=1)]
    """Relative growth of the cost of a send with each tenfold number of queues above ten."""

    broker_mib: Positive
    """Anonymous memory of a broker under load, without connections, topics and queues."""
    connection_kib: Microseconds
    topic_kib: Microseconds
    """With one queue."""
    queue_kib: Microseconds
    """Each further queue of a topic."""

    sync_ms: Positive
    """One flush of the disk."""

    spark_row_us: Microseconds
    """Core time of Spark for a row into an archive."""
    spark_kib_us: Microseconds
    spark_tasks_growth: Annotated[float, msgspec.Meta(ge=0, le=1)]
    """Relative growth of that time with each tenfold number of tasks at once."""
    client_send_us: Microseconds
    """The asyncio producer with many sends in flight."""
    client_receive_us: Microseconds
    """The push consumer."""


def load_costs(path: Path | None = None) -> Costs:
    """The costs in a file, or the recorded ones. Raises BadCosts, OSError."""
    data = files(__package__).joinpath(SHIPPED).read_bytes() if path is None else path.read_bytes()
    try:
        return msgspec.json.decode(data, type=Costs)
    except msgspec.MsgspecError as error:
        raise BadCosts(str(path or SHIPPED), str(error)) from None


def save_costs(costs: Costs, path: Path) -> None:
    """Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(costs), indent=2) + b"\n")


KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BODY_BYTES_MAX = 4 * MIB
TOPICS_PER_BROKER_MAX = 99_900
"""`topicsMax` minus the built-in topics."""
QUEUES_PER_BROKER_MAX = 1_000_000
CLIENTS_MAX = 100_000
"""Heartbeats of more clients would keep a core busy."""
BROKERS_MAX = 100_000
"""A load that needs more is rejected."""

RECORD_BYTES = 91 + 20
"""A stored message without body and properties, with a topic of 20 characters."""
UNIT_BYTES = 20
INDEX_BYTES = 21
"""An index entry and its share of slots, per key."""
REQUEST_BYTES = 320
ANSWER_BYTES = 180
PULL_BYTES = 420
PULL_ANSWER_BYTES = 220
NETWORK_OVERHEAD = 1.05
"""Headers of TCP and IP."""
FILES_BYTES = 2 * GIB + 420_000_040
"""Files of an empty broker: the current and the next log file, an index file."""
QUEUE_FILE_BYTES = 64 * KIB
"""Allocated size of a queue's current file."""
DELAYED_WRITES = 1
TRANSACTION_WRITES = 2
"""Extra stored messages: the delayed one; the half message and its end."""
FEW_QUEUES = 10
"""Number of queues up to which the cost of a send does not grow."""
SPARK_TASKS_MEASURED = 8
HEARTBEAT_S = 30
HEARTBEAT_US = 200
SHARE = (0.01, 1.0)
"""Range of the usable share of a resource."""


@dataclass(eq=False)
class BadPlan(RocketMQError):
    """An invalid load or machine."""

    text = "{name} {value}: {reason}"
    name: str
    value: object
    reason: str


def limited(default: float | None, low: float, high: float) -> Any:
    """A member with a default and a range."""
    return field(default=default, metadata={"low": low, "high": high})


def _check(values: Demand | Hardware) -> None:
    """Raises BadPlan."""
    for each in fields(values):
        value = getattr(values, each.name)
        if not each.metadata or value is None:
            continue
        low, high = each.metadata["low"], each.metadata["high"]
        if not low <= value <= high:  # also rejects NaN
            raise BadPlan(each.name, value, f"choose {low:,.10g} to {high:,.10g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The load to plan for."""

    messages_per_s: float = limited(1000.0, 0.001, 1e9)
    """Daily average; the peak is `peak_factor` times as much."""
    body_bytes: int = limited(1024, 0, BODY_BYTES_MAX)
    fan_out: float = limited(1.0, 0.0, 1000.0)
    retention_h: float = limited(72.0, 0.0, 24 * 3650)
    replicas: int = limited(2, 1, 10)
    """Copies of each message, including the master's."""
    peak_factor: float = limited(3.0, 1.0, 1000.0)
    topics: int = limited(10, 1, 10_000_000)
    queues: int = limited(8, 1, 65_536)
    """Queues per topic and broker."""
    topic_brokers: int = limited(2, 1, BROKERS_MAX)
    """Minimum number of brokers per topic."""
    batch: int = limited(1, 1, 10_000)
    """Messages per send."""
    pull_batch: int = limited(8, 1, 32)
    """Average messages per pull; at most 32."""
    flush: str = "async"
    in_flight: int = limited(64, 1, 1_000_000)
    """Sends in flight per broker."""
    clients: int = limited(100, 0, CLIENTS_MAX)
    """Each is connected to every broker."""
    keys: float = limited(1.0, 0.0, 100.0)
    """Index keys per message, including the unique one."""
    properties_bytes: int = limited(120, 0, 32_767)
    delayed: float = limited(0.0, 0.0, 1.0)
    transactional: float = limited(0.0, 0.0, 1.0)
    """Share of all messages, as is `delayed`."""
    spark_jobs: int = limited(1, 0, 1000)
    """Pipelines that each read every message."""
    cached_s: float = limited(60.0, 0.0, 86_400.0)
    """Consumer lag that is still served from memory."""

    def __post_init__(self) -> None:
        _check(self)
        if self.flush not in ("async", "sync"):
            raise BadPlan("flush", self.flush, "choose async or sync")
        if self.delayed + self.transactional > 1:
            raise BadPlan(
                "transactional", self.transactional, f"exceeds 1 together with delayed {self.delayed:g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One machine, and the share of it that may be used at the peak."""

    cores: int = limited(8, 1, 4096)
    memory_gib: float = limited(32.0, 0.5, 65_536)
    disk_gib: float = limited(4000.0, 5, 1e7)
    disk_mib_per_s: float = limited(400.0, 1, 1e6)
    network_gbit_per_s: float = limited(10.0, 0.01, 1e4)
    sync_ms: float | None = limited(None, 0.001, 10_000)
    """Duration of a flush; None: as recorded in the costs."""
    core_speed: float = limited(1.0, 0.01, 100)
    """Relative to the machine of the costs."""
    core_share: float = limited(0.7, *SHARE)
    disk_share: float = limited(0.7, *SHARE)
    """Above 75 % a broker deletes files early."""
    write_share: float = limited(0.5, *SHARE)
    network_share: float = limited(0.6, *SHARE)
    memory_share: float = limited(0.8, *SHARE)
    flush_share: float = limited(0.9, *SHARE)

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class Limit:
    """What the load needs of a resource and what each broker or machine has; `ceiling`: usable share."""

    name: str
    per: str
    """`broker` or `machine`."""
    needed: float
    each: float
    ceiling: float
    unit: str

    @property
    def count(self) -> int:
        """Brokers or machines needed for this limit alone."""
        return max(1, math.ceil(self.needed / (self.each * self.ceiling) - 1e-9))


@dataclass(frozen=True, slots=True)
class Used:
    """A limit in the plan: `share` of the resource is used at the peak; `load` of the usable part."""

    limit: Limit
    share: float
    load: float


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """Masters, and machines for masters and slaves."""

    brokers: int = 1
    machines: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """The brokers, machines and resources that a load needs."""

    demand: Demand
    hardware: Hardware
    brokers: int
    slaves: int
    machines: int
    cores: int
    """Cores of masters and slaves together, at the usable share of each."""
    disk_bytes: float
    memory_bytes: float
    network_in_bytes_per_s: float
    network_out_bytes_per_s: float
    disk_write_bytes_per_s: float
    spark_cores: int
    producer_cores: float
    consumer_cores: float
    message_core_us: float
    """Core time of a master per message, in total."""
    broker_messages_per_s_max: float
    """Messages a second of this load that saturate a broker's core."""
    limits: list[Used]
    """The most used limit, which binds, first."""

    @property
    def binding(self) -> Used:
        return self.limits[0]


def make_plan(demand: Demand, hardware: Hardware, costs: Costs) -> CapacityPlan:
    """Raises BadPlan if too many brokers are needed, or if a message costs nothing."""
    size = ClusterSize(machines=demand.replicas)
    while (larger := _grown(size, demand, hardware, costs)) != size and size.brokers <= BROKERS_MAX:
        size = larger
    limits = list(_limits(size, demand, hardware, costs))
    if size.brokers > BROKERS_MAX:
        most = max(limits, key=lambda limit: limit.count / (demand.replicas if limit.per == "machine" else 1))
        reason = f"needs more than {BROKERS_MAX:,} brokers because of {most.name}"
        raise BadPlan("messages_per_s", demand.messages_per_s, reason)
    used = [_used(limit, size) for limit in limits]
    by_name = {limit.name: limit for limit in limits}
    peak = demand.messages_per_s * demand.peak_factor
    kib = demand.body_bytes / KIB
    spark_us = demand.spark_jobs * (costs.spark_row_us + kib * costs.spark_kib_us) / hardware.core_speed
    master_us = _message_us(demand, costs) / hardware.core_speed
    if not master_us:
        raise BadPlan("costs", f"of {costs.measured}", "a message costs nothing")
    return CapacityPlan(
        demand=demand,
        hardware=hardware,
        brokers=size.brokers,
        slaves=size.brokers * (demand.replicas - 1),
        machines=size.machines,
        cores=math.ceil(by_name["cores"].needed / hardware.core_speed / hardware.core_share),
        disk_bytes=by_name["disk space"].needed,
        memory_bytes=by_name["memory"].needed,
        network_in_bytes_per_s=by_name["network in"].needed,
        network_out_bytes_per_s=by_name["network out"].needed,
        disk_write_bytes_per_s=by_name["disk writes"].needed,
        spark_cores=_spark_cores(peak * spark_us / 1e6 / hardware.core_share, costs),
        producer_cores=peak * costs.client_send_us / 1e6 / hardware.core_speed,
        consumer_cores=peak * demand.fan_out * costs.client_receive_us / 1e6 / hardware.core_speed,
        message_core_us=master_us,
        broker_messages_per_s_max=1e6 / master_us,
        limits=sorted(used, key=lambda each: -each.load),
    )


def _grown(size: ClusterSize, demand: Demand, hardware: Hardware, costs: Costs) -> ClusterSize:
    """The size that its limits need. Monotonic, so repeating it finds the least sufficient size."""
    limits = list(_limits(size, demand, hardware, costs))
    machines = max(demand.replicas, *(limit.count for limit in limits if limit.per == "machine"))
    brokers = max(limit.count for limit in limits if limit.per == "broker")
    # A machine without a broker carries nothing.
    return ClusterSize(
        max(brokers, math.ceil(machines / demand.replicas), size.brokers), max(machines, size.machines)
    )


def _used(limit: Limit, size: ClusterSize) -> Used:
    share = limit.needed / (limit.each * (size.brokers if limit.per == "broker" else size.machines))
    return Used(limit, share, share / limit.ceiling)


def _spark_cores(cores: float, costs: Costs) -> int:
    """Whole cores, with what a row costs more if more tasks run at once."""
    return math.ceil(cores * (1 + costs.spark_tasks_growth * math.log10(max(cores, 1))))


def _message_us(demand: Demand, costs: Costs) -> float:
    """Core time of a master for one message: received, stored, delivered to all groups."""
    kib = demand.body_bytes / KIB
    growth = 1 + costs.queues_growth * math.log10(max(demand.topics * demand.queues / FEW_QUEUES, 1))
    stored = costs.wake_us / (demand.in_flight * demand.batch)
    if demand.batch == 1:
        stored += costs.send_us + kib * costs.send_kib_us
    else:
        stored += costs.batch_us / demand.batch + costs.batch_message_us + kib * costs.batch_kib_us
    writes = 1 + DELAYED_WRITES * demand.delayed + TRANSACTION_WRITES * demand.transactional
    flushed = 0.0
    if demand.flush == "sync":
        flushed = costs.sync_us + costs.flush_us / (demand.in_flight * demand.batch)
    read = costs.pull_us / demand.pull_batch + costs.pull_message_us + kib * costs.pull_kib_us
    replicated = (demand.replicas - 1) * costs.replica_us
    return (stored * growth + flushed) * writes + read * (demand.fan_out + demand.spark_jobs) + replicated


def _limits(size: ClusterSize, demand: Demand, hardware: Hardware, costs: Costs) -> Iterator[Limit]:
    peak = demand.messages_per_s * demand.peak_factor
    kib = demand.body_bytes / KIB
    writes = 1 + DELAYED_WRITES * demand.delayed + TRANSACTION_WRITES * demand.transactional
    record = demand.body_bytes + demand.properties_bytes + RECORD_BYTES
    stored = record + UNIT_BYTES + demand.keys * INDEX_BYTES
    # Every topic is on some brokers, and every broker has a topic.
    topics = min(demand.topics * size.brokers, max(demand.topics * demand.topic_brokers, size.brokers))
    processes, connections = size.brokers * demand.replicas, size.brokers * demand.clients

    speed, cores = hardware.core_speed, hardware.core_share
    heartbeats = connections * HEARTBEAT_US / HEARTBEAT_S
    slave = peak * (costs.slave_us + kib * costs.slave_kib_us) * writes / 1e6 if demand.replicas > 1 else 0.0
    master = (peak * _message_us(demand, costs) + heartbeats) / 1e6
    yield Limit("broker core", "broker", master, speed, cores, "cores")
    yield Limit("slave core", "broker", slave, speed, cores, "cores")
    if demand.flush == "sync":
        sync_ms = costs.sync_ms if hardware.sync_ms is None else hardware.sync_ms
        # One flush completes all sends in flight, which are then sent again: work and flush alternate.
        turn_us = _message_us(demand, costs) / speed + sync_ms * 1000 / (demand.in_flight * demand.batch)
        yield Limit("flushes", "broker", peak, 1e6 / turn_us, hardware.flush_share, "messages/s")
    yield Limit("topics", "broker", topics, TOPICS_PER_BROKER_MAX, 1.0, "topics")
    yield Limit("queues", "broker", topics * demand.queues, QUEUES_PER_BROKER_MAX, 1.0, "queues")

    together = master + slave * (demand.replicas - 1)
    yield Limit("cores", "machine", together, hardware.cores * speed, cores, "cores")
    kept = demand.messages_per_s * demand.retention_h * 3600 * stored * writes * demand.replicas
    files = processes * FILES_BYTES + topics * demand.queues * demand.replicas * QUEUE_FILE_BYTES
    yield Limit("disk space", "machine", kept + files, hardware.disk_gib * GIB, hardware.disk_share, "B")
    written = peak * stored * writes * demand.replicas
    yield Limit("disk writes", "machine", written, hardware.disk_mib_per_s * MIB, hardware.write_share, "B/s")
    memory = processes * costs.broker_mib * MIB + connections * costs.connection_kib * KIB
    memory += topics * (costs.topic_kib + (demand.queues - 1) * costs.queue_kib) * KIB * demand.replicas
    memory += peak * record * demand.cached_s * writes
    yield Limit("memory", "machine", memory, hardware.memory_gib * GIB, hardware.memory_share, "B")
    readers, network = demand.fan_out + demand.spark_jobs, hardware.network_gbit_per_s * 1e9 / 8
    copies = record * writes * (demand.replicas - 1)
    arriving = demand.body_bytes + demand.properties_bytes + REQUEST_BYTES / demand.batch
    arriving += readers * PULL_BYTES / demand.pull_batch + copies
    leaving = (
        ANSWER_BYTES / demand.batch + readers * (record + PULL_ANSWER_BYTES / demand.pull_batch) + copies
    )
    for name, bytes_each in (("network in", arriving), ("network out", leaving)):
        needed = peak * bytes_each * NETWORK_OVERHEAD
        yield Limit(name, "machine", needed, network, hardware.network_share, "B/s")


def assumptions(demand: Demand, hardware: Hardware, costs: Costs) -> list[str]:
    """The assumptions of the plan, as sentences."""
    sync_ms = costs.sync_ms if hardware.sync_ms is None else hardware.sync_ms
    return [
        f"Costs were measured on {costs.measured} on {costs.machine}, commit {costs.commit}; "
        f"cores here are {hardware.core_speed:g} times as fast.",
        "A broker is a process that uses one core at most; load spreads evenly over brokers, and brokers "
        "over machines; every client has a connection to every broker.",
        f"The rate is a day's average; at the peak it is {demand.peak_factor:g} times that. Cores, network, "
        "disk writes and memory are for the peak, disk space for the average.",
        f"Used at most: cores {hardware.core_share:.0%}, network {hardware.network_share:.0%}, disk space "
        f"{hardware.disk_share:.0%}, disk writes {hardware.write_share:.0%}, memory "
        f"{hardware.memory_share:.0%}.",
        f"A message has {demand.properties_bytes} bytes of properties and {demand.keys:g} keys; a pull "
        f"brings {demand.pull_batch} messages, a send carries {demand.batch}.",
        f"Consumers are at most {demand.cached_s:g} s behind, so that reads come from memory, not from disk.",
        "A delayed message is stored twice, one with a transaction three times; retries are not counted.",
        f"A broker finds {demand.in_flight} sends waiting when it wakes up; few senders, each waiting for "
        "its answer, cost it more per message.",
        f"With synchronous flush a flush takes {sync_ms:g} ms and answers all sends that wait.",
        "Spark reads from brokers, seven columns into an archive; its driver and shuffles are not counted. "
        f"A row was measured with up to {SPARK_TASKS_MEASURED} tasks on two cores; more are computed.",
        "Disk and network are those of a machine alone; what a neighbour takes is not there.",
    ]
