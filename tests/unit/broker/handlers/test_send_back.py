"""Messages that come back: how they are stored again, when they are given up, what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from skylark.model.message import (
    SCHEDULE_TOPIC,
    PutMessage,
    StoredMessage,
    SystemFlag,
    encode_properties,
    pack_host,
)
from skylark.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.send import ConsumerSendMsgBack
from skylark.settings import FlushMode
from skylark.store.append_result import AppendedRecord
from tests.support.store import message
from tests.unit.broker.handlers.rig import Rig, rigged

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
BORN_HOST = pack_host("10.1.2.3", 4567)


def failing(rig: Rig, **members: Any) -> AppendedRecord:
    """A message in the log, of which everything is other than usual."""
    values = {"tags": "A", "keys": "k", "unique_key": "U1", **members}
    wanted = message("T", 2, b"the body", **values)
    wanted.flag, wanted.sys_flag = 5, SystemFlag.ZSTD | SystemFlag.COMPRESSED
    wanted.born_timestamp, wanted.born_host = 1_600_000_000_000, BORN_HOST
    wanted.prepared_transaction_offset = 99
    return rig.append(wanted)


async def send_back(
    rig: Rig, at: AppendedRecord | int, delay_level: int = 0, *, version: int = 479, **members: Any
) -> RemotingCommand:
    place = at.physical_offset if isinstance(at, AppendedRecord) else at
    request = ConsumerSendMsgBack(
        **{"group": "CG", "physical_offset": place, "delay_level": delay_level, **members}
    )
    answer = await rig.ask(request, version=version)
    assert (answer.fields, bytes(answer.body)) == ({}, b"")
    return answer


def refusal(answer: RemotingCommand) -> tuple[int, str | None]:
    return answer.code, answer.remark


def waiting(rig: Rig) -> dict[int, list[StoredMessage]]:
    """The messages that wait, by level."""
    levels = {level: rig.stored(SCHEDULE_TOPIC, level - 1) for level in range(1, 19)}
    return {level: messages for level, messages in levels.items() if messages}


# --- Retries ---


async def test_sf_035_a_message_that_comes_back_waits_for_its_next_attempt(rig: Rig) -> None:
    first = failing(rig)
    assert refusal(await send_back(rig, first)) == (0, None)
    [again] = waiting(rig)[3]
    origin = f"7F00000100002A9F{first.physical_offset:016X}"
    assert again.properties == {
        "TAGS": "A",
        "KEYS": "k",
        "UNIQ_KEY": "U1",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": origin,
        "WAIT": "false",
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%CG",
        "REAL_QID": "0",
    }
    assert (again.body, again.flag, again.reconsume_times) == (b"the body", 5, 1)
    assert again.sys_flag == SystemFlag.ZSTD | SystemFlag.COMPRESSED
    assert (again.born_timestamp, again.born_host) == (1_600_000_000_000, "10.1.2.3:4567")
    assert again.prepared_transaction_offset == 0


async def test_what_a_message_once_was_is_kept_when_it_comes_back_again(rig: Rig) -> None:
    first = failing(rig)
    await send_back(rig, first)
    [once] = waiting(rig)[3]
    await send_back(rig, once.physical_offset)
    [twice] = waiting(rig)[4]
    assert twice.reconsume_times == 2
    assert twice.properties == {**once.properties, "DELAY": "4"}


async def test_sf_035_the_delays_of_a_broker_that_decides(rig: Rig) -> None:
    for reconsume_times in range(16):
        await send_back(rig, failing(rig, reconsume_times=reconsume_times))
    levels = {level: len(messages) for level, messages in waiting(rig).items()}
    assert levels == dict.fromkeys(range(3, 19), 1), "10 s, 30 s, 1 m, … 2 h"
    await send_back(rig, failing(rig, reconsume_times=16), max_reconsume_times=100)
    assert len(waiting(rig)[18]) == 2, "no level is above the highest"


@pytest.mark.parametrize(("asked", "taken"), [(1, 1), (5, 5), (18, 18), (99, 18)])
async def test_the_delay_of_a_client_that_decides(rig: Rig, asked: int, taken: int) -> None:
    await send_back(rig, failing(rig, reconsume_times=7), asked)
    assert list(waiting(rig)) == [taken]


async def test_a_delay_level_takes_the_place_of_a_time(rig: Rig) -> None:
    first = failing(
        rig, properties=b"TIMER_DELIVER_MS\x019\x02TIMER_DELAY_SEC\x019\x02TIMER_DELAY_MS\x019\x02"
    )
    await send_back(rig, first, 2)
    [again] = waiting(rig)[2]
    assert not [name for name in again.properties if name.startswith("TIMER")]


async def test_the_queues_of_the_retry_topic_are_the_groups(rig: Rig) -> None:
    rig.broker.groups.update(SubscriptionGroupConfig(group_name="CG", retry_queue_nums=3), now_ms=1)
    first = failing(rig)
    for _ in range(40):
        await send_back(rig, first, 1)
    topic = rig.broker.topics.get("%RETRY%CG")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag) == (3, 3, 6, 0)
    queues = {again.properties["REAL_QID"] for again in waiting(rig)[1]}
    assert queues == {"0", "1", "2"}


async def test_no_message_goes_to_a_queue_that_the_retry_topic_does_not_have(rig: Rig) -> None:
    rig.broker.topics.ensure_topic("%RETRY%CG", 1, now_ms=1)
    rig.broker.groups.update(SubscriptionGroupConfig(group_name="CG", retry_queue_nums=8), now_ms=1)
    first = failing(rig)
    for _ in range(20):
        await send_back(rig, first, 1)
    assert {again.properties["REAL_QID"] for again in waiting(rig)[1]} == {"0"}


async def test_the_retry_topic_of_a_unit(rig: Rig) -> None:
    await send_back(rig, failing(rig), unit_mode=True)
    topic = rig.broker.topics.get("%RETRY%CG")
    assert topic is not None
    assert topic.topic_sys_flag == 2


async def test_an_ordered_retry_topic_stays_so(rig: Rig) -> None:
    rig.broker.topics.update(TopicConfig(topic_name="%RETRY%CG", order=True), now_ms=1)
    await send_back(rig, failing(rig))
    assert rig.broker.topics.is_ordered("%RETRY%CG")


async def test_a_group_without_retry_queues_drops_what_comes_back(rig: Rig) -> None:
    rig.broker.groups.update(SubscriptionGroupConfig(group_name="CG", retry_queue_nums=0), now_ms=1)
    assert refusal(await send_back(rig, 99_999_999)) == (0, None)
    assert waiting(rig) == {}
    assert rig.broker.topics.get("%RETRY%CG") is None


# --- Dead letters ---


@pytest.mark.parametrize(
    ("reconsume_times", "delay_level", "members", "is_dead"),
    [
        (15, 0, {}, False),
        (16, 0, {}, True),
        (16, 5, {}, True),
        (0, -1, {}, True),
        (2, 0, {"max_reconsume_times": 2}, True),
        (1, 0, {"max_reconsume_times": 2}, False),
        (16, 0, {"max_reconsume_times": 17}, False),
        (0, 0, {"max_reconsume_times": 0}, True),
        (2, 0, {"max_reconsume_times": 2, "version": 120}, False),
        (2, 0, {"max_reconsume_times": 2, "version": 121}, True),
        (16, 0, {"max_reconsume_times": 17, "version": 120}, True),
    ],
)
async def test_when_a_message_is_given_up(
    rig: Rig, reconsume_times: int, delay_level: int, members: dict[str, Any], is_dead: bool
) -> None:
    first = failing(rig, reconsume_times=reconsume_times)
    assert refusal(await send_back(rig, first, delay_level, **members)) == (0, None)
    assert (len(rig.stored("%DLQ%CG")) == 1, waiting(rig) == {}) == (is_dead, is_dead)


async def test_a_dead_letter(rig: Rig) -> None:
    first = failing(rig, reconsume_times=16)
    await send_back(rig, first)
    [dead] = rig.stored("%DLQ%CG")
    assert dead.properties == {
        "TAGS": "A",
        "KEYS": "k",
        "UNIQ_KEY": "U1",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": f"7F00000100002A9F{first.physical_offset:016X}",
        "WAIT": "false",
        "DELAY": "0",
    }
    assert (dead.body, dead.queue_id, dead.reconsume_times) == (b"the body", 0, 17)
    topic = rig.broker.topics.get("%DLQ%CG")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag) == (1, 1, 6, 0)


async def test_the_group_says_how_often(rig: Rig) -> None:
    rig.broker.groups.update(SubscriptionGroupConfig(group_name="CG", retry_max_times=1), now_ms=1)
    await send_back(rig, failing(rig, reconsume_times=1))
    assert len(rig.stored("%DLQ%CG")) == 1


# --- Refusals ---


async def test_a_group_that_is_not_there_and_does_not_make_itself() -> None:
    with rigged(auto_create_groups=False) as rig:
        answer = await send_back(rig, failing(rig))
        assert refusal(answer) == (26, f"subscription group not exist, CG {FAQ}")


async def test_a_broker_or_a_topic_that_may_not_be_written(rig: Rig) -> None:
    first = failing(rig)
    rig.broker.topics.update(TopicConfig(topic_name="%RETRY%CG", perm=4), now_ms=1)
    assert refusal(await send_back(rig, first)) == (16, "the topic[%RETRY%CG] sending message is forbidden")
    rig.broker.live.current = replace(rig.broker.live.current, permission=4)
    assert refusal(await send_back(rig, first)) == (16, "the broker[127.0.0.1] sending message is forbidden")
    assert waiting(rig) == {}


async def test_a_place_where_no_message_is(rig: Rig) -> None:
    first = failing(rig)
    for place in (-1, 1, first.physical_offset + first.size, 99_999_999, (1 << 63) - 1):
        assert refusal(await send_back(rig, place)) == (1, f"look message by offset failed, {place}")
    assert waiting(rig) == {}


async def test_damage_is_not_copied(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = failing(rig)
    damaged = bytearray(rig.broker.store.reader.record_at(first.physical_offset))
    damaged[damaged.index(b"the body")] ^= 1
    monkeypatch.setattr(rig.broker.store.reader, "record_at", lambda _: bytes(damaged))
    answer = await send_back(rig, first)
    assert refusal(answer) == (1, f"look message by offset failed, {first.physical_offset}")
    assert waiting(rig) == {}


async def test_a_record_inside_of_a_body_is_no_message(rig: Rig) -> None:
    inner = rig.broker.store.reader.record_at(failing(rig).physical_offset)
    outer = rig.append(PutMessage("T", 0, b"xxxx" + inner))
    place = outer.physical_offset + 88 + 4
    assert refusal(await send_back(rig, place)) == (1, f"look message by offset failed, {place}")


async def test_what_the_store_refuses_is_named(rig: Rig) -> None:
    long_value = "x" * 32_700
    wanted = PutMessage("T", 0, b"", f"LONG\x01{long_value}\x02".encode())
    with rigged(store={"commit_log_file_bytes": 1 << 20, "message_bytes_max": 100_000}) as roomy:
        first = roomy.append(wanted)
        assert refusal(await send_back(roomy, first)) == (1, "PROPERTIES_SIZE_EXCEEDED")
    first = failing(rig)
    rig.broker.store.housekeeper.disk_full.is_set = True
    assert refusal(await send_back(rig, first)) == (1, "SERVICE_NOT_AVAILABLE")


# --- Besides ---


async def test_a_cold_message_is_read_elsewhere(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = failing(rig)
    rig.broker.store.reader.hot.written_from = rig.broker.store.appended_offset
    reads = []
    submit = rig.broker.readers.submit

    def counted(*args: Any) -> Any:
        reads.append(args)
        return submit(*args)

    monkeypatch.setattr(rig.broker.readers, "submit", counted)
    assert refusal(await send_back(rig, first)) == (0, None)
    assert len(reads) == 1
    assert list(waiting(rig)) == [3]


async def test_under_sync_flush_the_answer_does_not_wait() -> None:
    with rigged(store={"flush_mode": FlushMode.SYNC}) as rig:
        first = failing(rig)
        rig.broker.store.flush_log()
        assert refusal(await send_back(rig, first)) == (0, None)
        assert rig.broker.store.flushed_offset < rig.broker.store.appended_offset
        assert waiting(rig) == {}, "and is not visible before the disk has it"
        rig.broker.store.flush_log()
        assert list(waiting(rig)) == [3]


async def test_what_came_back_is_counted(rig: Rig) -> None:
    rig.broker.topics.ensure_topic("T", 4, now_ms=rig.clock.now_ms())
    first = failing(rig)
    await send_back(rig, first)
    [once] = waiting(rig)[3]
    await send_back(rig, once.physical_offset)
    assert {key: counter.count for key, counter in rig.broker.stats.send_backs.items()} == {("T", "CG"): 2}
    assert rig.broker.stats.topic_puts[SCHEDULE_TOPIC].count == 2


async def test_there_are_no_counters_of_topics_that_only_a_property_names(rig: Rig) -> None:
    for number in range(3):
        properties = encode_properties({"RETRY_TOPIC": f"Made-up-{number}"})
        said = rig.append(PutMessage("T", 0, b"body", properties))
        assert refusal(await send_back(rig, said)) == (0, None)
    assert not rig.broker.stats.send_backs
