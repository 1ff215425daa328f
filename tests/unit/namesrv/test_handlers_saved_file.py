"""A file that follows a value: written in a thread, changes shared, failures told."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skylark.namesrv.handlers import SavedFile


class Source:
    """A value and how often it was written. `gate` holds the writing thread up."""

    def __init__(self, path: Path, executor: ThreadPoolExecutor) -> None:
        self.value = 0
        self.written: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.file = SavedFile(path, executor, snapshot=lambda: self.value, encode=self.encode)

    def encode(self, value: int) -> bytes:
        assert self.gate.wait(20)
        self.written.append(value)
        return b"%d" % value


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    with ThreadPoolExecutor(1) as executor:
        source = Source(tmp_path / "new" / "file.json", executor)
        yield source
        source.gate.set()


async def test_saved_means_on_the_disk(source: Source) -> None:
    source.value = 7
    await source.file.save()
    assert source.file.path.read_bytes() == b"7"
    source.value = 8
    await source.file.save()
    assert source.file.path.read_bytes() == b"8"
    assert source.file.path.with_name("file.json.bak").read_bytes() == b"7"


async def test_changes_made_during_a_write_share_the_next(source: Source) -> None:
    source.gate.clear()
    saves = []
    for value in range(1, 101):
        source.value = value
        saves.append(asyncio.ensure_future(source.file.save()))
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(save.done() for save in saves)
    source.gate.set()
    await asyncio.gather(*saves)
    assert source.written == [1, 100]
    assert source.file.path.read_bytes() == b"100"


async def test_a_write_that_fails_is_told_and_the_next_tries_again(source: Source) -> None:
    source.file.path.mkdir(parents=True)
    source.value = 1
    with pytest.raises(OSError, match=r"file\.json"):
        await source.file.save()
    source.file.path.rmdir()
    source.value = 2
    await source.file.save()
    assert source.file.path.read_bytes() == b"2"


async def test_a_cancelled_save_does_not_stop_the_others(source: Source) -> None:
    source.gate.clear()
    source.value = 1
    first = asyncio.ensure_future(source.file.save())
    await asyncio.sleep(0)
    source.value = 2
    second = asyncio.ensure_future(source.file.save())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    source.gate.set()
    await second
    assert source.file.path.read_bytes() == b"2"
