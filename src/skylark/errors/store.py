"""What befalls a store and its replicas."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from skylark.errors.root import RocketMQError

AnyPath = str | PathLike[str]


class StoreError(RocketMQError):
    """The store could not do what it was asked."""


@dataclass(eq=False)
class CorruptRecord(StoreError):
    """A record of the commit log whose bytes cannot be right. `expected` and `actual` where they say more."""

    physical_offset: int
    reason: str
    expected: int | None = None
    actual: int | None = None

    def __str__(self) -> str:
        sentence = f"corrupt record at physical offset {self.physical_offset}: {self.reason}"
        if self.expected is None and self.actual is None:
            return sentence
        return f"{sentence} (expected {self.expected}, found {self.actual})"


@dataclass(eq=False)
class OffsetOutOfRange(StoreError):
    """A physical offset outside the log, which holds `min_offset` <= offset < `max_offset`."""

    text = "physical offset {physical_offset} is outside the log, which holds {min_offset} to {max_offset}"
    physical_offset: int
    min_offset: int
    max_offset: int


@dataclass(eq=False)
class MissingFile(StoreError):
    """A file that the store's other files say must be there."""

    text = "file {path} is missing: {reason}"
    path: AnyPath
    reason: str = "expected by its neighbours"


@dataclass(eq=False)
class BadStoreFile(StoreError):
    """A file of the store that cannot be used: wrong size, name, header or text."""

    text = "bad file {path}: {reason}"
    path: AnyPath
    reason: str


@dataclass(eq=False)
class DiskFull(StoreError):
    """The disk is full, or so full that the store refuses to write; reads go on."""

    text = "disk full at {path}: {reason}"
    path: AnyPath
    reason: str


@dataclass(eq=False)
class StoreClosed(StoreError):
    """The store was closed and answers nothing any more."""

    text = "store {path} is closed"
    path: AnyPath


@dataclass(eq=False)
class StoreFailed(StoreError):
    """A write or an fsync failed. What the disk holds is unknown, so writes stop until a restart recovers."""

    text = "store {path} stopped writing: {reason}; restart it to recover"
    path: AnyPath
    reason: str


@dataclass(eq=False)
class StoreLocked(StoreError):
    """Another process has the store open for writing."""

    text = "store {path} is in use by another process"
    path: AnyPath


class ReplicationError(RocketMQError):
    """A broker that cannot have the part in a group of replicas that it was given."""


@dataclass(eq=False)
class CannotFollow(ReplicationError):
    """A slave that cannot follow its master, now or ever; the reason says what to do."""

    text = "cannot follow the master: {reason}"
    reason: str


@dataclass(eq=False)
class LogsDiverged(ReplicationError):
    """The logs of a slave and its master differ from the first record on that was compared."""

    text = "the log differs from the master's at {physical_offset}, and perhaps before"
    physical_offset: int


@dataclass(eq=False)
class MasterExists(ReplicationError):
    """A broker that would be the second master of its name."""

    text = (
        "broker {name} has a master already, {master}, says the name server {name_server}: "
        "stop that one, follow it (--slave-of {master}), or, if it is gone for good, --force-master"
    )
    name: str
    master: str
    name_server: str
