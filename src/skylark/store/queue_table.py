"""All consume queues of a store, made on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from skylark.errors import BadStoreFile
from skylark.store.consume_queue import ConsumeQueue, check_topic
from skylark.store.disk import Disk
from skylark.store.mapped_file import OpenFiles

OPEN_QUEUE_FILES_MAX = 512


class QueueTable(dict[tuple[str, int], ConsumeQueue]):
    """(topic, queue id) -> queue. A missing one is made by the look-up, which is the append's hot path."""

    def __init__(
        self, disk: Disk, directory: Path, file_bytes: int, lock: threading.Lock, *, writable: bool = True
    ) -> None:
        super().__init__()
        self.directory = directory
        self._disk = disk
        self._file_bytes = file_bytes
        self._lock = lock
        self._open_files = OpenFiles(disk, OPEN_QUEUE_FILES_MAX, writable=writable)
        self.batch_topics: set[str] = set()
        """Topics whose units are in batch consume queues. They are not kept here: these files are foreign."""

    def __missing__(self, key: tuple[str, int]) -> ConsumeQueue:
        """Raises ValueError for a topic or queue id that cannot be stored."""
        topic, queue_id = key
        if topic in self.batch_topics:
            raise ValueError(f"topic {topic} has batch consume queues, which are not supported")
        queue = self[key] = self._make(topic, queue_id)
        return queue

    def for_record(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue of a record in the log, outside the table if its topic is foreign. Raises ValueError."""
        return self._make(topic, queue_id) if topic in self.batch_topics else self[topic, queue_id]

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        check_topic(topic)
        if not 0 <= queue_id < 1 << 31:
            raise ValueError(f"queue id {queue_id} is out of range")
        return ConsumeQueue(
            topic,
            queue_id,
            self.directory / topic / str(queue_id),
            self._file_bytes,
            self._disk,
            self._open_files,
            self._lock,
        )

    def load(self) -> list[BadStoreFile]:
        """Open every queue found on disk."""
        problems: list[BadStoreFile] = []
        self.batch_topics = set(self._disk.directories(self.directory.parent / "batchconsumequeue"))
        for topic in self._disk.directories(self.directory):
            for name in self._disk.directories(self.directory / topic):
                directory = self.directory / topic / name
                if not (name.isascii() and name.isdigit()):
                    problems.append(BadStoreFile(directory, "is no queue id"))
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

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in list(self)})

    def forget_topic(self, topic: str) -> None:
        """Drop a topic's queues from the table; their files stay. Under the store's lock.

        Raises ValueError for what can be no topic: its name is a path here.
        """
        check_topic(topic)
        for queue in list(self.of_topic(topic)):
            for start in queue.file_starts:
                self._open_files.forget(queue.directory, start)
            queue.is_forgotten = True
            del self[topic, queue.queue_id]

    def delete_files(self, topic: str) -> None:
        """Delete all files of a topic that was forgotten, durably. Raises ValueError, OSError."""
        check_topic(topic)
        self._disk.delete_directory(self.directory / topic)
        if self._disk.exists(self.directory):
            self._disk.sync_directory(self.directory)
