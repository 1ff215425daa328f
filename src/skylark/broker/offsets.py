"""Pure. ConsumerOffsets: committed offsets of groups by queue, pull progress, and pending resets."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from skylark.broker.error_replies import full, invalid_parameter
from skylark.broker.metadata_json import Encode, decode_metadata, encode_metadata, next_version
from skylark.errors import BrokerError
from skylark.protocol.bodies import ConsumerOffsetTable, DataVersion
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings

log = logging.getLogger(__name__)

SEPARATOR = "@"
BROADCAST_SUFFIX = "@broadcast"
"""Suffix under which RocketMQ keeps the progress of a broadcasting group."""
UNREACHABLE = (1 << 63) - 1
"""The correction of a queue in which the compared group is behind all others."""

Key = tuple[str, str]  # topic, group
_Table = dict[Key, dict[int, int]]
_encode_text = msgspec.json.Encoder().encode


class ConsumerOffsets:
    """Three tables by topic, group and queue: committed, pulled, and resets not yet delivered.

    The first two are kept in a file. Offsets are those of the next message to consume.
    """

    def __init__(self, live: LiveSettings[BrokerSettings], *, now_ms: int) -> None:
        self.data_version = DataVersion(timestamp=now_ms)
        self.changes = 0
        """Counts changes since the start, to see whether the file is out of date."""
        self._live = live
        self._commits = 0
        self.stray: set[tuple[str, str, int]] | None = None
        """On a slave: offsets committed here, by clients without a master, to be sent to the master.

        It is kept in the file, too: the master may be away for longer than the slave runs.
        """
        self._committed: _Table = {}
        self._pulled: _Table = {}
        self._resets: _Table = {}

    # --- Questions ---

    def __len__(self) -> int:
        """The number of pairs of topic and group with committed offsets."""
        return len(self._committed)

    def query(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return a group's next offset in a queue: a pending reset, or else the committed one."""
        key = (topic, group)
        if self._live.current.server_side_reset:
            reset = self._resets.get(key, {}).get(queue_id)
            if reset is not None:
                return reset
        return self._committed.get(key, {}).get(queue_id)

    def pulled(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the offset that a group has pulled up to, or else that of `query`."""
        offset = self._pulled.get((topic, group), {}).get(queue_id)
        return offset if offset is not None else self.query(topic, group, queue_id)

    def committed(self, topic: str, group: str) -> Mapping[int, int]:
        """Return what a group committed in a topic, by queue."""
        return dict(self._committed.get((topic, group), {}))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics that a group has offsets in."""
        return sorted(topic for topic, owner in _pairs(self._committed) if owner == group)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic."""
        return sorted(group for owned, group in _pairs(self._committed) if owned == topic)

    def topics_by_group(self) -> dict[str, list[str]]:
        """Return `topics_of` of all groups. Any thread."""
        # Copied atomically: the loop may add to the table meanwhile.
        return _topics_by_group(_pairs(self._committed.copy()))

    def corrections(
        self, topic: str, group: str, excluded: Iterable[str], min_offset: Callable[[int], int]
    ) -> dict[int, int]:
        """Return by queue the least offset of all groups but the excluded; `UNREACHABLE`: `group` is behind.

        Offsets below the queue's own `min_offset` do not count.
        """
        skipped = set(excluded)
        least: dict[int, int] = {}
        for (owned, owner), queues in self._committed.items():
            if owned != topic or owner in skipped:
                continue
            for queue_id, offset in queues.items():
                if offset >= min_offset(queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, UNREACHABLE))
        for queue_id, offset in self._committed.get((topic, group), {}).items():
            if least.get(queue_id, 0) > offset:
                least[queue_id] = UNREACHABLE
        return least

    # --- Changes ---

    def commit(self, topic: str, group: str, queue_id: int, queue_offset: int, *, now_ms: int) -> None:
        """Store a group's offset. Smaller offsets than before are accepted, too.

        Raises BrokerError 29 for a queue that cannot be, 1 if there is no room.
        """
        queues = self._committed.get((topic, group))
        if queues is None or queue_id not in queues:
            self._check_queue(queue_id)
            queues = self._queues(topic, group)
        queues[queue_id] = queue_offset
        self.changes += 1
        self._commits += 1
        if self.stray is not None:
            self.stray.add((topic, group, queue_id))
        if self._commits % self._live.current.offset_version_step == 0:
            self.data_version = next_version(self.data_version, now_ms)

    def try_commit(self, topic: str, group: str, queue_id: int, queue_offset: int, *, now_ms: int) -> None:
        """As `commit`, for an offset that came with a pull: an invalid one is logged and not refused."""
        try:
            self.commit(topic, group, queue_id, queue_offset, now_ms=now_ms)
        except BrokerError as error:
            log.warning("offset not committed topic=%s group=%s reason=%s", topic, group, error.remark)

    def note_pull(self, topic: str, group: str, queue_id: int, next_offset: int) -> None:
        """Note the offset that a group has pulled up to, within the limit of groups."""
        queues = self._pulled.get((topic, group))
        if queues is None:
            if len(self._pulled) >= self._live.current.offset_keys_max:
                return
            queues = self._pulled[topic, group] = {}
        queues[queue_id] = next_offset

    def reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Reset a group's offsets: the next pull of each queue gets them, and commits until then are ignored.

        Raises BrokerError 1 if there is no room.
        """
        if not offsets:
            return
        for queue_id in offsets:
            self._check_queue(queue_id)
        self._queues(topic, group).update(offsets)
        self._resets.setdefault((topic, group), {}).update(offsets)
        self.changes += 1

    def is_reset_pending(self, topic: str, group: str, queue_id: int) -> bool:
        """Return whether commits in a queue are ignored because of a pending reset."""
        return self._live.current.server_side_reset and queue_id in self._resets.get((topic, group), ())

    def has_reset(self, topic: str, group: str) -> bool:
        """Return whether a group has a pending reset in a topic."""
        return bool(self._resets) and (topic, group) in self._resets

    def take_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Pop the pending reset of a queue; None if there is none.

        If server-side resets are off, the reset is dropped.
        """
        if not self._resets:
            return None
        queues = self._resets.get((topic, group))
        if queues is None:
            return None
        offset = queues.pop(queue_id, None)
        if not queues:
            del self._resets[topic, group]
        return offset if self._live.current.server_side_reset else None

    def clone(self, source: str, target: str, topics: Iterable[str]) -> None:
        """Copy a group's offsets in these topics to another group. Raises BrokerError 1 at the limit."""
        for topic in topics:
            offsets = self._committed.get((topic, source))
            if offsets is None or source == target:
                continue
            queues = self._queues(topic, target)
            queues.clear()
            queues.update(offsets)
            self.changes += 1

    def delete_topic(self, topic: str) -> None:
        """Forget all offsets in a topic."""
        self._delete(lambda key: key[0] == topic)

    def delete_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        self._delete(lambda key: key[1].removesuffix(BROADCAST_SUFFIX) == group)

    def follow(self, master: ConsumerOffsetTable) -> None:
        """Copy the master's offsets; those of other groups stay."""
        if self._take(master):
            self.changes += 1

    # --- The file ---

    def snapshot(self) -> Encode:
        """Return an encoder of the current offsets."""
        committed = {key: dict(queues) for key, queues in self._committed.items()}
        pulled = {key: dict(queues) for key, queues in self._pulled.items()}
        version = self.data_version
        stray = None if self.stray is None else sorted(self.stray)
        return lambda: _encode(committed, pulled, version, stray)

    def load(self, data: bytes) -> None:
        """Load consumerOffset.json. Raises ValueError."""
        document = decode_metadata(data, ConsumerOffsetTable)
        self._take(document)
        if self.stray is not None:
            self.stray |= {
                (*_key_of(text), queue_id)
                for text, queue_ids in (document.stray_offsets or {}).items()
                for queue_id in queue_ids
            }

    # --- Inside ---

    def _take(self, document: ConsumerOffsetTable) -> bool:
        """Return whether anything has changed."""
        is_new = False
        for text, queues in document.offset_table.items():
            topic, separator, group = text.partition(SEPARATOR)
            if separator and self._committed.get((topic, group)) != queues:
                self._committed[topic, group] = queues
                is_new = True
        self._pulled |= {_key_of(text): queues for text, queues in (document.pull_offset_table or {}).items()}
        self.data_version = document.data_version or self.data_version
        return is_new

    def _queues(self, topic: str, group: str) -> dict[int, int]:
        """Return the committed offsets of a pair, created if missing."""
        queues = self._committed.get((topic, group))
        if queues is None:
            limit = self._live.current.offset_keys_max
            if len(self._committed) >= limit:
                raise full("pairs of a topic and a group with offsets", limit)
            queues = self._committed[topic, group] = {}
        return queues

    def _check_queue(self, queue_id: int) -> None:
        queues_max = self._live.current.topic_queues_max
        if not 0 <= queue_id < queues_max:
            raise invalid_parameter(f"queueId[{queue_id}] is illegal, allowed is 0 to {queues_max - 1}")

    def _delete(self, is_gone: Callable[[Key], bool]) -> None:
        for table in (self._committed, self._pulled, self._resets):
            for key in [key for key in table if is_gone(key)]:
                del table[key]
        self.changes += 1


def _key_of(text: str) -> Key:
    topic, _, group = text.partition(SEPARATOR)
    return topic, group


def _pairs(table: _Table) -> Iterator[Key]:
    return (key for key in table if not key[1].endswith(BROADCAST_SUFFIX))


def _topics_by_group(keys: Iterable[Key]) -> dict[str, list[str]]:
    topics: dict[str, list[str]] = {}
    for topic, group in keys:
        topics.setdefault(group, []).append(topic)
    return topics


def _encode(
    committed: _Table, pulled: _Table, version: DataVersion, stray: list[tuple[str, str, int]] | None
) -> bytes:
    members = {"dataVersion": version, "groupTopicMap": _topics_by_group(_pairs(committed))}
    if stray is not None:
        queues: dict[str, list[int]] = {}
        for topic, group, queue_id in stray:
            queues.setdefault(topic + SEPARATOR + group, []).append(queue_id)
        members["strayOffsets"] = queues
    head = encode_metadata(members)
    text = head[:-1] + b',\n"offsetTable":' + _encode_table(committed)
    if pulled:  # as in files of RocketMQ 5.5
        text += b',\n"pullOffsetTable":' + _encode_table(pulled)
    return text + b"}"


def _encode_table(table: _Table) -> bytes:
    """str() of a dict of numbers is RocketMQ's format, apart from spaces."""
    entries = [
        _encode_text(f"{topic}{SEPARATOR}{group}") + f":{queues}".replace(" ", "").encode()
        for (topic, group), queues in table.items()
    ]
    return b"{%b}" % b",\n".join(entries)
