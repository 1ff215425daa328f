"""Sends to a running broker: what Apache's broker answered to the same frames, and what real sockets add."""

from __future__ import annotations

import asyncio
import re
import zlib
from pathlib import Path

import pytest

from skylark.errors import BrokerError
from skylark.model.message import encode_properties
from skylark.model.record import BATCH_ELEMENT, LENGTH
from skylark.protocol.command import RemotingCommand, encode
from skylark.protocol.requests.name_server import GetRouteInfoByTopic
from skylark.protocol.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from tests.integration.broker_rig import Exchange, Wire, exchanges, fast_address, wire
from tests.support.broker import (
    BrokerClient,
    running_broker,
    running_cluster,
    running_name_server,
    until,
)
from tests.unit.protocol.golden_frames import FRAMES

SENDS = (10, 310, 320)
UPDATE_TOPIC = 17
SCENARIOS = [
    "probe-send",
    "probe-pull",
    "transaction",
    "binary-transaction",
    *sorted(
        path.name.removesuffix(".jsonl.gz")
        for pattern in ("producer-*", "code10-*", "vip-*", "binary-producer-*", "binary-server-producer-*")
        for path in FRAMES.glob(f"{pattern}.jsonl.gz")
    ),
]
ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+:\d+")
# Apache's broker was busy for a moment.
BUSY = "[TIMEOUT_CLEAN_QUEUE]"


def frame(request: SendMessageV2 | SendMessage, opaque: int = 0, *, oneway: bool = False) -> bytes:
    command = request.to_command(oneway=oneway)
    command.opaque = opaque
    return b"".join(encode(command))


def send(body: bytes, topic: str = "T", queue_id: int = 0, **fields: str) -> SendMessageV2:
    return SendMessageV2(
        "PG", topic, "TBW102", 4, queue_id, 0, 1, 0, encode_properties(fields).decode(), body=body
    )


# --- As Apache's ---


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_captured_sends_are_answered_as_apaches_broker_answered_them(
    tmp_path: Path, scenario: str
) -> None:
    compared = 0
    async with (
        running_broker(tmp_path) as broker,
        BrokerClient(broker.address) as client,
        wire(broker.address) as main,
        wire(fast_address(broker)) as fast,
    ):
        for _ in range(20 if scenario == "probe-send" else 0):
            await client.send("TopicTest", b"as the recording went")  # before the probes
        for exchange in exchanges(scenario):
            if exchange.code in (*SENDS, UPDATE_TOPIC):
                compared += await replay(fast if exchange.is_fast else main, exchange)
    assert compared or scenario == "producer-oneway"


async def replay(connection: Wire, exchange: Exchange) -> bool:
    """Ask again; return whether the answer could be compared."""
    if exchange.answer is None:
        await connection.send(exchange.frame)
        return False
    answer = await connection.ask(exchange.frame)
    if exchange.code not in SENDS or exchange.remark.startswith(BUSY):
        return False
    assert (answer.code, set(answer.fields)) == (exchange.answer["code"], set(exchange.answer_fields))
    if not exchange.remark.startswith("java."):
        assert ADDRESS.sub("ADDRESS", answer.remark or "") == ADDRESS.sub("ADDRESS", exchange.remark)
    if answer.code == 0:
        check_values(exchange, answer)
    return True


def check_values(exchange: Exchange, answer: RemotingCommand) -> None:
    """What does not depend on where the message came to lie."""
    theirs = exchange.answer_fields
    chosen = exchange.fields.get("e", exchange.fields.get("queueId"))
    if chosen != "-1":
        assert answer.fields["queueId"] == theirs["queueId"]
    assert answer.fields["msgId"].count(",") == theirs["msgId"].count(",")
    if "UNIQ_KEY\x01" in exchange.fields.get("i", exchange.fields.get("properties", "")):
        assert answer.fields["transactionId"] == theirs["transactionId"]
    for name in ("MSG_REGION", "TRACE_ON"):
        assert answer.fields[name] == theirs[name]


async def test_captured_oneway_sends_are_stored(tmp_path: Path) -> None:
    oneway = [each for each in exchanges("producer-oneway") if each.code in SENDS]
    assert oneway
    async with running_broker(tmp_path) as broker, wire(broker.address) as connection:
        for exchange in oneway:
            await connection.send(exchange.frame)
        await until(lambda: broker.stats.puts.count == len(oneway))


# --- Over sockets ---


async def test_what_was_sent_is_what_is_pulled(tmp_path: Path) -> None:
    body = zlib.compress("Тело 🕊".encode() * 100)
    named = {"TAGS": "птица", "KEYS": "ключ один", "x": "\x03 tab\t line\n"}
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        reply = await client.send("T", body, 3, properties=named, sys_flag=1, flag=5)
        assert (reply.queue_id, reply.queue_offset) == (3, 0)
        [message] = await client.pull("T", 3, expression="птица")
        assert (message.body, message.sys_flag, message.flag) == (body, 1, 5)
        assert {name: message.properties[name] for name in named} == named
        assert message.unique_key == reply.transaction_id
        assert message.born_host.startswith("127.0.0.1:")
        assert await client.pull("T", 3, expression="other") == []


async def test_a_thousand_sends_in_one_write_keep_their_order(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as broker,
        wire(broker.address) as sender,
        BrokerClient(broker.address) as client,
    ):
        await sender.send(b"".join(frame(send(b"%d" % number), number) for number in range(1000)))
        answers = [await sender.answer() for _ in range(1000)]
        assert [answer.opaque for answer in answers] == list(range(1000))
        assert [answer.fields["queueOffset"] for answer in answers] == [str(each) for each in range(1000)]
        stored = await client.pull_all("T")
        assert [message.body for message in stored] == [b"%d" % number for number in range(1000)]


async def test_sends_of_all_kinds_and_a_bad_one_in_one_write(tmp_path: Path) -> None:
    batch = b"".join(
        BATCH_ELEMENT.pack(BATCH_ELEMENT.size + 1 + 2, 0, 0, 0, 1) + body + LENGTH.pack(0)
        for body in (b"3", b"4")
    )
    old = SendMessage("PG", "T", "TBW102", 4, 0, 0, 1, 0, body=b"1")
    several = SendBatchMessage("PG", "T", "TBW102", 4, 0, 0, 1, 0, batch=True, body=batch)
    async with (
        running_broker(tmp_path) as broker,
        wire(broker.address) as sender,
        BrokerClient(broker.address) as client,
    ):
        frames = [frame(old, 1), frame(send(b"2"), 2), frame(several, 3), frame(send(b"", "a b"), 4)]
        await sender.send(b"".join(frames))
        answers = {answer.opaque: answer.code for answer in [await sender.answer() for _ in range(4)]}
        assert answers == {1: 0, 2: 0, 3: 0, 4: 1}
        assert sorted(message.body for message in await client.pull_all("T")) == [b"1", b"2", b"3", b"4"]


async def test_oneway_sends_are_stored_and_never_answered(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as broker,
        wire(broker.address) as sender,
        BrokerClient(broker.address) as client,
    ):
        await sender.send(b"".join(frame(send(b"%d" % number), number, oneway=True) for number in range(50)))
        await sender.send(frame(send(b"x", "../x"), 50, oneway=True))
        answer = await sender.ask(frame(send(b"last"), 51))
        assert (answer.opaque, answer.fields["queueOffset"]) == (51, "50")
        assert len(await client.pull_all("T")) == 51


async def test_the_fast_port_takes_sends_and_no_pulls(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as broker,
        BrokerClient(fast_address(broker)) as fast,
        BrokerClient(broker.address) as main,
    ):
        await fast.send("T", b"fast")
        await main.send("T", b"main")
        assert [message.body for message in await main.pull("T")] == [b"fast", b"main"]
        await fast.heartbeat(producers=["PG"])
        with pytest.raises(BrokerError, match=" request type 11 not supported") as caught:
            await fast.pull("T")
        assert caught.value.code == 3


async def test_many_connections_send_at_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        clients = [BrokerClient(broker.address, f"c@{number}") for number in range(50)]

        async def send_some(client: BrokerClient, name: int) -> list[int]:
            return [(await client.send("T", b"%d %d" % (name, each))).queue_offset for each in range(20)]

        offsets = await asyncio.gather(*(send_some(client, each) for each, client in enumerate(clients)))
        assert sorted(offset for own in offsets for offset in own) == list(range(1000))
        assert all(own == sorted(own) for own in offsets)
        async with BrokerClient(broker.address) as reader:
            stored = {message.queue_offset: message.body for message in await reader.pull_all("T")}
        for name, own in enumerate(offsets):
            assert [stored[offset] for offset in own] == [b"%d %d" % (name, each) for each in range(20)]
        for client in clients:
            await client.__aexit__()


async def test_the_largest_message(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        largest = b"x" * (4 << 20)
        await client.send("T", largest)
        with pytest.raises(BrokerError) as caught:
            await client.send("T", largest + b"x")
        assert caught.value.code == 13
        [message] = await client.pull("T")
        assert message.body == largest


async def test_a_store_of_many_files(tmp_path: Path) -> None:
    small = {"commit_log_file_bytes": 64 << 10, "consume_queue_file_bytes": 20 * 50, "index_items": 100}
    async with (
        running_broker(tmp_path, store=small) as broker,
        BrokerClient(broker.address) as client,
    ):
        for start in range(0, 1000, 100):
            sends = (client.send("T", b"%d" % number, number % 4) for number in range(start, start + 100))
            await asyncio.gather(*sends)
        bodies = [message.body for queue in range(4) for message in await client.pull_all("T", queue)]
        assert sorted(map(int, bodies)) == list(range(1000))
        assert len(broker.store.log.files.starts) > 3


# --- Several brokers ---


async def test_two_brokers_under_one_name_server(tmp_path: Path) -> None:
    async with (
        running_name_server(tmp_path) as name_server,
        BrokerClient(name_server.address) as names,
        running_broker(tmp_path / "a", name="broker-a", name_servers=name_server.address) as first,
    ):

        async def brokers() -> dict[str, str]:
            try:
                route = await names.ask(GetRouteInfoByTopic("T"))
            except BrokerError:
                return {}
            return {data.broker_name: data.broker_addrs[0] for data in route.broker_datas}

        async with running_broker(
            tmp_path / "b", name="broker-b", name_servers=name_server.address
        ) as second:
            expected = {"broker-a": first.address, "broker-b": second.address}

            async def both_known() -> bool:
                return await brokers() == expected

            for name, address in expected.items():
                async with BrokerClient(address) as client:
                    await client.send("T", name.encode())
            await until(both_known)
            for name, address in expected.items():
                async with BrokerClient(address) as client:
                    assert [message.body for message in await client.pull("T")] == [name.encode()]
        assert await brokers() == {"broker-a": first.address}
        async with BrokerClient(first.address) as client:
            assert (await client.send("T", b"still here")).queue_offset == 1


async def test_a_topic_made_by_a_send_is_routed_and_kept(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as (name_server, broker):
        async with BrokerClient(broker.address) as client, BrokerClient(name_server.address) as names:
            await client.send("Made", b"x", default_topic_queue_nums=3)

            async def is_routed() -> bool:
                try:
                    route = await names.ask(GetRouteInfoByTopic("Made"))
                except BrokerError:
                    return False
                return [data.write_queue_nums for data in route.queue_datas] == [3]

            await until(is_routed)
    async with running_broker(tmp_path / "store") as broker:
        config = broker.topics.get("Made")
        assert config is not None
        assert config.write_queue_nums == 3
