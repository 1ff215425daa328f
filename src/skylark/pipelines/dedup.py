"""Recognise messages that came before: what `exactlyOnce=keys` asks of whoever consumes.

A sink that fails in the middle sends some rows twice, with the same unique key. A consumer that keeps the
keys it has seen drops the second. `SeenKeys` keeps the last so many, in memory or in a file.

    seen = SeenKeys(1_000_000, Path("seen.sqlite"))
    for message in messages:
        if seen.add(message.unique_key):
            handle(message)
    seen.commit()

With a file, `commit` after the effects are safe: what was handled and not committed comes again. An `epoch`
names a unit of work that may be repeated: `begin` forgets what an unfinished attempt at it had added.
"""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Self

KEY_BYTES = 16
KEYS_MAX = 1_000_000
_SCHEMA = (
    "create table if not exists seen"
    " (position integer primary key autoincrement, key blob not null unique, epoch text)"
)


def digest(key: str | bytes) -> bytes:
    """What is kept of a key: 16 bytes, whatever its length."""
    data = key.encode() if isinstance(key, str) else key
    return hashlib.blake2b(data, digest_size=KEY_BYTES).digest()


class SeenKeys:
    """The last `keys_max` keys. For one thread; a file is for one process at a time."""

    def __init__(self, keys_max: int = KEYS_MAX, path: Path | None = None) -> None:
        """Raises ValueError for a bound below 1, sqlite3.Error for a file that is something else."""
        if keys_max < 1:
            raise ValueError(f"keys_max is {keys_max}: at least one key must be kept")
        self._keys_max = keys_max
        self._epoch = ""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._table = sqlite3.connect(path or ":memory:", isolation_level="IMMEDIATE", timeout=30)
        self._table.execute(_SCHEMA)
        self._table.commit()

    def begin(self, epoch: str) -> None:
        """Start a unit of work; what an earlier attempt at it had added is forgotten."""
        self._table.rollback()
        self._epoch = epoch
        self._table.execute("delete from seen where epoch = ?", (epoch,))

    def add(self, key: str | bytes) -> bool:
        """Keep a key; say whether it is new."""
        return self.add_digest(digest(key))

    def add_digest(self, key: bytes) -> bool:
        """The same for a key of which only the digest is at hand."""
        added = self._table.execute(
            "insert or ignore into seen (key, epoch) values (?, ?)", (key, self._epoch)
        ).rowcount
        return added == 1

    def __contains__(self, key: str | bytes) -> bool:
        row = self._table.execute("select 1 from seen where key = ?", (digest(key),)).fetchone()
        return row is not None

    def __len__(self) -> int:
        (count,) = self._table.execute("select count(*) from seen").fetchone()
        return int(count)

    def commit(self) -> None:
        """Make what was added last, and forget the oldest above the bound."""
        oldest = "(select position from seen order by position desc limit 1 offset ?)"
        self._table.execute(f"delete from seen where position <= {oldest}", (self._keys_max,))  # noqa: S608
        self._table.commit()

    def close(self) -> None:
        """What was added since the last commit is forgotten."""
        self._table.rollback()
        self._table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
