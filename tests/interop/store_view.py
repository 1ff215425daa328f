"""What a store of ours says, in the shape of a Java dump, and the checks that both sides must pass."""

from __future__ import annotations

import hashlib
import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any, Protocol

import msgspec

from skylark.model.body import plain_body
from skylark.model.java import java_hash
from skylark.model.message import SCHEDULE_TOPIC, StoredMessage, pack_host
from skylark.model.message_id import offset_message_id
from skylark.settings import StoreSettings
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.log_reader import GetResult
from skylark.store.message_store import MessageStore
from skylark.store.store_reader import StoreReader
from skylark.store.tail_reader import TagsFilter
from tests.interop.store_driver import Json

SHAPE: dict[str, int] = {
    "mappedFileSizeCommitLog": 256 << 10,
    "mappedFileSizeConsumeQueue": 300 * 20,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}
"""Small files, so that every kind is rolled; by the names of the broker's configuration, which ours know."""
QUERY_MAX = 64
GET_MAX = 32


def settings(store_dir: Path, **changes: Any) -> StoreSettings:
    """Settings of ours for a store of that shape."""
    shape: dict[str, Any] = {
        setting.name: SHAPE[setting.metadata["java"]]
        for setting in fields(StoreSettings)
        if setting.metadata["java"] in SHAPE
    }
    assert len(shape) == len(SHAPE)
    return StoreSettings(path=store_dir, **shape, **changes)


def write_topics(store_dir: Path, queues_by_topic: Mapping[str, int]) -> None:
    """The metadata without which a broker does not serve a topic."""
    table = {
        topic: {
            "attributes": {},
            "order": False,
            "perm": 6,
            "readQueueNums": queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": queues,
        }
        for topic, queues in queues_by_topic.items()
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    config = store_dir / "config"
    config.mkdir(exist_ok=True)
    (config / "topics.json").write_bytes(
        msgspec.json.encode({"dataVersion": version, "topicConfigTable": table})
    )


# Our side of a comparison


class OurSide(Protocol):
    """What the comparison needs of a store of ours, however it is opened."""

    @property
    def queues(self) -> Mapping[tuple[str, int], ConsumeQueue]: ...
    def get(
        self, topic: str, queue_id: int, queue_offset: int, tags_filter: TagsFilter | None = None
    ) -> GetResult: ...
    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int: ...
    def by_id(self, offset_message_id: str) -> StoredMessage: ...
    def by_key(self, topic: str, key: str) -> list[StoredMessage]: ...


@dataclass(frozen=True)
class Writable:
    """A store open for writing."""

    store: MessageStore

    @property
    def queues(self) -> Mapping[tuple[str, int], ConsumeQueue]:
        return self.store.queues

    def get(
        self, topic: str, queue_id: int, queue_offset: int, tags_filter: TagsFilter | None = None
    ) -> GetResult:
        return self.store.get(topic, queue_id, queue_offset, GET_MAX, tags_filter=tags_filter)

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        return self.store.offset_by_time(topic, queue_id, timestamp)

    def by_id(self, offset_message_id: str) -> StoredMessage:
        return self.store.message_by_id(offset_message_id)

    def by_key(self, topic: str, key: str) -> list[StoredMessage]:
        return self.store.messages_by_key(topic, key, maximum=QUERY_MAX)


class ReadOnly:
    """A directory that a reader looks at."""

    def __init__(self, store_dir: Path) -> None:
        shape = settings(store_dir)
        self.reader = StoreReader(store_dir, index_slots=shape.index_slots, index_items=shape.index_items)
        assert not self.reader.problems

    @property
    def queues(self) -> Mapping[tuple[str, int], ConsumeQueue]:
        return self.reader.queue_table

    def get(
        self, topic: str, queue_id: int, queue_offset: int, tags_filter: TagsFilter | None = None
    ) -> GetResult:
        result = self.reader.get(topic, queue_id, queue_offset, GET_MAX, tags_filter=tags_filter)
        assert result is not None
        return result

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        found = self.reader.offset_by_time(topic, queue_id, timestamp)
        assert found is not None
        return found

    def by_id(self, offset_message_id: str) -> StoredMessage:
        return self.reader.by_offset_id(offset_message_id)

    def by_key(self, topic: str, key: str) -> list[StoredMessage]:
        return self.reader.by_key(topic, key, maximum=QUERY_MAX)


def topics(side: OurSide) -> Json:
    """All queues that ever held a message, as a dump has them."""
    found: dict[str, Json] = defaultdict(dict)
    for (topic, queue_id), queue in sorted(side.queues.items()):
        if queue.max_offset > 0:
            found[topic][str(queue_id)] = _queue(side, queue)
    return dict(found)


def _queue(side: OurSide, queue: ConsumeQueue) -> Json:
    low, high = queue.min_offset, queue.max_offset
    messages: list[StoredMessage] = []
    position = low
    while position < high:
        result = side.get(queue.topic, queue.queue_id, position)
        messages += result.messages()
        assert result.next_offset > position, (queue, position, result.status)
        position = result.next_offset
    return {
        "minOffset": low,
        "maxOffset": high,
        "lastUpdateTimestamp": messages[-1].store_timestamp,
        "units": [list(queue.entry(number) or ()) for number in range(low, high)],
        "messages": [describe(message) for message in messages],
    }


def describe(message: StoredMessage) -> Json:
    """One message as the Java driver writes it."""
    sent = plain_body(message)
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "storeSize": message.size,
        "offsetMsgId": offset_message_id(
            pack_host(*_host_and_port(message.store_host)), message.physical_offset
        ),
        "uniqKey": message.unique_key,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": _java_host(message.born_host),
        "storeTimestamp": message.store_timestamp,
        "storeHost": _java_host(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCrc": message.body_crc,
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
        "storedBodySize": len(message.body),
        "storedBodySha256": hashlib.sha256(message.body).hexdigest(),
        "bodySize": len(sent),
        "bodySha256": hashlib.sha256(sent).hexdigest(),
        "properties": dict(message.properties),
    }


def _host_and_port(host: str) -> tuple[str, int]:
    address, _, port = host.rpartition(":")
    return address.strip("[]"), int(port)


def _java_host(host: str) -> str:
    """Java writes IPv6 addresses in eight groups and without brackets."""
    text, port = _host_and_port(host)
    address = ipaddress.ip_address(text)
    if address.version == 4:
        return f"{address}:{port}"
    groups = (f"{int(group, 16):x}" for group in address.exploded.split(":"))
    return f"{':'.join(groups)}:{port}"


def check_our_answers(side: OurSide, dump: Json) -> None:
    """Keys, times, tags and ids lead us to the messages that the dump has."""
    for (topic, key), positions in _positions_by_key(dump).items():
        assert positions_by_key(side, topic, key) == positions, (topic, key)
    for topic, queue_id, queue in _queues(dump):
        for timestamp, queue_offset in queue["byTime"]:
            assert side.offset_by_time(topic, queue_id, timestamp) == queue_offset, (
                topic,
                queue_id,
                timestamp,
            )
        for tag, queue_offsets in queue["byTag"].items():
            found = offsets_with_tag(side, topic, queue_id, tag, queue["minOffset"], queue["maxOffset"])
            assert found == queue_offsets, (topic, tag)
        for message in queue["messages"]:
            assert describe(side.by_id(message["offsetMsgId"])) == message


def offsets_with_tag(
    side: OurSide, topic: str, queue_id: int, tag: str, min_offset: int, max_offset: int
) -> list[int]:
    """Queue offsets of the messages with a tag. One answer scans one file of the queue at most: ask on."""
    found: list[int] = []
    while min_offset < max_offset:
        result = side.get(topic, queue_id, min_offset, partial(eq, java_hash(tag)))
        assert result.next_offset > min_offset, (topic, queue_id, min_offset, result.status)
        found += [message.queue_offset for message in result.messages()]
        min_offset = result.next_offset
    return found


def positions_by_key(side: OurSide, topic: str, key: str) -> list[int]:
    """Physical offsets of the messages with a key or unique key."""
    return [message.physical_offset for message in side.by_key(topic, key)]


# The dump's side


def comparable(dump: Json) -> Json:
    """The queues of a dump without the broker's answers to other questions."""
    return {
        topic: {
            queue_id: {name: queue[name] for name in queue if name not in ("byTag", "byTime")}
            for queue_id, queue in queues.items()
        }
        for topic, queues in dump["topics"].items()
    }


def by_position(topics_of_dump: Json) -> dict[int, Json]:
    """All messages by their physical offsets."""
    return {
        message["physicalOffset"]: message
        for queues in topics_of_dump.values()
        for queue in queues.values()
        for message in queue["messages"]
    }


def check_answers(dump: Json, address: str) -> None:
    """Tags, times and ids led the broker (at `address`) to the messages that it has."""
    for topic, queue_id, queue in _queues(dump):
        tags = defaultdict(list)
        for message in queue["messages"]:
            if message["tags"] and topic != SCHEDULE_TOPIC:  # its units hold times in place of tag codes
                tags[message["tags"]].append(message["queueOffset"])
        assert {tag: offsets for tag, offsets in queue["byTag"].items() if offsets} == tags, (topic, queue_id)
        times = [message["storeTimestamp"] for message in queue["messages"]]
        for timestamp, queue_offset in queue["byTime"]:
            older = sum(stored < timestamp for stored in times)
            assert queue_offset == queue["minOffset"] + older, (topic, queue_id, timestamp)
    ids = {
        message["offsetMsgId"]
        for message in by_position(dump["topics"]).values()
        if message["storeHost"] == address
    }
    assert set(dump["byId"]) == ids


def check_keys(dump: Json, messages: Iterable[Json]) -> None:
    """The keys of these messages led the broker to all messages that carry them."""
    positions = _positions_by_key(dump)
    for message in messages:
        for key in _keys(message):
            found = dump["byKey"][message["topic"]][key]
            assert found == positions[message["topic"], key], (message["topic"], key)


def _keys(message: Json) -> set[str]:
    return {message["uniqKey"] or "", *(message["keys"] or "").split(" ")} - {""}


def _queues(dump: Json) -> Iterator[tuple[str, int, Json]]:
    for topic, queues in dump["topics"].items():
        for queue_id, queue in queues.items():
            yield topic, int(queue_id), queue


def _positions_by_key(dump: Json) -> dict[tuple[str, str], list[int]]:
    positions: dict[tuple[str, str], list[int]] = defaultdict(list)
    for topic, _, queue in _queues(dump):
        for message in queue["messages"]:
            for key in _keys(message):
                positions[topic, key].append(message["physicalOffset"])
    return {place: sorted(found) for place, found in positions.items()}
