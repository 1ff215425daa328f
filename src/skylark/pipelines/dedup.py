"""Recognises repeated messages: the consumer's side of `exactlyOnce=keys`.

A sink that fails midway sends some rows twice, with the same unique key. A consumer that remembers the keys
it has seen drops the second copy. `SeenKeys` keeps the last N keys, in memory or in a file.

    seen = SeenKeys(1_000_000, Path("seen.sqlite"))
    for message in messages:
        if seen.add(message.unique_key):
            handle(message)
    seen.commit()

With a file, call `commit` once the effects are durable: uncommitted messages are delivered again. An `epoch`
names a unit of work that may be repeated; `begin` discards what an unfinished attempt had added.
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
    """The 16 bytes that are stored for a key."""
    data = key.encode() if isinstance(key, str) else key
    return hashlib.blake2b(data, digest_size=KEY_BYTES).digest()


class SeenKeys:
    """The last `keys_max` keys. For one thread; a file is for one process at a time."""

    def __init__(self, keys_max: int = KEYS_MAX, path: Path | None = None) -> None:
        """Raises ValueError for a bound below 1, sqlite3.Error for a file of another kind."""
        if keys_max < 1:
            raise ValueError(f"invalid keys_max {keys_max}: must be at least 1")
        self._keys_max = keys_max
        self._epoch = ""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._table = sqlite3.connect(path or ":memory:", isolation_level="IMMEDIATE", timeout=30)
        self._table.execute(_SCHEMA)
        self._table.commit()

    def begin(self, epoch: str) -> None:
        """Start a unit of work and discard what an earlier attempt had added."""
        self._table.rollback()
        self._epoch = epoch
        self._table.execute("delete from seen where epoch = ?", (epoch,))

    def add(self, key: str | bytes) -> bool:
        """Remember a key; return whether it is new."""
        return self.add_digest(digest(key))

    def add_digest(self, key: bytes) -> bool:
        """As `add`, for a key's digest."""
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
        """Persist what was added and drop the oldest keys above the bound."""
        oldest = "(select position from seen order by position desc limit 1 offset ?)"
        self._table.execute(f"delete from seen where position <= {oldest}", (self._keys_max,))  # noqa: S608
        self._table.commit()

    def close(self) -> None:
        """Discards what was added since the last commit."""
        self._table.rollback()
        self._table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
