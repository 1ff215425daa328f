"""A disk that does not return stops neither heartbeats nor pulls of hot data, and costs bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark import atomic_file
from skylark.broker.broker import Broker
from skylark.clock import SystemClock
from skylark.errors import BrokerError, RocketMQError, SystemBusy
from skylark.model.record import decode_all
from skylark.pipelines.jobs.endpoints import parse_output
from skylark.pipelines.lake_service.engines import LocalEngine
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable
from skylark.pipelines.lake_service.table_archiver import TableArchiver
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.admin import (
    GetColdDataFlowCtrInfo,
    RemoveColdDataFlowCtrConfig,
    UpdateColdDataFlowCtrConfig,
)
from skylark.protocol.requests.offset import SearchOffsetByTimestamp, UpdateConsumerOffset
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, PullMessage
from skylark.protocol.requests.send import SendMessageV2
from skylark.settings.store import FlushMode
from skylark.store.disk import DiskFile
from tests.integration.broker_rig import Healthy, goes_on, healthy_client
from tests.support.broker import BrokerClient, consumer, running_broker, running_name_server, until
from tests.support.simulated_disk import Fault, Kind, SimulatedDisk

STUCK_S = 30.0
"""After this a stuck call returns all the same, so that a test that should fail does not hang."""
NOTICEABLE_S = 20.0


class StuckDisk(SimulatedDisk):
    """A disk whose calls of some kinds do not return until they are freed. The loop must never make one.

    Only the store lies on it; metadata is on the real one, in `root` too.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(clock=SystemClock())
        self.root = root
        self.make_directory(root)
        self.on_loop: list[str] = []
        self.stuck: set[str] = set()
        self._kinds: dict[Kind, str] = {}
        self._gate = threading.Event()

    def stick(self, *kinds: Kind, path: str = "") -> None:
        """From now on these calls do not return, for paths that contain this."""
        self._gate.clear()
        self._kinds = dict.fromkeys(kinds, path)

    def free(self) -> None:
        self._kinds = {}
        self._gate.set()

    def _meet(self, kind: Kind, path: Path) -> None:
        wanted = self._kinds.get(kind)
        if wanted is None or wanted not in str(path).removeprefix(str(self.root)):
            return
        if threading.current_thread() is threading.main_thread():
            self.on_loop.append(f"{kind.value} {path}")
            return
        self.stuck.add(threading.current_thread().name)
        self._gate.wait(STUCK_S)

    def create(self, path: Path, length: int) -> DiskFile:
        self._meet(Kind.CREATE, path)
        return super().create(path, length)

    def delete(self, path: Path) -> None:
        self._meet(Kind.DELETE, path)
        super().delete(path)

    def sync_directory(self, path: Path) -> None:
        self._meet(Kind.SYNC_DIRECTORY, path)
        super().sync_directory(path)

    def write(self, path: Path, inode: Any, data: bytes, position: int) -> None:
        self._meet(Kind.WRITE, path)
        super().write(path, inode, data, position)

    def read(self, path: Path, inode: Any, length: int, position: int) -> bytes:
        self._meet(Kind.READ, path)
        return super().read(path, inode, length, position)

    def sync(self, path: Path, inode: Any) -> None:
        self._meet(Kind.SYNC, path)
        super().sync(path, inode)

    def allocate(self, path: Path, inode: Any, position: int, length: int) -> None:
        self._meet(Kind.ALLOCATE, path)
        super().allocate(path, inode, position, length)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[StuckDisk]:
    made = StuckDisk(tmp_path)
    yield made
    made.free()
    assert made.on_loop == []


@contextlib.asynccontextmanager
async def broker_on(disk: StuckDisk, **changes: Any) -> AsyncIterator[Broker]:
    async with running_broker(disk.root, disk=disk, **changes) as broker:
        try:
            yield broker
        finally:
            disk.free()


@contextlib.asynccontextmanager
async def unharmed(broker: Broker) -> AsyncIterator[Healthy]:
    """What is done meanwhile must not be noticed by a client that sends, pulls and lives."""
    async with healthy_client(broker.address) as healthy:
        await goes_on(healthy)
        healthy.slowest_s = 0.0
        yield healthy
        await goes_on(healthy)
        assert healthy.slowest_s < NOTICEABLE_S


async def cold_start(disk: StuckDisk, topics: Sequence[str] = ("Cold",), count: int = 10) -> None:
    """Leave messages on the disk that no process has in memory."""
    async with broker_on(disk) as broker, BrokerClient(broker.address) as client:
        for topic in topics:
            for number in range(count):
                await client.send(topic, b"cold %d" % number)
    disk.resident = False


# --- Each kind of call ---


async def test_a_flush_that_does_not_return(disk: StuckDisk) -> None:
    async with broker_on(disk) as broker, unharmed(broker):
        disk.stick(Kind.SYNC)
        await until(lambda: "skylark-flush" in disk.stuck)


async def test_an_fsync_of_a_directory_that_does_not_return(disk: StuckDisk) -> None:
    small = {"commit_log_file_bytes": 64 << 10, "message_bytes_max": 4096}
    async with broker_on(disk, store=small) as broker, unharmed(broker):
        disk.stick(Kind.SYNC_DIRECTORY)
        await until(lambda: bool(disk.stuck))


@pytest.mark.parametrize("path", ["consumequeue", "index", "checkpoint"])
async def test_writes_of_queues_index_and_checkpoint_that_do_not_return(disk: StuckDisk, path: str) -> None:
    async with broker_on(disk, store={"queue_flush_interval_ms": 10}) as broker, unharmed(broker):
        disk.stick(Kind.WRITE, Kind.CREATE, path=path)
        await until(lambda: "skylark-queues" in disk.stuck)


async def test_a_file_that_cannot_be_made_holds_up_no_other(disk: StuckDisk) -> None:
    async with (
        broker_on(disk, store={"queue_flush_interval_ms": 10}) as broker,
        BrokerClient(broker.address) as client,
    ):
        await client.send("Old", b"old")
        await until(lambda: broker.store.queue("Old", 0).written_offset == 1)
        async with unharmed(broker):
            disk.stick(Kind.CREATE, path="consumequeue/New")
            await client.send("New", b"new")
            await until(lambda: "skylark-queues" in disk.stuck)
            for _ in range(10):
                assert len(await client.pull("Old")) == 1  # its units are read from a file


async def test_an_allocation_that_does_not_return(disk: StuckDisk) -> None:
    small = {"commit_log_file_bytes": 64 << 10, "message_bytes_max": 4096}
    async with broker_on(disk, store=small) as broker, unharmed(broker) as healthy:
        disk.stick(Kind.ALLOCATE)
        await until(lambda: "skylark-allocate" in disk.stuck)
        files = len(broker.store.log.files.starts)
        # The log goes on into the next file although nobody has made it ready.
        async with BrokerClient(broker.address) as client:
            for _ in range(40):
                await client.send("T", b"x" * 4000)
        assert len(broker.store.log.files.starts) > files
        await goes_on(healthy)


async def test_a_deletion_that_does_not_return(disk: StuckDisk) -> None:
    settings = {
        "commit_log_file_bytes": 64 << 10,
        "message_bytes_max": 4096,
        "reserved_hours": 0,
        "delete_hours": ";".join(map(str, range(24))),
        "clean_first_delay_ms": 0,
        "clean_interval_ms": 20,
        "delete_pause_ms": 0,
    }
    async with broker_on(disk, store=settings) as broker, BrokerClient(broker.address) as client:
        async with unharmed(broker):
            disk.stick(Kind.DELETE)
            for _ in range(40):
                await client.send("T", b"x" * 4000)
            await until(lambda: "skylark-clean" in disk.stuck)


async def test_a_disk_whose_use_cannot_be_told(disk: StuckDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    gate = threading.Event()

    def used_ratio(path: Path) -> float:
        asked.set()
        gate.wait(STUCK_S)
        return 0.1

    monkeypatch.setattr(disk, "used_ratio", used_ratio)
    settings = {"clean_first_delay_ms": 0, "clean_interval_ms": 20}
    async with broker_on(disk, store=settings) as broker:
        async with unharmed(broker):
            await until(asked.is_set)
        gate.set()


async def test_metadata_that_cannot_be_written(disk: StuckDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    stuck: list[str] = []

    def write(path: Path, data: bytes, *, is_private: bool) -> None:
        stuck.append(path.name)
        assert threading.current_thread() is not threading.main_thread()
        gate.wait(STUCK_S)
        atomic_file.write_file(path, data, is_private=is_private)

    monkeypatch.setattr("skylark.broker.metadata_files.write_file", write)
    async with broker_on(disk) as broker, BrokerClient(broker.address) as client, unharmed(broker):
        await client.send("New", b"x")
        await until(lambda: bool(stuck))
        for number in range(20):
            await client.send(f"New{number}", b"x")
            await client.heartbeat(consumer(f"CG{number}"))
            await client.pull(f"New{number}", group=f"CG{number}")
            await client.ask(UpdateConsumerOffset(f"CG{number}", f"New{number}", 0, 1))
        assert len(stuck) == 1
        gate.set()
        await until(lambda: {"topics.json", "subscriptionGroup.json", "consumerOffset.json"} <= set(stuck))


@pytest.mark.parametrize("path", ["commitlog", "consumequeue"])
async def test_cold_reads_that_do_not_return(disk: StuckDisk, path: str) -> None:
    await cold_start(disk)
    async with (
        broker_on(disk, pull_wait_ms=300) as broker,
        BrokerClient(broker.address) as client,
        unharmed(broker) as healthy,
    ):
        disk.stick(Kind.READ, path=path)
        asked = [asyncio.create_task(client.pull("Cold", group=f"CG{each}")) for each in range(10)]
        await until(lambda: len([name for name in disk.stuck if "skylark-read" in name]) == 4)
        await goes_on(healthy)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(answer) for answer in answers} == {SystemBusy}
        disk.free()

        async def is_read() -> bool:
            try:
                return len(await client.pull("Cold")) > 0
            except SystemBusy:
                return False

        await until(is_read)


async def test_cold_reads_of_a_greedy_group_are_limited(disk: StuckDisk) -> None:
    await cold_start(disk)
    async with (
        broker_on(disk, limit_cold_reads=True, group_cold_bytes_max=1) as broker,
        BrokerClient(broker.address) as client,
    ):
        await client.heartbeat(consumer("CG", ["Cold"]))

        async def is_refused() -> bool:
            try:
                assert await client.pull("Cold", group="CG")
            except SystemBusy as error:
                return "This consumer group is reading cold data" in error.remark
            return False  # or a new window began in between

        await until(is_refused)
        await client.ask(UpdateColdDataFlowCtrConfig(b"CG=1000000000\n"))
        for _ in range(20):
            assert await client.pull("Cold", group="CG")
        told = json.loads(bytes(await client.ask(GetColdDataFlowCtrInfo())))
        assert told["configTable"] == {"CG": 1_000_000_000}
        assert told["runtimeTable"].keys() == {"CG"}
        await client.ask(RemoveColdDataFlowCtrConfig(b"CG"))
        await until(is_refused)


async def test_a_lake_that_reads_cold_messages_holds_up_no_producer(disk: StuckDisk) -> None:
    await cold_start(disk)
    async with (
        running_name_server(disk.root) as name_server,
        broker_on(disk, name_servers=name_server.address) as broker,
        unharmed(broker) as healthy,
    ):
        table = LakeTable(output=parse_output(f"delta:{disk.root}/table"), topics=("Cold",))
        rules = LakeRules(namesrv=name_server.address, tables=[table])
        looks = itertools.count(step=60).__next__  # it looks for topics each time
        archiver = TableArchiver(rules, table, LocalEngine(), "one", monotonic=looks)

        def archive() -> int:
            while True:
                with contextlib.suppress(RocketMQError):  # the broker is busy
                    if messages := archiver.turn().messages:
                        return messages
                time.sleep(0.05)

        disk.stick(Kind.READ)
        archived = asyncio.create_task(asyncio.to_thread(archive))
        await until(lambda: any("skylark-read" in name for name in disk.stuck))
        await goes_on(healthy)
        disk.free()
        assert await archived == 10


async def test_questions_that_wait_for_the_disk_hold_up_nobody(disk: StuckDisk) -> None:
    await cold_start(disk)
    async with (
        broker_on(disk) as broker,
        BrokerClient(broker.address) as client,
        unharmed(broker),
    ):
        disk.stick(Kind.READ)
        asked = asyncio.create_task(client.ask(SearchOffsetByTimestamp("Cold", 0, 1)))
        await until(lambda: any("skylark-read" in name for name in disk.stuck))
        disk.free()
        assert await asked == 0


async def test_delayed_messages_that_are_cold(disk: StuckDisk) -> None:
    levels = {"delay_levels": "1s 2s"}
    async with broker_on(disk, store=levels) as broker, BrokerClient(broker.address) as client:
        await client.send("T", b"late", properties={"DELAY": "1"})
    disk.resident = False
    async with (
        broker_on(disk, store=levels) as broker,
        BrokerClient(broker.address) as client,
        unharmed(broker),
    ):
        disk.stick(Kind.READ)
        await until(lambda: any("skylark-read" in name for name in disk.stuck))
        # Others are not held up by it: this one is in memory.
        await client.send("T", b"hot", 1, properties={"DELAY": "2"})
        disk.free()

        async def is_delivered() -> bool:
            return len(await client.pull("T")) == 1 and len(await client.pull("T", 1)) == 1

        await until(is_delivered)


# --- What senders hear ---


def send(body: bytes, **named: str) -> SendMessageV2:
    text = "".join(f"{name}\x01{value}\x02" for name, value in named.items())
    return SendMessageV2("PG", "T", "TBW102", 4, 0, 0, 1, 0, text, body=body)


async def test_sf_078_sync_flush_gives_up_after_its_time(disk: StuckDisk) -> None:
    settings = {"flush_mode": FlushMode.SYNC, "sync_flush_timeout_ms": 1500}
    async with (
        broker_on(disk, store=settings) as broker,
        BrokerClient(broker.address) as client,
        BrokerClient(broker.address) as other,
    ):
        assert (await client.ask(send(b"fine"))).code == 0
        disk.stick(Kind.SYNC)
        started = time.monotonic()
        waiting = [asyncio.create_task(client.ask(send(b"%d" % number))) for number in range(20)]
        await until(lambda: len(broker.store.waiters) > 0)
        # Who does not want to wait is answered at once; heartbeats and pulls of what is on disk go on.
        assert (await other.ask(send(b"hasty", WAIT="false"))).code == 0
        await other.heartbeat(consumer())
        assert [message.body for message in await other.pull("T")] == [b"fine"]
        assert not any(task.done() for task in waiting) or time.monotonic() - started > 1.5
        results = await asyncio.gather(*waiting)
        assert {result.code for result in results} == {ResponseCode.FLUSH_DISK_TIMEOUT}
        assert [result.reply.queue_offset for result in results] == list(range(1, 21))
        assert time.monotonic() - started >= 1.5
        disk.free()
        await until(lambda: broker.store.max_offset("T", 0) == 22)
        assert (await client.ask(send(b"fine again"))).code == 0


async def test_unflushed_bytes_are_bounded(disk: StuckDisk) -> None:
    async with (
        broker_on(disk, store={"unflushed_bytes_max": 1 << 20}) as broker,
        BrokerClient(broker.address) as client,
    ):
        await client.send("T", b"fine")
        disk.stick(Kind.SYNC)
        with pytest.raises(SystemBusy, match="PC_SYNCHRONIZED"):
            for _ in range(400):
                await client.send("T", b"x" * 10_000)
        assert broker.store.appended_offset < 3 << 20
        await client.heartbeat(consumer())
        assert len(await client.pull("T")) > 10  # reads go on
        disk.free()

        async def is_taken() -> bool:
            try:
                await client.send("T", b"fine again")
            except SystemBusy:
                return False
            return True

        await until(is_taken)


async def test_waiting_sends_are_bounded(disk: StuckDisk) -> None:
    settings = {"flush_mode": FlushMode.SYNC, "sync_flush_timeout_ms": 60_000}
    async with (
        broker_on(disk, store=settings, send_queue_max=50) as broker,
        BrokerClient(broker.address) as client,
    ):
        await client.send("T", b"fine")
        disk.stick(Kind.SYNC)
        codes: list[int] = []

        async def try_to_send() -> None:
            try:
                codes.append((await client.ask(send(b"x"), timeout_s=30)).code)
            except BrokerError as error:
                codes.append(error.code)

        for _ in range(10):  # in turns, so that the limit is seen between them
            for _ in range(20):
                broker.tasks.spawn(try_to_send())
            await asyncio.sleep(0.02)
        await until(lambda: ResponseCode.SYSTEM_BUSY in codes)
        assert set(codes) == {ResponseCode.SYSTEM_BUSY}
        assert len(broker.store.waiters) <= 70
        disk.free()
        await until(lambda: len(codes) == 200)
        assert codes.count(0) < 120


async def test_sf_082_a_full_disk_refuses_sends_and_serves_the_rest(disk: StuckDisk) -> None:
    settings = {"clean_first_delay_ms": 0, "clean_interval_ms": 10}
    async with broker_on(disk, store=settings) as broker, BrokerClient(broker.address) as client:
        await client.send("T", b"before")
        disk.used = 0.91

        async def code() -> int:
            try:
                await client.send("T", b"x")
            except BrokerError as error:
                return error.code
            return 0

        async def is_refused() -> bool:
            return await code() == ResponseCode.SERVICE_NOT_AVAILABLE

        await until(is_refused)
        assert (await client.pull("T"))[0].body == b"before"
        await client.heartbeat(consumer())
        await client.ask(UpdateConsumerOffset("CG", "T", 0, 1))
        disk.used = 0.5

        async def is_taken() -> bool:
            return await code() == 0

        await until(is_taken)


async def test_a_failed_fsync_stops_sends_for_good_and_nothing_else(disk: StuckDisk) -> None:
    often = {"flush_thorough_interval_ms": 20}
    async with broker_on(disk, store=often) as broker, BrokerClient(broker.address) as client:
        await client.send("T", b"before")
        await until(lambda: broker.store.flushed_offset == broker.store.appended_offset)
        disk.plan(Fault(Kind.SYNC, path_contains="commitlog"))

        async def is_refused() -> bool:
            try:
                await client.send("T", b"x" * 5000)
            except BrokerError as error:
                return error.code == ResponseCode.SERVICE_NOT_AVAILABLE
            return False

        await until(is_refused)
        disk.heal()
        assert await is_refused()
        assert (await client.pull("T"))[0].body == b"before"
        await client.heartbeat(consumer())


# --- A real one that is full ---


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """24 MiB, where this machine lets us mount them."""
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    directory = tmp_path / "small"
    directory.mkdir()
    if mount is None or unmount is None:
        pytest.skip("there is no mount here")
    options = ["-t", "tmpfs", "-o", f"size={24 << 20}", "tmpfs", str(directory)]
    if subprocess.run([mount, *options], check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        yield directory
    finally:
        subprocess.run([unmount, "-l", str(directory)], check=True)


@pytest.mark.parametrize("watched", [True, False], ids=["by its share", "by the error"])
async def test_a_file_system_that_is_full(small_file_system: Path, watched: bool) -> None:
    """X7: sends are refused, reads go on, nothing crashes, and when there is room again it goes on."""
    settings = {
        "commit_log_file_bytes": 2 << 20,
        "message_bytes_max": 1 << 20,
        "clean_first_delay_ms": 0 if watched else 3_600_000,
        "clean_interval_ms": 20,
    }
    ballast = small_file_system / "ballast"
    ballast.write_bytes(bytes(12 << 20))
    async with (
        running_broker(small_file_system / "store", store=settings) as broker,
        BrokerClient(broker.address) as client,
    ):
        sent = []
        with pytest.raises(BrokerError) as caught:
            # Many more than fit: where the oldest files go meanwhile, a slow sender meets the limit late.
            for number in range(2_000):
                body = b"%d " % number + b"x" * 100_000
                await client.send("T", body)
                sent.append(body)
        assert caught.value.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR)
        assert len(sent) > 10
        await check_all_there(client, sent, may_lack_oldest=watched)
        await client.heartbeat(consumer())
        ballast.unlink()

        async def is_taken() -> bool:
            try:
                await client.send("T", b"room again")
            except BrokerError:
                return False
            return True

        await until(is_taken)
        sent.append(b"room again")
        await check_all_there(client, sent, may_lack_oldest=watched)
    async with (
        running_broker(small_file_system / "store", store=settings) as broker,
        BrokerClient(broker.address) as client,
    ):
        await check_all_there(client, sent, may_lack_oldest=watched)


async def check_all_there(client: BrokerClient, sent: list[bytes], *, may_lack_oldest: bool) -> None:
    """Every message is where it was. If the disk is watched, the oldest files go by force, even meanwhile."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(sent):
        result = await client.ask(PullMessage("CG", "T", 0, at, 32, PULL_SUBSCRIPTION, 0, 0, 0, "*"))
        assert result.reply.next_begin_offset > at
        if result.code == 0:
            found |= {message.queue_offset: message.body for message in decode_all(result.records)}
        at = result.reply.next_begin_offset
    assert found == {offset: sent[offset] for offset in found}
    missing = sorted(set(range(len(sent))) - found.keys())
    if missing:
        assert may_lack_oldest
        assert missing[-1] < len(sent) - 1
