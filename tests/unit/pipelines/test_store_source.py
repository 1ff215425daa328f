"""Store directories that Apache's broker wrote give exactly what it served from them, and are not touched."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from skylark.errors import NoRoute
from skylark.model.java import java_hash
from skylark.model.message import PutMessage, format_host, pack_host
from skylark.model.record import UNWRAPPED_BY_CLIENTS
from skylark.pipelines.message_source import DataLost, LossPolicy, OffsetRange
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import plan, read_range, read_ranges
from skylark.pipelines.schema import COLUMNS, arrow_schema, spark_schema
from skylark.pipelines.store_source import StoreSource, shared_reader
from skylark.protocol.bodies import MessageQueue
from skylark.settings import StoreSettings
from skylark.store.disk import RealDisk
from tests.support.directory import fingerprint, flip
from tests.support.store import golden_topics, opened, unpack_golden

ALL = arrow_schema(spark_schema(COLUMNS))


def rows(directory: Path, topic: str, **options: str) -> list[dict[str, Any]]:
    given = {"path": str(directory), "topic": topic, **options}
    return [
        row
        for item in plan(given)
        for batch in read_range(given, item.range, list(COLUMNS))
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("name", ["clean", "crc"])
def test_golden_stores_give_what_apache_served(golden: Path, tmp_path: Path, name: str) -> None:
    directory = unpack_golden(golden, name, tmp_path)
    before = fingerprint(directory)
    expected = golden_topics(golden, name)
    compared = 0
    for topic, queues in expected.items():
        found = rows(directory, topic)
        for queue_id, queue in queues.items():
            mine = [row for row in found if row["queueId"] == int(queue_id)]
            if topic == "TopicCompact":  # its messages are shown as sent, not compacted
                assert len(mine) == len(queue["units"])
                continue
            assert len(mine) == len(queue["messages"])
            for row, message in zip(mine, queue["messages"], strict=True):
                check(row, message)
                compared += 1
    assert compared > 10
    assert fingerprint(directory) == before


def check(row: dict[str, Any], message: dict[str, Any]) -> None:
    properties = message["properties"]
    shown = {name: value for name, value in row["properties"] if name != "__CRC32#"}
    assert shown == {name: value for name, value in properties.items() if name in shown}
    assert row["queueOffset"] == message["queueOffset"]
    assert row["physicalOffset"] == message["physicalOffset"]
    assert row["msgId"] == message.get("offsetMsgId", row["msgId"])  # messages of a batch have none
    assert row["uniqKey"] == shown.get("UNIQ_KEY")
    assert (row["tags"], row["keys"]) == (properties.get("TAGS"), properties.get("KEYS"))
    assert hashlib.sha256(row["body"]).hexdigest() == message["bodySha256"]
    assert row["bornTimestamp"].timestamp() * 1000 == pytest.approx(message["bornTimestamp"], abs=0.01)
    assert row["storeTimestamp"].timestamp() * 1000 == pytest.approx(message["storeTimestamp"], abs=0.01)
    assert (row["bornHost"], row["storeHost"]) == (host(message["bornHost"]), host(message["storeHost"]))
    assert (row["flag"], row["sysFlag"]) == (message["flag"], message["sysFlag"] & ~UNWRAPPED_BY_CLIENTS)
    assert row["reconsumeTimes"] == message["reconsumeTimes"]


def host(java_text: str) -> str:
    """Java writes IPv6 addresses in full and without brackets."""
    address, _, port = java_text.rpartition(":")
    return format_host(pack_host(address, int(port)))


def test_a_store_after_a_crash_shows_what_reached_its_queues(golden: Path, tmp_path: Path) -> None:
    directory = unpack_golden(golden, "crash", tmp_path)
    compared = 0
    for topic, queues in golden_topics(golden, "crash").items():
        if topic == "TopicCompact":
            continue
        found = rows(directory, topic)
        for queue_id, queue in queues.items():
            mine = [row for row in found if row["queueId"] == int(queue_id)]
            for row, message in zip(mine, queue["messages"], strict=False):
                check(row, message)
                compared += 1
    assert compared > 10


def test_inner_batches_become_rows(golden: Path, clean: Path) -> None:
    expected = golden_topics(golden, "clean")["TopicInnerBatch"]["0"]["messages"]
    found = rows(clean, "TopicInnerBatch")
    assert [row["queueOffset"] for row in found] == [message["queueOffset"] for message in expected]
    assert [row["uniqKey"] for row in found] == [message["uniqKey"] for message in expected]
    assert [dict(row["properties"]) for row in found] == [message["properties"] for message in expected]


@pytest.fixture
def clean(golden: Path, tmp_path: Path) -> Path:
    return unpack_golden(golden, "clean", tmp_path)


def a_topic_with(golden: Path, what: str) -> tuple[str, str]:
    """A topic and a value of one property of its first message that has it."""
    for topic, queues in golden_topics(golden, "clean").items():
        for queue in queues.values():
            for message in queue.get("messages", []):
                if what in message["properties"] and topic not in ("TopicInnerBatch", "TopicCompact"):
                    return topic, message["properties"][what]
    raise AssertionError(f"no message has {what}")


def test_tags_are_filtered_by_hash_and_then_exactly(golden: Path, clean: Path) -> None:
    topic, tag = a_topic_with(golden, "TAGS")
    all_rows = rows(clean, topic)
    wanted = [row for row in all_rows if row["tags"] == tag]
    assert wanted
    assert rows(clean, topic, tags=f"{tag} || nothing") == wanted
    assert rows(clean, topic, tags="nothing") == []
    assert java_hash("Aa") == java_hash("BB")  # so a hash alone would not do


def test_keys_and_ids_are_found_without_a_scan(golden: Path, clean: Path) -> None:
    shared_reader.cache_clear()
    options = load(SourceOptions, {"path": str(clean), "topic": "x"})
    origin = StoreSource(options)
    topic, _ = a_topic_with(golden, "KEYS")
    row = next(row for row in rows(clean, topic) if row["keys"])
    place = OffsetRange(
        MessageQueue(topic, "store", row["queueId"]), row["queueOffset"], row["queueOffset"] + 1
    )
    assert origin.by_message_id([topic], row["msgId"]) == [place]
    assert origin.by_message_id(["other"], row["msgId"]) == []
    assert origin.by_message_id([topic], "no id") == []


def test_byte_limits_are_exact(golden: Path, clean: Path) -> None:
    queues = golden_topics(golden, "clean")
    topic, (queue_id, queue) = max(
        ((topic, item) for topic, found in queues.items() for item in found.items()),
        key=lambda pair: len(pair[1][1]["units"]),
    )
    origin = StoreSource(load(SourceOptions, {"path": str(clean), "topic": topic}))
    whole = OffsetRange(MessageQueue(topic, "store", int(queue_id)), queue["minOffset"], queue["maxOffset"])
    sizes = [unit[1] for unit in queue["units"]]
    for count in (0, 1, 3, len(sizes)):
        assert origin.end_within(whole, sum(sizes[:count]), 0.0) == whole.from_offset + count
        if count < len(sizes):
            assert (
                origin.end_within(whole, sum(sizes[:count]) + sizes[count] - 1, 0.0)
                == whole.from_offset + count
            )


def test_damage_is_an_error_or_is_skipped_with_a_count(golden: Path, clean: Path) -> None:
    topic, _ = a_topic_with(golden, "TAGS")
    row = rows(clean, topic)[0]
    log_file = clean / "commitlog" / f"{row['physicalOffset'] // 65536 * 65536:020}"
    flip(log_file, row["physicalOffset"] % 65536 + 4)  # its magic
    with pytest.raises(Exception, match=f"physical offset {row['physicalOffset']}") as failed:
        rows(clean, topic)
    place = f"while reading topic {topic}, broker store, queue {row['queueId']}, from offset "
    assert [note for note in failed.value.__notes__ if note.startswith(place)]
    assert len(rows(clean, topic, failOnDataLoss="false")) == len(
        rows(clean, topic, tags="*", failOnDataLoss="false")
    )
    assert row["queueOffset"] not in [
        other["queueOffset"]
        for other in rows(clean, topic, failOnDataLoss="false")
        if other["queueId"] == row["queueId"]
    ]


def test_a_damaged_body_is_found_when_asked_for(golden: Path, clean: Path) -> None:
    topic, _ = a_topic_with(golden, "TAGS")
    row = next(row for row in rows(clean, topic) if len(row["body"]) > 1)
    log_file = clean / "commitlog" / f"{row['physicalOffset'] // 65536 * 65536:020}"
    flip(log_file, row["physicalOffset"] % 65536 + 88)  # its body's first byte
    count = len(rows(clean, topic))
    with pytest.raises(Exception, match="CRC"):
        rows(clean, topic, checkCrc="true")
    assert len(rows(clean, topic, checkCrc="true", failOnDataLoss="false")) == count - 1


def test_files_deleted_after_planning_are_told(golden: Path, clean: Path) -> None:
    topic, _ = a_topic_with(golden, "TAGS")
    shared_reader.cache_clear()
    given = {"path": str(clean), "topic": topic}
    planned = plan(given)
    for path in sorted((clean / "commitlog").iterdir())[:-1]:
        path.unlink()
    with pytest.raises(DataLost, match="are lost"):
        for item in planned:
            list(read_range(given, item.range, ["queueOffset"]))
    skipping = load(SourceOptions, {**given, "failOnDataLoss": "false"})
    losses = LossPolicy(skipping)
    assert losses.lost == 0
    schema = arrow_schema(spark_schema({"queueOffset": COLUMNS["queueOffset"]}))
    left = [
        batch.num_rows
        for batch in read_ranges(skipping, [OffsetRange.from_bytes(item.range) for item in planned], schema)
    ]
    assert sum(left) < sum(item.messages for item in planned)


def test_an_unknown_topic_or_directory(clean: Path, tmp_path: Path) -> None:
    origin = StoreSource(load(SourceOptions, {"path": str(clean), "topic": "x"}))
    with pytest.raises(NoRoute):
        origin.queues("nobody")
    with pytest.raises(Exception, match="no such directory"):
        plan({"path": str(tmp_path / "nowhere"), "topic": "x"})


def test_a_store_that_was_opened_long_ago_shows_what_came_since(tmp_path: Path) -> None:
    for topic in ("first", "second"):
        with opened(StoreSettings(path=tmp_path), RealDisk()) as store:
            store.append([PutMessage(topic, 0, b"x")])
        # Each time the reader that this process keeps is older than the topic.
        assert topic in StoreSource(load(SourceOptions, {"path": str(tmp_path), "topic": topic})).topics()
