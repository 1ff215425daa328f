"""Pure. Which topics a lake archives: by their attribute, their name, or a pattern.

A lake or an archive writes its choice into the attribute `lake.rules` of its consumer group, on every broker,
so that retention keeps also those topics that it has not met yet. Brokers thus run patterns of their clients:
what a pattern may cost is limited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from skylark.errors import SettingsError
from skylark.model.job_report import REPORT_TOPIC
from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from skylark.model.names import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, TOPIC_CHARS_MAX

LAKE_RULES = "lake.rules"
"""The attribute of a consumer group that holds the choice of its archive, as JSON."""
RULES_CHARS_MAX = 64 << 10
PATTERNS_MAX = 1024
"""Compiled patterns that are kept."""
WAYS_MAX = 4 * (TOPIC_CHARS_MAX + 1) ** 3
"""A limit for all patterns of a choice together. The 128³ of `.*.*.*` take milliseconds for a name."""
HIDDEN_PREFIXES = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX)

_TOKEN = re.compile(
    r"(?P<open>\((?:\?(?:[:=!]|<[=!]|P<\w+>)|(?!\?)))|(?P<close>\))|(?P<bar>\|)|(?P<other>\(\?)"
    r"|(?P<repeat>[*+?]|\{(?=[\d,])(?P<least>\d*)(?P<comma>,?)(?P<most>\d*)\})[?+]?"
    r"|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.",
    re.DOTALL,
)
_REPEATS = {"*": (0, TOPIC_CHARS_MAX), "+": (1, TOPIC_CHARS_MAX), "?": (0, 1)}


def match_ways(pattern: str) -> int:
    """In how many ways a valid regular expression can match a name at most; WAYS_MAX + 1 stands for more.

    A matcher tries them one after the other. The ways of elements in a sequence are multiplied, those of
    alternatives added: `.*` has 128, `a?` two. Flags other than a leading `(?i)` and conditions are not
    followed, and count as too many.
    """
    finished, sequence, last = 0, 1, 1  # ways of alternatives before; of this one, and of its last element
    outer: list[tuple[int, int]] = []
    for token in _TOKEN.finditer(pattern.removeprefix("(?i)")):
        if token["open"]:
            outer.append((finished, sequence * last))
            finished, sequence, last = 0, 1, 1
        elif token["close"]:
            last = finished + sequence * last
            finished, sequence = outer.pop()
        elif token["bar"]:
            finished, sequence, last = finished + sequence * last, 1, 1
        elif token["repeat"]:
            least, most = _REPEATS.get(token["repeat"]) or _bounds(token)
            last = max(most - least + 1, 1) * last**most
        else:
            sequence, last = sequence * last, 1
        if token["other"] or max(finished, sequence, last) > WAYS_MAX:
            return WAYS_MAX + 1
    return min(finished + sequence * last, WAYS_MAX + 1)


def _bounds(token: re.Match[str]) -> tuple[int, int]:
    """How often an element with `{2}`, `{2,}`, `{,5}` or `{2,5}` is in a name."""
    least = int(token["least"] or 0)
    most = int(token["most"] or TOPIC_CHARS_MAX) if token["comma"] else least
    return least, min(most, TOPIC_CHARS_MAX)


@lru_cache(PATTERNS_MAX)
def topic_matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a regular expression chooses a topic. Raises SettingsError.

    System, retry and dead-letter topics match only a pattern that starts with their prefix.
    """
    try:
        matcher = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise SettingsError("topic", f"invalid regular expression {pattern[:80]!r}: {error}") from None

    def matches(topic: str) -> bool:
        return (
            topic not in SYSTEM_TOPICS
            and not any(
                topic.startswith(prefix) and not pattern.startswith(prefix) for prefix in HIDDEN_PREFIXES
            )
            and matcher.fullmatch(topic) is not None
        )

    return matches


def is_named(topic: str, items: Sequence[str]) -> bool:
    """Whether names and patterns choose a topic. Raises SettingsError.

    Reports of jobs match no pattern: a lake would archive its own, and report that.
    """
    return topic in items or (topic != REPORT_TOPIC and any(topic_matcher(item)(topic) for item in items))


class ArchivedTopics(msgspec.Struct, frozen=True, omit_defaults=True):
    """The choice of one lake or archive."""

    tables: tuple[str, ...] | None = None
    """Names of its tables: a topic's attribute `lake.table` is stronger than `topics`. None ignores it."""
    topics: tuple[str, ...] = ()
    """Names and patterns."""
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
        patterns = found.topics + found.skip
        for pattern in patterns:
            topic_matcher(pattern)
        if sum(map(match_ways, patterns)) > WAYS_MAX:
            slowest = max(patterns, key=match_ways)
            raise SettingsError(
                LAKE_RULES,
                f"the patterns can match a name in too many ways, most of all {slowest[:80]!r}; "
                "use fewer *, + and ?, none of them inside another",
            )
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
        if table is None or self.tables is None:
            return is_named(topic, self.topics)
        return table in self.tables
