"""The state of a cluster over time, asked while somebody looks and for a minute after that."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skylark.admin.admin import AsyncAdmin
from skylark.admin.dead_letters import DeadLetterCount
from skylark.admin.overview import GroupState
from skylark.admin.results import ClusterSummary, Topic
from skylark.console.drawings import Point
from skylark.errors import RocketMQError
from skylark.model.job_report import REPORT_TOPIC
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

EVERY_S = 2.0
FRESH_S = 3.0
NAMES_EVERY_S = 10.0
"""Settings of topics, names of groups and dead letters change rarely and cost more."""
WATCHED_S = 60.0
POINTS_MAX = 720
GROUPS_MAX = 5000
"""Groups whose history is kept."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What exists: topics by name with their settings on each broker, groups, dead letters."""

    topics: Mapping[str, Mapping[str, Topic]]
    system_topics: frozenset[str]
    groups: tuple[str, ...]
    dead_letters: Mapping[str, DeadLetterCount]
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one time. `failures` are sentences."""

    time_ms: int
    monotonic_s: float
    summary: ClusterSummary
    groups: Mapping[str, GroupState]
    inventory: Inventory
    failures: tuple[str, ...]

    @property
    def puts_per_s(self) -> float:
        return sum(item.puts_per_s for item in self.summary.brokers if item.node.is_master)

    @property
    def gets_per_s(self) -> float:
        return sum(item.gets_per_s for item in self.summary.brokers)

    @property
    def lag(self) -> int:
        return sum(group.lag for group in self.groups.values())

    @property
    def dead_letters(self) -> int:
        return sum(count.waiting for count in self.inventory.dead_letters.values())

    @property
    def disk_used_ratio(self) -> float | None:
        return max((item.disk_used_ratio for item in self.summary.brokers), default=None)


class Watch:
    """Owned by one event loop."""

    def __init__(self, admin: AsyncAdmin) -> None:
        self._admin = admin
        self._taking = asyncio.Lock()
        self._tasks = Tasks()
        self._task: asyncio.Task[None] | None = None
        self._asked_s = 0.0
        self._changes = 0
        self._inventory: tuple[float, Inventory] | None = None
        self._last: Look | None = None
        self._totals: deque[tuple[int, float, float, int, int]] = deque(maxlen=POINTS_MAX)
        self._groups: dict[str, deque[tuple[int, float, int, int]]] = {}

    async def now(self) -> Look:
        """The state, at most FRESH_S old. Raises RemotingError if no name server answers."""
        self._asked_s = time.monotonic()
        last = self._last
        while last is None or time.monotonic() - last.monotonic_s > FRESH_S:
            async with self._taking:
                if self._last is last:
                    await self._take()
            last = self._last
        if self._task is None or self._task.done():
            self._task = self._tasks.spawn(self._watch())
        return last

    def forget(self) -> None:
        """After a change: ask for everything again; answers that are under way do not count."""
        self._changes += 1
        self._inventory = None
        self._last = None

    async def close(self) -> None:
        await self._tasks.close()

    async def _watch(self) -> None:
        while time.monotonic() - self._asked_s < WATCHED_S:
            started = time.monotonic()
            try:
                async with self._taking:
                    await self._take()
            except RocketMQError as error:
                log.warning("cluster not read reason=%s", error)
            took = time.monotonic() - started
            await asyncio.sleep(max(EVERY_S, 4 * took))  # slow servers are asked less often

    async def _take(self) -> None:
        changes = self._changes
        summary = await self._admin.brokers.summary()
        inventory = await self._names()
        states = await self._admin.overview.group_states(summary, dict(inventory.dead_letters))
        known = set(inventory.groups)
        look = Look(
            time_ms=round(time.time() * 1000),
            monotonic_s=time.monotonic(),
            summary=summary,
            groups={state.name: state for state in states.groups if state.name in known},
            inventory=inventory,
            failures=(
                *(f"no answer from {address}: {error}" for address, error in summary.failures.items()),
                *states.failures,
                *inventory.failures,
            ),
        )
        if self._changes != changes:
            return
        self._last = look
        self._totals.append((look.time_ms, look.puts_per_s, look.gets_per_s, look.lag, look.dead_letters))
        for name, state in list(look.groups.items())[:GROUPS_MAX]:
            points = self._groups.setdefault(name, deque(maxlen=POINTS_MAX))
            points.append((look.time_ms, look.monotonic_s, state.committed, state.lag))
        for gone in self._groups.keys() - look.groups.keys():
            del self._groups[gone]

    async def _names(self) -> Inventory:
        if self._inventory is not None and time.monotonic() - self._inventory[0] < NAMES_EVERY_S:
            return self._inventory[1]
        changes = self._changes
        found = await self._admin.topics.on_brokers()
        names = {node.address: node.name for node in await self._admin.brokers.nodes()}
        topics: dict[str, dict[str, Topic]] = {}
        for address, parts in found.answers.items():
            for topic in parts:
                topics.setdefault(topic.name, {})[names.get(address, address)] = topic
        failures = [f"no topics from {address}: {error}" for address, error in found.failures.items()]
        groups: list[str] = []
        dead_letters: dict[str, DeadLetterCount] = {}
        system: list[str] = []
        try:
            system = await self._admin.topics.system()
            groups = await self._admin.overview.group_names()
            dead_letters = await self._admin.dead_letters.counts()
        except RocketMQError as error:
            failures.append(f"incomplete: {error}")
        inventory = Inventory(
            dict(sorted(topics.items())),
            frozenset({*system, REPORT_TOPIC}),
            tuple(groups),
            dead_letters,
            tuple(failures),
        )
        if self._changes == changes:
            self._inventory = (time.monotonic(), inventory)
        return inventory

    # --- History ---

    def totals(self) -> dict[str, list[Point]]:
        """Curves of the whole cluster, by name."""
        names = ("in", "out", "lag", "dead_letters")
        return {
            name: [(row[0], float(row[number])) for row in self._totals]
            for number, name in enumerate(names, 1)
        }

    def lag_curve(self, group: str) -> list[Point]:
        return [(time_ms, float(lag)) for time_ms, _, _, lag in self._groups.get(group, ())]

    def consumed_per_s(self, group: str) -> float | None:
        """Over the last samples, None if there are fewer than two."""
        points = list(self._groups.get(group, ()))[-5:]
        return _growth([(at, committed) for _, at, committed, _ in points])

    def lag_growth_per_s(self, group: str) -> float | None:
        """Positive if the group falls behind."""
        points = list(self._groups.get(group, ()))[-15:]
        if len(points) < 2 or points[-1][1] <= points[0][1]:
            return None
        return (points[-1][3] - points[0][3]) / (points[-1][1] - points[0][1])


def _growth(points: Sequence[tuple[float, int]]) -> float | None:
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return None
    return max(0, points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
