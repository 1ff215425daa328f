"""The broker's life: what it needs to start, what it leaves behind, what it keeps, and how it lets go."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from skylark.broker import broker as broker_module
from skylark.broker.broker import Broker, request_rate, server_limits
from skylark.errors import BadStoreFile, BrokerError, ConnectFailed, StoreLocked
from skylark.protocol.codes import RequestCode
from skylark.protocol.requests.admin import UpdateBrokerConfig
from skylark.protocol.requests.offset import QueryConsumerOffset, UpdateConsumerOffset
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage
from skylark.protocol.requests.topic import DeleteTopicInBroker
from skylark.remoting.server import RequestRate
from skylark.settings import BrokerSettings
from skylark.settings.store import FlushMode
from skylark.store.message_store import MessageStore
from skylark.store.recovery import RecoveryReport
from tests.support.broker import BrokerClient, broker_settings, consumer, running_broker, until
from tests.support.simulated_disk import SimulatedDisk

SYNC = {"flush_mode": FlushMode.SYNC}


def abort_marker(directory: Path) -> Path:
    return directory / "abort"


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def disk_in_memory(root: Path) -> SimulatedDisk:
    """For the store alone; metadata lies on the real one."""
    disk = SimulatedDisk()
    disk.make_directory(root)
    return disk


# --- Starting ---


async def test_a_store_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as first, BrokerClient(first.address) as client:
        second = Broker(broker_settings(tmp_path))
        with pytest.raises(StoreLocked):
            await second.start()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", second.port)
        assert (await client.send("T", b"x")).queue_offset == 0
    assert not abort_marker(tmp_path).exists()


async def test_the_grammar_is_loaded_in_short_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the loop would wait five milliseconds again and again."""
    turns_s: list[float] = []
    usual_turn_s = sys.getswitchinterval()
    monkeypatch.setattr(broker_module, "WARM_UP_AFTER_S", 0.0)
    monkeypatch.setattr(broker_module, "compile_selector", lambda _: turns_s.append(sys.getswitchinterval()))
    async with running_broker(tmp_path):
        await until(lambda: len(turns_s) == 1 and sys.getswitchinterval() == usual_turn_s)
    assert turns_s == [pytest.approx(broker_module.WARM_UP_TURN_S)]


async def test_a_start_that_is_given_up_leaves_no_store_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, may_go_on, is_open = threading.Event(), threading.Event(), threading.Event()

    def open_slowly(store: MessageStore) -> RecoveryReport:
        opening.set()
        may_go_on.wait()
        try:
            return open_store(store)
        finally:
            is_open.set()

    open_store = MessageStore.open
    with monkeypatch.context() as slow:
        slow.setattr(MessageStore, "open", open_slowly)
        start = asyncio.create_task(Broker(broker_settings(tmp_path)).start())
        await until(opening.is_set)
        start.cancel()
        # Time enough to close what is not open yet.
        await asyncio.wait([start], timeout=0.2)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await start
        await until(is_open.is_set)
    assert not abort_marker(tmp_path).exists()
    async with running_broker(tmp_path):
        pass


@pytest.mark.parametrize("distance", [0, -2])
async def test_a_port_in_use_closes_the_store_again(tmp_path: Path, distance: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] - distance
        broker = Broker(broker_settings(tmp_path, port=port))
        with pytest.raises(OSError, match="address already in use"):
            await broker.start()
    assert not abort_marker(tmp_path).exists()
    async with running_broker(tmp_path):
        assert abort_marker(tmp_path).exists()


async def test_ports_that_belong_together(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        for port in (broker.port, broker.port - 2):
            async with BrokerClient(f"127.0.0.1:{port}") as client:
                await client.send("T", b"x")
        assert broker.addresses.replica_port == broker.port + 1
        assert broker.monitor.address


@pytest.mark.parametrize(
    "name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"]
)
async def test_metadata_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    config = tmp_path / "config"
    config.mkdir(parents=True)
    (config / name).write_bytes(b'{"half of')
    broker = Broker(broker_settings(tmp_path))
    with pytest.raises(BadStoreFile, match=name):
        await broker.start()
    assert (config / name).read_bytes() == b'{"half of'


async def test_metadata_falls_back_to_its_copy(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        await client.send("One", b"x")
        await until(lambda: "One" in text_of(tmp_path / "config/topics.json"))
        await client.send("Two", b"x")
        await until(lambda: "Two" in text_of(tmp_path / "config/topics.json"))
    (tmp_path / "config/topics.json").write_bytes(b"")
    async with running_broker(tmp_path) as broker:
        assert broker.topics.get("One") is not None
        assert broker.topics.get("Two") is not None  # from the store


async def test_topics_that_only_the_store_knows_are_adopted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        await client.send("T", b"kept", 3)
    for file in (tmp_path / "config").glob("topics.json*"):
        file.unlink()
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        assert "restored topic missing from topics.json topic=T" in caplog.text
        assert [message.body for message in await client.pull("T", 3)] == [b"kept"]


async def test_late_messages_bring_back_a_topic_that_was_lost_and_none_that_was_deleted(
    tmp_path: Path,
) -> None:
    async with (
        running_broker(tmp_path, store={"delay_levels": "1s"}) as broker,
        BrokerClient(broker.address) as client,
    ):
        for topic in ("Lost", "Deleted"):
            await client.send(topic, b"late", 2, properties={"DELAY": "1"})
        # As if the broker had been killed before it wrote the topic down.
        broker.topics._remove(broker.topics._topics["Lost"])
        await client.ask(DeleteTopicInBroker("Deleted"))
        await until(lambda: broker.store.max_offset("Deleted", 2) == 1)
        assert [message.body for message in await client.pull("Lost", 2)] == [b"late"]
        assert broker.topics.get("Deleted") is None


# --- Stopping, and starting again ---


async def test_what_is_kept_over_a_restart(tmp_path: Path) -> None:
    levels = {"delay_levels": "1s 1h"}
    async with running_broker(tmp_path, store=levels) as broker, BrokerClient(broker.address) as client:
        await client.send("T", b"one", 2)
        await client.pull("T", 2)
        await client.ask(UpdateConsumerOffset("CG", "T", 2, 1))
        await client.send("T", b"later", 2, properties={"DELAY": "2"})
        started_ms = broker.started_ms
    names = {path.name for path in (tmp_path / "config").iterdir()}
    assert {"topics.json", "subscriptionGroup.json", "consumerOffset.json"} <= names
    assert not abort_marker(tmp_path).exists()
    async with running_broker(tmp_path, store=levels) as broker, BrokerClient(broker.address) as client:
        assert broker.started_ms >= started_ms
        assert [message.body for message in await client.pull("T", 2)] == [b"one"]
        assert await client.ask(QueryConsumerOffset("CG", "T", 2)) == 1
        assert broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 1) == 1
        assert "CG" in broker.groups
        assert (await client.send("T", b"two", 2)).queue_offset == 1


async def test_offsets_are_saved_now_and_then(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        await client.send("T", b"x")
        await client.pull("T")
        await client.ask(UpdateConsumerOffset("CG", "T", 0, 1))
        file = tmp_path / "config/consumerOffset.json"
        await until(lambda: '"T@CG":{0:1}' in text_of(file))


async def test_many_new_topics_are_not_many_files(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, metadata_gather_ms=20) as broker,
        BrokerClient(broker.address) as client,
    ):
        await asyncio.gather(*(client.send(f"T{number}", b"x") for number in range(100)))
        await until(lambda: '"T99"' in text_of(tmp_path / "config/topics.json"))
        assert broker._topics_file.writes < 20


async def test_stopping_answers_who_waits_for_messages(tmp_path: Path) -> None:
    broker = Broker(broker_settings(tmp_path))
    await broker.start()
    async with BrokerClient(broker.address) as client:
        await client.send("T", b"x")
        request = PullMessage("CG", "T", 0, 1, 32, PULL_SUBSCRIPTION | PULL_SUSPEND, 0, 60_000, 0, "*")
        waiting = asyncio.create_task(client.ask(request, timeout_s=30))
        await until(lambda: broker.long_polling.count == 1)
        await broker.stop()
        assert (await waiting).code == 19


async def test_stopping_answers_who_waits_for_the_disk(tmp_path: Path) -> None:
    disk = disk_in_memory(tmp_path)
    broker = Broker(broker_settings(tmp_path, store=SYNC), disk=disk)
    await broker.start()
    async with BrokerClient(broker.address) as client:
        await client.send("T", b"first")
        await until(lambda: len(broker.store.waiters) == 0)
        disk.hold_sync = threading.Event()
        waiting = asyncio.create_task(client.send("T", b"second"))
        await until(lambda: len(broker.store.waiters) == 1)
        stopping = asyncio.create_task(broker.stop())
        await asyncio.sleep(0.05)
        disk.hold_sync.set()
        assert (await waiting).queue_offset == 1
        await stopping


async def test_stopping_does_not_wait_for_ever_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.store.message_store.STOP_TIMEOUT_S", 0.1)
    disk = disk_in_memory(tmp_path)
    broker = Broker(broker_settings(tmp_path, store=SYNC, shutdown_timeout_ms=200), disk=disk)
    await broker.start()
    async with BrokerClient(broker.address) as client:
        await client.send("T", b"first")
        await until(lambda: len(broker.store.waiters) == 0)
        disk.hold_sync = threading.Event()
        waiting = asyncio.create_task(client.send("T", b"second"))
        await until(lambda: len(broker.store.waiters) == 1)
        async with asyncio.timeout(60):
            await broker.stop()
        assert (await waiting).queue_offset == 1  # FLUSH_DISK_TIMEOUT says where, too
        disk.hold_sync.set()
    assert disk.exists(abort_marker(tmp_path))  # this was no clean exit


async def test_a_stopped_broker_takes_nothing(tmp_path: Path) -> None:
    broker = Broker(broker_settings(tmp_path))
    await broker.start()
    async with BrokerClient(broker.address) as client:
        await client.send("T", b"x")
        await broker.stop()
        with pytest.raises(ConnectFailed):
            await client.ask(QueryConsumerOffset("CG", "T", 0))


# --- Clients ---


async def test_who_is_silent_for_too_long_is_closed_and_the_others_hear_of_it(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, client_expiry_ms=300, client_scan_interval_ms=50) as broker,
        BrokerClient(broker.address, "silent@1") as silent,
        BrokerClient(broker.address, "lively@2") as lively,
    ):
        await silent.heartbeat(consumer(), producers=["PG"])
        await lively.heartbeat(consumer())

        async def lives_alone() -> bool:
            await lively.heartbeat(consumer())
            return broker.consumers.client_ids("CG") == ["lively@2"]

        await until(lives_alone)
        assert broker.producers.channel("silent@1") is None
        assert {command.code for command in lively.asked} == {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}


async def test_who_hangs_up_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address, "other@1") as other:
        async with BrokerClient(broker.address, "leaver@2") as leaver:
            await other.heartbeat(consumer())
            await leaver.heartbeat(consumer(), producers=["PG"])
            await leaver.send("T", b"x")
            request = PullMessage("CG", "T", 0, 1, 32, PULL_SUBSCRIPTION | PULL_SUSPEND, 0, 60_000, 0, "*")
            await leaver.tell(request)
            await until(lambda: broker.long_polling.count == 1)
            other.asked.clear()
        await until(lambda: broker.consumers.client_ids("CG") == ["other@1"])
        assert broker.long_polling.count == 0
        assert broker.producers.channel("leaver@2") is None
        await until(lambda: len(other.asked) == 1)


# --- Settings ---


def test_limits_of_the_server_are_settings() -> None:
    settings = BrokerSettings(
        frame_bytes_max=5000, connections_max=7, requests_in_flight_max=8, bytes_in_flight_max=1 << 21,
        write_high_water_bytes=9000, write_bytes_max=1 << 22, idle_timeout_s=33,
    )  # fmt: skip
    limits = server_limits(settings)
    assert limits.protocol.frame_bytes_max == 5000
    assert (limits.connections_max, limits.requests_in_flight_max) == (7, 8)
    assert (limits.bytes_in_flight_max, limits.idle_timeout_s) == (1 << 21, 33)
    assert (limits.write_high_water_bytes, limits.write_bytes_max) == (9000, 1 << 22)


def test_the_rate_of_clients_is_a_setting() -> None:
    assert request_rate(BrokerSettings()) is None
    settings = BrokerSettings(client_requests_per_s_max=5, client_requests_burst_max=9)
    assert request_rate(settings) == RequestRate(5, 9)


async def test_settings_changed_at_run_time_are_in_force_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=broker-a\n")
    async with (
        running_broker(tmp_path / "store", config_path=file) as broker,
        BrokerClient(broker.address) as client,
    ):
        await client.ask(UpdateBrokerConfig(b"clientRequestsPerSecondMax=1\nclientRequestsBurstMax=2\n"))
        assert broker._server.rate == RequestRate(1, 2)
        codes = [await code_of(client) for _ in range(4)]
        assert codes.count(2) >= 1
        await until(lambda: "clientRequestsPerSecondMax=1" in file.read_text())


async def code_of(client: BrokerClient) -> int:
    try:
        await client.send("T", b"x")
    except BrokerError as error:
        return error.code
    return 0


async def test_the_topics_file_is_rocketmqs(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        await client.send("T", b"x")
    document: dict[str, Any] = json.loads((tmp_path / "config/topics.json").read_text())
    assert set(document) == {"dataVersion", "topicConfigTable"}
    assert document["topicConfigTable"]["T"] == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
