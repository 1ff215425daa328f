"""Pop consumption of a running broker: the conformance checks, and what survives a crash."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.broker import Broker
from skylark.errors import BrokerError
from skylark.model import names
from skylark.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.offset import InvokeBrokerToResetOffset
from skylark.protocol.requests.pop import AckMessage, Notification, PeekMessage, PollingInfo
from tests.support.broker import GROUP, BrokerClient, running_broker, until
from tests.support.popping import Popped, Popper, quick_pops

TOPIC = "T"
V1, V2 = names.pop_retry_topics(TOPIC, GROUP)


@contextlib.asynccontextmanager
async def popping(directory: Path, **changes: Any) -> AsyncIterator[tuple[Broker, BrokerClient, Popper]]:
    async with (
        running_broker(directory, **quick_pops(**changes)) as broker,
        BrokerClient(broker.address) as client,
    ):
        yield broker, client, Popper(client, TOPIC)


async def send(client: BrokerClient, count: int, *, queue_id: int = 0, tag: str = "") -> list[bytes]:
    bodies = [b"%d of %d" % (number, queue_id) for number in range(count)]
    for body in bodies:
        properties = {"UNIQ_KEY": f"key {body.decode()}"} | ({"TAGS": tag} if tag else {})
        await client.send(TOPIC, body, queue_id, properties=properties)
    return bodies


async def pop_some(popper: Popper, count: int, **options: Any) -> list[Popped]:
    """Pop until there are so many."""
    found: list[Popped] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += (await popper.pop(poll_ms=1000, **options)).messages
    assert len(found) == count
    return found


def committed(broker: Broker, topic: str = TOPIC, queue_id: int = 0) -> int | None:
    return broker.offsets.committed(topic, GROUP).get(queue_id)


async def test_what_is_not_acknowledged_comes_again_with_its_key_and_its_first_pop_time(
    tmp_path: Path,
) -> None:
    async with popping(tmp_path) as (broker, client, popper):
        await send(client, 3)
        first = (await popper.pop(invisible_ms=300)).messages
        assert [each.message.reconsume_times for each in first] == [0, 0, 0]
        await popper.ack(first[0])
        again = await pop_some(popper, 2)
        assert [each.body for each in again] == [each.body for each in first[1:]]
        for before, after in zip(first[1:], again, strict=True):
            assert after.message.reconsume_times == 1
            assert after.message.topic == TOPIC
            assert after.message.unique_key == before.message.unique_key
            assert after.message.properties["1ST_POP_TIME"] == str(before.handle.pop_time)
            assert after.handle.retry == names.RETRY_V1
        await popper.ack(*again)
        assert (await popper.pop()).messages == []
        await until(lambda: committed(broker) == 3 and committed(broker, V1) == 2)


async def test_the_usual_pop_and_acknowledgement_write_nothing(tmp_path: Path) -> None:
    async with popping(tmp_path) as (broker, client, popper):
        await send(client, 40)
        end = broker.store.appended_offset
        for _ in range(2):
            await popper.ack_together((await popper.pop()).messages)
        assert (await popper.pop()).messages == []
        assert broker.store.appended_offset == end
        assert committed(broker) == 40
        assert len(broker.pops.batches) == broker.pops.batches.held_lanes == 0


async def test_the_offset_is_held_back_until_the_first_batch_is_acknowledged(tmp_path: Path) -> None:
    async with popping(tmp_path) as (broker, client, popper):
        await send(client, 4)
        first = (await popper.pop(2)).messages
        second = (await popper.pop(2)).messages
        await popper.ack(*second)
        assert committed(broker) == 0
        await popper.ack(*first)
        assert committed(broker) == 4


async def test_a_check_point_takes_over_and_its_late_acknowledgements_count(tmp_path: Path) -> None:
    async with popping(tmp_path, stay_ms=0) as (broker, client, popper):
        await send(client, 3)
        first = (await popper.pop(invisible_ms=2500)).messages
        await until(lambda: committed(broker) == 3)
        await popper.ack(first[1])
        again = await pop_some(popper, 2)
        assert [each.body for each in again] == [first[0].body, first[2].body]
        assert time.time() * 1000 >= first[0].handle.revive_time


async def test_an_old_handle_does_not_acknowledge_after_a_change(tmp_path: Path) -> None:
    async with popping(tmp_path) as (_, client, popper):
        await send(client, 1)
        [first] = (await popper.pop()).messages
        changed = await popper.change(first, 300)
        assert changed.handle.start_offset == 0
        await popper.ack(first)
        [again] = await pop_some(popper, 1)
        assert again.message.reconsume_times == 1
        longer = await popper.change(again, 60_000)
        await popper.ack(longer)
        assert (await popper.pop(poll_ms=500)).messages == []


async def test_an_acknowledgement_may_be_repeated(tmp_path: Path) -> None:
    async with popping(tmp_path) as (_, client, popper):
        await send(client, 1)
        [popped] = (await popper.pop()).messages
        await popper.ack(popped, popped)


async def test_parallel_pops_never_get_the_same_message(tmp_path: Path) -> None:
    async with popping(tmp_path) as (_, client, popper):
        for queue_id in range(4):
            await send(client, 25, queue_id=queue_id)
        results = await asyncio.gather(*(popper.pop(7, poll_ms=200) for _ in range(20)))
        bodies = [body for result in results for body in result.bodies]
        assert len(bodies) == len(set(bodies)) == 100


async def test_a_revived_message_wakes_its_poller_at_once(tmp_path: Path) -> None:
    async with popping(tmp_path, retry_percent=0) as (_, client, popper):
        await send(client, 1)
        await popper.pop(invisible_ms=200)
        started = time.monotonic()
        found = await popper.pop(poll_ms=30_000)
        assert len(found.messages) == 1
        assert time.monotonic() - started < 15


async def test_a_held_pop_is_answered_by_a_new_message_that_matches(tmp_path: Path) -> None:
    async with popping(tmp_path) as (broker, client, popper):
        await send(client, 1, tag="A")
        held = asyncio.create_task(popper.pop(poll_ms=30_000, expression="B"))
        await until(lambda: broker.held_pops.count == 1)
        assert await client.ask(PollingInfo(GROUP, TOPIC, -1)) == 1
        assert await client.ask(PollingInfo(GROUP, TOPIC, 0)) == 0
        await send(client, 1, tag="A")
        await send(client, 1, tag="B")
        assert len((await held).messages) == 1
        assert broker.held_pops.count == 0


async def test_a_poll_ends_with_its_time(tmp_path: Path) -> None:
    async with popping(tmp_path) as (_, client, popper):
        await send(client, 1)
        await popper.ack((await popper.pop()).messages[0])
        found = await popper.pop(poll_ms=200)
        assert found.code == ResponseCode.POLLING_TIMEOUT
        assert found.reply is not None
        assert found.reply.start_offset_info == ""


async def test_only_so_many_pops_are_held(tmp_path: Path) -> None:
    async with popping(tmp_path, held_max=1) as (broker, client, popper):
        await send(client, 1)
        await popper.pop()
        held = asyncio.create_task(popper.pop(poll_ms=10_000))
        await until(lambda: broker.held_pops.count == 1)
        assert (await popper.pop(poll_ms=10_000)).code == ResponseCode.POLLING_FULL
        held.cancel()


async def test_a_filter_that_matches_nothing_moves_the_position(tmp_path: Path) -> None:
    async with popping(tmp_path) as (broker, client, popper):
        await send(client, 50, tag="A")
        assert (await popper.pop(expression="B")).messages == []
        assert committed(broker) == 50
        await client.send(TOPIC, b"x", properties={"a": "5"})
        assert (await popper.pop(expression="a > 7", expression_type="SQL92")).messages == []
        assert committed(broker) == 51
        await client.send(TOPIC, b"y", properties={"a": "8"})
        assert (await popper.pop(expression="a > 7", expression_type="SQL92")).bodies == [b"y"]


async def test_a_batch_may_have_gaps_where_the_filter_did_not_match(tmp_path: Path) -> None:
    async with popping(tmp_path) as (broker, client, popper):
        for tag in "ABABA":
            await client.send(TOPIC, tag.encode(), properties={"TAGS": tag})
        found = await popper.pop(expression="A", invisible_ms=300)
        assert found.reply is not None
        assert found.reply.msg_offset_info == "0 0 0,2,4"
        await popper.ack_together(found.messages[:2])
        [again] = await pop_some(popper, 1)
        assert again.message.properties["TAGS"] == "A"
        await until(lambda: committed(broker) == 5)


async def test_requests_that_are_refused(tmp_path: Path) -> None:
    async with popping(tmp_path) as (_, client, popper):
        await send(client, 1)
        with pytest.raises(BrokerError, match="greater than 32") as refused:
            await popper.pop(33)
        assert refused.value.code == ResponseCode.INVALID_PARAMETER
        with pytest.raises(BrokerError, match="not exist") as refused:
            await Popper(client, "Nowhere").pop()
        assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST
        with pytest.raises(BrokerError, match=r"queueId\[77\]") as refused:
            await popper.pop(queue_id=77)
        assert refused.value.code == ResponseCode.INVALID_PARAMETER
        with pytest.raises(BrokerError, match="invisibleTime") as refused:
            await popper.pop(invisible_ms=1 << 50)
        [popped] = (await popper.pop()).messages
        handle = popped.handle
        for queue_id, offset, code in (
            (77, 0, ResponseCode.MESSAGE_ILLEGAL),
            (0, 2, ResponseCode.NO_MESSAGE),
        ):
            with pytest.raises(BrokerError) as refused:
                await client.ask(AckMessage(GROUP, TOPIC, queue_id, handle.encode(), offset))
            assert refused.value.code == code


async def test_the_order_of_a_queue_is_kept(tmp_path: Path) -> None:
    async with popping(tmp_path) as (broker, client, popper):
        bodies = await send(client, 4)
        first = await popper.pop(2, order=True, attempt_id="a", invisible_ms=60_000)
        assert first.bodies == bodies[:2]
        assert first.reply is not None
        assert first.reply.revive_queue_id == 999
        assert first.reply.order_count_info == "0 0 0"
        assert (await popper.pop(2, order=True, attempt_id="b")).messages == []
        repeated = await popper.pop(2, order=True, attempt_id="a")
        assert repeated.bodies == bodies[:2]
        waiting = asyncio.create_task(popper.pop(2, order=True, attempt_id="c", poll_ms=30_000))
        await until(lambda: broker.held_pops.count == 1)
        await popper.ack(repeated.messages[1])
        assert committed(broker) == 0
        await popper.ack(repeated.messages[0])
        assert (await waiting).bodies == bodies[2:]
        assert committed(broker) == 2


async def test_an_ordered_batch_comes_again_when_its_time_is_up(tmp_path: Path) -> None:
    async with popping(tmp_path) as (_, client, popper):
        bodies = await send(client, 2)
        first = await popper.pop(2, order=True, invisible_ms=60_000)
        await popper.ack(first.messages[0])
        changed = await popper.change(first.messages[1], 200)
        assert changed.handle.pop_time == first.messages[1].handle.pop_time
        again = await popper.pop(2, order=True, poll_ms=30_000)
        assert again.bodies == bodies[1:]
        assert again.reply is not None
        assert again.reply.order_count_info == "0 qo0%1 1;0 0 1"
        await popper.ack(first.messages[1])  # of the batch before: nothing happens
        assert (await popper.pop(2, order=True)).messages == []
        await popper.ack(again.messages[0])


async def test_the_ordered_batches_are_kept_over_a_restart(tmp_path: Path) -> None:
    async with popping(tmp_path) as (_, client, popper):
        await send(client, 2)
        first = await popper.pop(2, order=True)
        await popper.ack(first.messages[0])
    async with popping(tmp_path) as (broker, _, popper):
        assert (await popper.pop(2, order=True)).messages == []
        await popper.ack(first.messages[1])
        assert committed(broker) == 2


async def test_a_reset_restarts_the_group(tmp_path: Path) -> None:
    async with popping(tmp_path) as (broker, client, popper):
        bodies = await send(client, 3)
        await popper.ack(*(await popper.pop()).messages)
        assert committed(broker) == 3
        await client.ask(
            InvokeBrokerToResetOffset(
                topic=TOPIC, group=GROUP, timestamp=-1, is_force=True, queue_id=0, queue_offset=1
            )
        )
        assert (await popper.pop()).bodies == bodies[1:]


async def test_new_and_old_retry_topics_are_both_read(tmp_path: Path) -> None:
    async with popping(tmp_path) as (_, client, popper):
        await send(client, 1)
        await popper.pop(invisible_ms=100)
        [old] = await pop_some(popper, 1)
        assert old.handle.retry == names.RETRY_V1
        await popper.change(old, 100)
        await until(lambda: client_has(client, V1, 2))
    async with popping(tmp_path, retry_topic_v2=True) as (_, client, popper):
        await send(client, 1)
        found = await pop_some(popper, 2)
        assert {each.handle.retry for each in found} == {names.NO_RETRY, names.RETRY_V1}
        for each in found:
            await popper.change(each, 0)
        again = await pop_some(popper, 2)
        # What came from a retry topic stays there.
        assert {each.handle.retry for each in again} == {names.RETRY_V1, names.RETRY_V2}
        assert max(each.message.reconsume_times for each in again) == 3


async def client_has(client: BrokerClient, topic: str, count: int) -> bool:
    return len(await client.pull_all(topic, group="TOOLS_CONSUMER")) >= count


async def test_looking_takes_nothing(tmp_path: Path) -> None:
    async with popping(tmp_path) as (broker, client, popper):
        await send(client, 3)
        born = round(time.time() * 1000)
        assert (await client.ask(Notification(GROUP, TOPIC, -1, 0, born))).has_msg
        peeked = await client.ask(PeekMessage(GROUP, TOPIC, 0, 2))
        assert peeked.reply is not None
        assert peeked.reply.rest_num == 1
        assert len((await popper.pop()).messages) == 3
        assert (await client.ask(PeekMessage(GROUP, TOPIC, 0, 2))).code == ResponseCode.PULL_NOT_FOUND
        assert not (await client.ask(Notification(GROUP, TOPIC, -1, 0, born))).has_msg
        waiting = asyncio.create_task(client.ask(Notification(GROUP, TOPIC, -1, 30_000, 0), timeout_s=60))
        await until(lambda: broker.held_notifications.count == 1)
        await send(client, 1)
        assert (await waiting).has_msg


async def test_a_stopped_broker_has_committed_everything_it_may(tmp_path: Path) -> None:
    async with popping(tmp_path) as (broker, client, popper):
        await send(client, 3)
        first = (await popper.pop(invisible_ms=4000)).messages
        await popper.ack(first[0])
        assert committed(broker) == 0
    async with popping(tmp_path) as (broker, _, popper):
        assert committed(broker) == 3
        await popper.ack(first[1])
        [again] = await pop_some(popper, 1)
        assert again.body == first[2].body
        assert again.message.reconsume_times == 1


async def test_a_broker_that_is_no_longer_master_writes_and_commits_nothing(tmp_path: Path) -> None:
    """Its log may be cut: an offset committed for a check point there would lose the messages."""
    async with popping(tmp_path) as (broker, client, popper):
        bodies = await send(client, 3)
        await pop_some(popper, 3)
        end = broker.store.appended_offset
        await broker.pops.abandon()
        assert broker.store.appended_offset == end
        assert not committed(broker)
        broker.pops.start()
        assert sorted(message.body for message in await pop_some(popper, 3)) == bodies


# --- Priorities ---

PRIORITIES = [2, 7, 0, 3, 7, 100]
"""Of messages in the order of their sending; a topic of eight queues has priorities up to 7."""


async def send_by_priority(broker: Broker, client: BrokerClient, group: SubscriptionGroupConfig) -> None:
    config = TopicConfig(
        topic_name=TOPIC, read_queue_nums=8, write_queue_nums=8, attributes={"+message.type": "PRIORITY"}
    )
    now_ms = broker.clock.now_ms()
    broker.topics.update(config, now_ms=now_ms)
    broker.groups.update(group, now_ms=now_ms)
    for number, priority in enumerate(PRIORITIES):
        properties = {"_SYS_MSG_PRIORITY_": str(priority)}
        await client.send(TOPIC, b"%d with %d" % (number, priority), properties=properties)


@pytest.mark.parametrize(
    ("ascends", "expected"),
    [
        (True, [b"1 with 7", b"4 with 7", b"5 with 100", b"3 with 3", b"0 with 2", b"2 with 0"]),
        (False, [b"2 with 0", b"0 with 2", b"3 with 3", b"1 with 7", b"4 with 7", b"5 with 100"]),
    ],
)
async def test_messages_of_a_higher_priority_come_first(
    tmp_path: Path, ascends: bool, expected: list[bytes]
) -> None:
    async with popping(tmp_path, priority_ascends=ascends) as (broker, client, popper):
        await send_by_priority(broker, client, SubscriptionGroupConfig(group_name=GROUP))
        assert [each.message.queue_id for each in (await popper.pop(1)).messages] == [7 if ascends else 0]
        found = [expected[0], *[(await popper.pop(1)).bodies[0] for _ in PRIORITIES[1:]]]
        assert found == expected


@pytest.mark.parametrize("retries_first", [True, False])
async def test_retried_messages_of_a_priority_topic_come_last_or_first(
    tmp_path: Path, retries_first: bool
) -> None:
    percent = 100 if retries_first else 0
    async with popping(tmp_path, priority_retry_percent=percent) as (broker, client, popper):
        await send_by_priority(broker, client, SubscriptionGroupConfig(group_name=GROUP))
        [failed] = (await popper.pop(1, invisible_ms=100)).messages
        await until(lambda: broker.store.queues.get((V1, 0)) is not None)
        bodies = [(await popper.pop(1)).bodies[0] for _ in PRIORITIES]
        assert bodies[0 if retries_first else -1] == failed.body


async def test_a_group_may_ignore_priorities(tmp_path: Path) -> None:
    async with popping(tmp_path) as (broker, client, _):
        await send_by_priority(broker, client, SubscriptionGroupConfig(group_name=GROUP))
        firsts = set()
        for number in range(60):  # eight queues, each visited first with the same chance
            other = Popper(client, TOPIC, f"G{number}")
            broker.groups.update(
                SubscriptionGroupConfig(group_name=other.group, attributes={"+priority.factor": "0"}),
                now_ms=broker.clock.now_ms(),
            )
            firsts |= {each.message.queue_id for each in (await other.pop(1)).messages}
        assert len(firsts) > 1
        with pytest.raises(BrokerError, match=r"not in range\(0, 100\)"):
            broker.groups.update(
                SubscriptionGroupConfig(group_name=GROUP, attributes={"+priority.factor": "101"}),
                now_ms=broker.clock.now_ms(),
            )


@pytest.mark.parametrize(
    "other", [{"TIMER_DELIVER_MS": "1"}, {"__SHARDINGKEY": "a"}, {"_SYS_MSG_PRIORITY_": "-1"}]
)
async def test_other_messages_stay_in_the_queue_of_their_producer(
    tmp_path: Path, other: dict[str, str]
) -> None:
    async with popping(tmp_path) as (broker, client, popper):
        await send_by_priority(broker, client, SubscriptionGroupConfig(group_name=GROUP))
        await client.send(TOPIC, b"other", 4, properties={"_SYS_MSG_PRIORITY_": "6", **other})
        assert (await pop_some(popper, 1, queue_id=4))[0].body == b"other"
