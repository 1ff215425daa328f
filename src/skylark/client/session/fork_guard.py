"""ForkGuard: detects that a client is used in a forked child process, at the cost of one comparison."""

from __future__ import annotations

import os

from skylark.errors import ForkedClient

forks = 0
"""How often this process is the child of a fork. Where every nanosecond counts, compare it with a Birth's."""


def _count() -> None:
    global forks  # noqa: PLW0603 (one number of the process)
    forks += 1


# Where there is no such hook there are no forks either.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)


class ForkGuard:
    """The process in which something was made."""

    __slots__ = ("_pid", "forks")

    def __init__(self) -> None:
        self.forks = forks
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Is this still the same process?"""
        return self.forks == forks

    def check(self, client: str) -> None:
        """Raises ForkedClient in a fork; connections and loops do not survive one."""
        if self.forks != forks:
            raise ForkedClient(client, self._pid, os.getpid())
