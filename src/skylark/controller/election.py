"""Pure. The election of a master: a group and who is alive in, the next group out."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from skylark.controller.group import BrokerGroup
from skylark.controller.liveness import LiveBroker


class Outcome(Enum):
    """What an election did."""

    ELECTED = "new_master_elected"
    KEPT = "keep_current_master"
    NOBODY = "no_master_elected"


class Election(NamedTuple):
    """`group` is the next document: the same one, unless a master was elected or removed."""

    outcome: Outcome
    group: BrokerGroup


def elect(
    group: BrokerGroup,
    live: Mapping[int, LiveBroker],
    *,
    master_lives: bool,
    asked_by: int | None = None,
    is_designated: bool = False,
    is_unclean_allowed: bool = False,
) -> Election:
    """Elect a master. `asked_by` is the broker that asks, None for the controller itself.

    `is_designated` moves the master to `asked_by`, if that is a candidate. Without unclean elections only
    living members of the set are candidates: they have every message that was acknowledged by the whole set.
    """
    if not group.members:
        return _elect_first(group, live, asked_by)
    chosen = _choose(group, live, _wanted(asked_by, is_designated), master_lives, group.members)
    if chosen is None and is_unclean_allowed:
        chosen = _choose(group, live, _wanted(asked_by, is_designated), master_lives, group.replicas)
    if chosen is not None and chosen == group.master:
        return Election(Outcome.KEPT, group)
    if chosen is not None:
        return Election(Outcome.ELECTED, group.with_master(chosen))
    if asked_by is None and group.master is not None:
        return Election(Outcome.NOBODY, group.with_master(None))
    return Election(Outcome.NOBODY, group)


def _wanted(asked_by: int | None, is_designated: bool) -> int | None:
    return asked_by if is_designated else None


def _elect_first(group: BrokerGroup, live: Mapping[int, LiveBroker], asked_by: int | None) -> Election:
    """The set is empty. There was no master before: the first to ask is elected, since nothing can be lost.

    Or an administrator removed all members: the one with the most messages is elected. The epoch exceeds
    those in the logs of the brokers, which a controller that was cleaned has forgotten.
    """
    known = max((broker.epoch for broker in live.values()), default=0)
    if group.master_epoch > 0:
        chosen = _choose(group, live, None, False, group.replicas)
    else:
        replica = None if asked_by is None else group.replicas.get(asked_by)
        chosen = None if replica is None or replica.is_learner else asked_by
    if chosen is None:
        return Election(Outcome.NOBODY, group)
    return Election(Outcome.ELECTED, group.with_master(chosen, epoch_min=known + 1))


def _choose(
    group: BrokerGroup,
    live: Mapping[int, LiveBroker],
    wanted: int | None,
    master_lives: bool,
    among: Iterable[int],
) -> int | None:
    if master_lives and group.master is not None and wanted in (None, group.master):
        return group.master
    candidates = [
        broker_id for broker_id in among if broker_id in live and _is_eligible(group, broker_id, live)
    ]
    if wanted is not None:
        return wanted if wanted in candidates else None
    return min(candidates, key=lambda broker_id: _rank(broker_id, live), default=None)


def _is_eligible(group: BrokerGroup, broker_id: int, live: Mapping[int, LiveBroker]) -> bool:
    replica = group.replicas.get(broker_id)
    if replica is None or replica.is_learner:
        return False
    if not replica.is_unclean:
        return True
    # The end of its log may be lost: only if no replica has more.
    return all(
        other.progress <= live[broker_id].progress
        for other_id, other in live.items()
        if other_id in group.replicas
    )


def _rank(broker_id: int, live: Mapping[int, LiveBroker]) -> tuple[int, int, int, int]:
    broker = live[broker_id]
    return -broker.epoch, -broker.max_offset, broker.priority, broker_id
