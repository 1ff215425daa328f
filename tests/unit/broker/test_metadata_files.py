"""Metadata files: written by a thread, together, and read again whatever happened."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from skylark.broker.metadata_files import MetadataFile, MetadataWriter, load_metadata
from skylark.broker.metadata_json import Encode
from skylark.broker.topics import TopicTable
from skylark.errors import BadStoreFile
from tests.unit.broker.tables import NOW_MS, live


class Table:
    """A number, written as text."""

    def __init__(self) -> None:
        self.number = 0

    def snapshot(self) -> Encode:
        number = self.number
        return lambda: b"%d" % number

    def load(self, data: bytes) -> None:
        self.number = int(data)


# --- Without a loop ---


def test_a_file_is_dirty_until_a_write_that_began_after_the_change_has_ended(tmp_path: Path) -> None:
    table = Table()
    file = MetadataFile(tmp_path / "n.json", table.snapshot)
    assert not file.is_dirty
    table.number = 1
    file.mark()
    first = file.begin()
    table.number = 2
    file.mark()
    first.run()
    assert file.path.read_bytes() == b"1"
    assert file.is_dirty
    first.done()
    assert file.is_dirty
    second = file.begin()
    second.run()
    second.done()
    assert not file.is_dirty
    assert file.path.read_bytes() == b"2"
    assert file.path.with_name("n.json.bak").read_bytes() == b"1"
    assert file.writes == 2


def test_a_table_is_loaded_from_its_file_or_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "n.json"
    table = Table()
    assert not load_metadata(path, table.load)
    path.with_name("n.json.bak").write_bytes(b"7")
    assert load_metadata(path, table.load)
    assert table.number == 7
    path.write_bytes(b"damaged")
    assert load_metadata(path, table.load)
    assert table.number == 7
    path.write_bytes(b"8")
    assert load_metadata(path, table.load)
    assert table.number == 8
    path.write_bytes(b"damaged")
    path.with_name("n.json.bak").write_bytes(b"as well")
    with pytest.raises(BadStoreFile):
        load_metadata(path, table.load)


def test_topics_survive_a_damaged_file(tmp_path: Path) -> None:
    topics = TopicTable(live(), now_ms=NOW_MS)
    file = MetadataFile(tmp_path / "config" / "topics.json", topics.snapshot)
    topics.on_change = file.mark
    for topic in ("t1", "t2"):
        topics.for_send(topic, "TBW102", 4, now_ms=NOW_MS)
        write = file.begin()
        write.run()
        write.done()
    file.path.write_bytes(file.path.read_bytes()[:100])
    again = TopicTable(live(), now_ms=NOW_MS)
    assert load_metadata(file.path, again.load)
    assert again.get("t1") is not None
    assert again.get("t2") is None


# --- With a loop ---


async def run_while(writer: MetadataWriter, condition: Callable[[], bool]) -> None:
    """Let the writer run until the condition holds."""
    task = asyncio.ensure_future(writer.run())
    try:
        async with asyncio.timeout(60):
            while not condition():
                assert not task.done()
                await asyncio.sleep(0.001)
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_ten_thousand_new_topics_are_written_a_few_times(tmp_path: Path) -> None:
    topics = TopicTable(live(), now_ms=NOW_MS)
    writer = MetadataWriter(gather_s=0.01)
    file = writer.add(tmp_path / "topics.json", topics.snapshot)
    topics.on_change = file.mark

    async def make_topics() -> None:
        for number in range(10_000):
            topics.for_send(f"t{number}", "TBW102", 4, now_ms=NOW_MS)
            if number % 100 == 0:
                await asyncio.sleep(0)

    making = asyncio.ensure_future(make_topics())
    await run_while(writer, lambda: making.done() and not file.is_dirty)
    assert 1 <= file.writes <= 50
    again = TopicTable(live(), now_ms=NOW_MS)
    assert load_metadata(file.path, again.load)
    assert len(again) == len(topics)


async def test_only_what_is_marked_is_written(tmp_path: Path) -> None:
    table = Table()
    writer = MetadataWriter(gather_s=0)
    marked = writer.add(tmp_path / "a.json", table.snapshot)
    other = writer.add(tmp_path / "b.json", table.snapshot)
    marked.mark()
    await run_while(writer, lambda: not marked.is_dirty)
    assert (marked.writes, other.writes) == (1, 0)
    assert not other.path.exists()


async def test_flush_writes_what_is_left(tmp_path: Path) -> None:
    table = Table()
    writer = MetadataWriter(gather_s=3600)
    file = writer.add(tmp_path / "a.json", table.snapshot)
    await writer.flush()
    assert file.writes == 0
    table.number = 5
    file.mark()
    await writer.flush()
    assert file.path.read_bytes() == b"5"
    assert not file.is_dirty


async def test_a_stuck_disk_holds_up_the_writer_alone_and_never_two_write_one_file(tmp_path: Path) -> None:
    table = Table()
    stuck, release = threading.Event(), threading.Event()
    writing = 0
    at_once = 0

    def slowly(work: Callable[[], None]) -> None:
        nonlocal writing, at_once
        writing += 1
        at_once = max(at_once, writing)
        stuck.set()
        assert release.wait(60)
        work()
        writing -= 1

    async def run_blocking(work: Callable[[], None]) -> None:
        await asyncio.to_thread(slowly, work)

    writer = MetadataWriter(gather_s=0, run_blocking=run_blocking)
    file = writer.add(tmp_path / "a.json", table.snapshot)
    table.number = 1
    file.mark()
    await run_while(writer, stuck.is_set)  # cancelled in the middle of the write
    table.number = 2
    file.mark()
    flush = asyncio.ensure_future(writer.flush())
    await asyncio.sleep(0.02)  # the loop runs on
    assert not flush.done()
    release.set()
    async with asyncio.timeout(60):
        await flush
    assert at_once == 1
    assert file.path.read_bytes() == b"2"
    assert not file.is_dirty


async def test_a_failing_disk_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    failures = [OSError("no space"), OSError("no space")]

    async def run_blocking(work: Callable[[], None]) -> None:
        if failures:
            raise failures.pop()
        work()

    writer = MetadataWriter(gather_s=0, retry_s=0.001, run_blocking=run_blocking)
    bad = writer.add(tmp_path / "a.json", table.snapshot)
    good = writer.add(tmp_path / "b.json", table.snapshot)
    bad.mark()
    with pytest.raises(OSError, match="no space"):
        await writer.flush()
    assert bad.is_dirty
    good.mark()
    await run_while(writer, lambda: not bad.is_dirty and not good.is_dirty)
    assert "cannot write metadata, retrying" in caplog.text
    assert (bad.writes, good.writes) == (1, 1)
