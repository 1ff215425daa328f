"""Pure. Records of the revive topic: check points of popped messages and acknowledgements, as RocketMQ's.

A check point comes out of the timer wheel a second before its messages become visible again, an
acknowledgement when they do. What a check point lists and no acknowledgement names is delivered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from skylark.model.message import PROPERTY_TAGS, PROPERTY_TIMER_DELIVER_MS, PROPERTY_UNIQUE_KEY

CHECK_POINT_TAG = "ck"
ACK_TAG = "ack"
BATCH_ACK_TAG = "bAck"
EARLY_MS = 1000
"""How long before its messages a check point comes out: its acknowledgements come after it."""
REPUT_DELAYS_S = (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Added to the invisible time of messages that could not be delivered again, by attempt."""
REPUTS_UNKNOWN = 127

MergeKey = tuple[str, str, int, int, int, str]
"""Topic, group, queue id, start offset, pop time, broker: what an acknowledgement has of its check point."""

_LONG_NAMES = {
    "startOffset": "so",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitMap": "bm",
    "num": "n",
    "queueId": "q",
    "topic": "t",
    "cid": "c",
    "consumerGroup": "c",
    "queueOffsetDiff": "d",
    "brokerName": "bn",
    "rePutTimes": "rp",
    "ackOffset": "ao",
    "ackOffsetList": "aol",
}
_encode = msgspec.json.Encoder().encode


class CheckPoint(msgspec.Struct, gc=False):
    """Messages of one queue that a group popped together, or one whose invisible time was changed.

    `topic` is the one popped from, which may be a retry topic.
    """

    topic: str
    group: str
    queue_id: int
    start_offset: int
    offsets: Sequence[int]
    pop_time: int
    invisible_time: int
    broker_name: str
    reputs: int = 0

    @property
    def revive_time(self) -> int:
        return self.pop_time + self.invisible_time

    @property
    def key(self) -> MergeKey:
        return (
            self.topic, self.group, self.queue_id, self.start_offset, self.pop_time, self.broker_name
        )  # fmt: skip

    def encode(self) -> bytes:
        members = {
            "bm": 0,
            "bn": self.broker_name,
            "c": self.group,
            "d": [queue_offset - self.start_offset for queue_offset in self.offsets],
            "it": self.invisible_time,
            "n": len(self.offsets),
            "pt": self.pop_time,
            "q": self.queue_id,
            "reviveTime": self.revive_time,
            "ro": 0,
        }
        if self.reputs:
            members["rp"] = str(self.reputs)
        members |= {"so": self.start_offset, "t": self.topic}
        return _encode(members)

    @staticmethod
    def decode(body: bytes, broker_name: str) -> CheckPoint:
        """Raises ValueError. Without a broker's name it is one of `broker_name`."""
        members = _members(body)
        start = _number(members, "so")
        count = _number(members, "n")
        places = members.get("d")
        if not isinstance(places, list) or not all(isinstance(place, int) for place in places):
            places = list(range(count))
        return CheckPoint(
            topic=_name(members, "t"),
            group=_name(members, "c"),
            queue_id=_number(members, "q"),
            start_offset=start,
            offsets=[start + place for place in places[:count]],
            pop_time=_number(members, "pt"),
            invisible_time=_number(members, "it"),
            broker_name=members.get("bn") or broker_name,
            reputs=_reputs(members.get("rp")),
        )

    def properties(self) -> dict[str, str]:
        unique_key = (
            f"{self.topic}@{self.queue_id}@{self.start_offset}@{self.group}@{self.pop_time}@"
            f"{self.broker_name}@{CHECK_POINT_TAG}"
        )
        return _properties(CHECK_POINT_TAG, unique_key, self.revive_time - EARLY_MS)

    def reput(self, queue_offset: int, now_ms: int) -> CheckPoint:
        """Return the check point of one message that could not be delivered again now."""
        longer_s = (
            REPUT_DELAYS_S[min(self.reputs, len(REPUT_DELAYS_S) - 1)] if self.revive_time <= now_ms else 0
        )
        return msgspec.structs.replace(
            self,
            start_offset=queue_offset,
            offsets=[queue_offset],
            invisible_time=self.invisible_time + longer_s * 1000,
            reputs=self.reputs + 1,
        )


class Acknowledgement(msgspec.Struct, gc=False):
    """Messages of one check point that need not be delivered again."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    offsets: Sequence[int]
    pop_time: int
    invisible_time: int
    """Not stored: the time at which the record comes out follows from it."""
    broker_name: str

    @property
    def key(self) -> MergeKey:
        return (
            self.topic, self.group, self.queue_id, self.start_offset, self.pop_time, self.broker_name
        )  # fmt: skip

    @property
    def _is_single(self) -> bool:
        return len(self.offsets) == 1

    def encode(self) -> bytes:
        members: dict[str, Any] = {"ao": self.offsets[0] if self._is_single else -1}
        if not self._is_single:
            members["aol"] = list(self.offsets)
        members |= {
            "bn": self.broker_name,
            "c": self.group,
            "pt": self.pop_time,
            "q": self.queue_id,
            "so": self.start_offset,
            "t": self.topic,
        }
        return _encode(members)

    @staticmethod
    def decode(body: bytes, broker_name: str) -> Acknowledgement:
        """Raises ValueError. Without a broker's name it is one of `broker_name`."""
        members = _members(body)
        listed = members.get("aol")
        if not isinstance(listed, list):
            listed = [_number(members, "ao")]
        return Acknowledgement(
            topic=_name(members, "t"),
            group=_name(members, "c"),
            queue_id=_number(members, "q"),
            start_offset=_number(members, "so"),
            offsets=[each for each in listed if isinstance(each, int)],
            pop_time=_number(members, "pt"),
            invisible_time=0,
            broker_name=members.get("bn") or broker_name,
        )

    def properties(self) -> dict[str, str]:
        acked = self.offsets[0] if self._is_single else -1
        unique_key = (
            f"{self.topic}@{self.queue_id}@{acked}@{self.group}@{self.pop_time}@{self.broker_name}@{ACK_TAG}"
        )
        tag = ACK_TAG if self._is_single else BATCH_ACK_TAG
        return _properties(tag, unique_key, self.pop_time + self.invisible_time)


PopRecord = CheckPoint | Acknowledgement


def _properties(tag: str, unique_key: str, deliver_ms: int) -> dict[str, str]:
    return {
        PROPERTY_UNIQUE_KEY: unique_key,
        PROPERTY_TAGS: tag,
        PROPERTY_TIMER_DELIVER_MS: str(deliver_ms),
    }


def _members(body: bytes) -> dict[str, Any]:
    try:
        members = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(members, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 (of a document)
    return {_LONG_NAMES.get(str(name), str(name)): value for name, value in members.items()}


def _number(members: dict[str, Any], name: str) -> int:
    value = members.get(name)
    if not isinstance(value, int):
        raise ValueError(f"member {name} is {value!r}, not a number")  # noqa: TRY004 (of a document)
    return value


def _name(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"member {name} is {value!r}, not a name")
    return value


def _reputs(value: object) -> int:
    if value is None:
        return 0
    try:
        return max(int(str(value)), 0)
    except ValueError:
        return REPUTS_UNKNOWN
