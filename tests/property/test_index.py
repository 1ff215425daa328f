"""The index against a dictionary, through flushes, reopenings, deletions, crashes and damaged bytes."""

import struct
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.clock import SystemClock
from skylark.model.java import java_hash
from skylark.model.message import encode_properties
from skylark.store.append_result import AppendedBatch
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import Disk, DiskFile, Part, RealDisk
from skylark.store.index import Index, IndexReader
from skylark.store.index_file import ITEM, IndexGeometry

TOPIC = "T"
FOREVER = (0, 1 << 62)
KEYS = ["a", "b", "c", "d", "e", "unique", "订单"]
ALL = 1 << 30


@dataclass(frozen=True)
class Queue:
    topic_hash: int


@dataclass(frozen=True)
class Entry:
    queue: Queue
    properties: bytes
    physical_offset: int
    store_timestamp: int
    keys: tuple[str, ...]


QUEUE = Queue(java_hash(TOPIC + "#"))
geometries = st.builds(IndexGeometry, st.integers(1, 40), st.integers(2, 12))
key_lists = st.lists(st.sampled_from(KEYS), max_size=4).map(tuple)


class Log:
    """Messages as the commit log would bring them: ascending offsets, times that never go back."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.end = 0
        self._timestamp = 1_700_000_000_000

    def append(self, keys: tuple[str, ...], elapsed_ms: int) -> Entry:
        self._timestamp += elapsed_ms
        properties = {"UNIQ_KEY": keys[0]} if keys else {}
        if keys[1:]:
            properties["KEYS"] = " ".join(keys[1:])
        entry = Entry(QUEUE, encode_properties(properties), self.end, self._timestamp, keys)
        self.entries.append(entry)
        self.end += 100
        return entry

    def truncate(self, physical_offset: int) -> None:
        self.entries = [each for each in self.entries if each.physical_offset < physical_offset]
        self.end = physical_offset

    def offsets(self, key: str, low: int = 0) -> list[int]:
        return [
            each.physical_offset for each in self.entries if key in each.keys and each.physical_offset >= low
        ]


def open_index(disk: Disk, directory: Path, geometry: IndexGeometry, *, clean: bool) -> Index:
    return Index.open(
        disk,
        directory,
        slots=geometry.slots,
        items=geometry.items,
        clock=SystemClock(),
        lock=threading.Lock(),
        clean=clean,
    )


def build(index: Index, entries: Sequence[Entry]) -> None:
    index.enqueue(entries)
    while index.build(3):
        pass


def found(index: Index | IndexReader, key: str) -> list[int]:
    return index.query(TOPIC, key, ALL, *FOREVER).physical_offsets


def assert_well_formed(directory: Path, geometry: IndexGeometry) -> None:
    """From the slots, every counted item is reached once, along falling numbers, in its own slot's chain."""
    for path in directory.iterdir():
        data = path.read_bytes()
        slots_used, next_item = struct.unpack_from(">ii", data, 32)
        reached = set()
        heads = struct.unpack_from(f">{geometry.slots}i", data, 40)
        assert slots_used == sum(head != 0 for head in heads)
        for slot, head in enumerate(heads):
            number = head
            while number:
                assert 0 < number < next_item
                key_hash, _, seconds, previous = ITEM.unpack_from(data, geometry.item_position(number))
                assert key_hash % geometry.slots == slot and seconds >= 0 and previous < number
                assert number not in reached
                reached.add(number)
                number = previous
        assert len(reached) == next_item - 1


# --- A dictionary as the model ---

steps = st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(key_lists, st.integers(0, 400)), min_size=1, max_size=6)),
    st.tuples(st.just("build"), st.integers(1, 5)),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("reopen"), st.booleans()),
    st.tuples(st.just("delete"), st.floats(0, 1.2)),
    st.tuples(st.just("truncate"), st.floats(0, 1.1)),
)


@given(geometry=geometries, plan=st.lists(steps, max_size=25))
@settings(max_examples=70)
def test_the_index_answers_like_a_dictionary(geometry: IndexGeometry, plan: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "index"
        index, log = open_index(CrashingDisk(), directory, geometry, clean=True), Log()
        built = 0  # entries that build has seen
        low = 0  # the lowest offset that every answer must go down to
        for step, argument in plan:
            match step, argument:
                case "put", list(messages):
                    index.enqueue([log.append(keys, elapsed_ms) for keys, elapsed_ms in messages])
                case "build", int(limit):
                    waiting = index.pending_count
                    assert index.build(limit) == (waiting > limit)
                    built += min(limit, waiting)
                case "flush", _:
                    index.flush()
                case "reopen", bool(clean):
                    while index.build():
                        pass
                    built = len(log.entries)
                    index.flush()
                    index = open_index(CrashingDisk(), directory, geometry, clean=clean)
                    assert (index.problems, index.rebuild_from) == ([], None)
                case "delete", float(share):
                    low = max(low, int(share * log.end))
                    index.delete_before(low)
                case "truncate", float(share):
                    cut = int(share * log.end) // 100 * 100
                    log.truncate(min(cut, log.end))
                    built = min(built, len(log.entries))
                    index.truncate(cut)
            assert index.pending_count == len(log.entries) - built
            seen = Log()
            seen.entries = log.entries[:built]
            for key in KEYS:
                everything = found(index, key)
                assert set(seen.offsets(key, low)) <= set(everything) <= set(seen.offsets(key))
                assert everything == sorted(set(everything))
        while index.build():
            pass
        index.flush()
        if directory.exists():
            assert_well_formed(directory, geometry)
        reader = IndexReader(CrashingDisk(), directory, slots=geometry.slots, items=geometry.items)
        for key in KEYS:
            assert found(reader, key) == found(index, key)
            assert found(index, key)[-len(log.offsets(key, low)) or ALL :] == log.offsets(key, low)


@given(
    geometry=geometries,
    parts=st.lists(st.tuples(st.integers(1, 40), st.sampled_from(KEYS), st.integers(0, 4000)), max_size=6),
    limit=st.integers(1, 50),
)
def test_a_run_is_indexed_as_its_messages_are(
    geometry: IndexGeometry, parts: list[tuple[int, str, int]], limit: int
) -> None:
    log, runs = Log(), list[list[Entry]]()
    for count, key, elapsed_ms in parts:
        runs.append([log.append((key,), 0 if number else elapsed_ms) for number in range(count)])
    with tempfile.TemporaryDirectory() as root:
        files = []
        for name in ("runs", "messages"):
            directory = Path(root) / name
            index = open_index(CrashingDisk(), directory, geometry, clean=True)
            for run in runs:
                if name == "runs":
                    index.enqueue_run(as_run(run))
                else:
                    index.enqueue(run)
            while index.build(limit):
                pass
            index.flush()
            files.append([path.read_bytes() for path in sorted(directory.glob("*"))])
    assert files[0] == files[1]


def as_run(entries: list[Entry]) -> AppendedBatch:
    """The same messages as a batch brings them."""
    queue, count = cast("ConsumeQueue", entries[0].queue), len(entries)
    run = AppendedBatch(queue, entries[0].store_timestamp, 0, [b""] * count, entries[0].properties)
    run.place(entries[0].physical_offset, 0, [100] * count, [0] * count)
    return run


@given(
    geometry=geometries,
    messages=st.lists(st.tuples(key_lists, st.integers(0, 400)), max_size=40),
    window=st.tuples(st.integers(-1000, 17_000), st.integers(0, 17_000)),
    maximum=st.integers(0, 12),
)
def test_a_window_and_a_maximum_cut_the_answer(
    geometry: IndexGeometry,
    messages: list[tuple[tuple[str, ...], int]],
    window: tuple[int, int],
    maximum: int,
) -> None:
    log = Log()
    begin_ms = 1_700_000_000_000 + window[0]
    end_ms = begin_ms + window[1]
    with tempfile.TemporaryDirectory() as root:
        index = open_index(CrashingDisk(), Path(root) / "index", geometry, clean=True)
        # The first item of a file counts its seconds, as RocketMQ does, from the end of the file before it:
        # a pause of whole seconds between two keys would be counted twice. Here there is none.
        build(index, [log.append(keys, pause_ms if keys else 0) for keys, pause_ms in messages])
        for key in KEYS:
            holders = [each for each in log.entries if key in each.keys]
            every = index.query(TOPIC, key, ALL, begin_ms, end_ms).physical_offsets
            # Items keep whole seconds: up to one second is rounded away.
            sure = [each for each in holders if begin_ms + 1000 <= each.store_timestamp <= end_ms]
            possible = [each for each in holders if begin_ms <= each.store_timestamp <= end_ms + 999]
            assert {each.physical_offset for each in sure} <= set(every)
            assert set(every) <= {each.physical_offset for each in possible}
            some = index.query(TOPIC, key, maximum, begin_ms, end_ms)
            assert some.physical_offsets == every[len(every) - min(maximum, len(every)) :]
            if some.physical_offsets:
                last = [each for each in log.entries if each.keys][-1]
                expected = (last.store_timestamp, last.physical_offset)
                assert (some.last_timestamp, some.last_physical_offset) == expected


# --- Crashes ---


class Crash(Exception):
    """The machine stops here."""


class CrashingFile:
    """A real file that knows what a crash would leave of it."""

    def __init__(self, file: DiskFile, disk: "CrashingDisk") -> None:
        self.path, self.length = file.path, file.length
        self._file, self._disk = file, disk
        self.durable = self.path.read_bytes()
        self.unsynced: list[tuple[int, bytes]] = []

    def write(self, parts: Sequence[Part], position: int) -> None:
        self._disk.step()
        self._file.write(parts, position)
        self.unsynced.append((position, b"".join(parts)))

    def sync(self) -> None:
        self._disk.step()
        self.durable = self.path.read_bytes()
        self.unsynced.clear()

    def read(self, length: int, position: int) -> bytes:
        return self._file.read(length, position)

    def view(self) -> memoryview:
        return self._file.view()

    def allocate(self, position: int, length: int) -> None:
        self._disk.step()

    def read_resident(self, length: int, position: int) -> bytes:
        return self._file.read(length, position)

    def is_resident(self, length: int, position: int) -> bool:
        return True

    def is_zero_from(self, position: int) -> bool:
        return self._file.is_zero_from(position)

    def close(self) -> None:
        self._file.close()


class CrashingDisk(RealDisk):
    """Stops after a number of operations, if any; then unsynced writes are there, or torn, or not at all."""

    def __init__(self, steps_left: int = -1) -> None:
        self.steps_left = steps_left
        self.files_open: dict[Path, CrashingFile] = {}
        self.created: set[Path] = set()
        self.deleted: dict[Path, bytes] = {}

    def step(self) -> None:
        if self.steps_left == 0:
            raise Crash
        self.steps_left -= 1

    def create(self, path: Path, length: int) -> DiskFile:
        self.step()
        file = CrashingFile(super().create(path, length), self)
        file.durable = bytes(length)
        self.files_open[path] = file
        self.created.add(path)
        return file

    def open(self, path: Path, *, writable: bool = False) -> DiskFile:
        file = self.files_open[path] = CrashingFile(super().open(path, writable=writable), self)
        return file

    def delete(self, path: Path) -> None:
        self.step()
        self.files_open.pop(path, None)
        if path not in self.created and path.exists():
            self.deleted[path] = path.read_bytes()
        super().delete(path)

    def sync_directory(self, path: Path) -> None:
        self.step()
        self.created.clear()
        self.deleted.clear()

    def crash(self, random: Random, tear_bytes: int) -> None:
        """Leave what a crash may: writes end anywhere (`tear_bytes` 1), or at whole sectors of the file."""
        for path, file in self.files_open.items():
            if path in self.created and random.random() < 0.5:
                path.unlink()
                continue
            image = bytearray(file.durable)
            for position, data in file.unsynced:
                torn = random.randint(0, len(data))
                torn = max(0, torn - (position + torn) % tear_bytes)
                kept = random.choice([0, len(data), torn])
                image[position : position + kept] = data[:kept]
            path.write_bytes(image)
        for path, data in self.deleted.items():
            if random.random() < 0.5:
                path.write_bytes(data)


batches = st.lists(st.lists(st.tuples(key_lists, st.integers(0, 4000)), max_size=6), min_size=1, max_size=6)


@given(
    geometry=geometries,
    lives=st.lists(st.tuples(st.integers(0, 60), batches), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 32),
    tear_bytes=st.sampled_from([1, 512]),
)
@settings(max_examples=60)
def test_crashes_take_nothing_that_was_durable(
    geometry: IndexGeometry,
    lives: list[tuple[int, list[list[tuple[tuple[str, ...], int]]]]],
    seed: int,
    tear_bytes: int,
) -> None:
    random, log = Random(seed), Log()
    durable_offset = 0
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "index"

        def recover(disk: CrashingDisk) -> Index:
            nonlocal durable_offset
            index = open_index(disk, directory, geometry, clean=False)
            if index.rebuild_from is not None:
                # Only a header torn within itself is beyond repair.
                assert tear_bytes == 1
                durable_offset = min(durable_offset, index.rebuild_from)
            for key in KEYS:
                survivors = found(index, key)
                assert set(survivors) <= set(log.offsets(key))
                assert {each for each in log.offsets(key) if each < durable_offset} <= set(survivors)
            build(index, [each for each in log.entries if each.physical_offset >= durable_offset])
            index.finish_rebuild()
            durable_offset = log.end
            return index

        for crash_after, work in lives:
            disk = CrashingDisk(crash_after)
            with suppress(Crash):
                index = recover(disk)
                for batch in work:
                    index.enqueue([log.append(*message) for message in batch])
                    index.build(random.randint(1, 8))
                    index.flush()
                    durable_offset = min(index.durable_offset, log.end)
            disk.crash(random, tear_bytes)
        recovered = recover(CrashingDisk())
        if directory.exists():
            assert_well_formed(directory, geometry)
        for index in (recovered, open_index(CrashingDisk(), directory, geometry, clean=True)):
            assert (index.rebuild_from, index.end_physical_offset) == (None, recovered.end_physical_offset)
            assert [found(index, key) for key in KEYS] == [log.offsets(key) for key in KEYS]


# --- Damage ---


@given(
    geometry=geometries,
    messages=st.lists(st.tuples(key_lists, st.integers(0, 400)), min_size=1, max_size=20),
    damage=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=30)), min_size=1
    ),
    clean=st.booleans(),
)
def test_damaged_files_are_read_to_an_end_and_can_be_rebuilt(
    geometry: IndexGeometry,
    messages: list[tuple[tuple[str, ...], int]],
    damage: list[tuple[float, bytes]],
    clean: bool,
) -> None:
    log = Log()
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "index"
        index = open_index(CrashingDisk(), directory, geometry, clean=True)
        build(index, [log.append(*message) for message in messages])
        index.flush()
        paths = sorted(directory.iterdir()) if directory.exists() else []
        for place, junk in damage if paths else ():
            path = paths[int(place * len(paths))]
            data = bytearray(path.read_bytes())
            at = int(place * len(paths) % 1 * len(data))
            data[at : at + len(junk)] = junk[: len(data) - at]
            path.write_bytes(data)
        reader = IndexReader(CrashingDisk(), directory, slots=geometry.slots, items=geometry.items)
        index = open_index(CrashingDisk(), directory, geometry, clean=clean)
        for key in KEYS:
            found(reader, key)
            found(index, key)
        if index.rebuild_from is not None:
            assert index.problems
            survivors = [each for each in log.entries if each.physical_offset < index.rebuild_from]
            build(index, log.entries[len(survivors) :])
            index.finish_rebuild()
            assert open_index(CrashingDisk(), directory, geometry, clean=True).problems == []
