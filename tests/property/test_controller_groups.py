"""Whatever brokers do and in whatever order, the groups of a controller keep their invariants."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skylark.controller import membership
from skylark.controller.election import Election, Outcome, elect
from skylark.controller.group import BrokerGroup, ControllerRefusal, decode_group, encode_group
from skylark.controller.liveness import LiveBroker, LiveTable
from skylark.protocol.bodies import SyncStateSet
from skylark.protocol.requests.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    RegisterBrokerToController,
)
from tests.unit.controller.groups import CLUSTER, NAME, address, beat, check_code

IDS = st.integers(1, 4)


class GroupLife(RuleBasedStateMachine):
    """One group: brokers register, send heartbeats, die, return, and ask; a register may lose an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.live = LiveTable(0.0, 0.0)
        self.group: BrokerGroup | None = None
        self.masters: dict[int, int] = {}
        self.epochs = (0, 0)

    def put(self, group: BrokerGroup | None) -> None:
        """What the register keeps is what it gives back."""
        self.group = None if group is None else decode_group(encode_group(group))
        if group is None:
            self.masters, self.epochs = {}, (0, 0)

    def alive(self) -> dict[int, LiveBroker]:
        return dict(self.live.alive(CLUSTER, NAME, self.now))

    @rule(broker_id=IDS)
    def apply(self, broker_id: int) -> None:
        try:
            self.put(
                membership.apply_id(
                    self.group, ApplyBrokerId(CLUSTER, NAME, broker_id, check_code(broker_id))
                )
            )
        except ControllerRefusal:
            assert self.group is None

    @rule(broker_id=IDS, is_clean=st.booleans(), is_learner=st.booleans())
    def register(self, broker_id: int, is_clean: bool, is_learner: bool) -> None:
        request = RegisterBrokerToController(
            CLUSTER, NAME, broker_id, address(broker_id), clean_start=is_clean,
            async_learner=is_learner and broker_id == 4,
        )  # fmt: skip
        try:
            self.put(membership.register(self.group, request, self.alive()))
        except ControllerRefusal:
            assert self.group is None or broker_id not in self.group.replicas

    @rule(broker_id=IDS, offset=st.integers(0, 3))
    def beats(self, broker_id: int, offset: int) -> None:
        epoch = 0 if self.group is None else self.group.master_epoch
        self.live.beat(
            beat(broker_id, epoch=epoch, offset=offset, timeout_ms=2000), broker_id, broker_id, self.now
        )

    @rule(broker_id=IDS)
    def dies(self, broker_id: int) -> None:
        self.live.drop_channel(broker_id)

    @rule()
    def time_passes(self) -> None:
        self.now += 1.5
        self.live.expire(self.now)

    @precondition(lambda self: self.group is not None)
    @rule(members=st.sets(IDS, min_size=1), is_late=st.booleans(), master=st.none() | IDS)
    def alter(self, members: set[int], is_late: bool, master: int | None) -> None:
        group = self.group
        assert group is not None
        proposer = master or group.master or 1
        epoch = group.master_epoch - is_late
        request = AlterSyncStateSet(NAME, proposer, epoch, SyncStateSet.of(members, group.set_epoch))
        try:
            changed = membership.alter_set(group, request, self.alive())
        except ControllerRefusal:
            return
        assert not is_late
        assert proposer == group.master
        self.put(changed)

    @precondition(lambda self: self.group is not None)
    @rule(
        asked_by=st.none() | IDS, is_designated=st.booleans(), is_unclean=st.booleans(), is_lost=st.booleans()
    )
    def elects(self, asked_by: int | None, is_designated: bool, is_unclean: bool, is_lost: bool) -> None:
        before = self.group
        assert before is not None
        election = self._elect(before, asked_by, is_designated and asked_by is not None, is_unclean)
        group = election.group
        if election.outcome is Outcome.ELECTED:
            assert group.master in self.alive() or before.master_epoch == 0
            assert is_unclean or group.master in before.members or not before.members
        if is_lost:  # the answer of the register: the controller reads and decides again
            self.put(group)
            again = self._elect(group, asked_by, is_designated and asked_by is not None, is_unclean).group
            assert again.master_epoch == group.master_epoch or again.master != group.master
            group = again
        self.put(group)

    def _elect(
        self, group: BrokerGroup, asked_by: int | None, is_designated: bool, is_unclean: bool
    ) -> Election:
        return elect(
            group,
            self.alive(),
            master_lives=group.master in self.alive(),
            asked_by=asked_by,
            is_designated=is_designated,
            is_unclean_allowed=is_unclean,
        )

    @rule(broker_id=IDS)
    def cleans(self, broker_id: int) -> None:
        request = CleanBrokerData(CLUSTER, NAME, str(broker_id))
        try:
            self.put(membership.clean(self.group, request, self.alive()))
        except ControllerRefusal:
            assert self.group is None or broker_id in self.alive()

    @invariant()
    def one_master_per_epoch(self) -> None:
        if self.group is not None and self.group.master is not None:
            assert self.masters.setdefault(self.group.master_epoch, self.group.master) == self.group.master

    @invariant()
    def epochs_only_grow(self) -> None:
        if self.group is not None:
            epochs = (self.group.master_epoch, self.group.set_epoch)
            assert epochs[0] >= self.epochs[0]
            assert epochs[1] >= self.epochs[1]
            self.epochs = epochs

    @invariant()
    def a_master_is_a_member(self) -> None:
        if self.group is not None:
            assert self.group.master is None or self.group.master in self.group.members
            assert self.group.members <= self.group.replicas.keys()


TestGroupLife = GroupLife.TestCase
