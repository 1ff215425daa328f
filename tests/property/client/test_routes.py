"""From any route to queues: what may be written, what may be read, and in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skylark.client.session.routes import RouteCache, TopicRoute, limited, same_route
from skylark.protocol.bodies import BrokerData, QueueData, TopicRouteData

NAMES = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def routes(draw: st.DrawFn) -> TopicRouteData:
    brokers = draw(st.lists(NAMES, unique=True))
    queues = draw(st.lists(NAMES, unique=True))
    return TopicRouteData(
        broker_datas=[
            BrokerData(name, "c", {number: f"{name}:{number}" for number in draw(st.sets(st.integers(0, 3)))})
            for name in brokers
        ],
        queue_datas=[
            QueueData(name, draw(st.integers(0, 9)), draw(st.integers(0, 9)), draw(st.integers(0, 7)))
            for name in queues
        ],
    )


@given(routes())
def test_exactly_the_writable_queues_of_brokers_with_a_master_can_be_written(data: TopicRouteData) -> None:
    route = TopicRoute.of("t", data)
    masters = {broker.broker_name for broker in data.broker_datas if 0 in broker.broker_addrs}
    expected = {
        (each.broker_name, number)
        for each in data.queue_datas
        if each.perm & 2 and each.broker_name in masters
        for number in range(each.write_queue_nums)
    }
    assert {(queue.broker_name, queue.queue_id) for queue in route.write_queues} == expected
    assert len(route.write_queues) == len(expected)
    assert list(route.write_queues) == sorted(route.write_queues)


@given(routes())
def test_exactly_the_readable_queues_can_be_read(data: TopicRouteData) -> None:
    route = TopicRoute.of("t", data)
    assert {(queue.broker_name, queue.queue_id) for queue in route.read_queues} == {
        (each.broker_name, number)
        for each in data.queue_datas
        if each.perm & 4
        for number in range(each.read_queue_nums)
    }
    assert list(route.read_queues) == sorted(route.read_queues)


@given(routes(), st.integers(1, 5))
def test_order_says_nothing_and_limits_hold(data: TopicRouteData, queues_max: int) -> None:
    shuffled = TopicRouteData(
        broker_datas=list(reversed(data.broker_datas)), queue_datas=list(reversed(data.queue_datas))
    )
    assert same_route(data, shuffled)
    assert TopicRoute.of("t", data).write_queues == TopicRoute.of("t", shuffled).write_queues
    small = TopicRoute.of("t", limited(data, queues_max))
    assert all(queue.queue_id < queues_max for queue in small.write_queues)


@given(st.lists(st.tuples(st.sampled_from(["t", "u", "v"]), routes()), max_size=8))
def test_after_cleaning_every_known_address_is_named_by_a_route(
    updates: list[tuple[str, TopicRouteData]],
) -> None:
    table = RouteCache()
    current: dict[str, TopicRouteData] = {}
    for topic, data in updates:
        table.update(topic, data)
        current[topic] = data
    table.clean()
    named = {
        address
        for data in current.values()
        for broker in data.broker_datas
        for address in broker.broker_addrs.values()
    }
    known = {address for addresses in table.brokers().values() for address in addresses.values()}
    assert known <= named
    assert all(addresses for addresses in table.brokers().values())
    assert table.clean() == []
