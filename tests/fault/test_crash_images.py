"""X1 to X3: power loss and kill after every write, fsync, create and delete of seeded work."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest

from skylark.settings import FlushMode, StoreSettings
from skylark.store.message_store import MessageStore
from tests.fault.checker import Verdict, check
from tests.fault.conftest import IMAGES_PER_CASE
from tests.fault.workload import Promises, Workload, small_settings
from tests.support.simulated_disk import Crash, Operation, SimulatedDisk

WARM_UP_STEPS_MAX = 25


class Image(NamedTuple):
    """A disk as a crash left it, and what was promised when it came."""

    operation: Operation
    disk: SimulatedDisk
    promises: Promises
    durable_only: bool


def settings_for(rng: random.Random) -> StoreSettings:
    return small_settings(
        rng.choice((FlushMode.SYNC, FlushMode.ASYNC)),
        commit_log_file_bytes=rng.choice((4096, 8192, 65536)),
        consume_queue_file_bytes=20 * rng.choice((4, 8, 60)),
        index_enabled=rng.random() < 0.75,
    )


@contextmanager
def told(seed: int, image: Image) -> Iterator[None]:
    """Whatever fails says where it happened."""
    try:
        yield
    except Exception as error:
        number, kind, path = image.operation
        loss = "power loss" if image.durable_only else "kill"
        error.add_note(f"--fault-seed {seed}: {loss} after operation {number}, {kind.value} {path}")
        raise


class Camera:
    """Takes an image after every operation of a workload's disk."""

    def __init__(self, workload: Workload, rng: random.Random, *, kills: bool) -> None:
        self.images: list[Image] = []
        self._workload = workload
        self._rng = rng
        self._kills = kills
        workload.disk.observer = self._take

    def _take(self, operation: Operation) -> None:
        disk, promises = self._workload.disk, self._workload.promises
        image = disk.kill_image() if self._kills else disk.crash_image(self._rng)
        self.images.append(Image(operation, image, promises, durable_only=not self._kills))


def images_of(seed: int, *, kills: bool, deletes_topics: bool = False) -> tuple[StoreSettings, list[Image]]:
    """Work unobserved for a while, then look at every operation."""
    rng = random.Random(seed)
    settings = settings_for(rng)
    workload = Workload(seed, settings)
    workload.open()
    workload.run(rng.randrange(WARM_UP_STEPS_MAX), deletes_topics=deletes_topics)
    camera = Camera(workload, rng, kills=kills)
    while len(camera.images) < IMAGES_PER_CASE:
        workload.run(1, deletes_topics=deletes_topics)
    return settings, camera.images[:IMAGES_PER_CASE]


def check_image(image: Image, settings: StoreSettings) -> Verdict:
    return check(image.disk, settings, image.disk.clock, image.promises, durable_only=image.durable_only)


def test_power_loss_after_every_operation(image_seed: int) -> None:
    settings, images = images_of(image_seed, kills=False)
    for image in images:
        with told(image_seed, image):
            check_image(image, settings)


def test_kill_after_every_operation(image_seed: int) -> None:
    settings, images = images_of(image_seed, kills=True)
    for image in images:
        with told(image_seed, image):
            check_image(image, settings)


@pytest.mark.parametrize("kills", [False, True], ids=["power loss", "kill"])
def test_crash_around_the_deletion_of_topics(image_seed: int, kills: bool) -> None:
    """A topic that was deleted and filled anew keeps what it was given since."""
    settings, images = images_of(image_seed, kills=kills, deletes_topics=True)
    for image in images:
        with told(image_seed, image):
            check_image(image, settings)


@pytest.mark.parametrize("flush_mode", FlushMode)
def test_power_loss_after_the_recovery_from_a_kill(flush_mode: FlushMode) -> None:
    """What the killed store had only written is durable once it was shown again."""
    settings = small_settings(flush_mode)
    workload = Workload(3, settings)
    workload.open()
    while len(workload.store.log.files.starts) < 4:
        workload.put([workload.message() for _ in range(3)])
    workload.kill()
    for seed in range(30):
        image = workload.disk.crash_image(random.Random(seed))
        check(image, settings, workload.clock, workload.promises, durable_only=True)


def test_second_crash_while_recovering_from_the_first(image_seed: int) -> None:
    rng = random.Random(image_seed)
    kills, deletes_topics = rng.random() < 0.5, rng.random() < 0.5
    settings, images = images_of(image_seed, kills=kills, deletes_topics=deletes_topics)
    looked_at = 0
    while looked_at < IMAGES_PER_CASE:
        for image in rng.sample(images, len(images)):
            for second in images_of_recovery(image, settings, rng):
                with told(image_seed, second):
                    check_image(second, settings)
                looked_at += 1


def images_of_recovery(image: Image, settings: StoreSettings, rng: random.Random) -> list[Image]:
    """Some of the moments of one recovery, the first crash's promises still standing."""
    disk = image.disk.kill_image()
    seconds: list[Image] = []

    def take(operation: Operation) -> None:
        durable_only = image.durable_only or rng.random() < 0.5
        second = disk.crash_image(rng) if durable_only else disk.kill_image()
        seconds.append(Image(operation, second, image.promises, durable_only))

    disk.observer = take
    report = MessageStore(settings, disk=disk, clock=disk.clock).open()
    # Holes that the first recovery found and plugged are no news for the second.
    promises = replace(image.promises, damaged=image.promises.damaged or bool(report.damages))
    return [second._replace(promises=promises) for second in rng.sample(seconds, min(len(seconds), 4))]


def test_power_loss_in_a_second_life(image_seed: int) -> None:
    """What recovery cut off does not come back, and what it kept stays, when power fails once more."""
    rng = random.Random(image_seed)
    settings, images = images_of(image_seed, kills=False)
    for life, image in enumerate(rng.sample(images, 5), start=1):
        with told(image_seed, image):
            verdict = check_image(image, settings)
        workload = Workload(image_seed * 100 + life, settings, image.disk, verdict.promises)
        camera = Camera(workload, rng, kills=False)
        workload.open()
        while len(camera.images) < IMAGES_PER_CASE // 5:
            workload.run(1)
        for second in camera.images[: IMAGES_PER_CASE // 5]:
            with told(image_seed, second):
                check_image(second, settings)


@pytest.mark.parametrize("flush_mode", FlushMode)
@pytest.mark.parametrize("operation", range(1, 101, 3))
def test_the_crash_itself(flush_mode: FlushMode, operation: int) -> None:
    """The same by an exception that no handler of the store may swallow."""
    settings = small_settings(flush_mode)
    workload = Workload(7, settings)
    workload.disk.crash_after(operation)
    with pytest.raises(Crash):
        workload.open()
        workload.run(1000)
    for durable_only in (True, False):
        disk = (
            workload.disk.crash_image(random.Random(operation))
            if durable_only
            else workload.disk.kill_image()
        )
        check(disk, settings, workload.clock, workload.promises, durable_only=durable_only)
