"""A program that starts Spark, as a process: a time limit, its whole group ended, and where it hung is told.

Its output goes to a file. A pipe would stay open as long as a JVM or a Python worker of it lives, and whoever
reads the pipe would wait for them.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from skylark.processes import GroupProcess

POLL_S = 0.1
DUMP_TIMEOUT_S = 30
OUTPUT_CHARS_SHOWN = 8000


@contextmanager
def started(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[GroupProcess]:
    """A program while it runs; at the end its group is killed, also if only others of it are left."""
    process = GroupProcess(command, log=log, env={"PYTHONFAULTHANDLER": "1", **(env or {})})
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def finished(process: GroupProcess, timeout_s: float) -> str:
    """What a program has printed when it has ended well. Fails with its output, and its stacks if it hung."""
    deadline = time.monotonic() + timeout_s
    while process.running:
        if time.monotonic() > deadline:
            os.kill(process.pid, signal.SIGABRT)  # makes Python print where its threads are
            process.wait(DUMP_TIMEOUT_S)
            raise AssertionError(f"did not end within {timeout_s} s:\n{_shown(process)}")
        time.sleep(POLL_S)
    code = process.wait(1)
    assert code == 0, f"ended with code {code}:\n{_shown(process)}"
    return process.log_text()


def _shown(process: GroupProcess) -> str:
    return process.log_text()[-OUTPUT_CHARS_SHOWN:]


def run(command: Sequence[str], log: Path, timeout_s: float, env: Mapping[str, str] | None = None) -> str:
    """Run a program to its end; return what it printed."""
    with started(command, log, env) as process:
        return finished(process, timeout_s)


def last_object(output: str) -> dict[str, Any]:
    """The last line that is a JSON object: Spark may say more behind it."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            with suppress(ValueError):
                found: dict[str, Any] = json.loads(line)
                return found
    raise AssertionError(f"no JSON was printed:\n{output[-OUTPUT_CHARS_SHOWN:]}")
