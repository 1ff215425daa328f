"""The producer against our own servers, row by row of the mission; the wire is seen through proxies."""

from __future__ import annotations

import asyncio
import os
import re
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from skylark import aio
from skylark.client.producer.async_sender import unique_ids
from skylark.client.producer.producer import Producer
from skylark.client.producer.send_hooks import SendContext, SendHook
from skylark.client.producer.send_receipt import SendReceipt, SendStatus
from skylark.client.producer.transaction_producer import AsyncTransactionProducer, TransactionState
from skylark.clock import SystemClock
from skylark.errors import (
    AlreadyStarted,
    BadName,
    BrokerError,
    ClientClosed,
    GroupInUse,
    NoRoute,
    RequestTimeout,
    SendFailed,
)
from skylark.model.body import plain_body
from skylark.model.message import Message, SystemFlag, decode_properties
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import RequestCode
from skylark.protocol.requests.group import GetProducerConnectionList
from skylark.settings.client import ClientSettings, ProducerSettings
from skylark.testing.embedded_servers import EmbeddedServers
from tests.support.broker import BrokerClient, offset_id, running_cluster, until
from tests.support.client_rig import QUICK, Cluster, cluster
from tests.unit.protocol.golden_frames import captured

TOPIC = "orders"
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
SEND = RequestCode.SEND_MESSAGE_V2
HEARTBEAT = RequestCode.HEART_BEAT
IMPATIENT = replace(QUICK, request_timeout_ms=2000)
PATIENT = ProducerSettings(send_timeout_ms=60_000)
"""For thousands of messages at once, on a machine that has other things to do."""


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Cluster]:
    """One broker with a topic of four queues."""
    async with cluster(tmp_path) as rig:
        await rig.create_topic(TOPIC)
        yield rig


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two brokers with a topic of four queues each."""
    async with cluster(tmp_path, "broker-a", "broker-b") as rig:
        await rig.create_topic(TOPIC)
        yield rig


def message(number: int = 0, **members: object) -> Message:
    return Message(TOPIC, b"body %d" % number, **members)  # type: ignore[arg-type]


def test_sf_052_three_lines_start_and_send() -> None:
    with EmbeddedServers() as servers:
        with Producer("shop", namesrv=servers.namesrv) as producer:
            receipt = producer.send(Message("orders", b"hello", tags="created", keys=["42"]))
    assert receipt.is_ok
    assert receipt.status is SendStatus.OK
    assert receipt.queue.topic == "orders"


async def test_sf_053_a_producer_is_started_once_and_used_between_start_and_stop(one: Cluster) -> None:
    producer = aio.Producer("PG", namesrv=one.namesrv)
    with pytest.raises(ClientClosed):
        await producer.send(message())
    await producer.start()
    with pytest.raises(AlreadyStarted, match="service state not OK, maybe started once, RUNNING"):
        await producer.start()
    await producer.send(message())
    await producer.stop()
    await producer.stop()
    with pytest.raises(AlreadyStarted, match="SHUTDOWN_ALREADY"):
        await producer.start()
    with pytest.raises(ClientClosed):
        await producer.send(message())


async def test_sf_053_the_blocking_producer_has_the_same_states(one: Cluster) -> None:
    def use() -> None:
        producer = Producer("PG", namesrv=one.namesrv)
        with pytest.raises(ClientClosed):
            producer.send(message())
        producer.start()
        with pytest.raises(AlreadyStarted, match="maybe started once, RUNNING"):
            producer.start()
        producer.send(message())
        producer.stop()
        with pytest.raises(AlreadyStarted, match="SHUTDOWN_ALREADY"):
            producer.start()
        with pytest.raises(ClientClosed):
            producer.send(message())
        with pytest.raises(ClientClosed):
            producer.submit(message())

    await asyncio.to_thread(use)


@pytest.mark.parametrize("group", ["", " ", "a b", "x" * 121, "DEFAULT_PRODUCER"])
def test_sf_054_a_group_that_cannot_be_one_is_refused(group: str) -> None:
    with pytest.raises(BadName):
        aio.Producer(group, namesrv="127.0.0.1:9876")


async def test_sf_054_055_one_group_once_per_instance_and_connections_are_shared(one: Cluster) -> None:
    shared = ClientSettings(instance_name="shop")
    async with aio.Producer("PG", namesrv=one.namesrv, client=shared) as first:
        second = aio.Producer("PG", namesrv=one.namesrv, client=shared)
        with pytest.raises(GroupInUse, match=re.escape("The producer group[PG] has been created before")):
            await second.start()
        async with aio.Producer("PG2", namesrv=one.namesrv, client=shared) as third:
            assert third.client_id == first.client_id
            await first.send(message())
            await third.send(message())
            assert one.proxies["broker-a"].connections == 1
            assert one.names.connections == 1
        await first.send(message())  # the shared connections are still there
    assert one.proxies["broker-a"].connections == 1


async def test_sf_055_the_client_id_holds_the_process_and_differs_between_producers(one: Cluster) -> None:
    async with (
        aio.Producer("PG", namesrv=one.namesrv) as first,
        aio.Producer("PG", namesrv=one.namesrv) as second,
    ):
        assert re.fullmatch(rf"[\d.]+@{os.getpid()}#\d+", first.client_id)
        assert first.client_id != second.client_id
    named = ClientSettings(instance_name="shop", unit_name="u1", client_ip="10.1.2.3")
    async with aio.Producer("PG", namesrv=one.namesrv, client=named) as third:
        assert third.client_id == "10.1.2.3@shop@u1"


async def until_known(rig: Cluster, group: str, client_id: str) -> None:
    """Wait until the broker knows this client, and no other, as a producer of the group."""
    async with BrokerClient(rig.brokers["broker-a"].address) as client:

        async def is_known() -> bool:
            try:
                found = await client.ask(GetProducerConnectionList(group))
            except BrokerError:  # it has not heard of the group yet
                return False
            return [connection.client_id for connection in found.connection_set] == [client_id]

        await until(is_known)


async def test_sf_056_brokers_hear_of_a_producer_and_again_every_heartbeat(one: Cluster) -> None:
    assert ClientSettings().heartbeat_interval_ms == 30_000
    async with aio.Producer("PG", namesrv=one.namesrv, client=QUICK) as producer:
        assert one.proxies["broker-a"].asked(HEARTBEAT) == []
        await producer.send(message())
        await until(lambda: len(one.proxies["broker-a"].asked(HEARTBEAT)) >= 1)
        await until_known(one, "PG", producer.client_id)
        await until(lambda: len(one.proxies["broker-a"].asked(HEARTBEAT)) >= 4)
    unregistered = one.proxies["broker-a"].asked(RequestCode.UNREGISTER_CLIENT)
    assert [command.fields["producerGroup"] for command in unregistered] == ["PG"]


@pytest.mark.parametrize("face", ["asyncio", "blocking"])
async def test_sf_056_traces_appear_when_they_are_enabled(tmp_path: Path, face: str) -> None:
    assert not ProducerSettings().trace
    assert ProducerSettings().trace_flush_ms == 5000
    settings = ProducerSettings(trace=True, trace_flush_ms=50)
    sent = [message(number, tags="t", keys=[f"k{number}"]) for number in range(300)]

    def use(namesrv: str) -> list[SendReceipt]:
        with Producer("PG", namesrv=namesrv, settings=settings) as producer:
            return [producer.send(each) for each in sent]

    async with cluster(tmp_path, trace_topic=True) as rig:
        await rig.create_topic(TOPIC)
        if face == "blocking":
            receipts = await asyncio.to_thread(use, rig.namesrv)
        else:
            async with aio.Producer("PG", namesrv=rig.namesrv, settings=settings) as producer:
                receipts = [await producer.send(each) for each in sent]
        stored = await rig.stored("RMQ_SYS_TRACE_TOPIC", queues=1)
        address = rig.proxies["broker-a"].address
    rows = {
        row.split("\x01")[5]: row.split("\x01")
        for each in stored
        for row in each.body.decode().split("\x02")
        if row
    }
    assert rows.keys() == {receipt.message_id for receipt in receipts}
    for number, receipt in enumerate(receipts):
        row = rows[receipt.message_id]
        assert row[0] == "Pub"
        assert row[2:5] == ["DefaultRegion", "PG", TOPIC]
        assert row[6:10] == ["t", f"k{number}", address, str(len(sent[number].body))]
        assert row[11:] == ["0", receipt.offset_message_id, "true"]
    assert rows.keys() <= {key for each in stored for key in each.keys}


async def test_sf_057_the_namespace_is_put_on_group_and_topic(one: Cluster) -> None:
    await one.create_topic("n%orders", 2)
    client = replace(QUICK, namespace="n")
    async with aio.Producer("PG", namesrv=one.namesrv, client=client) as producer:
        receipt = await producer.send(message())
        queues = await producer.queues(TOPIC)
        await producer.send(message(), queue=queues[1])
        chosen = await producer.send(message(), selector=lambda queues, *_: queues[0])
        await until(lambda: len(one.proxies["broker-a"].asked(HEARTBEAT)) >= 1)
        await until_known(one, "n%PG", producer.client_id)
    assert receipt.queue.topic == chosen.queue.topic == TOPIC
    assert queues == [MessageQueue(TOPIC, "broker-a", number) for number in range(2)]
    stored = await one.stored("n%orders", queues=2)
    assert len(stored) == 3
    assert {each.properties["INSTANCE_ID"] for each in stored} == {"n"}


async def test_sf_058_sf_059_sf_060_sf_070_the_first_send_fetches_route_and_connection_and_both_stay(
    one: Cluster,
) -> None:
    settled = ClientSettings(route_refresh_interval_ms=600_000)  # a slow machine sends for longer than 30 s
    async with aio.Producer("PG", namesrv=one.namesrv, settings=PATIENT, client=settled) as producer:
        assert one.names.requests == []
        assert one.proxies["broker-a"].connections == 0
        futures = [await producer.submit(message(number)) for number in range(1000)]
        await asyncio.gather(*futures)
        assert [command.fields["topic"] for command in one.names.asked(ROUTE)] == [TOPIC]
        futures = [await producer.submit(message(number)) for number in range(9000)]
        await asyncio.gather(*futures)
    assert len(one.names.asked(ROUTE)) == 1
    assert one.proxies["broker-a"].connections == 1
    assert len(one.proxies["broker-a"].asked(SEND)) == 10_000


async def test_sf_070_the_blocking_producer_sends_over_one_connection_too(one: Cluster) -> None:
    """A second one carries heartbeats and the requests of brokers, which no sending thread could wait for."""
    settled = ClientSettings(route_refresh_interval_ms=600_000)

    def use() -> None:
        with Producer("PG", namesrv=one.namesrv, settings=PATIENT, client=settled) as producer:
            threads = [
                threading.Thread(target=lambda: [producer.send(message()) for _ in range(2000)])
                for _ in range(5)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    await asyncio.to_thread(use)
    proxy = one.proxies["broker-a"]
    assert len(one.names.asked(ROUTE)) == 1
    [heartbeats, sends] = sorted(proxy.carried, key=lambda codes: codes[SEND])
    assert sends == {SEND: 10_000}
    assert heartbeats[RequestCode.HEART_BEAT] > 0 and not heartbeats[SEND]


async def test_sf_061_new_queues_are_used_after_the_next_refresh(
    one: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    assert ClientSettings().route_refresh_interval_ms == 30_000
    caplog.set_level("INFO", "skylark.client.session.session")
    async with aio.Producer("PG", namesrv=one.namesrv, client=QUICK) as producer:
        await producer.send(message())
        await until(lambda: len(one.names.asked(ROUTE)) >= 3)
        changes = [line for line in caplog.messages if line.startswith("route changed")]
        assert len(changes) == 1, "a route that is as before changes nothing"
        await one.create_topic(TOPIC, 8)

        async def uses_new_queues() -> bool:
            return (await producer.send(message())).queue.queue_id >= 4

        await until(uses_new_queues)


@pytest.mark.nightly
async def test_sf_056_061_heartbeats_and_routes_every_thirty_seconds(one: Cluster) -> None:
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        started = asyncio.get_running_loop().time()
        await producer.send(message())
        await until(lambda: len(one.proxies["broker-a"].asked(HEARTBEAT)) >= 1)
        await until_known(one, "PG", producer.client_id)
        await one.create_topic(TOPIC, 8)

        async def uses_new_queues() -> bool:
            await asyncio.sleep(0.2)
            return (await producer.send(message())).queue.queue_id >= 4

        await until(uses_new_queues, timeout_s=40)
        elapsed_s = asyncio.get_running_loop().time() - started
        assert 29 < elapsed_s < 35
        beats = len(one.proxies["broker-a"].asked(HEARTBEAT))
        await until(lambda: len(one.proxies["broker-a"].asked(HEARTBEAT)) > beats, timeout_s=35)


async def test_sf_062_an_unknown_topic_is_created_with_four_queues(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as (name_server, broker):
        async with aio.Producer("PG", namesrv=name_server.address) as producer:
            receipts = [await producer.send(Message("brand-new", b"x")) for _ in range(8)]
        config = broker.topics.get("brand-new")
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums) == (4, 4)
        assert {receipt.queue.queue_id for receipt in receipts} == {0, 1, 2, 3}


async def test_sf_062_without_automatic_creation_there_is_no_route(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, auto_create_topics=False) as (name_server, _):
        async with aio.Producer("PG", namesrv=name_server.address) as producer:
            with pytest.raises(NoRoute, match="No route info of this topic: brand-new"):
                await producer.send(Message("brand-new", b"x"))
            with pytest.raises(NoRoute, match="No route info of this topic: brand-new"):
                await producer.send_oneway(Message("brand-new", b"x"))


async def test_sf_063_a_topic_on_two_brokers_has_eight_queues(two: Cluster) -> None:
    async with aio.Producer("PG", namesrv=two.namesrv) as producer:
        assert await producer.queues(TOPIC) == [
            MessageQueue(TOPIC, broker, number) for broker in ("broker-a", "broker-b") for number in range(4)
        ]


async def test_sf_064_queues_take_turns(two: Cluster) -> None:
    async with aio.Producer("PG", namesrv=two.namesrv, settings=PATIENT) as producer:
        futures = [await producer.submit(message(number)) for number in range(8000)]
        receipts = await asyncio.gather(*futures)
    counts = Counter(receipt.queue for receipt in receipts)
    assert len(counts) == 8
    assert all(abs(count - 1000) <= 1 for count in counts.values()), counts


async def test_sf_064_each_thread_takes_turns_of_its_own(two: Cluster) -> None:
    def use() -> list[Counter[MessageQueue]]:
        with Producer("PG", namesrv=two.namesrv, settings=PATIENT) as producer:
            found: list[Counter[MessageQueue]] = []

            def send() -> None:
                found.append(Counter(producer.send(message()).queue for _ in range(80)))

            threads = [threading.Thread(target=send) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return found

    for counts in await asyncio.to_thread(use):
        assert set(counts.values()) == {10}


async def test_sf_065_a_send_that_fails_goes_to_another_broker(two: Cluster) -> None:
    two.proxies["broker-b"].is_silent = True
    settings = ProducerSettings(attempt_timeout_ms=1000, send_timeout_ms=60_000)
    async with aio.Producer("PG", namesrv=two.namesrv, settings=settings, client=IMPATIENT) as producer:
        receipts = [await producer.send(message(number)) for number in range(12)]
    assert {receipt.queue.broker_name for receipt in receipts} == {"broker-a"}
    tried = [command.fields["n"] for command in two.proxies["broker-b"].asked(SEND)]
    assert 2 <= len(tried) <= 6, "without the table every send that is b's turn tries it once more"


class Failures(SendHook):
    """Keeps the brokers of attempts that failed."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def after(self, context: SendContext) -> None:
        if context.error is not None:
            self.failures.append(context.queue.broker_name)


async def test_sf_065_with_the_latency_table_a_failed_broker_is_left_alone(two: Cluster) -> None:
    two.proxies["broker-b"].shut()
    settings = ProducerSettings(avoid_slow_brokers=True, send_timeout_ms=20_000)
    hook = Failures()
    async with aio.Producer("PG", namesrv=two.namesrv, settings=settings) as producer:
        producer.add_hook(hook)
        receipts = [await producer.send(message(number)) for number in range(200)]
    assert {receipt.queue.broker_name for receipt in receipts} == {"broker-a"}
    assert len(hook.failures) <= 1, "one failure, then none for the table's time"


async def test_sf_066_an_address_that_is_missing_is_asked_for_again(one: Cluster) -> None:
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        await producer.send(message())
        before = len(one.names.asked(ROUTE))
        producer.session.routes.brokers().clear()
        assert (await producer.send(message())).is_ok
        assert len(one.names.asked(ROUTE)) == before + 1


def test_sf_067_a_million_ids_of_eight_threads_are_all_different() -> None:
    found: list[list[str]] = []
    clock = SystemClock()

    def make() -> None:
        ids = unique_ids()
        found.append([ids.next(clock.now_ms()) for _ in range(125_000)])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [each for part in found for each in part]
    assert len(every) == len(set(every)) == 1_000_000
    assert all(re.fullmatch(r"[0-9A-F]{32}", each) for each in every[::997])


@pytest.mark.parametrize(("size", "flag"), [(4095, 0), (4096, 0x301), (4097, 0x301)])
async def test_sf_068_bodies_of_4_kib_are_compressed(one: Cluster, size: int, flag: int) -> None:
    body = os.urandom(64) * (size // 64 + 1)
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        await producer.send(Message(TOPIC, body[:size]))
    [stored] = await one.stored(TOPIC)
    assert stored.sys_flag & ~SystemFlag.BORN_HOST_V6 == flag
    assert (stored.body == body[:size]) is (flag == 0)
    assert plain_body(stored) == body[:size]


async def test_sf_069_the_request_carries_all_that_java_sends(one: Cluster) -> None:
    before_ms = SystemClock().now_ms()
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        queue = MessageQueue(TOPIC, "broker-a", 2)
        receipt = await producer.send(
            message(7, tags="TagA", keys=["k1", "k2"], properties={"a": "0"}, flag=5), queue=queue
        )
    [sent] = one.proxies["broker-a"].asked(SEND)
    fields = dict(sent.fields)
    born_ms = int(fields.pop("g"))
    properties = decode_properties(fields.pop("i").encode())
    assert before_ms <= born_ms <= SystemClock().now_ms()
    assert fields == {
        "a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": "2", "f": "0", "h": "5", "j": "0", "k": "false",
        "m": "false", "n": "broker-a",
    }  # fmt: skip
    assert properties == {
        "a": "0", "KEYS": "k1 k2", "UNIQ_KEY": receipt.message_id, "WAIT": "true", "TAGS": "TagA",
    }  # fmt: skip
    assert (sent.language, sent.version, sent.body) == ("PYTHON", 479, b"body 7")


async def test_sf_069_the_request_of_a_half_message_is_marked_as_prepared(one: Cluster) -> None:
    """Golden: the same letters as in captured half messages of the Java producer, and its flag."""

    def commit(*_: object) -> TransactionState:
        return TransactionState.COMMIT

    before_ms = SystemClock().now_ms()
    async with AsyncTransactionProducer("PG", execute=commit, check=commit, namesrv=one.namesrv) as producer:
        result = await producer.send_in_transaction(message(7, tags="TagA", flag=5))
    [sent] = one.proxies["broker-a"].asked(SEND)
    [golden, *_] = [frame.header["extFields"] for frame in captured("transaction") if frame.code == SEND]
    fields = dict(sent.fields)
    assert fields.keys() == golden.keys() == set("abcdefghijkmn")  # l, the limit of retries, is for retries
    assert fields["f"] == golden["f"] == str(SystemFlag.TRANSACTION_PREPARED.value) == "4"
    properties = decode_properties(fields.pop("i").encode())
    assert before_ms <= int(fields.pop("g")) <= SystemClock().now_ms()
    assert fields.pop("e") == str(result.receipt.queue.queue_id)
    assert fields == {
        "a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "f": "4", "h": "5", "j": "0", "k": "false",
        "m": "false", "n": "broker-a",
    }  # fmt: skip
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "PG")
    assert properties["UNIQ_KEY"] == result.receipt.message_id


async def test_sf_069_a_batch_is_marked_and_holds_its_messages(one: Cluster) -> None:
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        receipts = await producer.send_batch([message(number, keys=[str(number)]) for number in range(3)])
    [sent] = one.proxies["broker-a"].asked(RequestCode.SEND_BATCH_MESSAGE)
    assert sent.fields["m"] == "true"
    assert struct.unpack_from(">iiiii", sent.body)[1:3] == (0, 0)
    assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2]
    assert len({receipt.message_id for receipt in receipts}) == 3
    stored = await one.stored(TOPIC)
    assert [each.body for each in stored] == [b"body 0", b"body 1", b"body 2"]
    assert [offset_id(each) for each in stored] == [each.offset_message_id for each in receipts]


async def test_an_answer_that_never_comes_is_a_timeout_over_all_attempts(one: Cluster) -> None:
    settings = ProducerSettings(send_timeout_ms=1000)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings, client=QUICK) as producer:
        # A slow machine may need longer than the timeout for the route and the connection.
        await producer.send(message(), timeout_ms=20_000)
        one.proxies["broker-a"].is_silent = True
        with pytest.raises(SendFailed) as raised:
            await producer.send(message())
        one.proxies["broker-a"].cut()
    error = raised.value
    assert isinstance(error.__cause__, RequestTimeout)
    assert error.maybe_stored
    assert (error.topic, error.brokers) == (TOPIC, ("broker-a",))
    assert 1000 <= error.elapsed_ms < 30_000
