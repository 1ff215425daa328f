"""`skylark store backup` while brokers work: what was acknowledged before is there and can be served."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skylark import ClientSettings, ConsumeFrom, Message, Producer, PullConsumer, PullConsumerSettings
from skylark.store.backup import BackupRefused, back_up
from skylark.store.message_store import MessageStore
from skylark.store.store_reader import StoreReader
from skylark.store.verification import verify
from tests.integration.test_cli_store import live_writer, skylark
from tests.support import live_writer as writing
from tests.support.broker import BrokerClient, running_broker, until
from tests.support.skylark_servers import SMALL_STORE, SkylarkServers

TOPIC = "orders"
ACKNOWLEDGED = 500
LIVE_S = 4.0
CLEAN_INTERVAL_MS = 1000
"""Every so often files expire, while they are copied, too."""
TIMEOUT_S = 120
SMALL_GEOMETRY = (
    "--index-slots", str(SMALL_STORE["maxHashSlotNum"]), "--index-items", str(SMALL_STORE["maxIndexNum"])
)  # fmt: skip


class Load:
    """Sends as fast as one producer can; `acknowledged` are the numbers that the broker has taken."""

    def __init__(self, namesrv: str) -> None:
        self.acknowledged: list[int] = []
        self._namesrv = namesrv
        self._stopped = threading.Event()

    def run(self) -> None:
        client = ClientSettings(instance_name="load")
        with Producer("load", namesrv=self._namesrv, client=client) as producer:
            number = 0
            while not self._stopped.is_set():
                message = Message(TOPIC, b"%d" % number, keys=[f"k{number}"])
                if producer.send(message, timeout_ms=30_000).is_ok:
                    self.acknowledged.append(number)
                number += 1

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.acknowledged) < count:
            assert time.monotonic() < deadline, "nothing is acknowledged"
            time.sleep(0.01)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run, name="load")
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()


def numbers_at(namesrv: str, wanted: set[int]) -> set[int]:
    """What can be consumed there, until all that is wanted has come."""
    found: set[int] = set()
    settings = PullConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
    with PullConsumer("reader", namesrv=namesrv, settings=settings) as consumer:
        consumer.subscribe(TOPIC)
        deadline = time.monotonic() + TIMEOUT_S
        while not wanted <= found and time.monotonic() < deadline:
            found |= {int(message.body) for message in consumer.poll(500)}
    return found


@pytest.mark.timeout(600)
def test_copy_made_under_load_has_all_that_was_acknowledged_and_is_served(tmp_path: Path) -> None:
    with SkylarkServers(tmp_path / "first", {}) as servers:
        load = Load(servers.name_server)
        with load.running():
            load.wait_for(ACKNOWLEDGED)
            for _ in range(2):  # the second time it is brought up to date
                expected = set(load.acknowledged)
                done = skylark("store", "backup", servers.home / "data", tmp_path / "copy", "--json")
                assert done.returncode == 0, done.stderr
                assert json.loads(done.stdout)["is_running"] is True
                load.wait_for(len(expected) + ACKNOWLEDGED)
        servers.kill()
    shutil.rmtree(tmp_path / "first")
    checked = skylark("store", "verify", tmp_path / "copy", *SMALL_GEOMETRY)
    assert checked.returncode == 0, checked.stdout
    (tmp_path / "second").mkdir()
    shutil.copytree(tmp_path / "copy", tmp_path / "second" / "data")
    with SkylarkServers(tmp_path / "second", {}) as servers:
        assert expected <= numbers_at(servers.name_server, expected)
        found = skylark("message", "key", TOPIC, f"k{max(expected)}", "--namesrv", servers.name_server)
        assert found.returncode == 0, found.stderr
        assert servers.stop() == 0
    checked = skylark("store", "verify", tmp_path / "second" / "data", *SMALL_GEOMETRY)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.timeout(600)
def test_store_whose_files_come_and_go_is_copied_again_and_again(tmp_path: Path) -> None:
    root, copy = tmp_path / "live", tmp_path / "copy"
    rounds = 0
    with live_writer(root, CLEAN_INTERVAL_MS):
        deadline = time.monotonic() + LIVE_S
        while time.monotonic() < deadline or rounds < 4:
            try:
                report = back_up(root, copy, link=rounds % 2 == 1)
            except BackupRefused as refused:
                assert "expired meanwhile" in refused.reason  # faster than this machine can copy
                continue
            reader = StoreReader(copy, index_slots=writing.SLOTS, index_items=writing.ITEMS)
            assert reader.end_physical_offset == report.end_physical_offset
            assert verify(reader).findings == []
            rounds += 1
    shutil.copytree(copy, tmp_path / "used")
    store = MessageStore(writing.settings(tmp_path / "used"))
    recovered = store.open()
    assert recovered.end == report.end_physical_offset
    assert not recovered.damages
    store.close()
    assert verify(
        StoreReader(tmp_path / "used", index_slots=writing.SLOTS, index_items=writing.ITEMS)
    ).is_clean


async def test_timed_and_half_messages_are_in_the_copy_of_a_running_broker(tmp_path: Path) -> None:
    due_ms = time.time_ns() // 1_000_000 + 3_600_000
    async with running_broker(tmp_path / "first") as broker, BrokerClient(broker.address) as client:
        for number in range(3):
            properties = {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"K{number}"}
            await client.send("T", b"%d" % number, properties=properties)
        await until(lambda: broker.timers.waiting == 3)
        await broker.timers.flush()
        await client.send("T", b"3", properties={"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": "K3"})
        back_up(broker.store.settings.path, tmp_path / "copy")
    settings_root = tmp_path / "second"
    settings_root.mkdir()
    place = broker.store.settings.path.relative_to(tmp_path / "first")
    shutil.copytree(tmp_path / "copy", settings_root / place, dirs_exist_ok=True)
    async with running_broker(settings_root) as broker:
        await until(lambda: broker.timers.waiting == 4)


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        ("nowhere", "copy", "no such directory"),
        ("empty", "copy", ": not a store"),
        ("several", "copy", "holds 1; choose one of"),
        ("store", "store/inside", "overlaps with"),
        ("store", "full", "does not contain a backup"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_exit_code_2(
    tmp_path: Path, source: str, target: str, sentence: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    make_store(tmp_path / "store")
    (tmp_path / "several" / "broker-a" / "commitlog").mkdir(parents=True)
    done = skylark("store", "backup", tmp_path / source, tmp_path / target)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 2


def make_store(path: Path) -> None:
    """One without messages."""
    store = MessageStore(writing.settings(path))
    store.open()
    store.close()
