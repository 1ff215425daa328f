"""Offsets of groups and queues: asked for, committed, searched, moved, copied."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from skylark.broker.clients import ConnectedClient as Member
from skylark.model import java
from skylark.protocol.bodies import (
    ConsumerStatus,
    DataVersion,
    MessageQueue,
    QueueOffsets,
    TopicConfig,
    decode_body,
    encode_body,
)
from skylark.protocol.command import ONEWAY_FLAG, RemotingCommand, TypedCommand
from skylark.protocol.requests.offset import (
    CloneGroupOffset,
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetEarliestMsgStoreTime,
    GetMaxOffset,
    GetMinOffset,
    InvokeBrokerToGetConsumerStatus,
    InvokeBrokerToResetOffset,
    QueryConsumerOffset,
    QueryCorrectionOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from tests.support.broker import consumer
from tests.unit.broker.handlers.rig import Client, Rig, rigged
from tests.unit.protocol.golden_frames import captured

NO_ZERO = "Not found, do not set to zero, maybe this group boot first"
NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
MAX_INT64 = (1 << 63) - 1


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with rigged() as made:
        made.broker.groups.find("CG", now_ms=1)
        made.broker.topics.ensure_topic("T", 4, now_ms=1)
        yield made


async def commit(rig: Rig, *requests: UpdateConsumerOffset, oneway: bool = False) -> list[tuple[int, Any]]:
    """The codes and remarks of commits that came together."""
    flag = ONEWAY_FLAG if oneway else 0
    commands = [
        TypedCommand(code=15, opaque=number, flag=flag, request=request)
        for number, request in enumerate(requests)
    ]
    rig.broker.offset_handlers.update_offsets(rig.client.peer, commands)
    answers = await rig.client.taken()
    assert [answer.opaque for answer in answers] == ([] if oneway else list(range(len(requests))))
    return [(answer.code, answer.remark) for answer in answers]


async def query(rig: Rig, group: str = "CG", topic: str = "T", queue_id: int = 0, **members: Any) -> Any:
    """The offset, or code and remark."""
    answer = await rig.ask(QueryConsumerOffset(group, topic, queue_id, **members))
    return int(answer.fields["offset"]) if answer.code == 0 else (answer.code, answer.remark)


def offsets_by_queue(answer: RemotingCommand) -> dict[int, int]:
    table = decode_body(answer.body, QueueOffsets).offset_table
    assert {(queue.topic, queue.broker_name) for queue in table} <= {("T", "broker-a")}
    return {queue.queue_id: queue_offset for queue, queue_offset in table.items()}


# --- Commits and questions ---


async def test_sf_048_what_a_group_commits_the_broker_keeps(rig: Rig) -> None:
    assert await commit(rig, UpdateConsumerOffset("CG", "T", 0, 51)) == [(0, None)]
    assert await query(rig) == 51
    assert await commit(rig, UpdateConsumerOffset("CG", "T", 0, 7)) == [(0, None)]
    assert await query(rig) == 7, "a smaller one is taken"
    assert await query(rig, queue_id=1) == (22, NOT_FOUND)


async def test_commits_that_come_together_are_answered_each_by_itself(rig: Rig) -> None:
    answers = await commit(
        rig,
        UpdateConsumerOffset("CG", "T", 0, 1),
        UpdateConsumerOffset("Nobody", "T", 0, 1),
        UpdateConsumerOffset("CG", "Nothing", 0, 1),
        UpdateConsumerOffset("CG", "T", None, 1),
        UpdateConsumerOffset("CG", "T", 0, None),
        UpdateConsumerOffset("CG", "T", 1, 2),
    )
    assert answers == [
        (0, None),
        (26, "Group Nobody not exist!"),
        (17, "Topic Nothing not exist!"),
        (29, "QueueId is null, topic is T"),
        (29, "Offset is null, topic is T"),
        (0, None),
    ]
    assert (await query(rig, queue_id=0), await query(rig, queue_id=1)) == (1, 2)


@pytest.mark.parametrize("queue_id", [-1, 10**9])
async def test_a_queue_that_cannot_be_is_refused(rig: Rig, queue_id: int) -> None:
    [(code, remark)] = await commit(rig, UpdateConsumerOffset("CG", "T", queue_id, 1))
    assert (code, f"queueId[{queue_id}]" in remark) == (29, True)


async def test_a_commit_that_wants_no_answer_gets_none(rig: Rig) -> None:
    await commit(rig, UpdateConsumerOffset("CG", "T", 0, 5), UpdateConsumerOffset("CG", "T", 1), oneway=True)
    assert await query(rig) == 5


async def test_a_new_group_starts_at_zero_while_the_log_has_it_in_memory(rig: Rig) -> None:
    assert await query(rig) == (22, NOT_FOUND), "an empty queue has no first message"
    rig.put("T", 0)
    assert await query(rig) == 0
    assert await query(rig, set_zero_if_not_found=True) == 0
    assert await query(rig, set_zero_if_not_found=False) == (22, NO_ZERO)
    assert await query(rig, topic="Nothing") == (22, NOT_FOUND)
    assert await query(rig, group="Nobody") == 0, "the group need not be there"


async def test_a_negative_offset_is_none(rig: Rig) -> None:
    await commit(rig, UpdateConsumerOffset("CG", "T", 0, -1))
    assert await query(rig) == (22, NOT_FOUND)


async def test_a_new_group_does_not_start_at_zero_where_the_first_message_is_cold(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put("T", 0)
    hot = rig.broker.store.reader.hot
    hot.written_from = rig.broker.store.appended_offset
    monkeypatch.setattr(rig.broker.store.log, "is_resident", lambda *_: False)
    assert await query(rig) == (22, NOT_FOUND)
    monkeypatch.setattr(rig.broker.store.log, "is_resident", lambda *_: True)
    assert await query(rig) == 0


# --- Queues ---


async def test_the_ends_of_a_queue(rig: Rig) -> None:
    for _ in range(3):
        rig.put("T", 1)
    high = await rig.ask(GetMaxOffset("T", 1, committed=True))
    low = await rig.ask(GetMinOffset("T", 1))
    assert (high.code, high.remark, high.fields) == (0, None, {"offset": "3"})
    assert (low.code, low.remark, low.fields) == (0, "", {"offset": "0"})


@pytest.mark.parametrize(("topic", "queue_id"), [("Nothing", 0), ("T", 77), ("../x", 0), ("T", -1)])
async def test_a_queue_that_is_not_there_is_empty_and_stays_away(rig: Rig, topic: str, queue_id: int) -> None:
    for request in (GetMaxOffset(topic, queue_id), GetMinOffset(topic, queue_id)):
        assert (await rig.ask(request)).fields == {"offset": "0"}
    earliest = await rig.ask(GetEarliestMsgStoreTime(topic, queue_id))
    assert (earliest.code, earliest.fields) == (0, {"timestamp": "-1"})
    found = await rig.ask(SearchOffsetByTimestamp(topic, queue_id, 0))
    assert (found.code, found.fields) == (0, {"offset": "0"})
    assert (topic, queue_id) not in rig.broker.store.queues


async def test_offsets_by_time(rig: Rig) -> None:
    start = rig.clock.now_ms()
    for _ in range(5):
        rig.put("T", 0)
        rig.clock.advance(100)

    async def found(after_ms: int, boundary: str | None = None) -> int:
        request = SearchOffsetByTimestamp("T", 0, start + after_ms, boundary)
        answer = await rig.ask(request)
        assert (answer.code, answer.remark) == (0, None)
        return int(answer.fields["offset"])

    assert [await found(after) for after in (-1, 0, 150, 400, 401)] == [0, 0, 2, 4, 5]
    assert [await found(after, "UPPER") for after in (0, 150, 400, 9999)] == [0, 1, 4, 4]
    assert [await found(150, boundary) for boundary in ("LOWER", "lower", "?", "upper")] == [2, 2, 2, 1]
    earliest = await rig.ask(GetEarliestMsgStoreTime("T", 0))
    assert earliest.fields == {"timestamp": str(start)}


# --- Resets on the broker's side ---


async def reset(rig: Rig, *, language: str = "JAVA", **members: Any) -> RemotingCommand:
    values = {"topic": "T", "group": "CG", "timestamp": -1, "is_force": True, **members}
    return await rig.ask(InvokeBrokerToResetOffset(**values), language=language)


async def test_a_reset_to_the_end_of_all_queues(rig: Rig) -> None:
    for queue_id in (0, 1, 1):
        rig.put("T", queue_id)
    answer = await reset(rig)
    assert (answer.code, answer.remark) == (0, None)
    assert offsets_by_queue(answer) == {0: 1, 1: 2, 2: 0, 3: 0}
    assert [await query(rig, queue_id=queue_id) for queue_id in range(4)] == [1, 2, 0, 0]


async def test_until_the_group_has_heard_of_a_reset_its_commits_do_not_count(rig: Rig) -> None:
    rig.put("T", 0)
    await reset(rig)
    late = UpdateConsumerOffset("CG", "T", 0, 77)
    assert await commit(rig, late) == [(0, "Offset has been previously reset")]
    assert await query(rig) == 1
    assert rig.broker.offsets.take_reset("T", "CG", 0) == 1, "what the next pull does"
    assert await commit(rig, late) == [(0, None)]
    assert await query(rig) == 77


async def test_a_reset_to_a_time(rig: Rig) -> None:
    for _ in range(3):
        rig.put("T", 0)
        rig.clock.advance(100)
    at = rig.clock.now_ms() - 200
    assert offsets_by_queue(await reset(rig, timestamp=at)) == {0: 1, 1: 0, 2: 0, 3: 0}
    assert offsets_by_queue(await reset(rig, timestamp=0, queue_id=0)) == {0: 0}
    assert offsets_by_queue(await reset(rig, timestamp=at, queue_id=0, queue_offset=-1)) == {0: 1}


async def test_a_reset_of_one_queue_to_an_offset(rig: Rig) -> None:
    for _ in range(3):
        rig.put("T", 1)
    for target in (0, 2, 3, 4):
        assert offsets_by_queue(await reset(rig, queue_id=1, queue_offset=target)) == {1: target}
    for target in (5, -2, 100_000):
        answer = await reset(rig, queue_id=1, queue_offset=target)
        assert (answer.code, answer.remark) == (
            1,
            f"Target offset {target} not in consume queue range [0-3]",
        )
    assert await query(rig, queue_id=1) == 4


async def test_a_reset_needs_topic_group_and_queues(rig: Rig) -> None:
    unknown_topic = await reset(rig, topic="Nothing")
    assert (unknown_topic.code, unknown_topic.remark) == (17, "Topic Nothing does not exist")
    unknown_group = await reset(rig, group="Nobody")
    assert (unknown_group.code, unknown_group.remark) == (26, "Group Nobody does not exist")
    rig.broker.topics.update(TopicConfig(topic_name="Empty", read_queue_nums=0, write_queue_nums=0), now_ms=1)
    no_queue = await reset(rig, topic="Empty")
    assert (no_queue.code, no_queue.remark) == (1, "No queues to reset.")


# --- Resets by the clients ---


def join(rig: Rig, client: Client, client_id: str, version: int = 479) -> None:
    member = Member(client.peer, client_id, "JAVA", version)
    rig.broker.consumers.register(member, consumer("CG"), notify=False, now=0)


@pytest.fixture
async def clients_reset() -> AsyncIterator[Rig]:
    with rigged(server_side_reset=False) as made:
        made.broker.groups.find("CG", now_ms=1)
        for queue_id in range(4):
            made.put("T", queue_id)
            made.put("T", queue_id)
            made.broker.offsets.commit("T", "CG", queue_id, queue_id, now_ms=1)
        yield made


async def test_all_members_are_told_where_to_go(clients_reset: Rig) -> None:
    rig, second = clients_reset, clients_reset.connect()
    join(rig, rig.client, "c1")
    join(rig, second, "c2")
    answer = await reset(rig, timestamp=0)
    assert (answer.code, answer.remark) == (0, "not set any response code")
    assert offsets_by_queue(answer) == {0: 0, 1: 0, 2: 0, 3: 0}
    for client in (rig.client, second):
        [asked] = await client.taken()
        golden = next(frame for frame in captured("client-reset") if frame.code == 220)
        assert (asked.code, asked.is_oneway) == (220, True)
        assert asked.fields == {**golden.header["extFields"], "topic": "T", "group": "CG"}
        assert offsets_by_queue(asked) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert rig.broker.offsets.committed("T", "CG") == {0: 0, 1: 1, 2: 2, 3: 3}, "they commit themselves"
    assert rig.broker.offsets.take_reset("T", "CG", 0) is None


async def test_without_force_nobody_is_sent_forward(clients_reset: Rig) -> None:
    join(clients_reset, clients_reset.client, "c1")
    assert offsets_by_queue(await reset(clients_reset, is_force=False)) == {0: 0, 1: 1, 2: 2, 3: 2}
    assert offsets_by_queue(await reset(clients_reset)) == {0: 2, 1: 2, 2: 2, 3: 2}


async def test_administrators_in_cpp_have_their_clients_told_in_a_list(clients_reset: Rig) -> None:
    join(clients_reset, clients_reset.client, "c1")
    await reset(clients_reset, timestamp=0, language="CPP")
    [asked] = await clients_reset.client.taken()
    table = java.loads(bytes(asked.body))["offsetTable"]
    assert table[0] == {"topic": "T", "brokerName": "broker-a", "queueId": 0, "offset": 0}
    assert [entry["queueId"] for entry in table] == [0, 1, 2, 3]


async def test_what_clients_cannot_do_is_refused(clients_reset: Rig) -> None:
    rig = clients_reset
    offline = await reset(rig, timestamp=12)
    assert (offline.code, offline.remark) == (
        206,
        "Consumer not online, so can not reset offset, Group: CG Topic: T Timestamp: 12",
    )
    unknown = await reset(rig, group="CG_offline")
    assert (unknown.code, unknown.remark) == (1, "THe consumer group <CG_offline> not exist")
    missing = await reset(rig, topic="Nothing")
    assert (missing.code, missing.remark) == (
        1,
        "[reset-offset] reset offset failed, no topic in this broker. topic=Nothing",
    )
    join(rig, rig.client, "c1")
    join(rig, rig.connect(), "old", version=27)
    old = await reset(rig)
    assert (old.code, old.remark) == (1, "the client does not support this feature. version=27")
    assert await rig.client.taken() == [], "all or none"


# --- What members say of themselves ---


async def answer_status(client: Client, queue_offset: int) -> None:
    """Play a client that is asked for its offsets."""
    asked: list[RemotingCommand] = []
    async with asyncio.timeout(60):
        while not asked:
            asked = await client.taken()
    [question] = asked
    assert (question.code, question.fields) == (221, {"topic": "T", "group": "CG"})
    status = ConsumerStatus(message_queue_table={MessageQueue("T", "broker-a", 0): queue_offset})
    client.deliver(question.reply(body=encode_body(status)))


async def test_members_are_asked_for_their_offsets(clients_reset: Rig) -> None:
    rig, second = clients_reset, clients_reset.connect()
    join(rig, rig.client, "c1")
    join(rig, second, "c2")
    question = rig.ask(InvokeBrokerToGetConsumerStatus("T", "CG", client_addr=""))
    answer, *_ = await asyncio.gather(question, answer_status(rig.client, 5), answer_status(second, 6))
    assert (answer.code, answer.remark) == (0, "not set any response code")
    status = decode_body(answer.body, ConsumerStatus)
    queue = MessageQueue("T", "broker-a", 0)
    assert status.consumer_table == {"c1": {queue: 5}, "c2": {queue: 6}}
    assert status.message_queue_table == {}


async def test_one_member_is_asked_and_one_that_is_gone_is_left_out(clients_reset: Rig) -> None:
    rig, second = clients_reset, clients_reset.connect()
    join(rig, rig.client, "c1")
    join(rig, second, "c2")
    question = rig.ask(InvokeBrokerToGetConsumerStatus("T", "CG", client_addr="c2"))
    answer, _ = await asyncio.gather(question, answer_status(second, 6))
    assert list(decode_body(answer.body, ConsumerStatus).consumer_table) == ["c2"]
    assert await rig.client.taken() == []
    second.wire.close()
    question = rig.ask(InvokeBrokerToGetConsumerStatus("T", "CG"))
    answer, _ = await asyncio.gather(question, answer_status(rig.client, 5))
    assert list(decode_body(answer.body, ConsumerStatus).consumer_table) == ["c1"]


async def test_nobody_can_be_asked(clients_reset: Rig) -> None:
    offline = await clients_reset.ask(InvokeBrokerToGetConsumerStatus("T", "CG"))
    assert (offline.code, offline.remark) == (1, "No Any Consumer online in the consumer group: [CG]")
    join(clients_reset, clients_reset.client, "old", version=27)
    old = await clients_reset.ask(InvokeBrokerToGetConsumerStatus("T", "CG"))
    assert (old.code, old.remark) == (1, "the client does not support this feature. version=27")


# --- Copies, comparisons, tables ---


async def test_a_group_begins_where_another_one_stands(rig: Rig) -> None:
    for topic in ("T", "U"):
        rig.broker.topics.ensure_topic(topic, 4, now_ms=1)
        rig.broker.offsets.commit(topic, "CG", 0, 5, now_ms=1)
    rig.broker.offsets.commit("Gone", "CG", 0, 5, now_ms=1)
    assert (await rig.ask(CloneGroupOffset("CG", "One", "T", offline=True))).code == 0
    assert rig.broker.offsets.topics_of("One") == ["T"]
    assert (await rig.ask(CloneGroupOffset("CG", "All", offline=True))).code == 0
    assert rig.broker.offsets.topics_of("All") == ["T", "U"]
    join(rig, rig.client, "c1")
    assert (await rig.ask(CloneGroupOffset("CG", "Online", "", offline=False))).code == 0
    assert rig.broker.offsets.topics_of("Online") == ["T"], "that alone is subscribed"
    assert (await rig.ask(CloneGroupOffset("CG", "Offline", "", offline=True))).code == 0
    assert rig.broker.offsets.topics_of("Offline") == ["T", "U"]


async def test_corrections(rig: Rig) -> None:
    for group, queue_offset in (("CG", 3), ("Slow", 2), ("Slowest", 1)):
        rig.broker.offsets.commit("T", group, 0, queue_offset, now_ms=1)

    async def corrections(group: str, excluded: str | None) -> dict[int, int]:
        answer = await rig.ask(QueryCorrectionOffset(group, "T", excluded))
        assert answer.code == 0
        table: dict[int, int] = java.loads(bytes(answer.body))["correctionOffsets"]
        return table

    assert await corrections("CG", None) == {0: 1}
    assert await corrections("CG", "Slowest") == {0: 2}
    assert await corrections("Slowest", "Slowest,Nobody") == {0: MAX_INT64}


async def test_a_slave_gets_all_committed_offsets_as_in_the_file(rig: Rig) -> None:
    rig.broker.offsets.commit("T", "CG", 3, 5, now_ms=1)
    answer = await rig.ask(GetAllConsumerOffset())
    document = java.loads(bytes(answer.body))
    golden = next(frame for frame in captured("probe-admin") if frame.asked and frame.asked.code == 43)
    assert document.keys() == java.loads(golden.body).keys()
    assert document["offsetTable"] == {"T@CG": {3: 5}}
    assert document["groupTopicMap"] == {"CG": ["T"]}
    assert document["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}


async def test_a_slave_gets_the_progress_of_the_delay_levels(rig: Rig) -> None:
    rig.broker.delay_levels.offsets.update({1: 4, 18: 0})
    rig.broker.delay_levels.data_version = DataVersion(counter=13, timestamp=1794719107649)
    answer = await rig.ask(GetAllDelayOffset())
    golden = next(frame for frame in captured("probe-admin") if frame.asked and frame.asked.code == 45)
    assert bytes(answer.body) == golden.body.replace(b"2:1,3:2,", b"")
