"""Pure. Subscriptions made ready: the expression is read once, and a function says which entries match."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from skylark.broker.refusals import system_error
from skylark.errors import BrokerError
from skylark.model.java import java_hash
from skylark.model.tag_expression import MATCH_ALL, TAG, is_tag_type, split_tags
from skylark.protocol.bodies import SubscriptionData
from skylark.protocol.codes import ResponseCode
from skylark.store.reading import TagsFilter

CACHED_EXPRESSIONS_MAX = 1024
CACHED_CHARS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of a topic.

    `tags_filter` takes an entry's tags code; None: every message matches. Codes may collide: clients look at
    the tags themselves.
    """

    data: SubscriptionData
    tags_filter: TagsFilter | None

    def says(self, expression: str | None, expression_type: str | None) -> bool:
        """Say whether this is the subscription that these words mean."""
        data = self.data
        return data.sub_string == (expression or MATCH_ALL) and data.expression_type == (
            expression_type or TAG
        )


def ready(data: SubscriptionData) -> Subscription:
    """Return the subscription that a client sent in a heartbeat."""
    # Of what a client says we believe the codes; few leave them out.
    if data.class_filter_mode or not data.sub_string or data.sub_string == MATCH_ALL:
        return Subscription(data, None)
    if data.code_set or not is_tag_type(data.expression_type):
        return Subscription(data, frozenset(data.code_set).__contains__)
    try:
        tags = split_tags(data.sub_string)
    except ValueError:
        tags = ()
    return Subscription(data, _filter_of(tags))


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None, *, now_ms: int
) -> Subscription:
    """Return the subscription that a client sends along with a pull.

    Raises BrokerError 23 for one that cannot be read, 1 for one that is not by tags.
    """
    if not is_tag_type(expression_type) and expression:
        refuse_unless_tags(expression_type)
    try:
        tags, tags_filter = _parse(expression, expression_type)
    except ValueError:
        remark = "parse the consumer's subscription failed"
        raise BrokerError.for_code(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from None
    data = SubscriptionData(
        topic=topic,
        sub_string=expression or MATCH_ALL,
        expression_type=expression_type or TAG,
        tags_set=list(tags),
        code_set=[java_hash(tag) for tag in tags],
        sub_version=now_ms,
    )
    return Subscription(data, tags_filter)


def refuse_unless_tags(expression_type: str | None) -> None:
    """Raise BrokerError 1 for expressions that are not served: all but those of tags."""
    if not is_tag_type(expression_type):
        raise system_error(f"The broker does not support consumer to filter message by {expression_type}")


def _parse(expression: str | None, expression_type: str | None) -> tuple[Sequence[str], TagsFilter | None]:
    if not is_tag_type(expression_type):
        raise ValueError("an expression of this type cannot be empty")
    if expression is not None and len(expression) <= CACHED_CHARS_MAX:
        return _parse_cached(expression)
    tags = split_tags(expression)
    return tags or (), _filter_of(tags)


@lru_cache(CACHED_EXPRESSIONS_MAX)
def _parse_cached(expression: str) -> tuple[Sequence[str], TagsFilter | None]:
    tags = split_tags(expression)
    return tags or (), _filter_of(tags)


def _filter_of(tags: Sequence[str] | None) -> TagsFilter | None:
    # The bare method of a set: a filter is called for up to 800 entries of one pull.
    return None if tags is None else frozenset(map(java_hash, tags)).__contains__
