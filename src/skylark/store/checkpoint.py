"""The checkpoint: the time and the physical offset up to which a store's files are on disk.

One page. RocketMQ's fields, i64 each: physicMsgTimestamp · logicsMsgTimestamp · indexMsgTimestamp ·
masterFlushedOffset · confirmPhyOffset. At byte 64 ours: magic `SKYL` · durable offset i64 · CRC-32 u32 over
the five fields and the durable offset. RocketMQ rewrites only its own fields, which invalidates our CRC.

The manifest holds the length of each consume queue, so that recovery notices a queue whose files were lost.
RocketMQ ignores it. It is a lower bound: entries are added after it was written, and never removed before it
has been written again without them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from zlib_ng.zlib_ng import crc32

from skylark.model.record import crc32 as record_crc32
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import Disk, DiskFile

CHECKPOINT_BYTES = 4096
FIELDS = struct.Struct(">qqqqq")
assert FIELDS.size == 40
EXTENSION_POSITION = 64
EXTENSION = struct.Struct(">4sqI")
MAGIC = b"SKYL"
_OFFSET = struct.Struct(">q")
# The times are store times of messages, taken before the flush; RocketMQ subtracts this margin.
MARGIN_MS = 3000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Durable positions of a store. Times are store timestamps of messages.

    Everything below `durable_offset` is durable in log, consume queues and index. If it is None, recovery
    uses the times.
    """

    physic_timestamp: int = 0
    logics_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    durable_offset: int | None = None

    @staticmethod
    def decode(data: bytes) -> Checkpoint:
        """Decode a page. Our fields are used only if magic and CRC match."""
        physic, logics, index, master_flushed, confirm = FIELDS.unpack_from(data)
        magic, durable_offset, checksum = EXTENSION.unpack_from(data, EXTENSION_POSITION)
        is_ours = magic == MAGIC and checksum == _checksum(data[: FIELDS.size], durable_offset)
        return Checkpoint(physic, logics, index, master_flushed, confirm, durable_offset if is_ours else None)

    def encode(self) -> bytes:
        fields = FIELDS.pack(
            self.physic_timestamp,
            self.logics_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirm_physical_offset,
        )
        page = fields
        if self.durable_offset is not None:
            checksum = _checksum(fields, self.durable_offset)
            page = fields.ljust(EXTENSION_POSITION, b"\0")
            page += EXTENSION.pack(MAGIC, self.durable_offset, checksum)
        return page.ljust(CHECKPOINT_BYTES, b"\0")

    def recovery_timestamp(self, with_index: bool) -> int:
        """Return the time up to which messages are on disk, and indexed if `with_index`."""
        times = [self.physic_timestamp, self.logics_timestamp]
        if with_index:
            times.append(self.index_timestamp)
        return max(0, min(times) - MARGIN_MS)


def _checksum(fields: bytes, durable_offset: int) -> int:
    return int(crc32(fields + _OFFSET.pack(durable_offset)))


class CheckpointFile:
    """The checkpoint on disk, rewritten in place. One thread at a time."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._file: DiskFile | None = None

    def load(self) -> Checkpoint | None:
        """Return the saved checkpoint; None if the file is missing, short or all zeros. Raises OSError."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return None
        data = file.read(CHECKPOINT_BYTES, 0)
        file.close()
        if len(data) < CHECKPOINT_BYTES or not any(data):
            return None
        return Checkpoint.decode(data)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write it durably. Raises DiskFull, OSError."""
        if self._file is None:
            self._file = self._disk.create(self._path, CHECKPOINT_BYTES)
            self._disk.sync_directory(self._path.parent)
        self._file.write([checkpoint.encode()], 0)
        self._file.sync()


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
    framed = FRAME.pack(len(data), record_crc32(data)) + data
    file = disk.create(
        root / MANIFEST_FILE_NAMES[manifest.generation % len(MANIFEST_FILE_NAMES)], len(framed)
    )
    file.write([framed], 0)
    file.sync()
    disk.sync_directory(root)
    file.close()


def load_manifest(disk: Disk, root: Path) -> QueueManifest | None:
    """Return the newest valid manifest, or None."""
    found = [
        manifest
        for name in MANIFEST_FILE_NAMES
        if (manifest := _load_manifest(disk, root / name)) is not None
    ]
    return max(found, key=lambda manifest: manifest.generation, default=None)


def _load_manifest(disk: Disk, path: Path) -> QueueManifest | None:
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
    if not text or len(text) != length or record_crc32(text) != crc:
        return None
    return msgspec.json.decode(text, type=QueueManifest)
