"""Single keys from the terminal, for live views."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Self

READ_BYTES = 1024
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])|[\x00-\x7f]|[^\x00-\x7f]+")
_NAMES = {
    b"\x1b[A": "up", b"\x1bOA": "up",
    b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[C": "right", b"\x1bOC": "right",
    b"\x1b[D": "left", b"\x1bOD": "left",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down",
    b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home",
    b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end",
    b"\x1b[Z": "back tab", b"\t": "tab",
}  # fmt: skip


def key_names(data: bytes) -> list[str]:
    """Pure. The keys of the bytes that a terminal sends: `q`, `up`, `page down`. Others are left out."""
    keys = []
    for sequence in _SEQUENCE.findall(data):
        if sequence in _NAMES:
            keys.append(_NAMES[sequence])
        elif len(sequence) == 1 and 0x20 <= sequence[0] < 0x7F:
            keys.append(sequence.decode())
    return keys


class Keyboard:
    """Keys without Enter and without echo while it is open. Ctrl-C still interrupts.

    If standard input is not a terminal, there are no keys.
    """

    def __init__(self) -> None:
        self._before: list[object] | None = None

    def read(self, timeout_s: float) -> list[str]:
        """The keys pressed, or none after the timeout."""
        if self._before is None:
            time.sleep(timeout_s)
            return []
        descriptor = sys.stdin.fileno()
        if not select.select([descriptor], [], [], max(timeout_s, 0.0))[0]:
            return []
        return key_names(os.read(descriptor, READ_BYTES))

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]
