"""All file IO of the store, behind `Disk` and `DiskFile`, so that tests can simulate every fault.

Nothing is written through a map: a full disk is an error code, never a SIGBUS.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from skylark.errors import BadStoreFile, DiskFull, StoreLocked

Part = bytes | bytearray | memoryview

# IOV_MAX of pwritev.
WRITE_PARTS_MAX = 1024
PAGE_BYTES = 4096
# Target of reads that only probe the page cache. Never read, so threads may share it; stays in the CPU cache.
_UNWANTED = memoryview(bytearray(PAGE_BYTES))

# Record locks belong to the process: a second store of this process on the same path is refused here.
_locked_here: set[Path] = set()


class DiskFile(Protocol):
    """One open file of a fixed length."""

    path: Path
    length: int

    def write(self, parts: Sequence[Part], position: int) -> None:
        """Write all parts one after the other. Raises OSError, DiskFull; a prefix may then be on disk."""

    def read(self, length: int, position: int) -> bytes:
        """Read `length` bytes, fewer only at the end of the file. Raises OSError."""

    def view(self) -> memoryview:
        """Return the file as a read-only map, created once. It lives until its last slice is released."""

    def sync(self) -> None:
        """Make everything written durable. Raises OSError."""

    def allocate(self, position: int, length: int) -> None:
        """Allocate blocks for a range, if the platform can. Raises DiskFull, OSError."""

    def read_resident(self, length: int, position: int) -> bytes | bytearray | None:
        """Return what `read` returns, or None if that would wait for the disk."""

    def is_resident(self, length: int, position: int) -> bool:
        """Return whether a range of up to 4 MiB can be read without waiting for the disk."""

    def is_zero_from(self, position: int) -> bool:
        """Return whether the file has only zeros from `position` on; holes are not read. Raises OSError."""

    def close(self) -> None:
        """Close the descriptor. Views stay valid."""


class DiskLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A directory tree. Paths are absolute or relative to the process."""

    def create(self, path: Path, length: int) -> DiskFile:
        """Create a file of zeros and its directories; an existing file gets this length."""

    def open(self, path: Path, *, writable: bool = False) -> DiskFile:
        """Raises FileNotFoundError."""

    def length(self, path: Path) -> int:
        """Raises FileNotFoundError."""

    def modified_ms(self, path: Path) -> int: ...

    def exists(self, path: Path) -> bool: ...

    def files(self, directory: Path) -> list[str]:
        """Return the sorted names of the plain files in a directory; empty if it does not exist."""

    def directories(self, directory: Path) -> list[str]:
        """Return the sorted names of the directories in a directory; empty if it does not exist."""

    def delete(self, path: Path) -> None:
        """Delete a file if it exists."""

    def delete_directory(self, path: Path) -> None:
        """Delete a directory and its contents if it exists."""

    def sync_directory(self, path: Path) -> None:
        """Make created, renamed and deleted names durable."""

    def used_ratio(self, path: Path) -> float:
        """Return the used share of the path's partition, 0 to 1. Raises OSError."""

    def lock(self, path: Path) -> DiskLock:
        """Lock the store. Raises StoreLocked."""

    def lock_directory(self, path: Path) -> DiskLock:
        """Create and lock a directory without writing into it. Raises StoreLocked."""


class _RealFile:
    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.length = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._view: memoryview | None = None

    def write(self, parts: Sequence[Part], position: int) -> None:
        if len(parts) <= WRITE_PARTS_MAX:
            self._write_some(parts, position)
            return
        for start in range(0, len(parts), WRITE_PARTS_MAX):
            position = self._write_some(parts[start : start + WRITE_PARTS_MAX], position)

    def _write_some(self, parts: Sequence[Part], position: int) -> int:
        total = sum(map(len, parts))
        try:
            written = os.pwritev(self._descriptor, parts, position)
            if written < total:
                rest = memoryview(b"".join(parts))
                while written < total:
                    written += os.pwrite(self._descriptor, rest[written:], position + written)
        except OSError as error:
            raise disk_error(error, self.path) from error
        return position + total

    def read(self, length: int, position: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        while len(data) < length:
            more = os.pread(self._descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def view(self) -> memoryview:
        if self._view is None:
            self._view = memoryview(mmap.mmap(self._descriptor, self.length, prot=mmap.PROT_READ))
        return self._view

    def sync(self) -> None:
        # macOS has no fdatasync; its fsync is the nearest thing that os offers.
        getattr(os, "fdatasync", os.fsync)(self._descriptor)

    def allocate(self, position: int, length: int) -> None:
        allocate = getattr(os, "posix_fallocate", None)
        if allocate is None:
            return
        try:
            allocate(self._descriptor, position, min(length, self.length - position))
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                return  # not supported by the file system: writes report ENOSPC
            raise disk_error(error, self.path) from error

    def read_resident(self, length: int, position: int) -> bytes | bytearray | None:
        data = bytearray(length)
        return data if self._read_at_once([data], position) == length else None

    def is_resident(self, length: int, position: int) -> bool:
        # Probe with a read: cachestat also counts pages that are still being read from disk.
        whole, rest = divmod(length, len(_UNWANTED))
        return self._read_at_once([_UNWANTED] * whole + [_UNWANTED[:rest]], position) == length

    def _read_at_once(self, parts: Sequence[bytearray | memoryview], position: int) -> int:
        """Read without waiting for the disk, if the platform can; return the number of bytes."""
        try:
            return os.preadv(self._descriptor, parts, position, getattr(os, "RWF_NOWAIT", 0))
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
                return os.preadv(self._descriptor, parts, position)
            raise

    def is_zero_from(self, position: int) -> bool:
        seek_data = getattr(os, "SEEK_DATA", None)
        while position < self.length:
            if seek_data is not None:
                try:
                    position = os.lseek(self._descriptor, position, seek_data)
                except OSError as error:
                    if error.errno == errno.ENXIO:
                        return True
                    seek_data = None  # not supported by the file system: read everything
            data = os.pread(self._descriptor, PAGE_BYTES - position % PAGE_BYTES, position)
            if not data or data.strip(b"\0"):
                return not data
            position += len(data)
        return True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class _RealLock:
    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)
        _locked_here.discard(self._path)


class RealDisk:
    """The machine's file system."""

    def create(self, path: Path, length: int) -> DiskFile:
        descriptor = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if os.fstat(descriptor).st_size != length:
                os.ftruncate(descriptor, length)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise disk_error(error, path) from error
        return _RealFile(path, descriptor)

    def open(self, path: Path, *, writable: bool = False) -> DiskFile:
        return _RealFile(path, os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC))

    def length(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def exists(self, path: Path) -> bool:
        return path.exists()

    def files(self, directory: Path) -> list[str]:
        return _names(directory, files=True)

    def directories(self, directory: Path) -> list[str]:
        return _names(directory, files=False)

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def delete_directory(self, path: Path) -> None:
        if path.exists():
            shutil.rmtree(path)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def used_ratio(self, path: Path) -> float:
        usage = os.statvfs(path)
        used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
        usable = usage.f_bavail * usage.f_frsize
        # Whole percents, rounded up, as in RocketMQ.
        return -(-100 * used // (used + usable)) / 100 if used + usable else 0.0

    def lock(self, path: Path) -> DiskLock:
        """Lock byte 0 of the lock file, as RocketMQ does."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path = path.resolve()
        if path in _locked_here:
            raise StoreLocked(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(descriptor)
            raise StoreLocked(path) from error
        os.pwrite(descriptor, b"lock", 0)
        _locked_here.add(path)
        return _RealLock(path, descriptor)

    def lock_directory(self, path: Path) -> DiskLock:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise StoreLocked(path) from error
        return _RealLock(path, descriptor)


def _names(directory: Path, *, files: bool) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_file() == files)
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise BadStoreFile(directory, "not a directory") from error


def disk_error(error: OSError, path: Path) -> OSError | DiskFull:
    """Return DiskFull for errors that may pass: full disk, quota, file-size limit, too many open files."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE):
        return DiskFull(path, error.strerror or "no space left")
    return error
