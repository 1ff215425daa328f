"""The state of a cluster over time, asked while somebody looks and for a minute after that.

All who look share it: what is asked grows with brokers and with the rows on screens, not with watchers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from skylark.admin.admin import AsyncAdmin
from skylark.admin.dead_letters import DeadLetterCount
from skylark.admin.overview import GroupState, GroupStates
from skylark.admin.results import (
    ClusterSummary,
    ConnectedConsumers,
    GroupProgress,
    QueueOwners,
    Topic,
    TopicStats,
)
from skylark.admin.server_calls import at_once
from skylark.console.drawings import Point
from skylark.errors import BrokerError, RocketMQError
from skylark.model.job_report import REPORT_TOPIC
from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX
from skylark.model.names import HALF_TOPIC, TRANSACTION_GROUP
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

EVERY_S = 2.0
FRESH_S = 3.0
STATES_SHARE = 0.02
STATES_EVERY_S_MAX = 30.0
"""The progress of thousands of groups keeps a broker busy: of its time it may take this share."""
NAMES_EVERY_S = 10.0
"""Settings of topics, names of groups and dead letters change rarely and cost more."""
WATCHED_S = 60.0
POINTS_MAX = 720
GROUPS_MAX = 5000
"""Groups whose history is kept."""
LETTER_TOPICS_MAX = 100
"""Dead-letter topics that are counted at once; of more, those that were not counted for longest."""
ANSWERS_MAX = 1000
BROADCASTING = "BROADCASTING"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Inventory:
    """What exists: topics by name with their settings on each broker, groups, dead letters if counted."""

    topics: Mapping[str, Mapping[str, Topic]]
    system_topics: frozenset[str]
    groups: tuple[str, ...]
    dead_letters: Mapping[str, DeadLetterCount]
    failures: tuple[str, ...]
    open_transactions: int = 0
    """Half messages since the last that was decided, if none was decided between two looks."""


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

    @property
    def masters(self) -> list[str]:
        """The addresses of the brokers that take changes."""
        return [item.node.address for item in self.summary.brokers if item.node.is_master]

    def is_plain(self, topic: str) -> bool:
        """Whether a topic is neither built-in nor of retries or dead letters."""
        return topic not in self.inventory.system_topics and not topic.startswith("%")


@dataclass
class SharedAnswers(Generic[T]):
    """Answers by name, asked again when they are older than FRESH_S. Owned by one event loop."""

    ask: Callable[[str], Awaitable[T]]
    _kept: dict[str, tuple[float, T | RocketMQError]] = field(default_factory=dict, init=False)
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def get(self, names: Iterable[str]) -> dict[str, T | RocketMQError]:
        """The answers, or the errors, to some names."""
        wanted = list(names)
        async with self._asking:
            oldest_s = time.monotonic() - FRESH_S
            missing = [name for name in wanted if name not in self._kept or self._kept[name][0] < oldest_s]
            found = await at_once(self.ask, missing)
            now_s = time.monotonic()
            for name, answer in zip(missing, found, strict=True):
                self._kept.pop(name, None)
                self._kept[name] = (now_s, answer)
            answers = {name: self._kept[name][1] for name in wanted}
            for name in list(islice(self._kept, max(0, len(self._kept) - ANSWERS_MAX))):
                del self._kept[name]
        return answers

    def forget(self) -> None:
        self._kept = {}


class Watch:
    """Owned by one event loop."""

    def __init__(self, admin: AsyncAdmin) -> None:
        self._admin = admin
        self._taking = asyncio.Lock()
        self._tasks = Tasks()
        self._task: asyncio.Task[None] | None = None
        self._asked_s = 0.0
        self._every_s = EVERY_S
        self._changes = 0
        self._inventory: tuple[float, Inventory] | None = None
        self._letters: dict[str, DeadLetterCount] = {}
        self._decided: dict[MessageQueue, int] = {}
        self._last: Look | None = None
        self._states: tuple[float, GroupStates] | None = None
        self._states_every_s = EVERY_S
        self._totals: deque[tuple[int, float, float, int, int]] = deque(maxlen=POINTS_MAX)
        self._times: deque[tuple[int, float]] = deque(maxlen=POINTS_MAX)
        self._groups: dict[str, tuple[array[int], array[int]]] = {}
        """Committed offsets and lags at the last of these times."""
        self._ends: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=5)
        self._places: dict[str, dict[MessageQueue, tuple[int, float]]] = {}
        """By group, the committed offset of each queue with waiting messages, and since when it is that."""
        self._stats = SharedAnswers(self._ask_stats)
        self._members = SharedAnswers(self._ask_members)
        self._owners = SharedAnswers(self._ask_owners)

    async def now(self) -> Look:
        """The state, a few seconds old at most. Raises RemotingError if no name server answers."""
        self._asked_s = time.monotonic()
        last = self._last
        while last is None or time.monotonic() - last.monotonic_s > self._every_s + FRESH_S - EVERY_S:
            async with self._taking:
                if self._last is last:
                    await self._take()
            last = self._last
        if self._task is None or self._task.done():
            self._task = self._tasks.spawn(self._watch())
        return last

    async def stats(self, topics: Iterable[str]) -> dict[str, TopicStats | None]:
        """Of the topics on a screen, with one request for each broker of a topic; None if it is gone."""
        found = await self._stats.get(topics)
        return {name: None if isinstance(one, RocketMQError) else one for name, one in found.items()}

    async def members(self, groups: Iterable[str]) -> dict[str, ConnectedConsumers | RocketMQError | None]:
        """Of the groups on a screen, with one request for each broker; None if nobody is online."""
        return await self._members.get(groups)

    async def owners(self, group: str) -> QueueOwners | None:
        """Who holds which queue, with one request for each member; None unless members share the queues."""
        found = (await self._owners.get([group]))[group]
        return None if isinstance(found, RocketMQError) else found

    def forget(self) -> None:
        """After a change: ask for everything again; answers that are under way do not count."""
        self._changes += 1
        self._inventory = None
        self._last = None
        self._states = None
        self._letters = {}
        self._stats.forget()
        self._members.forget()
        self._owners.forget()

    async def close(self) -> None:
        await self._tasks.close()

    async def _ask_stats(self, topic: str) -> TopicStats:
        look = await self.now()
        on = look.inventory.topics.get(topic, {})
        nodes = [item.node for item in look.summary.brokers if item.node.is_master and item.node.name in on]
        return await self._admin.topics.stats(topic, brokers=[node.address for node in nodes] or None)

    async def _ask_members(self, group: str) -> ConnectedConsumers | None:
        look = await self.now()
        try:
            return await self._admin.clients.consumers(group, brokers=look.masters or None)
        except BrokerError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return None
            raise

    async def _ask_owners(self, group: str) -> QueueOwners | None:
        online = (await self.members([group]))[group]
        if not isinstance(online, ConnectedConsumers) or online.message_model == BROADCASTING:
            return None
        return await self._admin.clients.owners(online)

    async def _watch(self) -> None:
        while time.monotonic() - self._asked_s < WATCHED_S:
            await asyncio.sleep(self._every_s)
            try:
                async with self._taking:
                    await self._take()
            except RocketMQError as error:
                log.warning("cluster not read reason=%s", error)

    async def _take(self) -> None:
        changes, started_s = self._changes, time.monotonic()
        summary, inventory = await asyncio.gather(self._admin.brokers.summary(), self._names())
        self._every_s = max(EVERY_S, 4 * (time.monotonic() - started_s))  # slow servers are asked less often
        is_due, states = await self._group_states(summary, inventory)
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
        if is_due:
            self._states = (look.monotonic_s, states)
            self._remember(look, states)

    async def _group_states(self, summary: ClusterSummary, inventory: Inventory) -> tuple[bool, GroupStates]:
        """The progress of all groups, and whether it is new: asking again has to be due."""
        if self._states is not None and time.monotonic() - self._states[0] < self._states_every_s:
            return False, self._states[1]
        started_s = time.monotonic()
        states = await self._admin.overview.group_states(summary, dict(inventory.dead_letters))
        pause_s = (time.monotonic() - started_s) / STATES_SHARE
        self._states_every_s = min(max(EVERY_S, pause_s), STATES_EVERY_S_MAX)
        return True, states

    def _remember(self, look: Look, states: GroupStates) -> None:
        self._times.append((look.time_ms, look.monotonic_s))
        self._ends.append((look.monotonic_s, states.ends))
        for name, state in islice(look.groups.items(), GROUPS_MAX):
            committed, lags = self._groups.setdefault(name, (array("q"), array("q")))
            committed.append(state.committed)
            lags.append(state.lag)
            if len(lags) >= 2 * POINTS_MAX:
                del committed[:POINTS_MAX], lags[:POINTS_MAX]
        for gone in self._groups.keys() - look.groups.keys():
            del self._groups[gone]

    async def _names(self) -> Inventory:
        if self._inventory is not None and time.monotonic() - self._inventory[0] < NAMES_EVERY_S:
            return self._inventory[1]
        changes = self._changes
        found, nodes = await asyncio.gather(self._admin.topics.on_brokers(), self._admin.brokers.nodes())
        names = {node.address: node.name for node in nodes}
        topics: dict[str, dict[str, Topic]] = {}
        for address, parts in found.answers.items():
            for topic in parts:
                topics.setdefault(topic.name, {})[names.get(address, address)] = topic
        failures = [f"no topics from {address}: {error}" for address, error in found.failures.items()]
        groups: list[str] = []
        system: list[str] = []
        try:
            system, groups = await asyncio.gather(
                self._admin.topics.system(), self._admin.overview.group_names()
            )
        except RocketMQError as error:
            failures.append(f"incomplete: {error}")
        inventory = Inventory(
            dict(sorted(topics.items())),
            frozenset({*system, REPORT_TOPIC}),
            tuple(groups),
            await self._count_letters(topics, failures),
            tuple(failures),
            await self._open_transactions(topics),
        )
        if self._changes == changes:
            self._inventory = (time.monotonic(), inventory)
        return inventory

    async def _open_transactions(self, topics: Iterable[str]) -> int:
        if HALF_TOPIC not in topics:
            return 0
        try:
            progress = await self._admin.groups.progress(TRANSACTION_GROUP, HALF_TOPIC)
        except RocketMQError:
            return 0
        decided = {part.queue: part.committed for part in progress.queues}
        before, self._decided = self._decided, decided
        return progress.lag if decided == before else 0

    async def _count_letters(self, topics: Iterable[str], failures: list[str]) -> dict[str, DeadLetterCount]:
        """Counts by group; those of the groups that were not counted for longest are new."""
        prefix = DEAD_LETTER_TOPIC_PREFIX
        groups = {name.removeprefix(prefix) for name in topics if name.startswith(prefix)}
        counts = {name: count for name, count in self._letters.items() if name in groups}
        chosen = [*sorted(groups - counts.keys()), *counts][:LETTER_TOPICS_MAX]
        found = await at_once(self._admin.dead_letters.count, chosen)
        errors = [count for count in found if isinstance(count, RocketMQError)]
        if errors:
            failures.append(f"dead letters of {len(errors)} groups are not counted: {errors[0]}")
        for name, count in zip(chosen, found, strict=True):
            if not isinstance(count, RocketMQError):
                counts.pop(name, None)
                counts[name] = count
        self._letters = counts
        return counts

    # --- History ---

    def totals(self) -> dict[str, list[Point]]:
        """Curves of the whole cluster, by name."""
        names = ("in", "out", "lag", "dead_letters")
        return {
            name: [(row[0], float(row[number])) for row in self._totals]
            for number, name in enumerate(names, 1)
        }

    def lag_curve(self, group: str) -> list[Point]:
        _, lags = self._groups.get(group, _NO_POINTS)
        count = min(len(lags), len(self._times))
        times = islice(self._times, len(self._times) - count, None)
        return [(at[0], float(lag)) for at, lag in zip(times, lags[len(lags) - count :], strict=True)]

    def consumed_per_s(self, group: str) -> float | None:
        """Over the last samples, None if there are fewer than two."""
        growth = self._growth_per_s(self._groups.get(group, _NO_POINTS)[0], 5)
        return None if growth is None else max(0.0, growth)

    def lag_growth_per_s(self, group: str) -> float | None:
        """Positive if the group falls behind."""
        return self._growth_per_s(self._groups.get(group, _NO_POINTS)[1], 15)

    def standing_s(self, progress: GroupProgress) -> dict[MessageQueue, float]:
        """For how long each queue with waiting messages has not moved, since a look at this group."""
        now_s = time.monotonic()
        before = self._places.pop(progress.group, {})
        places = {}
        for part in progress.queues:
            if part.lag:
                committed, since_s = before.get(part.queue, (-1, now_s))
                places[part.queue] = (part.committed, since_s if part.committed == committed else now_s)
        self._places[progress.group] = places
        for name in list(islice(self._places, max(0, len(self._places) - ANSWERS_MAX))):
            del self._places[name]
        return {queue: now_s - since_s for queue, (_, since_s) in places.items()}

    def sent_per_s(self, topic: str) -> float | None:
        """To a topic that some group consumes; None for others and without two samples."""
        if len(self._ends) < 2:
            return None
        (first_s, before), (last_s, after) = self._ends[0], self._ends[-1]
        if topic not in before or topic not in after or last_s <= first_s:
            return None
        return max(0, after[topic] - before[topic]) / (last_s - first_s)

    def _growth_per_s(self, values: array[int], samples: int) -> float | None:
        count = min(samples, len(values), len(self._times))
        if count < 2:
            return None
        seconds = self._times[-1][1] - self._times[-count][1]
        return (values[-1] - values[-count]) / seconds if seconds > 0 else None


_NO_POINTS: tuple[array[int], array[int]] = (array("q"), array("q"))
