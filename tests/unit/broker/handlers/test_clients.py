"""Heartbeats, members, locks: what the handlers of clients answer, and whom they tell."""

from typing import Any

import pytest

from skylark.protocol.bodies import (
    ClientConfig,
    ConsumerConnection,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    KVTable,
    LockedQueues,
    LockRequest,
    MessageQueue,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionKind,
    TopicConfig,
    decode_body,
)
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.admin import GetBrokerRuntimeInfo
from skylark.protocol.requests.client import (
    CheckClientConfig,
    GetConsumerListByGroup,
    Heartbeat,
    LockBatchMq,
    UnlockBatchMq,
    UnregisterClient,
)
from skylark.protocol.requests.group import GetConsumerConnectionList
from tests.support.broker import consumer, subscription
from tests.unit.broker.handlers.rig import Client, Rig, rigged

V1 = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(3)]


async def beat(
    rig: Rig,
    *consumers: ConsumerData,
    client: Client | None = None,
    client_id: str = "c1",
    producers: tuple[str, ...] = (),
    **members: Any,
) -> RemotingCommand:
    data = HeartbeatData(
        client_id=client_id,
        consumer_data_set=list(consumers),
        producer_data_set=[ProducerData(group_name=group) for group in producers],
        **members,
    )
    return await rig.ask(Heartbeat(data), client=client)


async def told(client: Client) -> list[str]:
    """The groups that a client was told to have changed, since the last question."""
    notices = await client.taken()
    assert {notice.code for notice in notices} <= {40}
    assert all(notice.is_oneway for notice in notices)
    return [notice.fields["consumerGroup"] for notice in notices]


def retry_topic(rig: Rig, group: str = "CG") -> TopicConfig | None:
    return rig.broker.topics.get(f"%RETRY%{group}")


# --- Heartbeats ---


async def test_a_heartbeat_registers_its_groups(rig: Rig) -> None:
    answer = await beat(rig, consumer("CG", ["T"]), producers=("PG",))
    assert (answer.code, answer.remark, answer.fields) == (0, None, V1)
    assert rig.broker.consumers.client_ids("CG") == ["c1"]
    assert [each.client_id for each in rig.broker.producers.connection("PG").connection_set] == ["c1"]
    seen = rig.broker.consumers.connection("CG").connection_set[0]
    assert (seen.client_addr, seen.language, seen.version) == (rig.client.peer.address, "JAVA", 479)


async def test_a_heartbeat_makes_the_retry_topic_of_its_group(rig: Rig) -> None:
    rig.broker.groups.update(SubscriptionGroupConfig(group_name="CG", retry_queue_nums=3), now_ms=1)
    await beat(rig, consumer("CG", ["T"], unit_mode=True))
    made = retry_topic(rig)
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm, made.order) == (3, 3, 6, False)
    assert made.topic_sys_flag == 2
    await beat(rig, consumer("CG2", ["T"]))
    plain = retry_topic(rig, "CG2")
    assert plain is not None
    assert (plain.read_queue_nums, plain.topic_sys_flag) == (1, 0)


async def test_the_retry_topic_is_ordered_as_a_topic_that_the_group_wants(rig: Rig) -> None:
    rig.broker.topics.update(TopicConfig(topic_name="Ordered", order=True), now_ms=1)
    await beat(rig, consumer("CG", ["T"]))
    assert not rig.broker.topics.is_ordered("%RETRY%CG")
    await beat(rig, consumer("CG", ["T", "Ordered"]))
    assert rig.broker.topics.is_ordered("%RETRY%CG")
    await beat(rig, consumer("CG", []), heartbeat_fingerprint=7, without_sub=True)
    assert rig.broker.topics.is_ordered("%RETRY%CG"), "nothing was said of its topics"
    await beat(rig, consumer("CG", ["T"]))
    assert not rig.broker.topics.is_ordered("%RETRY%CG")


async def test_sf_095_all_members_hear_of_a_new_one_and_it_does_itself(rig: Rig) -> None:
    await beat(rig, consumer("CG"))
    assert await told(rig.client) == ["CG"]
    await beat(rig, consumer("CG"))
    assert await told(rig.client) == [], "nothing has changed"
    second = rig.connect()
    await beat(rig, consumer("CG"), client=second, client_id="c2")
    assert await told(rig.client) == ["CG"]
    assert await told(second) == ["CG"]


async def test_other_topics_are_a_change_and_another_expression_is_none(rig: Rig) -> None:
    await beat(rig, consumer("CG", [subscription("T", "A", 1)]))
    await rig.client.taken()
    await beat(rig, consumer("CG", [subscription("T", "B", 2)]))
    assert await told(rig.client) == []
    known = rig.broker.consumers.subscription("CG", "T")
    assert known is not None
    assert known.data.sub_string == "B"
    await beat(rig, consumer("CG", [subscription("T", "B", 2), "U"]))
    assert await told(rig.client) == ["CG"]
    await beat(rig, consumer("CG", ["U"]))
    assert await told(rig.client) == ["CG"]


async def test_members_with_different_subscriptions_are_told_and_logged_once_a_minute(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    created, paid = (consumer("CG", [subscription("T", tag, 1)]) for tag in ("created", "paid"))
    second = rig.connect()
    assert (await beat(rig, created)).fields == V1
    found = "T: created (c1); T: paid (c2)"
    told = {**V1, "DIFFERENT_SUBSCRIPTIONS": f"group CG: {found}"}
    assert (await beat(rig, paid, client=second, client_id="c2")).fields == told
    assert (await beat(rig, created)).fields == told
    line = f"members of a group have different subscriptions, messages are skipped group=CG members={found}"
    assert caplog.messages == [line]
    rig.clock.advance(60_000)
    await beat(rig, created)
    await beat(rig, paid, client=second, client_id="c2")
    assert caplog.messages == [line, line]
    assert rig.broker.consumers.subscription_counts() == {"CG": 2}
    answer = decode_body((await rig.ask(GetConsumerConnectionList("CG"))).body, ConsumerConnection)
    kinds = answer.subscription_kinds
    assert kinds == [SubscriptionKind({"T": "created"}, ["c1"]), SubscriptionKind({"T": "paid"}, ["c2"])]
    table = decode_body((await rig.ask(GetBrokerRuntimeInfo())).body, KVTable).table
    assert table["differentSubscriptions"] == "CG"
    assert (await beat(rig, created, client=second, client_id="c2")).fields == V1
    answer = decode_body((await rig.ask(GetConsumerConnectionList("CG"))).body, ConsumerConnection)
    assert answer.subscription_kinds is None


async def test_a_heartbeat_that_leaves_its_subscriptions_out_still_counts(rig: Rig) -> None:
    second = rig.connect()
    await beat(rig, consumer("CG", [subscription("T", "a", 1)]), heartbeat_fingerprint=7)
    left_out = consumer("CG", [])
    await beat(rig, left_out, heartbeat_fingerprint=7, without_sub=True)
    await beat(rig, consumer("CG", [subscription("T", "b", 1)]), client=second, client_id="c2")
    assert rig.broker.consumers.subscription_counts() == {"CG": 2}
    await rig.ask(UnregisterClient("c2", consumer_group="CG"), client=second)
    assert rig.broker.consumers.subscription_counts() == {"CG": 1}


async def test_nobody_is_told_where_members_do_not_share_or_do_not_want_it(rig: Rig) -> None:
    await beat(rig, consumer("CG", message_model="BROADCASTING"))
    quiet = SubscriptionGroupConfig(group_name="Quiet", notify_consumer_ids_changed_enable=False)
    rig.broker.groups.update(quiet, now_ms=1)
    await beat(rig, consumer("Quiet"))
    assert await told(rig.client) == []
    assert rig.broker.consumers.client_ids("CG") == rig.broker.consumers.client_ids("Quiet") == ["c1"]


async def test_a_group_that_does_not_make_itself_is_passed_over() -> None:
    with rigged(auto_create_groups=False) as rig:
        rig.broker.groups.update(SubscriptionGroupConfig(group_name="Known"), now_ms=1)
        answer = await beat(rig, consumer("Unknown"), consumer("Known"), producers=("PG",))
        assert (answer.code, answer.fields) == (0, V1)
        assert rig.broker.consumers.group("Unknown") is None
        assert retry_topic(rig, "Unknown") is None
        assert rig.broker.consumers.client_ids("Known") == ["c1"]


async def test_consumers_that_pull_may_be_rejected() -> None:
    with rigged(reject_pull_consumers=True) as rig:
        await beat(rig, consumer("Pulls", consume_type="CONSUME_ACTIVELY"), consumer("IsPushed"))
        assert rig.broker.consumers.group("Pulls") is None
        assert rig.broker.consumers.client_ids("IsPushed") == ["c1"]


# --- Heartbeats with a fingerprint ---


async def test_a_fingerprint_tells_whether_the_subscriptions_are_wanted_again(rig: Rig) -> None:
    async def changed(fingerprint: int) -> str:
        answer = await beat(rig, consumer("CG"), heartbeat_fingerprint=fingerprint)
        assert answer.fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"
        return answer.fields["IS_SUB_CHANGE"]

    assert [await changed(fingerprint) for fingerprint in (7, 7, 8, 8)] == ["false", "false", "true", "false"]
    assert await changed(0) == "true", "an older client"
    assert await changed(8) == "true"
    producer = await beat(rig, producers=("PG",), heartbeat_fingerprint=9)
    assert producer.fields["IS_SUB_CHANGE"] == "false"


async def test_what_a_heartbeat_leaves_out_stays(rig: Rig) -> None:
    await beat(rig, consumer("CG", ["T", "U"]), heartbeat_fingerprint=7)
    await rig.client.taken()
    answer = await beat(rig, consumer("CG", []), heartbeat_fingerprint=7, without_sub=True)
    assert answer.fields["IS_SUB_CHANGE"] == "false"
    assert await told(rig.client) == []
    group = rig.broker.consumers.group("CG")
    assert group is not None
    assert sorted(group.subscriptions) == ["T", "U"]


async def test_what_was_never_said_cannot_be_left_out(rig: Rig) -> None:
    answer = await beat(rig, consumer("CG", []), heartbeat_fingerprint=7, without_sub=True)
    assert answer.fields["IS_SUB_CHANGE"] == "true"


async def test_without_a_fingerprint_nothing_is_left_out(rig: Rig) -> None:
    await beat(rig, consumer("CG", ["T"]))
    await beat(rig, consumer("CG", []), without_sub=True)
    group = rig.broker.consumers.group("CG")
    assert group is not None
    assert group.subscriptions == {}


# --- Limits ---


@pytest.mark.parametrize("kind", ["consumers", "producers"])
async def test_a_heartbeat_of_too_many_groups_makes_none(kind: str) -> None:
    with rigged(client_groups_max=10) as rig:
        groups = [f"G{number}" for number in range(11)]
        topics_before, groups_before = len(rig.broker.topics), len(rig.broker.groups)
        if kind == "consumers":
            answer = await beat(rig, *(consumer(group) for group in groups))
        else:
            answer = await beat(rig, producers=tuple(groups))
        assert (answer.code, answer.remark) == (1, "the broker takes no more than 10 groups of one client")
        assert (len(rig.broker.topics), len(rig.broker.groups)) == (topics_before, groups_before)
        allowed = await beat(rig, *(consumer(group) for group in groups[:10]))
        assert allowed.code == 0


async def test_too_many_subscriptions_are_refused_and_what_came_before_was_told() -> None:
    with rigged(group_subscriptions_max=2) as rig:
        answer = await beat(rig, consumer("Fits"), consumer("Wants", ["T", "U", "V"]))
        assert answer.code == 1
        assert answer.remark == "the broker takes no more than 2 subscriptions of one group"
        assert await told(rig.client) == ["Fits"]


@pytest.mark.parametrize(
    ("heartbeat", "remark"),
    [
        ({"client_id": "c" * 1025}, "clientID has 1025 characters, allowed is up to 1024"),
        ({"producers": ("P" * 256,)}, "groupName has 256 characters, allowed is up to 255"),
    ],
)
async def test_names_that_no_client_has_are_refused(rig: Rig, heartbeat: dict[str, Any], remark: str) -> None:
    answer = await beat(rig, consumer("CG"), **heartbeat)
    assert (answer.code, answer.remark) == (29, remark)
    assert rig.broker.consumers.group("CG") is None


async def test_an_expression_has_a_limit(rig: Rig) -> None:
    wanted = SubscriptionData(topic="T", sub_string="a || " * 13_108)
    asked = ConsumerData(group_name="CG", subscription_data_set=[wanted])
    answer = await beat(rig, asked)
    assert (answer.code, answer.remark) == (29, "subString has 65540 characters, allowed is up to 65536")


# --- Leaving, and asking who is there ---


async def test_sf_095_the_others_hear_when_a_member_leaves(rig: Rig) -> None:
    second = rig.connect()
    await beat(rig, consumer("CG"), producers=("PG",))
    await beat(rig, consumer("CG"), client=second, client_id="c2")
    await rig.client.taken()
    goodbye = UnregisterClient("c2", consumer_group="CG", producer_group="PG")
    answer = await rig.ask(goodbye, client=second)
    assert (answer.code, answer.remark) == (0, None)
    assert await told(rig.client) == ["CG"]
    assert rig.broker.consumers.client_ids("CG") == ["c1"]
    assert [each.client_id for each in rig.broker.producers.connection("PG").connection_set] == ["c1"]


async def test_goodbye_is_always_right(rig: Rig) -> None:
    unknown = UnregisterClient("nobody", consumer_group="Nowhere", producer_group="Nowhere")
    assert (await rig.ask(unknown)).code == 0
    assert "Nowhere" not in rig.broker.groups, "a goodbye makes no group"
    assert (await rig.ask(UnregisterClient("nobody"))).code == 0


async def test_a_group_that_wants_no_notices_gets_none_at_a_goodbye(rig: Rig) -> None:
    quiet = SubscriptionGroupConfig(group_name="CG", notify_consumer_ids_changed_enable=False)
    rig.broker.groups.update(quiet, now_ms=1)
    second = rig.connect()
    await beat(rig, consumer("CG"))
    await beat(rig, consumer("CG"), client=second, client_id="c2")
    await rig.ask(UnregisterClient("c2", consumer_group="CG"), client=second)
    assert await told(rig.client) == []


async def test_sf_086_the_members_of_a_group(rig: Rig) -> None:
    none = await rig.ask(GetConsumerListByGroup("CG"))
    assert (none.code, none.remark) == (1, "no consumer for this group, CG")
    await beat(rig, consumer("CG"))
    await beat(rig, consumer("CG"), client=rig.connect(), client_id="c2")
    members = await rig.ask(GetConsumerListByGroup("CG"))
    assert members.code == 0
    assert sorted(decode_body(members.body, ConsumerIdList).consumer_id_list) == ["c1", "c2"]


# --- Whether a subscription can be served ---


@pytest.mark.parametrize("expression_type", ["TAG", None])
async def test_tags_can_be_served(rig: Rig, expression_type: str | None) -> None:
    wanted = subscription("T", "A || B")
    wanted.expression_type = expression_type
    answer = await rig.ask(CheckClientConfig(ClientConfig(group="CG", subscription_data=wanted)))
    assert (answer.code, answer.remark) == (0, None)


@pytest.mark.parametrize(
    ("expression", "expression_type", "code", "remark"),
    [
        ("a > 1", "SQL92", 0, None),
        (
            "a = 1 AND !",
            "SQL92",
            23,
            "parse the consumer's subscription failed: unexpected character '!', at character 11",
        ),
        ("a", "XPATH", 1, "The broker does not support consumer to filter message by XPATH"),
    ],
)
async def test_expressions_are_checked(
    rig: Rig, expression: str, expression_type: str, code: int, remark: str | None
) -> None:
    wanted = subscription("T", expression, expression_type=expression_type)
    answer = await rig.ask(CheckClientConfig(ClientConfig(group="CG", subscription_data=wanted)))
    assert (answer.code, answer.remark) == (code, remark)


async def test_sql_can_be_switched_off() -> None:
    with rigged(sql_filters=False) as rig:
        wanted = subscription("T", "a > 1", expression_type="SQL92")
        answer = await rig.ask(CheckClientConfig(ClientConfig(group="CG", subscription_data=wanted)))
        assert (answer.code, answer.remark) == (
            1,
            "The broker does not support consumer to filter message by SQL92",
        )


# --- Locks ---


async def lock(rig: Rig, client_id: str, *queues: MessageQueue) -> set[int]:
    request = LockRequest(client_id=client_id, consumer_group="CG", mq_set=list(queues))
    answer = await rig.ask(LockBatchMq(request))
    assert (answer.code, answer.remark) == (0, None)
    return {queue.queue_id for queue in decode_body(answer.body, LockedQueues).queues}


@pytest.mark.parametrize(
    ("names", "member"),
    [
        (("c" * 1025, "CG", "T"), "clientId"),
        (("c", "G" * 256, "T"), "consumerGroup"),
        (("c", "CG", "T" * 256), "topic"),
    ],
)
async def test_locks_of_impossible_names_are_refused(
    rig: Rig, names: tuple[str, str, str], member: str
) -> None:
    client_id, group, topic = names
    queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)
    request = LockRequest(client_id=client_id, consumer_group=group, mq_set=[queue])
    answer = await rig.ask(LockBatchMq(request))
    assert answer.code == 29
    assert (answer.remark or "").startswith(f"{member} has ")


async def unlock(rig: Rig, client_id: str, *queues: MessageQueue) -> None:
    request = LockRequest(client_id=client_id, consumer_group="CG", mq_set=list(queues))
    answer = await rig.ask(UnlockBatchMq(request))
    assert (answer.code, answer.remark, bytes(answer.body)) == (0, None, b"")


async def test_sf_102_a_locked_queue_is_refused_to_others_until_it_is_free(rig: Rig) -> None:
    assert await lock(rig, "c1", *QUEUES[:2]) == {0, 1}
    assert await lock(rig, "c2", *QUEUES) == {2}
    assert await lock(rig, "c1", *QUEUES[:2]) == {0, 1}, "one's own is renewed"
    await unlock(rig, "c2", QUEUES[0])
    assert await lock(rig, "c2", QUEUES[0]) == set(), "another's cannot be freed"
    await unlock(rig, "c1", QUEUES[0])
    assert await lock(rig, "c2", *QUEUES[:2]) == {0}


async def test_a_lock_ends_after_a_minute_without_renewal(rig: Rig) -> None:
    await lock(rig, "c1", QUEUES[0], QUEUES[1])
    rig.clock.advance(40_000)
    await lock(rig, "c1", QUEUES[0])
    rig.clock.advance(20_001)
    assert await lock(rig, "c2", QUEUES[0], QUEUES[1]) == {1}
    rig.clock.advance(40_000)
    assert await lock(rig, "c2", QUEUES[0]) == {0}


@pytest.mark.parametrize("request_type", [LockBatchMq, UnlockBatchMq])
async def test_no_queues_are_none(rig: Rig, request_type: Any) -> None:
    request = request_type(LockRequest(client_id="c1", consumer_group="CG"))
    assert (await rig.ask(request)).code == 0
