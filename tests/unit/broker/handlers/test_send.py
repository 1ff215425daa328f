"""The send path without sockets: every check, where messages go, and how they are answered."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_members

from skylark.broker.delayed.timed_messages import RecallHandle
from skylark.broker.error_replies import refusal_reply
from skylark.broker.handlers.send import SendPath
from skylark.model import names
from skylark.model.message import (
    PROPERTIES_BYTES_MAX,
    SCHEDULE_TOPIC,
    StoredMessage,
    SystemFlag,
    encode_properties,
)
from skylark.model.record import BATCH_ELEMENT, LENGTH
from skylark.protocol.bodies import PERM_READ, LockRequest, MessageQueue, TopicConfig
from skylark.protocol.command import ONEWAY_FLAG, RemotingCommand, TypedCommand
from skylark.protocol.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from skylark.settings.broker import TimerSettings, TransactionSettings
from skylark.settings.store import FlushMode
from skylark.store.append_result import PutStatus
from tests.unit.broker.handlers.rig import Client, Rig, rigged

ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 2048B, msg properties length limit 32KB."
)
BODY_BYTES_MAX = 2048


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with rigged(store={"commit_log_file_bytes": 1 << 20}) as made:
        yield made


async def send(
    rig: Rig, *commands: TypedCommand[Any], path: SendPath | None = None, client: Client | None = None
) -> list[RemotingCommand]:
    """Give the path sends that came together, and return the answers."""
    client = client or rig.client
    (path or rig.broker.send_path).send(client.peer, list(commands))
    return await client.taken()


def command(
    topic: str = "T", body: bytes = b"body", *, oneway: bool = False, version: int = 479, **fields: Any
) -> TypedCommand[Any]:
    """A send, or a batch if `batch` is among the fields."""
    values = {
        "producer_group": "PG",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1_600_000_000_000,
        "flag": 0,
        **fields,
    }
    text = encode_properties(values.pop("named", {})).decode()
    values.setdefault("properties", text)
    kind = SendBatchMessage if values.get("batch") else values.pop("kind", SendMessageV2)
    return TypedCommand(
        code=kind.code,
        opaque=7,
        version=version,
        flag=ONEWAY_FLAG if oneway else 0,
        body=memoryview(body),
        request=kind(topic=topic, **values),
    )


async def answer(rig: Rig, *args: Any, **fields: Any) -> RemotingCommand:
    [only] = await send(rig, command(*args, **fields))
    return only


async def stored(rig: Rig, *args: Any, **fields: Any) -> StoredMessage:
    """Send what must be taken, and return it as the log has it."""
    reply = await answer(rig, *args, **fields)
    assert reply.code == 0, reply.remark
    found: StoredMessage = rig.broker.store.message_by_id(reply.fields["msgId"])
    return found


def refusal(reply: RemotingCommand) -> tuple[int, str]:
    assert reply.fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    return reply.code, reply.remark or ""


# --- What is stored ---


async def test_a_message_is_stored_as_it_was_sent(rig: Rig) -> None:
    named = {"KEYS": "k1 k2", "TAGS": "t", "UNIQ_KEY": "U1", "ключ": "значение 🕊"}
    message = await stored(
        rig, "T", b"\x00\xff" * 9, queue_id=3, flag=7, sys_flag=0, reconsume_times=2, named=named
    )
    assert (message.topic, message.queue_id, message.queue_offset) == ("T", 3, 0)
    assert (message.body, message.flag, message.reconsume_times) == (b"\x00\xff" * 9, 7, 2)
    assert (message.born_timestamp, message.born_host) == (1_600_000_000_000, "127.0.0.1:40000")
    assert (message.store_timestamp, message.store_host) == (rig.clock.now_ms(), "127.0.0.1:10911")
    added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    assert message.properties == named | added


async def test_the_answer_says_where_it_is(rig: Rig) -> None:
    first = await answer(rig, named={"UNIQ_KEY": "U1"})
    second = await answer(rig, named={"UNIQ_KEY": 'U"2'}, kind=SendMessage)
    assert (first.code, first.opaque, first.remark) == (0, 7, None)
    assert first.fields == {
        "queueId": "0",
        "queueOffset": "0",
        "msgId": "7F00000100002A9F0000000000000000",
        "transactionId": "U1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert (second.fields["transactionId"], second.fields["queueOffset"]) == ('U"2', "1")


async def test_a_message_without_a_unique_key_gets_one(rig: Rig) -> None:
    replies = [await answer(rig) for _ in range(3)]
    keys = [reply.fields["transactionId"] for reply in replies]
    assert len(set(keys)) == 3
    assert {len(key) for key in keys} == {32}
    assert [message.unique_key for message in rig.stored("T")] == keys


async def test_what_came_together_is_stored_in_order_with_one_write(rig: Rig) -> None:
    commands = [command(body=b"%d" % number) for number in range(100)]
    replies = await send(rig, *commands)
    assert [reply.fields["queueOffset"] for reply in replies] == [str(number) for number in range(100)]
    assert [message.body for message in rig.stored("T")] == [b"%d" % number for number in range(100)]


async def test_property_text_without_its_last_separator(rig: Rig) -> None:
    message = await stored(rig, properties="TAGS\x01a\x02KEYS\x01k")
    assert (message.tags, message.keys) == ("a", ["k"])
    assert message.properties["CLUSTER"] == "DefaultCluster"


async def test_separators_and_control_characters_in_properties(rig: Rig) -> None:
    # \x01 in a value stays; pieces without a name, a value or a separator count for nothing.
    message = await stored(rig, properties="a\x01x\x01y\x02\x02\x01z\x02b\x02c\x01\x02d\x01\x03\x1f\n\x02")
    own = {name: message.properties[name] for name in message.properties.keys() & {"a", "b", "c", "d", ""}}
    assert own == {"a": "x\x01y", "d": "\x03\x1f\n"}


async def test_zeros_in_properties_would_look_like_a_torn_record(rig: Rig) -> None:
    remark = "properties: a zero character is not allowed"
    assert refusal(await answer(rig, properties="k\x01a\x00b\x02")) == (13, remark)
    assert refusal(await answer(rig, body=batch(b"1"), batch=True, properties="k\x01\x00\x02")) == (
        13,
        remark,
    )
    inside = batch(b"1") + batch(b"2", named={"k": "\x00"})
    assert refusal(await answer(rig, body=inside, batch=True)) == (13, remark)
    assert rig.broker.store.appended_offset == 0


async def test_a_duplicate_unique_key_the_last_one_counts(rig: Rig) -> None:
    reply = await answer(rig, properties="UNIQ_KEY\x01one\x02UNIQ_KEY\x01two\x02")
    assert reply.fields["transactionId"] == "two"
    assert rig.stored("T")[0].unique_key == "two"


@pytest.mark.parametrize("flags", [SystemFlag.COMPRESSED, SystemFlag.COMPRESSED | SystemFlag.ZSTD])
async def test_a_compressed_body_is_not_looked_into(rig: Rig, flags: int) -> None:
    message = await stored(rig, body=b"this is no zlib", sys_flag=int(flags))
    assert (message.body, message.sys_flag) == (b"this is no zlib", flags)


@pytest.mark.parametrize("flags", [4, 12])
async def test_transaction_bits_alone_store_a_message_that_no_queue_shows(rig: Rig, flags: int) -> None:
    reply = await answer(rig, sys_flag=flags)
    assert (reply.code, reply.fields["queueOffset"]) == (0, "0")
    assert rig.stored("T") == []


async def test_a_topic_of_several_tags_marks_its_messages(rig: Rig) -> None:
    wanted = TopicConfig(topic_name="M", topic_filter_type="MULTI_TAG")
    rig.broker.topics.update(wanted, now_ms=rig.clock.now_ms())
    assert (await stored(rig, "M")).sys_flag == SystemFlag.MULTI_TAGS


async def test_oneway_is_stored_and_not_answered(rig: Rig) -> None:
    sent = (command(oneway=True), command("a b", oneway=True), command("T", b"", oneway=True))
    assert await send(rig, *sent) == []
    assert len(rig.stored("T")) == 1
    path = rig.broker.send_path
    path.send_batch(rig.client.peer, [command(body=batch(b"x"), batch=True, oneway=True)])
    assert await rig.client.taken() == []
    assert len(rig.stored("T")) == 2


async def test_the_check_point_of_a_pop_is_taken_off(rig: Rig) -> None:
    message = await stored(rig, named={"POP_CK": "0 1 2", "TAGS": "t"})
    assert "POP_CK" not in message.properties
    assert message.tags == "t"


async def test_what_was_stored_is_counted(rig: Rig) -> None:
    await send(rig, command(), command(), command("U"), command(body=b"x" * (BODY_BYTES_MAX + 1)))
    assert rig.broker.stats.puts.count == 3
    assert rig.broker.stats.topic_puts["T"].count == 2
    assert rig.broker.stats.refused == 1


# --- Topics and queues ---


async def test_a_topic_makes_itself_after_the_default_topic(rig: Rig) -> None:
    await stored(rig, "New", default_topic_queue_nums=6)
    await stored(rig, "Wide", default_topic_queue_nums=99)
    await stored(rig, "Unit", unit_mode=True)
    topics = rig.broker.topics
    made = [topics.get(name) for name in ("New", "Wide", "Unit")]
    assert all(config is not None for config in made)
    assert [config.write_queue_nums for config in made if config] == [6, 8, 4]
    assert [config.perm for config in made if config] == [6, 6, 6]
    assert [config.topic_sys_flag for config in made if config] == [0, 0, 1]


async def test_the_cluster_topic_is_a_model_too(rig: Rig) -> None:
    await stored(rig, "New", default_topic="DefaultCluster", default_topic_queue_nums=12)
    config = rig.broker.topics.get("New")
    assert config is not None
    assert config.write_queue_nums == 12


@pytest.mark.parametrize("default_topic", ["", "NoSuchTemplate", "BenchmarkTest"])
async def test_no_topic_without_a_model(rig: Rig, default_topic: str) -> None:
    code, remark = refusal(await answer(rig, "New", default_topic=default_topic))
    assert code == 17
    assert remark.startswith("topic[New] not exist, apply first please!\nSee https://")
    assert rig.broker.topics.get("New") is None


async def test_topics_may_be_forbidden_to_make_themselves() -> None:
    with rigged(auto_create_topics=False) as rig:
        assert (await answer(rig, "New")).code == 17
        reply = await answer(rig, "%RETRY%CG", default_topic="")
        assert reply.code == 0
        config = rig.broker.topics.get("%RETRY%CG")
        assert config is not None
        assert (config.write_queue_nums, config.perm) == (1, 6)


async def test_no_more_topics_than_allowed() -> None:
    with rigged(topics_max=20) as rig:
        names = [f"T{number}" for number in range(30)]
        codes = [(await answer(rig, name)).code for name in names]
        assert set(codes) == {0, 1}
        assert codes.index(1) > 3
        assert (await answer(rig, "T0")).code == 0


ILLEGAL_CHARACTERS = "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
TOO_LONG = "The specified topic is longer than topic max length."
FORBIDDEN = "Sending message to topic[{}] is forbidden."


@pytest.mark.parametrize(
    ("topic", "code", "remark"),
    [
        ("", 29, "The specified topic is blank."),
        ("  \t", 29, "The specified topic is blank."),
        ("a b", 29, ILLEGAL_CHARACTERS),
        ("../x", 29, ILLEGAL_CHARACTERS),
        ("%RETRY%../x", 29, ILLEGAL_CHARACTERS),
        ("%RETRY%g+t", 29, ILLEGAL_CHARACTERS),
        ("тема", 29, ILLEGAL_CHARACTERS),
        ("t\x00", 29, ILLEGAL_CHARACTERS),
        ("t\n", 29, ILLEGAL_CHARACTERS),
        ("t" * 128, 29, TOO_LONG),
        ("%RETRY%" + "g" * 121, 29, TOO_LONG),
        *[
            (topic, 16, FORBIDDEN.format(topic))
            for topic in (
                SCHEDULE_TOPIC,
                "RMQ_SYS_TRANS_HALF_TOPIC",
                "RMQ_SYS_TRANS_OP_HALF_TOPIC",
                "TRANS_CHECK_MAX_TIME_TOPIC",
                "SELF_TEST_TOPIC",
                "OFFSET_MOVED_EVENT",
            )
        ],
    ],
)
async def test_topics_that_take_no_message(rig: Rig, topic: str, code: int, remark: str) -> None:
    before = len(rig.broker.topics)
    assert refusal(await answer(rig, topic)) == (code, remark)
    assert len(rig.broker.topics) == before
    assert rig.broker.store.appended_offset == 0


@pytest.mark.parametrize("topic", ["TBW102", "BenchmarkTest", "DefaultCluster", "broker-a", "t" * 127])
async def test_topics_that_do(rig: Rig, topic: str) -> None:
    assert (await stored(rig, topic)).topic == topic


async def test_queue_minus_one_is_any_queue(rig: Rig) -> None:
    queues = {(await stored(rig, queue_id=-1)).queue_id for _ in range(100)}
    assert queues == {0, 1, 2, 3}


@pytest.mark.parametrize("queue_id", [4, 10**9, (1 << 31) - 1])
async def test_a_queue_that_is_not_there(rig: Rig, queue_id: int) -> None:
    assert refusal(await answer(rig, queue_id=queue_id)) == (
        29,
        f"request queueId[{queue_id}] is illegal, TopicConfig [topicName=T, readQueueNums=4, "
        "writeQueueNums=4, perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, "
        "attributes={}] Producer: 127.0.0.1:40000",
    )


@pytest.mark.parametrize("queue_id", [0, -1])
async def test_a_topic_without_queues(rig: Rig, queue_id: int) -> None:
    code, remark = refusal(await answer(rig, default_topic_queue_nums=-3, queue_id=queue_id))
    assert code == 29
    assert remark.startswith(f"request queueId[{queue_id}] is illegal, TopicConfig [topicName=T, readQueueN")


async def test_a_queue_that_is_only_read(rig: Rig) -> None:
    wanted = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=2)
    rig.broker.topics.update(wanted, now_ms=rig.clock.now_ms())
    assert (await stored(rig, queue_id=3)).queue_id == 3
    assert (await answer(rig, queue_id=4)).code == 29


@pytest.mark.parametrize("change", ["fewer queues", "compaction", "deleted"])
async def test_a_queue_that_took_messages_is_looked_at_again_after_a_change(rig: Rig, change: str) -> None:
    path, topics, now_ms = rig.broker.send_path, rig.broker.topics, rig.clock.now_ms()
    wanted = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)
    topics.update(wanted, now_ms=now_ms)
    last = command(queue_id=3, default_topic="none")
    for _ in range(3):
        assert [answer.code for answer in await send(rig, last, last, path=path)] == [0, 0]
    match change:
        case "fewer queues":
            topics.update(replace_members(wanted, read_queue_nums=2, write_queue_nums=2), now_ms=now_ms)
            code = 29
        case "compaction":
            attributes = {"+cleanup.policy": "COMPACTION"}
            topics.delete("T", now_ms=now_ms)
            topics.update(replace_members(wanted, attributes=attributes), now_ms=now_ms)
            code = 13
        case _:
            topics.delete("T", now_ms=now_ms)
            code = 17
    assert [answer.code for answer in await send(rig, last, last, path=path)] == [code, code]
    topics.delete("T", now_ms=now_ms)
    topics.update(wanted, now_ms=now_ms)
    assert [answer.code for answer in await send(rig, last, path=path)] == [0]
    assert len(rig.stored("T", 3)) == 7


async def test_a_delayed_message_does_not_go_to_the_queue_that_was_looked_up(rig: Rig) -> None:
    path = rig.broker.send_path
    for named in ({}, {}, {"DELAY": "1"}, {}):
        assert [answer.code for answer in await send(rig, command(named=named), path=path)] == [0]
    assert len(rig.stored("T")) == 3
    assert len(rig.stored(SCHEDULE_TOPIC)) == 1


async def test_an_ordered_topic_of_a_broker_that_may_not_be_written() -> None:
    with rigged(permission=PERM_READ) as rig:
        for name, ordered in (("Ordered", True), ("Other", False)):
            wanted = TopicConfig(topic_name=name, order=ordered)
            rig.broker.topics.update(wanted, now_ms=rig.clock.now_ms())
        assert refusal(await answer(rig, "Ordered")) == (
            16,
            "the broker[127.0.0.1] sending message is forbidden",
        )
        assert (await answer(rig, "Other")).code == 0


async def test_a_compaction_topic_wants_keys(rig: Rig) -> None:
    wanted = TopicConfig(topic_name="C", attributes={"+cleanup.policy": "COMPACTION"})
    rig.broker.topics.update(wanted, now_ms=rig.clock.now_ms())
    for named in ({}, {"KEYS": "  "}):
        assert refusal(await answer(rig, "C", named=named)) == (13, "Required message key is missing")
    assert (await answer(rig, "C", named={"KEYS": "k"})).code == 0


# --- Sizes ---


async def test_body_limits(rig: Rig) -> None:
    assert (await answer(rig, body=b"x" * BODY_BYTES_MAX)).code == 0
    assert refusal(await answer(rig, body=b"x" * (BODY_BYTES_MAX + 1))) == (13, ILLEGAL)


async def test_a_request_without_a_body_gets_an_answer_without_fields(rig: Rig) -> None:
    for fields in ({}, {"batch": True}):
        reply = await answer(rig, "New", b"", **fields)
        assert (reply.code, reply.remark, reply.fields) == (1, "the request has no body", {})
    assert rig.broker.topics.get("New") is None


async def test_property_limits(rig: Rig) -> None:
    added = len(encode_properties((await stored(rig, named={"UNIQ_KEY": "U"})).properties))
    room = PROPERTIES_BYTES_MAX - added - len("k\x01\x02")
    assert (await answer(rig, named={"UNIQ_KEY": "U", "k": "v" * room})).code == 0
    assert refusal(await answer(rig, named={"UNIQ_KEY": "U", "k": "v" * (room + 1)})) == (13, ILLEGAL)
    assert refusal(await answer(rig, named={"k": "v" * 32_768})) == (13, ILLEGAL)
    assert (await answer(rig, named={"k": "é" * 16_000})).code == 0
    assert refusal(await answer(rig, named={"k": "é" * 16_384})) == (13, ILLEGAL)


@pytest.mark.parametrize("sys_flag", [-1, 0x80, 0x7FFFFFFF])
async def test_inner_batches_are_illegal(rig: Rig, sys_flag: int) -> None:
    assert refusal(await answer(rig, sys_flag=sys_flag)) == (13, ILLEGAL)


async def test_extreme_numbers_are_kept(rig: Rig) -> None:
    low, high = -(1 << 31), (1 << 31) - 1
    message = await stored(rig, flag=low, born_timestamp=-(1 << 63), reconsume_times=high)
    assert (message.flag, message.born_timestamp, message.reconsume_times) == (low, -(1 << 63), high)


async def test_one_bad_send_among_good_ones(rig: Rig) -> None:
    replies = await send(
        rig, command(body=b"1"), command("a b"), command(body=b"x" * 3000), command(body=b"2")
    )
    assert sorted(reply.code for reply in replies) == [0, 0, 13, 29]
    assert [message.body for message in rig.stored("T")] == [b"1", b"2"]


# --- Retry topics and dead letters ---


async def bury(rig: Rig, **fields: Any) -> StoredMessage:
    return await stored(rig, "%RETRY%CG", b"failed", named={"UNIQ_KEY": "U"}, **fields)


async def test_a_retry_topic_takes_messages_up_to_the_groups_attempts(rig: Rig) -> None:
    assert (await bury(rig, reconsume_times=16)).topic == "%RETRY%CG"
    dead = await bury(rig, reconsume_times=17)
    assert (dead.topic, dead.queue_id, dead.body) == ("%DLQ%CG", 0, b"failed")
    assert dead.properties["DELAY"] == "-1"
    config = rig.broker.topics.get("%DLQ%CG")
    assert config is not None
    assert (config.write_queue_nums, config.perm) == (1, 6)


@pytest.mark.parametrize(("version", "topic"), [(479, "%DLQ%CG"), (121, "%DLQ%CG"), (120, "%RETRY%CG")])
async def test_clients_since_3_4_9_say_how_often(rig: Rig, version: int, topic: str) -> None:
    message = await bury(rig, reconsume_times=3, max_reconsume_times=2, version=version)
    assert message.topic == topic
    assert (await bury(rig, reconsume_times=2, max_reconsume_times=2, version=version)).topic == "%RETRY%CG"


async def test_a_group_that_holds_locks_consumes_in_order_and_gets_no_retries(rig: Rig) -> None:
    lock = LockRequest(
        consumer_group="CG",
        client_id="c",
        mq_set=[MessageQueue(topic="T", broker_name="broker-a", queue_id=0)],
    )
    rig.broker.locks.lock(lock, now=rig.clock.monotonic())
    assert (await bury(rig)).topic == "%DLQ%CG"
    rig.clock.advance(60_001)
    assert (await bury(rig)).topic == "%RETRY%CG"


async def test_a_dead_letter_is_not_delayed(rig: Rig) -> None:
    dead = await stored(rig, "%RETRY%CG", named={"DELAY": "3"}, reconsume_times=17)
    assert (dead.topic, dead.properties["DELAY"]) == ("%DLQ%CG", "-1")


async def test_a_retry_may_be_delayed(rig: Rig) -> None:
    message = await stored(rig, "%RETRY%CG", named={"DELAY": "3"}, reconsume_times=1)
    assert (message.topic, message.queue_id) == (SCHEDULE_TOPIC, 2)
    assert message.properties["REAL_TOPIC"] == "%RETRY%CG"


async def test_a_retry_topic_of_no_group() -> None:
    with rigged(auto_create_groups=False) as rig:
        code, remark = refusal(await answer(rig, "%RETRY%CG"))
        assert code == 26
        assert remark.startswith("subscription group not exist, CG \nSee https://")


# --- Delay, timers, transactions ---


@pytest.mark.parametrize(("level", "queue_id"), [("1", 0), ("18", 17), ("99", 17), ("2147483647", 17)])
async def test_delay_levels(rig: Rig, level: str, queue_id: int) -> None:
    message = await stored(rig, queue_id=2, named={"DELAY": level, "TAGS": "t"})
    assert (message.topic, message.queue_id) == (SCHEDULE_TOPIC, queue_id)
    properties = message.properties
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "2")
    assert (properties["DELAY"], properties["TAGS"]) == (str(queue_id + 1), "t")


async def test_the_answer_names_the_queue_that_the_client_chose(rig: Rig) -> None:
    delayed = await answer(rig, queue_id=2, named={"DELAY": "5"})
    assert (delayed.fields["queueId"], delayed.fields["queueOffset"]) == ("2", "0")
    anywhere = await answer(rig, queue_id=-1, named={"DELAY": "5"})
    assert (anywhere.fields["queueId"], anywhere.fields["queueOffset"]) == ("0", "1")
    dead = await answer(rig, "%RETRY%CG", queue_id=3, reconsume_times=17)
    assert dead.fields["queueId"] == "3"


async def test_who_forges_where_a_delayed_message_goes_fails(rig: Rig) -> None:
    forged = {"DELAY": "1", "REAL_TOPIC": SCHEDULE_TOPIC, "REAL_QID": "17"}
    message = await stored(rig, named=forged)
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("T", "0")


@pytest.mark.parametrize("level", ["0", "-1", "x", "", "9" * 5000])
async def test_levels_that_are_none(rig: Rig, level: str) -> None:
    assert (await stored(rig, properties=f"DELAY\x01{level}\x02")).topic == "T"


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"])
async def test_timers_can_be_switched_off(name: str) -> None:
    with rigged(timers=TimerSettings(enabled=False)) as rig:
        assert refusal(await answer(rig, named={name: "1000"})) == (
            1,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )
        assert rig.broker.store.appended_offset == 0


async def test_a_timed_message_waits_and_can_be_taken_back(rig: Rig) -> None:
    reply = await answer(rig, named={"TIMER_DELAY_MS": "4500", "UNIQ_KEY": "K1"}, queue_id=2)
    assert (reply.code, reply.fields["queueId"]) == (0, "2")
    message = rig.broker.store.message_by_id(reply.fields["msgId"])
    out_ms = rig.clock.now_ms() + 4000
    assert (message.topic, message.queue_id, message.properties["TIMER_OUT_MS"]) == (
        names.TIMER_TOPIC,
        0,
        str(out_ms),
    )
    handle = RecallHandle.decode(reply.fields["recallHandle"])
    assert handle == RecallHandle("T", "broker-a", out_ms + 1, "K1")


async def test_a_level_goes_before_a_timer(rig: Rig) -> None:
    message = await stored(rig, named={"DELAY": "2", "TIMER_DELAY_SEC": "5"})
    assert message.topic == SCHEDULE_TOPIC
    assert "TIMER_DELAY_SEC" not in message.properties


@pytest.mark.parametrize("named", [{}, {"DELAY": "-1"}, {"DELAY": "x"}, {"PGROUP": "PG"}])
@pytest.mark.parametrize("reconsume_times", [0, 1, -1])
async def test_sf_076_half_messages_are_stored_where_nobody_reads(
    rig: Rig, named: dict[str, str], reconsume_times: int
) -> None:
    half = {"TRAN_MSG": "True", "UNIQ_KEY": "K1", **named}
    message = await stored(rig, named=half, reconsume_times=reconsume_times, queue_id=1, sys_flag=4)
    assert (message.topic, message.queue_id, message.sys_flag) == (names.HALF_TOPIC, 0, 0)
    assert {
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
        "__transactionId__": "K1",
    }.items() <= message.properties.items()
    assert rig.stored("T", 1) == []


async def test_half_messages_can_be_rejected() -> None:
    with rigged(transactions=TransactionSettings(reject=True)) as rig:
        assert refusal(await answer(rig, named={"TRAN_MSG": "true"})) == (
            16,
            "the broker[127.0.0.1] sending transaction message is forbidden",
        )
        assert rig.broker.store.appended_offset == 0


async def test_there_is_no_room_for_transactions_without_end() -> None:
    with rigged(transactions=TransactionSettings(open_max=2)) as rig:
        for _ in range(2):
            await stored(rig, named={"TRAN_MSG": "true"})
        assert refusal(await answer(rig, named={"TRAN_MSG": "true"})) == (
            2,
            "2 transactions are open, end some of them first",
        )


async def test_a_half_message_that_comes_back_is_delayed(rig: Rig) -> None:
    message = await stored(rig, named={"TRAN_MSG": "true", "DELAY": "1"}, reconsume_times=1)
    assert message.topic == SCHEDULE_TOPIC
    assert (await stored(rig, named={"TRAN_MSG": "false"})).topic == "T"


# --- Batches ---


def batch(*bodies: bytes, named: dict[str, str] | None = None, flag: int = 0) -> bytes:
    properties = encode_properties(named or {})
    return b"".join(
        BATCH_ELEMENT.pack(BATCH_ELEMENT.size + len(body) + 2 + len(properties), 0, 0, flag, len(body))
        + body
        + LENGTH.pack(len(properties))
        + properties
        for body in bodies
    )


async def test_a_batch_is_stored_as_its_messages(rig: Rig) -> None:
    await stored(rig)
    body = batch(b"1", b"22", b"", named={"TAGS": "own"}, flag=3)
    reply = await answer(rig, body=body, batch=True, named={"UNIQ_KEY": "U", "KEYS": "shared"})
    assert (reply.code, reply.fields["queueOffset"], reply.fields["transactionId"]) == (0, "1", "U")
    ids = reply.fields["msgId"].split(",")
    messages = [rig.broker.store.message_by_id(each) for each in ids]
    assert [message.body for message in messages] == [b"1", b"22", b""]
    assert [message.queue_offset for message in messages] == [1, 2, 3]
    for message in messages:
        assert (message.tags, message.keys, message.unique_key, message.flag) == ("own", ["shared"], "U", 3)


async def test_a_batch_without_a_unique_key_gets_none(rig: Rig) -> None:
    reply = await answer(rig, body=batch(b"1", b"2"), batch=True)
    assert reply.code == 0
    assert "transactionId" not in reply.fields
    assert [message.unique_key for message in rig.stored("T")] == [None, None]


async def test_each_of_several_batches_has_its_own_answer(rig: Rig) -> None:
    sent = [
        command(body=batch(b"1", b"2"), batch=True, named={"UNIQ_KEY": "A"}),
        command(body=b"lies", batch=True),
        command(body=b"", batch=True),
        command(body=batch(b"3"), batch=True, oneway=True),
        command(body=batch(b"x"), batch=True, sys_flag=SystemFlag.TRANSACTION_PREPARED),
        command(body=batch(b"4", b"5"), batch=True, named={"UNIQ_KEY": "B"}),
    ]
    for opaque, each in enumerate(sent):
        each.opaque = opaque
    rig.broker.send_path.send_batch(rig.client.peer, sent)
    replies = {reply.opaque: reply for reply in await rig.client.taken()}
    assert {opaque: reply.code for opaque, reply in replies.items()} == {0: 0, 1: 13, 2: 1, 4: 13, 5: 0}
    for opaque, key, bodies in ((0, "A", [b"1", b"2"]), (5, "B", [b"4", b"5"])):
        fields = replies[opaque].fields
        found = [rig.broker.store.message_by_id(each) for each in fields["msgId"].split(",")]
        assert (fields["transactionId"], [message.body for message in found]) == (key, bodies)
        assert int(fields["queueOffset"]) == found[0].queue_offset
    assert [message.body for message in rig.stored("T")] == [b"1", b"2", b"3", b"4", b"5"]
    assert rig.broker.stats.puts.count == 5


@pytest.mark.parametrize("kind", [SendMessage, SendMessageV2])
async def test_the_flag_makes_a_batch_of_any_send(rig: Rig, kind: type[Any]) -> None:
    sent = command(kind=kind)
    sent.request = kind(**{**{name: getattr(sent.request, name) for name in FIELDS}, "batch": True})
    sent.body = batch(b"1", b"2")
    first, second, third = await send(rig, command(body=b"before"), sent, command(body=b"after"))
    assert [first.code, second.code, third.code] == [0, 0, 0]
    assert [message.body for message in rig.stored("T")] == [b"before", b"1", b"2", b"after"]


FIELDS = (
    "producer_group", "topic", "default_topic", "default_topic_queue_nums", "queue_id", "sys_flag",
    "born_timestamp", "flag",
)  # fmt: skip


async def test_a_batch_for_a_retry_topic(rig: Rig) -> None:
    reply = await answer(rig, "%RETRY%CG", batch(b"1"), batch=True)
    assert refusal(reply) == (13, "batch request does not support retry group %RETRY%CG")


@pytest.mark.parametrize(
    ("named", "code"), [({"DELAY": "1"}, 13), ({"TRAN_MSG": "true"}, 13), ({"TIMER_DELAY_MS": "5"}, 13)]
)
async def test_a_batch_is_neither_delayed_nor_half(rig: Rig, named: dict[str, str], code: int) -> None:
    reply = await answer(rig, body=batch(b"1"), batch=True, named=named)
    assert refusal(reply)[0] == code
    assert rig.broker.store.appended_offset == 0


@pytest.mark.parametrize("sys_flag", [4, 8, 12, 0x80])
async def test_a_batch_has_no_flags_of_transactions_or_inner_batches(rig: Rig, sys_flag: int) -> None:
    assert refusal(await answer(rig, body=batch(b"1"), batch=True, sys_flag=sys_flag)) == (13, ILLEGAL)


def lying(body: bytes, position: int, value: int) -> bytes:
    return body[:position] + struct.pack(">i", value) + body[position + 4 :]


GOOD = batch(b"first", b"second")
LIES = {
    "total 0": lying(GOOD, 0, 0),
    "total 1": lying(GOOD, 0, 1),
    "total -1": lying(GOOD, 0, -1),
    "total 2^31-1": lying(GOOD, 0, (1 << 31) - 1),
    "total one more": lying(GOOD, 0, BATCH_ELEMENT.size + 5 + 2 + 1),
    "body -1": lying(GOOD, 16, -1),
    "body -2^31": lying(GOOD, 16, -(1 << 31)),
    "body 2^31-1": lying(GOOD, 16, (1 << 31) - 1),
    "body one more": lying(GOOD, 16, 6),
    "properties": GOOD[:25] + b"\xff\xff" + GOOD[27:],
    "cut": GOOD[:-1],
    "one byte more": GOOD + b"\x00",
    "head only": GOOD[:19],
    "one byte": b"x",
    "second lies": lying(GOOD, len(batch(b"first")) + 16, 1 << 30),
}


@pytest.mark.parametrize("name", LIES)
async def test_a_batch_whose_inner_lengths_lie(rig: Rig, name: str) -> None:
    reply = await answer(rig, body=LIES[name], batch=True)
    assert refusal(reply)[0] == 13
    assert rig.broker.store.appended_offset == 0


async def test_batches_have_the_limits_of_messages(rig: Rig) -> None:
    assert refusal(await answer(rig, body=batch(b"x" * BODY_BYTES_MAX), batch=True)) == (13, ILLEGAL)
    named = {"k": "v" * 32_000}
    fitting = batch(b"x", named=named)
    with rigged(store={"commit_log_file_bytes": 1 << 20, "message_bytes_max": 1 << 16}) as wide:
        assert (await answer(wide, body=fitting, batch=True)).code == 0
        assert (await answer(wide, body=fitting, batch=True, named={"more": "v" * 800})).code == 13


async def test_what_a_batch_shares_is_checked_as_for_messages(rig: Rig) -> None:
    for topic, code in (("a b", 29), ("t" * 128, 29), (SCHEDULE_TOPIC, 16)):
        assert refusal(await answer(rig, topic, batch(b"1"), batch=True))[0] == code
    assert refusal(await answer(rig, "T", batch(b"1"), batch=True, queue_id=4))[0] == 29


# --- Waiting, and refusing ---


@pytest.fixture
async def sync_rig() -> AsyncIterator[Rig]:
    with rigged(store={"flush_mode": FlushMode.SYNC, "commit_log_file_bytes": 1 << 20}) as made:
        yield made


async def test_sf_078_the_answer_waits_for_the_flush_of_all_that_came_together(sync_rig: Rig) -> None:
    rig = sync_rig
    path = rig.broker.send_path
    assert await send(rig, command(body=b"1"), command(body=b"2"), path=path) == []
    assert rig.stored("T") == []  # not visible either
    rig.broker.store.flush_log()
    assert [reply.code for reply in await rig.client.taken()] == [0, 0]
    assert [message.body for message in rig.stored("T")] == [b"1", b"2"]


async def test_sf_078_a_flush_that_comes_too_late_is_code_10_with_all_fields(sync_rig: Rig) -> None:
    rig = sync_rig
    path = rig.broker.send_path
    assert await send(rig, command(named={"UNIQ_KEY": "U"}), path=path) == []
    path.send_batch(rig.client.peer, [command(body=batch(b"1", b"2"), batch=True)])
    rig.clock.advance(4_999)
    rig.broker.store.expire_waiters()
    assert await rig.client.taken() == []
    rig.clock.advance(1)
    rig.broker.store.expire_waiters()
    single, several = await rig.client.taken()
    assert (single.code, several.code) == (10, 10)
    assert single.fields["transactionId"] == "U"
    assert several.fields["queueOffset"] == "1"
    assert len(several.fields["msgId"].split(",")) == 2


async def test_sf_078_batches_that_came_together_wait_for_one_flush(sync_rig: Rig) -> None:
    rig = sync_rig
    path = rig.broker.send_path
    sent = [command(body=batch(body), batch=True) for body in (b"1", b"2", b"3")]
    sent[1] = command(body=batch(b"2"), batch=True, named={"WAIT": "false"})
    for opaque, each in enumerate(sent):
        each.opaque = opaque
    path.send_batch(rig.client.peer, sent)
    assert [(reply.opaque, reply.code) for reply in await rig.client.taken()] == [(1, 0)]
    assert path.waiting == 2
    rig.broker.store.flush_log()
    assert [(reply.opaque, reply.code) for reply in await rig.client.taken()] == [(0, 0), (2, 0)]
    assert path.waiting == 0


async def test_sf_078_who_does_not_want_to_wait_does_not(sync_rig: Rig) -> None:
    rig = sync_rig
    path = rig.broker.send_path
    patient, hasty = command(body=b"1"), command(body=b"2", named={"WAIT": "false"})
    hasty.opaque = 8
    [reply] = await send(rig, patient, hasty, path=path)
    assert (reply.opaque, reply.code) == (8, 0)
    path.send_batch(rig.client.peer, [command(body=batch(b"3"), batch=True, named={"WAIT": "false"})])
    assert [reply.code for reply in await rig.client.taken()] == [0]


async def test_no_more_sends_wait_than_allowed() -> None:
    settings = {"flush_mode": FlushMode.SYNC, "commit_log_file_bytes": 1 << 20}
    with rigged(store=settings, send_queue_max=3) as rig:
        path = rig.broker.send_path
        assert await send(rig, command(), command(), path=path) == []
        path.send_batch(rig.client.peer, [command(body=batch(b"1", b"2"), batch=True)])
        busy = (2, "[OVERLOAD]system busy, start flow control for a while")
        assert [refusal(reply) for reply in await send(rig, command(), command(), path=path)] == [busy, busy]
        path.send_batch(rig.client.peer, [command(body=batch(b"1"), batch=True)])
        assert [refusal(reply) for reply in await rig.client.taken()] == [busy]
        rig.broker.store.flush_log()
        assert [reply.code for reply in await rig.client.taken()] == [0, 0, 0]
        assert await send(rig, command(), path=path) == []
        rig.broker.store.flush_log()
        assert [reply.code for reply in await rig.client.taken()] == [0]


async def test_waiting_sends_are_counted_out_when_they_fail(sync_rig: Rig) -> None:
    rig = sync_rig
    rig.broker.live.current = replace(rig.broker.live.current, send_queue_max=1)
    path = rig.broker.send_path
    for _ in range(3):
        assert await send(rig, command(), path=path) == []
        rig.broker.store.waiters.failed()
        assert [reply.code for reply in await rig.client.taken()] == [10]


async def test_sends_before_the_broker_takes_any(rig: Rig) -> None:
    opens_ms = rig.clock.now_ms() + 5
    rig.broker.live.current = replace(rig.broker.live.current, accept_sends_from_ms=opens_ms)
    code, remark = refusal(await answer(rig))
    assert code == 1
    assert remark.startswith("broker unable to service, until 2023-11-1")
    assert remark.endswith(",005")
    assert (await answer(rig, body=batch(b"1"), batch=True)).code == 1
    rig.clock.advance(5)
    assert (await answer(rig)).code == 0
    rig.broker.live.current = replace(rig.broker.live.current, accept_sends_from_ms=1 << 62)
    assert refusal(await answer(rig))[1].startswith("broker unable to service, until 9999-12-3")


async def test_sf_082_a_disk_that_is_too_full_is_code_14(rig: Rig) -> None:
    disk = rig.broker.store._disk
    disk.used = 0.91  # type: ignore[attr-defined]
    rig.broker.store.housekeeper.clean()
    for fields in ({}, {"batch": True, "body": batch(b"1")}):
        code, remark = refusal(await answer(rig, **fields))
        assert code == 14
        assert remark.startswith("service not available now. It may be caused by one of the following reason")
    disk.used = 0.5  # type: ignore[attr-defined]
    rig.broker.store.housekeeper.clean()
    assert (await answer(rig)).code == 0


async def test_more_unflushed_bytes_than_allowed_are_busy() -> None:
    with rigged(store={"commit_log_file_bytes": 4 << 20, "unflushed_bytes_max": 1 << 20}) as rig:
        path = rig.broker.send_path
        sent = [command(body=b"x" * 2000) for _ in range(100)]
        codes = [reply.code for _ in range(6) for reply in await send(rig, *sent, path=path)]
        assert set(codes) == {0, 2}
        [reply] = await send(rig, command(), path=path)
        assert refusal(reply) == (2, "[PC_SYNCHRONIZED]broker busy, start flow control for a while")
        rig.broker.store.flush_log()
        assert (await answer(rig)).code == 0


@pytest.mark.parametrize("status", PutStatus)
def test_every_refusal_has_a_code(status: PutStatus) -> None:
    code, remark = refusal_reply(status, "why", 100)
    expected = {
        PutStatus.MESSAGE_ILLEGAL: 13,
        PutStatus.PROPERTIES_SIZE_EXCEEDED: 13,
        PutStatus.SERVICE_NOT_AVAILABLE: 14,
        PutStatus.OS_PAGE_CACHE_BUSY: 2,
    }
    assert code == expected.get(status, 1)
    assert remark
