"""The route table, with time in our hands."""

import pytest

from skylark.errors import BrokerError, RemoteProtocolError, TopicNotExist
from skylark.namesrv.route_table import NAME_CHARS_MAX, QueueMapping, RouteTable, in_zone
from skylark.protocol.bodies import DataVersion, QueueData
from skylark.settings import NameServerSettings
from tests.unit.namesrv.registering import (
    CLUSTER,
    V1,
    V2,
    addresses,
    permissions,
    register,
    registration,
    topics,
)

A = "10.0.0.1:10911"
B = "10.0.0.2:10911"
C = "10.0.0.3:10911"


@pytest.fixture
def table() -> RouteTable:
    return RouteTable(NameServerSettings())


# --- Registration ---


def test_sf_063_a_route_names_every_broker_with_its_queues(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A))
    register(table, registration("broker-b", 0, B))
    route = table.route("t1")
    assert addresses(route) == {"broker-a": {0: A}, "broker-b": {0: B}}
    queues = [
        (data.broker_name, queue) for data in route.queue_datas for queue in range(data.read_queue_nums)
    ]
    assert queues == [(name, queue) for name in ("broker-a", "broker-b") for queue in range(4)]
    assert route.filter_server_table == {}
    assert route.order_topic_conf is None


def test_unknown_topics_have_no_route(table: RouteTable) -> None:
    with pytest.raises(TopicNotExist) as caught:
        table.route("t1")
    assert caught.value.code == 17
    assert caught.value.remark.startswith(
        "No topic route info in name server for the topic: t1\nSee https://"
    )


def test_an_increment_adds_to_the_topics(table: RouteTable) -> None:
    register(table, registration())
    register(table, registration(), topics("t3", version=V2))
    assert table.topics().topic_list == ["t1", "t2", "t3"]


def test_a_table_of_one_topic_is_refused_from_a_broker_that_is_not_known(table: RouteTable) -> None:
    with pytest.raises(BrokerError, match="register broker failed"):
        register(table, registration(), topics("t1"))
    assert table.cluster_info().broker_addr_table == {}
    register(table, registration())
    with pytest.raises(BrokerError, match="register broker failed"):
        register(table, registration(broker_id=1, address=B), topics("t1"))
    register(table, registration(), topics("t3"))


def test_topics_change_with_the_version_only(table: RouteTable) -> None:
    register(table, registration())
    register(table, registration(), topics("t1", "t2", "t3", perm=4, version=V1))
    assert permissions(table, "t1") == {"broker-a": 6}
    assert permissions(table, "t3") == {"broker-a": 4}, "a new topic is taken whatever the version says"
    register(table, registration(), topics("t1", "t2", perm=4, version=V2))
    assert permissions(table, "t1") == {"broker-a": 4}


def test_topics_that_are_not_named_are_kept_or_dropped_as_set(table: RouteTable) -> None:
    register(table, registration())
    register(table, registration("broker-b", address=B), topics("t1", "t9"))
    register(table, registration(), topics("t2", "t3", version=V2))
    assert table.topics().topic_list == ["t1", "t2", "t3", "t9"]
    register(table, registration(), topics("t3", "t4", version=V2), delete_absent_topics=True)
    assert table.topics().topic_list == ["t1", "t3", "t4", "t9"]
    assert addresses(table.route("t1")) == {"broker-b": {0: B}}


def test_slaves_learn_where_their_master_is(table: RouteTable) -> None:
    slave = registration("broker-a", 1, B, enable_acting_master=False)
    reply = register(table, slave)
    assert (reply.master_addr, reply.ha_server_addr) == (None, None)
    reply = register(table, registration("broker-a", 0, A, ha_server_addr="10.0.0.1:10912"))
    assert (reply.master_addr, reply.ha_server_addr) == (None, None), "a master needs none"
    reply = register(table, slave)
    assert (reply.master_addr, reply.ha_server_addr) == (A, "10.0.0.1:10912")


def test_slaves_of_rocketmq_4_bring_no_topics(table: RouteTable) -> None:
    register(table, registration("broker-a", 1, B))
    assert table.topics().topic_list == []
    assert table.cluster_info().broker_addr_table["broker-a"].broker_addrs == {1: B}


def test_the_first_slave_of_rocketmq_5_speaks_for_a_master_that_is_gone(table: RouteTable) -> None:
    register(table, registration("broker-a", 2, C, enable_acting_master=True))
    assert permissions(table, "t1") == {"broker-a": 4}, "an acting master takes no writes"
    register(table, registration("broker-a", 1, B, enable_acting_master=True), topics("t1", "t5"))
    assert permissions(table, "t5") == {"broker-a": 4}
    register(table, registration("broker-a", 2, C, enable_acting_master=True), topics("t6", "t7", version=V2))
    assert "t6" not in table.topics().topic_list, "only the least id speaks"
    register(table, registration("broker-a", 0, A, enable_acting_master=True))
    assert permissions(table, "t1") == {"broker-a": 6}


def test_writes_stop_when_an_acting_master_is_left(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A, enable_acting_master=True))
    register(table, registration("broker-a", 1, B, enable_acting_master=True))
    table.unregister(CLUSTER, A)
    assert permissions(table, "t1") == {"broker-a": 4}
    register(table, registration("broker-a", 0, A, enable_acting_master=True))
    assert permissions(table, "t1") == {"broker-a": 6}


def test_writes_go_on_without_acting_masters_as_the_clients_find_no_master(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A, enable_acting_master=False))
    register(table, registration("broker-a", 1, B, enable_acting_master=False))
    table.unregister(CLUSTER, A)
    assert permissions(table, "t1") == {"broker-a": 6}
    assert addresses(table.route("t1")) == {"broker-a": {1: B}}


def test_a_process_that_changes_its_role_leaves_its_old_id(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A))
    register(table, registration("broker-a", 1, B))
    table.unregister(CLUSTER, A)
    register(table, registration("broker-a", 0, B))
    assert addresses(table.route("t1")) == {"broker-a": {0: B}}
    register(table, registration("broker-a", 1, B))
    assert addresses(table.route("t1")) == {"broker-a": {1: B}}, "the topics stay"


def test_a_process_that_changes_its_name_leaves_the_old_one(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A))
    register(table, registration("broker-b", 0, A), topics("t2", "t3"))
    assert list(table.cluster_info().broker_addr_table) == ["broker-b"]
    assert table.topics().topic_list == ["t2", "t3"]


def test_the_newest_process_with_an_id_has_it(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A))
    register(table, registration("broker-a", 0, B))
    assert addresses(table.route("t1")) == {"broker-a": {0: B}}
    table.unregister(CLUSTER, A)
    assert addresses(table.route("t1")) == {"broker-a": {0: B}}


def test_a_process_with_an_older_state_does_not_get_the_place(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A), topics("t1", "t2", version=DataVersion(state_version=2)))
    register(table, registration("broker-a", 1, B))
    reply = register(table, registration("broker-a", 0, B), topics("t8", "t9"))
    assert reply.to_fields() == {}
    assert addresses(table.route("t1")) == {"broker-a": {0: A}}
    assert table.topics().topic_list == ["t1", "t2"]


def test_a_broker_name_is_in_one_cluster_only(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A, cluster="c1"))
    register(table, registration("broker-a", 0, A, cluster="c2"))
    assert table.cluster_info().cluster_addr_table == {"c2": ["broker-a"]}
    table.unregister("c1", A)
    assert addresses(table.route("t1")) == {"broker-a": {0: A}}


# --- Life and death ---


def test_sf_051_a_silent_broker_is_out_after_two_minutes(table: RouteTable) -> None:
    register(table, registration(), channel="channel", now=1000)
    assert table.expire(1120) == []
    assert table.expire(1120.1) == [("10.0.0.1:10911", "channel")]
    assert table.expire(2000) == []
    with pytest.raises(TopicNotExist):
        table.route("t1")
    assert table.cluster_info().cluster_addr_table == {}


def test_sf_051_registering_again_is_a_sign_of_life(table: RouteTable) -> None:
    register(table, registration(), now=0)
    register(table, registration(), now=100)
    assert table.expire(220) == []
    assert addresses(table.route("t1"))
    assert len(table.expire(221)) == 1


def test_a_heartbeat_is_a_sign_of_life_of_a_broker_that_is_known(table: RouteTable) -> None:
    assert table.heartbeat(CLUSTER, A, 50) is None
    assert table.cluster_info().broker_addr_table == {}
    register(table, registration(), now=0)
    assert table.heartbeat(CLUSTER, A, 100) == V1
    assert table.expire(200) == []
    assert len(table.expire(220.5)) == 1


def test_a_broker_may_ask_for_a_shorter_life(table: RouteTable) -> None:
    register(table, registration(heartbeat_timeout_ms=10_000), now=0)
    register(table, registration("broker-b", address=B), now=0)
    assert [address for address, _ in table.expire(10.5)] == [A]
    assert addresses(table.route("t1")) == {"broker-b": {0: B}}


def test_the_end_of_a_channel_ends_its_brokers_at_once(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A), channel="one")
    register(table, registration("broker-b", 0, B), channel="one")
    register(table, registration("broker-c", 0, C), channel="two")
    assert table.drop_channel("three") == []
    assert table.drop_channel("one") == [A, B]
    assert addresses(table.route("t1")) == {"broker-c": {0: C}}


def test_the_end_of_an_old_channel_means_nothing(table: RouteTable) -> None:
    register(table, registration(), channel="old")
    register(table, registration(), channel="new")
    assert table.drop_channel("old") == []
    assert addresses(table.route("t1"))


def test_who_unregisters_is_gone_with_its_topics_and_cluster(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A, cluster="c1"), topics("t1", "t2"))
    register(table, registration("broker-b", 0, B, cluster="c2"), topics("t2", "t3"))
    assert table.unregister("c1", A)
    assert not table.unregister("c1", "10.0.0.9:1")
    assert table.topics().topic_list == ["t2", "t3"]
    assert table.cluster_info().cluster_addr_table == {"c2": ["broker-b"]}


# --- Topics ---


def test_writes_are_wiped_and_given_back(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A), topics("t1", "t2", perm=7))
    register(table, registration("broker-b", 0, B), topics("t1", "t9"))
    assert table.wipe_write_perm("broker-x") == 0
    assert table.wipe_write_perm("broker-a") == 2
    assert permissions(table, "t1") == {"broker-a": 5, "broker-b": 6}
    register(table, registration("broker-a", 0, A), topics("t1", "t2", perm=7))
    assert permissions(table, "t2") == {"broker-a": 5}, "the broker has no news"
    assert table.add_write_perm("broker-a") == 2
    assert permissions(table, "t1") == {"broker-a": 6, "broker-b": 6}


def test_a_topic_is_deleted_everywhere_or_in_a_cluster(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A, cluster="c1"))
    register(table, registration("broker-b", 0, B, cluster="c2"))
    table.delete_topic("t1", "c3")
    table.delete_topic("t1", "c1")
    assert addresses(table.route("t1")) == {"broker-b": {0: B}}
    table.delete_topic("t2")
    table.delete_topic("t8")
    assert table.topics().topic_list == ["t1"]


def test_a_single_topic_is_taken_for_brokers_that_are_known(table: RouteTable) -> None:
    register(table, registration())
    known = QueueData(broker_name="broker-a", read_queue_nums=2, write_queue_nums=1, perm=6)
    unknown = QueueData(broker_name="broker-x")
    table.register_topic("t7", [known, unknown])
    table.register_topic("t8", [])
    assert table.topics().topic_list == ["t1", "t2"]
    table.register_topic("t7", [known])
    assert table.route("t7").queue_datas == [known]


def test_lists_of_topics(table: RouteTable) -> None:
    assert table.system_topics().broker_addr is None
    register(table, registration("broker-a", 0, A, cluster="c1"), topics("u", "u2", topic_sys_flag=1))
    register(table, registration("broker-b", 1, B, cluster="c2"))
    register(table, registration("broker-b", 0, C, cluster="c2"), topics("s", "s2", topic_sys_flag=2))
    register(table, registration("broker-a", 0, A, cluster="c1"), topics("us", topic_sys_flag=3, version=V2))
    assert table.topics().topic_list == ["s", "s2", "u", "u2", "us"]
    assert table.topics_of_cluster("c2").topic_list == ["s", "s2"]
    assert table.topics_of_cluster("c3").topic_list == []
    assert table.topics_with_flags(1).topic_list == ["u", "u2", "us"]
    assert table.topics_with_flags(2).topic_list == ["s", "s2", "us"]
    assert table.topics_with_flags(2, 1).topic_list == ["s", "s2"]
    system = table.system_topics()
    assert system.topic_list == ["broker-a", "broker-b", "c1", "c2"]
    assert system.broker_addr == A


def test_member_groups_name_master_and_slaves(table: RouteTable) -> None:
    register(table, registration("broker-a", 1, B))
    register(table, registration("broker-a", 0, A))
    group = table.member_group(CLUSTER, "broker-a")
    assert (group.cluster, group.broker_name, group.broker_addrs) == (CLUSTER, "broker-a", {0: A, 1: B})
    assert table.member_group(CLUSTER, "broker-x").broker_addrs == {}


def test_filter_servers_come_and_go_with_their_broker(table: RouteTable) -> None:
    register(table, registration(), topics("t1", "t2", filter_servers=["10.0.0.1:3000"]))
    assert table.route("t1").filter_server_table == {A: ["10.0.0.1:3000"]}
    register(table, registration())
    assert table.route("t1").filter_server_table == {}


def test_static_topics_keep_their_mappings(table: RouteTable) -> None:
    mapping = {"topic": "t1", "bname": "broker-a", "totalQueues": 2, "epoch": 7, "currIdMap": {0: 0, "1": 1}}
    register(table, registration(), topics("t1", "t2", mappings={"t1": mapping, "t9": mapping}))
    expected = QueueMapping(topic="t1", bname="broker-a", total_queues=2, epoch=7, curr_id_map={0: 0, 1: 1})
    assert table.route("t1").topic_queue_mapping_by_broker == {"broker-a": expected}
    assert table.route("t2").topic_queue_mapping_by_broker is None
    register(table, registration("broker-a", 1, B), topics("t1", "t2", mappings={"t1": {"epoch": 8}}))
    assert table.route("t1").topic_queue_mapping_by_broker == {"broker-a": expected}, "slaves do not speak"
    table.unregister(CLUSTER, A)
    table.unregister(CLUSTER, B)
    register(table, registration(), topics("t1", "t9"))
    assert table.route("t1").topic_queue_mapping_by_broker is None
    assert table.route("t9").topic_queue_mapping_by_broker is None, "it was no topic when its mapping came"


def test_a_zone_has_its_own_brokers_and_those_without_a_master(table: RouteTable) -> None:
    filters = ["10.0.0.2:3000"]
    register(table, registration("broker-a", 0, A, zone_name="Z1"))
    register(table, registration("broker-b", 0, B), topics("t1", "t2", filter_servers=filters))
    register(table, registration("broker-c", 0, C))
    register(table, registration("broker-c", 1, "10.0.0.4:1"))
    table.unregister(CLUSTER, C)
    route = in_zone(table.route("t1"), "z1")
    assert addresses(route) == {"broker-a": {0: A}, "broker-c": {1: "10.0.0.4:1"}}
    assert [queues.broker_name for queues in route.queue_datas] == ["broker-a", "broker-c"]
    assert table.route("t1").filter_server_table == {B: filters}
    assert route.filter_server_table == {}


def test_the_generation_moves_with_what_can_be_seen(table: RouteTable) -> None:
    def moves() -> bool:
        before, seen["at"] = seen["at"], table.generation
        return before != table.generation

    seen = {"at": table.generation}
    register(table, registration())
    assert moves()
    register(table, registration(), now=30)
    table.heartbeat(CLUSTER, A, 31)
    table.expire(32)
    table.unregister(CLUSTER, B)
    table.delete_topic("t9")
    assert not moves()
    register(table, registration(zone_name="z"))
    assert moves()
    register(table, registration(zone_name="z"), topics("t1", "t2", filter_servers=["f"]))
    assert moves()
    table.wipe_write_perm("broker-a")
    assert moves()
    table.unregister(CLUSTER, A)
    assert moves()


# --- Limits ---


def test_brokers_topics_and_entries_are_limited() -> None:
    table = RouteTable(NameServerSettings(brokers_max=2, topics_max=4, topic_entries_max=6))
    register(table, registration("broker-a", 0, A))
    register(table, registration("broker-b", 0, B))
    with pytest.raises(BrokerError, match="no more than 2 brokers"):
        register(table, registration("broker-c", 0, C))
    with pytest.raises(BrokerError, match="no more than 4 topics"):
        register(table, registration("broker-b", 0, B), topics("t3", "t4", "t5", version=V2))
    register(table, registration("broker-b", 0, B), topics("t3", "t4", version=V2))
    with pytest.raises(BrokerError, match="no more than 6 topics on brokers"):
        register(table, registration("broker-a", 0, A), topics("t3", version=V2))
    with pytest.raises(BrokerError, match="no more than 6 topics on brokers"):
        table.register_topic("t4", [QueueData(broker_name="broker-a")])
    assert addresses(table.route("t3")) == {"broker-b": {0: B}}
    table.delete_topic("t4")
    register(table, registration("broker-a", 0, A), topics("t3", version=V2))
    table.unregister(CLUSTER, B)
    register(table, registration("broker-c", 0, C))


@pytest.mark.parametrize(
    ("fields", "body", "remark"),
    [
        ({"name": ""}, {}, "broker of 0 characters"),
        ({"name": "b" * 256}, {}, "broker of 256 characters"),
        ({"name": "b\nbroker removed"}, {}, "characters that cannot be printed"),
        ({"cluster": "c" * 256}, {}, "cluster of 256 characters"),
        ({"address": "nowhere"}, {}, "invalid address"),
        ({"address": "10.0.0.1:99999"}, {}, "invalid address"),
        ({"address": "10.0.0.1:0"}, {}, "cannot connect to 10.0.0.1:0"),
        ({"address": "h" * 250 + ":10911"}, {}, "address of 256 characters"),
        ({"ha_server_addr": "h" * 256}, {}, "replication address of 256 characters"),
        ({"broker_id": -1}, {}, "broker id -1 is negative"),
        ({"heartbeat_timeout_ms": 0}, {}, "heartbeat timeout of 0 ms"),
        ({"heartbeat_timeout_ms": 1 << 62}, {}, "heartbeat timeout of"),
        ({}, {"filter_servers": ["f"] * 65}, "no more than 64 filter servers"),
        ({}, {"filter_servers": ["f" * 256]}, "filter server of 256 characters"),
        ({}, {"read_queue_nums": -1}, "topic t1 has -1 and 4 queues"),
        ({}, {"write_queue_nums": 65_537}, "topic t1 has 4 and 65537 queues"),
        ({}, {"perm": 16}, "topic t1 has permission 16"),
        (
            {},
            {"mappings": {"t1": {"currIdMap": dict.fromkeys(range(65_537), 0)}}},
            "queues of a static topic",
        ),
    ],
)
def test_what_no_broker_can_mean_is_refused(
    table: RouteTable, fields: dict[str, object], body: dict[str, object], remark: str
) -> None:
    with pytest.raises(BrokerError, match=remark) as caught:
        register(table, registration(**fields), topics("t1", "t2", **body))  # type: ignore[arg-type]
    assert caught.value.code == 1
    assert table.cluster_info().broker_addr_table == {}
    assert table.generation == 0


def test_topics_and_mappings_without_sense_are_refused(table: RouteTable) -> None:
    with pytest.raises(BrokerError, match="topic of 256 characters"):
        register(table, registration(), topics("t" * 256, "t2"))
    with pytest.raises(RemoteProtocolError, match="queue mappings"):
        register(table, registration(), topics("t1", "t2", mappings={"t1": {"currIdMap": "x"}}))
    assert table.topics().topic_list == []


def test_addresses_of_ip_version_6_are_taken(table: RouteTable) -> None:
    register(table, registration(address="::1:20911"))
    register(table, registration("broker-b", address="[::1]:20911"))
    assert addresses(table.route("t1")) == {"broker-a": {0: "::1:20911"}, "broker-b": {0: "[::1]:20911"}}


# --- Limits and what is counted ---


def test_a_name_has_a_greatest_length(table: RouteTable) -> None:
    longest = "b" * NAME_CHARS_MAX
    register(table, registration(longest))
    assert addresses(table.route("t1")) == {longest: {0: A}}
    for name in (longest + "b", ""):
        with pytest.raises(BrokerError, match=f"{len(name)} characters, allowed are 1 to {NAME_CHARS_MAX}"):
            register(table, registration(name, 0, B))


def test_a_topic_that_is_registered_by_itself_is_checked_first(table: RouteTable) -> None:
    register(table, registration("broker-a", 0, A))
    register(table, registration("broker-b", 0, B))
    too_many = NameServerSettings().topic_queues_max + 1
    with pytest.raises(BrokerError):
        table.register_topic("new", [QueueData("broker-a", 4, 4, 6), QueueData("broker-b", too_many, 4, 6)])
    with pytest.raises(TopicNotExist):
        table.route("new")
    table.register_topic("new", [QueueData("broker-a", 4, 4, 6), QueueData("broker-z", 4, 4, 6)])
    with pytest.raises(TopicNotExist):
        table.route("new")
    table.register_topic("new", [QueueData("broker-a", 4, 3, 6)])
    assert table.route("new").queue_datas == [QueueData("broker-a", 4, 3, 6)]


def test_a_mapping_without_numbers_counts_nothing() -> None:
    assert QueueMapping() == QueueMapping(total_queues=0, epoch=0, dirty=False, curr_id_map={})
