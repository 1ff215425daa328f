"""Ids, addresses, the set and removal. The remarks are those that Apache's controller sends."""

import pytest

from skylark.controller import membership
from skylark.controller.group import BrokerGroup, ControllerRefusal
from skylark.protocol.bodies import SyncStateSet
from skylark.protocol.requests.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    RegisterBrokerToController,
)
from tests.unit.controller.groups import CLUSTER, NAME, address, check_code, living, make_group

TWO = make_group(1, 2, master=1, epoch=1, members={1}, set_epoch=1)


def applied(group: BrokerGroup | None, broker_id: int, code: str = "") -> BrokerGroup:
    return membership.apply_id(group, ApplyBrokerId(CLUSTER, NAME, broker_id, code or check_code(broker_id)))


def test_ids_are_handed_out_by_counting() -> None:
    assert membership.next_id(None) == 1
    one = applied(None, 1)
    assert (one.cluster, one.name, one.next_id, one.replicas[1].address) == (CLUSTER, NAME, 2, address(1))
    assert applied(one, 1) is one
    two = applied(one, 2)
    assert (membership.next_id(two), sorted(two.replicas)) == (3, [1, 2])


def test_an_id_is_given_once() -> None:
    with pytest.raises(ControllerRefusal) as caught:
        applied(None, 2)
    assert (caught.value.code, caught.value.remark) == (
        2014,
        "Broker-set: broker-a hasn't been registered in controller, but broker try to apply brokerId: 2",
    )
    with pytest.raises(ControllerRefusal) as caught:
        applied(applied(None, 1), 1, "10.0.0.9:1;5")
    assert (caught.value.code, caught.value.remark) == (
        2014,
        "Fail to apply brokerId: 1 in broker-set: broker-a",
    )


def alter(members: set[int], *, master: int = 1, epoch: int = 1, set_epoch: int = 1) -> AlterSyncStateSet:
    return AlterSyncStateSet(NAME, master, epoch, SyncStateSet.of(members, set_epoch))


REJECTING = "Rejecting alter syncStateSet request because the"


@pytest.mark.parametrize(
    ("group", "request_", "alive", "code", "remark"),
    [
        (None, alter({1}), {1, 2}, 2013, "Broker metadata is not existed"),
        (
            TWO, alter({1}), {1, 2}, 2013,
            "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
        ),
        (TWO, alter({1, 2}, master=2), {1, 2}, 2002, f"{REJECTING} current leader is:{{1}}, not {{2}}"),
        (TWO, alter({1, 2}, epoch=0), {1, 2}, 2000, f"{REJECTING} current master epoch is:{{1}}, not {{0}}"),
        (
            TWO, alter({1, 2}, set_epoch=0), {1, 2}, 2001,
            f"{REJECTING} current syncStateSet epoch is:{{1}}, not {{0}}",
        ),
        (TWO, alter({1, 9}), {1, 2}, 2003, f"{REJECTING} replicas {{9}} don't exist"),
        (TWO, alter({1, 2}), {1}, 2006, f"{REJECTING} replicas {{2}} don't alive"),
        (TWO, alter({2}), {1, 2}, 2013, f"{REJECTING} newSyncStateSet don't contains origin leader {{1}}"),
    ],
)  # fmt: skip
def test_a_set_is_refused(
    group: BrokerGroup | None, request_: AlterSyncStateSet, alive: set[int], code: int, remark: str
) -> None:
    with pytest.raises(ControllerRefusal) as caught:
        membership.alter_set(group, request_, alive)
    assert (caught.value.code, caught.value.remark) == (code, remark)


def test_a_set_is_replaced() -> None:
    changed = membership.alter_set(TWO, alter({1, 2}), {1, 2})
    assert (set(changed.members), changed.set_epoch, changed.master_epoch) == ({1, 2}, 2, 1)


def test_a_learner_never_joins_the_set() -> None:
    group = make_group(1, 2, master=1, epoch=1, members={1}, set_epoch=1, learners={2})
    with pytest.raises(ControllerRefusal):
        membership.alter_set(group, alter({1, 2}), {1, 2})


def registered(group: BrokerGroup, broker_id: int, *, at: str = "", **told: bool) -> BrokerGroup:
    request = RegisterBrokerToController(
        CLUSTER, NAME, broker_id, at or address(broker_id),
        clean_start=told.get("clean_start"), async_learner=told.get("async_learner"),
    )  # fmt: skip
    return membership.register(group, request, living(1, 2))


def test_an_address_may_change_but_not_under_a_living_broker() -> None:
    assert registered(TWO, 1) is TWO
    moved = membership.register(TWO, RegisterBrokerToController(CLUSTER, NAME, 2, "10.0.0.9:1"), living(1))
    assert moved.replicas[2].address == "10.0.0.9:1"
    with pytest.raises(ControllerRefusal, match=r"is alive at 127.*30921, so .* cannot use it"):
        registered(TWO, 2, at="10.0.0.9:1")


def test_what_was_never_applied_for_cannot_register() -> None:
    request = RegisterBrokerToController(CLUSTER, NAME, 3, address(3))
    for group, remark in (
        (None, "Broker-set: broker-a hasn't been registered in controller"),
        (TWO, "BrokerId: 3 hasn't been registered in broker-set: broker-a"),
    ):
        with pytest.raises(ControllerRefusal) as caught:
            membership.register(group, request, {})
        assert (caught.value.code, caught.value.remark) == (2010, remark)


def test_a_broker_that_may_have_lost_messages_leaves_the_set() -> None:
    both = make_group(1, 2, master=1, epoch=1, members={1, 2}, set_epoch=2)
    slave = registered(both, 2, clean_start=False)
    assert (set(slave.members), slave.set_epoch, slave.master) == ({1}, 3, 1)
    master = registered(both, 1, clean_start=False)
    assert (set(master.members), master.master, master.master_epoch) == ({2}, None, 2)
    last = registered(TWO, 1, clean_start=False)
    assert (set(last.members), last.master, last.replicas[1].is_unclean) == ({1}, None, True)
    assert registered(both, 2, clean_start=True) is both
    assert registered(both, 2, async_learner=True).replicas[2].is_learner


def cleaned(
    group: BrokerGroup | None, ids: str = "", *, alive: set[int] | None = None, force: bool = False
) -> BrokerGroup | None:
    request = CleanBrokerData(CLUSTER, NAME, ids or None, is_clean_living_broker=force)
    return membership.clean(group, request, alive or set())


def test_clean() -> None:
    both = make_group(1, 2, master=1, epoch=1, members={1, 2}, set_epoch=2)
    for arguments, remark in (
        (("",), "Broker broker-a is still alive, clean up failure"),
        (("2",), "Broker [broker-a,  2] is still alive, clean up failure"),
    ):
        with pytest.raises(ControllerRefusal) as caught:
            cleaned(both, *arguments, alive={1, 2})
        assert (caught.value.code, caught.value.remark) == (2009, remark)
    with pytest.raises(ControllerRefusal, match="invalid id 'x'"):
        cleaned(both, "1;x")
    with pytest.raises(ControllerRefusal, match="Broker broker-a is not existed,clean broker data failure"):
        cleaned(None, "1")
    assert cleaned(both, force=True) is None
    assert cleaned(both, "1;2", force=True) is None
    left = cleaned(both, "1")
    assert left is not None
    assert (sorted(left.replicas), set(left.members), left.master, left.master_epoch) == ([2], {2}, None, 2)


def test_cleaning_a_replica_outside_the_set_leaves_set_and_master() -> None:
    left = cleaned(TWO, "2")
    assert left is not None
    assert (left.members, left.set_epoch, left.master, left.master_epoch) == (
        TWO.members, TWO.set_epoch, TWO.master, TWO.master_epoch,
    )  # fmt: skip
    assert set(left.replicas) == {1}
