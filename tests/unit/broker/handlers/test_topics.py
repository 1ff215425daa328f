"""Topics made, changed, listed and deleted by administrators."""

import asyncio
import threading
from typing import Any

import pytest

from skylark.broker.clients import ConnectedClient as Member
from skylark.broker.handlers.sliced_encoding import TABLE_SLICE
from skylark.model import java
from skylark.protocol.bodies import GroupList, TopicConfig, TopicConfigList, TopicConfigTable, decode_body
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.admin import CleanUnusedTopic
from skylark.protocol.requests.topic import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetTopicConfig,
    QueryTopicConsumeByWho,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
)
from tests.support.broker import consumer, until
from tests.support.store import message
from tests.unit.broker.handlers.rig import Rig, rigged

DONE = (0, "not set any response code")


async def update(rig: Rig, topic: str = "T", **members: Any) -> tuple[int, str | None]:
    request = UpdateAndCreateTopic(
        **{
            "topic": topic,
            "default_topic": "TBW102",
            "read_queue_nums": 4,
            "write_queue_nums": 4,
            "perm": 6,
            "topic_filter_type": "SINGLE_TAG",
            "order": False,
            **members,
        }
    )
    answer = await rig.ask(request)
    return answer.code, answer.remark


# --- Making and changing ---


async def test_a_topic_is_made_and_changed(rig: Rig) -> None:
    assert await update(rig, attributes="+message.type=FIFO", topic_sys_flag=1) == DONE
    config = rig.broker.topics.get("T")
    assert config == TopicConfig(
        topic_name="T",
        read_queue_nums=4,
        write_queue_nums=4,
        topic_sys_flag=1,
        attributes={"message.type": "FIFO"},
    )
    assert await update(rig, perm=4, order=True, write_queue_nums=8) == DONE
    changed = rig.broker.topics.get("T")
    assert changed is not None
    assert (changed.perm, changed.order, changed.read_queue_nums, changed.write_queue_nums) == (4, True, 4, 8)
    assert changed.attributes == {"message.type": "FIFO"}


async def test_what_cannot_be_made_is_refused(rig: Rig) -> None:
    assert await update(rig, "TBW102") == (29, "The topic[TBW102] is conflict with system topic.")
    assert (await update(rig, "a b"))[0] == 29
    assert await update(rig, attributes="+no.such=1") == (1, "unsupported key: no.such")
    assert rig.broker.topics.get("T") is None


async def test_a_topic_is_answered_when_the_name_servers_know_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = asyncio.Event()
    monkeypatch.setattr(rig.broker.registration, "settled", heard.wait)
    waiting = asyncio.ensure_future(update(rig))
    await asyncio.sleep(0)
    assert rig.broker.topics.get("T") is not None
    assert not waiting.done()
    heard.set()
    assert await waiting == DONE


async def test_a_list_of_topics_is_made_whole_or_not_at_all(rig: Rig) -> None:
    good = [TopicConfig(topic_name="A"), TopicConfig(topic_name="B", attributes={"+message.type": "DELAY"})]
    answer = await rig.ask(UpdateAndCreateTopicList(TopicConfigList(topic_config_list=good)))
    assert (answer.code, answer.remark) == DONE
    made = rig.broker.topics.get("B")
    assert made is not None
    assert made.attributes == {"message.type": "DELAY"}
    mixed = [TopicConfig(topic_name="C"), TopicConfig(topic_name="TBW102")]
    answer = await rig.ask(UpdateAndCreateTopicList(TopicConfigList(topic_config_list=mixed)))
    assert answer.code == 29
    assert rig.broker.topics.get("C") is None


# --- Deleting ---


async def delete(rig: Rig, topic: str) -> tuple[int, str | None]:
    answer = await rig.ask(DeleteTopicInBroker(topic))
    return answer.code, answer.remark


async def test_a_topic_goes_with_its_queues_offsets_and_statistics(rig: Rig) -> None:
    kept = rig.put("U")
    rig.put("T", 0, b"first")
    rig.put("T", 3, b"second")
    for topic in ("T", "U"):
        rig.broker.offsets.commit(topic, "CG", 0, 1, now_ms=1)
        rig.broker.stats.count_gets(topic, "CG", 1, 1)
    assert await delete(rig, "T") == (0, None)
    assert rig.broker.topics.get("T") is None
    assert rig.broker.store.topics() == ["U"]
    assert rig.broker.offsets.topics_of("CG") == ["U"]
    assert rig.broker.stats.group_gets.keys() == {("U", "CG")}
    assert rig.put("T", 0, b"again").queue_offset == 0, "a new topic of that name begins anew"
    assert [message.body for message in rig.stored("T")] == [b"again"]
    assert rig.stored("U")[0].physical_offset == kept.physical_offset


async def test_retry_topics_of_pops_go_too_if_the_settings_say_so() -> None:
    names = ["%RETRY%CG_T", "%RETRY%CG+T", "%RETRY%CG", "%RETRY%other_T"]
    for clears, left in ((True, names[2:]), (False, names)):
        with rigged(clear_retry_topics=clears) as rig:
            for name in ("T", *names):
                rig.put(name)
            rig.broker.offsets.commit("T", "CG", 0, 1, now_ms=1)
            await delete(rig, "T")
            assert sorted(rig.broker.store.topics()) == sorted(left)
            assert [name for name in names if rig.broker.topics.get(name) is not None] == left


async def test_what_cannot_be_deleted_is_refused(rig: Rig) -> None:
    assert await delete(rig, "TBW102") == (29, "The topic[TBW102] is conflict with system topic.")
    assert await delete(rig, " ") == (29, "The specified topic is blank.")
    assert await delete(rig, "NeverMade") == (0, None), "it is gone, as wanted"


@pytest.mark.parametrize("topic", ["NeverMade", "a/b", ".."])
async def test_what_never_was_is_not_remembered_as_deleted(rig: Rig, topic: str) -> None:
    rig.put("T")
    assert await delete(rig, topic) == (0, None)
    assert rig.broker.store.housekeeper.deleted == {}


async def test_queues_of_a_topic_that_was_lost_are_deleted(rig: Rig) -> None:
    rig.append(message("Lost", 0, b"x"))
    assert await delete(rig, "Lost") == (0, None)
    assert rig.broker.store.topics() == []
    assert list(rig.broker.store.housekeeper.deleted) == ["Lost"]


async def test_queues_without_a_topic_are_cleaned(rig: Rig) -> None:
    rig.put("T")
    rig.put("U")
    rig.put("SCHEDULE_TOPIC_XXXX")
    rig.broker.topics.delete("T", now_ms=1)
    assert (await rig.ask(CleanUnusedTopic())).code == 0
    assert sorted(rig.broker.store.topics()) == ["SCHEDULE_TOPIC_XXXX", "U"]


# --- Listing ---


async def test_all_topics_are_listed_however_many(rig: Rig) -> None:
    for number in range(TABLE_SLICE + 10):
        rig.broker.topics.ensure_topic(f"T{number}", now_ms=1)
    answer = await rig.ask(GetAllTopicConfig())
    assert decode_body(answer.body, TopicConfigTable).topic_config_table == {
        config.topic_name: config for config in rig.broker.topics.all()
    }
    members = java.loads(bytes(answer.body))
    assert list(members) == sorted(members)
    assert members["topicQueueMappingDetailMap"] == members["topicQueueMappingInfoMap"] == {}


async def test_sends_go_on_while_many_topics_are_listed(rig: Rig) -> None:
    for number in range(10 * TABLE_SLICE):
        rig.broker.topics.ensure_topic(f"T{number}", now_ms=1)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    await rig.ask(GetAllTopicConfig())
    counting.cancel()
    assert turns >= 10, "the loop had its turns in between"


async def test_one_topic_is_shown(rig: Rig) -> None:
    rig.broker.topics.ensure_topic("T", 2, now_ms=1)
    answer = await rig.ask(GetTopicConfig("T", logical=True))
    assert decode_body(answer.body, TopicConfig) == rig.broker.topics.get("T")
    answer = await rig.ask(GetTopicConfig("NoSuchTopic"))
    assert (answer.code, answer.remark) == (17, "No topic in this broker. topic: NoSuchTopic")


async def test_system_topics_are_named(rig: Rig) -> None:
    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    answer = await rig.ask(RemotingCommand(code=code))
    listed = java.loads(bytes(answer.body))
    assert listed.keys() == {"topicList"}
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"} <= set(listed["topicList"])


async def test_who_consumes_a_topic_or_has(rig: Rig) -> None:
    rig.broker.offsets.commit("T", "offline", 0, 1, now_ms=1)
    rig.broker.offsets.commit("T", "both", 0, 1, now_ms=1)
    member = Member(rig.client.peer, "c1", "JAVA", 479)
    for group in ("online", "both"):
        rig.broker.consumers.register(member, consumer(group, ["T"]), notify=False, now=0)
    answer = await rig.ask(QueryTopicConsumeByWho("T"))
    assert decode_body(answer.body, GroupList).group_list == ["both", "offline", "online"]
    answer = await rig.ask(QueryTopicConsumeByWho("U"))
    assert decode_body(answer.body, GroupList).group_list == []


async def test_many_deletions_leave_threads_for_readers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work: list[str] = []
    disk = threading.Event()

    def slow(topic: str) -> None:
        at_work.append(topic)
        assert disk.wait(60)

    monkeypatch.setattr(rig.broker.store.housekeeper, "delete_topic", slow)
    topics = [f"T{number}" for number in range(10)]
    for topic in topics:
        rig.put(topic)
    deleting = [asyncio.ensure_future(delete(rig, topic)) for topic in topics]
    await until(lambda: bool(at_work))
    async with asyncio.timeout(60):
        assert await rig.broker.read_cold(lambda: "read") == "read"
    assert len(at_work) == 1
    disk.set()
    await asyncio.gather(*deleting)
    assert len(at_work) == 10
