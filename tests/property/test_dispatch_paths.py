"""Consume queues and index are the same bytes, whichever way the records reached them.

Straight from the append, read back from the log when the files are lost, or built by a replica from raw bytes
that arrive in any pieces, by the compiled module or without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.model.lite_topic import light_queue_of
from skylark.model.message import PutMessage, SystemFlag, encode_properties, pack_host
from skylark.model.record import BatchColumns, BatchElement
from skylark.settings import StoreSettings
from skylark.store import dispatch
from skylark.store.append_result import AppendedRecord
from skylark.store.checkpoint import MANIFEST_FILE_NAMES
from skylark.store.index import SHARED_KEY_BATCH_MIN
from skylark.store.log_scan import LogWalk
from skylark.store.message_store import MessageStore
from tests.support.clock import ManualClock
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import ROOT, simulated_disk, small_settings

TOPICS = st.sampled_from(
    ["alpha", "beta", "SCHEDULE_TOPIC_XXXX", "%RETRY%" + "g" * 130, "%RETRY%" + "订" * 60]
)
TAGS = st.sampled_from(["", "red", "green", "订单", "polygenelubricants"])
KEYS = st.sampled_from(["", "one", "two", "one two", " one  three "])
HOSTS = st.sampled_from([pack_host("10.0.0.1", 1), pack_host("2001:db8::1", 2)])
LIGHT_QUEUES = st.sampled_from(["", light_queue_of("alpha", "one"), light_queue_of("alpha", "two")])
# None, compressed, multi-tags, the three transaction states, host bits that lie.
FLAGS = st.sampled_from([0, 0, 0, 0x1, 0x2, 0x4, 0x8, 0xC, 0x30, 0x101])


@st.composite
def properties(draw: st.DrawFn) -> bytes:
    named = {
        "KEYS": draw(KEYS),
        "UNIQ_KEY": draw(st.sampled_from(["", "id-1", "id-2"])),
        "DELAY": draw(st.sampled_from(["", "0", "3", "99", "x"])),
        "TAGS": draw(TAGS),
    }
    text = encode_properties({name: value for name, value in named.items() if value})
    return text[:-1] if draw(st.booleans()) else text


@st.composite
def messages(draw: st.DrawFn) -> PutMessage:
    topic, flags = draw(TOPICS), draw(FLAGS)
    takes_light = topic == "alpha" and not flags & SystemFlag.TRANSACTION_PREPARED
    return PutMessage(
        topic,
        draw(st.integers(0, 1)),
        draw(st.binary(max_size=4)) * draw(st.sampled_from([1, 20, 100])),
        draw(properties()),
        sys_flag=flags,
        born_host=draw(HOSTS),
        light_queue=draw(LIGHT_QUEUES) if takes_light else "",
    )


ELEMENTS = st.builds(BatchElement, st.just(0), st.binary(max_size=40), properties())
# As clients make them: all messages alike, so many that they are indexed as a run.
ALIKE = st.builds(
    lambda element, count: [element] * count,
    ELEMENTS,
    st.integers(SHARED_KEY_BATCH_MIN - 1, SHARED_KEY_BATCH_MIN),
)
BATCHES = st.tuples(messages(), st.lists(ELEMENTS, min_size=1, max_size=5) | ALIKE)
# Puts, a client's batch, time that passes, or the background's work at any moment.
STEPS = st.lists(
    st.lists(messages(), min_size=1, max_size=6) | BATCHES | st.integers(0, 5000) | st.none(),
    min_size=1,
    max_size=12,
)
CHANGES = st.fixed_dictionaries(
    {"append_crc_property": st.booleans(), "index_enabled": st.sampled_from([True, True, False])}
)


def new_store(disk: SimulatedDisk, store_settings: StoreSettings, clock: ManualClock) -> MessageStore:
    store = MessageStore(store_settings, disk=disk, clock=clock)
    store.open()
    return store


def run(store: MessageStore, steps: list[Any], clock: ManualClock) -> None:
    for step in steps:
        if step is None:
            store.build_index()
            store.housekeeper.flush()
        elif isinstance(step, int):
            clock.advance(step)
        elif isinstance(step, tuple):
            head, elements = step
            head.sys_flag &= ~0xC
            head.properties = head.properties.replace(b"DELAY", b"RELAY")
            results = store.append_batches([(head, BatchColumns.of(elements))])[0]
            assert all(isinstance(result, AppendedRecord) for result in results)
        else:
            assert all(isinstance(result, AppendedRecord) for result in store.append(step))


def derived(disk: SimulatedDisk) -> tuple[dict[Path, bytes], list[bytes]]:
    """Consume-queue files by name; index files in order (their names are the time they were begun)."""
    queues = {path: disk.content(path) for path in disk.paths(ROOT / "consumequeue")}
    return queues, [disk.content(path) for path in disk.paths(ROOT / "index")]


def log_files(disk: SimulatedDisk) -> dict[Path, bytes]:
    return {path: disk.content(path) for path in disk.paths(ROOT / "commitlog")}


@settings(max_examples=60)
@given(STEPS, CHANGES, st.sets(st.sampled_from(["consumequeue", "index", "checkpoint", "manifest"])))
def test_what_was_lost_is_built_again_byte_for_byte(
    steps: list[Any], changes: dict[str, Any], lost: set[str]
) -> None:
    clock, store_settings = ManualClock(), small_settings(**changes)
    disk = simulated_disk(clock)
    store = new_store(disk, store_settings, clock)
    run(store, steps, clock)
    store.close()
    expected, log = derived(disk), log_files(disk)
    for name in lost:
        for each in MANIFEST_FILE_NAMES if name == "manifest" else (name,):
            disk.lose(ROOT / each)
    new_store(disk, store_settings, clock).close()
    assert derived(disk) == expected
    assert log_files(disk) == log


@settings(max_examples=60)
@given(STEPS, CHANGES)
def test_a_killed_store_recovers_the_same_bytes(steps: list[Any], changes: dict[str, Any]) -> None:
    clock, store_settings = ManualClock(), small_settings(**changes)
    disk = simulated_disk(clock)
    store = new_store(disk, store_settings, clock)
    run(store, steps, clock)
    image = disk.kill_image()
    store.close()
    new_store(image, store_settings, clock).close()
    assert derived(image)[0] == derived(disk)[0]
    assert log_files(image) == log_files(disk)


def feed(replica: MessageStore, log: bytes, pieces: list[int], *, is_building: bool = False) -> None:
    """Append raw bytes in pieces of these sizes."""
    sent = 0
    while replica.appended_offset < len(log):
        at = replica.appended_offset
        file_left = replica.log.file_bytes - at % replica.log.file_bytes
        replica.append_raw(at, log[at : at + min(pieces[sent % len(pieces)], file_left)])
        sent += 1
        if is_building:
            replica.build_index()
            replica.housekeeper.flush()


@contextmanager
def placing_by(function: Callable[..., Any] | None) -> Iterator[None]:
    """Replicas place records by this function of the compiled module, or without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_split_records", function)
        yield


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_replica_fed_in_pieces_has_the_same_bytes(compiled: ModuleType, is_compiled: bool) -> None:
    @settings(max_examples=80)
    @given(STEPS, CHANGES, st.lists(st.integers(1, 700), min_size=1, max_size=20), st.booleans())
    def check(steps: list[Any], changes: dict[str, Any], pieces: list[int], is_building: bool) -> None:
        clock, store_settings = ManualClock(), small_settings(**changes)
        master_disk, replica_disk = simulated_disk(clock), simulated_disk(clock)
        master = new_store(master_disk, store_settings, clock)
        run(master, steps, clock)
        replica = new_store(replica_disk, store_settings, clock)
        with placing_by(compiled.split_records if is_compiled else None):
            feed(replica, whole_log(master), pieces, is_building=is_building)
        for name, queue in master.queues.items():
            assert replica.max_offset(*name) == queue.max_offset
            assert replica.queue(*name).next_offset == queue.next_offset
        assert replica.log.last_timestamp == master.log.last_timestamp
        master.close()
        replica.close()
        assert derived(replica_disk) == derived(master_disk)
        assert log_files(replica_disk) == log_files(master_disk)

    check()


def whole_log(store: MessageStore) -> bytes:
    log = b""
    while len(log) < store.appended_offset:
        log += store.read_log(len(log), store.appended_offset)
    return log


QUEUE_OFFSET_HIGH = range(20, 26)
"""Bytes of a record that are not damaged: the gap before an offset of 2^62 is filled with entries."""
PLAIN = st.builds(
    PutMessage,
    st.sampled_from(["alpha", "beta", "%RETRY%" + "g" * 130]),
    st.integers(0, 1),
    st.binary(max_size=40),
    st.sampled_from(
        [b"UNIQ_KEY\x01a\x02", b"TAGS\x01red\x02", b"UNIQ_KEY\x01b\x02TAGS\x01red\x02KEYS\x01k\x02", b""]
    ),
)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_records_are_placed_alike_with_and_without_the_compiled_module(
    compiled: ModuleType, is_damaged: bool
) -> None:
    @settings(max_examples=100)
    @given(st.lists(PLAIN, min_size=2, max_size=25), st.data())
    def check(messages: list[PutMessage], data: st.DataObject) -> None:
        clock, store_settings = ManualClock(), small_settings()
        master = new_store(simulated_disk(clock), store_settings, clock)
        for message in messages:
            master.append([message])
        log = bytearray(whole_log(master))
        for _ in range(data.draw(st.integers(1, 3)) if is_damaged else 0):
            record = data.draw(st.sampled_from(list(LogWalk(master.log, 0))))
            within = data.draw(st.integers(0, record.size - 1).filter(lambda at: at not in QUEUE_OFFSET_HIGH))
            log[record.physical_offset + within] = data.draw(st.integers(0, 255))
        pieces = data.draw(st.lists(st.integers(1, 2000), min_size=1, max_size=5))
        found = []
        for function in (None, compiled.split_records):
            disk = simulated_disk(clock)
            replica = new_store(disk, store_settings, clock)
            with placing_by(function):
                feed(replica, bytes(log), pieces)
            offsets = {name: queue.next_offset for name, queue in replica.queues.items()}
            replica.build_index()
            replica.housekeeper.flush()
            found.append((offsets, replica.durable_offset, derived(disk)))
            replica.close()
        master.close()
        assert found[0] == found[1]

    check()
