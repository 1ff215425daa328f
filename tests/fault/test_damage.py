"""X4 to X6: torn tails, lost and short files, flipped bits, garbage. Other messages stay, and it is told."""

from __future__ import annotations

import functools
import random
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from skylark.errors import BadStoreFile
from skylark.model.record import HEAD
from skylark.settings import FlushMode, StoreSettings
from tests.fault.checker import Verdict, check
from tests.fault.conftest import Sample
from tests.fault.workload import ROOT, Promises, Sent, Workload, small_settings
from tests.support.simulated_disk import SimulatedDisk

CHECKPOINT = ROOT / "checkpoint"
MANIFESTS = ("skylark-queues", "skylark-queues-2")
ABORT = ROOT / "abort"
MEMORY_BYTES = 2 << 30
PUTS_BEFORE, PUTS_AFTER = 24, 12
ENDINGS = ("closed", "killed", "killed without checkpoint")


class Scene(NamedTuple):
    """A store at rest, about to be damaged."""

    disk: SimulatedDisk
    settings: StoreSettings
    promises: Promises

    def judge(
        self, excused: list[Sent], *, by_key: bool = True, by_files: bool = True, something: bool = False
    ) -> Verdict:
        """Check all but the excused; `something` asks for a report although no message may be lost."""
        bodies = {sent.body for sent in excused} | ({b"something"} if something else set())
        promises = replace(self.promises, excused=frozenset(bodies))
        return check(
            self.disk,
            self.settings,
            self.disk.clock,
            promises,
            durable_only=False,
            by_key=by_key,
            by_files=by_files,
        )


@functools.cache
def scene_once(ending: str, with_crc: bool) -> Scene:
    settings = small_settings(FlushMode.SYNC, append_crc_property=with_crc, verify_crc_property=with_crc)
    workload = Workload(11, settings)
    workload.open()
    for _ in range(PUTS_BEFORE):
        workload.clock.advance(1000)
        workload.put_some()
    workload.flush_queues()
    workload.promises = replace(workload.promises, claimed=workload.store.appended_offset)
    if ending == "closed":
        workload.store.close()
    else:
        # More than a whole file of log that neither queues nor checkpoint know.
        for _ in range(PUTS_AFTER):
            workload.clock.advance(1000)
            workload.put_some_batch()
    if ending == "killed without checkpoint":
        workload.disk.lose(CHECKPOINT)
    return Scene(workload.disk, settings, workload.promises)


def scene(ending: str, *, with_crc: bool = False) -> Scene:
    """A store with several files of each kind, all messages acknowledged."""
    made = scene_once(ending, with_crc)
    return made._replace(disk=made.disk.kill_image())


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """A flipped bit in a length or an offset must not make the store ask for memory without end."""
    if sys.platform != "linux":
        yield  # nobody tells there how much there is already
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def log_file_of(sent: Sent, settings: StoreSettings) -> tuple[Path, int]:
    start = sent.physical_offset - sent.physical_offset % settings.commit_log_file_bytes
    return settings.commit_log_directory / f"{start:020d}", sent.physical_offset - start


def log_end(promises: Promises) -> int:
    return max(sent.end for sent in promises.sent)


def bits(length: int, seed: int, sample: Sample) -> list[tuple[int, int]]:
    """For every byte of the sample one bit, drawn by the seed."""
    rng = random.Random(seed if sample.seed is None else f"{seed} {sample.seed}")
    return sample.of((position, rng.randrange(8)) for position in range(length))


# Bit flips

QUEUE_OFFSET = range(20, 28)
VICTIM_BYTES_MAX = 200


def victim_of(made: Scene, which: str) -> Sent:
    """A small record at the log's beginning, in its middle, or near its end."""
    small = [sent for sent in made.promises.sent if sent.size <= VICTIM_BYTES_MAX]
    return {"first": small[0], "middle": small[len(small) // 2], "last": small[-1]}[which]


def flip_in_record(made: Scene, victim: Sent, position: int, bit: int) -> Verdict:
    path, start = log_file_of(victim, made.settings)
    made.disk.flip_bit(path, start + position, bit)
    try:
        return made.judge([victim], by_key=False)
    except BaseException as error:
        error.add_note(f"bit {bit} of byte {position} in {victim}")
        raise


SYSTEM_FLAGS = 39
"""The byte whose flags tell whether a message is in its queue."""


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_flag_of_the_last_record_of_a_queue(bit: int) -> None:
    victim = victim_of(scene("killed", with_crc=False), "last")
    flip_in_record(scene("killed", with_crc=False), victim, SYSTEM_FLAGS, bit)


@pytest.mark.parametrize("with_crc", [False, True], ids=["body crc", "record crc"])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("which", ["first", "middle", "last"])
@pytest.mark.timeout(60)
def test_a_flipped_bit_in_a_record(ending: str, which: str, with_crc: bool, sample: Sample) -> None:
    victim = victim_of(scene(ending, with_crc=with_crc), which)
    for position, bit in bits(victim.size, 0, sample):
        if position not in QUEUE_OFFSET:
            flip_in_record(scene(ending, with_crc=with_crc), victim, position, bit)


@pytest.mark.parametrize("power", [0, 1, 3, 10, 20, 30, 40, 62, 63])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("which", ["first", "middle", "last"])
@pytest.mark.timeout(20)
def test_a_flipped_bit_in_a_queue_offset(ending: str, which: str, power: int) -> None:
    """No checksum covers it; a queue must not grow by what one record says."""
    made = scene(ending)
    position, bit = QUEUE_OFFSET[-1 - power // 8], power % 8
    flip_in_record(made, victim_of(made, which), position, bit)


@pytest.mark.parametrize("which", ["first", "middle", "last"])
@pytest.mark.timeout(60)
def test_a_flipped_bit_anywhere_is_found_where_every_byte_has_a_checksum(which: str, sample: Sample) -> None:
    """With the CRC property a full scan takes no altered record for a good one."""
    ending = "killed without checkpoint"
    victim = victim_of(scene(ending, with_crc=True), which)
    for position, bit in bits(victim.size, 3, sample):
        verdict = flip_in_record(scene(ending, with_crc=True), victim, position, bit)
        assert victim.body not in verdict.spared
        assert victim.physical_offset in [damage.physical_from for damage in verdict.report.damages]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_flipped_bit_in_a_blank(ending: str) -> None:
    """The 8 bytes that close a file: the next file's messages are still found."""
    settings, promises = scene(ending).settings, scene(ending).promises
    end_of_first_file = max(sent.end for sent in promises.sent if sent.end <= settings.commit_log_file_bytes)
    for position, bit in bits(8, 5, Sample(None)):
        damaged = scene(ending)
        damaged.disk.flip_bit(settings.commit_log_directory / f"{0:020d}", end_of_first_file + position, bit)
        damaged.judge([], by_files=False)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_flipped_bit_in_a_consume_queue(ending: str, place: str) -> None:
    for number, bit in bits(20, 1, Sample(None)):
        damaged = scene(ending)
        paths = files_of(damaged, "consumequeue/alpha/0")
        path = paths[0 if place == "first" else -1]
        units = len(damaged.disk.content(path).rstrip(b"\0")) // 20
        position = 20 * (units - 1 if place == "last" else 1) + number
        queue_offset = int(path.name) // 20 + position // 20
        damaged.disk.flip_bit(path, position, bit)
        victim = next(
            sent
            for sent in damaged.promises.sent
            if (sent.topic, sent.queue_id, sent.queue_offset) == ("alpha", 0, queue_offset)
        )
        try:
            damaged.judge([victim])
        except BaseException as error:
            error.add_note(f"bit {bit} of byte {number} in unit {queue_offset} of {path}")
            raise


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_flipped_bit_in_the_index(ending: str, sample: Sample) -> None:
    """Keys may be missed, messages not."""
    count = len(files_of(scene(ending), "index"))
    assert count > 1
    for number in range(count):
        for position, bit in bits(240, number, sample):
            damaged = scene(ending)
            damaged.disk.flip_bit(files_of(damaged, "index")[number], position, bit)
            damaged.judge([], by_key=False)


@pytest.mark.parametrize("ending", ["closed", "killed"])
@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_in_the_checkpoint(ending: str, seed: int, sample: Sample) -> None:
    for position, bit in bits(90, seed, sample):
        damaged = scene(ending)
        damaged.disk.flip_bit(CHECKPOINT, position, bit)
        try:
            damaged.judge([])
        except BaseException as error:
            error.add_note(f"bit {bit} of byte {position}")
            raise


@pytest.mark.parametrize("name", MANIFESTS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_flipped_bit_in_the_manifest(ending: str, name: str, sample: Sample) -> None:
    """The one before it is older, and still true as far as it goes."""
    length = scene(ending).disk.length(ROOT / name)
    for position, bit in bits(length, 0, sample):
        damaged = scene(ending)
        damaged.disk.flip_bit(ROOT / name, position, bit)
        damaged.judge([])


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_lost_manifest_after_a_clean_exit_loses_nothing(name: str) -> None:
    """An older one must not be taken for what the exit wrote."""
    settings = small_settings(FlushMode.SYNC)
    workload = Workload(5, settings)
    workload.open()
    for _ in range(3):
        workload.put_some()
        workload.restart()
    workload.put_some()
    workload.store.close()
    workload.disk.lose(ROOT / name)
    check(workload.disk, settings, workload.clock, workload.promises, durable_only=False)


def test_a_flipped_bit_in_the_abort_marker() -> None:
    damaged = scene("killed")
    damaged.disk.flip_bit(ABORT, 0)
    assert not damaged.judge([]).report.clean_exit


# Lost, short and garbled files


def files_of(made: Scene, directory: str) -> list[Path]:
    return made.disk.paths(ROOT / directory)


def messages_in(made: Scene, path: Path) -> list[Sent]:
    """The messages whose records lie in this file of the log, or none for other files."""
    return [sent for sent in made.promises.sent if log_file_of(sent, made.settings)[0] == path]


FILES = [
    *(("commitlog", number) for number in (0, 1, -2, -1)),
    *(("consumequeue/alpha/0", number) for number in (0, 1, -1)),
    *(("consumequeue/beta/1", number) for number in (0, 1, -1)),
    *(("index", number) for number in (0, 1, -1)),
    *((name, 0) for name in ("checkpoint", "abort", *MANIFESTS)),
]


def path_of(made: Scene, kind: str, number: int) -> Path:
    """A file of this kind, counted from the first or the last; skips what an ending does not leave behind."""
    paths = files_of(made, kind) or [ROOT / kind]
    if not made.disk.exists(paths[number]):
        pytest.skip(f"there is no {kind}")
    return paths[number]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("kind", "number"), FILES)
def test_a_lost_file(ending: str, kind: str, number: int) -> None:
    """All but the log is built again; a lost file of the log costs its own messages, and that is told."""
    damaged = scene(ending)
    path = path_of(damaged, kind, number)
    damaged.disk.lose(path)
    victims = messages_in(damaged, path)
    if victims and victims[0].physical_offset == 0:
        # Without its first file a log looks like one whose first file has expired.
        promises = replace(damaged.promises, gone_below=damaged.settings.commit_log_file_bytes)
        damaged, victims = damaged._replace(promises=promises), []
    damaged.judge(victims, by_key=not victims)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("directory", ["consumequeue", "consumequeue/alpha", "consumequeue/beta/1", "index"])
def test_a_lost_directory(ending: str, directory: str) -> None:
    damaged = scene(ending)
    damaged.disk.lose(ROOT / directory)
    damaged.judge([])


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_lost_log(ending: str) -> None:
    """Nothing can be read, but offsets that were given out stay given out."""
    damaged = scene(ending)
    for path in files_of(damaged, "commitlog"):
        damaged.disk.lose(path)
    damaged.judge(list(damaged.promises.sent), by_key=False)


@pytest.mark.parametrize("length", ["empty", "one byte", "half", "one byte short", "one byte long"])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("kind", "number"), FILES)
def test_a_file_of_a_wrong_length(ending: str, kind: str, number: int, length: str) -> None:
    """Built again or refused with a sentence; of the log only what lay behind the cut is lost."""
    damaged = scene(ending)
    path = path_of(damaged, kind, number)
    full = damaged.disk.length(path)
    lengths = {"empty": 0, "one byte": 1, "half": full // 2, "one byte short": full - 1}
    new = lengths.get(length, full + 1)
    damaged.disk.cut(path, new)
    victims = [
        sent
        for sent in messages_in(damaged, path)
        if log_file_of(sent, damaged.settings)[1] + sent.size > new
    ]
    try:
        damaged.judge(victims, by_key=not victims)
    except BadStoreFile as error:
        assert length == "one byte long", error
        assert path.parent.name == "commitlog", error


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("directory", ["commitlog", "consumequeue/alpha/0", "consumequeue/beta/1", "index"])
def test_garbage_behind_the_end(ending: str, directory: str, seed: int) -> None:
    damaged = scene(ending)
    path = files_of(damaged, directory)[-1]
    length, used = damaged.disk.length(path), len(damaged.disk.content(path).rstrip(b"\0"))
    if directory == "commitlog":
        used = log_end(damaged.promises) - int(path.name)
    elif directory != "index":
        used = -(-used // 20) * 20
    damaged.disk.overwrite(path, used, random.Random(seed).randbytes(length - used))
    # Units of garbage may have claimed some offsets: they are holes then.
    damaged = damaged._replace(promises=replace(damaged.promises, damaged=True))
    damaged.judge([], something=directory == "commitlog", by_key=directory != "index")


@pytest.mark.parametrize("ending", ENDINGS)
def test_old_records_behind_the_end(ending: str) -> None:
    """Records of another place in the log are not taken for new ones."""
    damaged = scene(ending)
    path = files_of(damaged, "commitlog")[-1]
    end = log_end(damaged.promises) - int(path.name)
    old = damaged.disk.content(files_of(damaged, "commitlog")[0])[: damaged.disk.length(path) - end]
    damaged.disk.overwrite(path, end, old)
    damaged.judge([], something=True)


@pytest.mark.parametrize("tail", ["zeros", "garbage", "missing"])
@pytest.mark.parametrize("part", range(4))
def test_the_last_record_cut_at_every_byte(tail: str, part: int, sample: Sample) -> None:
    """The log ends before it, and what was left of it is told."""
    rng = random.Random(part)
    last = scene("killed").promises.sent[-1]
    content = scene("killed").disk.content(log_file_of(last, scene("killed").settings)[0])
    body_end = HEAD.size + len(last.body)
    for kept in sample.of(range(part, last.size, 4)):
        damaged = scene("killed")
        path, start = log_file_of(last, damaged.settings)
        if tail == "missing":
            damaged.disk.cut(path, start + kept)
        else:
            lost = last.size - kept
            damaged.disk.overwrite(
                path, start + kept, rng.randbytes(lost) if tail == "garbage" else bytes(lost)
            )
        if tail == "garbage" and kept >= body_end:
            # No checksum covers topic and properties: the message may be shown with other ones.
            damaged.judge([last], by_key=False)
            continue
        promises = replace(damaged.promises, sent=damaged.promises.sent[:-1])
        traces = tail == "garbage" or any(content[start : start + kept])
        try:
            verdict = damaged._replace(promises=promises).judge([], something=traces)
        except BaseException as error:
            error.add_note(f"{kept} of {last.size} bytes kept, the body ends at {body_end}")
            raise
        assert verdict.report.end == last.physical_offset, f"{kept} bytes kept"
