"""Pure. Changes of a group that are no election: ids, addresses, the set, removal. Remarks are Apache's.

Each function takes the group, None if the name is unknown, and returns the next one.
"""

from collections.abc import Collection, Mapping

import msgspec

from skylark.controller.group import FIRST_ID, BrokerGroup, ControllerRefusal, Replica
from skylark.controller.liveness import LiveBroker
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    RegisterBrokerToController,
)

_refused = ControllerRefusal.of


def next_id(group: BrokerGroup | None) -> int:
    return FIRST_ID if group is None else group.next_id


def apply_id(group: BrokerGroup | None, request: ApplyBrokerId) -> BrokerGroup:
    """Give an id to a broker. The same check code may apply again. Raises ControllerRefusal."""
    broker_id, name = request.applied_broker_id, request.broker_name
    replica = Replica(request.register_check_code.partition(";")[0], request.register_check_code)
    if group is None:
        if broker_id != FIRST_ID:
            raise _refused(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"Broker-set: {name} hasn't been registered in controller, "
                f"but broker try to apply brokerId: {broker_id}",
            )
        return BrokerGroup(
            cluster=request.cluster_name, name=name, next_id=FIRST_ID + 1, replicas={broker_id: replica}
        )
    known = group.replicas.get(broker_id)
    if known is None:
        return msgspec.structs.replace(group.with_replica(broker_id, replica), next_id=group.next_id + 1)
    if known.check_code != request.register_check_code:
        raise _refused(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"Fail to apply brokerId: {broker_id} in broker-set: {name}",
        )
    return group


def register(
    group: BrokerGroup | None, request: RegisterBrokerToController, live: Mapping[int, LiveBroker]
) -> BrokerGroup:
    """Take the address of a broker that starts. Raises ControllerRefusal.

    One that may have lost the end of its log leaves the set, if that has other members, and is no longer the
    master; the last member stays, and is elected only if no living replica has more.
    """
    group = known_group(group, request.broker_name)
    broker_id = request.broker_id
    replica = group.replicas.get(broker_id)
    if replica is None:
        raise _refused(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"BrokerId: {broker_id} hasn't been registered in broker-set: {group.name}",
        )
    other = live.get(broker_id)
    if other is not None and other.address != request.broker_address:
        raise _refused(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"brokerId {broker_id} of broker-set {group.name} is alive at {other.address}, so "
            f"{request.broker_address} cannot use it; was a store directory copied?",
        )
    is_unclean = request.clean_start is False and broker_id in group.members
    is_last = group.members == {broker_id}
    changed = Replica(
        request.broker_address,
        replica.check_code,
        is_learner=bool(request.async_learner),
        is_unclean=replica.is_unclean or (is_unclean and is_last),
    )
    if changed != replica:
        group = group.with_replica(broker_id, changed)
    if is_unclean and group.master == broker_id:
        group = group.with_master(None)
    if is_unclean and not is_last:
        group = group.with_members(group.members - {broker_id})
    return group


def known_group(group: BrokerGroup | None, name: str) -> BrokerGroup:
    """Raises ControllerRefusal."""
    if group is None:
        raise _refused(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"Broker-set: {name} hasn't been registered in controller",
        )
    return group


def alter_set(group: BrokerGroup | None, request: AlterSyncStateSet, live: Collection[int]) -> BrokerGroup:
    """Replace the set as the master proposes. Raises ControllerRefusal."""
    new = frozenset(request.body.members)
    rejecting = "Rejecting alter syncStateSet request because the"
    if group is None:
        raise _refused(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "Broker metadata is not existed")
    if new == group.members:
        raise _refused(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
        )
    if group.master is None or group.master != request.master_broker_id:
        master = "null" if group.master is None else group.master
        raise _refused(
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"{rejecting} current leader is:{{{master}}}, not {{{request.master_broker_id}}}",
        )
    if group.master_epoch != request.master_epoch:
        raise _refused(
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"{rejecting} current master epoch is:{{{group.master_epoch}}}, not {{{request.master_epoch}}}",
        )
    if group.set_epoch != request.body.epoch:
        raise _refused(
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"{rejecting} current syncStateSet epoch is:{{{group.set_epoch}}}, not {{{request.body.epoch}}}",
        )
    for broker_id in sorted(new):
        replica = group.replicas.get(broker_id)
        if replica is None or replica.is_learner:
            raise _refused(
                ResponseCode.CONTROLLER_INVALID_REPLICAS, f"{rejecting} replicas {{{broker_id}}} don't exist"
            )
        if broker_id not in live:
            raise _refused(
                ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"{rejecting} replicas {{{broker_id}}} don't alive"
            )
    if group.master not in new:
        raise _refused(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"{rejecting} newSyncStateSet don't contains origin leader {{{group.master}}}",
        )
    return group.with_members(new)


def clean(group: BrokerGroup | None, request: CleanBrokerData, live: Collection[int]) -> BrokerGroup | None:
    """Forget replicas, or with None as the result the whole name. Raises ControllerRefusal."""
    invalid = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    ids = _ids(request.broker_controller_ids_to_clean)
    if not request.is_clean_living_broker:
        if not ids and group is not None and group.master is not None:
            raise _refused(invalid, f"Broker {request.broker_name} is still alive, clean up failure")
        for broker_id in sorted(ids):
            if broker_id in live:
                raise _refused(
                    invalid, f"Broker [{request.broker_name},  {broker_id}] is still alive, clean up failure"
                )
    if group is None:
        raise _refused(invalid, f"Broker {request.broker_name} is not existed,clean broker data failure.")
    left = {broker_id: replica for broker_id, replica in group.replicas.items() if broker_id not in ids}
    if not ids or not left:
        return None
    group = msgspec.structs.replace(group, replicas=left)
    if group.master in ids:
        group = group.with_master(None)
    if group.members & ids:
        group = group.with_members(group.members - ids)
    return group


def _ids(text: str | None) -> frozenset[int]:
    words = [word.strip() for word in (text or "").split(";") if word.strip()]
    for word in words:
        if not word.isdecimal():
            raise _refused(
                ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
                f"brokerControllerIdsToClean has the invalid id {word!r}; use ids separated by semicolons",
            )
    return frozenset(map(int, words))
