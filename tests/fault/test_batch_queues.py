"""Power loss and kill after every write, fsync, create and delete of work on a topic with batch queues."""

from __future__ import annotations

import random

import pytest

from skylark.model.message import PutMessage
from skylark.model.record import unwrap
from skylark.settings import FlushMode
from skylark.store.append_result import AppendedBatch, AppendedRecord
from skylark.store.message_store import MessageStore
from tests.fault.workload import ROOT, small_settings
from tests.support.clock import ManualClock
from tests.support.simulated_disk import Operation, SimulatedDisk
from tests.support.store import encoded_batch

TOPIC = "inner"
STEPS = 12
IMAGES = 40


def opened(disk: SimulatedDisk, clock: ManualClock, units: int, *, is_declared: bool = True) -> MessageStore:
    settings = small_settings(FlushMode.SYNC, batch_consume_queue_file_bytes=46 * units)
    store = MessageStore(settings, disk=disk, clock=clock)
    if is_declared:
        store.queues.is_declared_batched = lambda topic: topic == TOPIC
    store.open()
    return store


def content(store: MessageStore) -> list[bytes]:
    bodies: list[bytes] = []
    high = store.max_offset(TOPIC, 0)
    at = store.min_offset(TOPIC, 0)
    assert at == 0
    while at < high:
        result = store.get(TOPIC, 0, at, 32)
        found = [message for record in result.messages() for message in unwrap(record)]
        assert [message.queue_offset for message in found] == list(range(at, result.next_offset))
        bodies += [message.body for message in found]
        at = result.next_offset
    return bodies


@pytest.mark.parametrize("kills", [False, True], ids=["power loss", "kill"])
@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.nightly)])
def test_batches_survive_whole_or_not_at_all(seed: int, kills: bool) -> None:
    rng, clock = random.Random(seed), ManualClock()
    disk = SimulatedDisk(seed=seed, clock=clock)
    disk.make_directory(ROOT)
    units = rng.choice((2, 4, 50))
    store = opened(disk, clock, units)
    store.append([PutMessage(TOPIC, 0, b"x")])
    sent: list[list[bytes]] = [[b"x"]]
    store.flush_log()
    promised = 1
    images: list[tuple[SimulatedDisk, int, int]] = []

    def observe(operation: Operation) -> None:
        images.append((disk.kill_image() if kills else disk.crash_image(rng), promised, len(sent)))

    disk.observer = observe
    for step in range(STEPS):
        bodies = [b"%d-%d" % (step, number) for number in range(rng.choice((1, 3, 6)))]
        sent.append(bodies)
        if len(bodies) == 1:
            assert isinstance(store.append([PutMessage(TOPIC, 0, bodies[0])])[0], AppendedRecord)
        else:
            batch = PutMessage(TOPIC, 0, encoded_batch(bodies), b"UNIQ_KEY\x01u\x02"), len(bodies)
            assert isinstance(store.append_batches([batch])[0], AppendedBatch)
        store.flush_log()
        promised = len(sent)
        if rng.random() < 0.4:
            store.housekeeper.flush()
    disk.observer = None
    for image, least, most in rng.sample(images, min(IMAGES, len(images))):
        again = opened(image, clock, units)
        found = content(again)
        whole = [[body for bodies in sent[:number] for body in bodies] for number in range(least, most + 1)]
        assert found in whole
        (result,) = again.append([PutMessage(TOPIC, 0, b"next")])
        assert isinstance(result, AppendedRecord)
        assert result.queue_offset == len(found)
        again.close()
        third = opened(image, clock, units)
        assert third.report.problems == []
        assert content(third) == [*found, b"next"]


def test_queues_are_rebuilt_from_the_log_without_their_topics_attributes() -> None:
    """The first record is a batch: topics.json may not have been written before a kill."""
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    disk.make_directory(ROOT)
    store = opened(disk, clock, 4)
    for first in (0, 3, 6):
        bodies = [b"%d" % number for number in range(first, first + 3)]
        store.append_batches([(PutMessage(TOPIC, 0, encoded_batch(bodies), b"UNIQ_KEY\x01u\x02"), 3)])
    store.flush_log()
    again = opened(disk.kill_image(), clock, 4, is_declared=False)
    assert again.queues[TOPIC, 0].is_batched
    assert content(again) == [b"%d" % number for number in range(9)]
