"""Small files replaced whole: after a crash at any moment, one readable generation is there.

A file `name` has its previous generation beside it as `name.bak`, where Apache RocketMQ keeps it too.
Beside them `name.tmp` and `name.bak.tmp` may be left behind by a crash; they are never read.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from skylark.errors import BadStoreFile

Value = TypeVar("Value")

log = logging.getLogger(__name__)

_DIRECTORIES_OPEN = os.name != "nt"
"""Windows opens no directories: their entries cannot be synced there, the file system sees to them."""


def write_file(path: Path, data: bytes) -> None:
    """Replace the file's content by `data`, durably; the content it had becomes `.bak`.

    Makes the directory if needed. One writer per file at a time; blocks for as long as the disk takes.
    Raises OSError; the file then holds its old content, or the new if only the directory's fsync failed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(path, ".tmp")
    previous = _beside(path, ".bak.tmp")
    try:
        _write_durably(new, data)
        previous.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # there is no old content the first time
            previous.hardlink_to(path)
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)
    # The old `.bak` goes only now, when the new content is safe: it was the good one if `path` was damaged.
    with suppress(FileNotFoundError):
        previous.replace(_beside(path, ".bak"))
        _sync_directory(path.parent)


def load_file(path: Path, parse: Callable[[bytes], Value]) -> Value | None:
    """Return what `parse` makes of the file, or of its `.bak` if the file is missing, empty or unparsable.

    `parse` raises ValueError for bytes it cannot take. None means that neither file holds anything.
    Raises BadStoreFile when there is content but none of it parses. Changes nothing on disk.
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
                "file recovered from its backup file=%s reason=%s", path, failures or "missing or empty"
            )
        return value
    if failures:
        raise BadStoreFile(path, "; ".join(failures))
    return None


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
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
