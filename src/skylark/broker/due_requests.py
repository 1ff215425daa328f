"""DueRequests: held requests that can be answered, resumed some at a time: others are served meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from skylark.remoting.server import Peer
from skylark.store.append_result import AppendedRecord

RESUMED_AT_ONCE = 64
"""Requests that are resumed before others are served."""


class Held(Protocol):
    """A request that is held."""

    @property
    def peer(self) -> Peer: ...


H = TypeVar("H", bound=Held)


class DueRequests(Generic[H]):
    """Matches new messages with held requests and resumes those, from the next iteration of the loop on.

    Replies to the sends come first. Loop thread.
    """

    def __init__(
        self, match: Callable[[Sequence[AppendedRecord]], None], resume: Callable[[H], None]
    ) -> None:
        """`match` calls `add` for the requests that a batch of new messages is for."""
        self._match = match
        self._resume: Callable[[H], None] = resume
        self._arrivals: list[Sequence[AppendedRecord]] = []
        self._due: deque[H] = deque()
        self._is_scheduled = False

    def arrived(self, batch: Sequence[AppendedRecord]) -> None:
        """Match a batch of new messages."""
        self._arrivals.append(batch)
        self._schedule()

    def add(self, held: H) -> None:
        """Resume a request that is no longer held."""
        self._due.append(held)
        self._schedule()

    def resume_all(self) -> None:
        """Resume at once what is due."""
        while self._due:
            self._resume(self._due.popleft())

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        try:
            for batch in arrivals:
                self._match(batch)
        finally:  # requests that matched before an error are no longer held
            self._is_scheduled = False
            self._resume_some()

    def _resume_some(self) -> None:
        peers: dict[Peer, None] = {}
        for _ in range(min(len(self._due), RESUMED_AT_ONCE)):
            held = self._due.popleft()
            if not held.peer.is_closed:
                self._resume(held)
                peers[held.peer] = None
        for peer in peers:
            peer.flush()
        if self._due:
            self._schedule()
