"""How far consumer groups are, for reports: lag by queue, retries that wait, dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skylark.errors import NoRoute
from skylark.model.names import dead_letter_topic, retry_topic
from skylark.pipelines.cluster_client import ClusterClient
from skylark.protocol.requests.topic import QueryTopicConsumeByWho

LAG_COLUMNS = ["group", "topic", "brokerName", "queueId", "committed", "end", "lag"]
GROUP_COLUMNS = ["group", "lag", "retriesWaiting", "deadLetters", "deadLettersWaiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStanding:
    """What a group has not consumed: of the reported topics, of its retries, of its dead letters."""

    group: str
    lag: int
    retries_waiting: int
    dead_letters: int
    dead_letters_waiting: int
    """Without those that were sent again (`skylark dlq resend`)."""

    def row(self) -> list[Any]:
        return [
            self.group, self.lag, self.retries_waiting, self.dead_letters, self.dead_letters_waiting,
        ]  # fmt: skip


def groups_of(brokers: ClusterClient, topics: Sequence[str]) -> list[str]:
    """The groups that consume these topics, according to the brokers."""
    found: set[str] = set()
    for topic in topics:
        one_per_broker = {queue.broker_name: queue for queue in brokers.queues(topic)}
        for queue in one_per_broker.values():
            found |= set(brokers.ask_broker(queue, QueryTopicConsumeByWho(topic)).group_list)
    return sorted(found)


def lag(brokers: ClusterClient, topics: Sequence[str], groups: Sequence[str]) -> list[list[Any]]:
    """Lag by group and queue. Queues without a committed offset are left out."""
    rows: list[list[Any]] = []
    for topic in topics:
        queues = brokers.queues(topic)
        ends = brokers.max_offsets(queues)
        for group in groups:
            for queue in queues:
                committed = brokers.group_offset(group, queue)
                if committed is not None:
                    behind = ends[queue] - committed
                    place = [queue.broker_name, queue.queue_id]
                    rows.append([group, topic, *place, committed, ends[queue], behind])
    return rows


def standings(
    brokers: ClusterClient, groups: Sequence[str], lags: Sequence[Sequence[Any]]
) -> list[GroupStanding]:
    """The groups' standings; `lags` are the rows of `lag`."""
    found = []
    for group in groups:
        _, retries = _stored_and_waiting(brokers, group, retry_topic(group))
        letters, waiting = _stored_and_waiting(brokers, group, dead_letter_topic(group))
        found.append(
            GroupStanding(
                group=group,
                lag=sum(row[-1] for row in lags if row[0] == group),
                retries_waiting=retries,
                dead_letters=letters,
                dead_letters_waiting=waiting,
            )
        )
    return found


def _stored_and_waiting(brokers: ClusterClient, group: str, topic: str) -> tuple[int, int]:
    """Messages of a topic, and those behind the group's offset; zeros if there is no such topic."""
    try:
        queues = brokers.queues(topic)
    except NoRoute:
        return 0, 0
    lows, highs = brokers.min_offsets(queues), brokers.max_offsets(queues)
    waiting = sum(
        highs[queue] - max(brokers.group_offset(group, queue) or 0, lows[queue]) for queue in queues
    )
    return sum(highs[queue] - lows[queue] for queue in queues), waiting
