"""Copying parts of files, by the system where it can (it then shares blocks), and telling how far it is."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from skylark.errors import BadStoreFile
from skylark.store.disk import RealDisk

COPY_BYTES = 8 << 20
CANNOT_COPY_INSIDE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)

Progress = Callable[[int, int], None]


class FileCopy:
    """Copies one part after the other. `progress` is told bytes done and, about, to do."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress or (lambda done, total: None)
        self._disk = RealDisk()
        self._total_bytes = 0
        self.copied_bytes = 0

    def expect(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._progress(0, total_bytes)

    def copy(
        self,
        source: int,
        path: Path,
        length: int,
        part: tuple[int, int],
        *,
        has_holes: bool = False,
        head: bytes = b"",
    ) -> None:
        """Bring a part of an open file over, durably, into a file of this length; then `head`, to its begin.

        A file that is there is written to, unless it is a hard link. Raises BadStoreFile, OSError.
        """
        first, last = part
        if path.exists() and path.stat().st_nlink > 1:
            path.unlink()  # the original itself, by another name
            first = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, length)
            for low, high in stretches(source, first, last) if has_holes else [(first, last)]:
                self._copy_range(source, descriptor, low, high, path)
            if head:
                os.fsync(descriptor)
                os.pwrite(descriptor, head, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._disk.sync_directory(path.parent)

    def _copy_range(self, source: int, target: int, low: int, high: int, path: Path) -> None:
        while low < high:
            copied = _copy_some(source, target, low, min(COPY_BYTES, high - low))
            if not copied:
                raise BadStoreFile(path, f"its original ends at byte {low} instead of {high}")
            low += copied
            self.count(copied)

    def count(self, copied: int) -> None:
        """Take note of bytes that are copied."""
        self.copied_bytes += copied
        self._total_bytes = max(self._total_bytes, self.copied_bytes)
        self._progress(self.copied_bytes, self._total_bytes)

    def keep_only(self, directory: Path, names: set[str]) -> None:
        """Delete the files of a directory that have no other names."""
        gone = [name for name in self._disk.files(directory) if name not in names]
        for name in gone:
            self._disk.delete(directory / name)
        if gone:
            self._disk.sync_directory(directory)


@contextmanager
def reading(path: Path) -> Iterator[int]:
    """A descriptor of a file. Raises FileNotFoundError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_part(path: Path, length: int = -1, position: int = 0) -> bytes:
    """What is there; nothing if the file is missing. Raises OSError."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(length)
    except FileNotFoundError:
        return b""


def stretches(descriptor: int, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Where a file has data; all of it where the system cannot tell."""
    while low < high:
        try:
            low = os.lseek(descriptor, low, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            yield low, high
            return
        hole = min(os.lseek(descriptor, low, os.SEEK_HOLE), high)
        if low < hole:
            yield low, hole
        low = hole


def _copy_some(source: int, target: int, position: int, length: int) -> int:
    """Returns how much was copied; 0 at the end of the file."""
    copy = getattr(os, "copy_file_range", None)
    if copy is not None:
        try:
            copied: int = copy(source, target, length, position, position)
        except OSError as error:
            if error.errno not in CANNOT_COPY_INSIDE:
                raise
        else:
            if copied:
                return copied
    return os.pwrite(target, os.pread(source, length, position), position)
