"""What the processes of a run share: they end with their parent, obey knobs, and keep journals."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
VALUE = struct.Struct("<q")


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent is gone: a run that is killed leaves none behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Knob:
    """A number in a small file that one process turns and another looks at, as often as it likes."""

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
    """A file of lines. Each call is one write, so that a kill loses no line that was acted on."""

    def __init__(self, file: Path) -> None:
        """Raises OSError."""
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        length = os.fstat(self._descriptor).st_size
        if length and os.pread(self._descriptor, 1, length - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # a kill cut the last line off: it ends here

    def write(self, lines: bytes) -> None:
        os.write(self._descriptor, lines)

    def close(self) -> None:
        os.close(self._descriptor)


class Tail:
    """Reads a journal while it grows: whole lines, each once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = 0

    def read(self) -> list[bytes]:
        """The lines that have come since the last call, without their ends; none while there is no file."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._position += whole
        return data[:whole].splitlines()
