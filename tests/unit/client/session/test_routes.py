"""From routes to queues and addresses."""

import pytest

from skylark.client.session.routes import FoundBroker, RouteCache, TopicRoute, limited
from skylark.errors import BrokerUnknown
from skylark.protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData


def route(*brokers: str, queues: int = 2, perm: int = 6, ids: tuple[int, ...] = (0,)) -> TopicRouteData:
    return TopicRouteData(
        broker_datas=[
            BrokerData(name, "c", {number: f"{name}:{number}" for number in ids}) for name in brokers
        ],
        queue_datas=[QueueData(name, queues, queues, perm) for name in brokers],
    )


def names(queues: tuple[MessageQueue, ...]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


def test_queues_are_those_of_all_brokers_by_name() -> None:
    found = TopicRoute.of("t", route("b", "a"))
    assert names(found.write_queues) == names(found.read_queues) == ["a0", "a1", "b0", "b1"]
    assert not found.is_ordered


def test_queues_follow_permissions_and_numbers() -> None:
    data = route("a")
    data.queue_datas = [QueueData("a", 3, 1, 6), QueueData("b", 1, 1, 6)]
    found = TopicRoute.of("t", data)
    assert names(found.write_queues) == ["a0"], "b has no address"
    assert names(found.read_queues) == ["a0", "a1", "a2", "b0"]
    assert TopicRoute.of("t", route("a", perm=4)).write_queues == ()
    assert TopicRoute.of("t", route("a", perm=2)).read_queues == ()


def test_without_its_master_a_broker_can_only_be_read() -> None:
    found = TopicRoute.of("t", route("a", ids=(1,)))
    assert found.write_queues == ()
    assert names(found.read_queues) == ["a0", "a1"]


def test_an_ordered_topic_keeps_its_queues_when_a_broker_is_away() -> None:
    data = route("a")
    data.order_topic_conf = "b:2;a:1;nonsense"
    found = TopicRoute.of("t", data)
    assert found.is_ordered
    assert names(found.write_queues) == ["b0", "b1", "a0"]


def test_the_route_of_a_new_topic_is_limited() -> None:
    assert names(TopicRoute.of("t", limited(route("a", queues=8), 4)).write_queues) == [
        "a0",
        "a1",
        "a2",
        "a3",
    ]
    assert names(TopicRoute.of("t", limited(route("a", queues=2), 4)).write_queues) == ["a0", "a1"]


def test_only_news_is_news() -> None:
    table = RouteCache()
    assert table.update("t", route("a", "b")) is not None
    assert table.update("t", route("b", "a")) is None, "the order of entries says nothing"
    changed = table.update("t", route("a", "b", queues=3))
    assert changed is not None
    assert table.get("t") is changed
    assert table.get("u") is None


def test_addresses_that_no_route_names_are_forgotten() -> None:
    table = RouteCache()
    table.update("t", route("a", "b", ids=(0, 1)))
    table.update("u", route("b"))
    table.update("t", route("a", ids=(0,)))
    assert sorted(table.clean()) == ["a:1", "b:1"]
    assert table.brokers() == {"a": {0: "a:0"}, "b": {0: "b:0"}}
    table.update("u", TopicRouteData())
    assert table.clean() == ["b:0"]
    assert table.brokers() == {"a": {0: "a:0"}}
    assert (table.broker_of("a:0"), table.broker_of("b:0")) == ("a", None)
    with pytest.raises(BrokerUnknown):
        table.master("b")


def test_the_old_address_of_a_broker_that_moved_is_forgotten() -> None:
    table = RouteCache()
    table.update("t", route("a"))
    table.note_version("a:0", 479)
    moved = route("a")
    moved.broker_datas[0].broker_addrs[0] = "elsewhere:0"
    table.update("t", moved)
    assert table.clean() == ["a:0"]
    assert (table.broker_of("a:0"), table.broker_of("elsewhere:0")) == (None, "a")
    assert table.clean() == []


def test_where_to_read() -> None:
    table = RouteCache()
    table.update("t", route("a", ids=(0, 2)))
    table.note_version("a:2", 479)
    assert table.master("a") == "a:0"
    assert table.readable("a") == FoundBroker("a:0", is_slave=False)
    assert table.readable("a", 1) == FoundBroker("a:2", is_slave=True, version=479), "the next one"
    assert table.readable("a", 7) == FoundBroker("a:0", is_slave=False), "any"
    with pytest.raises(BrokerUnknown):
        table.readable("a", 7, only_this=True)
    table.update("t", route("a", ids=(1,)))
    assert table.readable("a").is_slave
    with pytest.raises(BrokerUnknown):
        table.master("a")


def test_a_broker_with_replicas_and_without_a_master_is_being_elected_for() -> None:
    assert TopicRoute.of("t", route("a", ids=(1,))).masterless == "a"
    assert TopicRoute.of("t", route("a", ids=(0, 1))).masterless is None
    assert TopicRoute.of("t", route("a", ids=(1,), perm=4)).masterless is None, "it takes no messages"
    assert TopicRoute.of("t", route("a", ids=())).masterless is None, "it has no replica"
    data = route("a", "b")
    del data.broker_datas[1].broker_addrs[0]
    data.broker_datas[1].broker_addrs[1] = "b:1"
    assert TopicRoute.of("t", data).masterless == "b"
    table = RouteCache()
    table.update("t", data)
    assert [table.awaits_master(name) for name in ("a", "b", "unknown")] == [False, True, False]


def test_both_numbers_of_a_new_topic_are_limited_by_the_readable_queues() -> None:
    data = route("a")
    data.queue_datas = [QueueData("a", 3, 9, 6, 5)]
    assert limited(data, 4).queue_datas == [QueueData("a", 3, 3, 6, 5)]
    assert limited(data, 2).queue_datas == [QueueData("a", 2, 2, 6, 5)]


def test_topics_of_a_broker() -> None:
    table = RouteCache()
    table.update("t", route("a", "b"))
    table.update("u", route("b"))
    assert [table.topics_of(name) for name in ("a", "b", "c")] == [["t"], ["t", "u"], []]


def test_every_part_of_a_route_is_compared() -> None:
    table = RouteCache()
    table.update("t", route("a"))
    ordered = route("a")
    ordered.order_topic_conf = "a:1"
    servers = route("a")
    servers.order_topic_conf = "a:1"
    servers.filter_server_table = {"a:0": ["f:1"]}
    for changed in (ordered, servers, route("a", ids=(0, 1)), route("a", queues=3)):
        assert table.update("t", changed) is not None
        assert table.update("t", changed) is None


def test_the_version_of_a_forgotten_address_is_forgotten() -> None:
    table = RouteCache()
    table.update("t", route("a"))
    table.note_version("a:0", 479)
    assert table.readable("a").version == 479
    table.update("t", TopicRouteData())
    table.clean()
    table.update("t", route("a"))
    assert table.readable("a").version == 0


def test_only_this_replica_or_the_next_one() -> None:
    table = RouteCache()
    table.update("t", route("a", ids=(1, 3)))
    assert table.readable("a", 1, only_this=True).address == "a:1"
    assert table.readable("a", 2, only_this=True).address == "a:3"
    assert table.readable("a", 0).address == "a:1", "without a master any"
    with pytest.raises(BrokerUnknown):
        table.readable("a", 0, only_this=True)
    with pytest.raises(BrokerUnknown):
        table.readable("b")
