"""The length of each consume queue, so that recovery notices a queue whose files were lost.

RocketMQ ignores the file. It is a lower bound: entries are added after it was written, and never removed
before it has been written again without them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import msgspec

from skylark.model.record import crc32
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import Disk

FRAME = struct.Struct(">II")  # bytes of JSON, CRC
MANIFEST_FILE_NAMES = ("skylark-queues", "skylark-queues-2")


class QueueExtent(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    queue_id: int
    first_file: int
    """Start of its first file, in bytes."""
    entries: int


class QueueManifest(msgspec.Struct, frozen=True):
    queues: list[QueueExtent] = []
    index_end: int = -1
    """Physical offset of the last indexed record, -1 without one."""
    index_files: list[str] = []
    deleted: dict[str, int] = {}
    """By topic: records below this physical offset belong to a deleted topic of that name."""
    generation: int = 0
    durable_offset: int = -1
    """The checkpoint's durable offset: all entries of records below it are counted."""


def extents_of(queues: Iterable[ConsumeQueue], upto: int | None) -> list[QueueExtent]:
    """Return the durable extent of each queue, or that after a truncation at `upto`. The flush thread."""

    def entries(queue: ConsumeQueue) -> int:
        synced = queue.synced_offset
        return synced if upto is None else min(synced, queue.end_below(upto))

    return [
        QueueExtent(queue.topic, queue.queue_id, queue.file_starts[0], entries(queue))
        for queue in queues
        if queue.file_starts
    ]


def save_manifest(disk: Disk, root: Path, manifest: QueueManifest) -> None:
    """Replace the older of two files: a crash leaves the other intact. Raises OSError, DiskFull."""
    data = msgspec.json.encode(manifest)
    framed = FRAME.pack(len(data), crc32(data)) + data
    file = disk.create(
        root / MANIFEST_FILE_NAMES[manifest.generation % len(MANIFEST_FILE_NAMES)], len(framed)
    )
    file.write([framed], 0)
    file.sync()
    disk.sync_directory(root)
    file.close()


def load_manifest(disk: Disk, root: Path) -> QueueManifest | None:
    """Return the newest valid manifest, or None."""
    found = [manifest for name in MANIFEST_FILE_NAMES if (manifest := _load(disk, root / name)) is not None]
    return max(found, key=lambda manifest: manifest.generation, default=None)


def _load(disk: Disk, path: Path) -> QueueManifest | None:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    data = file.read(file.length, 0)
    file.close()
    if len(data) < FRAME.size:
        return None
    length, crc = FRAME.unpack_from(data)
    text = data[FRAME.size : FRAME.size + length]
    if not text or len(text) != length or crc32(text) != crc:
        return None
    return msgspec.json.decode(text, type=QueueManifest)
