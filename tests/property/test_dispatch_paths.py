"""Consume queues and index are the same bytes, whichever way the records reached them.

Straight from the append, read back from the log when the files are lost, or built by a replica from raw bytes
that arrive in any pieces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.model.message import PutMessage, encode_properties, pack_host
from skylark.model.record import BatchColumns, BatchElement
from skylark.settings import StoreSettings
from skylark.store.append_result import AppendedRecord
from skylark.store.checkpoint import MANIFEST_FILE_NAMES
from skylark.store.index import SHARED_KEY_BATCH_MIN
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
    return PutMessage(
        draw(TOPICS),
        draw(st.integers(0, 1)),
        draw(st.binary(max_size=4)) * draw(st.sampled_from([1, 20, 100])),
        draw(properties()),
        sys_flag=draw(FLAGS),
        born_host=draw(HOSTS),
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


@settings(max_examples=80)
@given(STEPS, CHANGES, st.lists(st.integers(1, 700), min_size=1, max_size=20), st.booleans())
def test_a_replica_fed_in_pieces_has_the_same_bytes(
    steps: list[Any], changes: dict[str, Any], pieces: list[int], flushing: bool
) -> None:
    clock, store_settings = ManualClock(), small_settings(**changes)
    master_disk, replica_disk = simulated_disk(clock), simulated_disk(clock)
    master = new_store(master_disk, store_settings, clock)
    run(master, steps, clock)
    replica = new_store(replica_disk, store_settings, clock)
    sent = 0
    while replica.appended_offset < master.appended_offset:
        at = replica.appended_offset
        replica.append_raw(at, master.read_log(at, pieces[sent % len(pieces)]))
        sent += 1
        if flushing:
            replica.build_index()
            replica.housekeeper.flush()
    for name, queue in master.queues.items():
        assert replica.max_offset(*name) == queue.max_offset
        assert replica.queue(*name).next_offset == queue.next_offset
    assert replica.log.last_timestamp == master.log.last_timestamp
    master.close()
    replica.close()
    assert derived(replica_disk) == derived(master_disk)
    assert log_files(replica_disk) == log_files(master_disk)
