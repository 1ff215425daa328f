"""Lite topics of a running broker: sends, subscriptions, pops, acknowledgements, expiry, restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.broker import Broker
from skylark.errors import BrokerError
from skylark.model.lite_topic import light_queue_of
from skylark.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.request import Request
from skylark.protocol.requests.lite import (
    COMPLETE_ADD,
    COMPLETE_REMOVE,
    OFFSET,
    PARTIAL_REMOVE,
    POLICY,
    POLICY_MIN,
    TAIL_N,
    GetBrokerLiteInfo,
    GetLiteClientInfo,
    GetLiteGroupInfo,
    GetLiteTopicInfo,
    GetParentTopicInfo,
    LiteSubscriptionChanges,
    LiteSubscriptionCtl,
    NotifyUnsubscribeLite,
    OffsetOption,
    PopLiteMessage,
    TriggerLiteDispatch,
)
from skylark.protocol.requests.pop import AckMessage
from skylark.protocol.requests.topic import DeleteTopicInBroker
from skylark.settings.broker import LiteSettings
from tests.support.broker import BrokerClient, running_broker, until
from tests.support.clock import ManualClock
from tests.support.lite_consumer import GROUP, PARENT, LiteConsumer, LitePopped
from tests.support.store import unpack_golden

FROM_FIRST = OffsetOption(POLICY, POLICY_MIN)


def configure(broker: Broker, *, group: str = GROUP, expiration: int = -1, **attributes: str) -> None:
    """Make the parent topic, and a group for it with these attributes after `lite.sub.`."""
    now_ms = broker.clock.now_ms()
    named = {"+message.type": "LITE", "+lite.topic.expiration": str(expiration)}
    broker.topics.update(TopicConfig(topic_name=PARENT, attributes=named), now_ms=now_ms)
    more = {f"+lite.sub.{name.replace('_', '.')}": value for name, value in attributes.items()}
    config = SubscriptionGroupConfig(group_name=group, attributes={"+lite.bind.topic": PARENT, **more})
    broker.groups.update(config, now_ms=now_ms)


@contextlib.asynccontextmanager
async def lite_broker(
    directory: Path, *, group: dict[str, str] | None = None, expiration: int = -1, **changes: Any
) -> AsyncIterator[tuple[Broker, BrokerClient]]:
    async with running_broker(directory, **changes) as broker, BrokerClient(broker.address) as client:
        configure(broker, expiration=expiration, **(group or {}))
        yield broker, client


async def send(client: BrokerClient, lite_topic: str, *bodies: str, **properties: str) -> None:
    for number, body in enumerate(bodies):
        await client.send(
            PARENT, body.encode(), number % 2, properties={"__LITE_TOPIC": lite_topic, **properties}
        )


def texts(popped: Sequence[LitePopped]) -> list[str]:
    return [each.text for each in popped]


async def test_a_client_gets_the_messages_of_the_lite_topics_that_it_subscribes(tmp_path: Path) -> None:
    async with lite_broker(tmp_path) as (_, client):
        consumer = LiteConsumer(client)
        await consumer.subscribe("one", "two")
        await send(client, "one", "1a", "1b", "1c")
        await send(client, "two", "2a")
        await send(client, "three", "3a")
        found = await consumer.pop()
        assert sorted(texts(found)) == ["1a", "1b", "1c", "2a"]
        assert [each.text for each in found if each.lite_topic == "one"] == ["1a", "1b", "1c"]
        assert {each.message.topic for each in found} == {PARENT}
        assert {each.message.properties["INNER_MULTI_DISPATCH"] for each in found} == {
            light_queue_of(PARENT, "one"), light_queue_of(PARENT, "two"),
        }  # fmt: skip
        for each in found:
            await each.acknowledge()
        assert await consumer.pop() == []


async def test_a_held_pop_is_answered_by_a_message(tmp_path: Path) -> None:
    async with lite_broker(tmp_path) as (broker, client), BrokerClient(broker.address) as sender:
        consumer = LiteConsumer(client)
        await consumer.subscribe("one")
        popping = asyncio.create_task(consumer.pop(poll_ms=60_000))
        await until(lambda: broker.lite_handlers.held.count == 1)
        await send(sender, "other", "not for it")
        await send(sender, "one", "a")
        assert texts(await popping) == ["a"]


async def test_a_lite_topic_waits_for_the_acknowledgements_of_its_batch_and_no_other(tmp_path: Path) -> None:
    async with lite_broker(tmp_path) as (_, client):
        consumer = LiteConsumer(client)
        await consumer.subscribe("one", "two")
        await send(client, "one", "1a", "1b")
        first = await consumer.pop()
        await send(client, "one", "1c")
        await send(client, "two", "2a")
        assert texts(await consumer.pop()) == ["2a"]
        await first[1].acknowledge()
        assert await consumer.pop() == []
        await first[0].acknowledge()
        assert texts(await consumer.pop()) == ["1c"]


async def test_what_is_not_acknowledged_in_time_comes_again(tmp_path: Path) -> None:
    async with lite_broker(tmp_path) as (_, client):
        consumer = LiteConsumer(client)
        await consumer.subscribe("one")
        await send(client, "one", "a")
        (first,) = await consumer.pop(invisible_ms=100)
        assert first.delivered == 0
        (again,) = await consumer.pop(poll_ms=60_000)
        assert (again.text, again.delivered) == ("a", 1)
        await again.change_invisible_time(100)
        (third,) = await consumer.pop(poll_ms=60_000)
        assert (third.text, third.delivered) == ("a", 2)
        await third.change_invisible_time(100, suspend=True)
        (fourth,) = await consumer.pop(poll_ms=60_000)
        assert (fourth.text, fourth.delivered) == ("a", 2)  # suspended: it was not consumed


async def test_what_a_client_leaves_goes_to_another_of_its_group(tmp_path: Path) -> None:
    async with lite_broker(tmp_path) as (_, client):
        first, second = LiteConsumer(client, "c1"), LiteConsumer(client, "c2")
        await first.subscribe("one")
        await second.change(COMPLETE_ADD, "one")
        await send(client, "one", "a")
        (popped,) = await first.pop(invisible_ms=100)
        await first.change(COMPLETE_REMOVE)
        assert texts(await second.pop(poll_ms=60_000)) == [popped.text]


async def test_unsubscribed_lite_topics_are_not_delivered(tmp_path: Path) -> None:
    async with lite_broker(tmp_path) as (broker, client):
        consumer = LiteConsumer(client)
        await consumer.subscribe("one", "two")
        await consumer.change(PARTIAL_REMOVE, "one")
        await send(client, "one", "1a")
        await send(client, "two", "2a")
        assert await consumer.take(1) == ["2a"]
        await consumer.change(COMPLETE_ADD, "one")
        assert await consumer.take(1) == ["1a"]
        assert broker.lite_pops.subscriptions.count == 1


async def test_a_subscription_begins_where_the_client_wants(tmp_path: Path) -> None:
    async with lite_broker(tmp_path) as (_, client):
        consumer = LiteConsumer(client)
        await send(client, "one", "a", "b", "c", "d")
        await consumer.subscribe("one", start=FROM_FIRST)
        assert await consumer.take(4) == ["a", "b", "c", "d"]
        for start, expected in ((OffsetOption(OFFSET, 2), ["c", "d"]), (OffsetOption(TAIL_N, 1), ["d"])):
            await consumer.change(PARTIAL_REMOVE, "one")
            await consumer.subscribe("one", start=start)
            assert await consumer.take(len(expected)) == expected


async def test_an_exclusive_group_has_one_client_for_each_lite_topic(tmp_path: Path) -> None:
    attributes = {"model": "Exclusive", "reset_offset_exclusive": "true"}
    async with (
        lite_broker(tmp_path, group=attributes) as (broker, client),
        BrokerClient(broker.address) as other,
    ):
        first, second = LiteConsumer(client, "c1"), LiteConsumer(other, "c2")
        await first.subscribe("one")
        await send(client, "one", "a")
        assert await first.take(1) == ["a"]
        await second.subscribe("one")
        await until(lambda: len(client.asked) == 1)
        assert client.asked[0].code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE
        assert NotifyUnsubscribeLite.from_command(client.asked[0]) == NotifyUnsubscribeLite(
            "one", GROUP, "c1"
        )
        assert await second.take(1) == ["a"]  # from the first message on
        await send(client, "one", "b")
        assert await first.pop() == []
        assert await second.take(1) == ["b"]


async def test_a_group_with_the_wildcard_gets_all_lite_topics(tmp_path: Path) -> None:
    async with lite_broker(tmp_path, group={"wildcard": "true"}) as (broker, client):
        consumer = LiteConsumer(client)
        await send(client, "one", "a")
        await consumer.change(COMPLETE_ADD)
        await send(client, "two", "b")
        assert sorted(await consumer.take(2)) == ["a", "b"]
        with pytest.raises(BrokerError) as refused:
            await consumer.subscribe("one")
        assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
        info = await client.ask(GetLiteTopicInfo(PARENT, "one"))
        assert [(each.client_id, each.group) for each in info.subscriber] == [("*", GROUP)]
        await consumer.change(COMPLETE_REMOVE)
        assert broker.lite_pops.subscriptions.count == 0


async def test_administrators_see_lite_topics_clients_and_lag(tmp_path: Path) -> None:
    async with lite_broker(tmp_path, expiration=60) as (_, client):
        consumer = LiteConsumer(client)
        await consumer.subscribe("one", "two")
        await send(client, "one", "a", "b", "c")
        (first, *_) = await consumer.pop(count=1)
        await first.acknowledge()
        info = await client.ask(GetBrokerLiteInfo())
        assert (info.current_lmq_num, info.lite_subscription_count) == (1, 2)
        assert info.topic_meta == {PARENT: 60} and info.group_meta == {PARENT: [GROUP]}
        parent = await client.ask(GetParentTopicInfo(PARENT))
        assert (parent.ttl, parent.groups, parent.lite_topic_count) == (60, [GROUP], 1)
        topic = await client.ask(GetLiteTopicInfo(PARENT, "one"))
        assert (topic.topic_offset.min_offset, topic.topic_offset.max_offset) == (0, 3)
        assert topic.topic_offset.last_update_timestamp > 0
        assert [(each.client_id, each.group) for each in topic.subscriber] == [("c1", GROUP)]
        known = await client.ask(GetLiteClientInfo(PARENT, GROUP, "c1"))
        assert known.lite_topic_set == [light_queue_of(PARENT, "one"), light_queue_of(PARENT, "two")]
        assert known.last_access_time > 0
        assert (await client.ask(GetLiteClientInfo(PARENT, GROUP, "nobody"))).lite_topic_count == -1
        group = await client.ask(GetLiteGroupInfo(GROUP))
        assert group.total_lag_count == 2 and group.lag_count_top_k is not None
        assert [(each.lite_topic, each.lag_count) for each in group.lag_count_top_k] == [("one", 2)]
        one = await client.ask(GetLiteGroupInfo(GROUP, "one"))
        assert one.lite_topic_offset_wrapper is not None
        assert (one.total_lag_count, one.lite_topic_offset_wrapper.consumer_offset) == (2, 1)
        await client.ask(TriggerLiteDispatch(GROUP))
        assert await consumer.take(2) == ["b", "c"]


REFUSALS: list[tuple[Request[Any], ResponseCode]] = [
    (PopLiteMessage("c", GROUP, "missing", 1, 1000, 0), ResponseCode.TOPIC_NOT_EXIST),
    (PopLiteMessage("c", GROUP, "TBW102", 1, 1000, 0), ResponseCode.INVALID_PARAMETER),
    (PopLiteMessage("c", "missing", PARENT, 1, 1000, 0), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    (PopLiteMessage("c", "TOOLS_CONSUMER", PARENT, 1, 1000, 0), ResponseCode.INVALID_PARAMETER),
    (PopLiteMessage("c", GROUP, PARENT, 33, 1000, 0), ResponseCode.INVALID_PARAMETER),
    (GetParentTopicInfo("missing"), ResponseCode.TOPIC_NOT_EXIST),
    (GetLiteTopicInfo("TBW102", "one"), ResponseCode.INVALID_PARAMETER),
    (GetLiteGroupInfo("TOOLS_CONSUMER"), ResponseCode.INVALID_PARAMETER),
    (TriggerLiteDispatch("missing"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    (LiteSubscriptionCtl(LiteSubscriptionChanges([])), ResponseCode.ILLEGAL_OPERATION),
    (AckMessage("TOOLS_CONSUMER", PARENT, 0, "0 1 1 999 0 b 0 0", 0, "one"), ResponseCode.INVALID_PARAMETER),
    (AckMessage(GROUP, PARENT, 0, "0 1 1 999 0 b 0 5", 5, "one"), ResponseCode.NO_MESSAGE),
]


async def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    lite = LiteSettings(subscriptions_max=2, limits_topics=True, topics_max=2)
    async with lite_broker(tmp_path, lite=lite) as (_, client):
        for request, code in REFUSALS:
            with pytest.raises(BrokerError) as refused:
                await client.ask(request)
            assert refused.value.code == code, request
        consumer = LiteConsumer(client)
        await consumer.subscribe("one", "two")
        with pytest.raises(BrokerError) as refused:
            await consumer.subscribe("three")
        assert refused.value.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        await send(client, "one", "a")
        await send(client, "two", "a")
        for lite_topic, properties, code in (
            ("three", {}, ResponseCode.LMQ_QUOTA_EXCEEDED),
            ("a$b", {}, ResponseCode.MESSAGE_ILLEGAL),
            ("one", {"DELAY": "3"}, ResponseCode.MESSAGE_ILLEGAL),
        ):
            with pytest.raises(BrokerError) as refused:
                await send(client, lite_topic, "x", **properties)
            assert refused.value.code == code
        await send(client, "one", "b")  # lite topics that exist take more


async def test_clients_cannot_choose_a_place_in_a_light_queue(tmp_path: Path) -> None:
    async with lite_broker(tmp_path) as (broker, client):
        name = light_queue_of(PARENT, "one")
        await client.send(
            PARENT, b"x", properties={"INNER_MULTI_DISPATCH": name, "INNER_MULTI_QUEUE_OFFSET": "0"}
        )
        (stored,) = await client.pull_all(PARENT)
        assert not any(each.startswith("INNER_MULTI") for each in stored.properties)
        assert broker.store.queues.light_queues() == []


async def test_offsets_and_messages_survive_a_restart(tmp_path: Path) -> None:
    async with lite_broker(tmp_path) as (_, client):
        consumer = LiteConsumer(client)
        await consumer.subscribe("one")
        await send(client, "one", "a", "b", "c")
        (popped, *_) = await consumer.pop(count=1)
        await popped.acknowledge()
    async with lite_broker(tmp_path) as (broker, client):
        assert broker.topics.get(light_queue_of(PARENT, "one")) is None
        consumer = LiteConsumer(client)
        await consumer.subscribe("one")
        await send(client, "one", "d", INNER_MULTI_QUEUE_OFFSET="77")
        assert await consumer.take(3) == ["b", "c", "d"]


async def test_lite_topics_without_messages_for_long_are_deleted(tmp_path: Path) -> None:
    clock = ManualClock()
    lite = LiteSettings(ttl_check_interval_ms=10, ttl_ms_min=1000)
    async with lite_broker(tmp_path, expiration=1, clock=clock, lite=lite) as (broker, client):
        consumer = LiteConsumer(client)
        await consumer.subscribe("old", "new")
        await send(client, "old", "a")
        assert await consumer.take(1) == ["a"]
        clock.advance(55_000)
        await send(client, "new", "b")
        clock.advance(6_000)
        await until(lambda: broker.store.queues.light_queues() == [light_queue_of(PARENT, "new")])
        assert broker.offsets.groups_of(light_queue_of(PARENT, "old")) == []
        await send(client, "old", "c")
        await consumer.change(COMPLETE_ADD, "old", "new")
        assert sorted(await consumer.take(2)) == ["b", "c"]


async def test_lite_topics_go_with_their_parent(tmp_path: Path) -> None:
    async with lite_broker(tmp_path) as (broker, client):
        consumer = LiteConsumer(client)
        await consumer.subscribe("one")
        await send(client, "one", "a")
        assert await consumer.take(1) == ["a"]
        await client.ask(DeleteTopicInBroker(PARENT))
        assert broker.store.queues.light_queues() == []
        assert broker.offsets.topics_of(GROUP) == []
        configure(broker)
        await consumer.subscribe("one", start=FROM_FIRST)
        await send(client, "one", "b")
        assert await consumer.take(1) == ["b"]


async def test_clients_that_are_silent_for_long_lose_their_subscriptions(tmp_path: Path) -> None:
    lite = LiteSettings(subscription_check_interval_ms=10, subscription_expiry_ms=100)
    async with lite_broker(tmp_path, lite=lite) as (broker, client):
        await LiteConsumer(client).subscribe("one")
        await until(lambda: not broker.lite_pops.subscriptions.clients)
        assert broker.lite_pops.subscriptions.count == 0


GOLDEN_FILES = {
    "commit_log_file_bytes": 1 << 16,
    "consume_queue_file_bytes": 6000,
    "index_slots": 500,
    "index_items": 2000,
}


async def test_a_store_that_apache_left_with_lite_topics_goes_on(tmp_path: Path, golden: Path) -> None:
    """RocketMQ 5.5.0 was killed: two of three messages of one lite topic were consumed, none of the other."""
    store = unpack_golden(golden, "lite", tmp_path)
    async with (
        running_broker(store, store=GOLDEN_FILES, revive_queues=2) as broker,
        BrokerClient(broker.address) as client,
    ):
        assert broker.store.report.problems == []
        consumer = LiteConsumer(client)
        await consumer.subscribe("one", "two")
        assert sorted(await consumer.take(2)) == ["c", "d"]
        await send(client, "one", "e")
        (popped,) = await consumer.pop(poll_ms=1000)
        assert (popped.text, popped.handle.queue_offset) == ("e", 3)
