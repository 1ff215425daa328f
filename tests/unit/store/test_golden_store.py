"""Directories that Apache RocketMQ 5.3.3 wrote: opened by our store, they give exactly what it served."""

from __future__ import annotations

import hashlib
import ipaddress
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skylark.clock import SystemClock
from skylark.model.message import TRANSACTION_MASK, StoredMessage, SystemFlag, find_unique_key, pack_host
from skylark.model.message_id import offset_message_id
from skylark.model.record import unwrap
from skylark.store.disk import RealDisk
from skylark.store.message_store import MessageStore
from skylark.store.store_reader import StoreReader
from tests.support.store import (
    golden_settings,
    golden_topics,
    message,
    opened,
    placed,
    read_queue,
    unpack_golden,
)

ARCHIVES = ("clean", "crash", "crc")
UNSUPPORTED_TREES = ("compaction", "timerlog", "timerwheel", "config")
# Served by the reference from a log of its own, so that only its units can be compared.
COMPACTION_TOPICS = {"TopicCompact"}


@pytest.fixture(params=ARCHIVES)
def archive(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(archive: str, golden: Path, tmp_path: Path) -> Path:
    return unpack_golden(golden, archive, tmp_path)


@pytest.fixture
def store(root: Path, golden: Path) -> Iterator[MessageStore]:
    store = MessageStore(golden_settings(golden, root))
    store.open()
    yield store
    store.close()


def tree(root: Path, names: tuple[str, ...]) -> dict[str, tuple[int, str]]:
    """Path -> length and digest of every file below the named files and directories."""
    found = {}
    for name in names:
        top = root / name
        for path in [top, *top.rglob("*")] if top.exists() else []:
            if path.is_file():
                data = path.read_bytes()
                found[str(path.relative_to(root))] = (len(data), hashlib.sha256(data).hexdigest())
    return found


def java_host(address: str) -> str:
    """`[2001:db8::1]:10911` as Java writes it: every group, no brackets."""
    host, _, port = address.rpartition(":")
    if not host.startswith("["):
        return address
    groups = ipaddress.IPv6Address(host[1:-1]).exploded.split(":")
    return ":".join(f"{int(group, 16):x}" for group in groups) + f":{port}"


def as_recorded(stored: StoredMessage) -> dict[str, Any]:
    """A message in the words of the recording; bodies as stored."""
    host, _, port = stored.store_host.rpartition(":")
    fields = {
        "queueOffset": stored.queue_offset,
        "physicalOffset": stored.physical_offset,
        "storeSize": stored.size,
        "offsetMsgId": offset_message_id(pack_host(host.strip("[]"), int(port)), stored.physical_offset),
        "uniqKey": stored.unique_key,
        "flag": stored.flag,
        "sysFlag": stored.sys_flag,
        "bornTimestamp": stored.born_timestamp,
        "bornHost": java_host(stored.born_host),
        "storeTimestamp": stored.store_timestamp,
        "storeHost": java_host(stored.store_host),
        "reconsumeTimes": stored.reconsume_times,
        "preparedTransactionOffset": stored.prepared_transaction_offset,
        "bodyCrc": stored.body_crc,
        "tags": stored.tags,
        "keys": stored.properties.get("KEYS"),
        "storedBodySize": len(stored.body),
        "storedBodySha256": hashlib.sha256(stored.body).hexdigest(),
        "properties": dict(stored.properties),
    }
    if not stored.size:  # a message of an inner batch is no record
        del fields["offsetMsgId"]
    return {name: value for name, value in fields.items() if value is not None}


def recorded(message: dict[str, Any]) -> dict[str, Any]:
    """What was recorded of a message, without what is known only after decompression."""
    return {name: value for name, value in message.items() if name not in ("bodySize", "bodySha256")}


def read_messages(store: MessageStore, topic: str, queue_id: int) -> list[StoredMessage]:
    return [message for record in read_queue(store, topic, queue_id) for message in unwrap(record)]


def check_queues(store: MessageStore, topics: dict[str, Any]) -> None:
    """Every queue of the recording, and no other one."""
    names = {(topic, int(queue_id)) for topic, queues in topics.items() for queue_id in queues}
    assert {name for name in store.queues if store.max_offset(*name)} == names
    for topic, queues in topics.items():
        for number, expected in queues.items():
            queue_id = int(number)
            queue = store.queue(topic, queue_id)
            assert (queue.min_offset, queue.max_offset) == (expected["minOffset"], expected["maxOffset"])
            units = [queue.entry(at) for at in range(queue.min_offset, queue.max_offset)]
            if queue.is_batched:  # the messages of a batch share one
                units = list(dict.fromkeys(units))
            assert units == [tuple(unit) for unit in expected["units"]], f"{topic}/{queue_id}"
            last = store.store_timestamp(topic, queue_id, queue.max_offset - 1)
            assert last == expected["lastUpdateTimestamp"]
            messages = read_messages(store, topic, queue_id)
            if topic in COMPACTION_TOPICS:
                assert len(messages) == len(expected["messages"])
            else:
                assert list(map(as_recorded, messages)) == list(map(recorded, expected["messages"]))


# Content


def test_everything_is_served_as_the_reference_served_it(
    archive: str, golden: Path, store: MessageStore
) -> None:
    assert store.report.clean_exit == (archive != "crash")
    assert store.report.problems == []
    assert store.report.damages == []
    check_queues(store, golden_topics(golden, archive))


def test_the_reader_gives_the_same(archive: str, golden: Path, root: Path) -> None:
    """Read-only, on the directory as it is: a crashed one lacks what only recovery finds."""
    reader = StoreReader(root, index_slots=500, index_items=2000)
    for topic, queues in golden_topics(golden, archive).items():
        for number, expected in queues.items():
            found = reader.queue_range(topic, int(number))
            if archive == "crash" and (found is None or found.max_offset < expected["maxOffset"]):
                assert topic == "TopicBurst"  # the queues it was sending to when it was killed
                continue
            assert found is not None
            assert (found.min_offset, found.max_offset) == (expected["minOffset"], expected["maxOffset"])
            assert found.last_timestamp == expected["lastUpdateTimestamp"]
            messages = list(reader.messages(topic, int(number)))
            if topic not in COMPACTION_TOPICS:
                assert list(map(as_recorded, messages)) == list(map(recorded, expected["messages"]))


def test_bodies_decompress_to_what_clients_saw(golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "clean", tmp_path)
    reader = StoreReader(root, index_slots=500, index_items=2000)
    seen = 0
    for number, expected in golden_topics(golden, "clean")["TopicCompressed"].items():
        for stored, recording in zip(
            reader.messages("TopicCompressed", int(number)), expected["messages"], strict=True
        ):
            if stored.sys_flag & SystemFlag.COMPRESSED and stored.sys_flag & 0x700 in (0, SystemFlag.ZLIB):
                body = zlib.decompress(stored.body)
                assert hashlib.sha256(body).hexdigest() == recording["bodySha256"]
                assert len(body) == recording["bodySize"]
                seen += 1
    assert seen


def test_records_of_transactions_under_way_have_no_unit(golden: Path, tmp_path: Path) -> None:
    """The recording has two such records, sent by a probe: they are in the log and in no queue."""
    root = unpack_golden(golden, "clean", tmp_path)
    reader = StoreReader(root, index_slots=500, index_items=2000)
    found = [record for record in reader.records() if record.sys_flag & SystemFlag.TRANSACTION_PREPARED]
    assert sorted(record.sys_flag & TRANSACTION_MASK for record in found) == [4, 12]
    units = {
        unit[0]
        for queues in golden_topics(golden, "clean").values()
        for queue in queues.values()
        for unit in queue["units"]
    }
    assert not units & {record.physical_offset for record in found}


def test_messages_are_found_by_id(archive: str, golden: Path, store: MessageStore) -> None:
    for topic, queues in golden_topics(golden, archive).items():
        for queue in queues.values():
            records = [message for message in queue["messages"] if "offsetMsgId" in message]
            for expected in records if topic not in COMPACTION_TOPICS else []:
                assert as_recorded(store.message_by_id(expected["offsetMsgId"])) == recorded(expected)


def test_messages_are_found_by_key(archive: str, golden: Path, store: MessageStore) -> None:
    """Every key and unique key of every message: in `crash` also those that its index did not know."""
    store.build_index()
    expected: dict[tuple[str, str], list[int]] = {}
    for topic, queues in golden_topics(golden, archive).items():
        for queue in queues.values():
            units = queue["units"]
            if len(units) < len(queue["messages"]):
                continue  # keys of messages in inner batches are not in the index
            for (physical_offset, _, _), recording in zip(units, queue["messages"], strict=True):
                keys = {*recording.get("keys", "").split(" "), recording.get("uniqKey", "")} - {""}
                for key in keys:
                    expected.setdefault((topic, key), []).append(physical_offset)
    assert expected
    for (topic, key), physical_offsets in expected.items():
        found = store.messages_by_key(topic, key, maximum=64)
        offsets = [message.physical_offset for message in found]
        assert offsets == sorted(physical_offsets)[-64:], f"{topic} {key}"


def test_inner_batches_and_transactions_under_way_are_in_the_index(golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "clean", tmp_path)
    reader = StoreReader(root, index_slots=500, index_items=2000)
    assert reader.index is not None
    found = {}
    for record in reader.records():
        key = find_unique_key(record.properties)
        if record.sys_flag & 0x8C and key is not None:
            result = reader.index.query(record.topic.decode(), key.decode(), 32, 0, 1 << 62)
            found[record.sys_flag & 0x8C] = record.physical_offset in result.physical_offsets
    # All but rolled-back ones, as the reference does it.
    assert found[SystemFlag.INNER_BATCH]
    assert found.get(SystemFlag.TRANSACTION_PREPARED, True)
    assert not found.get(SystemFlag.TRANSACTION_ROLLBACK, False)


# Recovery


def test_the_smallest_blank_and_the_smallest_queue_files(golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "clean", tmp_path)
    first = (root / "commitlog" / f"{0:020d}").read_bytes()
    assert first[-8:].hex() == "00000008cbd43194"
    with opened(golden_settings(golden, root), RealDisk(), SystemClock()) as store:
        assert store.queue("TopicFill", 0).file_starts == [0, 6000]


def test_a_damaged_tail_costs_only_the_damaged_record(golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "crash", tmp_path)
    path = root / "commitlog" / f"{917504:020d}"
    data = bytearray(path.read_bytes())
    data[14697] ^= 0xFF
    path.write_bytes(data)
    topics = golden_topics(golden, "crash")
    burst = topics["TopicBurst"]["1"]
    assert burst["units"].pop()[0] == 932111
    lost = burst["messages"].pop()
    burst["maxOffset"] -= 1
    assert burst["maxOffset"] == 295
    burst["lastUpdateTimestamp"] = burst["messages"][-1]["storeTimestamp"]
    store = MessageStore(golden_settings(golden, root))
    report = store.open()
    assert report.end == lost["physicalOffset"] == 932111
    assert any("932111" in problem for problem in report.problems)
    check_queues(store, topics)
    assert store.messages_by_key("TopicBurst", lost["keys"]) == []
    # The offset of the lost message goes to the next one, as in the reference.
    assert placed(store.append([message("TopicBurst", 1)])[0]).queue_offset == 295
    store.close()


DERIVED = ("consumequeue", "index", "checkpoint")


@pytest.mark.parametrize(
    "lost",
    [
        ("batchconsumequeue", *DERIVED),
        *(pytest.param((name,), marks=pytest.mark.nightly) for name in DERIVED),
    ],
)
def test_what_is_derived_is_built_again(
    archive: str, golden: Path, root: Path, lost: tuple[str, ...]
) -> None:
    for name in lost:
        if (root / name).is_dir():
            shutil.rmtree(root / name)
        else:
            (root / name).unlink(missing_ok=True)
    store = MessageStore(golden_settings(golden, root))
    store.open()
    check_queues(store, golden_topics(golden, archive))
    assert not (root / "consumequeue" / "TopicInnerBatch").exists()
    test_messages_are_found_by_key(archive, golden, store)
    store.close()


def test_a_store_goes_on_from_there(archive: str, golden: Path, root: Path) -> None:
    settings = golden_settings(golden, root)
    topics = golden_topics(golden, archive)
    with opened(settings, RealDisk(), SystemClock()) as store:
        end = store.appended_offset
        before = {name: store.max_offset(*name) for name in store.queues}
        for (topic, queue_id), end_offset in before.items():
            put = message(topic, queue_id, b"ours", tags="ours", keys=f"ours-{queue_id}")
            result = placed(store.append([put])[0])
            assert result.queue_offset == end_offset
            assert result.physical_offset >= end
    with opened(settings, RealDisk(), SystemClock()) as store:
        assert store.report.clean_exit
        assert store.report.problems == []
        for (topic, queue_id), end_offset in before.items():
            last = read_queue(store, topic, queue_id)[-1]
            assert (last.body, last.queue_offset) == (b"ours", end_offset)
            found = store.messages_by_key(topic, f"ours-{queue_id}")
            assert [each.physical_offset for each in found] == [last.physical_offset]
        for topic, queues in topics.items():
            for number, expected in queues.items():
                messages = read_messages(store, topic, int(number))[:-1]
                if topic not in COMPACTION_TOPICS:
                    assert list(map(as_recorded, messages)) == list(map(recorded, expected["messages"]))


def test_what_is_not_supported_is_left_untouched(archive: str, golden: Path, root: Path) -> None:
    before = tree(root, UNSUPPORTED_TREES)
    assert before
    settings = golden_settings(golden, root)
    for _ in range(2):
        with opened(settings, RealDisk(), SystemClock()) as store:
            store.append([message("TopicTest", 0, b"ours")])
    assert tree(root, UNSUPPORTED_TREES) == before


def test_opening_and_closing_a_clean_store_changes_no_data(golden: Path, tmp_path: Path) -> None:
    root = unpack_golden(golden, "clean", tmp_path)
    trees = ("commitlog", "consumequeue", "batchconsumequeue", "index")
    before = tree(root, trees)
    with opened(golden_settings(golden, root), RealDisk(), SystemClock()):
        pass
    assert tree(root, trees) == before
    assert not (root / "abort").exists()
