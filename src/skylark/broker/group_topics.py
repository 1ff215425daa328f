"""The topics in which a consumer group has messages to consume."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from skylark.broker.clients import ConsumerGroups
from skylark.broker.topics import TopicTable
from skylark.model.names import dead_letter_topic, retry_topic
from skylark.store.message_store import MessageStore


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
