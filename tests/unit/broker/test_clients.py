"""Who is online, and who must hear of it; with time in our hands."""

from collections.abc import Callable
from typing import Any

import pytest

from skylark.broker.clients import ConnectedClient, ConsumerGroups, MembershipNotice, ProducerGroups
from skylark.errors import BrokerError
from skylark.model import java
from skylark.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData, decode_body, encode_body
from tests.unit.broker.tables import NOW_MS, FakeChannel, answers, client, live, refusal
from tests.unit.protocol.golden_frames import captured


def wants(*topics: str, version: int = 1, expression: str = "*") -> list[SubscriptionData]:
    return [SubscriptionData(topic=topic, sub_string=expression, sub_version=version) for topic in topics]


def data(
    *topics: str, group: str = "g1", model: str = "CLUSTERING", version: int = 1, expression: str = "*"
) -> ConsumerData:
    return ConsumerData(
        group_name=group,
        consume_type="CONSUME_PASSIVELY",
        message_model=model,
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=wants(*topics, version=version, expression=expression),
    )


def register(
    consumers: ConsumerGroups,
    who: ConnectedClient,
    what: ConsumerData,
    *,
    notify: bool = True,
    now: float = 0,
    **more: Any,
) -> MembershipNotice | None:
    return consumers.register(who, what, notify=notify, now=now, **more).notice


def told(notice: MembershipNotice | None) -> set[str]:
    """The addresses that hear of a change."""
    return {channel.address for channel in notice.channels} if notice is not None else set()


A = FakeChannel("a:1")
B = FakeChannel("b:1")
C = FakeChannel("c:1")


# --- Members ---


def test_sf_095_a_new_member_is_told_to_all_itself_included() -> None:
    consumers = ConsumerGroups(live())
    assert told(register(consumers, client(A, "a"), data("t1"))) == {"a:1"}
    assert told(register(consumers, client(B, "b"), data("t1"))) == {"a:1", "b:1"}
    assert register(consumers, client(A, "a"), data("t1")) is None
    assert consumers.client_ids("g1") == ["a", "b"]


def test_sf_095_a_member_whose_connection_ends_is_told_to_the_others() -> None:
    consumers = ConsumerGroups(live())
    for who in (client(A, "a"), client(B, "b")):
        register(consumers, who, data("t1"))
        register(consumers, who, data("t2", group="g2"))
    assert consumers.channel_closed(A) == [MembershipNotice("g1", (B,)), MembershipNotice("g2", (B,))]
    assert consumers.channel_closed(A) == []
    assert consumers.client_ids("g1") == ["b"]
    assert consumers.channel_closed(B) == []
    assert consumers.group("g1") is None
    assert consumers.groups_of("t1") == []


def test_sf_095_a_silent_member_is_out_after_120_s() -> None:
    consumers = ConsumerGroups(live())
    register(consumers, client(A, "a"), data("t1"), now=0)
    register(consumers, client(B, "b"), data("t1"), now=100)
    assert consumers.expire(now=120) == ([], [])
    assert consumers.expire(now=120.1) == ([A], [MembershipNotice("g1", (B,))])
    assert consumers.client_ids("g1") == ["b"]
    register(consumers, client(B, "b"), data("t1"), now=219)
    assert consumers.expire(now=300) == ([], [])


def test_a_silent_member_of_many_groups_is_closed_once() -> None:
    consumers = ConsumerGroups(live())
    for group in ("g1", "g2"):
        register(consumers, client(A), data("t1", group=group))
    assert consumers.expire(now=1000) == ([A], [])
    assert consumers.channel_closed(A) == []


def test_sf_086_every_member_is_in_the_list_once_for_each_of_its_channels() -> None:
    consumers = ConsumerGroups(live())
    for channel, name in ((A, "a"), (B, "b"), (C, "a")):
        register(consumers, client(channel, name), data("t1"))
    assert consumers.client_ids("g1") == ["a", "b", "a"]
    assert consumers.client("g1", "b").channel is B


def test_a_member_that_says_goodbye_is_told_to_the_others() -> None:
    consumers = ConsumerGroups(live())
    for channel in (A, B):
        register(consumers, client(channel), data("t1"))
    assert told(consumers.unregister("g1", A, notify=True)) == {"b:1"}
    assert told(consumers.unregister("g1", A, notify=True)) == {"b:1"}  # although it was gone already
    assert consumers.unregister("g1", B, notify=True) is None
    assert consumers.unregister("g1", B, notify=True) is None
    assert consumers.unregister("unheard", B, notify=True) is None


def test_another_client_on_the_same_channel_is_no_change() -> None:
    consumers = ConsumerGroups(live())
    register(consumers, client(A, "old"), data("t1"))
    assert register(consumers, client(A, "new"), data("t1")) is None
    assert consumers.client_ids("g1") == ["new"]


@pytest.mark.parametrize(
    ("settings", "notify", "model"),
    [({"notify_members": False}, True, "CLUSTERING"), ({}, False, "CLUSTERING"), ({}, True, "BROADCASTING")],
)
def test_nobody_is_told_where_it_is_switched_off(settings: dict[str, Any], notify: bool, model: str) -> None:
    consumers = ConsumerGroups(live(**settings))
    assert register(consumers, client(A), data("t1", model=model), notify=notify) is None
    assert register(consumers, client(B), data("t1", model=model), notify=notify) is None
    assert consumers.unregister("g1", A, notify=notify) is None


# --- Subscriptions ---


def test_only_topics_that_come_and_go_are_a_change() -> None:
    consumers = ConsumerGroups(live())
    register(consumers, client(A), data("t1"))
    assert told(register(consumers, client(A), data("t1", "t2"))) == {"a:1"}
    assert told(register(consumers, client(A), data("t2"))) == {"a:1"}
    assert register(consumers, client(A), data("t2", version=2, expression="TagA")) is None
    subscription = consumers.subscription("g1", "t2")
    assert subscription is not None
    assert subscription.data.sub_string == "TagA"
    assert consumers.subscription("g1", "t1") is None
    assert (consumers.groups_of("t1"), consumers.groups_of("t2")) == ([], ["g1"])


def test_an_older_expression_does_not_replace_a_newer_one() -> None:
    consumers = ConsumerGroups(live())
    register(consumers, client(A), data("t1", version=5, expression="new"))
    register(consumers, client(B), data("t1", version=4, expression="old"))
    register(consumers, client(B), data("t1", version=5, expression="old"))
    subscription = consumers.subscription("g1", "t1")
    assert subscription is not None
    assert subscription.data.sub_string == "new"


def test_the_function_of_a_subscription_is_made_once() -> None:
    consumers = ConsumerGroups(live())
    register(consumers, client(A), data("t1", expression="TagA"))
    first = consumers.subscription("g1", "t1")
    register(consumers, client(A), data("t1", expression="TagA"))
    assert consumers.subscription("g1", "t1") is first


def test_every_heartbeat_describes_the_group_anew() -> None:
    consumers = ConsumerGroups(live())
    register(consumers, client(A), data("t1"))
    register(consumers, client(B), data("t1", model="BROADCASTING"))
    group = consumers.group("g1")
    assert group is not None
    assert group.message_model == "BROADCASTING"


def test_what_pulls_bring_along_answers_questions_until_it_is_old() -> None:
    consumers = ConsumerGroups(live())
    register(consumers, client(A), data("t1", group="other"))
    subscription = consumers.subscription("other", "t1")
    assert subscription is not None
    consumers.compensate("g1", subscription, now=0)
    consumers.compensate("g2", subscription, now=100)
    assert consumers.subscription("g1", "t1") is subscription
    assert consumers.group("g1") is None
    register(consumers, client(A), data("t1", group="other"), now=601)
    consumers.expire(now=601)
    assert consumers.subscription("g1", "t1") is None
    assert consumers.subscription("g2", "t1") is subscription


# --- Fingerprints ---


def test_a_first_fingerprint_is_no_change_and_another_is() -> None:
    consumers = ConsumerGroups(live())
    seen = [
        consumers.register(client(A), data("t1"), notify=True, now=0, fingerprint=number).subscription_changed
        for number in (7, 7, 8, 8, 0, 0, 8)
    ]
    assert seen == [False, False, True, False, True, True, True]


def test_known_subscriptions_may_be_left_out() -> None:
    consumers = ConsumerGroups(live())
    consumers.register(client(A), data("t1"), notify=True, now=0, fingerprint=7)
    again = consumers.register(
        client(A), data(), notify=True, now=100, fingerprint=7, without_subscriptions=True
    )
    assert (again.subscription_changed, again.notice) == (False, None)
    assert consumers.subscription("g1", "t1") is not None
    assert consumers.expire(now=150) == ([], [])
    joined = consumers.register(
        client(B), data(), notify=True, now=0, fingerprint=7, without_subscriptions=True
    )
    assert told(joined.notice) == {"a:1", "b:1"}


def test_a_client_that_leaves_out_what_we_never_heard_must_send_it() -> None:
    consumers = ConsumerGroups(live())
    registered = consumers.register(
        client(A), data(), notify=True, now=0, fingerprint=7, without_subscriptions=True
    )
    assert registered.subscription_changed


def test_heartbeats_are_answered_as_apache_answers_them() -> None:
    """Captured heartbeats, one table for each scenario: is the subscription changed, who is told."""
    replayed = 0
    for scenario in ("push-concurrent", "push-orderly", "push-broadcast", "push-two", "probe-members"):
        consumers = ConsumerGroups(live())
        channels: dict[str, FakeChannel] = {}
        for asked, answer in answers(scenario, 34):
            heartbeat = decode_body(asked.body, HeartbeatData)
            channel = channels.setdefault(heartbeat.client_id, FakeChannel(heartbeat.client_id))
            fingerprint = heartbeat.heartbeat_fingerprint
            changed = fingerprint == 0
            for consumer in heartbeat.consumer_data_set:
                done = consumers.register(
                    client(channel, heartbeat.client_id),
                    consumer,
                    notify=True,
                    now=0,
                    fingerprint=fingerprint,
                    without_subscriptions=heartbeat.without_sub,
                )
                changed = changed or done.subscription_changed
                if consumer.message_model == "BROADCASTING":
                    assert done.notice is None
            assert str(changed).lower() == answer.header["extFields"]["IS_SUB_CHANGE"]
            replayed += 1
    assert replayed >= 10


def test_a_group_is_told_as_often_as_apache_tells_it() -> None:
    consumers = ConsumerGroups(live())
    notices = []
    for frame in captured("probe-members"):
        if frame.kind == "request" and frame.code == 34:
            heartbeat = decode_body(frame.body, HeartbeatData)
            channel = FakeChannel(heartbeat.client_id)
            for consumer in heartbeat.consumer_data_set:
                notice = register(consumers, client(channel, heartbeat.client_id), consumer)
                notices += sorted(told(notice))
    captured_notices = [frame for frame in captured("probe-members") if frame.code == 40]
    assert notices == ["probe@1", "probe@1", "probe@2"]
    assert len(captured_notices) == len(notices)


# --- Limits ---


def test_one_client_cannot_be_in_any_number_of_groups() -> None:
    consumers = ConsumerGroups(live(client_groups_max=2))
    for group in ("g1", "g2", "g1"):
        register(consumers, client(A), data("t1", group=group))
    with pytest.raises(BrokerError, match="no more than 2 groups of one client"):
        register(consumers, client(A), data("t1", group="g3"))
    assert consumers.group("g3") is None
    register(consumers, client(B), data("t1", group="g3"))
    assert len(consumers.channel_closed(A)) == 0


def test_one_group_cannot_have_any_number_of_subscriptions() -> None:
    consumers = ConsumerGroups(live(group_subscriptions_max=2))
    with pytest.raises(BrokerError, match="no more than 2 subscriptions of one group"):
        register(consumers, client(A), data("t1", "t2", "t3"))
    assert consumers.group("g1") is None


def test_there_is_a_limit_of_groups_and_of_what_pulls_bring_along() -> None:
    consumers = ConsumerGroups(live(groups_max=1, offset_keys_max=1))
    register(consumers, client(A), data("t1"))
    with pytest.raises(BrokerError, match="no more than 1 groups with clients"):
        register(consumers, client(A), data("t1", group="g2"))
    subscription = consumers.subscription("g1", "t1")
    assert subscription is not None
    for group in ("p1", "p2", "p1"):
        consumers.compensate(group, subscription, now=0)
    assert consumers.compensated("p1", "t1") is not None
    assert consumers.compensated("p2", "t1") is None


# --- Questions ---


def test_questions_about_groups_that_are_not_there_are_answered_as_by_apache() -> None:
    consumers, producers = ConsumerGroups(live()), ProducerGroups(live())
    questions: dict[int, Callable[[dict[str, str]], object]] = {
        38: lambda fields: consumers.client_ids(fields["consumerGroup"]),
        203: lambda fields: consumers.connection(fields["consumerGroup"]),
        204: lambda fields: producers.connection(fields["producerGroup"]),
        307: lambda fields: consumers.client(fields["consumerGroup"], fields["clientId"]),
    }
    replayed = 0
    for asked, answer in answers("probe-members", *questions):
        if answer.code == 0:
            continue
        with pytest.raises(BrokerError) as caught:
            questions[asked.code](asked.header["extFields"])
        assert refusal(caught.value) == (answer.code, answer.header["remark"])
        replayed += 1
    assert replayed == 4


def test_connections_are_shown_as_by_apache() -> None:
    consumers, producers = ConsumerGroups(live()), ProducerGroups(live())
    heartbeat = next(frame for frame in captured("probe-members") if frame.code == 34)
    body = decode_body(heartbeat.body, HeartbeatData)
    by_code = {
        asked.code: answer.body for asked, answer in answers("probe-members", 203, 204, 328) if answer.body
    }
    address = java.loads(by_code[204])["connectionSet"][0]["clientAddr"]
    who = client(FakeChannel(address), body.client_id)
    register(consumers, who, body.consumer_data_set[0])
    producers.register(body.producer_data_set[0].group_name, who, now=10.0)
    assert java.loads(encode_body(consumers.connection("CG_member"))) == java.loads(by_code[203])
    assert java.loads(encode_body(producers.connection("PG_member"))) == java.loads(by_code[204])
    seen_ms = java.loads(by_code[328])["data"]["PG_member"][0]["lastUpdateTimestamp"]
    table = producers.table(now=12.5, now_ms=seen_ms + 2500)
    assert java.loads(encode_body(table)) == java.loads(by_code[328])


# --- Producers ---


def test_producers_come_and_go() -> None:
    producers = ProducerGroups(live())
    producers.register("p1", client(A, "a"), now=0)
    producers.register("p2", client(A, "a"), now=0)
    assert producers.channel("a") is A
    producers.unregister("p1", A)
    with pytest.raises(BrokerError):
        producers.connection("p1")
    assert producers.channel("a") is A
    producers.channel_closed(A)
    assert producers.channel("a") is None
    assert producers.table(now=0, now_ms=NOW_MS).data == {}


def test_a_client_that_connects_again_is_found_on_its_new_channel() -> None:
    producers = ProducerGroups(live())
    producers.register("p1", client(A, "a"), now=0)
    producers.register("p1", client(B, "a"), now=1)
    producers.channel_closed(A)
    assert producers.channel("a") is B


def test_a_client_is_not_found_by_an_id_that_it_has_no_more() -> None:
    producers = ProducerGroups(live())
    for number in range(3):
        producers.register("p1", client(A, f"a{number}"), now=0)
    producers.register("p2", client(A, "other"), now=0)
    found = {name for name in ("a0", "a1", "a2", "other") if producers.channel(name) is A}
    assert found == {"a2", "other"}
    producers.unregister("p2", A)
    assert producers.channel("other") is None
    producers.channel_closed(A)
    assert producers.channel("a2") is None
    assert not producers._channels


def test_silent_producers_are_out_after_120_s() -> None:
    producers = ProducerGroups(live())
    producers.register("p1", client(A, "a"), now=0)
    producers.register("p2", client(A, "a"), now=0)
    producers.register("p1", client(B, "b"), now=50)
    assert producers.expire(now=120) == []
    assert producers.expire(now=121) == [A]
    assert producers.channel("a") is None
    assert producers.choose("p1") is B


def test_channels_of_producers_are_chosen_in_turn() -> None:
    producers = ProducerGroups(live())
    channels = [FakeChannel(f"{number}:1") for number in range(3)]
    for channel in channels:
        producers.register("p1", client(channel, channel.address), now=0)
    chosen = [producers.choose("p1") for _ in range(6)]
    assert [chosen.count(channel) for channel in channels] == [2, 2, 2]
    channels[0].is_closed = True
    channels[1].is_writable = False
    assert {producers.choose("p1") for _ in range(6)} == {channels[2]}
    channels[2].is_closed = True
    assert {producers.choose("p1") for _ in range(6)} == {channels[1]}
    channels[1].is_closed = True
    assert producers.choose("p1") is None
    assert producers.choose("unheard") is None


def test_one_producer_cannot_be_in_any_number_of_groups() -> None:
    producers = ProducerGroups(live(client_groups_max=1))
    producers.register("p1", client(A), now=0)
    with pytest.raises(BrokerError, match="no more than 1 groups of one client"):
        producers.register("p2", client(A), now=0)
