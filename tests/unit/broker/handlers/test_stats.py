"""How far producers and consumers are, and what the counters say."""

from datetime import datetime
from typing import Any

import pytest

from skylark.broker.clients import ConnectedClient as Member
from skylark.broker.handlers.sliced_encoding import READ_SLICE
from skylark.broker.handlers.stats import local_time
from skylark.broker.monitoring.stats import STEP_S
from skylark.model import java
from skylark.protocol.bodies import (
    BrokerConsumeStats,
    BrokerStatsData,
    ConsumeStatsTable,
    ConsumeTimeSpans,
    GroupOffset,
    MessageQueue,
    StatsSnapshot,
    TopicConfig,
    TopicOffset,
    TopicStatsTable,
    decode_body,
)
from skylark.protocol.requests.admin import GetBrokerConsumeStats, ViewBrokerStatsData
from skylark.protocol.requests.group import GetConsumeStats, QueryConsumeTimeSpan
from skylark.protocol.requests.topic import GetTopicStatsInfo
from tests.support.broker import consumer
from tests.unit.broker.handlers.rig import Rig


def queue(queue_id: int = 0, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue_id)


def put_at(rig: Rig, *seconds: int, topic: str = "T", queue_id: int = 0) -> list[int]:
    """Store a message after each of these pauses; returns when, on the wall clock."""
    times = []
    for pause_s in seconds:
        rig.clock.advance(pause_s * 1000)
        rig.put(topic, queue_id)
        times.append(rig.clock.now_ms())
    return times


# --- Topics ---


async def test_a_topic_with_its_queues(rig: Rig) -> None:
    rig.broker.topics.update(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=3), now_ms=1)
    times = put_at(rig, 1, 1)
    answer = await rig.ask(GetTopicStatsInfo("T"))
    table = decode_body(answer.body, TopicStatsTable)
    assert table.offset_table == {
        queue(0): TopicOffset(min_offset=0, max_offset=2, last_update_timestamp=times[-1]),
        queue(1): TopicOffset(),
        queue(2): TopicOffset(),
    }
    answer = await rig.ask(GetTopicStatsInfo("NoSuchTopic"))
    assert (answer.code, answer.remark) == (17, "topic[NoSuchTopic] not exist")


async def test_a_topic_with_very_many_queues(rig: Rig) -> None:
    queues = 3 * READ_SLICE + 1
    rig.broker.topics.ensure_topic("T", queues, now_ms=1)
    rig.put("T", queues - 1)
    answer = await rig.ask(GetTopicStatsInfo("T"))
    table = decode_body(answer.body, TopicStatsTable).offset_table
    assert table.keys() == {queue(number) for number in range(queues)}
    assert table[queue(queues - 1)].max_offset == 1


async def test_the_rate_of_a_topic(rig: Rig) -> None:
    put_at(rig, 0)
    rig.broker.stats.count_puts([rig.put(), rig.put()])
    rig.broker.stats.step(rig.clock.monotonic(), rig.clock.now_ms())
    answer = await rig.ask(GetTopicStatsInfo("T"))
    assert decode_body(answer.body, TopicStatsTable).topic_put_tps == 2 / STEP_S


# --- Groups ---


async def stats(rig: Rig, group: str = "CG", **members: Any) -> ConsumeStatsTable:
    answer = await rig.ask(GetConsumeStats(group, **members))
    assert (answer.code, answer.remark) == (0, None)
    return decode_body(answer.body, ConsumeStatsTable)


def commit(rig: Rig, queue_offset: int, queue_id: int = 0, *, topic: str = "T", group: str = "CG") -> None:
    rig.broker.groups.find(group, now_ms=1)
    rig.broker.offsets.commit(topic, group, queue_id, queue_offset, now_ms=1)


async def test_how_far_a_group_is(rig: Rig) -> None:
    times = put_at(rig, 1, 1, 1)
    commit(rig, 2)
    rig.broker.offsets.note_pull("T", "CG", 0, 3)
    rig.broker.stats.count_gets("T", "CG", 3, 300)
    rig.broker.stats.step(rig.clock.monotonic(), rig.clock.now_ms())
    shown = await stats(rig)
    assert shown.offset_table == {
        queue(0): GroupOffset(broker_offset=3, consumer_offset=2, pull_offset=3, last_timestamp=times[1]),
        **{queue(number): GroupOffset() for number in (1, 2, 3)},
    }
    assert shown.consume_tps == 3 / STEP_S


async def test_which_topics_of_a_group_are_shown(rig: Rig) -> None:
    for topic in ("T", "U", "V"):
        rig.put(topic)
        commit(rig, 1, topic=topic)
    rig.broker.topics.delete("V", now_ms=1)

    async def topics(**members: Any) -> set[str]:
        return {each.topic for each in (await stats(rig, **members)).offset_table}

    assert await topics() == {"T", "U"}, "all that it has offsets in and that are there"
    assert await topics(topic="U") == {"U"}
    assert await topics(topic_list="T;V;") == {"T"}
    member = Member(rig.client.peer, "c1", "JAVA", 479)
    rig.broker.consumers.register(member, consumer("CG", ["U"]), notify=False, now=0)
    assert await topics() == {"U"}, "of a group that is online, what it subscribes"
    assert await topics(topic="T") == set()
    assert await topics(topic_list="T;") == {"T"}, "a list is taken as it is"
    assert await topics(group="nobody") == set()


async def test_all_groups_at_once(rig: Rig) -> None:
    put_at(rig, 1, 1, 1)
    put_at(rig, 1, topic="Ordered")
    ordered = TopicConfig(topic_name="Ordered", read_queue_nums=1, write_queue_nums=1, order=True)
    rig.broker.topics.update(ordered, now_ms=1)
    commit(rig, 1)
    commit(rig, 1, topic="Ordered", group="DG")
    rig.broker.offsets.note_pull("T", "CG", 0, 3)

    async def shown(*, is_order: bool) -> BrokerConsumeStats:
        answer = await rig.ask(GetBrokerConsumeStats(is_order))
        return decode_body(answer.body, BrokerConsumeStats)

    everything = await shown(is_order=False)
    assert everything.broker_addr == rig.broker.address
    by_group = {group: found for entry in everything.consume_stats_list for group, found in entry.items()}
    assert by_group.keys() == {config.group_name for config in rig.broker.groups.all()}
    assert by_group["CG"][0].offset_table[queue()].consumer_offset == 1
    assert by_group["TOOLS_CONSUMER"] == []
    assert (everything.total_diff, everything.total_inflight_diff) == (2, 2)
    only = await shown(is_order=True)
    assert [
        (group, len(found)) for entry in only.consume_stats_list for group, found in entry.items() if found
    ] == [("DG", 1)]


async def test_the_retry_topic_is_shown_before_the_group_has_an_offset_there(rig: Rig) -> None:
    rig.put("T")
    commit(rig, 1)
    rig.broker.topics.ensure_topic("%RETRY%CG", now_ms=1)
    assert {each.topic for each in (await stats(rig)).offset_table} == {"T"}, "nothing is to be retried"
    put_at(rig, 1, 1, topic="%RETRY%CG")
    member = Member(rig.client.peer, "c1", "JAVA", 479)
    for _ in ("offline", "online"):
        shown = (await stats(rig)).offset_table
        waiting = shown[queue(0, "%RETRY%CG")]
        assert (waiting.broker_offset, waiting.consumer_offset) == (2, 0)
        everything = decode_body((await rig.ask(GetBrokerConsumeStats(False))).body, BrokerConsumeStats)
        assert everything.total_diff == 2
        rig.broker.consumers.register(member, consumer("CG", ["T", "%RETRY%CG"]), notify=False, now=0)
    commit(rig, 2, topic="%RETRY%CG")
    assert (await stats(rig)).offset_table[queue(0, "%RETRY%CG")].consumer_offset == 2


async def test_the_mark_of_dead_letters_that_were_sent_again_is_no_progress(rig: Rig) -> None:
    rig.put("T")
    commit(rig, 1)
    put_at(rig, 1, 1, topic="%DLQ%CG")
    commit(rig, 1, topic="%DLQ%CG")
    assert {each.topic for each in (await stats(rig)).offset_table} == {"T"}
    assert {each.topic for each in (await stats(rig, topic="%DLQ%CG")).offset_table} == {"%DLQ%CG"}


async def test_how_long_messages_wait_for_a_group(rig: Rig) -> None:
    rig.broker.topics.ensure_topic("T", 2, now_ms=1)
    times = put_at(rig, 1, 1, 1)
    commit(rig, 1)
    rig.clock.advance(5000)
    answer = await rig.ask(QueryConsumeTimeSpan("T", "CG"))
    spans = decode_body(answer.body, ConsumeTimeSpans).consume_time_span_set
    first = spans[0]
    assert first.message_queue == queue(0)
    assert (first.min_time_stamp, first.max_time_stamp, first.consume_time_stamp) == (
        times[0],
        times[2],
        times[0],
    )
    assert first.delay_time == rig.clock.now_ms() - times[1] == 6000
    assert first.max_time_stamp_str == local_time(times[2])
    empty = spans[1]
    assert (empty.min_time_stamp, empty.max_time_stamp, empty.delay_time) == (-1, -1, 0)
    answer = await rig.ask(QueryConsumeTimeSpan("NoSuchTopic", "CG"))
    assert (answer.code, answer.remark) == (17, "topic[NoSuchTopic] not exist")


def test_local_time_is_written_as_rocketmq_does() -> None:
    at = datetime(2026, 11, 15, 5, 5, 8).timestamp() * 1000
    assert local_time(int(at) + 66) == "2026-11-15#05:05:08:066"


# --- Counters ---


async def counted(rig: Rig, name: str, key: str) -> BrokerStatsData | str | None:
    answer = await rig.ask(ViewBrokerStatsData(name, key))
    return decode_body(answer.body, BrokerStatsData) if answer.code == 0 else answer.remark


async def test_counters_by_rocketmqs_names(rig: Rig) -> None:
    placed = [rig.put("T"), rig.put("T")]
    size = sum(place.size for place in placed)
    rig.broker.stats.count_puts(placed)
    rig.broker.stats.count_gets("T", "CG", 5, 500)
    rig.broker.stats.count_send_back("T", "CG")
    rig.broker.stats.step(rig.clock.monotonic(), rig.clock.now_ms())
    expected = {
        ("TOPIC_PUT_NUMS", "T"): (2, 1.0),
        ("TOPIC_PUT_SIZE", "T"): (size, size / 2),
        ("GROUP_GET_NUMS", "T@CG"): (5, 5.0),
        ("GROUP_GET_SIZE", "T@CG"): (500, 500.0),
        ("SNDBCK_PUT_NUMS", "T@CG"): (1, 1.0),
        ("BROKER_PUT_NUMS", "DefaultCluster"): (2, 1.0),
        ("BROKER_GET_NUMS", "DefaultCluster"): (5, 5.0),
    }
    for (name, key), (total, each) in expected.items():
        shown = await counted(rig, name, key)
        wanted = StatsSnapshot(sum=total, tps=total / STEP_S, avgpt=each)
        assert shown == BrokerStatsData(stats_minute=wanted, stats_hour=wanted, stats_day=wanted), name


@pytest.mark.parametrize(
    ("name", "key"),
    [("TOPIC_PUT_NUMS", "T"), ("GROUP_GET_NUMS", "T"), ("BROKER_PUT_NUMS", "other"), ("NO_SUCH", "T")],
)
async def test_what_was_never_counted(rig: Rig, name: str, key: str) -> None:
    assert await counted(rig, name, key) == f"The stats <{name}> <{key}> not exist"


async def test_keys_of_tables_are_objects_as_tools_need_them(rig: Rig) -> None:
    rig.put()
    commit(rig, 1)
    body = bytes((await rig.ask(GetConsumeStats("CG"))).body)
    assert b'{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{' in body
    assert list(java.loads(body)) == ["consumeTps", "offsetTable"]
