"""Power loss and kill after every write, fsync, create and delete of work on lite topics."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from skylark.model.lite_topic import light_queue_of
from skylark.model.message import PutMessage
from skylark.settings import FlushMode
from skylark.store.append_result import AppendedRecord
from skylark.store.message_store import MessageStore
from tests.fault.workload import ROOT, small_settings
from tests.support.clock import ManualClock
from tests.support.simulated_disk import Operation, SimulatedDisk

TOPIC = "parent"
LIGHT_QUEUES = [light_queue_of(TOPIC, name) for name in ("one", "two", "three")]
STEPS = 24
IMAGES = 40
DELETION_SHARE = 0.15

Sent = dict[str, list[bytes]]
"""Bodies of each queue: the parent's, and the light ones. A deletion empties a light queue."""


def opened(disk: SimulatedDisk, clock: ManualClock) -> MessageStore:
    store = MessageStore(small_settings(FlushMode.SYNC), disk=disk, clock=clock)
    store.open()
    return store


def content(store: MessageStore, topic: str) -> list[bytes]:
    assert store.min_offset(topic, 0) == 0
    bodies: list[bytes] = []
    while len(bodies) < store.max_offset(topic, 0):
        bodies += [message.body for message in store.get(topic, 0, len(bodies), 32).messages()]
    return bodies


def copied(sent: Sent) -> Sent:
    return {name: list(bodies) for name, bodies in sent.items()}


@pytest.mark.parametrize("kills", [False, True], ids=["power loss", "kill"])
@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.nightly)])
def test_light_queues_have_what_their_parent_has(seed: int, kills: bool) -> None:
    rng, clock = random.Random(seed), ManualClock()
    disk = SimulatedDisk(seed=seed, clock=clock)
    disk.make_directory(ROOT)
    store = opened(disk, clock)
    sent: Sent = defaultdict(list)
    states = [copied(sent)]
    """Each of what a crash may leave: the queues after some first messages and deletions."""
    promised = 0
    images: list[tuple[SimulatedDisk, int, int]] = []

    def observe(operation: Operation) -> None:
        images.append((disk.kill_image() if kills else disk.crash_image(rng), promised, len(states)))

    disk.observer = observe
    for step in range(STEPS):
        message = PutMessage(TOPIC, 0, b"%d" % step, light_queue=rng.choice(["", *LIGHT_QUEUES]))
        for name in filter(None, (TOPIC, message.light_queue)):
            sent[name].append(bytes(message.body))
        states.append(copied(sent))
        assert isinstance(store.append([message])[0], AppendedRecord)
        store.flush_log()
        promised = len(states) - 1
        if rng.random() < 0.4:
            store.housekeeper.flush()
        if rng.random() < DELETION_SHARE:
            deleted = rng.choice(LIGHT_QUEUES)
            sent[deleted] = []
            states.append(copied(sent))
            store.housekeeper.delete_topic(deleted)
            promised = len(states) - 1
    disk.observer = None
    for image, least, most in rng.sample(images, min(IMAGES, len(images))):
        again = opened(image, clock)
        found = {name: content(again, name) for name in (TOPIC, *LIGHT_QUEUES)}
        assert found in [{name: state.get(name, []) for name in found} for state in states[least:most]]
        name = rng.choice(LIGHT_QUEUES)
        (result,) = again.append([PutMessage(TOPIC, 0, b"next", light_queue=name)])
        assert isinstance(result, AppendedRecord) and result.light is not None
        assert result.light.queue_offset == len(found[name])
        again.close()
        third = opened(image, clock)
        assert third.report.problems == []
        assert content(third, name) == [*found[name], b"next"]


def test_light_queues_that_are_lost_are_rebuilt_from_the_log() -> None:
    clock = ManualClock()
    disk = SimulatedDisk(clock=clock)
    disk.make_directory(ROOT)
    store = opened(disk, clock)
    bodies = [b"%d" % number for number in range(20)]
    for number, body in enumerate(bodies):
        store.append([PutMessage(TOPIC, number % 2, body, light_queue=LIGHT_QUEUES[number % 3])])
    store.close()
    for name in LIGHT_QUEUES:
        for path in disk.paths(ROOT / "consumequeue" / name):
            disk.delete(path)
    again = opened(disk, clock)
    for number, name in enumerate(LIGHT_QUEUES):
        assert content(again, name) == bodies[number::3]
