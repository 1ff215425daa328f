"""The commit log: all records of all topics, appended with one write per batch and read through maps."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from zlib_ng.zlib_ng import crc32

from skylark.errors import BadStoreFile, DiskFull, OffsetOutOfRange
from skylark.model.lite_topic import LIGHT_QUEUE_ID, light_properties
from skylark.model.message import (
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    HOST_V6_MASK,
    PROPERTIES_BYTES_MAX,
    PutMessage,
    find_delay_level,
)
from skylark.model.record import (
    BLANK,
    BLANK_BYTES,
    CRC_MASK,
    HEADS,
    LENGTHS,
    MAGIC_BLANK,
    host_flags,
)
from skylark.settings import StoreSettings, parse_delay_levels
from skylark.store.append_result import (
    NUL_REFUSED,
    AppendedBatch,
    AppendedRecord,
    LaidOut,
    LayOut,
    Placed,
    PutResult,
    PutStatus,
    Refused,
    refuse_all,
    release_queue_offsets,
)
from skylark.store.batch_encoder import (
    RECORD_BYTES_EXTRA,
    BatchEncoder,
    ClientBatch,
    InnerBatchRecord,
    RecordColumns,
    fill_in_crc,
    with_crc_room,
)
from skylark.store.disk import Disk, DiskFile, Part
from skylark.store.mapped_file import MappedFileQueue
from skylark.store.queue_entry import (
    INNER_BATCH,
    LONE_UNIT,
    NO_ENTRY_MASK,
    TAGS_MARKER,
    TAGS_NAME,
    known_codes,
    schedule_tags_code,
    tags_code,
)

if TYPE_CHECKING:
    from skylark.store.consume_queue import ConsumeQueue
    from skylark.store.queue_table import QueueTable

log = logging.getLogger(__name__)

ALLOCATION_BYTES = 64 << 20
PADDING_BYTES = 64 << 10
PADDED_WRITE_BYTES_MAX = 4096
# Below this mean size one copy into a single buffer costs less than one iovec per part.
JOINED_PART_BYTES_MAX = 1024
ZEROS_BYTES = 1 << 20
IN_NO_TEXT = bytes(PROPERTIES_BYTES_MAX + 1)
"""Longer than any property text: no text contains it."""


class CommitLog:
    """The files of the log and its write position. Appends under the store's lock; reads from any thread."""

    def __init__(
        self, disk: Disk, settings: StoreSettings, store_host: bytes, *, writable: bool = True
    ) -> None:
        self._disk = disk
        self._settings = settings
        self._store_host = store_host
        self._writable = writable
        self.files = MappedFileQueue(disk, settings.commit_log_directory, settings.commit_log_file_bytes)
        self.file_bytes = settings.commit_log_file_bytes
        self.appended = 0
        """End of the log: the next record's physical offset."""
        self.message_bytes_max = settings.message_bytes_max
        self._open: dict[int, DiskFile] = {}
        self.views: dict[int, memoryview] = {}
        self._delays_ms = parse_delay_levels(settings.delay_levels)
        self._usual_delays_ms = {b"%d" % level: ms for level, ms in enumerate(self._delays_ms, 1)}
        # Recovery detects torn writes by zeros in a text without a CRC.
        self._forbidden = IN_NO_TEXT if settings.append_crc_property else b"\0"
        self.last_timestamp = 0
        """Store time of the last record; store times never decrease along the log."""
        if len(store_host) not in (HOST_V4_BYTES, HOST_V6_BYTES):
            raise ValueError(f"invalid store host of {len(store_host)} bytes; use 8 (IPv4) or 20 (IPv6)")
        # By length of the born host: head packer, flag bits, head size.
        self._heads = {
            length: (HEADS[flags].pack, flags, HEADS[flags].size)
            for length in (HOST_V4_BYTES, HOST_V6_BYTES)
            for flags in (host_flags(bytes(length), store_host),)
        }
        self._ready: DiskFile | None = None
        self._allocated = 0
        self._batches = BatchEncoder(settings, self._delays_ms)
        self._padded = 0
        self._pads = settings.syncs_every_put
        self.unsynced_names = False

    # Files

    def load(self) -> list[BadStoreFile]:
        return self.files.load()

    @property
    def min_offset(self) -> int:
        return self.files.first

    def file(self, start: int) -> DiskFile:
        """Return the open file that starts there. Raises FileNotFoundError."""
        file = self._open.get(start)
        if file is None:
            file = self._open[start] = self._disk.open(self.files.path(start), writable=self._writable)
        return file

    def view(self, start: int) -> memoryview | None:
        if start not in self.files.starts:
            return None
        try:
            view = self.views[start] = self.file(start).view()
        except FileNotFoundError:
            return None
        return view

    def select(self, physical_offset: int, size: int) -> memoryview | None:
        """Return a slice of the map, or None if the file is missing or the range exceeds it."""
        start = physical_offset - physical_offset % self.file_bytes
        view = self.views.get(start) or self.view(start)
        if view is None:
            return None
        position = physical_offset - start
        return view[position : position + size] if position + size <= self.file_bytes else None

    def read(self, physical_offset: int, length: int) -> bytes:
        """Read bytes of the log with pread, never across a file's end. Raises OffsetOutOfRange, OSError."""
        start = self.files.start_of(physical_offset)
        if start not in self.files.starts:
            raise OffsetOutOfRange(physical_offset, self.min_offset, self.appended)
        position = physical_offset - start
        try:
            return self.file(start).read(min(length, self.file_bytes - position), position)
        except FileNotFoundError as error:  # deleted in between
            raise OffsetOutOfRange(physical_offset, self.min_offset, self.appended) from error

    def is_resident(self, physical_offset: int, size: int) -> bool:
        start = self.files.start_of(physical_offset)
        try:
            if start not in self.files.starts:
                return False
            return self.file(start).is_resident(size, physical_offset - start)
        except FileNotFoundError:  # deleted in between
            return False

    def prepare_next(self) -> None:
        """Preallocate blocks of the current file and create the next file. The allocating thread.

        Raises DiskFull, OSError; the caller only logs them, because the append would report the same error.
        """
        if not self.files.starts:
            return  # the log's first offset is not known yet
        start = self.files.start_of(self.appended)
        step = (self.appended - start) // ALLOCATION_BYTES * ALLOCATION_BYTES + ALLOCATION_BYTES
        # Only ahead of the appends, and only once: an emulated fallocate writes bytes itself.
        if start in self.files.starts and step < self.file_bytes and start + step > self._allocated:
            self.file(start).allocate(step, min(ALLOCATION_BYTES, self.file_bytes - step))
            self._allocated = start + step
        left = self.files.end - self.appended
        if self._ready is None and left < min(2 * ALLOCATION_BYTES, self.file_bytes // 2):
            ready = self._disk.create(self.files.path(self.files.end), self.file_bytes)
            ready.allocate(0, min(ALLOCATION_BYTES, self.file_bytes))
            self._ready = ready

    def add_file(self) -> None:
        """Start the file behind the last one. Raises DiskFull, OSError."""
        start = self.files.end if self.files.starts else self.files.start_of(self.appended)
        ready, self._ready = self._ready, None
        if ready is None or ready.path != self.files.path(start):
            ready = self._disk.create(self.files.path(start), self.file_bytes)
        self._open[start] = ready
        self.files.starts.append(start)
        self.unsynced_names = True
        log.info("commit log file created physical_offset=%d", start)

    def drop_ready_file(self) -> None:
        """Delete the file that was created in advance; a clean shutdown does this."""
        ready, self._ready = self._ready, None
        if ready is not None and ready.path == self.files.path(self.files.end):
            self._disk.delete(ready.path)

    def delete_file(self, start: int) -> DiskFile | None:
        """Unlink a file; slices in use stay readable until they are released. Raises OSError."""
        self._disk.delete(self.files.path(start))
        return self._forget(start)

    def _forget(self, start: int) -> DiskFile | None:
        self.files.starts.remove(start)
        self.views.pop(start, None)
        return self._open.pop(start, None)

    def truncate(self, physical_offset: int) -> None:
        """Truncate the log: delete later files and overwrite the rest of this file with zeros."""
        self.drop_ready_file()
        start = self.files.start_of(physical_offset)
        end = min(self.appended, start + self.file_bytes)
        self._delete_from(physical_offset)
        # Later files first, durably: they must not reappear behind a shorter one.
        self._disk.sync_directory(self.files.directory)
        if start in self.files.starts:
            # Old bytes may contain complete records: a later crash must not find them behind new ones.
            for position in range(physical_offset, end, ZEROS_BYTES):
                length = min(ZEROS_BYTES, end - position)
                self.file(start).write([bytes(length)], position - start)
            self.file(start).sync()
        self.appended = physical_offset

    def end_at(self, physical_offset: int, *, wipe: bool) -> None:
        """Set the log's end during recovery, before any file is mapped; `wipe` clears the bytes behind it."""
        self._delete_from(physical_offset)
        start = self.files.start_of(physical_offset)
        if wipe and start in self.files.starts:
            path = self.files.path(start)
            self._disk.create(path, physical_offset - start).close()
            self._disk.create(path, self.file_bytes).close()
        self.appended = physical_offset

    def _delete_from(self, physical_offset: int) -> None:
        for start in [start for start in self.files.starts if start >= physical_offset]:
            self.delete_file(start)

    def sync(self, physical_from: int, physical_to: int) -> None:
        """Make a range durable, new names included. The flush thread. Raises OSError."""
        if self.unsynced_names:
            self.unsynced_names = False  # before the sync: a file may be created meanwhile
            try:
                self._disk.sync_directory(self.files.directory)
                self._disk.sync_directory(self.files.directory.parent)
            except OSError:
                self.unsynced_names = True
                raise
        for start in range(self.files.start_of(physical_from), physical_to, self.file_bytes):
            if start in self.files.starts:
                self.file(start).sync()

    # Appending: under the store's lock

    def append(
        self, messages: Sequence[PutMessage], queues: QueueTable, now_ms: int, *, together: bool = False
    ) -> list[PutResult]:
        """Append all messages with one write per file. Results are in order; no message is stored partly.

        With `together`, one refusal refuses all messages for the same file (see `MessageStore.append`).
        A full disk refuses; any other OSError is raised, and the file's contents are then unknown.
        """
        results: list[PutResult] = []
        if self._settings.append_crc_property:
            messages = [msgspec.structs.replace(m, properties=with_crc_room(m.properties)) for m in messages]
        # Store times never decrease along the log, even if the clock does.
        timestamp = self.last_timestamp = max(now_ms, self.last_timestamp)
        while len(results) < len(messages):
            try:
                rest = messages[len(results) :] if results else messages
                parts, end, placed = self._lay_out(rest, queues, timestamp)
                if together and Refused in map(type, placed):
                    parts, placed = [], refuse_all(placed)
                self._write(parts, end, placed)
                results += placed
            except DiskFull as error:
                refused = Refused(PutStatus.SERVICE_NOT_AVAILABLE, str(error))
                results += [refused] * (len(messages) - len(results))
        return results

    def _lay_out(
        self, messages: Sequence[PutMessage], queues: QueueTable, timestamp: int
    ) -> tuple[list[Part], int, list[PutResult]]:
        """Return the parts to write, up to the end of the current file, their end offset, and the results."""
        parts: list[Part] = []
        placed: list[PutResult] = []
        position, limit = self.appended, self._limit()
        heads, store_host = self._heads, self._store_host
        code_of, forbidden, body_bytes_max = known_codes.get, self._forbidden, self.message_bytes_max
        for message in messages:
            body, properties, light = message.body, message.properties, None
            try:
                queue = message.queue
                if queue is None or queue.is_forgotten:
                    queue = queues[message.topic, message.queue_id]
                    if message.light_queue:
                        light, properties = _in_light_queue(message, queues)
                pack, flags, head_bytes = heads[len(message.born_host)]
            except (ValueError, KeyError) as error:
                placed.append(Refused(PutStatus.MESSAGE_ILLEGAL, f"illegal topic, queue or host: {error}"))
                continue
            topic, body_bytes, properties_bytes = queue.topic_part, len(body), len(properties)
            size = head_bytes + body_bytes + len(topic) + 2 + properties_bytes
            if (
                position + size > limit
                or properties_bytes > PROPERTIES_BYTES_MAX
                or body_bytes > body_bytes_max
                or forbidden in properties
            ):
                refused = self._refuse(body_bytes, size, properties)
                if refused is not None:
                    placed.append(refused)
                    continue
                if placed:
                    break  # the rest goes to the next file
                self.roll()
                position, limit = self.appended, self._limit()
            sys_flag = message.sys_flag & ~HOST_V6_MASK | flags
            if sys_flag & NO_ENTRY_MASK:  # half message or rollback: no entry, no queue offset
                if sys_flag & INNER_BATCH:
                    placed.append(Refused(PutStatus.MESSAGE_ILLEGAL, "an inner batch is sent as a batch"))
                    continue
                queue_offset = 0
            else:
                queue_offset = queue.next_offset
                queue.next_offset = queue_offset + 1
            try:
                head = pack(
                    size, queue.magic, crc32(body) & CRC_MASK, message.queue_id, message.flag, queue_offset,
                    position, sys_flag, message.born_timestamp, message.born_host, timestamp, store_host,
                    message.reconsume_times, message.prepared_transaction_offset, body_bytes,
                )  # fmt: skip
            except struct.error as error:
                queue.next_offset = queue_offset if not sys_flag & NO_ENTRY_MASK else queue.next_offset
                placed.append(Refused(PutStatus.MESSAGE_ILLEGAL, f"a number is out of range: {error}"))
                continue
            parts += (head, body, topic, LENGTHS[properties_bytes], properties)
            tags_at = properties.rfind(TAGS_MARKER)
            code = code_of(properties[tags_at:]) if tags_at >= 0 or properties.startswith(TAGS_NAME) else 0
            if queue.is_special:
                code = self.schedule_tags_code(properties, timestamp) if queue.is_schedule else code
                sys_flag |= LONE_UNIT if queue.is_batched else 0
            if code is None:
                code = tags_code(properties)
            row = AppendedRecord(queue, queue_offset, position, size, code, timestamp, sys_flag, properties)
            placed.append(row)
            if light is not None:
                row.take_light(light)
            position += size
        return parts, position, placed

    def append_laid_out(self, lay_out: LayOut, now_ms: int) -> LaidOut | None:
        """Append what `lay_out` makes for the rest of the current file; None if it makes nothing.

        Raises DiskFull, OSError.
        """
        if self._settings.append_crc_property:
            return None
        timestamp = self.last_timestamp = max(now_ms, self.last_timestamp)
        laid_out = lay_out(self.appended, self._limit(), timestamp)
        if not laid_out.results:
            return None
        self._write([laid_out.data], laid_out.end, laid_out.results)
        return laid_out

    def append_batches(
        self, batches: Sequence[ClientBatch], queues: QueueTable, now_ms: int
    ) -> list[AppendedBatch | list[Refused]]:
        """Append clients' batches with one write per file; results are in order.

        All messages of a batch go to one file, or none is stored and the batch has one refusal.
        """
        results: list[AppendedBatch | list[Refused]] = []
        timestamp = self.last_timestamp = max(now_ms, self.last_timestamp)
        while len(results) < len(batches):
            try:
                self._append_runs(batches[len(results) :], results, queues, timestamp)
            except DiskFull as error:
                refused = Refused(PutStatus.SERVICE_NOT_AVAILABLE, str(error))
                results += [[refused] for _ in batches[len(results) :]]
        return results

    def _append_runs(
        self,
        batches: Sequence[ClientBatch],
        results: list[AppendedBatch | list[Refused]],
        queues: QueueTable,
        timestamp: int,
    ) -> None:
        """Append batches, up to the end of the current file."""
        parts: list[Part] = []
        placed: list[AppendedBatch | list[Refused]] = []
        position = self.appended
        for each in batches:
            records = self._records(each, queues, timestamp)
            if isinstance(records, Refused):
                placed.append([records])
                continue
            if position + records.total_bytes > self._limit():
                if placed:
                    break  # the rest goes to the next file
                self.roll()
                position = self.appended
            run = records.run
            try:
                parts += records.parts(position, self._store_host)
            except struct.error as error:
                placed.append([Refused(PutStatus.MESSAGE_ILLEGAL, f"a number is out of range: {error}")])
                continue
            run.queue.next_offset += run.message_count
            placed.append(run)
            position = run.end
        self._write(parts, position, placed)
        results += placed

    def _records(
        self, each: ClientBatch, queues: QueueTable, timestamp: int
    ) -> RecordColumns | InnerBatchRecord | Refused:
        message, batch = each
        try:
            queue = message.queue
            if queue is None or queue.is_forgotten:
                queue = queues[message.topic, message.queue_id]
            _, flags, _ = self._heads[len(message.born_host)]
        except (ValueError, KeyError) as error:
            return Refused(PutStatus.MESSAGE_ILLEGAL, f"illegal topic, queue or host: {error}")
        sys_flag = message.sys_flag & ~HOST_V6_MASK | flags
        if isinstance(batch, int):
            return self._batches.inner_record(message, batch, queue, sys_flag, timestamp)
        return self._batches.records(message, batch, queue, sys_flag, timestamp)

    def schedule_tags_code(self, properties: bytes, timestamp: int) -> int:
        delay_ms = self._usual_delays_ms.get(find_delay_level(properties) or b"")
        if delay_ms is None:
            return schedule_tags_code(properties, timestamp, self._delays_ms)
        return timestamp + delay_ms

    def _limit(self) -> int:
        """Return the limit of records in the current file: the last 8 bytes are reserved for the blank."""
        return self.files.end - BLANK_BYTES if self.files.starts else self.appended

    def _refuse(self, body_bytes: int, size: int, properties: bytes) -> Refused | None:
        """Return the refusal of a record that does not fit, or None if the next file has room."""
        if len(properties) > PROPERTIES_BYTES_MAX:
            reason = f"properties have {len(properties)} bytes, {PROPERTIES_BYTES_MAX} are allowed"
            return Refused(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason)
        if self._forbidden in properties:
            return NUL_REFUSED
        if body_bytes > self.message_bytes_max:
            reason = f"body has {body_bytes} bytes, {self.message_bytes_max} are allowed"
            return Refused(PutStatus.MESSAGE_ILLEGAL, reason)
        most = min(self.message_bytes_max + RECORD_BYTES_EXTRA, self.file_bytes - BLANK_BYTES)
        if size > most:
            return Refused(PutStatus.MESSAGE_ILLEGAL, f"record has {size} bytes, {most} are allowed")
        return None

    def _write(self, parts: list[Part], end: int, placed: Placed) -> None:
        """Write the batch, or release its queue offsets and raise DiskFull or OSError."""
        if not parts:
            return
        if self._settings.append_crc_property:
            fill_in_crc(parts)
        start = self.files.start_of(self.appended)
        length = end - self.appended
        joined = length <= len(parts) * JOINED_PART_BYTES_MAX
        file = self.file(start)
        try:
            data = [b"".join(parts)] if joined else parts
            if self._pads and end > self._padded and length <= PADDED_WRITE_BYTES_MAX:
                data = [*data, self._padding(end)]
            file.write(data, self.appended - start)
        except (DiskFull, OSError):
            release_queue_offsets(placed)
            with suppress(DiskFull, OSError):
                # Partly written records must not reappear behind later ones.
                file.write([bytes(length)], self.appended - start)
            raise
        self.appended = end

    def _padding(self, end: int) -> bytes:
        """Return zeros to write behind small records that are each flushed separately.

        Flushing blocks that were allocated but never written takes a journal entry of the file system and
        twice the time. Padding pays this once for many flushes.
        """
        self._padded = min(-(-end // PADDING_BYTES) * PADDING_BYTES, self.files.end)
        return bytes(self._padded - end)

    def roll(self) -> None:
        """End the current file with a blank and start the next. Raises DiskFull, OSError."""
        before = self.files.end
        # The next file first: recovery must never find a full last file without a successor.
        self.add_file()
        if self.appended < before:
            start = before - self.file_bytes
            blank = BLANK.pack(before - self.appended, MAGIC_BLANK)
            try:
                self.file(start).write([blank], self.appended - start)
            except (DiskFull, OSError):
                self._forget(before)
                with suppress(OSError):
                    self._disk.delete(self.files.path(before))
                raise
            self.appended = before

    # Raw access for replicas

    def append_raw(self, physical_offset: int, data: bytes | memoryview) -> None:
        """Append bytes of another log unchanged. Raises OffsetOutOfRange if they do not continue this log."""
        if not self.files.starts and self.appended == 0:
            self.appended = physical_offset
        if physical_offset != self.appended:
            raise OffsetOutOfRange(physical_offset, self.min_offset, self.appended)
        rest = memoryview(data)
        while rest:
            start = self.files.start_of(self.appended)
            if start not in self.files.starts:
                self.add_file()
            part = rest[: start + self.file_bytes - self.appended]
            self.file(start).write([part], self.appended - start)
            self.appended += len(part)
            rest = rest[len(part) :]


def _in_light_queue(message: PutMessage, queues: QueueTable) -> tuple[ConsumeQueue, bytes]:
    """Return the light queue of a message, and its properties with its place there. Raises ValueError."""
    queue = queues[message.light_queue, LIGHT_QUEUE_ID]
    # Before the others: room for a checksum must stay at the end.
    return queue, light_properties(message.light_queue, queue.next_offset) + message.properties
