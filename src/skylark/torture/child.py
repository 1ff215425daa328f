"""Files by which the processes of a torture run communicate: knobs and journals."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

VALUE = struct.Struct("<q")


class Knob:
    """A number in a memory-mapped file, set by one process and read by another."""

    def __init__(self, file: Path) -> None:
        """Raises OSError."""
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, VALUE.size)
            self._map = mmap.mmap(descriptor, VALUE.size)
        finally:
            os.close(descriptor)
        self.file = file

    @property
    def value(self) -> int:
        return int(VALUE.unpack_from(self._map)[0])

    def turn(self, value: int) -> None:
        VALUE.pack_into(self._map, 0, value)

    def close(self) -> None:
        self._map.close()


class Journal:
    """A file of lines. Each call is one write, so a kill loses no line that was acted on."""

    def __init__(self, file: Path) -> None:
        """Raises OSError."""
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        length = os.fstat(self._descriptor).st_size
        if length and os.pread(self._descriptor, 1, length - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # ends a line that a kill cut off

    def write(self, lines: bytes) -> None:
        os.write(self._descriptor, lines)

    def close(self) -> None:
        os.close(self._descriptor)


class Tail:
    """Reads a growing journal: complete lines, each once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = 0

    def read(self) -> list[bytes]:
        """The new lines since the last call; none while the file does not exist."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._position += whole
        return data[:whole].splitlines()
