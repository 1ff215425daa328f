"""Pure. The subscriptions of each member of a group, and whether they differ.

RocketMQ requires that all members of a group subscribe the same. It does not check it: the queues are
divided among all members, and what a member does not subscribe is skipped in its queues, for the whole group.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.model.tag_expression import MATCH_ALL, OR, is_tag_type, split_tags
from skylark.protocol.bodies import SubscriptionData, SubscriptionKind

TEXT_CHARS_MAX = 1000
"""Limit of the description in logs and replies to heartbeats."""

Expressions = frozenset[tuple[str, str]]
"""Topics with their expressions in a form in which equal ones are the same text."""


def expressions_of(wanted: Iterable[SubscriptionData]) -> Expressions:
    """Return the subscriptions of one member, without its retry topic, which all have."""
    return frozenset(
        (data.topic, _canonical(data)) for data in wanted if not data.topic.startswith(RETRY_TOPIC_PREFIX)
    )


def _canonical(data: SubscriptionData) -> str:
    if not is_tag_type(data.expression_type):
        return f"{data.expression_type} {data.sub_string}"
    try:
        tags = split_tags(data.sub_string)
    except ValueError:
        return data.sub_string or ""
    return MATCH_ALL if tags is None else f" {OR} ".join(sorted(tags))


@dataclass(slots=True)
class _Kind:
    expressions: Expressions
    members: dict[object, str] = field(default_factory=dict)
    """Client ids by channel."""


class MemberSubscriptions:
    """What the members of one group subscribe; members are known by their channels."""

    def __init__(self) -> None:
        self._kinds: dict[Expressions, _Kind] = {}
        self._kind_of: dict[object, _Kind] = {}

    def set(self, channel: object, client_id: str, wanted: Iterable[SubscriptionData]) -> None:
        """Note what a member subscribes. One without subscriptions takes part in no comparison."""
        expressions = expressions_of(wanted)
        known = self._kind_of.get(channel)
        if known is not None and known.expressions == expressions:
            return
        self.remove(channel)
        if expressions:
            kind = self._kinds.setdefault(expressions, _Kind(expressions))
            kind.members[channel] = client_id
            self._kind_of[channel] = kind

    def remove(self, channel: object) -> None:
        kind = self._kind_of.pop(channel, None)
        if kind is not None:
            del kind.members[channel]
            if not kind.members:
                del self._kinds[kind.expressions]

    @property
    def count(self) -> int:
        """The number of different sets of subscriptions."""
        return len(self._kinds)

    def kinds(self) -> list[SubscriptionKind]:
        """Return the different sets of subscriptions with their members, the most frequent one first."""
        ordered = sorted(
            self._kinds.values(), key=lambda kind: (-len(kind.members), sorted(kind.expressions))
        )
        return [
            SubscriptionKind(
                expressions=dict(sorted(kind.expressions)), members=sorted(set(kind.members.values()))
            )
            for kind in ordered
        ]

    def describe(self) -> str:
        """`orders: created (10.0.0.1@1, 10.0.0.2@1); orders: paid (10.0.0.3@1)`, within the limit."""
        text = "; ".join(map(str, self.kinds()))
        return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 3] + "..."
