"""Offsets of many queues: as Spark's checkpoint keeps them, and where a query starts and ends.

In JSON they are topic → broker → queue id → offset, sorted: Spark compares offsets as text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from skylark.errors import SettingsError
from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from skylark.model.names import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from skylark.pipelines.options import parse_time_ms
from skylark.pipelines.origin import Origin
from skylark.pipelines.wire import Queue

Offsets = dict[Queue, int]
Nested = dict[str, dict[str, dict[str, int]]]

EARLIEST, LATEST = -2, -1
_ROWS = re.compile(r"-(\d+)\s*rows?")
_PLAIN_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_NAMES_SHOWN = 10


def to_nested(offsets: Mapping[Queue, int]) -> Nested:
    """Offsets as they stand in a checkpoint."""
    nested: Nested = {}
    for queue, queue_offset in sorted(offsets.items()):
        brokers = nested.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
        brokers[str(queue.queue_id)] = queue_offset
    return nested


def from_nested(nested: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Offsets:
    """Offsets from a checkpoint or a user's JSON. Raises ValueError for what has another shape."""
    try:
        shaped = msgspec.convert(nested, dict[str, dict[str, dict[int, int]]], strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"offsets are topic -> broker -> queue -> offset: {error}") from None
    return {
        Queue(topic, broker, queue_id): queue_offset
        for topic, brokers in shaped.items()
        for broker, queues in brokers.items()
        for queue_id, queue_offset in queues.items()
    }


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every queue: of these one is given. `fixed` may hold EARLIEST and LATEST."""

    fixed: Mapping[Queue, int] = field(default_factory=dict)
    otherwise: int = EARLIEST
    time_ms: int | None = None
    last_rows: int | None = None
    is_group: bool = False


def parse_position(text: str, now_ms: int) -> Position:
    """Read `startingOffsets` or `endingOffsets`. Raises ValueError."""
    word = text.strip()
    if word in ("earliest", "latest"):
        return Position(otherwise=EARLIEST if word == "earliest" else LATEST)
    if word.startswith("group"):
        fallback = word.partition(":")[2] or "latest"
        if word.partition(":")[0] != "group" or fallback not in ("earliest", "latest"):
            raise ValueError(f"{text!r}: write group, group:earliest or group:latest")
        return Position(is_group=True, otherwise=EARLIEST if fallback == "earliest" else LATEST)
    if word.startswith("{"):
        try:
            return Position(fixed=from_nested(msgspec.json.decode(word)))
        except msgspec.DecodeError as error:
            raise ValueError(f"not JSON: {error}") from None
    if rows := _ROWS.fullmatch(word):
        return Position(last_rows=int(rows[1]))
    return Position(time_ms=parse_time_ms(word, now_ms))


def resolve(position: Position, origin: Origin, queues: Sequence[Queue], group: str | None) -> Offsets:
    """Where that is now. Raises SettingsError for fixed offsets of queues that do not exist."""
    unknown = sorted(position.fixed.keys() - set(queues))
    if unknown:
        names = ", ".join("/".join(map(str, queue)) for queue in unknown[:_NAMES_SHOWN])
        raise SettingsError("startingOffsets", f"there is no queue {names}")
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
    """The pieces of the `topic` option: names and regular expressions."""
    return [item.strip() for item in wanted.split(",") if item.strip()]


def choose_topics(wanted: str, origin: Origin) -> list[str]:
    """The topics that the option names now. Raises SettingsError for a name that nobody knows."""
    known = origin.topics()
    topics: set[str] = set()
    for item in split_names(wanted):
        if item in known:
            topics.add(item)
        elif _PLAIN_NAME.fullmatch(item) is None:
            topics.update(_matching(item, known))
        else:
            raise SettingsError("topic", _unknown(item, known))
    return sorted(topics)


def _matching(pattern: str, known: Iterable[str]) -> list[str]:
    """System topics, retry and dead-letter topics only match a pattern that begins like them."""
    try:
        matcher = re.compile(pattern)
    except re.error as error:
        raise SettingsError("topic", f"{pattern!r} is no regular expression: {error}") from None
    hidden = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX)
    return [
        topic
        for topic in known
        if matcher.fullmatch(topic)
        and topic not in SYSTEM_TOPICS
        and not any(topic.startswith(prefix) and not pattern.startswith(prefix) for prefix in hidden)
    ]


def _unknown(topic: str, known: list[str]) -> str:
    shown = [name for name in sorted(known) if name not in SYSTEM_TOPICS and not name.startswith("%")]
    close = difflib.get_close_matches(topic, shown, 1)
    hint = f"; did you mean {close[0]}?" if close else "."
    names = ", ".join(shown[:_NAMES_SHOWN]) + (", …" if len(shown) > _NAMES_SHOWN else "")
    return f"there is no topic {topic!r}{hint} There are: {names or 'none'}"


def assigned(assign: str, queues: Iterable[Queue]) -> list[Queue]:
    """The queues that the option `assign` names. Raises SettingsError."""
    try:
        shape: Any = msgspec.json.decode(assign, type=dict[str, dict[str, list[int]]])
    except msgspec.DecodeError as error:
        raise SettingsError("assign", f"not JSON topic -> broker -> [queues]: {error}") from None
    return [
        queue
        for queue in queues
        if (chosen := shape.get(queue.topic, {}).get(queue.broker_name)) is not None
        and (not chosen or queue.queue_id in chosen)
    ]
