"""Sequences of fixed-size files named by their start offsets, and an LRU cache of open files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from skylark.errors import BadStoreFile
from skylark.store.disk import Disk, DiskFile

NAME_DIGITS = 20


def file_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


class OpenFiles:
    """LRU cache of open files, by directory and start. Any thread.

    An evicted file is not closed explicitly: it stays open until its last reader releases it.
    """

    def __init__(self, disk: Disk, open_files_max: int, *, writable: bool) -> None:
        self._disk = disk
        self._writable = writable
        self._open_files_max = open_files_max
        self._files: OrderedDict[tuple[Path, int], DiskFile] = OrderedDict()
        self._lock = threading.Lock()
        self._forgotten = 0
        self.changing = threading.Lock()
        """Held while files are written that another thread might delete."""

    def get(self, directory: Path, start: int, create_bytes: int | None = None) -> DiskFile:
        """Return the open file; `create_bytes` creates a missing one. Raises FileNotFoundError, DiskFull."""
        key = directory, start
        with self._lock:
            file = self._files.get(key)
            if file is not None:
                self._files.move_to_end(key)
                return file
            forgotten = self._forgotten
        # Not under the lock: other threads would wait for the disk.
        path = directory / file_name(start)
        if create_bytes is not None:
            file = self._disk.create(path, create_bytes)
        else:
            file = self._disk.open(path, writable=self._writable)
        with self._lock:
            if forgotten == self._forgotten:  # else the file may have been deleted and created again
                file = self._files.setdefault(key, file)
                if len(self._files) > self._open_files_max:
                    self._files.popitem(last=False)
        return file

    def peek(self, directory: Path, start: int) -> DiskFile | None:
        """Return the file if it is open, else None."""
        return self._files.get((directory, start))

    def forget(self, directory: Path, start: int) -> None:
        with self._lock:
            self._forgotten += 1
            self._files.pop((directory, start), None)


class MappedFileQueue:
    """The files of one directory. Starts are multiples of the file size; files may be missing in between."""

    def __init__(self, disk: Disk, directory: Path, file_bytes: int) -> None:
        self.disk = disk
        self.directory = directory
        self.file_bytes = file_bytes
        self.starts: list[int] = []

    def load(self) -> list[BadStoreFile]:
        """List the directory; return files with an invalid name or length, which are not changed."""
        self.starts = []
        problems = []
        for name in self.disk.files(self.directory):
            path = self.directory / name
            if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
                problems.append(BadStoreFile(path, "its name is not an offset of 20 digits"))
            elif int(name) % self.file_bytes:
                problems.append(BadStoreFile(path, f"its name is not a multiple of {self.file_bytes} bytes"))
            else:
                try:
                    length = self.disk.length(path)
                except FileNotFoundError:
                    continue  # deleted by another process after the directory was listed
                self.starts.append(int(name))
                if length != self.file_bytes:
                    problems.append(BadStoreFile(path, f"has {length} bytes instead of {self.file_bytes}"))
        return problems

    def path(self, start: int) -> Path:
        return self.directory / file_name(start)

    def start_of(self, position: int) -> int:
        return position - position % self.file_bytes

    def holes(self) -> Iterator[tuple[int, int]]:
        """Yield ranges (from, to) of missing files between the first and the last file."""
        for before, after in zip(self.starts, self.starts[1:], strict=False):
            if before + self.file_bytes != after:
                yield before + self.file_bytes, after

    @property
    def first(self) -> int:
        """Start of the first file; 0 without files."""
        return self.starts[0] if self.starts else 0

    @property
    def end(self) -> int:
        """End of the last file; 0 without files."""
        return self.starts[-1] + self.file_bytes if self.starts else 0
