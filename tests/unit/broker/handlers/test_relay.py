"""Questions that tools ask a consumer through the broker: words of both sides are passed on."""

import asyncio
from typing import Any

import pytest

from skylark.broker.clients import ConnectedClient as Member
from skylark.broker.handlers import relay
from skylark.model.message_id import offset_message_id
from skylark.protocol.command import RemotingCommand
from skylark.protocol.request import Request
from skylark.protocol.requests.client import ConsumeMessageDirectly, GetConsumerRunningInfo
from tests.support.broker import consumer
from tests.unit.broker.handlers.rig import Client, Rig


def join(rig: Rig, *, version: int = 479) -> Client:
    """A consumer that is online as c1."""
    client = rig.connect()
    member = Member(client.peer, "c1", "JAVA", version)
    rig.broker.consumers.register(member, consumer("CG"), notify=False, now=0)
    return client


async def relayed(
    rig: Rig, client: Client, request: Request[Any], **answer: Any
) -> tuple[RemotingCommand, RemotingCommand]:
    """What the consumer was asked, and what the tool was answered when the consumer has answered this."""
    asking = asyncio.ensure_future(rig.ask(request))
    asked: list[RemotingCommand] = []
    async with asyncio.timeout(60):
        while not asked:
            asked = await client.taken()
    client.deliver(asked[0].reply(**answer))
    return asked[0], await asking


async def test_running_info_is_relayed_as_it_is(rig: Rig) -> None:
    client = join(rig)
    request = GetConsumerRunningInfo("CG", "c1", jstack_enable=True)
    asked, answer = await relayed(rig, client, request, remark="any", body=b'{"mqTable":{}}')
    assert (asked.code, asked.fields, bytes(asked.body)) == (307, request.to_fields(), b"")
    assert (answer.code, answer.remark, bytes(answer.body)) == (0, "any", b'{"mqTable":{}}')


async def test_what_a_consumer_refuses_is_relayed_too(rig: Rig) -> None:
    client = join(rig)
    _, answer = await relayed(rig, client, GetConsumerRunningInfo("CG", "c1"), code=1, remark="not now")
    assert (answer.code, answer.remark) == (1, "not now")


async def test_a_message_is_consumed_directly(rig: Rig) -> None:
    client = join(rig)
    place = rig.put(body=b"again")
    message_id = offset_message_id(rig.broker.addresses.packed, place.physical_offset)
    request = ConsumeMessageDirectly("CG", "c1", message_id, "T")
    asked, answer = await relayed(rig, client, request, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert asked.code == 309
    assert asked.fields == {
        **request.to_fields(),
        "brokerName": "broker-a",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
    assert bytes(asked.body) == rig.broker.store.read_log(place.physical_offset, place.size)
    assert bytes(answer.body) == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize(
    ("message_id", "words"),
    [
        ("7F000001" + "00002A9F" + "00000000000FFFFF", "can not find message by the offset"),
        ("x", ""),
        ("", ""),
    ],
)
async def test_a_message_that_is_not_there_is_not_consumed(rig: Rig, message_id: str, words: str) -> None:
    client = join(rig)
    answer = await rig.ask(ConsumeMessageDirectly("CG", "c1", message_id, "T"))
    assert answer.code == 1
    assert words in (answer.remark or "")
    assert await client.taken() == []


async def test_a_consumer_that_is_not_there(rig: Rig) -> None:
    for group, client_id in (("CG", "c1"), ("other", "c1")):
        answer = await rig.ask(GetConsumerRunningInfo(group, client_id))
        assert (answer.code, answer.remark) == (1, f"The Consumer <{group}> <{client_id}> not online")


async def test_a_consumer_that_is_too_old_to_answer(rig: Rig) -> None:
    join(rig, version=61)
    answer = await rig.ask(GetConsumerRunningInfo("CG", "c1"))
    assert answer.code == 1
    assert "too low to finish, please upgrade it to V3_1_8_SNAPSHOT" in (answer.remark or "")


async def test_a_consumer_that_does_not_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "RELAY_TIMEOUT_S", 0.01)
    join(rig)
    answer = await rig.ask(GetConsumerRunningInfo("CG", "c1"))
    assert answer.code == 207
    assert (answer.remark or "").startswith("consumer <CG> <c1> Timeout: ")


async def test_a_consumer_that_leaves_while_it_is_asked(rig: Rig) -> None:
    client = join(rig)
    asking = asyncio.ensure_future(rig.ask(GetConsumerRunningInfo("CG", "c1")))
    async with asyncio.timeout(60):
        while not await client.taken():
            pass
    client.peer.connection_lost(None)
    answer = await asking
    assert answer.code == 1
    assert (answer.remark or "").startswith("invoke consumer <CG> <c1> Exception: ")
