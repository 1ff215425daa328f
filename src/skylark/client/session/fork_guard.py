"""ForkGuard: detects that a client is used in a forked child process, at the cost of one comparison."""

from __future__ import annotations

import os

from skylark.errors import ForkedClient

fork_count = 0
"""Forks between the first process and this one. On hot paths, compare it with `ForkGuard.fork_count`."""


def _count_fork() -> None:
    global fork_count  # noqa: PLW0603 (one number per process)
    fork_count += 1


# Platforms without this hook have no fork either.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class ForkGuard:
    """Remembers the process in which it was created."""

    __slots__ = ("_pid", "fork_count")

    def __init__(self) -> None:
        self.fork_count = fork_count
        self._pid = os.getpid()

    @property
    def is_same_process(self) -> bool:
        return self.fork_count == fork_count

    def check(self, client: str) -> None:
        """Raises ForkedClient in a forked child: connections and event loops do not survive a fork."""
        if self.fork_count != fork_count:
            raise ForkedClient(client, self._pid, os.getpid())
