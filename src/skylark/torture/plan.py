"""The plan of a run: which fault, after which pause, for how long. The same seed gives the same plan."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from skylark.torture.faults import ALL_FAULTS, CLOCK_FAULT, Targets

PAUSE_S = (0.5, 2.5)
FAULT_S = (0.2, 4.0)


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault of a plan."""

    name: str
    after_s: float
    for_s: float
    seed: int
    """Decides what it hits, and how hard."""


def plan(seed: int, names: list[str], seconds: float) -> list[Planned]:
    """The faults of a run. Every kind has its turn before one comes again."""
    chance = random.Random(seed)  # noqa: S311 - a run must be repeatable
    planned: list[Planned] = []
    deck: list[str] = []
    at_s = 0.0
    while True:
        if not deck:
            deck = list(names)
            chance.shuffle(deck)
        each = Planned(deck.pop(), chance.uniform(*PAUSE_S), chance.uniform(*FAULT_S), chance.getrandbits(32))
        at_s += each.after_s + each.for_s
        if at_s > seconds:
            return planned
        planned.append(each)


async def inflict(targets: Targets, planned: list[Planned], on_fault: Callable[[str, str], None]) -> None:
    """Do one fault after the other; all is healed at the end. `on_fault` is told its name and what it does.

    What this machine cannot do is left out. Raises ProcessFailed.
    """
    for each in planned:
        await asyncio.sleep(each.after_s)
        if each.name == CLOCK_FAULT and targets.clock is None:
            continue
        chance = random.Random(each.seed)  # noqa: S311
        async with ALL_FAULTS[each.name](targets, chance) as words:
            on_fault(each.name, words)
            await asyncio.sleep(each.for_s)
