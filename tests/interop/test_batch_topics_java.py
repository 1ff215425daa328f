"""Topics with `queue.type=BatchCQ`: Java's clients on our broker, and one directory for both brokers."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.apache import ApacheBroker, ApacheNameServer
from skylark.model.message import SystemFlag
from skylark.protocol.requests.send import SendMessageV2
from skylark.remoting.blocking_connection import BlockingConnection
from skylark.store.store_reader import StoreReader
from skylark.store.verification import verify
from tests.interop.servers import PATIENT, Servers, create_topic
from tests.interop.store_driver import Json, StoreDriver, driver_classpath
from tests.interop.versions import MAIN
from tests.support.names import fresh_name
from tests.support.skylark_servers import SMALL_STORE, SkylarkBroker
from tests.support.store import encoded_batch

pytestmark = [pytest.mark.interop("java", "javac", "mvn"), pytest.mark.timeout(600)]

BATCH_TYPE = "+queue.type=BatchCQ"
SIZE = 5
LAYOUT = {**SMALL_STORE, **PATIENT, "mapperFileSizeBatchConsumeQueue": 46 * 1000}


def numbers(found: list[Json]) -> list[tuple[int, str]]:
    return [(message["queueOffset"], message["body"]) for message in found]


def numbered(first: int, end: int) -> list[tuple[int, str]]:
    return [(number, str(number)) for number in range(first, end)]


def test_java_sends_and_receives_batches(servers: Servers, tmp_path: Path) -> None:
    topic = fresh_name("JavaBatches")
    create_topic(servers.broker, topic, 1, attributes=BATCH_TYPE)
    driver = StoreDriver(driver_classpath(MAIN), servers.name_server, tmp_path)
    found = driver.batches(topic, 0, 8, SIZE, pull_from=12)
    assert [receipt["status"] for receipt in found["sent"]] == ["SEND_OK"] * 8
    assert [receipt["queueOffset"] for receipt in found["sent"]] == list(range(0, 40, SIZE))
    # One record has one id.
    assert len({receipt["offsetMsgId"] for receipt in found["sent"]}) == 8
    assert all("," not in receipt["offsetMsgId"] for receipt in found["sent"])
    # Java does not skip the messages of the batch that are before the offset.
    assert numbers(found["pulled"]) == numbered(10, 40)
    assert numbers(found["pushed"]) == numbered(0, 40)
    assert [message["keys"] for message in found["pushed"]] == [f"key-{number}" for number in range(40)]


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[ApacheNameServer]:
    with ApacheNameServer(driver_classpath(MAIN), tmp_path / "name-server") as server:
        yield server


def send_batch(broker: str, topic: str, first: int, *, is_compressed: bool) -> None:
    body = encoded_batch([b"%d" % number for number in range(first, first + SIZE)], b"KEYS\x01ours\x02")
    request = SendMessageV2(
        producer_group="Ours", topic=topic, default_topic="TBW102", default_topic_queue_nums=1, queue_id=0,
        sys_flag=SystemFlag.COMPRESSED | SystemFlag.ZLIB if is_compressed else 0, born_timestamp=1, flag=0,
        properties="", reconsume_times=0, batch=True, body=zlib.compress(body) if is_compressed else body,
    )  # fmt: skip
    with BlockingConnection(broker) as connection:
        connection.call(request, timeout_s=60)


def check_store(store: Path, topic: str, end: int) -> None:
    """Read-only: everything is there, and sound."""
    reader = StoreReader(store)
    assert verify(reader).findings == []
    found = [(message.queue_offset, message.body.decode()) for message in reader.messages(topic, 0)]
    assert found == numbered(0, end)


@pytest.mark.nightly
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_one_directory_for_both_brokers(name_server: ApacheNameServer, tmp_path: Path, end: str) -> None:
    """Ours writes, Apache's reads and writes on, ours reads and writes on, Apache's again."""
    topic, driver = (
        fresh_name("Interchange"),
        StoreDriver(driver_classpath(MAIN), name_server.address, tmp_path),
    )
    ours = SkylarkBroker(tmp_path / "ours", name_server.address, LAYOUT)
    store = ours.home / "data"
    apache = ApacheBroker(
        driver_classpath(MAIN), tmp_path / "home", store, name_server=name_server.address, settings=LAYOUT
    )
    with ours:
        create_topic(ours.broker, topic, 1, attributes=BATCH_TYPE)
        send_batch(ours.broker, topic, 0, is_compressed=False)
        send_batch(ours.broker, topic, SIZE, is_compressed=True)
        found = driver.batches(topic, 10, 4, SIZE)
        assert numbers(found["pulled"]) == numbers(found["pushed"]) == numbered(0, 30)
        getattr(ours, end)()
    if end == "stop":
        check_store(store, topic, 30)
    with apache:
        found = driver.batches(topic, 30, 4, SIZE)
        assert numbers(found["pulled"]) == numbers(found["pushed"]) == numbered(0, 50)
        getattr(apache, end)()
    if end == "stop":
        check_store(store, topic, 50)
    with ours:
        found = driver.batches(topic, 50, 2, SIZE)
        assert numbers(found["pulled"]) == numbers(found["pushed"]) == numbered(0, 60)
        getattr(ours, end)()
    with apache:
        found = driver.batches(topic, 60, 1, SIZE)
        assert numbers(found["pulled"]) == numbered(0, 65)
        apache.stop()
    check_store(store, topic, 65)
