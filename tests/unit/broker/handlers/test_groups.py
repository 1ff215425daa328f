"""Groups made, changed, listed and deleted by administrators, and who of them is there."""

import pytest

from skylark.broker.clients import ConnectedClient as Member
from skylark.model import java
from skylark.protocol.bodies import (
    ConsumerConnection,
    GroupForbidden,
    GroupSubscription,
    ProducerConnection,
    ProducerTable,
    RequestMode,
    RequestModeTable,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    TopicList,
    decode_body,
)
from skylark.protocol.requests.client import GetAllMessageRequestMode, SetMessageRequestMode
from skylark.protocol.requests.group import (
    DeleteSubscriptionGroup,
    GetAllProducerInfo,
    GetAllSubscriptionGroupConfig,
    GetConsumerConnectionList,
    GetProducerConnectionList,
    GetSubscriptionGroupConfig,
    QuerySubscriptionByConsumer,
    QueryTopicsByConsumer,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
    UpdateAndGetGroupForbidden,
)
from tests.support.broker import consumer, subscription
from tests.unit.broker.handlers.rig import Rig, outcome, rigged


def join(rig: Rig, group: str = "CG", *topics: str) -> None:
    member = Member(rig.client.peer, "c1", "JAVA", 479)
    rig.broker.consumers.register(member, consumer(group, topics or ("T",)), notify=False, now=0)


# --- Configurations ---


async def test_a_group_is_made_and_changed(rig: Rig) -> None:
    wanted = SubscriptionGroupConfig(group_name="CG", retry_max_times=3, consume_broadcast_enable=False)
    assert outcome(await rig.ask(UpdateAndCreateSubscriptionGroup(wanted))) == (0, None)
    assert rig.broker.groups.get("CG") == wanted
    answer = await rig.ask(GetSubscriptionGroupConfig("CG"))
    assert decode_body(answer.body, SubscriptionGroupConfig) == wanted


async def test_a_list_of_groups_is_made_whole_or_not_at_all(rig: Rig) -> None:
    def listed(*names: str) -> UpdateAndCreateSubscriptionGroupList:
        configs = [SubscriptionGroupConfig(group_name=name) for name in names]
        return UpdateAndCreateSubscriptionGroupList(SubscriptionGroupList(group_config_list=configs))

    assert outcome(await rig.ask(listed("A", "B"))) == (0, None)
    assert (await rig.ask(listed("C", " "))).code == 29
    assert ["A" in rig.broker.groups, "B" in rig.broker.groups, "C" in rig.broker.groups] == [
        True,
        True,
        False,
    ]


async def test_all_groups_are_listed_without_what_is_null(rig: Rig) -> None:
    rig.broker.groups.find("CG", now_ms=1)
    rig.broker.groups.set_readable("CG", "T", False, now_ms=1)
    answer = await rig.ask(GetAllSubscriptionGroupConfig())
    table = decode_body(answer.body, SubscriptionGroupTable)
    assert table.subscription_group_table == {each.group_name: each for each in rig.broker.groups.all()}
    assert table.forbidden_table == {"CG": {"T": 4}}
    assert b"null" not in bytes(answer.body)


async def test_asking_for_a_group_makes_it_where_groups_make_themselves(rig: Rig) -> None:
    assert (await rig.ask(GetSubscriptionGroupConfig("CG_never"))).code == 0
    assert "CG_never" in rig.broker.groups
    with rigged(auto_create_groups=False) as strict:
        answer = await strict.ask(GetSubscriptionGroupConfig("CG_never"))
        assert outcome(answer) == (26, "No group in this broker")


@pytest.mark.parametrize(
    ("request_", "left"),
    [
        (DeleteSubscriptionGroup("CG"), ["T"]),
        (DeleteSubscriptionGroup("CG", clean_offset=False), ["T"]),
        (DeleteSubscriptionGroup("CG", clean_offset=True), []),
        (DeleteSubscriptionGroup("CG", remove_offset=True), []),
    ],
)
async def test_a_group_goes_and_its_offsets_if_asked(
    rig: Rig, request_: DeleteSubscriptionGroup, left: list[str]
) -> None:
    rig.broker.groups.find("CG", now_ms=1)
    rig.broker.offsets.commit("T", "CG", 0, 1, now_ms=1)
    rig.broker.stats.count_gets("T", "CG", 1, 1)
    assert outcome(await rig.ask(request_)) == (0, None)
    assert "CG" not in rig.broker.groups
    assert rig.broker.offsets.topics_of("CG") == left
    assert rig.broker.stats.group_gets == {}


async def test_reading_is_forbidden_and_allowed_again(rig: Rig) -> None:
    for readable, now in ((None, True), (False, False), (None, False), (True, True)):
        answer = await rig.ask(UpdateAndGetGroupForbidden("CG", "T", readable))
        assert outcome(answer) == (0, "")
        assert decode_body(answer.body, GroupForbidden) == GroupForbidden("CG", "T", now)
        assert rig.broker.groups.is_readable("CG", "T") == now


# --- Request modes ---


def mode(topic: str = "T", group: str = "CG", mode: str = "PULL") -> RequestMode:
    return RequestMode(topic=topic, consumer_group=group, mode=mode)


async def test_a_mode_is_set_and_listed(rig: Rig) -> None:
    rig.broker.topics.ensure_topic("T", now_ms=1)
    assert outcome(await rig.ask(SetMessageRequestMode(mode()))) == (0, None)
    answer = await rig.ask(GetAllMessageRequestMode())
    assert decode_body(answer.body, RequestModeTable).message_request_mode_map == {"T": {"CG": mode()}}


async def test_a_group_may_pop_a_topic(rig: Rig) -> None:
    rig.broker.topics.ensure_topic("T", now_ms=1)
    assert outcome(await rig.ask(SetMessageRequestMode(mode(mode="POP")))) == (0, None)
    assert rig.broker.request_modes.get("T", "CG").mode == "POP"
    remark = "mode PUSH is not known, allowed are PULL and POP"
    assert outcome(await rig.ask(SetMessageRequestMode(mode(mode="PUSH")))) == (1, remark)


async def test_modes_need_a_topic_and_a_group() -> None:
    with rigged(auto_create_groups=False) as rig:
        rig.broker.topics.ensure_topic("T", now_ms=1)
        answers = [
            outcome(await rig.ask(SetMessageRequestMode(each)))
            for each in (mode("%RETRY%CG"), mode("U"), mode())
        ]
        assert answers == [
            (16, "retry topic is not allowed to set mode"),
            (17, "topic[U] not exist"),
            (26, "subscription group does not exist"),
        ]
        assert len(rig.broker.request_modes) == 0


# --- Who is there ---


async def test_consumers_that_are_online(rig: Rig) -> None:
    join(rig, "CG", "T", "U")
    answer = await rig.ask(GetConsumerConnectionList("CG"))
    shown = decode_body(answer.body, ConsumerConnection)
    assert [(each.client_id, each.client_addr) for each in shown.connection_set] == [
        ("c1", rig.client.peer.address)
    ]
    assert shown.subscription_table.keys() == {"T", "U"}
    answer = await rig.ask(GetConsumerConnectionList("gone"))
    assert outcome(answer) == (206, "the consumer group[gone] not online")


async def test_producers_that_are_online(rig: Rig) -> None:
    rig.broker.producers.register("PG", Member(rig.client.peer, "p1", "CPP", 49), now=rig.clock.monotonic())
    answer = await rig.ask(GetProducerConnectionList("PG"))
    assert [each.client_id for each in decode_body(answer.body, ProducerConnection).connection_set] == ["p1"]
    answer = await rig.ask(GetProducerConnectionList("gone"))
    assert outcome(answer) == (1, "the producer group[gone] not exist")
    answer = await rig.ask(GetAllProducerInfo())
    (info,) = decode_body(answer.body, ProducerTable).data["PG"]
    assert (info.client_id, info.remote_ip) == ("p1", f"/{rig.client.peer.address}")
    assert info.last_update_timestamp == rig.clock.now_ms()


async def test_topics_of_a_group(rig: Rig) -> None:
    rig.broker.offsets.commit("T", "CG", 0, 1, now_ms=1)
    answer = await rig.ask(QueryTopicsByConsumer("CG"))
    listed = decode_body(answer.body, TopicList)
    assert (listed.topic_list, listed.broker_addr) == (["T"], rig.broker.address)


async def test_what_a_group_wants_of_a_topic(rig: Rig) -> None:
    join(rig)
    answer = await rig.ask(QuerySubscriptionByConsumer("CG", "T"))
    shown = decode_body(answer.body, GroupSubscription)
    assert shown.subscription_data is not None
    assert shown.subscription_data == subscription("T")
    answer = await rig.ask(QuerySubscriptionByConsumer("CG", "U"))
    assert java.loads(bytes(answer.body)) == {"group": "CG", "topic": "U"}
