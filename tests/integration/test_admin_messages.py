"""Admin on messages: found by id, key, offset and time; tracked, consumed on demand, sent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.admin.dead_letters import PROPERTY_RESENT_FROM
from skylark.admin.messages import FOREVER_MS, TrackState
from skylark.errors import BrokerError, ClientError, NoRoute, RemotingError
from skylark.model.message_id import parse_offset_message_id
from skylark.model.record import decode
from skylark.protocol.bodies import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    MessageQueue,
    encode_body,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.send import ConsumerSendMsgBack
from tests.integration.admin_rig import GROUP, TOPIC, Rig, running_rig, unique_key
from tests.support.broker import consumer, subscription, until

FIRST = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running_rig(tmp_path) as running:
        yield running


async def indexed(rig: Rig, number: int) -> None:
    """Wait until a message can be found by its key."""

    async def is_found() -> bool:
        return bool((await rig.admin.messages.by_unique_key(TOPIC, unique_key(number))).messages)

    await until(is_found)


async def test_a_message_is_found_by_either_id(rig: Rig) -> None:
    reply = await rig.send(1, broker=1, TAGS="created")
    await indexed(rig, 1)
    for message_id in (reply.msg_id, unique_key(1)):
        message = await rig.admin.messages.get(TOPIC, message_id)
        assert message.body == b"body 1"
        assert (message.tags, message.keys) == ("created", ["key-1", "all"])
        assert message.queue == MessageQueue(TOPIC, "broker-b", 0)
        assert (message.message_id, message.offset_message_id) == (unique_key(1), reply.msg_id)
    with pytest.raises(ClientError, match="no message"):
        await rig.admin.messages.get(TOPIC, unique_key(99))
    with pytest.raises(ClientError, match="invalid offset id"):
        await rig.admin.messages.by_offset_id("nonsense")
    with pytest.raises(NoRoute):
        await rig.admin.messages.get("NeverHeardOf", reply.msg_id)


async def test_messages_are_found_by_key_on_all_brokers(rig: Rig) -> None:
    for number in range(4):
        await rig.send(number, broker=number % 2)
        await asyncio.sleep(0.002)
    await indexed(rig, 2)
    await indexed(rig, 3)
    found = await rig.admin.messages.by_key(TOPIC, "all")
    assert [message.unique_key for message in found.messages] == [unique_key(n) for n in (3, 2, 1, 0)]
    assert not found.failures
    assert len((await rig.admin.messages.by_key(TOPIC, "all", messages_max=2)).messages) == 2
    assert (await rig.admin.messages.by_key(TOPIC, "never")).messages == ()
    # A broker that is away is told, and the others' messages are there.
    await rig.take_away(1)
    found = await rig.admin.messages.by_key(TOPIC, "all")
    assert len(found.messages) == 2
    assert isinstance(found.failures["broker-b"], RemotingError)


async def test_messages_are_found_by_offset_and_time(rig: Rig) -> None:
    for number in range(40):
        await rig.send(number, broker=number % 2, TAGS="even" if number % 4 == 0 else "odd")
    message = await rig.admin.messages.at(FIRST, 1)
    assert message is not None
    assert message.body == b"body 2"
    assert await rig.admin.messages.at(FIRST, 20) is None
    everything = (await rig.admin.messages.between(TOPIC)).messages
    assert {message.body for message in everything} == {f"body {n}".encode() for n in range(40)}
    times = [message.store_timestamp for message in everything]
    assert times == sorted(times)
    tagged = (await rig.admin.messages.between(TOPIC, expression="even")).messages
    assert len(tagged) == 10
    assert len((await rig.admin.messages.between(TOPIC, messages_max=7)).messages) == 7
    middle = times[20]
    before = (await rig.admin.messages.between(TOPIC, 0, middle)).messages
    after = (await rig.admin.messages.between(TOPIC, middle, FOREVER_MS)).messages
    assert len(before) + len(after) == 40
    assert all(message.store_timestamp < middle for message in before)
    units = await rig.admin.messages.units(FIRST, 0, 3)
    assert [unit.physic_offset for unit in units.queue_data] == sorted(
        unit.physic_offset for unit in units.queue_data
    )
    assert len(units.queue_data) == 3


async def test_a_message_is_tracked_through_groups(rig: Rig) -> None:
    await rig.send(1, TAGS="created")
    message = await rig.admin.messages.at(FIRST, 0)
    assert message is not None
    client = rig.clients[0]
    groups = ["Done", "Waits", "Filters", "Everyone", "Puller"]
    for group in [*groups, "Away", "Behind"]:
        await rig.admin.groups.create(group)
    for group in ("Done", "Filters", "Away"):
        await rig.admin.offsets.commit(group, {FIRST: 1})
    await rig.admin.offsets.commit("Behind", {FIRST: 0})
    filtered = subscription(TOPIC, "paid")
    filtered.tags_set = ["paid"]
    await client.heartbeat(
        consumer("Done", [TOPIC]),
        consumer("Waits", [TOPIC]),
        consumer("Filters", [filtered]),
        consumer("Everyone", [TOPIC], message_model="BROADCASTING"),
        consumer("Puller", [TOPIC], consume_type="CONSUME_ACTIVELY"),
    )
    states = {track.group: track.state for track in await rig.admin.messages.track(message)}
    assert states == {
        "Done": TrackState.CONSUMED,
        "Waits": TrackState.NOT_YET,
        "Filters": TrackState.FILTERED,
        "Everyone": TrackState.BROADCAST,
        "Puller": TrackState.PULLS,
        "Away": TrackState.PASSED,
        "Behind": TrackState.NOT_ONLINE,
    }


async def test_a_consumer_is_asked_through_its_broker(rig: Rig) -> None:
    reply = await rig.send(1)
    client = rig.clients[0]
    await client.heartbeat(consumer(GROUP, [TOPIC]))
    consumed: list[bytes] = []

    def answer(command: RemotingCommand) -> RemotingCommand | None:
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return command.reply(body=encode_body(ConsumerRunningInfo(properties={"a": "b"}, jstack="stack")))
        if command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return command.reply(body=encode_body(ConsumerStatus(message_queue_table={FIRST: 5})))
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            consumed.append(decode(command.body).body)
            return command.reply(body=encode_body(ConsumeDirectlyResult(consume_result="CR_SUCCESS")))
        return None

    client.on_request = answer
    clients = rig.admin.clients
    info = await clients.running_info(GROUP, client.client_id, with_stack=True)
    assert (info.properties, info.jstack) == ({"a": "b"}, "stack")
    assert await clients.positions(GROUP, TOPIC) == {client.client_id: {FIRST: 5}}
    message = await rig.admin.messages.by_offset_id(reply.msg_id)
    result = await clients.consume_directly(GROUP, client.client_id, message)
    assert (result.consume_result, consumed) == ("CR_SUCCESS", [b"body 1"])
    with pytest.raises(BrokerError, match="not online"):
        await clients.consume_directly(GROUP, "stranger", message)


# --- Dead letters ---


async def bury(rig: Rig, number: int, broker: int = 0) -> None:
    """Send a message and give up on it at once."""
    reply = await rig.send(number, broker=broker, TAGS="created", colour="red")
    _, physical_offset = parse_offset_message_id(reply.msg_id)
    await rig.clients[broker].ask(
        ConsumerSendMsgBack(
            GROUP, physical_offset, -1, origin_msg_id=reply.msg_id, origin_topic=TOPIC, max_reconsume_times=16
        )
    )


async def test_dead_letters_are_listed_and_sent_to_their_group_again(rig: Rig) -> None:
    letters = rig.admin.dead_letters
    assert await letters.find(GROUP) == []
    for number in range(3):
        await bury(rig, number, broker=number % 2)
    await until(lambda: _count(rig, 3))
    found = await letters.find(GROUP)
    assert {letter.message.body for letter in found} == {b"body 0", b"body 1", b"body 2"}
    assert {letter.topic for letter in found} == {TOPIC}
    assert all(letter.died_ms > 0 and letter.origin_message_id for letter in found)

    report = await letters.resend(GROUP)
    assert report.done == 3
    assert not report.failures
    retried = (await rig.admin.messages.between(f"%RETRY%{GROUP}")).messages
    assert {message.body for message in retried} == {b"body 0", b"body 1", b"body 2"}
    audit = {item.letter.message.offset_message_id: item.message_id for item in report.resent}
    for message in retried:
        assert audit[message.properties[PROPERTY_RESENT_FROM]] == message.offset_message_id
        assert message.properties["RETRY_TOPIC"] == TOPIC  # consumers see it under its first topic
        assert (message.properties["colour"], message.tags) == ("red", "created")
        assert message.reconsume_times == 0
        assert message.delay_level == 0
    # Nobody else sees them, they are dealt with, and still there to be looked at.
    assert (await rig.admin.topics.stats(TOPIC)).messages == 3
    assert await letters.find(GROUP) == []
    assert len(await letters.find(GROUP, all_letters=True)) == 3
    assert (await letters.resend(GROUP)).done == 0


async def _count(rig: Rig, number: int) -> bool:
    return len(await rig.admin.dead_letters.find(GROUP)) == number


async def test_many_dead_letters_are_sent_again_in_steps(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.admin.dead_letters.STEP_LETTERS", 3)
    for number in range(10):
        await bury(rig, number)
    await until(lambda: _count(rig, 10))
    assert len(await rig.admin.dead_letters.find(GROUP, letters_max=4)) == 4
    assert (await rig.admin.dead_letters.resend(GROUP)).done == 10
    await bury(rig, 10)
    await until(lambda: _count(rig, 1))
    # What was dealt with is not read again, however much of it there is.
    [letter] = await rig.admin.dead_letters.find(GROUP, letters_max=1)
    assert letter.message.body == b"body 10"
    bodies = [message.body for message in (await rig.admin.messages.between(f"%RETRY%{GROUP}")).messages]
    assert sorted(bodies) == sorted(f"body {n}".encode() for n in range(10))


async def test_chosen_dead_letters_go_to_the_topic_for_all(rig: Rig) -> None:
    for number in range(2):
        await bury(rig, number)
    await until(lambda: _count(rig, 2))
    [first, _] = await rig.admin.dead_letters.find(GROUP)
    report = await rig.admin.dead_letters.resend(GROUP, [first], to_all_groups=True)
    assert [item.target_topic for item in report.resent] == [TOPIC]
    everything = (await rig.admin.messages.between(TOPIC)).messages
    assert sum(PROPERTY_RESENT_FROM in message.properties for message in everything) == 1
    assert all("RETRY_TOPIC" not in message.properties for message in everything)
    # Chosen ones are not marked: the list is as it was.
    assert len(await rig.admin.dead_letters.find(GROUP)) == 2


async def test_a_dead_letter_that_cannot_be_sent_again_is_kept_and_told(rig: Rig) -> None:
    for number in range(2):
        await bury(rig, number)
    await until(lambda: _count(rig, 2))
    await rig.admin.topics.delete(f"%RETRY%{GROUP}")
    report = await rig.admin.dead_letters.resend(GROUP)
    [item] = report.resent  # the second is not tried: it would overtake
    assert item.error is not None
    assert item.message_id is None
    assert report.done == 0
    assert len(report.failures) == 1
    assert len(await rig.admin.dead_letters.find(GROUP)) == 2
