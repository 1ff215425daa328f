"""Request and reply on a running broker: the reply reaches who waits for it, as captured from Apache's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.broker import Broker
from skylark.errors import BrokerError
from skylark.model.message import decode_properties, encode_properties
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.send import (
    PushReplyMessageToClient,
    SendReplyMessage,
    SendReplyMessageV2,
)
from tests.integration.broker_rig import exchanges, wire
from tests.support.broker import BrokerClient, running_broker
from tests.unit.protocol.golden_frames import captured

ASKER = "asker@1"


def reply(kind: Any, to: str | None = ASKER, **changes: Any) -> Any:
    properties = {"MSG_TYPE": "reply", "CORRELATION_ID": "c1", "TTL": "3000"}
    if to is not None:
        properties["REPLY_TO_CLIENT"] = to
    members = {
        "producer_group": "PG",
        "topic": "DefaultCluster_REPLY_TOPIC",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1_794_718_900_013,
        "flag": 0,
        "properties": encode_properties(properties).decode(),
        "body": b"the answer",
        **changes,
    }
    return kind(**members)


@pytest.mark.parametrize("kind", [SendReplyMessage, SendReplyMessageV2])
@pytest.mark.parametrize("stored", [True, False])
async def test_a_reply_reaches_who_asked(tmp_path: Path, kind: Any, stored: bool) -> None:
    async with (
        running_broker(tmp_path, store_replies=stored) as broker,
        BrokerClient(broker.address, ASKER) as asker,
        BrokerClient(broker.address, "answerer@2") as answerer,
    ):
        asker.on_request = lambda command: command.reply()
        await asker.heartbeat(producers=["PG_asker"])
        result = await answerer.ask(reply(kind))
        [pushed] = [PushReplyMessageToClient.from_command(command) for command in asker.asked]
        assert (bytes(pushed.body), pushed.topic, pushed.producer_group) == (
            b"the answer",
            "DefaultCluster_REPLY_TOPIC",
            "PG",
        )
        properties = decode_properties(pushed.properties.encode())
        assert properties.keys() == {
            *("MSG_TYPE", "CORRELATION_ID", "TTL", "REPLY_TO_CLIENT", "MSG_REGION", "TRACE_ON"),
            "PUSH_REPLY_TIME",
        }
        assert pushed.store_host == broker.address
        assert (result.code, result.reply.msg_id == "0") == (0, not stored)
        kept = await answerer.pull("DefaultCluster_REPLY_TOPIC")
        assert [message.body for message in kept] == ([b"the answer"] if stored else [])


async def refusal(broker: Broker, request: Any) -> tuple[int, str]:
    async with BrokerClient(broker.address, "answerer@2") as answerer:
        with pytest.raises(BrokerError) as caught:
            await answerer.ask(request)
        return caught.value.code, caught.value.remark


async def test_replies_that_nobody_waits_for(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        assert await refusal(broker, reply(SendReplyMessageV2, None)) == (
            1,
            "reply message properties[REPLY_TO_CLIENT] is null",
        )
        assert await refusal(broker, reply(SendReplyMessageV2, "nobody")) == (
            1,
            "push reply message fail, channel of <nobody> not found.",
        )
        assert (await refusal(broker, reply(SendReplyMessageV2, queue_id=99)))[0] == 29
        async with BrokerClient(broker.address, ASKER) as asker:
            asker.on_request = lambda command: command.reply(1, "not mine")
            await asker.heartbeat(producers=["PG_asker"])
            assert await refusal(broker, reply(SendReplyMessageV2)) == (
                1,
                f"push reply message to {ASKER} fail.",
            )


async def test_an_asker_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address, ASKER) as asker:
        await asker.heartbeat(producers=["PG_asker"])

        def leave(_: RemotingCommand) -> None:
            asyncio.get_running_loop().call_soon(asker.hang_up)

        asker.on_request = leave
        assert await refusal(broker, reply(SendReplyMessageV2)) == (1, f"push reply message to {ASKER} fail.")


async def test_captured_replies_are_answered_as_by_apache(tmp_path: Path) -> None:
    pushes = [frame for frame in captured("request-reply") if frame.code == 326 and frame.kind == "request"]
    async with running_broker(tmp_path) as broker, wire(broker.address) as answerer:
        compared = 0
        for exchange in [*exchanges("request-reply"), *exchanges("probe-send")]:
            if exchange.code != 325 or exchange.answer is None:
                continue
            to = decode_properties(exchange.fields["i"].encode()).get("REPLY_TO_CLIENT", "")
            async with BrokerClient(broker.address, to) as asker:
                asker.on_request = lambda command: command.reply()
                if exchange.answer["code"] == 0:
                    await asker.heartbeat(producers=["PG_asker"])
                answer = await answerer.ask(exchange.frame)
                assert (answer.code, answer.remark or "") == (exchange.answer["code"], exchange.remark)
                assert answer.fields.keys() == exchange.answer_fields.keys()
                if exchange.answer["code"] == 0:
                    [pushed], theirs = asker.asked, pushes.pop(0)
                    assert pushed.fields.keys() == theirs.header["extFields"].keys()
                    assert bytes(pushed.body) == theirs.body
            compared += 1
        assert compared >= 6
