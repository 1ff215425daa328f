"""One store directory, two implementations: what Apache RocketMQ 5.3.3 writes we read, and the reverse.

Apache's side is told by stock Java clients (`StoreDriver`): a dump of all that a broker serves, in the shape
that `store_view` gives ours. Whole stores are compared, after orderly ends and after `kill -9` of either.
"""

from __future__ import annotations

import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.peers.apache import ApacheBroker, ApacheNameServer
from benchmarks.peers.java import Classpath
from skylark.model.message import pack_host
from skylark.processes import GroupProcess
from skylark.store.index_file import HEADER
from tests.interop import every_kind, store_view
from tests.interop.every_kind import PLAIN_TOPIC, Maker
from tests.interop.servers import PATIENT
from tests.interop.store_driver import Json, StoreDriver
from tests.interop.store_view import (
    SHAPE,
    ReadOnly,
    Writable,
    by_position,
    check_answers,
    check_keys,
    positions_by_key,
)
from tests.interop.store_writer import Written, read_receipts, write_every_kind, writing
from tests.support.names import fresh_name

pytestmark = [
    pytest.mark.interop("java", "javac", "mvn"),
    pytest.mark.timeout(600),
]

BROKER_SETTINGS: dict[str, str | int] = {
    **SHAPE,
    **PATIENT,
    "mappedFileSizeTimerLog": 5200,
    # Half messages are never asked about, and ends of transactions are written at once: dumps hold still.
    "transactionCheckInterval": 24 * 3600 * 1000,
    "transactionTimeOut": 24 * 3600 * 1000,  # 5.5 also asks at its end
    "transactionOpBatchInterval": 100,
    # No pop consumers here, and their service makes an orderly stop ten seconds longer.
    "reviveQueueNum": 0,
}
PLAIN_COUNT = 300
BURST_COUNT = 800
WRITER_COUNT = 1200
WRITER_TIMEOUT_S = 180

BrokerAt = Callable[[Path], ApacheBroker]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for stores, removed at the end: they are large."""
    directory = tmp_path_factory.mktemp("stores")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def broker_at(classpath: Classpath, name_server: ApacheNameServer, workspace: Path) -> BrokerAt:
    """Makes a broker of Apache's for a store directory, not yet started."""

    def make(store_dir: Path) -> ApacheBroker:
        home = workspace / f"{store_dir.name}-broker"
        return ApacheBroker(
            classpath, home, store_dir, name_server=name_server.address, settings=BROKER_SETTINGS
        )

    return make


@dataclass(frozen=True)
class Served:
    """A store directory that nobody has open, and what Apache served from it (or from a copy of it)."""

    store_dir: Path
    dump: Json
    acknowledged: list[Json] = field(default_factory=list)


# What Apache wrote. Nightly: in every run it appends to a store of ours (below), and golden stores are read.


@pytest.fixture(scope="module")
def filled(workspace: Path, broker_at: BrokerAt, driver: StoreDriver) -> Served:
    """Written by Apache with every kind of message of a stock client, closed in order."""
    store_dir = workspace / fresh_name("filled")
    with broker_at(store_dir) as broker:
        acknowledged = driver.fill(seed=1, count=PLAIN_COUNT)
        dump = driver.dump()
        broker.stop()
    return Served(store_dir, dump, acknowledged)


@pytest.fixture(scope="module")
def crashed(filled: Served, workspace: Path, broker_at: BrokerAt, driver: StoreDriver) -> Served:
    """Written by Apache, killed in the middle of sends; the dump is of its own recovery of a copy."""
    store_dir, copy = workspace / fresh_name("crashed"), workspace / fresh_name("crashed-copy")
    shutil.copytree(filled.store_dir, store_dir)
    with broker_at(store_dir) as broker, driver.burst(seed=2, at_least=BURST_COUNT) as acknowledged:
        broker.kill()
    shutil.copytree(store_dir, copy)
    with broker_at(copy):
        dump = driver.dump()
    return Served(store_dir, dump, acknowledged)


def check_acknowledged(acknowledged: list[Json], dump: Json) -> None:
    """Every acknowledged message is served, where and as the client was told."""
    served = {message["offsetMsgId"]: message for message in by_position(dump["topics"]).values()}
    halves = {
        message["uniqKey"]: message
        for queue in dump["topics"].get(every_kind.HALF_TOPIC, {}).values()
        for message in queue["messages"]
    }
    assert acknowledged
    for receipt in acknowledged:
        # The client is not told the offset id of a half message.
        message = halves[receipt["msgId"]] if receipt["kind"] == "half" else served[receipt["offsetMsgId"]]
        assert receipt["status"] == "SEND_OK"
        assert message["bodySha256"] == receipt["bodySha256"]
        assert message["flag"] == receipt["flag"]
        # Members of a batch show the batch's unique key.
        own = {name: value for name, value in receipt["properties"].items() if name != "UNIQ_KEY"}
        assert own.items() <= message["properties"].items()
        if receipt["kind"] in ("plain", "batch"):
            place = (message["topic"], message["queueId"], message["queueOffset"])
            assert place == (receipt["topic"], receipt["queueId"], receipt["queueOffset"])


def check_dense(topics: Json) -> None:
    """Queue offsets run from minimum to maximum without a gap, and the messages know theirs."""
    for topic, queues in topics.items():
        for queue_id, queue in queues.items():
            expected = list(range(queue["minOffset"], queue["maxOffset"]))
            assert [message["queueOffset"] for message in queue["messages"]] == expected, (topic, queue_id)


@pytest.mark.nightly
def test_apache_serves_what_it_acknowledged(filled: Served) -> None:
    """The harness itself: what is compared below is complete, and holds every kind of message."""
    check_acknowledged(filled.acknowledged, filled.dump)
    check_dense(filled.dump["topics"])
    assert {receipt["kind"] for receipt in filled.acknowledged} == {"plain", "batch", "delayed", "half"}
    flags = {message["sysFlag"] for message in by_position(filled.dump["topics"]).values()}
    assert {0, 0x101, 0x201, 0x301} <= flags
    assert {"FillOneway", "FillHalf", "SCHEDULE_TOPIC_XXXX"} <= filled.dump["topics"].keys()


@pytest.mark.nightly
def test_reader_gives_what_apache_served(filled: Served) -> None:
    before = files_below(filled.store_dir)
    side = ReadOnly(filled.store_dir)
    assert store_view.topics(side) == store_view.comparable(filled.dump)
    store_view.check_our_answers(side, filled.dump)
    assert files_below(filled.store_dir) == before


@pytest.mark.nightly
def test_reader_shows_a_crashed_store_as_far_as_its_queues_go(crashed: Served) -> None:
    """Without recovery, and whoever looks first: nothing but what Apache serves after its recovery."""
    before = files_below(crashed.store_dir)
    shown = store_view.topics(ReadOnly(crashed.store_dir))
    served = store_view.comparable(crashed.dump)
    assert shown.keys() == served.keys()
    for topic, queues in shown.items():
        for queue_id, queue in queues.items():
            count = len(queue["messages"])
            assert queue["messages"] == served[topic][queue_id]["messages"][:count]
    assert files_below(crashed.store_dir) == before


def files_below(directory: Path) -> dict[Path, tuple[int, int]]:
    """Length and time of change of every file."""
    stats = {path: path.stat() for path in directory.rglob("*")}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


@pytest.mark.nightly
def test_store_opens_what_apache_closed_and_goes_on(filled: Served) -> None:
    check_we_open_and_go_on(filled.store_dir, filled.dump)


@pytest.mark.nightly
def test_store_recovers_what_apache_left_when_killed(crashed: Served) -> None:
    check_acknowledged(crashed.acknowledged, crashed.dump)
    check_dense(crashed.dump["topics"])
    check_we_open_and_go_on(crashed.store_dir, crashed.dump)


def check_we_open_and_go_on(original: Path, dump: Json) -> None:
    """Opened for writing, a copy of the store holds what Apache served; new messages continue its queues."""
    store_dir = original.with_name(fresh_name(f"{original.name}-opened"))
    shutil.copytree(original, store_dir)
    expected = store_view.comparable(dump)
    message = Maker(99).message(PLAIN_TOPIC, 0, b"appended", tags="TagA", keys="appended")
    with writing(store_dir) as writer:
        side = Writable(writer.store)
        assert store_view.topics(side) == expected
        store_view.check_our_answers(side, dump)
        (written,) = writer.put([message])
    closed = ReadOnly(store_dir)
    after = store_view.topics(closed)
    assert positions_by_key(closed, PLAIN_TOPIC, "appended") == [written.receipt.physical_offset]
    before, queue = expected[PLAIN_TOPIC]["0"], after[PLAIN_TOPIC]["0"]
    assert queue["messages"] == [*before["messages"], written.expected()]
    assert queue["units"][:-1] == before["units"]
    assert queue["maxOffset"] == before["maxOffset"] + 1
    del expected[PLAIN_TOPIC]["0"], after[PLAIN_TOPIC]["0"]
    assert after == expected


# What we wrote


@dataclass(frozen=True)
class Ours(Served):
    """A store of ours that Apache opened, dumped, appended to, dumped again and closed."""

    written: list[Written] = field(default_factory=list)
    dump_after_fill: Json = field(default_factory=dict)
    address: str = ""


@pytest.fixture(scope="module")
def ours(workspace: Path, broker_at: BrokerAt, driver: StoreDriver) -> Ours:
    store_dir = workspace / fresh_name("ours")
    broker = broker_at(store_dir)
    written = write_every_kind(store_dir, pack_host("127.0.0.1", broker.port))
    store_view.write_topics(store_dir, every_kind.TOPICS)
    ids = [one.message_id for one in written if one.queueless]
    with broker:
        dump = driver.dump(ids)
        acknowledged = driver.fill(seed=3, count=PLAIN_COUNT)
        dump_after_fill = driver.dump()
        broker.stop()
    return Ours(store_dir, dump, acknowledged, written, dump_after_fill, broker.address)


def check_written(written: list[Written], dump: Json) -> None:
    """Every message we put is served, at its place, with every field as put."""
    served = by_position(dump["topics"])
    for one in written:
        if not one.queueless:
            assert served[one.receipt.physical_offset] == one.expected()


def test_apache_reads_every_message_of_ours(ours: Ours) -> None:
    check_written(ours.written, ours.dump)
    check_dense(ours.dump["topics"])
    positions = {one.receipt.physical_offset for one in ours.written if not one.queueless}
    delivered = by_position({every_kind.DELAYED_TOPIC: ours.dump["topics"].get(every_kind.DELAYED_TOPIC, {})})
    assert by_position(ours.dump["topics"]).keys() - delivered.keys() == positions


def test_apache_views_our_records_that_are_in_no_queue(ours: Ours) -> None:
    queueless = [one for one in ours.written if one.queueless]
    assert len(queueless) == 2
    for one in queueless:
        expected = one.expected()
        assert ours.dump["viewed"][one.message_id] == {
            name: expected[name] for name in expected if name not in ("bodySize", "bodySha256")
        }


def test_apache_finds_our_messages_by_key_tag_time_and_id(ours: Ours) -> None:
    check_answers(ours.dump, ours.address)
    check_keys(ours.dump, by_position(ours.dump["topics"]).values())


def test_our_delayed_messages_are_due_when_apache_expects_it(ours: Ours) -> None:
    """Units of the schedule topic hold the time of delivery, by whoever they were written."""
    for queue_id, delay_ms in (("0", 1000), ("17", 7_200_000)):
        queue = ours.dump_after_fill["topics"][every_kind.SCHEDULE_TOPIC][queue_id]
        assert len(queue["messages"]) > 1
        for unit, message in zip(queue["units"], queue["messages"], strict=True):
            assert unit[2] == message["storeTimestamp"] + delay_ms


def test_apache_delivers_a_due_delayed_message_of_ours(ours: Ours) -> None:
    queue = ours.dump_after_fill["topics"][every_kind.DELAYED_TOPIC]["1"]
    due = next(
        one for one in ours.written if one.put.topic == every_kind.SCHEDULE_TOPIC and one.put.queue_id == 0
    )
    (message,) = queue["messages"]
    assert message["bodySha256"] == due.expected()["bodySha256"]
    assert message["uniqKey"] == due.expected()["uniqKey"]


def test_round_trip_apache_appends_to_our_store_and_we_read_all(ours: Ours) -> None:
    check_acknowledged(ours.acknowledged, ours.dump_after_fill)
    check_written(ours.written, ours.dump_after_fill)
    check_dense(ours.dump_after_fill["topics"])
    check_answers(ours.dump_after_fill, ours.address)
    check_keys(ours.dump_after_fill, by_position(ours.dump_after_fill["topics"]).values())
    assert store_view.topics(ReadOnly(ours.store_dir)) == store_view.comparable(ours.dump_after_fill)
    check_we_open_and_go_on(ours.store_dir, ours.dump_after_fill)


def kill_our_writer(store_dir: Path, store_host: bytes, flush_interval_ms: int) -> list[Written]:
    """Let a process of ours write, and kill it in the middle; what it had acknowledged by then."""
    receipts = store_dir.with_suffix(".receipts")
    command = [sys.executable, "-m", "tests.interop.store_writer"]
    command += [str(store_dir), store_host.hex(), str(receipts), str(flush_interval_ms)]
    with GroupProcess(command, log=store_dir.with_suffix(".log")) as process:
        process.wait_until(
            lambda: receipts.exists() and receipts.read_bytes().count(b"\n") >= WRITER_COUNT,
            f"{WRITER_COUNT} acknowledged messages",
            WRITER_TIMEOUT_S,
        )
        process.kill()
    return read_receipts(receipts, store_host)


@pytest.mark.nightly
def test_apache_recovers_our_store_when_we_were_killed_before_any_flush(
    workspace: Path, broker_at: BrokerAt, driver: StoreDriver
) -> None:
    store_dir = workspace / fresh_name("killed")
    check_apache_recovers_what_we_left(store_dir, broker_at, driver, flush_interval_ms=60_000)


@pytest.mark.nightly
def test_apache_recovers_its_store_when_we_were_killed_continuing_it(
    filled: Served, workspace: Path, broker_at: BrokerAt, driver: StoreDriver
) -> None:
    store_dir = workspace / fresh_name("continued")
    shutil.copytree(filled.store_dir, store_dir)
    dump = check_apache_recovers_what_we_left(store_dir, broker_at, driver, flush_interval_ms=5)
    check_acknowledged(filled.acknowledged, dump)


def is_index_whole(store_dir: Path) -> bool:
    """Whether no kill hit the write of the index: else Apache deletes its newest file."""
    _, _, index_timestamp = struct.unpack(">qqq", (store_dir / "checkpoint").read_bytes()[:24])
    headers = [file.read_bytes()[: HEADER.size] for file in (store_dir / "index").glob("*")]
    return all(HEADER.unpack(header)[1] <= index_timestamp for header in headers)


def check_apache_recovers_what_we_left(
    store_dir: Path, broker_at: BrokerAt, driver: StoreDriver, *, flush_interval_ms: int
) -> Json:
    """Kill a process of ours in the middle of writing: Apache serves all it acknowledged, and so do we."""
    broker = broker_at(store_dir)
    written = kill_our_writer(store_dir, pack_host("127.0.0.1", broker.port), flush_interval_ms)
    copy = store_dir.with_name(f"{store_dir.name}-copy")
    shutil.copytree(store_dir, copy)
    if not (store_dir / "config").exists():
        store_view.write_topics(store_dir, every_kind.TOPICS)
    with broker:
        dump = driver.dump()
    check_written(written, dump)
    check_dense(dump["topics"])
    check_answers(dump, broker.address)
    # Of older messages Apache may lose index entries in a crash, whoever wrote them.
    if is_index_whole(copy):
        check_keys(dump, (one.expected() for one in written))
    check_we_open_and_go_on(copy, dump)
    return dump
