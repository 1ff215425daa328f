"""What administration answers: sums, orders, and failures that nobody can overlook."""

import pytest

from skylark.admin.results import (
    BrokerNode,
    BrokerSummary,
    ClientInfo,
    ConnectedConsumers,
    Gathered,
    Group,
    GroupProgress,
    Route,
    Topic,
    TopicStats,
    merged_clients,
)
from skylark.errors import BrokerError, NoRoute, SomeServersFailed
from skylark.protocol.bodies import (
    BrokerData,
    ConnectionInfo,
    ConsumerConnection,
    ConsumeStatsTable,
    GroupOffset,
    MessageQueue,
    QueueData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicOffset,
    TopicRouteData,
    TopicStatsTable,
)


def test_one_failure_among_several_is_told_with_who_has_done_it() -> None:
    gathered = Gathered({"a:1": 5}, {"b:1": NoRoute("orders")})
    assert gathered.some("read") == {"a:1": 5}
    with pytest.raises(SomeServersFailed, match="read failed at b:1") as caught:
        gathered.complete("read")
    assert caught.value.done == ("a:1",)
    assert isinstance(caught.value.failures["b:1"], NoRoute)


def test_the_only_failure_is_raised_as_it_is() -> None:
    error = BrokerError.for_code(17, "no topic")
    with pytest.raises(type(error)):
        Gathered({}, {"a:1": error}).complete("read")
    with pytest.raises(type(error)):
        Gathered({}, {"a:1": error}).some("read")


def test_nobody_who_failed_is_no_failure() -> None:
    assert Gathered[int]({}, {}).some("read") == {}


def test_a_group_survives_the_way_to_the_broker_and_back() -> None:
    group = Group("g", consume_enabled=False, retries_max=3, retry_queues=2, attributes={"a": "b"})
    assert Group.read(group.to_config()) == group
    assert Group.read(SubscriptionGroupConfig(group_name="g")) == Group("g")


def test_permissions_of_a_topic() -> None:
    topic = Topic.read(TopicConfig(topic_name="t", perm=4))
    assert topic.is_readable
    assert not topic.is_writable


def route() -> Route:
    return Route.read(
        "t",
        TopicRouteData(
            broker_datas=[
                BrokerData(broker_name="b", cluster="c2", broker_addrs={1: "b:2"}),
                BrokerData(broker_name="a", cluster="c1", broker_addrs={1: "a:2", 0: "a:1"}),
                BrokerData(broker_name="d", cluster="c1", broker_addrs={}),
            ],
            queue_datas=[
                QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=6),
                QueueData(broker_name="a", read_queue_nums=2, write_queue_nums=1, perm=4),
                QueueData(broker_name="d", read_queue_nums=2, write_queue_nums=1, perm=2),
                QueueData(broker_name="gone", read_queue_nums=2, write_queue_nums=1, perm=6),
            ],
        ),
    )


def test_a_route_names_masters_first_and_readable_queues_alone() -> None:
    found = route()
    assert (found.address("a"), found.address("b"), found.address("d")) == ("a:1", "b:2", None)
    assert found.address("gone") is None
    assert found.clusters == ["c1", "c2"]
    assert found.queues() == [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)]


def test_progress_sums_up_and_sorts() -> None:
    first, second = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)
    stats = [
        ConsumeStatsTable(
            offset_table={second: GroupOffset(broker_offset=5, consumer_offset=5)}, consume_tps=1.0
        ),
        ConsumeStatsTable(
            offset_table={
                first: GroupOffset(broker_offset=9, consumer_offset=4, pull_offset=2, last_timestamp=77)
            },
            consume_tps=2.0,
        ),
    ]
    progress = GroupProgress.read("g", stats, {})
    assert [part.queue for part in progress.queues] == [first, second]
    assert progress.lag == 5
    assert progress.consumed_per_s == 3.0
    assert (progress.queues[0].pulled, progress.queues[0].last_consumed_ms) == (4, 77)


def test_a_topic_counts_its_messages() -> None:
    tables = [
        TopicStatsTable(offset_table={MessageQueue("t", "a", n): TopicOffset(min_offset=n, max_offset=10)})
        for n in range(2)
    ]
    assert TopicStats.read("t", tables, {}).messages == 19


def test_a_broker_that_says_little_is_read_all_the_same() -> None:
    node = BrokerNode("c", "b", 0, "b:1")
    table = {
        "putTps": "1.5 2.0 ",
        "getTransferredTps": "  ",
        "earliestMessageTimeStamp": "-1",
        "msgPutTotalTodayNow": "x",
    }
    summary = BrokerSummary.read(node, table)
    assert (summary.puts_per_s, summary.gets_per_s, summary.puts_today) == (1.5, 0.0, 0)
    assert summary.earliest_message_ms is None
    assert summary.is_active


def test_a_client_of_two_brokers_is_one_client() -> None:
    client = ClientInfo("c@1", "10.0.0.1:5", "JAVA", 479)
    [merged] = merged_clients([("b:1", client), ("a:1", client)])
    assert merged.brokers == ("a:1", "b:1")


def test_subscriptions_of_all_brokers_are_there() -> None:
    def connection(topic: str) -> ConsumerConnection:
        return ConsumerConnection(
            connection_set=[ConnectionInfo("c@1", "10.0.0.1:5", "PYTHON", 479)],
            subscription_table={topic: SubscriptionData(topic=topic)},
            message_model="CLUSTERING",
        )

    consumers = ConnectedConsumers.read("g", {"a:1": connection("t"), "b:1": connection("u")}, {})
    assert set(consumers.subscriptions) == {"t", "u"}
    assert len(consumers.clients) == 1
