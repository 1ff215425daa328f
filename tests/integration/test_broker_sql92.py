"""SQL92 filters on a running broker: what pulls bring, what waits, what restarts keep."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark.errors import BrokerError
from skylark.model import java
from skylark.model.record import decode_all
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage
from tests.support.broker import BrokerClient, consumer, running_broker, subscription, until

SQL = "a > 5 AND b = 'x'"


async def pull(
    client: BrokerClient,
    *,
    sys_flag: int = 0,
    suspend_ms: int = 0,
    sub_version: int = 1,
    queue_offset: int = 0,
) -> tuple[int, list[bytes], int]:
    request = PullMessage(
        consumer_group="CG",
        topic="T",
        queue_id=0,
        queue_offset=queue_offset,
        max_msg_nums=32,
        sys_flag=sys_flag | (PULL_SUSPEND if suspend_ms else 0),
        commit_offset=0,
        suspend_timeout_ms=suspend_ms,
        sub_version=sub_version,
        subscription=SQL if sys_flag & PULL_SUBSCRIPTION else None,
        expression_type="SQL92",
    )
    result = await client.ask(request, timeout_s=30)
    bodies = [message.body for message in decode_all(result.records)] if result.records else []
    return result.code, bodies, result.reply.next_begin_offset


async def send_some(client: BrokerClient) -> None:
    for number in range(10):
        properties = {"a": str(number), "b": "x" if number % 2 else "y", "TAGS": "TagA"}
        await client.send("T", b"%d" % number, properties=properties)


@pytest.mark.parametrize("sys_flag", [0, PULL_SUBSCRIPTION])
async def test_sf_122_only_matches_are_pulled(tmp_path: Path, sys_flag: int) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        await send_some(client)
        await client.heartbeat(consumer("CG", [subscription("T", SQL, 1, "SQL92")]))
        assert await pull(client, sys_flag=sys_flag) == (0, [b"7", b"9"], 10)


async def test_sf_022_122_colliding_tags_pass_and_are_told_apart_by_their_text(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        for tag in ("Aa", "BB", "C"):
            await client.send("T", tag.encode(), properties={"TAGS": tag})
        found = await client.pull("T", expression="Aa")
        assert [(message.body, message.tags) for message in found] == [(b"Aa", "Aa"), (b"BB", "BB")]


async def test_a_pull_waits_for_a_match(tmp_path: Path) -> None:
    async with running_broker(tmp_path, hold_check_interval_ms=60_000) as broker:
        async with BrokerClient(broker.address) as client, BrokerClient(broker.address, "other@2") as sender:
            await client.send("T", b"first")
            await client.heartbeat(consumer("CG", [subscription("T", SQL, 1, "SQL92")]))
            waiting = asyncio.create_task(pull(client, suspend_ms=25_000, queue_offset=1))
            await until(lambda: broker.long_polling.count == 1)
            await sender.send("T", b"no", properties={"a": "1"})
            await sender.send("T", b"yes", properties={"a": "7", "b": "x"})
            assert await waiting == (0, [b"yes"], 3)


async def test_bad_expressions_are_refused_with_the_place(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        await client.send("T", b"1")
        await client.heartbeat(consumer("CG", [subscription("T", "a = 1 AND", 1, "SQL92")]))
        with pytest.raises(BrokerError, match=r"unexpected end.*at character 10") as caught:
            await pull(client)
        assert caught.value.code == ResponseCode.FILTER_DATA_NOT_EXIST


async def test_filters_are_kept_over_restarts(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        async with BrokerClient(broker.address) as client:
            await client.heartbeat(consumer("CG", [subscription("T", SQL, 7, "SQL92")]))
        await until(lambda: (data := broker.consumer_filters.get("CG", "T")) is not None and data.is_dead)
    saved = java.loads((tmp_path / "config/consumerFilter.json").read_bytes())
    kept = saved["filterDataByTopic"]["T"]["groupFilterData"]["CG"]
    assert (kept["expression"], kept["clientVersion"], kept["dead"]) == (SQL, 7, True)
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        data = broker.consumer_filters.get("CG", "T")
        assert data is not None
        assert (data.expression, data.born_time) == (SQL, kept["bornTime"])
        await send_some(client)
        await client.heartbeat(consumer("CG", [subscription("T", SQL, 8, "SQL92")]))
        assert (data.is_dead, data.client_version) == (False, 8)
        assert await pull(client, sub_version=8) == (0, [b"7", b"9"], 10)
