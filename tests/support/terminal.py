"""A command in a pseudo-terminal of a fixed size, and what it shows there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from tests.support.screen import screen_of

CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>]|\r")
TIMEOUT_S = 90


class Terminal:
    """`skylark` with its three streams on a terminal; `text` is what it has shown, without control codes."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        columns: int = 100,
        lines: int = 40,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._columns, self._lines, self._timeout_s = columns, lines, timeout_s
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI", "GITHUB_ACTIONS")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "skylark", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**inherited, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "TZ": "UTC", **environment},
        )
        os.close(slave)
        self.raw = b""

    @property
    def text(self) -> str:
        lines = CONTROL.sub(b"", self.raw).decode(errors="replace").split("\n")
        return "\n".join(line.rstrip() for line in lines)

    @property
    def screen(self) -> list[str]:
        """The lines that are on the screen now."""
        return screen_of(self.raw, self._columns, self._lines)

    def until_screen(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """Wait until the lines on the screen fulfil a condition, and return them."""
        deadline = time.monotonic() + self._timeout_s
        while not condition(self.screen):
            assert time.monotonic() < deadline, "\n".join(self.screen)
            assert self.read(1.0) or condition(self.screen), "\n".join(self.screen)
        return self.screen

    def read(self, timeout_s: float) -> bool:
        """Take in what comes next; False at the end."""
        if not select.select([self._master], [], [], timeout_s)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # how Linux tells that nobody has the other side any more
            return False
        self.raw += data
        return bool(data)

    def until(self, words: str, count: int = 1) -> None:
        """Wait for words, or for their coming so often."""
        deadline = time.monotonic() + self._timeout_s
        while self.text.count(words) < count:
            assert time.monotonic() < deadline, self.text
            assert self.read(1.0) or self.text.count(words) >= count, self.text

    def write(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait for its end, and return the exit code."""
        deadline = time.monotonic() + self._timeout_s
        while self.read(1.0):
            assert time.monotonic() < deadline, self.text
        return self.process.wait(self._timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
