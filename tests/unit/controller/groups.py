"""Groups, living brokers and heartbeats for tests of the controller."""

from collections.abc import Iterable, Mapping

from skylark.controller.group import BrokerGroup, Replica
from skylark.controller.liveness import LiveBroker
from skylark.protocol.requests.name_server import BrokerHeartbeat

CLUSTER = "C1"
NAME = "broker-a"


def address(broker_id: int) -> str:
    return f"127.0.0.1:{30_901 + 10 * broker_id}"


def check_code(broker_id: int) -> str:
    return f"{address(broker_id)};1700000000000"


def make_group(
    *ids: int,
    master: int | None = None,
    epoch: int = 0,
    members: Iterable[int] = (),
    set_epoch: int = 0,
    learners: Iterable[int] = (),
    unclean: Iterable[int] = (),
) -> BrokerGroup:
    replicas = {
        each: Replica(address(each), check_code(each), each in set(learners), each in set(unclean))
        for each in ids
    }
    return BrokerGroup(
        cluster=CLUSTER,
        name=NAME,
        master_epoch=epoch,
        master=master,
        set_epoch=set_epoch,
        members=frozenset(members),
        next_id=len(ids) + 1,
        replicas=replicas,
    )


def living(*ids: int, **progress: tuple[int, int, int]) -> Mapping[int, LiveBroker]:
    """Living brokers; `b2=(epoch, max_offset, priority)` tells what the heartbeats of broker 2 said."""
    table = {}
    for each in ids:
        epoch, offset, priority = progress.get(f"b{each}", (0, 0, 0))
        table[each] = LiveBroker(address(each), object(), 0.0, 10.0, epoch, offset, priority)
    return table


def beat(broker_id: int, *, epoch: int = 0, offset: int = 0, timeout_ms: int = 10_000) -> BrokerHeartbeat:
    return BrokerHeartbeat(
        CLUSTER, address(broker_id), NAME, broker_id, epoch, offset, offset, timeout_ms, broker_id
    )
