"""Pure. Which topics a lake archives: by their attribute, their name, or a pattern.

The lake writes its choice into the attribute `lake.rules` of its consumer group, on every broker, so that
retention keeps also those topics that the lake has not met yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from skylark.errors import SettingsError
from skylark.model.job_report import REPORT_TOPIC
from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from skylark.model.names import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS

LAKE_RULES = "lake.rules"
"""The attribute of a consumer group that holds the choice of its lake, as JSON."""
RULES_CHARS_MAX = 64 << 10
PATTERNS_MAX = 1024
"""Compiled patterns that are kept."""
HIDDEN_PREFIXES = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX)


@lru_cache(PATTERNS_MAX)
def topic_matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a regular expression chooses a topic. Raises SettingsError.

    System, retry and dead-letter topics match only a pattern that starts with their prefix.
    """
    try:
        matcher = re.compile(pattern)
    except re.error as error:
        raise SettingsError("topic", f"invalid regular expression {pattern!r}: {error}") from None

    def matches(topic: str) -> bool:
        return (
            matcher.fullmatch(topic) is not None
            and topic not in SYSTEM_TOPICS
            and not any(
                topic.startswith(prefix) and not pattern.startswith(prefix) for prefix in HIDDEN_PREFIXES
            )
        )

    return matches


def is_named(topic: str, items: Sequence[str]) -> bool:
    """Whether names and patterns choose a topic. Raises SettingsError.

    Reports of jobs match no pattern: a lake would archive its own, and report that.
    """
    return topic in items or (topic != REPORT_TOPIC and any(topic_matcher(item)(topic) for item in items))


class ArchivedTopics(msgspec.Struct, frozen=True, omit_defaults=True):
    """The choice of one lake. A topic's attribute `lake.table` is stronger than `topics`."""

    tables: tuple[str, ...]
    """Names of its tables."""
    topics: tuple[str, ...] = ()
    """Names and patterns of topics without the attribute."""
    skip: tuple[str, ...] = ()

    @classmethod
    def decode(cls, text: str) -> ArchivedTopics:
        """Read the group's attribute. Raises SettingsError."""
        if len(text) > RULES_CHARS_MAX:
            raise SettingsError(LAKE_RULES, f"{len(text)} characters, allowed are {RULES_CHARS_MAX}")
        try:
            found = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise SettingsError(LAKE_RULES, f"invalid rules {text[:80]!r}: {error}") from None
        for pattern in found.topics + found.skip:
            topic_matcher(pattern)
        return found

    def encode(self) -> str:
        """Raises SettingsError if there are too many names for an attribute."""
        text = msgspec.json.encode(self).decode()
        self.decode(text)
        return text

    def chooses(self, topic: str, table: str | None) -> bool:
        """Whether the topic, with the value of its attribute, is archived."""
        if is_named(topic, self.skip):
            return False
        return table in self.tables if table is not None else is_named(topic, self.topics)
