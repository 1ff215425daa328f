"""What a message costs: the figures that a plan is made from, and the file that they come from."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec

from skylark.errors import RocketMQError

SHIPPED = "costs.json"

Microseconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


@dataclass(eq=False)
class BadCosts(RocketMQError):
    """A file of costs that cannot be used."""

    text = "{path}: {reason}"
    path: str
    reason: str


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured on one machine. Microseconds are of processor time; `kib` is of a message's body."""

    measured: str
    machine: str
    commit: str

    wake_us: Microseconds
    """The broker wakes up; shared by all sends that it then finds."""
    send_us: Microseconds
    """A send of one message."""
    send_kib_us: Microseconds
    batch_us: Microseconds
    """A send of a batch, however many messages it carries."""
    batch_message_us: Microseconds
    """Each message of a batch."""
    batch_kib_us: Microseconds
    sync_us: Microseconds
    """More per message, when it is answered after a flush."""
    flush_us: Microseconds
    """A flush: its threads wake each other up; shared by all sends that it answers."""
    pull_us: Microseconds
    """A consumer's request, however many messages it brings."""
    pull_message_us: Microseconds
    pull_kib_us: Microseconds
    replica_us: Microseconds
    """A message that the master hands to a slave."""
    slave_us: Microseconds
    """A message that a slave takes."""
    slave_kib_us: Microseconds
    queues_growth: Annotated[float, msgspec.Meta(ge=0, le=1)]
    """The share by which a send gets dearer with each tenfold number of queues above ten."""

    broker_mib: Positive
    """Anonymous memory of a broker under load, without what follows."""
    connection_kib: Microseconds
    topic_kib: Microseconds
    """With one queue."""
    queue_kib: Microseconds
    """Each further one."""

    sync_ms: Positive
    """One flush of the disk."""

    spark_row_us: Microseconds
    """A row into an archive, core time of Spark."""
    spark_kib_us: Microseconds
    client_send_us: Microseconds
    """Our asyncio producer, many in flight."""
    client_receive_us: Microseconds
    """Our push consumer."""


def load_costs(path: Path | None = None) -> Costs:
    """The costs in a file, else those that were measured for this version. Raises BadCosts, OSError."""
    data = files(__package__).joinpath(SHIPPED).read_bytes() if path is None else path.read_bytes()
    try:
        return msgspec.json.decode(data, type=Costs)
    except msgspec.MsgspecError as error:
        raise BadCosts(str(path or SHIPPED), str(error)) from None


def save_costs(costs: Costs, path: Path) -> None:
    """Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(costs), indent=2) + b"\n")
