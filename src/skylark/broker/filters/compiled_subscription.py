"""Pure. Subscriptions with their expression compiled once into functions that match messages."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from skylark.broker.error_replies import system_error
from skylark.errors import BrokerError, CorruptRecord
from skylark.model.java import java_hash
from skylark.model.message import HOST_V6_MASK
from skylark.model.record import HEAD, LENGTH, MAGIC_V1, split
from skylark.model.sql92 import SQL92, BadSelector, Selector, compile_selector
from skylark.model.tag_expression import MATCH_ALL, TAG, is_tag_type, split_tags
from skylark.protocol.bodies import SubscriptionData
from skylark.protocol.codes import ResponseCode
from skylark.store.tail_reader import RecordFilter, TagsFilter

CACHED_EXPRESSIONS_MAX = 1024
CACHED_CHARS_MAX = 1024

PARSE_FAILED_REMARK = "parse the consumer's subscription failed"
NO_FILTER_REMARK = "The broker's consumer filter data is not exist!Your expression may be wrong!"

TextFilter = Callable[[bytes], bool]


@dataclass(frozen=True)
class CompiledSubscription:
    """A group's subscription to a topic.

    `tags_filter` takes an entry's tags code; None: every entry matches. Codes may collide: clients look at
    the tags themselves. `selector` then looks at the properties. `fault`: what is wrong with an expression
    that came in a heartbeat; pulls are refused for it.
    """

    data: SubscriptionData
    tags_filter: TagsFilter | None
    selector: Selector | None = None
    fault: str | None = None

    def says(self, expression: str | None, expression_type: str | None) -> bool:
        """Return whether the subscription has this expression and type."""
        data = self.data
        return data.sub_string == (expression or MATCH_ALL) and data.expression_type == (
            expression_type or TAG
        )

    @property
    def text_filter(self) -> TextFilter | None:
        """A predicate on the encoded properties of a message; None: every message matches."""
        return self.selector.matches_text if self.selector is not None else None

    @cached_property
    def record_filter(self) -> RecordFilter | None:
        """A predicate on the record at a place of a file; None: every message matches."""
        return None if self.selector is None else _record_filter(self.selector)


def compile_subscription(data: SubscriptionData) -> CompiledSubscription:
    """Return the subscription that a client sent in a heartbeat."""
    # The codes of the client are trusted; few clients omit them.
    if data.expression_type == SQL92:
        try:
            return CompiledSubscription(data, None, compile_selector(data.sub_string or ""))
        except BadSelector as error:
            return CompiledSubscription(data, None, fault=str(error))
    if data.class_filter_mode or not data.sub_string or data.sub_string == MATCH_ALL:
        return CompiledSubscription(data, None)
    if data.code_set or not is_tag_type(data.expression_type):
        return CompiledSubscription(data, frozenset(data.code_set).__contains__)
    try:
        tags = split_tags(data.sub_string)
    except ValueError:
        tags = ()
    return CompiledSubscription(data, _filter_of(tags))


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None, *, now_ms: int
) -> CompiledSubscription:
    """Return the subscription that a client sends along with a pull.

    Raises BrokerError 23 for one that cannot be read, 1 for one of an unknown type.
    """
    if expression_type == SQL92 and expression:
        selector = _selector(expression)
        data = SubscriptionData(topic=topic, sub_string=expression, expression_type=SQL92, sub_version=now_ms)
        return CompiledSubscription(data, None, selector)
    if expression:
        refuse_unknown_type(expression_type)
    try:
        tags, tags_filter = _parse(expression, expression_type)
    except ValueError:
        raise _parse_failed(PARSE_FAILED_REMARK) from None
    data = SubscriptionData(
        topic=topic,
        sub_string=expression or MATCH_ALL,
        expression_type=expression_type or TAG,
        tags_set=list(tags),
        code_set=[java_hash(tag) for tag in tags],
        sub_version=now_ms,
    )
    return CompiledSubscription(data, tags_filter)


def check_subscription(data: SubscriptionData, *, with_sql: bool) -> None:
    """Raise BrokerError for an unusable subscription: 1 for its type, 23 for a bad expression."""
    refuse_unknown_type(data.expression_type, with_sql=with_sql)
    if data.expression_type == SQL92:
        _selector(data.sub_string or "")


def refuse_unfit(subscription: CompiledSubscription, *, with_sql: bool) -> None:
    """Raise BrokerError for a pull that this subscription cannot serve: 1 for its type, 27 for a fault."""
    refuse_unknown_type(subscription.data.expression_type, with_sql=with_sql)
    if subscription.fault is not None:
        remark = f"{NO_FILTER_REMARK} {subscription.fault}"
        raise BrokerError.for_code(ResponseCode.FILTER_DATA_NOT_EXIST, remark)


def refuse_unknown_type(expression_type: str | None, *, with_sql: bool = True) -> None:
    """Raise BrokerError 1 unless the type is TAG, or SQL92 while that is enabled."""
    if not is_tag_type(expression_type) and not (with_sql and expression_type == SQL92):
        raise system_error(f"The broker does not support consumer to filter message by {expression_type}")


def _selector(expression: str) -> Selector:
    try:
        return compile_selector(expression)
    except BadSelector as error:
        raise _parse_failed(f"{PARSE_FAILED_REMARK}: {error}") from None


def _parse_failed(remark: str) -> BrokerError:
    return BrokerError.for_code(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)


# --- Records ---

# The last byte of magic and of system flag, and the body length, in records
# with IPv4 addresses.
_HEAD = struct.Struct(">7xB31xB44xi")
assert _HEAD.size == HEAD.size
_V1_LAST = MAGIC_V1 & 0xFF


def _record_filter(selector: Selector) -> RecordFilter:
    """Return what finds the properties in a record, whose size has been checked, and looks at them.

    It runs for every entry of a scan: only what lies before the properties is looked at.
    """
    matches, head, head_bytes, v6 = selector.matches_text, _HEAD.unpack_from, _HEAD.size, int(HOST_V6_MASK)
    length_bytes = LENGTH.size

    def record_matches(file: memoryview, start: int, stop: int) -> bool:
        try:
            magic, flags, body_bytes = head(file, start)
            if magic != _V1_LAST or flags & v6:
                return matches(split(file[start:stop]).properties)
            at = start + head_bytes + body_bytes
            return start < at < stop and matches(file, at + 1 + length_bytes + file[at], stop)
        except (struct.error, CorruptRecord):
            return False  # damaged: no client could read it either

    return record_matches


# --- Tags ---


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
