"""Named limits are settings with errors: what is beyond them is refused, and the rest goes on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from skylark.errors import BrokerError
from skylark.protocol.bodies import LockRequest, MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import encode, prefix
from skylark.protocol.request import Request
from skylark.protocol.requests.admin import UpdateBrokerConfig
from skylark.protocol.requests.client import LockBatchMq
from skylark.protocol.requests.offset import GetMaxOffset, UpdateConsumerOffset
from skylark.protocol.requests.send import SendMessageV2
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from tests.integration.broker_rig import Wire, goes_on, healthy_client, wire
from tests.support.broker import BrokerClient, consumer, running_broker, until

BUILT_IN_TOPICS = 13
BUILT_IN_GROUPS = 8


def frame(request: Request[Any], opaque: int = 0, *, oneway: bool = False) -> bytes:
    command = request.to_command(oneway=oneway)
    command.opaque = opaque
    return b"".join(encode(command))


def send(number: int = 0) -> SendMessageV2:
    return SendMessageV2("PG", "T", "TBW102", 4, 0, 0, 1, 0, body=b"%d" % number)


async def code_of(client: BrokerClient, request: Request[Any]) -> int:
    try:
        await client.ask(request)
    except BrokerError as error:
        return error.code
    return 0


# --- Requests of one client ---


async def burst(client: Wire, count: int, *, oneway_every: int = 0) -> list[int]:
    """Send many at once; return the codes of the answers, in order of the requests."""
    asked = [number for number in range(count) if not oneway_every or number % oneway_every]
    frames = [frame(send(number), number, oneway=number not in asked) for number in range(count)]
    await client.send(b"".join(frames))
    answers = {answer.opaque: answer.code for answer in [await client.answer() for _ in asked]}
    return [answers[number] for number in asked]


async def test_a_client_may_send_a_burst_and_then_at_its_rate(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"client_requests_per_s_max": 50, "client_requests_burst_max": 20}

    def earned(since: float) -> float:
        return 50 * (time.monotonic() - since) + 1

    async with (
        running_broker(tmp_path, **limits) as broker,
        wire(broker.address) as greedy,
        wire(broker.address) as modest,
    ):
        started = time.monotonic()
        codes = await burst(greedy, 100)
        assert codes[:20] == [0] * 20
        assert codes.count(0) <= 20 + earned(started)
        assert codes.count(ResponseCode.SYSTEM_BUSY) == 100 - codes.count(0)
        assert await burst(modest, 10) == [0] * 10  # each has its own
        assert broker.stats.puts.count == codes.count(0) + 10
        taken = codes.count(0)
        wanted = taken + 40  # twice the burst: most of it has to be earned, whatever was saved up till now
        while taken < wanted:
            taken += (await burst(greedy, 1)).count(0)
            await asyncio.sleep(0.002)
        assert taken <= 20 + earned(started)


async def test_the_refusal_says_why(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"client_requests_per_s_max": 1, "client_requests_burst_max": 1}
    async with running_broker(tmp_path, **limits) as broker, wire(broker.address) as client:
        await burst(client, 1)
        answer = await client.ask(frame(GetMaxOffset("T", 0), 5))
        assert (answer.opaque, answer.code) == (5, ResponseCode.SYSTEM_BUSY)
        assert answer.remark == "[OVERLOAD]too many requests, 1 per second are allowed"


async def test_oneway_requests_above_the_rate_are_dropped(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"client_requests_per_s_max": 1, "client_requests_burst_max": 10}
    async with running_broker(tmp_path, **limits) as broker, wire(broker.address) as client:
        codes = await burst(client, 30, oneway_every=3)
        assert len(codes) == 20
        assert broker.stats.puts.count == 10


async def test_answers_to_the_broker_do_not_count(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"client_requests_per_s_max": 1, "client_requests_burst_max": 5}
    async with running_broker(tmp_path, **limits) as broker, wire(broker.address) as client:
        answers = b"".join(frame_of_answer(number) for number in range(50))
        await client.send(answers)
        assert await burst(client, 5) == [0] * 5


def frame_of_answer(opaque: int) -> bytes:
    answer = send().to_command().reply()
    answer.opaque = opaque
    return b"".join(encode(answer))


async def test_without_a_limit_nobody_is_counted(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, wire(broker.address) as client:
        assert broker._server.rate is None
        assert await burst(client, 500) == [0] * 500
        assert {peer._bucket for peer in broker._server.peers} == {None}


async def test_the_rate_may_change_while_clients_are_there(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as broker,
        wire(broker.address) as client,
        BrokerClient(broker.address) as admin,
    ):
        assert await burst(client, 50) == [0] * 50
        text = b"clientRequestsPerSecondMax=1\nclientRequestsBurstMax=10\n"
        await admin.ask(UpdateBrokerConfig(text))
        assert (await burst(client, 50)).count(0) <= 12
        await admin.ask(UpdateBrokerConfig(b"clientRequestsPerSecondMax=0\n"))
        assert await burst(client, 50) == [0] * 50


# --- The server ---


async def test_no_more_connections_than_allowed(tmp_path: Path) -> None:
    async with running_broker(tmp_path, connections_max=3) as broker, healthy_client(broker.address) as well:
        await goes_on(well)
        async with wire(broker.address) as second, wire(broker.address) as third:
            await second.ask(frame(send()))
            await third.ask(frame(send()))
            async with wire(broker.address) as fourth:
                assert await fourth.is_closed()
        await until(lambda: len(broker._server.peers) == 1)
        async with wire(broker.address) as again:
            assert (await again.ask(frame(send()))).code == 0


async def test_frames_no_larger_than_allowed(tmp_path: Path) -> None:
    async with running_broker(tmp_path, frame_bytes_max=100_000) as broker, healthy_client(broker.address):
        async with wire(broker.address) as client:
            large = SendMessageV2("PG", "T", "TBW102", 4, 0, 0, 1, 0, body=bytes(99_000))
            assert (await client.ask(frame(large))).code == 0
            await client.send(prefix(100, 100_000))
            assert await client.is_closed()


async def test_unfinished_frames_of_all_clients_together(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, bytes_in_flight_max=4 << 20) as broker,
        healthy_client(broker.address),
    ):
        greedy = [await asyncio.open_connection("127.0.0.1", broker.port) for _ in range(8)]
        for _, writer in greedy:
            writer.write(prefix(100, 15 << 20) + bytes(1 << 20))
        await until(lambda: broker._server.bytes_in_flight <= 5 << 20 and len(broker._server.peers) <= 6)
        for _, writer in greedy:
            writer.close()
        await until(lambda: broker._server.bytes_in_flight == 0)


async def test_idle_connections_are_closed(tmp_path: Path) -> None:
    async with running_broker(tmp_path, idle_timeout_s=3) as broker, healthy_client(broker.address):
        async with wire(broker.address) as idle:
            assert await idle.is_closed(timeout_s=60)


# --- Tables ---


async def test_no_more_topics_than_allowed(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, topics_max=BUILT_IN_TOPICS + 5) as broker,
        BrokerClient(broker.address) as client,
    ):
        codes = []
        for number in range(10):
            request = SendMessageV2("PG", f"T{number}", "TBW102", 4, 0, 0, 1, 0, body=b"x")
            codes.append(await code_of(client, request))
        assert codes == [0] * 5 + [1] * 5
        assert len(broker.topics) == BUILT_IN_TOPICS + 5
        assert await code_of(client, update_topic("T0", 8)) == 0
        assert await code_of(client, update_topic("T9", 8)) == 1
        with pytest.raises(BrokerError, match="no more than 18 topics"):
            await client.heartbeat(consumer("NewGroup"))  # its retry topic is one too many


def update_topic(topic: str, queues: int) -> UpdateAndCreateTopic:
    return UpdateAndCreateTopic(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )


async def test_no_more_queues_than_allowed(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"topic_queues_max": 100, "queues_max": 1500}
    async with running_broker(tmp_path, **limits) as broker, BrokerClient(broker.address) as client:
        assert await code_of(client, update_topic("Wide", 100)) == 0
        assert await code_of(client, update_topic("Wider", 101)) == ResponseCode.INVALID_PARAMETER
        assert await code_of(client, update_topic("Wider", 1 << 30)) == ResponseCode.INVALID_PARAMETER
        codes = [await code_of(client, update_topic(f"T{number}", 100)) for number in range(10)]
        assert codes[0] == 0
        assert codes[-1] == 1


async def test_no_more_groups_than_allowed(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"groups_max": BUILT_IN_GROUPS + 3, "client_groups_max": 5}
    async with running_broker(tmp_path, **limits) as broker, BrokerClient(broker.address) as client:
        await client.send("T", b"x")
        for number in range(3):
            assert len(await client.pull("T", group=f"CG{number}")) == 1
        with pytest.raises(BrokerError) as caught:
            await client.pull("T", group="CG3")
        assert caught.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        with pytest.raises(BrokerError, match="groups of one client"):
            await client.heartbeat(producers=[f"PG{number}" for number in range(6)])
        await client.heartbeat(producers=[f"PG{number}" for number in range(5)])
        assert len(broker.groups) == BUILT_IN_GROUPS + 3


async def test_no_more_subscriptions_offsets_and_locks_than_allowed(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"group_subscriptions_max": 10, "offset_keys_max": 2, "locks_max": 3}
    async with running_broker(tmp_path, **limits) as broker, BrokerClient(broker.address) as client:
        with pytest.raises(BrokerError, match="subscriptions of one group"):
            await client.heartbeat(consumer("CG", [f"T{number}" for number in range(11)]))
        for number in range(4):
            await client.send(f"T{number}", b"x")
            await client.pull(f"T{number}")
        codes = [await code_of(client, UpdateConsumerOffset("CG", f"T{number}", 0, 1)) for number in range(4)]
        assert codes == [0, 0, 1, 1]
        queues = [MessageQueue("T0", "broker-a", number) for number in range(5)]
        request = LockRequest(client_id="c", consumer_group="CG", mq_set=queues)
        assert len((await client.ask(LockBatchMq(request))).queues) == 3
