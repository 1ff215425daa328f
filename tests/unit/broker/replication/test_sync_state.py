"""The in-sync set: who counts, who is proposed, and what an unknown outcome means."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skylark.broker.replication.sync_state import UNCERTAIN_S, Progress, Proposal, SyncState
from skylark.protocol.bodies import SyncStateSet

LAG_S_MAX = 15.0


def alone() -> SyncState:
    return SyncState(1, SyncStateSet.of([1], 4))


def propose(state: SyncState, replicas: dict[int, Progress], now: float = 0.0) -> Proposal | None:
    return state.propose(replicas, now=now, lag_s_max=LAG_S_MAX)


def test_a_replica_counts_before_it_is_proposed() -> None:
    state = alone()
    behind = {2: Progress(90)}
    assert state.confirmed(100, behind) == 100
    state.count_in(behind, epoch_start=50, end=100)
    assert state.counted == {1, 2}
    assert state.confirmed(100, behind) == 90
    assert propose(state, behind) is None  # it lacks what was acknowledged before it counted
    proposal = propose(state, {2: Progress(100)})
    assert proposal == Proposal(frozenset({1, 2}), 4, 0.0)
    state.adopt(SyncStateSet.of([1, 2], 5))
    assert (set(state.members), state.epoch) == ({1, 2}, 5)
    assert state.counted == {1, 2}


def test_who_does_not_count() -> None:
    state = alone()
    state.count_in(
        {
            2: Progress(100, is_learner=True),
            3: Progress(49),
            4: Progress(100, is_near=False),
            5: Progress(None),
        },
        epoch_start=50,
        end=100,
    )
    assert state.counted == {1}
    assert state.is_alone


def test_a_replica_that_leaves_before_it_is_proposed_counts_no_more() -> None:
    state = alone()
    state.count_in({2: Progress(90)}, epoch_start=0, end=100)
    state.count_in({}, epoch_start=0, end=100)
    assert state.is_alone


def test_a_lost_or_slow_member_is_proposed_away_and_counts_until_the_controller_agrees() -> None:
    for replicas in ({}, {2: Progress(10, lag_s=LAG_S_MAX + 1)}):
        state = SyncState(1, SyncStateSet.of([1, 2], 7))
        proposal = propose(state, replicas)
        assert proposal is not None
        assert proposal.members == {1}
        assert state.counted == {1, 2}
        assert state.confirmed(100, {}) is None
        state.adopt(SyncStateSet.of([1], 8))
        assert state.confirmed(100, {}) == 100


def test_a_proposal_without_an_answer_counts_whatever_older_answers_say() -> None:
    state = alone()
    caught_up = {2: Progress(100)}
    state.count_in(caught_up, epoch_start=0, end=100)
    assert propose(state, caught_up, now=10.0) is not None
    state.adopt(SyncStateSet.of([1], 4))
    assert state.counted == {1, 2}


def test_a_refused_proposal_counts_no_more() -> None:
    state = alone()
    caught_up = {2: Progress(100)}
    state.count_in(caught_up, epoch_start=0, end=100)
    proposal = propose(state, caught_up)
    assert proposal is not None
    state.refuse(proposal)
    assert state.is_alone


def test_an_older_set_is_ignored() -> None:
    state = alone()
    state.adopt(SyncStateSet.of([1, 2], 3))
    assert state.members == {1}


class LossyController(RuleBasedStateMachine):
    """A master, two replicas and a controller whose answers may be lost or late.

    Whoever the controller has accepted has every acknowledged message: it may be elected now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = alone()
        self.end = 100
        self.acknowledged = 100
        self.logs: dict[int, int] = {2: 0, 3: 0}
        self.linked: set[int] = set()
        self.decided = SyncStateSet.of([1], 4)
        self.under_way: list[Proposal] = []
        self.now = 0.0

    def replicas(self) -> dict[int, Progress]:
        return {replica: Progress(self.logs[replica]) for replica in self.linked}

    def settle(self) -> None:
        replicas = self.replicas()
        confirmed = self.state.confirmed(self.end, replicas)
        if confirmed is not None:
            self.acknowledged = max(self.acknowledged, confirmed)
        self.state.count_in(replicas, epoch_start=0, end=self.end)
        proposal = propose(self.state, replicas, self.now)
        if proposal is not None:
            self.under_way.append(proposal)

    @rule(count=st.integers(1, 50))
    def append(self, count: int) -> None:
        self.end += count
        self.settle()

    @rule(replica=st.sampled_from([2, 3]), count=st.integers(1, 200))
    def replicate(self, replica: int, count: int) -> None:
        if replica in self.linked:
            self.logs[replica] = min(self.logs[replica] + count, self.end)
            self.settle()

    @rule(replica=st.sampled_from([2, 3]))
    def link(self, replica: int) -> None:
        self.linked ^= {replica}
        self.settle()

    @precondition(lambda self: self.under_way)
    @rule(is_answered=st.booleans(), number=st.integers(0, 9))
    def decide(self, is_answered: bool, number: int) -> None:
        proposal = self.under_way.pop(number % len(self.under_way))
        if proposal.epoch == self.decided.epoch:
            self.decided = SyncStateSet.of(proposal.members, proposal.epoch + 1)
            if is_answered:
                self.state.adopt(self.decided)
        self.settle()

    @rule()
    def poll(self) -> None:
        self.state.adopt(self.decided)
        self.settle()

    @rule()
    def wait(self) -> None:
        """Longer than any request is worked on; the repeated proposal is then refused for certain."""
        self.now += UNCERTAIN_S + 1
        self.under_way.clear()
        if self.state.proposal is not None and self.state.proposal.epoch == self.decided.epoch:
            self.state.refuse(self.state.proposal)
        self.settle()

    @invariant()
    def every_member_has_what_was_acknowledged(self) -> None:
        for member in self.decided.members:
            assert member == 1 or self.logs[member] >= self.acknowledged


TestLossyController = LossyController.TestCase
TestLossyController.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
