"""All queues of a store: made by the look-up, found on disk, gone with their topic."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from skylark.store.disk import RealDisk
from skylark.store.queue_table import OPEN_QUEUE_FILES_MAX, QueueTable
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import ROOT, simulated_disk, small_settings

DIRECTORY = ROOT / "consumequeue"


@pytest.fixture
def disk() -> SimulatedDisk:
    return simulated_disk()


@pytest.fixture
def table(disk: SimulatedDisk) -> QueueTable:
    return table_on(disk)


def table_on(disk: SimulatedDisk | RealDisk, root: Path = ROOT) -> QueueTable:
    settings = small_settings(consume_queue_file_bytes=200, batch_consume_queue_file_bytes=460)
    return QueueTable(disk, root, settings, threading.Lock())


def fill(table: QueueTable, topic: str, queue_id: int, count: int) -> None:
    queue = table[topic, queue_id]
    for number in range(count):
        queue.add(number, number * 100, 100, 0)
    queue.write()
    queue.sync()


def test_a_queue_is_made_by_asking_for_it(disk: SimulatedDisk, table: QueueTable) -> None:
    assert table.get(("T", 0)) is None
    queue = table["T", 0]
    assert (queue.topic, queue.queue_id, queue.directory) == ("T", 0, DIRECTORY / "T" / "0")
    assert table["T", 0] is queue
    assert table["T", 1] is not queue
    assert disk.paths(DIRECTORY) == []


@pytest.mark.parametrize(("topic", "queue_id"), [("", 0), ("../x", 0), ("T", -1), ("T", 1 << 31)])
def test_impossible_queues_are_not_made(table: QueueTable, topic: str, queue_id: int) -> None:
    with pytest.raises(ValueError, match=r"topic|queue id"):
        table[topic, queue_id]
    assert not table


def test_queues_are_found_on_disk(disk: SimulatedDisk, table: QueueTable) -> None:
    fill(table, "alpha", 0, 3)
    fill(table, "alpha", 11, 12)
    fill(table, "beta", 0, 1)
    table["gamma", 0]
    again = table_on(disk)
    assert again.load() == []
    assert {name: queue.max_offset for name, queue in again.items()} == {
        ("alpha", 0): 3,
        ("alpha", 11): 12,
        ("beta", 0): 1,
    }
    assert again.topics() == ["alpha", "beta"]
    assert sorted(queue.queue_id for queue in again.of_topic("alpha")) == [0, 11]


def test_what_is_no_queue_is_told(disk: SimulatedDisk, table: QueueTable) -> None:
    fill(table, "alpha", 0, 3)
    file = "00000000000000000000"
    for path in (
        ("alpha", "one"),
        ("alpha", "²"),
        ("t" * 130, "0"),
        ("back\\slash", "1"),
        ("alpha", "2147483648"),
    ):
        disk.create(DIRECTORY / path[0] / path[1] / file, 200)
    disk.make_directory(DIRECTORY / "empty" / "0")
    again = table_on(disk)
    problems = {str(problem.path).removeprefix(str(DIRECTORY)): problem.reason for problem in again.load()}
    assert set(problems) == {
        "/alpha/one",
        "/alpha/²",
        f"/{'t' * 130}/0",
        "/back\\slash/1",
        "/alpha/2147483648",
    }
    assert problems["/alpha/one"] == "the directory's name is not a queue id"
    assert list(again) == [("alpha", 0)]


def test_problems_of_files_are_passed_on(disk: SimulatedDisk, table: QueueTable) -> None:
    fill(table, "alpha", 0, 12)
    disk.cut(DIRECTORY / "alpha" / "0" / "00000000000000000200", 5)
    again = table_on(disk)
    assert [problem.reason for problem in again.load()] == ["has 5 bytes instead of 200"]
    assert again["alpha", 0].max_offset == 10


def test_topics_with_a_directory_of_batch_queues_are_batched(disk: SimulatedDisk) -> None:
    disk.create(ROOT / "batchconsumequeue" / "inner" / "0" / "00000000000000000000", 460)
    table = table_on(disk)
    assert table.load() == []
    assert table["inner", 0].is_batched
    assert table["inner", 1].directory == ROOT / "batchconsumequeue" / "inner" / "1"
    assert not table["other", 0].is_batched


def test_topics_are_batched_by_their_attributes(table: QueueTable) -> None:
    table.is_declared_batched = lambda topic: topic == "inner"
    assert table["inner", 0].is_batched
    assert not table["other", 0].is_batched


def test_the_first_record_of_a_topic_may_tell_that_it_is_batched(table: QueueTable) -> None:
    assert not table.for_record("plain", 0, is_inner_batch=False).is_batched
    assert not table.for_record("plain", 1, is_inner_batch=True).is_batched
    assert table.for_record("inner", 0, is_inner_batch=True).is_batched
    assert table.for_record("inner", 1, is_inner_batch=False).is_batched


def test_plain_queues_of_a_batched_topic_are_told(disk: SimulatedDisk, table: QueueTable) -> None:
    fill(table, "inner", 0, 3)
    again = table_on(disk)
    again.is_declared_batched = lambda topic: topic == "inner"
    assert [str(problem.path) for problem in again.load()] == [str(DIRECTORY / "inner")]
    assert again["inner", 0].max_offset == 0


# Deleting


def test_a_topic_goes_with_its_files(disk: SimulatedDisk, table: QueueTable) -> None:
    fill(table, "alpha", 0, 12)
    fill(table, "alpha", 1, 2)
    fill(table, "alphabet", 0, 2)
    table.forget_topic("alpha")
    table.delete_files("alpha")
    assert list(table) == [("alphabet", 0)]
    assert disk.directories(DIRECTORY) == ["alphabet"]
    assert table["alpha", 0].max_offset == 0
    table.forget_topic("never-there")
    table.delete_files("never-there")


@pytest.mark.parametrize("topic", ["", ".", "..", "../commitlog", "a/b"])
def test_only_topics_can_be_deleted(disk: SimulatedDisk, table: QueueTable, topic: str) -> None:
    """The name becomes a path: one that leads elsewhere must not take anything with it."""
    fill(table, "alpha", 0, 2)
    disk.create(ROOT / "commitlog" / "file", 10)
    disk.create(DIRECTORY / "a" / "b" / "file", 10)
    before = disk.paths(ROOT)
    for delete in (table.forget_topic, table.delete_files):
        with pytest.raises(ValueError, match="topic"):
            delete(topic)
    assert disk.paths(ROOT) == before


# Many


def test_open_files_are_bounded(tmp_path: Path) -> None:
    table = table_on(RealDisk(), tmp_path)
    count = OPEN_QUEUE_FILES_MAX + 100
    for number in range(count):
        queue = table[f"topic-{number % 100}", number]
        queue.add(0, number, 100, number)
        queue.write()
    gc.collect()
    held = [path for path in Path("/proc/self/fd").iterdir() if str(tmp_path) in str(path.resolve())]
    assert len(held) <= OPEN_QUEUE_FILES_MAX
    for number in range(count):
        assert table[f"topic-{number % 100}", number].entry(0) == (number, 100, number)
