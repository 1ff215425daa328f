"""What a directory looks like, to see that nobody touched it; and small damage to the files in it."""

from __future__ import annotations

import hashlib
from pathlib import Path


def fingerprint(root: Path) -> dict[str, tuple[int, int, str]]:
    """Name -> length, modification time and digest of everything below, directories included."""
    found = {}
    for path in sorted([root, *root.rglob("*")]):
        status = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        length = status.st_size if path.is_file() else 0
        found[str(path.relative_to(root))] = (length, status.st_mtime_ns, digest)
    return found


def flip(path: Path, position: int) -> None:
    """Invert one byte."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0xFF]))


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def cut(path: Path, length: int) -> None:
    """Make the file this long: shorter, or longer by zeros."""
    with path.open("r+b") as file:
        file.truncate(length)
