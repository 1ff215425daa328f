"""Pure. Subscriptions: topic and expression, their form in heartbeats and pulls, and matching of messages."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from skylark.client.received_message import ReceivedMessage
from skylark.errors import SettingsError
from skylark.model.java import java_hash
from skylark.model.message import find_tags
from skylark.model.names import topic_name_error
from skylark.model.tag_expression import MATCH_ALL, TAG, split_tags
from skylark.protocol.bodies import SubscriptionData

log = logging.getLogger(__name__)

SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """A topic and an expression. `version` is the time in ms at which it was made or last renewed.

    Brokers compare hashes of tags, which may collide; `filtered` compares the tags.
    """

    topic: str
    expression: str
    expression_type: str
    version: int
    tags: frozenset[bytes] = frozenset()
    by_class: bool = False  # the expression names a class of filter servers

    @property
    def is_tag_type(self) -> bool:
        return self.expression_type == TAG

    def renewed(self, now_ms: int) -> TopicSubscription:
        """Return a copy with a newer version, for a topic whose queues were reassigned."""
        return replace(self, version=max(now_ms, self.version))

    def filtered(self, messages: Sequence[ReceivedMessage]) -> Sequence[ReceivedMessage]:
        """Return the matching messages in order.

        Without tags, and for SQL92, the broker has filtered already.
        """
        tags = self.tags
        if not tags:
            return messages
        return [message for message in messages if find_tags(message.properties_text) in tags]

    def data(self) -> SubscriptionData:
        """Return the heartbeat's representation."""
        tags = sorted(tag.decode() for tag in self.tags)
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            expression_type=self.expression_type,
            tags_set=tags,
            code_set=[java_hash(tag) for tag in tags],
            sub_version=self.version,
            class_filter_mode=self.by_class,
        )


def by_tags(topic: str, expression: str | None, *, now_ms: int) -> TopicSubscription:
    """Subscribe by tags, as in `created || paid`; `*` or None for all messages. Raises SettingsError."""
    _check(topic)
    try:
        tags = split_tags(expression)
    except ValueError as error:
        raise SettingsError(f"subscription of {topic}", str(error)) from None
    if tags is None or expression is None:
        return TopicSubscription(topic, MATCH_ALL, TAG, now_ms)
    if not tags:
        raise SettingsError(f"subscription of {topic}", f"no tag in {expression!r}; use `*` for all messages")
    for tag in tags:
        _check_tag(topic, tag)
    return TopicSubscription(topic, expression, TAG, now_ms, frozenset(tag.encode() for tag in tags))


def _check_tag(topic: str, tag: str) -> None:
    """Raises SettingsError for a separator that is not `||`."""
    for separator in ",;|":
        if separator in tag:
            words = (
                " || ".join(word.strip() for word in tag.split(separator) if word.strip()) or "TagA || TagB"
            )
            raise SettingsError(
                f"subscription of {topic}",
                f"{tag!r} would be one tag; separate tags by ||, as in {words!r} "
                f"(for a tag that contains {separator!r}, pass sql=\"TAGS = '…'\")",
            )
    if any(character.isspace() for character in tag):
        log.warning("tag contains a blank; separate several tags by || topic=%s tag=%r", topic, tag)


def by_sql(topic: str, expression: str, *, now_ms: int) -> TopicSubscription:
    """Subscribe by an SQL92 condition over properties; the broker evaluates it. Raises SettingsError."""
    _check(topic)
    if not expression.strip():
        raise SettingsError(f"subscription of {topic}", "the SQL92 expression is empty")
    return TopicSubscription(topic, expression, SQL92, now_ms)


def by_class(topic: str, name: str, *, now_ms: int) -> TopicSubscription:
    """Subscribe by a class of filter servers, for clusters that still run them. Raises SettingsError."""
    _check(topic)
    if not name.strip():
        raise SettingsError(f"subscription of {topic}", "the filter class name is empty")
    return TopicSubscription(topic, name, TAG, now_ms, by_class=True)


def _check(topic: str) -> None:
    fault = topic_name_error(topic)
    if fault is not None:
        raise SettingsError(f"subscription of {topic!r}", fault)
