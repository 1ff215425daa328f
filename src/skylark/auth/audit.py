"""The audit log: a JSON line for every refusal and administration, without secrets, written by a thread."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from skylark.protocol.codes import RequestCode

log = logging.getLogger(__name__)

PENDING_MAX = 10_000
"""Lines that wait for the disk; more are dropped and counted."""
KEPT_FILES = 3
WRITE_INTERVAL_S = 0.2

_NAMES = {code.value: code.name for code in RequestCode}
_encode = msgspec.json.Encoder().encode


class AuditLog:
    """Appends lines to a file, which becomes `.1` when it is full. `add` never waits for the disk."""

    def __init__(self, path: Path, *, bytes_max: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._pending: deque[bytes] = deque()
        self._dropped = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_failing = False

    def add(
        self,
        *,
        now_ms: int,
        peer: str,
        user: str,
        code: int,
        decision: str,
        reason: str = "",
        resource: str = "",
        action: str = "",
    ) -> None:
        """Note a decision. Loop thread."""
        if len(self._pending) >= PENDING_MAX:
            self._dropped += 1
            return
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            "peer": peer,
            "user": user,
            "code": code,
            "request": _NAMES.get(code, ""),
            "decision": decision,
        }
        more = {"resource": resource, "action": action, "reason": reason}
        self._pending.append(_encode(line | {name: text for name, text in more.items() if text}) + b"\n")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="skylark-audit", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write the rest. Waits for the disk, for a limited time."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._stopping.wait(WRITE_INTERVAL_S):
            self._write_pending()
        self._write_pending()

    def _write_pending(self) -> None:
        lines = [self._pending.popleft() for _ in range(len(self._pending))]
        dropped, self._dropped = self._dropped, 0
        if dropped:
            lines.append(_encode({"dropped": dropped}) + b"\n")
        if not lines:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._rotate(sum(map(len, lines)))
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(descriptor, "ab") as file:  # noqa: PTH123 (the mode is given to os.open)
                file.writelines(lines)
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                log.warning("audit lines are lost file=%s reason=%s", self.path, error)
            self._is_failing = True

    def _rotate(self, more_bytes: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_size + more_bytes <= self._bytes_max:
                return
            for number in range(KEPT_FILES - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    self._numbered(number).replace(self._numbered(number + 1))
            self.path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
