"""SavedFile: a small file kept up to date from the loop, written in a thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Generic, TypeVar

from skylark.atomic_file import write_file

T = TypeVar("T")


class SavedFile(Generic[T]):
    """Writes whole snapshots, one at a time; changes made while one is written share the next.

    `snapshot` runs on the loop, `encode` in the executor, which must have a single thread.
    """

    def __init__(
        self, path: Path, executor: Executor, *, snapshot: Callable[[], T], encode: Callable[[T], bytes]
    ) -> None:
        self.path = path
        self._executor = executor
        self._snapshot = snapshot
        self._encode = encode
        self._writing = asyncio.Lock()
        self._changes = 0
        self._saved = 0

    async def save(self) -> None:
        """Return when all changes made before this call are on the disk. Raises OSError."""
        self._changes += 1
        change = self._changes
        async with self._writing:
            if self._saved >= change:
                return
            saving = self._changes
            value = self._snapshot()
            await asyncio.get_running_loop().run_in_executor(self._executor, self._write, value)
            self._saved = saving

    def _write(self, value: T) -> None:
        write_file(self.path, self._encode(value))
