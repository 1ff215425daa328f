"""Offsets of many queues, as Spark's checkpoint stores them, and the start and end positions of a query.

In JSON they are topic → broker → queue id → offset, sorted, because Spark compares offsets as text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from skylark.errors import NoPermission, SettingsError
from skylark.model.archived_topics import HIDDEN_PREFIXES, topic_matcher
from skylark.model.names import SYSTEM_TOPICS
from skylark.pipelines.message_source import MessageSource, Positions, queue_name
from skylark.protocol.bodies import MessageQueue
from skylark.quantities import parse_time_ms

Offsets = dict[MessageQueue, int]
Nested = dict[str, dict[str, dict[str, int]]]

EARLIEST, LATEST = -2, -1
_Offset = Annotated[int, msgspec.Meta(ge=EARLIEST)]
_ROWS = re.compile(r"-(\d+)\s*rows?")
_PLAIN_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_NAMES_SHOWN = 10


def to_nested(offsets: Mapping[MessageQueue, int]) -> Nested:
    """Offsets as a checkpoint stores them."""
    nested: Nested = {}
    for queue, queue_offset in sorted(offsets.items()):
        brokers = nested.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
        brokers[str(queue.queue_id)] = queue_offset
    return nested


def from_nested(nested: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Offsets:
    """Offsets from a checkpoint or a user's JSON. Raises ValueError for any other shape."""
    try:
        shaped = msgspec.convert(nested, dict[str, dict[str, dict[int, _Offset]]], strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"invalid offsets, expected topic -> broker -> queue -> offset: {error}") from None
    return {
        MessageQueue(topic, broker, queue_id): queue_offset
        for topic, brokers in shaped.items()
        for broker, queues in brokers.items()
        for queue_id, queue_offset in queues.items()
    }


@dataclass(frozen=True, slots=True)
class Position:
    """A position in every queue; exactly one kind is set. `fixed` may hold EARLIEST and LATEST."""

    fixed: Mapping[MessageQueue, int] = field(default_factory=dict)
    otherwise: int = EARLIEST
    time_ms: int | None = None
    last_rows: int | None = None
    is_group: bool = False


def parse_position(text: str, now_ms: int, *, is_end: bool = False) -> Position:
    """Parse `startingOffsets`, or `endingOffsets`. Raises ValueError.

    Queues missing from JSON offsets are read from their first offset, and to their last.
    """
    word = text.strip()
    if is_end and word.startswith(("group", "earliest")):
        raise ValueError(f"invalid end {text!r}; use latest, a time or JSON offsets")
    if word in ("earliest", "latest"):
        return Position(otherwise=EARLIEST if word == "earliest" else LATEST)
    if word.startswith("group"):
        fallback = word.partition(":")[2] or "latest"
        if word.partition(":")[0] != "group" or fallback not in ("earliest", "latest"):
            raise ValueError(f"invalid start {text!r}; use group, group:earliest or group:latest")
        return Position(is_group=True, otherwise=EARLIEST if fallback == "earliest" else LATEST)
    if word.startswith("{"):
        return Position(fixed=_fixed(word, is_end=is_end), otherwise=LATEST if is_end else EARLIEST)
    if rows := _ROWS.fullmatch(word):
        return Position(last_rows=int(rows[1]))
    return Position(time_ms=parse_time_ms(word, now_ms))


def _fixed(text: str, *, is_end: bool) -> Offsets:
    try:
        fixed = from_nested(msgspec.json.decode(text))
    except msgspec.DecodeError as error:
        raise ValueError(f"invalid JSON: {error}") from None
    if is_end and EARLIEST in fixed.values():
        raise ValueError(f"invalid end {EARLIEST} (earliest); use -1 (latest) or an offset")
    return fixed


def check_queues(position: Position, queues: Sequence[MessageQueue]) -> None:
    """Raise ValueError for fixed offsets of queues that do not exist."""
    unknown = sorted(position.fixed.keys() - set(queues))
    if unknown:
        names = ", ".join(queue_name(queue) for queue in unknown[:_NAMES_SHOWN])
        raise ValueError(f"no such queue: {names}")


def resolve(
    position: Position, origin: Positions, queues: Sequence[MessageQueue], group: str | None
) -> Offsets:
    """Return the offsets of a position at this moment."""
    if position.time_ms is not None:
        return origin.offsets_by_time(queues, position.time_ms)
    lows, highs = origin.min_offsets(queues), origin.max_offsets(queues)
    if position.last_rows is not None:
        return {queue: max(lows[queue], highs[queue] - position.last_rows) for queue in queues}
    found: Offsets = {}
    for queue in queues:
        queue_offset = position.fixed.get(queue, position.otherwise)
        if position.is_group and group is not None:
            committed = origin.group_offset(group, queue)
            queue_offset = position.otherwise if committed is None else max(committed, lows[queue])
        found[queue] = {EARLIEST: lows[queue], LATEST: highs[queue]}.get(queue_offset, queue_offset)
    return found


def split_names(wanted: str) -> list[str]:
    """Split the `topic` option into names and regular expressions."""
    return [item.strip() for item in wanted.split(",") if item.strip()]


def choose_topics(wanted: str, origin: MessageSource) -> list[str]:
    """Resolve the `topic` option. Raises SettingsError for an unknown name.

    Names, unlike patterns, need no right to list topics; unknown ones are then found later.
    """
    names = split_names(wanted)
    try:
        known = origin.topics()
    except NoPermission:
        if all(_PLAIN_NAME.fullmatch(name) for name in names):
            return sorted(set(names))
        raise
    topics: set[str] = set()
    for item in names:
        if item in known:
            topics.add(item)
        elif _PLAIN_NAME.fullmatch(item) is None:
            topics.update(_matching(item, known))
        else:
            raise SettingsError("topic", _unknown(item, known))
    return sorted(topics)


def _matching(pattern: str, known: Iterable[str]) -> list[str]:
    """The topics that a regular expression chooses. Raises SettingsError."""
    matcher = topic_matcher(pattern)
    return [topic for topic in known if matcher(topic)]


def _unknown(topic: str, known: list[str]) -> str:
    kind = next((prefix for prefix in HIDDEN_PREFIXES if topic.startswith(prefix)), "")
    alike = sorted(name for name in known if name.startswith(kind))
    shown = (
        alike if kind else [n for n in alike if n not in SYSTEM_TOPICS and not n.startswith(HIDDEN_PREFIXES)]
    )
    close = difflib.get_close_matches(topic, shown, 1)
    hint = f"; did you mean {close[0]}?" if close else ";"
    names = ", ".join(shown[:_NAMES_SHOWN]) + (", …" if len(shown) > _NAMES_SHOWN else "")
    return f"unknown topic {topic!r}{hint} existing topics: {names or 'none'}"


def assigned(
    assign: str, queues: Sequence[MessageQueue], is_read: Callable[[str], bool]
) -> list[MessageQueue]:
    """Return the queues that the option `assign` names, of topics that are read.

    Raises SettingsError for an unknown queue.
    """
    try:
        shape = msgspec.json.decode(assign, type=dict[str, dict[str, list[int]]])
    except msgspec.DecodeError as error:
        raise SettingsError(
            "assign", f"invalid JSON, expected topic -> broker -> [queues]: {error}"
        ) from None
    there = {(queue.topic, queue.broker_name) for queue in queues}
    for topic in filter(is_read, shape):
        for broker, numbers in shape[topic].items():
            missing = [str(number) for number in numbers if MessageQueue(topic, broker, number) not in queues]
            if missing or (topic, broker) not in there:
                name = "/".join([topic, broker, *missing[:1]])
                known = ", ".join(queue_name(queue) for queue in queues[:_NAMES_SHOWN])
                raise SettingsError("assign", f"no such queue {name}; existing queues: {known or 'none'}")
    return [
        queue
        for queue in queues
        if (chosen := shape.get(queue.topic, {}).get(queue.broker_name)) is not None
        and (not chosen or queue.queue_id in chosen)
    ]
