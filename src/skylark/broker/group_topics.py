"""What consumer groups have left to read: the topics of a group, the part of the log an archive needs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from skylark.broker.clients import ConsumerGroups
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.topics import TopicTable
from skylark.errors import BadStoreFile, SettingsError
from skylark.model.archived_topics import LAKE_RULES, ArchivedTopics
from skylark.model.names import LAKE_TABLE, NO_LAKE_TABLE, dead_letter_topic, retry_topic
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.message_store import MessageStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class GroupTopics:
    """Any thread: it changes nothing."""

    topics: TopicTable
    consumers: ConsumerGroups
    store: MessageStore

    def of(self, group: str, with_offsets: Iterable[str]) -> list[str]:
        """Return the topics of `with_offsets` that a group still subscribes, and its retry topic.

        The retry topic counts as soon as it has messages: a group that has not consumed any of them has no
        offset there. Its offsets in the topic of its dead letters are no progress: they mark what was sent
        again.
        """
        retry, dead_letters = retry_topic(group), dead_letter_topic(group)
        found = self.consumers.subscribed(group, (topic for topic in with_offsets if topic != dead_letters))
        return [*found, retry] if retry not in found and self._has_messages(retry) else found

    def _has_messages(self, topic: str) -> bool:
        config = self.topics.get(topic)
        queues = range(config.read_queue_nums) if config is not None else ()
        return any(self.store.max_offset(topic, queue_id) > 0 for queue_id in queues)


class Choices(NamedTuple):
    """Which topics rules have chosen, by name and attribute."""

    rules: str
    archived: ArchivedTopics
    known: dict[tuple[str, str | None], bool]


class ArchiveProgress:
    """The place in the log from which on the group `archiveGroup` has not committed."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        topics: TopicTable,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        store: MessageStore,
    ) -> None:
        self._live = live
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._store = store
        self._last = Choices("", ArchivedTopics(), {})

    def needed_from(self) -> int | None:
        """Return the physical offset of the oldest record that the archive needs; None if it needs none.

        The archive needs the topics in which its group has offsets, and those that it will read when it meets
        them, with all their queues; as long as it has neither offsets nor rules, it has not begun, and may
        need everything. Any thread.
        """
        group = self._live.current.archive_group
        if not group:
            return None
        topics = set(self._offsets.topics_by_group().get(group, ()))
        config = self._groups.get(group)
        rules = None if config is None else config.attributes.get(LAKE_RULES)
        if not topics and rules is None:
            return 0
        try:
            topics |= self._chosen(rules)
        except SettingsError as error:  # of a file that was edited: brokers refuse such rules
            log.warning("the whole log is kept, because the rules of group %s are invalid: %s", group, error)
            return 0
        needed = [
            self._needed_of(queue, self._offsets.committed(queue.topic, group).get(queue.queue_id, 0))
            for queue in list(self._store.queues.values())
            if queue.topic in topics
        ]
        return min((at for at in needed if at is not None), default=None)

    def _chosen(self, rules: str | None) -> set[str]:
        """The topics that an archive with these rules reads; without rules, those with the attribute.

        Each topic is matched once. Raises SettingsError.
        """
        tables = {config.topic_name: config.attributes.get(LAKE_TABLE) for config in self._topics.all()}
        if rules is None:
            return {topic for topic, table in tables.items() if table not in (None, NO_LAKE_TABLE)}
        last = self._last
        if last.rules != rules:
            last = Choices(rules, ArchivedTopics.decode(rules), {})
        known = {
            each: last.known[each] if each in last.known else last.archived.chooses(*each)
            for each in tables.items()
            if not self._topics.is_system(each[0])
        }
        self._last = last._replace(known=known)
        return {topic for (topic, _), is_chosen in known.items() if is_chosen}

    def _needed_of(self, queue: ConsumeQueue, committed: int) -> int | None:
        first = max(committed, queue.min_offset)
        if first >= queue.max_offset:
            return None
        try:
            entry = queue.entry(first)
        except (BadStoreFile, OSError) as error:
            log.warning("cannot read a queue topic=%s queue=%d: %s", queue.topic, queue.queue_id, error)
            return 0
        return None if entry is None else entry[0]
