"""The whole system at a glance: names without built-in ones, and all groups with one request per broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skylark.admin.brokers import AsyncBrokers
from skylark.admin.dead_letters import AsyncDeadLetters, DeadLetterCount
from skylark.admin.groups import AsyncGroups
from skylark.admin.results import ClusterSummary
from skylark.admin.server_calls import at_once
from skylark.admin.topics import AsyncTopics
from skylark.errors import RocketMQError
from skylark.model.job_report import REPORT_TOPIC
from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from skylark.model.names import SYSTEM_GROUPS, retry_topic
from skylark.protocol.bodies import BrokerConsumeStats, MessageQueue

DERIVED = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group over all brokers."""

    name: str
    topics: tuple[str, ...]
    committed: int
    lag: int
    """With `retrying`, its part in the retry topic."""
    retrying: int
    dead_letters: int
    in_flight: int
    last_consumed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupStates:
    """All groups that have offsets or dead letters. `failures` are sentences."""

    groups: tuple[GroupState, ...]
    failures: tuple[str, ...]
    ends: Mapping[str, int]
    """The ends of the queues of each topic that a group consumes, added up."""


class AsyncOverview:
    """Part of `AsyncAdmin`."""

    def __init__(
        self, brokers: AsyncBrokers, topics: AsyncTopics, groups: AsyncGroups, dead_letters: AsyncDeadLetters
    ) -> None:
        self._brokers = brokers
        self._topics = topics
        self._groups = groups
        self._dead_letters = dead_letters

    async def topic_names(self, *, cluster: str | None = None, system: bool = False) -> list[str]:
        """The names of topics; with `system` also built-in, retry and dead-letter topics, and reports.

        Raises ClientError for an unknown cluster, which name servers do not report.
        """
        if cluster is not None:
            await self._brokers.nodes(cluster=cluster)
        names = await self._topics.names(cluster=cluster)
        if system:
            return names
        hidden = {*await self._topics.system(), REPORT_TOPIC}
        return [name for name in names if name not in hidden and not name.startswith(DERIVED)]

    async def group_names(self, *, cluster: str | None = None, system: bool = False) -> list[str]:
        """The names of groups; with `system` also built-in ones."""
        names = await self._groups.names(cluster=cluster)
        return names if system else [name for name in names if name not in SYSTEM_GROUPS]

    async def group_states(
        self, summary: ClusterSummary, dead_letters: dict[str, DeadLetterCount] | None = None
    ) -> GroupStates:
        """The progress of all groups, with one request to each master; dead letters unless they are given."""
        failures: list[str] = []
        if dead_letters is None:
            try:
                dead_letters = await self._dead_letters.counts()
            except RocketMQError as error:
                failures.append(f"dead letters are not counted: {error}")
                dead_letters = {}
        masters = [broker.node for broker in summary.brokers if broker.node.is_master]

        async def ask(address: str) -> BrokerConsumeStats:
            return await self._brokers.consume_stats(address)

        answers = await at_once(ask, [node.address for node in masters])
        tables: dict[str, list[tuple[str, int, int, int, int]]] = {name: [] for name in dead_letters}
        queue_ends: dict[MessageQueue, int] = {}
        for node, found in zip(masters, answers, strict=True):
            if isinstance(found, RocketMQError):
                failures.append(f"no groups from {node.name}: {found}")
                continue
            for groups in found.consume_stats_list:
                for name, parts in groups.items():
                    rows = tables.setdefault(name, [])
                    for queue, at in (item for part in parts for item in part.offset_table.items()):
                        queue_ends[queue] = at.broker_offset
                        rows.append(
                            (
                                queue.topic,
                                at.consumer_offset,
                                at.broker_offset,
                                at.pull_offset,
                                at.last_timestamp,
                            )
                        )
        states = (_state(name, rows, dead_letters.get(name)) for name, rows in sorted(tables.items()))
        ends: dict[str, int] = {}
        for queue, end in queue_ends.items():
            ends[queue.topic] = ends.get(queue.topic, 0) + end
        return GroupStates(tuple(states), tuple(failures), ends)


def _state(
    name: str, rows: list[tuple[str, int, int, int, int]], dead_letters: DeadLetterCount | None
) -> GroupState:
    return GroupState(
        name,
        tuple(sorted({topic for topic, *_ in rows if not topic.startswith("%")})),
        committed=sum(done for _, done, _, _, _ in rows),
        lag=sum(end - done for _, done, end, _, _ in rows),
        retrying=sum(end - done for topic, done, end, _, _ in rows if topic == retry_topic(name)),
        dead_letters=0 if dead_letters is None else dead_letters.waiting,
        in_flight=sum(max(pulled - done, 0) for _, done, _, pulled, _ in rows),
        last_consumed_ms=max((at for *_, at in rows), default=0) or None,
    )
