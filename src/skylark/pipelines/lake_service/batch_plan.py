"""What each batch of a table holds, decided once, before it is written.

A plan is created in the table's store by a conditional put, so one of several instances decides. Each
attempt to carry it out reads the same ranges, and the table accepts a batch once.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import msgspec

from skylark.pipelines.lake.file_store import FileStore
from skylark.pipelines.message_source import OffsetRange
from skylark.pipelines.offsets import Nested, Offsets, from_nested

KEPT = 8
"""Plans that stay: a slow reader of the newest may still look for the one before."""
_PLAN = re.compile(r"\d{12}\.json")


class BatchPlan(msgspec.Struct, frozen=True):
    """One batch."""

    number: int
    instance: str
    """Who made it, and is expected to carry it out."""
    at_ms: int
    """When the ends of the queues were asked."""
    is_complete: bool
    """Whether it reaches the ends that the queues had then."""
    moved: Nested
    """Where the queues that it reads begin."""
    end: Nested
    """The offsets of all queues after it."""

    def ranges(self) -> list[OffsetRange]:
        ends = from_nested(self.end)
        return [OffsetRange(queue, at, ends[queue]) for queue, at in sorted(from_nested(self.moved).items())]

    def offsets(self) -> Offsets:
        return from_nested(self.end)


class PlanLog:
    """The plans of one table."""

    def __init__(self, files: FileStore) -> None:
        self._files = files

    def last(self) -> BatchPlan | None:
        """The newest plan. Raises OSError."""
        names = self._names()
        return self._read(names[-1]) if names else None

    def number(self, number: int) -> BatchPlan | None:
        """A plan by its number, as long as it is kept. Raises OSError."""
        try:
            return self._read(_name(number))
        except FileNotFoundError:
            return None

    def create(self, plan: BatchPlan) -> bool:
        """Decide a batch; return False if another instance was first. Raises OSError."""
        return self._files.create(_name(plan.number), msgspec.json.encode(plan))

    def tidy(self, newest: int) -> None:
        """Delete plans that are far behind. Raises OSError."""
        for name in self._names():
            if int(PurePosixPath(name).stem) <= newest - KEPT:
                self._files.delete(name)

    def _names(self) -> list[str]:
        return sorted(file.name for file in self._files.list() if _PLAN.fullmatch(file.name))

    def _read(self, name: str) -> BatchPlan:
        return msgspec.json.decode(self._files.read(name), type=BatchPlan)


def _name(number: int) -> str:
    return f"{number:012d}.json"
