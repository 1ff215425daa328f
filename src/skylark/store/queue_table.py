"""The table of all consume queues of a store, plain and batched, and their directories."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from skylark.errors import BadStoreFile
from skylark.model.lite_topic import LITE_PREFIX, light_queue_of
from skylark.settings import StoreSettings
from skylark.store.batch_consume_queue import BatchConsumeQueue
from skylark.store.consume_queue import ConsumeQueue, check_topic
from skylark.store.disk import Disk
from skylark.store.mapped_file import OpenFiles

OPEN_QUEUE_FILES_MAX = 512
PLAIN_DIRECTORY = "consumequeue"
BATCH_DIRECTORY = "batchconsumequeue"
QUEUE_TYPE = "queue.type"
BATCH_TYPE = "BatchCQ"


def is_batch_type(attributes: Mapping[str, object]) -> bool:
    """Return whether the attributes of a topic ask for batch consume queues."""
    return attributes.get(QUEUE_TYPE) == BATCH_TYPE


class QueueTable(dict[tuple[str, int], ConsumeQueue]):
    """All consume queues, by (topic, queue id). A lookup creates a missing queue: the append's hot path."""

    def __init__(
        self,
        disk: Disk,
        root: Path,
        settings: StoreSettings,
        lock: threading.Lock,
        *,
        writable: bool = True,
    ) -> None:
        """`root` is the store's directory, also if it is not that of the settings."""
        super().__init__()
        self.root = root
        self._disk = disk
        self._settings = settings
        self._lock = lock
        self._open_files = OpenFiles(disk, OPEN_QUEUE_FILES_MAX, writable=writable)
        self.batch_topics: set[str] = set()
        """Topics known to have batch consume queues, from directories and records."""
        self.is_declared_batched: Callable[[str], bool] = lambda topic: False
        """Whether a topic's attributes ask for batch consume queues; replaced by the owner of the topics."""

    def __missing__(self, key: tuple[str, int]) -> ConsumeQueue:
        """Raises ValueError for a topic or queue id that cannot be stored."""
        topic, queue_id = key
        queue = self[key] = self._make(topic, queue_id)
        return queue

    def is_batched(self, topic: str) -> bool:
        """Return whether the queues of a topic are batch consume queues."""
        return topic in self.batch_topics or self.is_declared_batched(topic)

    def for_record(self, topic: str, queue_id: int, *, is_inner_batch: bool) -> ConsumeQueue:
        """Return the queue of a record read from the log. Raises ValueError.

        The first record of a topic may tell that its queues are batched: after a crash, or on a replica, the
        topic's attributes may come later.
        """
        queue = self.get((topic, queue_id))
        if queue is None and is_inner_batch and next(self.of_topic(topic), None) is None:
            self.batch_topics.add(topic)
        return self[topic, queue_id] if queue is None else queue

    def directory_of(self, topic: str) -> Path:
        return self.root / (BATCH_DIRECTORY if self.is_batched(topic) else PLAIN_DIRECTORY) / topic

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        check_topic(topic)
        if not 0 <= queue_id < 1 << 31:
            raise ValueError(f"invalid queue id {queue_id}; use 0 to {(1 << 31) - 1}")
        kind, file_bytes = ConsumeQueue, self._settings.consume_queue_file_bytes
        if self.is_batched(topic):
            kind, file_bytes = BatchConsumeQueue, self._settings.batch_consume_queue_file_bytes
        return kind(
            topic,
            queue_id,
            self.directory_of(topic) / str(queue_id),
            file_bytes,
            self._disk,
            self._open_files,
            self._lock,
        )

    def load(self) -> list[BadStoreFile]:
        """Open every queue found on disk."""
        problems: list[BadStoreFile] = []
        self.batch_topics.update(self._disk.directories(self.root / BATCH_DIRECTORY))
        for directory in (PLAIN_DIRECTORY, BATCH_DIRECTORY):
            for topic in self._disk.directories(self.root / directory):
                if directory == PLAIN_DIRECTORY and self.is_batched(topic):
                    if any(map(self._disk.files, self._queue_directories(topic))):
                        reason = "not read: the topic has batch consume queues, in batchconsumequeue"
                        problems.append(BadStoreFile(self.root / directory / topic, reason))
                    continue
                problems += self._load_topic(topic)
        return problems

    def _queue_directories(self, topic: str) -> Iterator[Path]:
        directory = self.root / PLAIN_DIRECTORY / topic
        return (directory / name for name in self._disk.directories(directory))

    def _load_topic(self, topic: str) -> list[BadStoreFile]:
        problems: list[BadStoreFile] = []
        for name in self._disk.directories(self.directory_of(topic)):
            directory = self.directory_of(topic) / name
            if not (name.isascii() and name.isdigit()):
                problems.append(BadStoreFile(directory, "the directory's name is not a queue id"))
            elif self._disk.files(directory):
                try:
                    queue = self[topic, int(name)]
                except ValueError as error:
                    problems.append(BadStoreFile(directory, str(error)))
                else:
                    problems += queue.load()
        return problems

    def of_topic(self, topic: str) -> Iterator[ConsumeQueue]:
        return (queue for (name, _), queue in list(self.items()) if name == topic)

    def light_queues(self, parent: str = "") -> list[str]:
        """Return the light queues of a parent topic's lite topics, or those of all lite topics."""
        prefix = light_queue_of(parent, "") if parent else LITE_PREFIX
        return [topic for topic, _ in list(self) if topic.startswith(prefix)]

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in list(self)})

    def forget_topic(self, topic: str) -> None:
        """Drop a topic's queues from the table; their files remain. Under the store's lock.

        Raises ValueError for an invalid topic name: the name becomes a path.
        """
        check_topic(topic)
        for queue in list(self.of_topic(topic)):
            for start in queue.file_starts:
                self._open_files.forget(queue.directory, start)
            queue.is_forgotten = True
            del self[topic, queue.queue_id]
        self.batch_topics.discard(topic)

    def plain_topics(self) -> set[str]:
        """Topics that have plain queues, although their attributes ask for batch consume queues."""
        plain = {topic for (topic, _), queue in list(self.items()) if not queue.is_batched}
        return {topic for topic in plain if self.is_declared_batched(topic)}

    def delete_files(self, topic: str, *names: str) -> None:
        """Delete all files of a forgotten topic, or those in the directories of these names, durably.

        Raises ValueError, OSError.
        """
        check_topic(topic)
        for directory in (self.root / name for name in names or (PLAIN_DIRECTORY, BATCH_DIRECTORY)):
            if self._disk.exists(directory):
                self._disk.delete_directory(directory / topic)
                self._disk.sync_directory(directory)
