"""Admin on a cluster of two brokers of ours: what it reads and changes, and what it says of failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.admin.admin import AsyncAdmin
from skylark.admin.offsets import BEGIN, END
from skylark.admin.results import Group, Topic
from skylark.errors import (
    AlreadyStarted,
    BadName,
    BrokerError,
    ClientClosed,
    ClientError,
    NoRoute,
    RemotingError,
    SettingsError,
    SomeServersFailed,
)
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.settings.client import ClientSettings
from tests.integration.admin_rig import GROUP, QUEUES, TOPIC, Rig, running_rig
from tests.support.broker import consumer, running_cluster, until

ALL_QUEUES = [MessageQueue(TOPIC, name, n) for name in ("broker-a", "broker-b") for n in range(QUEUES)]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running_rig(tmp_path) as running:
        yield running


# --- The admin itself ---


async def test_an_admin_is_started_once_and_used_between(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as (name_server, _):
        admin = AsyncAdmin(client=ClientSettings(name_servers=name_server.address))
        with pytest.raises(ClientClosed):
            await admin.topics.names()
        await admin.start()
        assert "TBW102" in await admin.topics.names()
        with pytest.raises(AlreadyStarted):
            await admin.start()
        await admin.stop()
        await admin.stop()
        with pytest.raises(ClientClosed):
            await admin.topics.names()


def test_an_admin_wants_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(SettingsError, match="NAMESRV_ADDR"):
        AsyncAdmin()


async def test_a_name_server_that_is_away_is_passed_over(rig: Rig) -> None:
    async with AsyncAdmin(namesrv=f"127.0.0.1:1;{rig.name_server.address}") as admin:
        assert TOPIC in await admin.topics.names()
        # What all of them must be told is told to those who listen, and the rest is reported.
        with pytest.raises(SomeServersFailed, match=r"127\.0\.0\.1:1 ") as caught:
            await admin.name_servers.put("space", "key", "value")
        assert caught.value.done == (rig.name_server.address,)
        assert await admin.name_servers.get("space", "key") == "value"


# --- Brokers ---


async def test_clusters_and_brokers(rig: Rig) -> None:
    nodes = await rig.admin.brokers.nodes()
    assert [(node.name, node.is_master) for node in nodes] == [("broker-a", True), ("broker-b", True)]
    assert list(await rig.admin.brokers.clusters()) == ["DefaultCluster"]
    assert await rig.admin.brokers.replicas("DefaultCluster", "broker-a") == {0: rig.brokers[0].address}
    with pytest.raises(ClientError, match="unknown cluster Elsewhere; known clusters: DefaultCluster"):
        await rig.admin.brokers.nodes(cluster="Elsewhere")
    with pytest.raises(ClientError, match="unknown broker broker-c; known brokers: broker-a, broker-b"):
        await rig.admin.brokers.runtime("broker-c")


async def test_a_broker_that_is_away_is_in_the_summary_as_a_failure(rig: Rig) -> None:
    await rig.send(1)
    summary = await rig.admin.brokers.summary()
    assert [broker.node.name for broker in summary.brokers] == ["broker-a", "broker-b"]
    assert summary.brokers[0].version == "V5_3_3"
    assert sum(broker.puts_today for broker in summary.brokers) == 1
    # The name server learns of it late; whoever asks the broker learns of it now.
    await rig.take_away(1)
    summary = await rig.admin.brokers.summary()
    assert [broker.node.name for broker in summary.brokers] == ["broker-a"]
    assert isinstance(summary.failures[rig.brokers[1].address], RemotingError)
    with pytest.raises(SomeServersFailed, match="create topic New") as caught:
        await rig.admin.topics.create("New")
    assert caught.value.done == (rig.brokers[0].address,)


async def test_settings_of_brokers(rig: Rig) -> None:
    await rig.admin.brokers.update_config({"shortPollingTimeMills": "444"})
    for name in ("broker-a", "broker-b"):
        assert (await rig.admin.brokers.config(name))["shortPollingTimeMills"] == "444"
    before = await rig.admin.brokers.config_version("broker-a")
    await rig.admin.brokers.update_config({"shortPollingTimeMills": "445"}, broker="broker-a")
    assert await rig.admin.brokers.config_version("broker-a") != before
    assert (await rig.admin.brokers.config("broker-b"))["shortPollingTimeMills"] == "444"
    with pytest.raises(BrokerError, match="black list"):
        await rig.admin.brokers.update_config({"brokerConfigPath": "x"}, broker="broker-a")


async def test_what_a_broker_says_of_itself(rig: Rig) -> None:
    brokers, name = rig.admin.brokers, "broker-a"
    assert (await brokers.runtime(name))["brokerVersionDesc"] == "V5_3_3"
    assert (await brokers.replication(name)).master
    assert (await brokers.replication_addresses(name)).master_address == rig.brokers[0].address
    with pytest.raises(BrokerError, match="controllerMode"):
        await brokers.epochs(name)
    assert (await brokers.consume_stats(name)).broker_addr == rig.brokers[0].address
    with pytest.raises(BrokerError, match="not exist"):
        await brokers.stats(name, "TOPIC_PUT_NUMS", "NeverHeardOf")
    await rig.send(1)
    assert (await brokers.stats(name, "TOPIC_PUT_NUMS", TOPIC)).stats_day.sum >= 0


async def test_upkeep_of_brokers(rig: Rig) -> None:
    brokers = rig.admin.brokers
    await brokers.clean_queues()
    await brokers.clean_topics(broker="broker-b")
    await brokers.delete_expired_log(cluster="DefaultCluster")
    await brokers.reset_master_flush_offset("broker-a", 0)
    await brokers.limit_cold_reads("broker-a", {GROUP: 1000})
    assert GROUP in await brokers.cold_reads("broker-a")
    await brokers.unlimit_cold_reads("broker-a", GROUP)
    assert GROUP not in await brokers.cold_reads("broker-a")
    await brokers.set_read_ahead("broker-a", True)
    await brokers.export_rocksdb_config("broker-a", ("topics",))
    assert "checkStatus" in await brokers.check_rocksdb_queues("broker-a", TOPIC)
    await brokers.export_pops("broker-a")


async def test_a_broker_is_taken_off_producers_and_given_back(rig: Rig) -> None:
    def permission(route_brokers: object) -> int:
        return next(part.permission for part in route.brokers if part.broker_name == "broker-a")

    counts = await rig.admin.brokers.wipe_write_permission("broker-a")
    assert counts[rig.name_server.address] > 0
    route = await rig.admin.topics.route(TOPIC)
    assert permission(route) == 4
    await rig.admin.brokers.add_write_permission("broker-a")
    route = await rig.admin.topics.route(TOPIC)
    assert permission(route) == 6


# --- Name servers ---


async def test_the_table_and_the_settings_of_name_servers(rig: Rig) -> None:
    servers = rig.admin.name_servers
    assert await servers.get("space", "key") is None
    assert await servers.table("space") == {}
    await servers.put("space", "key", "value")
    assert await servers.get("space", "key") == "value"
    assert await servers.table("space") == {"key": "value"}
    await servers.delete("space", "key")
    assert await servers.get("space", "key") is None
    await servers.update_config({"orderMessageEnable": "true"})
    assert (await servers.config())[rig.name_server.address]["orderMessageEnable"] == "true"
    with pytest.raises(BrokerError, match="black list"):
        await servers.update_config({"kvConfigPath": "x"})


# --- Topics ---


async def test_topics_are_made_changed_and_deleted(rig: Rig) -> None:
    topics = rig.admin.topics
    await topics.create("Made", read_queues=3, write_queues=2, attributes={"message.type": "FIFO"})
    assert (await topics.config("Made")).answers[rig.brokers[1].address] == Topic(
        "Made", 3, 2, 6, False, {"message.type": "FIFO"}
    )
    await topics.update("Made", write_queues=3, permission=4, broker="broker-a")
    config = (await topics.config("Made")).answers
    assert (config[rig.brokers[0].address].write_queues, config[rig.brokers[0].address].permission) == (3, 4)
    assert config[rig.brokers[0].address].attributes == {"message.type": "FIFO"}
    assert config[rig.brokers[1].address].write_queues == 2
    await topics.update("Made", ordered=True, attributes={"message.type": None})
    assert all(
        not topic.attributes and topic.ordered for topic in (await topics.config("Made")).answers.values()
    )
    await topics.create_all([Topic("ListedA", 1, 1, 6, False, {}), Topic("ListedB", 1, 1, 6, False, {})])
    assert {"ListedA", "ListedB", "Made"} <= set(await topics.names())
    assert "Made" in await topics.names(cluster="DefaultCluster")
    assert "Made" in [topic.name for topic in await topics.on_broker("broker-b")]
    await topics.delete("Made")
    assert "Made" not in await topics.names()
    with pytest.raises(NoRoute):
        await topics.route("Made")
    with pytest.raises(BadName, match="illegal characters"):
        await topics.create("not a topic")


async def test_a_topic_on_one_broker(rig: Rig) -> None:
    await rig.admin.topics.create("Single", queues=1, broker=rig.brokers[1].address)
    route = await rig.admin.topics.route("Single")
    assert [broker.broker_name for broker in route.brokers] == ["broker-b"]
    assert route.clusters == ["DefaultCluster"]
    assert await rig.admin.topics.queues("Single") == [MessageQueue("Single", "broker-b", 0)]


async def test_lists_of_topics(rig: Rig) -> None:
    assert {"TBW102", "broker-a", "DefaultCluster"} <= set(await rig.admin.topics.system())
    await rig.admin.topics.create("OfUnit", system_flag=1)
    await rig.admin.topics.create("SubscribedByUnit", system_flag=2)
    await rig.admin.topics.create("Both", system_flag=3)
    await until(lambda: _has_units(rig))
    assert await rig.admin.topics.units() == ["Both", "OfUnit"]
    assert await rig.admin.topics.unit_subscriptions() == ["Both", "SubscribedByUnit"]
    assert await rig.admin.topics.unit_subscriptions(outside_units=True) == ["SubscribedByUnit"]


async def _has_units(rig: Rig) -> bool:
    return len(await rig.admin.topics.units()) == 2


async def test_the_queues_of_a_topic(rig: Rig) -> None:
    for number in range(3):
        await rig.send(number, broker=number % 2)
    stats = await rig.admin.topics.stats(TOPIC)
    assert [part.queue for part in stats.queues] == ALL_QUEUES
    assert [part.end for part in stats.queues] == [2, 0, 1, 0]
    assert stats.messages == 3
    assert stats.queues[0].last_stored_ms is not None
    assert stats.queues[1].last_stored_ms is None
    assert not stats.failures


async def test_the_order_of_a_topic(rig: Rig) -> None:
    assert await rig.admin.topics.order(TOPIC) is None
    await rig.admin.topics.set_order(TOPIC, "broker-a:2")
    assert await rig.admin.topics.order(TOPIC) == "broker-a:2"
    await rig.admin.topics.set_order(TOPIC, None)
    assert await rig.admin.topics.order(TOPIC) is None


# --- Groups and clients ---


async def test_groups_are_made_changed_and_deleted(rig: Rig) -> None:
    groups = rig.admin.groups
    attributes = {"lite.bind.topic": TOPIC}
    await groups.create(Group("Made", retries_max=3, broadcast_enabled=False, attributes=attributes))
    await groups.update("Made", retry_queues=2, broker="broker-a")
    found = (await groups.config("Made")).answers
    assert found[rig.brokers[0].address] == Group(
        "Made", retries_max=3, broadcast_enabled=False, retry_queues=2, attributes=attributes
    )
    assert found[rig.brokers[1].address].retry_queues == 1
    await groups.create_all([Group("ListedA"), Group("ListedB")])
    assert {"ListedA", "ListedB", "Made", GROUP} <= set(await groups.names())
    assert "Made" in [group.name for group in await groups.on_broker("broker-b")]
    assert (await groups.config("NeverHeardOf")).answers == {}
    assert "NeverHeardOf" not in await groups.names()
    assert (await groups.ensure("ByAsking", "broker-a")).name == "ByAsking"
    await groups.delete("Made")
    assert "Made" not in await groups.names()
    with pytest.raises(BadName):
        await groups.create("not a group")
    with pytest.raises(ClientError, match="no group NeverHeardOf"):
        await groups.update("NeverHeardOf", retries_max=1)
    with pytest.raises(TypeError):
        await groups.update(GROUP, unheard_of=1)


async def test_lite_topics_are_shown_broker_by_broker(rig: Rig) -> None:
    lite = rig.admin.lite_topics
    await rig.admin.topics.create("Parent", attributes={"message.type": "LITE"})
    await rig.admin.groups.create(Group("LiteGroup", attributes={"lite.bind.topic": "Parent"}))
    parents = await lite.parent("Parent")
    assert parents.keys() == {broker.address for broker in rig.brokers}
    assert [info.groups for info in parents.values()] == [["LiteGroup"]] * 2
    assert (await lite.on_broker("broker-a")).group_meta == {"Parent": ["LiteGroup"]}
    assert {info.topic_offset.max_offset for info in (await lite.find("Parent", "one")).values()} == {0}
    assert {info.total_lag_count for info in (await lite.lag("Parent", "LiteGroup")).values()} == {0}
    known = await lite.subscriptions("Parent", "LiteGroup", "nobody")
    assert {info.lite_topic_count for info in known.values()} == {-1}
    await lite.look_again("Parent", "LiteGroup")


async def test_what_a_group_may_read_and_how(rig: Rig) -> None:
    groups = rig.admin.groups
    assert await groups.is_readable(GROUP, TOPIC)
    await groups.set_readable(GROUP, TOPIC, False)
    assert not await groups.is_readable(GROUP, TOPIC)
    await groups.set_readable(GROUP, TOPIC, True)
    assert await groups.is_readable(GROUP, TOPIC)
    await groups.set_request_mode(GROUP, TOPIC, "PULL")
    assert (await groups.request_modes("broker-a"))[TOPIC][GROUP].mode == "PULL"


async def test_how_far_a_group_is(rig: Rig) -> None:
    for number in range(4):
        await rig.send(number, broker=number % 2)
    await rig.admin.offsets.commit(GROUP, {ALL_QUEUES[0]: 1, ALL_QUEUES[2]: 2})
    progress = await rig.admin.groups.progress(GROUP, TOPIC)
    assert [(part.committed, part.end) for part in progress.queues] == [(1, 2), (0, 0), (2, 2), (0, 0)]
    assert progress.lag == 1
    assert progress.queues[0].last_consumed_ms is not None
    assert await rig.admin.groups.topics(GROUP) == [TOPIC]
    assert await rig.admin.topics.groups(TOPIC) == [GROUP]
    spans = await rig.admin.groups.time_spans(GROUP, TOPIC)
    assert [span.message_queue for span in spans] == ALL_QUEUES
    assert (await rig.admin.groups.progress("NeverHeardOf")).queues == ()


async def test_who_is_connected(rig: Rig) -> None:
    with pytest.raises(BrokerError) as caught:
        await rig.admin.clients.consumers(GROUP)
    assert caught.value.code == ResponseCode.CONSUMER_NOT_ONLINE
    for client in rig.clients:
        await client.heartbeat(consumer(GROUP, [TOPIC]), producers=["Shop"])
    consumers = await rig.admin.clients.consumers(GROUP)
    [client_info] = consumers.clients
    assert client_info.client_id == rig.clients[0].client_id
    assert set(client_info.brokers) == {broker.address for broker in rig.brokers}
    assert consumers.subscriptions[TOPIC].sub_string == "*"
    assert consumers.message_model == "CLUSTERING"
    [producer] = (await rig.admin.clients.producers("Shop")).clients
    assert producer.client_id == rig.clients[0].client_id
    assert (await rig.admin.clients.producers("NeverHeardOf")).clients == ()
    assert list(await rig.admin.clients.all_producers("broker-a")) == ["Shop"]
    subscription = await rig.admin.groups.subscription(GROUP, TOPIC)
    assert subscription is not None
    assert subscription.topic == TOPIC
    assert await rig.admin.groups.subscription("NeverHeardOf", TOPIC) is None
    with pytest.raises(ClientError, match="no member stranger"):
        await rig.admin.clients.running_info(GROUP, "stranger")


# --- Offsets ---


async def test_offsets_of_a_queue(rig: Rig) -> None:
    offsets, queue = rig.admin.offsets, ALL_QUEUES[0]
    assert await offsets.earliest_time_ms(queue) is None
    for number in range(3):
        await rig.send(number)
    assert (await offsets.begin(queue), await offsets.end(queue)) == (0, 3)
    first_ms = await offsets.earliest_time_ms(queue)
    assert first_ms is not None
    assert await offsets.at_time(queue, first_ms) == 0
    assert await offsets.at_time(queue, first_ms + 3_600_000) == 3
    assert await offsets.at_time(queue, first_ms + 3_600_000, upper=True) >= 2
    with pytest.raises(ClientError, match="not on broker broker-c; it is on: broker-a, broker-b"):
        await offsets.end(MessageQueue(TOPIC, "broker-c", 0))
    with pytest.raises(NoRoute):
        await offsets.end(MessageQueue("NeverHeardOf", "broker-a", 0))


@pytest.mark.parametrize("server_side", [True, False], ids=["by the broker", "the older way"])
async def test_a_group_without_members_is_reset(tmp_path: Path, server_side: bool) -> None:
    async with running_rig(tmp_path, server_side_reset=server_side) as rig:
        for number in range(6):
            await rig.send(number, broker=number % 2)
        offsets = rig.admin.offsets
        await offsets.commit(GROUP, dict.fromkeys(ALL_QUEUES, 0) | {ALL_QUEUES[0]: 2})
        reset = await offsets.reset(GROUP, TOPIC, END)
        assert reset.offsets == dict(zip(ALL_QUEUES, [3, 0, 3, 0], strict=True))
        assert not reset.failures
        assert (await rig.admin.groups.progress(GROUP, TOPIC)).lag == 0
        await offsets.reset(GROUP, TOPIC, BEGIN)
        assert await offsets.committed(GROUP, TOPIC) == dict.fromkeys(ALL_QUEUES, 0)
        skipped = await offsets.skip(GROUP, TOPIC)
        assert skipped.offsets[ALL_QUEUES[0]] == 3


async def test_a_group_with_members_is_reset_by_its_next_pull(rig: Rig) -> None:
    for number in range(4):
        await rig.send(number)
    await rig.clients[0].heartbeat(consumer(GROUP, [TOPIC]))
    await rig.admin.offsets.reset_queue(GROUP, ALL_QUEUES[0], 2)
    assert (await rig.admin.offsets.committed(GROUP, TOPIC))[ALL_QUEUES[0]] == 2
    with pytest.raises(BrokerError, match="not in consume queue range"):
        await rig.admin.offsets.reset_queue(GROUP, ALL_QUEUES[0], 99)


async def test_a_reset_of_what_there_is_not(rig: Rig) -> None:
    with pytest.raises(SomeServersFailed, match="Group NeverHeardOf does not exist"):
        await rig.admin.offsets.reset("NeverHeardOf", TOPIC, END)
    with pytest.raises(NoRoute):
        await rig.admin.offsets.reset(GROUP, "NeverHeardOf", END)


async def test_offsets_are_cloned(rig: Rig) -> None:
    for number in range(4):
        await rig.send(number, broker=number % 2)
    await rig.admin.offsets.commit(GROUP, {ALL_QUEUES[0]: 1, ALL_QUEUES[2]: 2})
    await rig.admin.groups.create("Twin")
    assert await rig.admin.offsets.clone(GROUP, "Twin") == [TOPIC]
    assert await rig.admin.offsets.committed("Twin", TOPIC) == await rig.admin.offsets.committed(GROUP, TOPIC)
    assert await rig.admin.offsets.clone(GROUP, "Twin", "NeverHeardOf") == []
    await rig.admin.offsets.commit("Twin", {ALL_QUEUES[0]: 0})
    assert isinstance(await rig.admin.offsets.slowest(TOPIC, GROUP), dict)


async def test_many_questions_at_once(rig: Rig) -> None:
    await rig.admin.topics.create("Wide", queues=200)
    committed = await rig.admin.offsets.committed(GROUP, "Wide")
    assert len(committed) == 400
    assert set(committed.values()) == {None}
    results = await asyncio.gather(*(rig.admin.topics.stats("Wide") for _ in range(5)))
    assert {len(stats.queues) for stats in results} == {400}
