"""Atomic replacement of small files: after a crash at any moment, one readable version exists.

The previous version of `name` is `name.bak`, as in Apache RocketMQ. A crash may leave `name.tmp` and
`name.bak.tmp` behind; they are never read.
"""

import logging
import os
import stat
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from skylark.errors import BadStoreFile

Value = TypeVar("Value")

log = logging.getLogger(__name__)

_PRIVATE_MODE = 0o600
_DIRECTORIES_OPEN = os.name != "nt"
"""Windows cannot open directories, so their entries cannot be synced there."""


def write_file(path: Path, data: bytes, *, is_private: bool = False) -> None:
    """Replace the file's content durably; the old content becomes `.bak`.

    A file keeps its mode; a private one is for its owner only. Creates the directory if needed. One writer
    per file at a time; blocks until the data is on disk. Raises OSError; the file then holds its old content,
    or the new one if only the directory's fsync failed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(path, ".tmp")
    previous = _beside(path, ".bak.tmp")
    try:
        _write_durably(new, data, _PRIVATE_MODE if is_private else _mode_of(path))
        previous.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # no old content the first time
            previous.hardlink_to(path)
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)
    # Replace `.bak` only after the new content is durable: it is the good version if `path` was damaged.
    with suppress(FileNotFoundError):
        previous.replace(_beside(path, ".bak"))
        _sync_directory(path.parent)


def create_file(path: Path, data: bytes) -> bool:
    """Write a new file durably, whole or not at all; return False if another writer was first.

    Creates the directory if needed. Any number of writers. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(path, f".{uuid.uuid4().hex}.tmp")
    try:
        _write_durably(new, data, None)
        path.hardlink_to(new)
    except FileExistsError:
        return False
    finally:
        new.unlink(missing_ok=True)
    _sync_directory(path.parent)
    return True


def load_file(path: Path, parse: Callable[[bytes], Value]) -> Value | None:
    """Return the parsed file, or its parsed `.bak` if the file is missing, empty or invalid.

    `parse` raises ValueError for invalid bytes. Returns None if both files are missing or empty. Raises
    BadStoreFile if there is content but none of it parses. Changes nothing on disk.
    """
    failures: list[str] = []
    for candidate in (path, _beside(path, ".bak")):
        try:
            data = candidate.read_bytes()
        except FileNotFoundError:
            continue
        if not data:
            continue
        try:
            value = parse(data)
        except ValueError as error:
            failures.append(f"{candidate.name}: {error}")
            continue
        if candidate != path:
            log.warning(
                "file restored from its backup file=%s reason=%s", path, failures or "missing or empty"
            )
        return value
    if failures:
        raise BadStoreFile(path, "; ".join(failures))
    return None


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _mode_of(path: Path) -> int | None:
    """Return the mode of a file, None if there is none."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


def _write_durably(path: Path, data: bytes, mode: int | None) -> None:
    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 if mode is None else mode)

    with open(path, "wb", opener=opener) as file:
        if mode is not None and hasattr(os, "fchmod"):  # despite the umask, or a file that was left over
            os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    if not _DIRECTORIES_OPEN:
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
