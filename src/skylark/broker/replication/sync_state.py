"""Pure. The in-sync set of a master: which replicas must have a message before it is acknowledged.

The controller decides the set. The master counts a replica before it proposes it, and proposes it when it
has the log up to the end at that moment: a controller that has accepted it may elect it at once. While the
outcome of a proposal is unknown, the members of both sets count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from skylark.protocol.bodies import SyncStateSet

UNCERTAIN_S = 6.0
"""A proposal without an answer has no effect after this time: controllers work on a request for 5 s."""


class Progress(NamedTuple):
    """A connected replica: up to where it has the log, and since when it lags."""

    acknowledged: int | None
    lag_s: float = 0.0
    is_learner: bool = False
    is_near: bool = True
    """It had everything that the log held when data was last sent to it."""


@dataclass(frozen=True)
class Proposal:
    """A set that was proposed in place of the one with this epoch."""

    members: frozenset[int]
    epoch: int
    proposed_at: float


class SyncState:
    """The in-sync set as its master sees it."""

    def __init__(self, own_id: int, decided: SyncStateSet) -> None:
        self.own_id = own_id
        self.members = frozenset(decided.members) | {own_id}
        """What the controller decided last."""
        self.epoch = decided.epoch
        self._joining: dict[int, int] = {}
        """Replicas that are counted but not proposed yet: the log's end at that moment."""
        self.proposal: Proposal | None = None

    # --- Who counts ---

    @property
    def counted(self) -> frozenset[int]:
        """The replicas, the master among them, that must have a message before it is acknowledged."""
        proposed = self.proposal.members if self.proposal is not None else frozenset()
        return self.members | proposed | self._joining.keys()

    @property
    def is_alone(self) -> bool:
        return not self._joining and self.proposal is None and len(self.members) == 1

    @property
    def size(self) -> int:
        """Members, those of an open proposal included."""
        return max(len(self.members), len(self.proposal.members) if self.proposal is not None else 0)

    def confirmed(self, end: int, replicas: Mapping[int, Progress]) -> int | None:
        """Return up to where every counted replica has the log; None while one is not connected."""
        reached = end
        for member in self.counted - {self.own_id}:
            progress = replicas.get(member)
            if progress is None or progress.acknowledged is None:
                return None
            reached = min(reached, progress.acknowledged)
        return reached

    # --- Changes ---

    def count_in(self, replicas: Mapping[int, Progress], *, epoch_start: int, end: int) -> None:
        """Count replicas that have caught up, and stop counting those that left before they were proposed."""
        if not self._joining and replicas.keys() <= self.members:
            return
        for replica in list(self._joining):
            if replica not in replicas:
                del self._joining[replica]
        for replica, progress in replicas.items():
            if replica in self.counted or progress.is_learner or progress.acknowledged is None:
                continue
            if progress.is_near and progress.acknowledged >= epoch_start:
                self._joining[replica] = end

    def propose(self, replicas: Mapping[int, Progress], *, now: float, lag_s_max: float) -> Proposal | None:
        """Return the next set to propose, if one is due; it counts from now on.

        Members that are not connected leave it, and members that have lagged for too long.
        """
        if self.proposal is not None:
            return None
        joined = {
            replica
            for replica, end in self._joining.items()
            if replica in replicas and (replicas[replica].acknowledged or 0) >= end
        }
        left = {
            member
            for member in self.members - {self.own_id}
            if member not in replicas or replicas[member].lag_s > lag_s_max
        }
        wanted = (self.members - left) | joined if left or joined else self.members
        if wanted == self.members:
            return None
        self.proposal = Proposal(wanted, self.epoch, now)
        for replica in joined:
            del self._joining[replica]
        return self.proposal

    def adopt(self, decided: SyncStateSet) -> None:
        """Take over what the controller decided for this master epoch; an older set is ignored."""
        if decided.epoch > self.epoch:
            self.members, self.epoch = frozenset(decided.members), decided.epoch
            self.proposal = None

    def refuse(self, proposal: Proposal) -> None:
        """The controller refused a proposal for certain."""
        if self.proposal == proposal:
            self.proposal = None
