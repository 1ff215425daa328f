"""A disk in memory that can lose power, fill up, fail and stall, for tests of everything above `Disk`.

A write is visible at once and on the medium only after `sync` of its file. Names (create, delete) are on
the medium only after `sync_directory` of the directory that holds them, and so is a directory's own name.
What was never synced may or may not survive a power loss, in any order, page by page; a page may be torn
between two of its versions at a sector's edge. Equal seeds and equal calls give equal disks.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from skylark.clock import Clock
from skylark.errors import DiskFull, StoreLocked
from skylark.store.disk import DiskFile, DiskLock, Part
from tests.support.clock import ManualClock
from tests.support.simulated_medium import END, PAGE_BYTES, Directory, Inode, Node, PowerLoss


class Kind(Enum):
    """What was asked of the disk. All but reads are numbered: a crash may follow each of them."""

    CREATE = "create"
    WRITE = "write"
    SYNC = "sync"
    SYNC_DIRECTORY = "sync_directory"
    ALLOCATE = "allocate"
    DELETE = "delete"
    READ = "read"


class Operation(NamedTuple):
    """One finished operation; numbers start at 1."""

    number: int
    kind: Kind
    path: Path


class Crash(BaseException):
    """The machine stopped after this operation. Not an Exception: no handler may take it for an error."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(f"crash after operation {operation.number}, {operation.kind.value} {operation.path}")
        self.operation = operation


@dataclass
class Fault:
    """Fail the `nth` matching operation from now on, once or `always` from there.

    A failed write leaves a prefix behind. A failed sync loses what it should have written for good, though
    reads still show it: the next sync succeeds all the same, as the kernel's does. `short` makes a read give
    fewer bytes instead of failing.
    """

    kind: Kind
    nth: int = 1
    always: bool = False
    error: int = errno.EIO
    path_contains: str = ""
    short: bool = False

    def strikes(self, kind: Kind, path: Path) -> bool:
        if kind is not self.kind or self.path_contains not in str(path):
            return False
        self.nth -= 1
        return self.nth == 0 or (self.always and self.nth < 0)


class _SimulatedFile:
    def __init__(self, disk: SimulatedDisk, path: Path, inode: Inode, *, writable: bool) -> None:
        self.path = path
        self.length = inode.length
        self._disk = disk
        self._inode = inode
        self._writable = writable
        self._is_open = True
        self._view: memoryview | None = None

    def _check(self, *, writes: bool) -> None:
        if not self._is_open or (writes and not self._writable):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))

    def write(self, parts: Sequence[Part], position: int) -> None:
        self._check(writes=True)
        self._disk.write(self.path, self._inode, b"".join(parts), position)

    def read(self, length: int, position: int) -> bytes:
        self._check(writes=False)
        return self._disk.read(self.path, self._inode, length, position)

    def view(self) -> memoryview:
        self._check(writes=False)
        if self._view is None:
            if not self.length:
                raise ValueError("cannot mmap an empty file")
            self._view = memoryview(self._inode.data)[: self.length].toreadonly()
        return self._view

    def sync(self) -> None:
        self._check(writes=False)
        self._disk.sync(self.path, self._inode)

    def allocate(self, position: int, length: int) -> None:
        self._check(writes=True)
        self._disk.allocate(self.path, self._inode, position, min(length, self.length - position))

    def read_resident(self, length: int, position: int) -> bytes | None:
        return self.read(length, position) if self._disk.resident else None

    def is_resident(self, length: int, position: int) -> bool:
        return self.read_resident(length, position) is not None

    def is_zero_from(self, position: int) -> bool:
        return not self.read(max(self.length - position, 0), position).strip(b"\0")

    def close(self) -> None:
        self._is_open = False


class _SimulatedLock:
    def __init__(self, locked: set[Path], path: Path) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)


class SimulatedDisk:
    """Implements `skylark.store.disk.Disk`; a root directory is there from the start.

    `observer` is called after each numbered operation, for tests that look at every possible crash in one
    run. `hold_sync`, an Event, blocks every sync until it is set; every sync sleeps for `sync_latency_s`.
    `used` is what `used_ratio` answers; None means by capacity.
    """

    def __init__(
        self, *, seed: int = 0, clock: Clock | None = None, capacity_bytes: int | None = None
    ) -> None:
        self.clock: Clock = clock or ManualClock()
        self.capacity_bytes = capacity_bytes
        self.used: float | None = None
        self.resident = True
        self.sync_latency_s = 0.0
        self.hold_sync: threading.Event | None = None
        self.observer: Callable[[Operation], None] | None = None
        self.operations = 0
        self.counts: Counter[Kind] = Counter()
        self.bytes_written = 0
        self._seed = seed
        self._rng = random.Random(seed)
        self._root = Directory()
        self._faults: list[Fault] = []
        self.crash_at = END
        self._crashed: Crash | None = None
        self._locked: set[Path] = set()
        self._mutex = threading.RLock()

    # Playing faults

    def plan(self, *faults: Fault) -> None:
        """Add faults to come; each counts from now."""
        self._faults.extend(faults)

    def heal(self) -> None:
        """Forget all faults that were planned."""
        self._faults.clear()

    def crash_after(self, number: int) -> None:
        """Raise Crash when operation `number` is done, and at every operation tried after it."""
        self.crash_at = number

    def crash_image(self, rng: random.Random) -> SimulatedDisk:
        """The disk as a power loss at this moment may leave it; `rng` chooses among the possibilities."""
        with self._mutex:
            loss = PowerLoss(rng, self.operations)
            return self._with_root(self._root.after(loss))

    def kill_image(self) -> SimulatedDisk:
        """The disk as the end of the process leaves it: all is readable, and still only durable if synced."""
        with self._mutex:
            image = self._with_root(self._root.copy())
            image.operations = self.operations
            return image

    def _with_root(self, root: Directory) -> SimulatedDisk:
        image = SimulatedDisk(seed=self._seed + 1, clock=self.clock, capacity_bytes=self.capacity_bytes)
        image._root = root
        return image

    # Looking at the disk and damaging it, past all counters

    def paths(self, directory: Path = Path("/")) -> list[Path]:
        """All files below a directory, sorted."""
        return sorted(path for path, _ in self._walk(directory))

    def content(self, path: Path) -> bytes:
        inode = self._inode(path)
        return bytes(inode.data[: inode.length])

    def overwrite(self, path: Path, position: int, data: bytes) -> None:
        """Change bytes on the medium behind the store's back."""
        inode = self._inode(path)
        assert position + len(data) <= inode.length
        self._settled(inode, lambda: inode.put(0, data, position))

    def flip_bit(self, path: Path, position: int, bit: int = 0) -> None:
        self.overwrite(path, position, bytes((self.content(path)[position] ^ 1 << bit,)))

    def cut(self, path: Path, length: int) -> None:
        """Give the file another length on the medium."""
        inode = self._inode(path)
        self._settled(inode, lambda: inode.resize(0, length))

    def lose(self, path: Path) -> None:
        """Make the file or directory vanish."""
        directory = self._directory(path.parent)
        for names in (directory.entries, directory.durable, directory.changes):
            names.pop(path.name, None)

    def make_directory(self, path: Path) -> None:
        """Make a directory that is there to stay, as an administrator makes the store's root."""
        directory = self._root
        for name in _parts(path):
            node = directory.entries.setdefault(name, Directory())
            directory.durable[name] = node
            assert isinstance(node, Directory)
            directory = node

    @staticmethod
    def _settled(inode: Inode, change: Callable[[], None]) -> None:
        inode.settle(END)
        change()
        inode.settle(END)

    # Disk

    def create(self, path: Path, length: int) -> DiskFile:
        with self._mutex:
            operation = self._begin(Kind.CREATE, path)
            directory = self._make_parents(operation.number, path.parent)
            inode = directory.entries.get(path.name)
            if isinstance(inode, Directory):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            if inode is None:
                inode = Inode(self.clock.now_ms())
                directory.set(operation.number, path.name, inode)
            if inode.length != length:
                inode.resize(operation.number, length)
            self._finish(operation)
            return _SimulatedFile(self, path, inode, writable=True)

    def open(self, path: Path, *, writable: bool = False) -> DiskFile:
        return _SimulatedFile(self, path, self._inode(path), writable=writable)

    def length(self, path: Path) -> int:
        return self._inode(path).length

    def modified_ms(self, path: Path) -> int:
        return self._inode(path).modified_ms

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def files(self, directory: Path) -> list[str]:
        return self._names(directory, Inode)

    def directories(self, directory: Path) -> list[str]:
        return self._names(directory, Directory)

    def delete(self, path: Path) -> None:
        with self._mutex:
            if self._find(path) is None:
                return
            operation = self._begin(Kind.DELETE, path)
            self._inode(path)
            self._directory(path.parent).set(operation.number, path.name, None)
            self._finish(operation)

    def delete_directory(self, path: Path) -> None:
        with self._mutex:
            for name in self.directories(path):
                self.delete_directory(path / name)
            for name in self.files(path):
                self.delete(path / name)
            if self.exists(path):
                operation = self._begin(Kind.DELETE, path)
                self._directory(path.parent).set(operation.number, path.name, None)
                self._finish(operation)

    def sync_directory(self, path: Path) -> None:
        with self._mutex:
            operation = self._begin(Kind.SYNC_DIRECTORY, path)
            self._directory(path).settle()
            self._finish(operation)

    def used_ratio(self, path: Path) -> float:
        if self.used is not None:
            return self.used
        return self._used_bytes() / self.capacity_bytes if self.capacity_bytes else 0.0

    def lock(self, path: Path) -> DiskLock:
        with self._mutex:
            if not self.exists(path):
                inode = Inode(self.clock.now_ms())
                inode.resize(self.operations, 4)
                inode.put(self.operations, b"lock", 0)
                self._make_parents(self.operations, path.parent).set(self.operations, path.name, inode)
            return self.lock_directory(path)

    def lock_directory(self, path: Path) -> DiskLock:
        with self._mutex:
            if path in self._locked:
                raise StoreLocked(path)
            self._locked.add(path)
            return _SimulatedLock(self._locked, path)

    # What open files do

    def write(self, path: Path, inode: Inode, data: bytes, position: int) -> None:
        with self._mutex:
            assert 0 <= position <= position + len(data) <= inode.length, "write beyond the file's end"
            try:
                operation = self._begin(Kind.WRITE, path)
            except OSError:
                self._put(inode, data[: self._rng.randrange(len(data) + 1)], position)
                raise
            fitting = self._fitting(inode, position, len(data))
            self._put(inode, data[:fitting], position)
            if fitting < len(data):
                raise DiskFull(path, os.strerror(errno.ENOSPC))
            self._finish(operation)

    def _put(self, inode: Inode, data: bytes, position: int) -> None:
        inode.put(self.operations, data, position)
        inode.allocated.update(_pages(position, len(data)))
        inode.modified_ms = self.clock.now_ms()
        self.bytes_written += len(data)

    def read(self, path: Path, inode: Inode, length: int, position: int) -> bytes:
        with self._mutex:
            data = bytes(inode.data[position : min(position + length, inode.length)])
            if self._strike(Kind.READ, path):
                return data[: self._rng.randrange(len(data))] if data else data
            return data

    def sync(self, path: Path, inode: Inode) -> None:
        with self._mutex:
            try:
                operation = self._begin(Kind.SYNC, path)
            except OSError:
                inode.lose(self.operations)
                raise
        if self.hold_sync is not None:
            self.hold_sync.wait()
        if self.sync_latency_s:
            time.sleep(self.sync_latency_s)
        with self._mutex:
            inode.settle(operation.number)
            self._finish(operation)

    def allocate(self, path: Path, inode: Inode, position: int, length: int) -> None:
        with self._mutex:
            operation = self._begin(Kind.ALLOCATE, path)
            if self._fitting(inode, position, length) < length:
                raise DiskFull(path, os.strerror(errno.ENOSPC))
            inode.allocated.update(_pages(position, length))
            self._finish(operation)

    # Inside

    def _begin(self, kind: Kind, path: Path) -> Operation:
        if self._crashed:
            raise self._crashed
        self.operations += 1
        self._strike(kind, path)
        return Operation(self.operations, kind, path)

    def _strike(self, kind: Kind, path: Path) -> bool:
        """Raise the error planned for this operation; say whether a read is to be short."""
        self.counts[kind] += 1
        for fault in self._faults:
            if fault.strikes(kind, path):
                if fault.short:
                    return True
                if fault.error == errno.ENOSPC:
                    raise DiskFull(path, os.strerror(fault.error))
                raise OSError(fault.error, os.strerror(fault.error), str(path))
        return False

    def _finish(self, operation: Operation) -> None:
        if self.observer is not None:
            self.observer(operation)
        if operation.number >= self.crash_at:
            self._crashed = Crash(operation)
            raise self._crashed

    def _used_bytes(self) -> int:
        return sum(len(inode.allocated) for _, inode in self._walk(Path("/"))) * PAGE_BYTES

    def _fitting(self, inode: Inode, position: int, length: int) -> int:
        """How many bytes of the range have room on the disk."""
        if self.capacity_bytes is None:
            return length
        free = (self.capacity_bytes - self._used_bytes()) // PAGE_BYTES
        for page in _pages(position, length):
            if page not in inode.allocated:
                free -= 1
            if free < 0:
                return max(0, page * PAGE_BYTES - position)
        return length

    def _find(self, path: Path) -> Node | None:
        node: Node | None = self._root
        for name in _parts(path):
            if not isinstance(node, Directory):
                return None
            node = node.entries.get(name)
        return node

    def _inode(self, path: Path) -> Inode:
        node = self._find(path)
        if isinstance(node, Inode):
            return node
        error = errno.ENOENT if node is None else errno.EISDIR
        raise OSError(error, os.strerror(error), str(path))

    def _directory(self, path: Path) -> Directory:
        node = self._find(path)
        if isinstance(node, Directory):
            return node
        error = errno.ENOENT if node is None else errno.ENOTDIR
        raise OSError(error, os.strerror(error), str(path))

    def _make_parents(self, number: int, path: Path) -> Directory:
        directory = self._root
        for name in _parts(path):
            if name not in directory.entries:
                directory.set(number, name, Directory())
            node = directory.entries[name]
            if not isinstance(node, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            directory = node
        return directory

    def _names(self, directory: Path, kind: type[Node]) -> list[str]:
        node = self._find(directory)
        if isinstance(node, Inode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
        return sorted(name for name, entry in node.entries.items() if isinstance(entry, kind)) if node else []

    def _walk(self, path: Path) -> Iterator[tuple[Path, Inode]]:
        node = self._find(path)
        for name, entry in list(node.entries.items()) if isinstance(node, Directory) else []:
            if isinstance(entry, Inode):
                yield path / name, entry
            else:
                yield from self._walk(path / name)


def _parts(path: Path) -> tuple[str, ...]:
    return path.parts[1:] if path.is_absolute() else path.parts


def _pages(position: int, length: int) -> range:
    return range(position // PAGE_BYTES, -(-(position + length) // PAGE_BYTES))
