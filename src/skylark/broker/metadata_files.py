"""Metadata files: read at the start, written whole in a thread when their tables have changed.

Tables belong to the loop thread, which takes a snapshot of them. Encoding and writing run in a thread.
Changes that follow each other closely are written together.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from skylark.atomic_file import load_file, write_file
from skylark.broker.metadata_json import Encode

log = logging.getLogger(__name__)

RETRY_S = 5.0

Snapshot = Callable[[], Encode]
RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]


def newer_file(directory: Path, usual: str, other: str) -> Path:
    """Return the file that was written last; the usual one if the other is missing."""

    def written(name: str) -> float:
        try:
            return (directory / name).stat().st_mtime
        except FileNotFoundError:
            return -1.0

    return directory / (other if written(other) > written(usual) else usual)


def load_metadata(path: Path, load: Callable[[bytes], None]) -> bool:
    """Load a table from its file, or from `.bak` if that is missing or damaged; False if there is neither.

    `load` takes the bytes or raises ValueError. Raises BadStoreFile if there is content but none can be used.
    """

    def parse(data: bytes) -> bool:
        load(data)
        return True

    return load_file(path, parse) is not None


class MetadataFile:
    """A file of one table, and how much of the table's changes it holds. Loop thread only."""

    def __init__(
        self,
        path: Path,
        snapshot: Snapshot,
        on_mark: Callable[[], None] = lambda: None,
        *,
        is_private: bool = False,
    ) -> None:
        self.path = path
        self.is_private = is_private
        self.writes = 0
        self._snapshot = snapshot
        self._on_mark = on_mark
        self._marked = 0
        self._saved = 0

    @property
    def is_dirty(self) -> bool:
        return self._saved < self._marked

    def mark(self) -> None:
        """Note that the table has changed."""
        self._marked += 1
        self._on_mark()

    def begin(self) -> "PendingWrite":
        """Take a snapshot of the table, for a thread to write."""
        return PendingWrite(self, self._snapshot(), self._marked)

    def saved(self, mark: int) -> None:
        """Note that everything marked up to `mark` is on disk."""
        self.writes += 1
        self._saved = max(self._saved, mark)


class PendingWrite:
    """One file on its way to the disk."""

    def __init__(self, file: MetadataFile, encode: Encode, mark: int) -> None:
        self._file = file
        self._encode = encode
        self._mark = mark

    def run(self) -> None:
        """Write the file. Any thread, but one at a time. Raises OSError; the old content is kept then."""
        write_file(self._file.path, self._encode(), is_private=self._file.is_private)

    def done(self) -> None:
        """Note that `run` has returned. Loop thread only."""
        self._file.saved(self._mark)


class MetadataWriter:
    """Writes the files that are marked, one after the other.

    A disk that hangs blocks this writer and nothing else. Failed writes are retried.
    """

    def __init__(
        self,
        *,
        gather_s: float,
        retry_s: float = RETRY_S,
        run_blocking: RunBlocking = asyncio.to_thread,
    ) -> None:
        self._gather_s = gather_s
        self._retry_s = retry_s
        self._run_blocking = run_blocking
        self._files: list[MetadataFile] = []
        self._marked = asyncio.Event()
        self._writing = asyncio.Lock()
        self._flushes: set[asyncio.Future[OSError | None]] = set()

    def add(self, path: Path, snapshot: Snapshot, *, is_private: bool = False) -> MetadataFile:
        """Add a file. `snapshot` runs on the loop and returns the encoder, which runs in a thread.

        Only its owner may read a private one.
        """
        file = MetadataFile(path, snapshot, self._marked.set, is_private=is_private)
        self._files.append(file)
        return file

    async def run(self) -> None:
        """Write marked files until cancelled; then `flush` writes the rest."""
        while True:
            await self._marked.wait()
            await asyncio.sleep(self._gather_s)
            self._marked.clear()
            try:
                await self.flush()
            except OSError as error:
                log.warning("cannot write metadata, retrying reason=%s", error)
                await asyncio.sleep(self._retry_s)
                self._marked.set()

    async def flush(self) -> None:
        """Return when everything marked before this call is on disk. Raises OSError."""
        # A thread cannot be cancelled: the next write waits until this one has ended.
        writing = asyncio.ensure_future(self._write_marked())
        self._flushes.add(writing)
        writing.add_done_callback(self._flushes.discard)
        failure = await asyncio.shield(writing)
        if failure is not None:
            raise failure

    async def _write_marked(self) -> OSError | None:
        failure = None
        async with self._writing:
            for file in self._files:
                if not file.is_dirty:
                    continue
                write = file.begin()
                try:
                    await self._run_blocking(write.run)
                except OSError as error:
                    failure = error
                else:
                    write.done()
        return failure
