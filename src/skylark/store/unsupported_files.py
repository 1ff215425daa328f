"""Files and topics of Apache RocketMQ in a store directory that are not served: reported, never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skylark.atomic_file import load_file
from skylark.errors import BadJson
from skylark.model import java
from skylark.model.lite_topic import LIGHT_PREFIX, parse_light_queue
from skylark.store.disk import Disk

TopicAttributes = Mapping[str, Mapping[str, Any]]

COMPACTION = ("cleanup.policy", "COMPACTION")
ROCKSDB_FILE = "CURRENT"
ROCKSDB_STORE = "rocksdbstore"
ROCKSDB_WAY_OUT = (
    "timers, transactions or index entries in RocksDB, which are not read here: start Apache's broker once "
    "more with timerRocksDBEnable=false, transRocksDBEnable=false and indexRocksDBEnable=false, wait "
    "until it has delivered what is due, stop it, and move rocksdbstore away"
)
EMPTY_COMPACTION = {"position-checkpoint"}
"""Files in `compaction` of a broker without compaction topics."""
UNSUPPORTED_NAMES = {
    "compaction": "logs of compaction topics",
    "consumequeue_ext": "extension entries of consume queues",
    "kvStore": "pop state in RocksDB",
}


@dataclass(frozen=True, slots=True)
class UnsupportedItem:
    """An unsupported file or topic, and the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def find_unsupported(
    disk: Disk, path: Path, topics: Iterable[str], attributes: TopicAttributes
) -> list[UnsupportedItem]:
    """Return everything in a store directory that is not served, grouped by kind."""
    found = [
        UnsupportedItem(name, reason)
        for name, reason in sorted(UNSUPPORTED_NAMES.items())
        if _has_files(disk, path / name)
    ]
    if holds_rocksdb_data(disk, path):
        found.append(UnsupportedItem(ROCKSDB_STORE, ROCKSDB_WAY_OUT))
    databases = ["consumequeue", *(f"config/{name}" for name in disk.directories(path / "config"))]
    found += [
        UnsupportedItem(name, "RocksDB database")
        for name in databases
        if ROCKSDB_FILE in disk.files(path / name)
    ]
    found += [
        UnsupportedItem(topic, "compaction topic: its messages are shown as sent, not compacted")
        for topic in sorted(_topics_with(attributes, COMPACTION))
    ]
    for topic in sorted(topics):
        if is_foreign_light_queue(topic):
            found.append(UnsupportedItem(topic, "light queue: its entries point to records of other topics"))
    return found


def is_foreign_light_queue(topic: str) -> bool:
    """Return whether this is a light queue, but not of a lite topic."""
    return topic.startswith(LIGHT_PREFIX) and parse_light_queue(topic) is None


def holds_rocksdb_data(disk: Disk, path: Path) -> bool:
    """Return whether the RocksDB database of a broker of 5.4 or later has records in files or in its log.

    The broker makes an empty database also if it does not use it.
    """
    directory = path / ROCKSDB_STORE
    names = disk.files(directory)
    return any(name.endswith(".sst") for name in names) or any(
        name.endswith(".log") and disk.length(directory / name) > 0 for name in names
    )


def _has_files(disk: Disk, path: Path) -> bool:
    """Return whether a path is a file, or a directory with one at any depth."""
    if path.name in disk.files(path.parent) or {*disk.files(path)} - EMPTY_COMPACTION:
        return True
    return any(_has_files(disk, path / name) for name in disk.directories(path))


def _topics_with(attributes: TopicAttributes, attribute: tuple[str, str]) -> set[str]:
    name, value = attribute
    return {topic for topic, members in attributes.items() if members.get(name) == value}


def load_topic_attributes(path: Path) -> TopicAttributes:
    """Return the attributes of each topic in `config/topics.json`. Raises BadStoreFile, OSError."""
    return load_file(path / "config" / "topics.json", _parse_topics) or {}


def _parse_topics(data: bytes) -> TopicAttributes:
    document = java.loads(data)
    topics = document.get("topicConfigTable") if isinstance(document, dict) else None
    if not isinstance(topics, dict):
        raise BadJson(0, "no topicConfigTable")
    return {
        str(topic): attributes
        for topic, config in topics.items()
        if isinstance(config, dict) and isinstance(attributes := config.get("attributes") or {}, dict)
    }
