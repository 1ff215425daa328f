"""Files of a table by their names, in a local directory or an object store.

A name is relative to the table. Writers create a file once; nothing is changed in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from skylark.atomic_file import create_file, write_file


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that exists."""

    name: str
    modified_at: float


class FileStore(Protocol):
    """Where the files of a table are. Every method raises OSError."""

    where: str
    """The directory or address."""

    def below(self, folder: str) -> FileStore:
        """A part of this store."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file, whole or not at all; return False if another writer was first."""

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file, also over an older one; readers see either whole."""

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""

    def exists(self, name: str) -> bool: ...

    def output(self, name: str) -> Any:
        """An Arrow stream to write a file, which exists once the stream is closed."""

    def input(self, name: str) -> Any:
        """An Arrow file to read."""

    def list(self, folder: str = "") -> Iterator[StoredFile]:
        """The files of a folder and of those below it; none if there is no such folder."""

    def move(self, name: str, target: str) -> None:
        """Move a file; nothing happens if an earlier attempt has moved it."""

    def delete(self, name: str) -> None:
        """Nothing happens if there is no such file."""


class DirectoryFiles:
    """A local directory. Any number of writers, where the file system has hard links."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.where = str(root)

    def below(self, folder: str) -> DirectoryFiles:
        return DirectoryFiles(self.root / folder)

    def create(self, name: str, data: bytes) -> bool:
        path = self.root / name
        if path.exists():
            return False
        return create_file(path, data)

    def replace(self, name: str, data: bytes) -> None:
        write_file(self.root / name, data)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def output(self, name: str) -> Any:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(path), "wb")

    def input(self, name: str) -> Any:
        return pa.OSFile(str(self.root / name))

    def list(self, folder: str = "") -> Iterator[StoredFile]:
        for path in sorted((self.root / folder).rglob("*")):
            if path.is_file():
                yield StoredFile(str(path.relative_to(self.root)), path.stat().st_mtime)

    def move(self, name: str, target: str) -> None:
        path = self.root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (self.root / name).rename(path)

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)
