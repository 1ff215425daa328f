"""Which subscription a pull is served by; refusals in Apache's words."""

from typing import Any

import pytest

from skylark.broker.clients import ConnectedClient, ConsumerGroups
from skylark.broker.filters.compiled_subscription import CompiledSubscription
from skylark.broker.filters.pull_subscriptions import PullRefused, PullSubscriptions
from skylark.broker.groups import SubscriptionGroups
from skylark.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData, decode_body
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, PullMessage
from tests.unit.broker.tables import NOW_MS, FakeChannel, answers, client, live
from tests.unit.protocol.golden_frames import captured


class Rig:
    """The tables that a pull looks at."""

    def __init__(self, **settings: Any) -> None:
        holder = live(**settings)
        self.groups = SubscriptionGroups(holder, now_ms=NOW_MS)
        self.consumers = ConsumerGroups(holder)
        self.subscriptions = PullSubscriptions(holder, self.consumers, self.groups)
        self.channel = FakeChannel()

    def join(self, *wanted: SubscriptionData, who: ConnectedClient | None = None, **members: Any) -> None:
        data = ConsumerData(group_name="g1", subscription_data_set=list(wanted), **members)
        self.consumers.register(who or client(self.channel), data, notify=True, now=0)

    def find(self, request: PullMessage) -> CompiledSubscription | PullRefused:
        config = self.groups.find(request.consumer_group, now_ms=NOW_MS)
        assert config is not None
        return self.subscriptions.find(request, config, self.channel, now=0, now_ms=NOW_MS)


def pull(topic: str = "t1", *, sys_flag: int = 0, sub_version: int = 0, **more: Any) -> PullMessage:
    return PullMessage(
        consumer_group=more.pop("group", "g1"),
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=sys_flag,
        commit_offset=0,
        suspend_timeout_ms=15_000,
        sub_version=sub_version,
        **more,
    )


def test_pulls_are_refused_as_by_apache() -> None:
    """Codes 23, 24 and 25 of `probe-pull` and `probe-members`, after the heartbeat of the latter."""
    rig = Rig()
    heartbeat = next(frame for frame in captured("probe-members") if frame.code == 34)
    body = decode_body(heartbeat.body, HeartbeatData)
    rig.consumers.register(client(rig.channel), body.consumer_data_set[0], notify=True, now=0)
    replayed = 0
    for asked, answer in [*answers("probe-pull", 11), *answers("probe-members", 11)]:
        if answer.code in (0, 23, 24, 25) and asked.header["extFields"].get("expressionType") == "TAG":
            found = rig.find(PullMessage.from_fields(asked.header["extFields"]))
            if answer.code == 0:
                assert isinstance(found, CompiledSubscription)
            else:
                assert found == PullRefused(answer.code, answer.header["remark"])
            replayed += 1
    assert replayed >= 7


def test_a_pull_without_a_subscription_is_served_by_the_heartbeats() -> None:
    rig = Rig()
    rig.join(SubscriptionData(topic="t1", sub_string="TagA", code_set=[2598919], sub_version=5))
    found = rig.find(pull(sub_version=5))
    assert isinstance(found, CompiledSubscription)
    assert found is rig.consumers.subscription("g1", "t1")
    assert rig.find(pull(sub_version=6)) == PullRefused(25, "the consumer's subscription not latest")


def test_a_pull_with_a_subscription_needs_no_heartbeat_and_is_remembered() -> None:
    rig = Rig()
    request = pull(sys_flag=PULL_SUBSCRIPTION, subscription="TagA||TagB", expression_type="TAG")
    found = rig.find(request)
    assert isinstance(found, CompiledSubscription)
    assert found.data.tags_set == ["TagA", "TagB"]
    assert rig.consumers.subscription("g1", "t1") is found
    assert rig.find(request) is found
    other = rig.find(pull(sys_flag=PULL_SUBSCRIPTION, subscription="TagC"))
    assert isinstance(other, CompiledSubscription)
    assert other.data.tags_set == ["TagC"]


def test_broadcasting_can_be_forbidden() -> None:
    rig = Rig()
    rig.join(SubscriptionData(topic="t1"), message_model="BROADCASTING")
    assert isinstance(rig.find(pull()), CompiledSubscription)
    config = rig.groups.get("g1")
    assert config is not None
    config.consume_broadcast_enable = False
    assert rig.find(pull()) == PullRefused(
        16, "the consumer group[g1] can not consume by broadcast way", forbidden_type=4
    )


def test_a_topic_can_be_forbidden() -> None:
    rig = Rig()
    rig.join(SubscriptionData(topic="t1"), SubscriptionData(topic="t2"))
    rig.groups.set_readable("g1", "t1", False, now_ms=NOW_MS)
    assert rig.find(pull()) == PullRefused(
        16, "the consumer group[g1] is forbidden for topic[t1]", forbidden_type=5
    )
    assert isinstance(rig.find(pull("t2")), CompiledSubscription)


@pytest.mark.parametrize("sys_flag", [0, PULL_SUBSCRIPTION])
def test_sql_that_is_switched_off_is_refused_in_rocketmqs_words(sys_flag: int) -> None:
    rig = Rig(sql_filters=False)
    rig.join(SubscriptionData(topic="t1", sub_string="a > 5", expression_type="SQL92"))
    request = pull(sys_flag=sys_flag, subscription="a > 5", expression_type="SQL92")
    assert rig.find(request) == PullRefused(
        1, "The broker does not support consumer to filter message by SQL92"
    )


@pytest.mark.parametrize("sys_flag", [0, PULL_SUBSCRIPTION])
def test_sql_is_served(sys_flag: int) -> None:
    rig = Rig()
    rig.join(SubscriptionData(topic="t1", sub_string="a > 5", expression_type="SQL92"))
    found = rig.find(pull(sys_flag=sys_flag, subscription="a > 5", expression_type="SQL92"))
    assert isinstance(found, CompiledSubscription)
    assert found.text_filter is not None
    assert found.text_filter(b"a\x016\x02")
    assert not found.text_filter(b"a\x015\x02")


def test_bad_sql_of_a_heartbeat_is_refused_at_the_pull_with_the_place() -> None:
    rig = Rig()
    rig.join(SubscriptionData(topic="t1", sub_string="a > 'x'", expression_type="SQL92"))
    assert rig.find(pull()) == PullRefused(
        27,
        "The broker's consumer filter data is not exist!Your expression may be wrong! "
        "only numbers and properties can be ordered, at character 3",
    )


def test_pull_consumers_can_be_rejected() -> None:
    rig = Rig(reject_pull_consumers=True)
    request = pull(sys_flag=PULL_SUBSCRIPTION, subscription="*")
    refused = rig.find(request)
    assert isinstance(refused, PullRefused)
    assert refused.code == 24
    assert refused.remark.startswith(
        "the consumer's group info not exist, or the pull consumer is rejected by server.\nSee https://"
    )
    tools = pull(group="TOOLS_CONSUMER", sys_flag=PULL_SUBSCRIPTION, subscription="*")
    assert isinstance(rig.find(tools), CompiledSubscription)
    rig.join(SubscriptionData(topic="t1"), who=client(FakeChannel()), consume_type="CONSUME_ACTIVELY")
    assert isinstance(rig.find(request), PullRefused)
    rig.join(SubscriptionData(topic="t1"), consume_type="CONSUME_ACTIVELY")
    assert isinstance(rig.find(request), CompiledSubscription)
    rig.channel = FakeChannel()
    rig.join(SubscriptionData(topic="t1"), who=client(FakeChannel()), consume_type="CONSUME_PASSIVELY")
    assert isinstance(rig.find(request), CompiledSubscription)
