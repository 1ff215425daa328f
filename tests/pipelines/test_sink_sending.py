"""The sender against a real broker: everything acknowledged, order kept, brokers that go away."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from skylark.arrow.batch_elements import encode_elements, property_texts, text_values
from skylark.broker.broker import Broker
from skylark.errors import RocketMQError, SettingsError
from skylark.model.message import StoredMessage, encode_properties
from skylark.namesrv.server import NameServer
from skylark.pipelines.cluster_client import ClusterClient
from skylark.pipelines.row_sender import OutMessage, PlainRows, RowSender
from tests.support.broker import BrokerClient, running_broker, running_cluster, running_name_server, until

QUEUES = 4


def message(number: int, **changes: object) -> OutMessage:
    values = {
        "topic": "T",
        "body": b"%d" % number,
        "properties": encode_properties({"UNIQ_KEY": f"{number:032X}"}),
        "row": number,
        **changes,
    }
    return OutMessage(**values)  # type: ignore[arg-type]


def send(name_server: str, messages: Sequence[OutMessage], **changes: object) -> RowSender:
    cluster = ClusterClient(name_server, request_timeout_s=30, retry_timeout_s=30)
    try:
        sender = RowSender(cluster, group="g", **changes)  # type: ignore[arg-type]
        for each in messages:
            sender.send(each)
        sender.finish()
        return sender
    finally:
        cluster.close()


@contextlib.asynccontextmanager
async def running(directory: Path, **changes: Any) -> AsyncIterator[tuple[NameServer, Broker]]:
    """A cluster whose name server knows its broker."""
    async with running_cluster(directory, **changes) as (names, broker):
        await until(lambda: asyncio.to_thread(is_known, names.address))
        yield names, broker


def is_known(name_server: str) -> bool:
    cluster = ClusterClient(name_server, request_timeout_s=30, retry_timeout_s=30)
    try:
        return bool(cluster.cluster_info().broker_addr_table)
    finally:
        cluster.close()


async def stored(client: BrokerClient, topic: str = "T", queues: int = QUEUES) -> list[list[StoredMessage]]:
    return [await client.pull_all(topic, queue_id) for queue_id in range(queues)]


async def test_every_message_arrives_once_and_queues_are_used_evenly(tmp_path: Path) -> None:
    async with running(tmp_path) as (names, broker), BrokerClient(broker.address) as client:
        await client.send("T", b"first", 0)
        sender = await asyncio.to_thread(send, names.address, [message(number) for number in range(3000)])
        queues = await stored(client)
        bodies = [each.body for queue in queues for each in queue]
        assert sorted(bodies) == sorted([b"first", *(b"%d" % number for number in range(3000))])
        assert min(len(queue) for queue in queues) >= 500
        assert (sender.rows, sender.bytes) == (3000, sum(len(str(number)) for number in range(3000)))
        assert queues[0][1].unique_key is not None


async def test_encoded_rows_arrive_once_and_a_bad_one_is_named(tmp_path: Path) -> None:
    def run(name_server: str, bodies: list[bytes], tags: list[str]) -> None:
        cluster = ClusterClient(name_server, request_timeout_s=30, retry_timeout_s=30)
        try:
            sender = RowSender(cluster, group="g")
            texts = property_texts([("TAGS", text_values(pa.array(tags)))], len(tags))
            elements = encode_elements(pa.array(bodies), texts)
            numbers = range(10, 10 + len(bodies))
            sender.send_encoded(PlainRows("T", elements, numbers, sum(map(len, bodies))))
            sender.finish()
            assert (sender.rows, sender.bytes) == (len(bodies), sum(map(len, bodies)))
        finally:
            cluster.close()

    bodies = [b"%d" % number for number in range(3073)]  # the last request has a single row
    async with running(tmp_path) as (names, broker), BrokerClient(broker.address) as client:
        await client.send("T", b"first", 0)
        await asyncio.to_thread(run, names.address, bodies, ["t"] * len(bodies))
        queues = await stored(client)
        assert sorted(each.body for queue in queues for each in queue) == sorted([b"first", *bodies])
        assert {each.tags for queue in queues for each in queue if each.body != b"first"} == {"t"}
        with pytest.raises(RocketMQError) as failed:
            await asyncio.to_thread(run, names.address, [b"a", b"b", b"c"], ["t", "t\0", "t"])
        assert "rows 11 to 11" in failed.value.__notes__[0]


async def test_a_sharding_key_keeps_order(tmp_path: Path) -> None:
    rows = [message(number, sharding_key=f"customer-{number % 7}") for number in range(2000)]
    async with running(tmp_path) as (names, broker), BrokerClient(broker.address) as client:
        await asyncio.to_thread(send, names.address, rows)
        seen: dict[int, int] = {}
        for queue_id, queue in enumerate(await stored(client)):
            numbers = [int(each.body) for each in queue]
            assert numbers == sorted(numbers)
            for number in numbers:
                assert seen.setdefault(number % 7, queue_id) == queue_id


async def test_rows_with_and_without_a_sharding_key_are_all_sent(tmp_path: Path) -> None:
    """Both kinds are gathered at once, now and then for the same queue."""
    rows = [message(number, sharding_key="customer" if number % 100 == 0 else None) for number in range(3000)]
    async with running(tmp_path) as (names, broker), BrokerClient(broker.address) as client:
        await asyncio.to_thread(send, names.address, rows)
        queues = await stored(client)
    assert sorted(int(each.body) for queue in queues for each in queue) == list(range(3000))
    [ordered] = [keyed for queue in queues if (keyed := [n for n in map(number_of, queue) if n % 100 == 0])]
    assert ordered == list(range(0, 3000, 100))


def number_of(each: StoredMessage) -> int:
    return int(each.body)


async def test_order_is_kept_with_times_of_birth_and_little_waits_in_memory(tmp_path: Path) -> None:
    rows = [message(number, sharding_key="one", born_ms=1_000_000 + number % 3) for number in range(300)]
    async with running(tmp_path) as (names, broker), BrokerClient(broker.address) as client:
        cluster = ClusterClient(names.address, request_timeout_s=30, retry_timeout_s=30)

        def run() -> int:
            sender = RowSender(cluster, group="g")
            for each in rows:
                sender.send(each)
            waiting = sum(len(batch.messages) for batch in sender._batches())
            sender.finish()
            return waiting

        waiting = await asyncio.to_thread(run)
        cluster.close()
        [queue] = [queue for queue in await stored(client) if queue]
    assert waiting == 1
    assert [number_of(each) for each in queue] == list(range(300))
    assert [each.born_timestamp for each in queue] == [row.born_ms for row in rows]


async def test_a_queue_can_be_chosen_and_must_exist(tmp_path: Path) -> None:
    async with running(tmp_path) as (names, broker), BrokerClient(broker.address) as client:
        await asyncio.to_thread(send, names.address, [message(number, queue_id=2) for number in range(10)])
        assert [len(queue) for queue in await stored(client)] == [0, 0, 10, 0]
        with pytest.raises(SettingsError, match="row 5: topic T has no queue 9"):
            await asyncio.to_thread(send, names.address, [message(5, queue_id=9)])


async def test_times_of_birth_are_kept_and_delays_travel_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as (names, broker), BrokerClient(broker.address) as client:
        rows = [message(number, born_ms=1_000_000 + number // 2, queue_id=0) for number in range(6)]
        await asyncio.to_thread(send, names.address, rows)
        born = [each.born_timestamp for each in await client.pull_all("T", 0)]
        assert born == [1_000_000, 1_000_000, 1_000_001, 1_000_001, 1_000_002, 1_000_002]
        delayed = message(9, properties=encode_properties({"DELAY": "1"}), is_single=True)
        await asyncio.to_thread(send, names.address, [message(8), delayed])
        await until(lambda: arrived(client, b"9"))


async def arrived(client: BrokerClient, body: bytes) -> bool:
    return any(each.body == body for queue in await stored(client) for each in queue)


async def test_a_bad_message_is_named_and_its_neighbours_are_sent(tmp_path: Path) -> None:
    rows = [message(number, queue_id=0) for number in range(20)]
    rows[7] = message(7, queue_id=0, properties=b"a\x01b\0\x02")
    async with running(tmp_path) as (names, broker), BrokerClient(broker.address) as client:
        with pytest.raises(RocketMQError) as failed:
            await asyncio.to_thread(send, names.address, rows)
        assert "rows 7 to 7" in failed.value.__notes__[0]
        assert [each.body for each in await client.pull_all("T", 0)][:7] == [b"%d" % n for n in range(7)]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (message(3, body=b""), "row 3 has an empty body"),
        (message(4, properties=b"x" * 40_000), "row 4 has 40000 bytes"),
    ],
)
async def test_what_no_broker_takes_is_refused_here(tmp_path: Path, row: OutMessage, sentence: str) -> None:
    async with running(tmp_path) as (names, _):
        with pytest.raises(SettingsError, match=sentence):
            await asyncio.to_thread(send, names.address, [row])


async def test_sends_go_on_when_the_broker_comes_back(tmp_path: Path) -> None:
    paused, resumed = threading.Event(), threading.Event()

    def run(name_server: str) -> None:
        cluster = ClusterClient(name_server, request_timeout_s=10, retry_timeout_s=60)
        sender = RowSender(cluster, group="g", attempts_max=30)
        for number in range(600):
            sender.send(message(number, queue_id=number % QUEUES))
            if number == 300:
                paused.set()
                assert resumed.wait(60)
        sender.finish()
        cluster.close()

    async with running_name_server(tmp_path) as names:
        store = tmp_path / "store"
        async with running_broker(store, name_servers=names.address) as broker:
            await until(lambda: asyncio.to_thread(is_known, names.address))
            port = int(broker.address.rpartition(":")[2])
            sending = asyncio.create_task(asyncio.to_thread(run, names.address))
            await until(paused.is_set)
        resumed.set()
        async with running_broker(store, name_servers=names.address, port=port) as broker:
            await asyncio.wait_for(sending, 180)
            async with BrokerClient(broker.address) as client:
                bodies = {each.body for queue in await stored(client) for each in queue}
    assert bodies == {b"%d" % number for number in range(600)}


async def test_a_topic_that_no_name_server_knows_for_a_while_is_waited_for(tmp_path: Path) -> None:
    """A broker that leaves in good order takes its topics with it."""
    pauses, is_away, is_back = [], threading.Event(), threading.Event()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            is_away.set()
            assert is_back.wait(60)

    def run(name_server: str) -> None:
        cluster = ClusterClient(name_server, request_timeout_s=10, retry_timeout_s=60)
        sender = RowSender(cluster, group="g", attempts_max=30, sleep=pause)
        sender.send(message(0))
        sender.finish()
        has_sent.set()
        assert has_left.wait(60)
        sender.send(message(1))
        sender.finish()
        cluster.close()

    has_sent, has_left = threading.Event(), threading.Event()
    async with running_name_server(tmp_path) as names:
        store = tmp_path / "store"
        async with running_broker(store, name_servers=names.address) as broker:
            await until(lambda: asyncio.to_thread(is_known, names.address))
            port = int(broker.address.rpartition(":")[2])
            sending = asyncio.create_task(asyncio.to_thread(run, names.address))
            await until(has_sent.is_set)
        has_left.set()
        await until(lambda: is_away.is_set() or sending.done())
        async with running_broker(store, name_servers=names.address, port=port) as broker:
            is_back.set()
            await asyncio.wait_for(sending, 60)
            async with BrokerClient(broker.address) as client:
                assert {each.body for queue in await stored(client) for each in queue} == {b"0", b"1"}


async def test_the_rate_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as (names, broker), BrokerClient(broker.address) as client:
        started = time.monotonic()
        rows = [message(number) for number in range(31)]
        await asyncio.to_thread(send, names.address, rows, rows_per_second=50.0)
        assert time.monotonic() - started >= 0.6
        assert sum(len(queue) for queue in await stored(client)) == 31


async def test_an_unknown_topic_is_made_unless_brokers_do_not(tmp_path: Path) -> None:
    async with running(tmp_path, auto_create_topics=False) as (names, _):
        with pytest.raises(SettingsError, match="unknown topic T, and automatic creation is off"):
            await asyncio.to_thread(send, names.address, [message(1)])
