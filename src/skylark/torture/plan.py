"""Modes of a run (what is promised, which faults it must survive) and the plan of its faults.

The same seed gives the same plan.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skylark.processes import ProcessFailed
from skylark.torture.faults import (
    ALL_FAULTS,
    CLIENT_FAULTS,
    CLOCK_FAULTS,
    ETCD_FAULTS,
    GROUP_FAULTS,
    REPLICA_FAULTS,
    SERVER_FAULTS,
    Targets,
)

SERVERS = tuple(SERVER_FAULTS)
WITHOUT_CLOCK = tuple(name for name in SERVERS if name not in CLOCK_FAULTS)
COMMON_FAULTS = ("kill-namesrv", "slow-disk", "jump-clock")
"""Faults of all servers that groups in controller mode must survive, too."""


@dataclass(frozen=True, slots=True)
class Mode:
    """The guarantees and faults of a run."""

    flush: str = "async"
    ordered: bool = False
    delayed: bool = False
    transactions: bool = False
    popping: bool = False
    with_slaves: bool = False
    replicas: tuple[int, ...] = ()
    """Replicas of each broker, in turn, of which a controller chooses the master; empty: no controller."""
    controllers: int = 1
    """More than one share their state in an etcd of three members."""
    brokers: int = 2
    server_faults: tuple[str, ...] = SERVERS
    client_faults: tuple[str, ...] = tuple(CLIENT_FAULTS)

    @property
    def with_controller(self) -> bool:
        return bool(self.replicas)

    @property
    def needs_etcd(self) -> bool:
        return self.controllers > 1

    @property
    def stored_once(self) -> bool:
        """Delayed messages may be stored twice after a kill: their progress is saved only periodically."""
        return not self.delayed


MODES = {
    "async": Mode(),
    "sync": Mode(flush="sync"),
    "sync-master": Mode(with_slaves=True, brokers=1, server_faults=(*SERVERS, *REPLICA_FAULTS)),
    "transactions": Mode(transactions=True),
    "orderly": Mode(ordered=True),
    "failover": Mode(ordered=True, replicas=(3, 2), server_faults=(*GROUP_FAULTS, *COMMON_FAULTS)),
    "failover-etcd": Mode(
        ordered=True,
        replicas=(3, 2),
        controllers=3,
        server_faults=(*GROUP_FAULTS, *ETCD_FAULTS, *COMMON_FAULTS),
    ),
    # Delays depend on the wall clock: a jump would end them early.
    "delay": Mode(delayed=True, server_faults=WITHOUT_CLOCK),
    # So do invisible times.
    "pop": Mode(popping=True, server_faults=WITHOUT_CLOCK),
    "pop-orderly": Mode(popping=True, ordered=True, server_faults=WITHOUT_CLOCK),
}

PAUSE_S = (1.0, 4.0)
FAULT_S_MIN, FAULT_S_MAX = 0.2, 4.0


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault of a plan."""

    name: str
    after_s: float
    for_s: float
    seed: int
    """Seed of the target and the intensity."""


def plan(seed: int, mode: Mode, seconds: float, fault_s_max: float = FAULT_S_MAX) -> list[list[Planned]]:
    """The faults of a run: two concurrent sequences, one for servers, one for clients and the network."""
    chance = random.Random(seed)  # noqa: S311 - a run must be repeatable
    return [
        _sequence(random.Random(chance.getrandbits(32)), names, seconds, fault_s_max)  # noqa: S311
        for names in (mode.server_faults, mode.client_faults)
    ]


def _sequence(
    chance: random.Random, names: Sequence[str], seconds: float, fault_s_max: float
) -> list[Planned]:
    """One fault after the other; every kind occurs before one is repeated."""
    planned: list[Planned] = []
    deck: list[str] = []
    at_s = 0.0
    while True:
        if not deck:
            deck = list(names)
            chance.shuffle(deck)
        after_s, for_s = chance.uniform(*PAUSE_S), chance.uniform(FAULT_S_MIN, fault_s_max)
        each = Planned(deck.pop(), after_s, for_s, chance.getrandbits(32))
        at_s += each.after_s + each.for_s
        if at_s > seconds:
            return planned
        planned.append(each)


async def inflict(
    targets: Targets, planned: list[list[Planned]], on_fault: Callable[[str, str], None]
) -> None:
    """Inject and repair all faults. `on_fault` is called with a name and a description.

    Skips what this machine does not support. Raises ProcessFailed.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            for sequence in planned:
                tasks.create_task(_inflict(targets, sequence, on_fault))
    except* ProcessFailed as failures:
        raise failures.exceptions[0] from None


async def _inflict(targets: Targets, sequence: list[Planned], on_fault: Callable[[str, str], None]) -> None:
    for each in sequence:
        await asyncio.sleep(each.after_s)
        if each.name in CLOCK_FAULTS and not targets.clocks:
            continue
        chance = random.Random(each.seed)  # noqa: S311
        async with ALL_FAULTS[each.name](targets, chance) as words:
            on_fault(each.name, words)
            await asyncio.sleep(each.for_s)
