"""Laws of the strategies: complete, disjoint, the same for everybody, whatever order the lists come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skylark.client.consumer.allocation_strategies import allocate, machine_room_nearby, strategy_named
from skylark.protocol.bodies import MessageQueue

QUEUES = st.sets(
    st.builds(
        MessageQueue,
        st.just("T"),
        st.sampled_from(["room1@a", "room1@b", "room2@a"]),
        st.integers(min_value=0, max_value=40),
    ),
    min_size=1,
    max_size=60,
)
MEMBERS = st.sets(st.text("abcdef0123456789@#", min_size=1, max_size=12), min_size=1, max_size=20)


def room(name: str) -> str:
    return "room1" if len(name) % 2 else "room3"


SPLITTING = {
    "AVG": strategy_named("AVG"),
    "AVG_BY_CIRCLE": strategy_named("AVG_BY_CIRCLE"),
    "CONSISTENT_HASH": strategy_named("CONSISTENT_HASH"),
    "MACHINE_ROOM": strategy_named("MACHINE_ROOM", {"room1", "room2"}),
    "MACHINE_ROOM_NEARBY": machine_room_nearby(
        strategy_named("AVG"), lambda queue: queue.broker_name.partition("@")[0], room
    ),
}


@given(
    name=st.sampled_from(sorted(SPLITTING)),
    queues=QUEUES,
    members=MEMBERS,
    random=st.randoms(use_true_random=False),
)
def test_sf_013_096_every_queue_has_exactly_one_owner(
    name: str, queues: set[MessageQueue], members: set[str], random: object
) -> None:
    def shuffled(things: set) -> list:  # type: ignore[type-arg]
        shuffled_list = list(things)
        random.shuffle(shuffled_list)  # type: ignore[attr-defined]
        return shuffled_list

    strategy = SPLITTING[name]
    shares = [allocate(strategy, member, shuffled(queues), shuffled(members)) for member in members]
    owned = [queue for share in shares for queue in share]
    assert len(owned) == len(set(owned))
    assert set(owned) == queues
    again = [allocate(strategy, member, shuffled(queues), shuffled(members)) for member in members]
    assert again == shares


@given(queues=QUEUES, members=MEMBERS, name=st.sampled_from(["AVG", "AVG_BY_CIRCLE", "MACHINE_ROOM"]))
def test_sf_010_shares_differ_by_one_at_most(name: str, queues: set[MessageQueue], members: set[str]) -> None:
    sizes = [len(allocate(SPLITTING[name], member, queues, members)) for member in members]
    assert max(sizes) - min(sizes) <= 1
