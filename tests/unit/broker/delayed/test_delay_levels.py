"""Delay levels: what waits where, when it is delivered, and what a restart makes of it."""

from __future__ import annotations

import asyncio
import errno
import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delayed.delay_levels import DELIVERED_MAX, DelayLevels, real_message
from skylark.broker.delayed.delivery_progress import FILE_NAME, DeliveryProgress, current_boot
from skylark.broker.monitoring.stats import BrokerStats
from skylark.errors import DiskFull
from skylark.model.message import SCHEDULE_TOPIC, PutMessage, decode_properties, encode_properties
from skylark.protocol.bodies import DataVersion
from skylark.settings import parse_delay_levels
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import ENTRY
from tests.support.broker import until
from tests.support.clock import ManualClock
from tests.support.simulated_disk import Fault, Kind, SimulatedDisk
from tests.support.store import ROOT, bodies, placed, read_queue, simulated_disk, small_settings
from tests.unit.broker.tables import golden_config

T = TypeVar("T")
LEVELS = "1s 5s 10s"
BOOT = b"0f5c0a34-7a3c-4d5f-9a6e-2b7f1d9c8e41"


class Rig:
    """A schedule on a store of its own, on a clock that stands still."""

    def __init__(
        self, levels: str = LEVELS, *, disk: SimulatedDisk | None = None, boot: bytes = BOOT, **changes: Any
    ) -> None:
        self.clock = ManualClock()
        self.disk = disk or simulated_disk(self.clock)
        self.delays_ms = parse_delay_levels(levels)
        settings: dict[str, Any] = {
            "commit_log_file_bytes": 1 << 20,
            "consume_queue_file_bytes": 20 * 1000,
            **changes,
        }
        self.store = MessageStore(
            small_settings(delay_levels=levels, **settings), disk=self.disk, clock=self.clock
        )
        self.store.open()
        self.cold_reads = 0
        self.adopted: list[dict[str, int]] = []
        self.stats = BrokerStats()
        self.progress = DeliveryProgress(self.disk, ROOT, boot)
        self.schedule = DelayLevels(
            self.store, self.clock, self.delays_ms, self.read, self.adopted.append, self.stats, self.progress
        )

    async def read(self, work: Callable[[], T]) -> T:
        self.cold_reads += 1
        return work()

    def delay(self, body: bytes, level: int, topic: str = "T", queue_id: int = 0, **named: str) -> None:
        message = PutMessage(topic, queue_id, body)
        self.schedule.delay(message, {"DELAY": str(level), **named}, level)
        placed(self.store.append([message])[0])

    async def deliver(self) -> None:
        """Let every level deliver what is due."""
        for level in range(1, len(self.delays_ms) + 1):
            await self.schedule._deliver_level(level)

    def restarted(self) -> Rig:
        """Another broker on the same disk after the first was killed, with the file that it wrote."""
        file = self.schedule.snapshot()()
        again = Rig(disk=self.disk.kill_image())
        again.clock = self.clock
        again.schedule._clock = self.clock
        again.schedule.load(file)
        return again

    def close(self) -> None:
        self.store.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


# --- Taking ---


@pytest.mark.parametrize(("level", "taken"), [(1, 1), (3, 3), (4, 3), (99, 3)])
def test_a_message_waits_in_the_queue_of_its_level(rig: Rig, level: int, taken: int) -> None:
    message = PutMessage("T", 5, b"body")
    rig.schedule.delay(message, {"DELAY": str(level), "TAGS": "t", "TIMER_DELAY_SEC": "4"}, level)
    assert (message.topic, message.queue_id) == (SCHEDULE_TOPIC, taken - 1)
    properties = decode_properties(message.properties)
    assert properties == {"DELAY": str(taken), "TAGS": "t", "REAL_TOPIC": "T", "REAL_QID": "5"}


NAMES = ["TAGS", "UNIQ_KEY", "DELAY", "MY_DELAY", "TIMER_DELAY_MS", "REAL_TOPIC", "POP_CK", "TRAN_MSG", "a"]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["1", "3", "03", "4", "-1", "x", "ü y"]))))
def test_what_is_added_to_a_text_says_the_same_as_properties_taken_apart(
    properties: list[tuple[str, str]],
) -> None:
    text = b"".join(encode_properties({name: value}) for name, value in properties)
    store = MessageStore(small_settings(), disk=simulated_disk())
    delays_ms = parse_delay_levels(LEVELS)
    progress = DeliveryProgress(simulated_disk(), ROOT, BOOT)
    schedule = DelayLevels(
        store,
        ManualClock(),
        delays_ms,
        Rig.read,  # type: ignore[arg-type]
        lambda _: None,
        BrokerStats(),
        progress,
    )
    quick, slow = PutMessage("T", 5, b"", text), PutMessage("T", 5, b"", text)
    if schedule.delay_as_sent(quick):
        taken_apart = decode_properties(text)
        schedule.delay(slow, taken_apart, int(taken_apart["DELAY"]))
        assert decode_properties(quick.properties) == decode_properties(slow.properties)
        assert (quick.topic, quick.queue_id) == (slow.topic, slow.queue_id)
    else:
        assert quick == slow  # untouched
        assert [name for name, _ in properties] != ["DELAY"] or text != b"DELAY\x011\x02"


# --- Giving ---


async def test_nothing_comes_early_and_all_comes_when_due(rig: Rig) -> None:
    rig.delay(b"one", 1)
    rig.delay(b"five", 2)
    await rig.deliver()
    rig.clock.advance(999)
    await rig.deliver()
    assert bodies(rig.store) == []
    rig.clock.advance(1)
    await rig.deliver()
    assert bodies(rig.store) == [b"one"]
    rig.clock.advance(3_999)
    await rig.deliver()
    assert bodies(rig.store) == [b"one"]
    rig.clock.advance(1)
    await rig.deliver()
    assert bodies(rig.store) == [b"one", b"five"]
    await rig.deliver()
    assert len(bodies(rig.store)) == 2


async def test_what_is_delivered_is_what_was_sent(rig: Rig) -> None:
    message = PutMessage("U", 3, b"body", flag=9, sys_flag=1, born_timestamp=77, reconsume_times=2)
    rig.schedule.delay(message, {"DELAY": "1", "TAGS": "t", "UNIQ_KEY": "u", "WAIT": "true"}, 1)
    rig.store.append([message])
    rig.clock.advance(1_000)
    await rig.deliver()
    [delivered] = read_queue(rig.store, "U", 3)
    assert (delivered.body, delivered.flag, delivered.sys_flag) == (b"body", 9, 1)
    assert (delivered.born_timestamp, delivered.reconsume_times) == (77, 2)
    # RocketMQ leaves on it what it waited for.
    expected = {"TAGS": "t", "UNIQ_KEY": "u", "WAIT": "true", "DELAY": "1"}
    assert delivered.properties == {**expected, "REAL_TOPIC": "U", "REAL_QID": "3"}
    assert delivered.store_timestamp == rig.clock.now_ms()


async def test_the_topics_of_what_is_delivered_are_named(rig: Rig) -> None:
    """A broker that was killed just after it had made a topic may not know it any more."""
    rig.delay(b"1", 1, "U", 3)
    rig.delay(b"2", 1, "V")
    rig.clock.advance(1_000)
    await rig.deliver()
    assert rig.adopted == [{"U": 4, "V": 1}]


async def test_ten_thousand_become_due_together() -> None:
    rig = Rig(commit_log_file_bytes=8 << 20, consume_queue_file_bytes=20 * 20_000)
    for number in range(10_000):
        rig.delay(b"%d" % number, 1)
    rig.clock.advance(1_000)
    await rig.deliver()
    assert bodies(rig.store) == [b"%d" % number for number in range(10_000)]
    assert rig.schedule.offsets[1] == rig.schedule.changes == 10_000
    rig.close()


async def test_cold_messages_are_read_elsewhere(rig: Rig) -> None:
    rig.delay(b"hot", 1)
    rig.clock.advance(1_000)
    await rig.deliver()
    assert rig.cold_reads == 0
    rig.delay(b"cold", 1)
    rig.store.housekeeper.flush()
    rig.disk.resident = False
    rig.store.reader.hot._chunks.clear()
    rig.clock.advance(1_000)
    await rig.deliver()
    assert rig.cold_reads == 2  # its unit, and its record
    assert bodies(rig.store) == [b"hot", b"cold"]


async def test_order_within_a_level_is_kept_and_later_ones_wait(rig: Rig) -> None:
    rig.delay(b"1", 1)
    rig.clock.advance(400)
    rig.delay(b"2", 1)
    rig.clock.advance(600)
    await rig.deliver()
    assert bodies(rig.store) == [b"1"]
    assert rig.schedule.offsets[1] == 1
    rig.clock.advance(400)
    await rig.deliver()
    assert bodies(rig.store) == [b"1", b"2"]


async def test_a_batch_ends_before_the_first_that_is_not_due(rig: Rig) -> None:
    due = [b"%d" % number for number in range(DELIVERED_MAX + 6)]
    for body in due:
        rig.delay(body, 1)
    rig.clock.advance(1)
    for body in (b"later", b"last"):
        rig.delay(body, 1)
    rig.clock.advance(999)
    await rig.deliver()
    assert bodies(rig.store) == due
    assert rig.schedule.offsets[1] == len(due)
    rig.clock.advance(1)
    await rig.deliver()
    assert bodies(rig.store) == [*due, b"later", b"last"]


async def test_what_a_full_disk_refused_of_a_batch_comes_later_and_the_rest_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(commit_log_file_bytes=16 << 10)
    sent = [b"%d" % number + bytes(1000) for number in range(10)]
    for body in sent:
        rig.delay(body, 1)
    rig.clock.advance(1_000)

    def fail() -> None:
        raise DiskFull(ROOT, "no next file")

    with monkeypatch.context() as patch:
        patch.setattr(rig.store.log, "add_file", fail)
        await rig.deliver()
    delivered = len(bodies(rig.store))
    assert 0 < delivered < len(sent)
    assert rig.schedule.offsets[1] == delivered
    assert (rig.stats.topic_puts["T"].count, rig.stats.refused) == (delivered, 0)
    await rig.deliver()
    assert bodies(rig.store) == sent
    assert (rig.stats.topic_puts["T"].count, rig.stats.puts.count) == (len(sent), len(sent))
    rig.close()


async def test_blank_units_stand_for_no_message(rig: Rig) -> None:
    """Where the log lost records, units without one fill the gap; they do not stand for the log's first."""
    rig.delay(b"first", 1)
    queue = rig.store.queue(SCHEDULE_TOPIC, 0)
    [(physical_offset, size, code)] = ENTRY.iter_unpack(queue.entries(0, 1))
    assert physical_offset == 0
    queue.add(4, physical_offset, size, code)
    rig.clock.advance(1_000)
    await rig.deliver()
    assert bodies(rig.store) == [b"first", b"first"]
    assert rig.schedule.offsets[1] == 5


async def test_blank_units_are_not_looked_for_in_the_log() -> None:
    """They claim two gigabytes at the log's begin: its first file would be copied for each of them."""
    file_bytes = 4 << 20
    rig = Rig(commit_log_file_bytes=file_bytes)
    rig.store.append([PutMessage("U", 0, b"body")])
    rig.delay(b"first", 1)
    queue = rig.store.queue(SCHEDULE_TOPIC, 0)
    [unit] = ENTRY.iter_unpack(queue.entries(0, 1))
    queue.add(9, *unit)
    rig.schedule.offsets[1] = 1
    rig.clock.advance(1_000)
    tracemalloc.start()
    try:
        await rig.deliver()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bodies(rig.store) == [b"first"]
    assert peak_bytes < file_bytes
    rig.close()


async def test_messages_far_apart_are_delivered_in_order(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.record_loader.STRETCH_BYTES_MAX", 2000)
    for number in range(5):
        rig.delay(b"%d" % number, 1)
        rig.store.append([PutMessage("U", 0, bytes(900))])
    rig.clock.advance(1_000)
    await rig.deliver()
    assert bodies(rig.store) == [b"%d" % number for number in range(5)]
    assert rig.cold_reads == 0


async def test_the_clock_set_back_delivers_at_once_rather_than_never(rig: Rig) -> None:
    rig.delay(b"one", 1)
    rig.clock.jump(-3_600_000)
    await rig.deliver()
    assert bodies(rig.store) == [b"one"]


async def test_the_clock_set_forward_delivers(rig: Rig) -> None:
    rig.delay(b"ten", 3)
    rig.clock.jump(3_600_000)
    await rig.deliver()
    assert bodies(rig.store) == [b"ten"]


async def test_a_store_that_refuses_keeps_them_waiting(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.delay(b"1", 1)
    rig.delay(b"2", 1)
    rig.clock.advance(1_000)
    rig.disk.used = 0.95
    rig.store.housekeeper.clean()
    await rig.deliver()
    assert rig.schedule.offsets[1] == 0
    assert "delayed messages wait level=1" in caplog.text
    rig.disk.used = 0.1
    rig.store.housekeeper.clean()
    await rig.deliver()
    assert bodies(rig.store) == [b"1", b"2"]


async def test_a_message_that_can_never_be_stored_does_not_hold_up_the_others(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.delay(b"1", 1)
    rig.delay(b"x" * 1_500, 1)
    rig.delay(b"3", 1)
    rig.store.log.message_bytes_max = 1_000  # as after a restart with other settings
    rig.clock.advance(1_000)
    await rig.deliver()
    assert bodies(rig.store) == [b"1", b"3"]
    assert rig.schedule.offsets[1] == 3
    assert "delayed message dropped level=1" in caplog.text
    await rig.deliver()
    assert len(bodies(rig.store)) == 2


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"REAL_TOPIC": "T"},
        {"REAL_QID": "0"},
        {"REAL_TOPIC": "T", "REAL_QID": "x"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
        {"REAL_TOPIC": "../x", "REAL_QID": "0"},
    ],
)
async def test_foreign_records_do_not_hold_up_the_others(rig: Rig, properties: dict[str, str]) -> None:
    foreign = PutMessage(SCHEDULE_TOPIC, 0, b"foreign", encode_properties({"DELAY": "1", **properties}))
    placed(rig.store.append([foreign])[0])
    rig.delay(b"ours", 1)
    rig.clock.advance(1_000)
    await rig.deliver()
    assert bodies(rig.store) == [b"ours"]
    assert rig.schedule.offsets[1] == 2


async def test_a_body_that_was_altered_on_the_disk_is_not_given_a_new_checksum(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.delay(b"first", 1)
    rig.delay(b"other", 1)
    path = rig.store.log.files.path(0)
    rig.disk.flip_bit(path, rig.disk.content(path).index(b"first"))
    rig.clock.advance(1_000)
    await rig.deliver()
    assert bodies(rig.store) == [b"other"]
    assert "cannot deliver delayed message: corrupt record at physical offset 0: body CRC" in caplog.text


async def test_a_record_that_cannot_be_read_is_passed_over(rig: Rig) -> None:
    rig.delay(b"1", 1)
    second = rig.store.appended_offset
    rig.delay(b"2", 1)
    rig.delay(b"3", 1)
    path = rig.store.log.files.path(0)
    rig.disk.overwrite(path, second, b"\xff\xff\xff\xff")
    rig.clock.advance(1_000)
    await rig.deliver()
    assert bodies(rig.store) == [b"1", b"3"]


def test_a_damaged_record_stands_for_no_message() -> None:
    assert real_message(b"\x00" * 200) is None


# --- The loop that does it ---


async def test_each_level_runs_by_itself(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.delayed.delay_levels.CHECK_INTERVAL_S", 0.001)
    gate = asyncio.Event()

    async def stuck(work: Callable[[], T]) -> T:
        await gate.wait()
        return work()

    rig.schedule._read_cold = stuck
    rig.delay(b"stuck", 1)
    rig.store.housekeeper.flush()
    rig.disk.resident = False
    rig.delay(b"free", 2)
    holds = rig.store.reader.hot.holds
    monkeypatch.setattr(rig.store.reader.hot, "holds", lambda at, size: at > 0 or holds(at, size))
    rig.clock.advance(5_000)
    running = asyncio.ensure_future(rig.schedule.run())
    try:
        await until(lambda: bodies(rig.store) == [b"free"])
        gate.set()
        await until(lambda: bodies(rig.store) == [b"free", b"stuck"])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_failure_is_logged_and_tried_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("skylark.broker.delayed.delay_levels.CHECK_INTERVAL_S", 0.001)
    monkeypatch.setattr("skylark.broker.delayed.delay_levels.FAILURE_PAUSE_S", 0.001)
    failures = iter([OSError("disk"), ValueError("bug")])

    async def fail(work: Callable[[], T]) -> T:
        for error in failures:
            raise error
        return work()

    rig.schedule._read_cold = fail
    rig.delay(b"1", 1)
    rig.store.housekeeper.flush()
    rig.disk.resident = False
    rig.clock.advance(1_000)
    running = asyncio.ensure_future(rig.schedule.run())
    try:
        await until(lambda: bodies(rig.store) == [b"1"])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert caplog.text.count("delivery of delayed messages failed, retrying level=1") == 2


# --- The file ---


async def test_a_restart_goes_on_where_the_file_says(rig: Rig) -> None:
    for body in (b"1", b"2", b"3"):
        rig.delay(body, 1)
        rig.clock.advance(500)
    rig.clock.advance(500)
    await rig.deliver()
    assert rig.schedule.offsets[1] == 3
    again = rig.restarted()
    await again.deliver()
    assert bodies(again.store) == [b"1", b"2", b"3"]
    again.close()


def crashed(rig: Rig, early: bytes, disk: SimulatedDisk, boot: bytes = BOOT) -> Rig:
    """The next run on what a crash left, with a file written earlier."""
    again = Rig(disk=disk, boot=boot)
    again.schedule._clock = rig.clock
    again.progress.load(again.store.log.appended)
    again.schedule.load(early)
    again.schedule.resume()
    return again


async def test_what_was_delivered_before_a_kill_does_not_come_again(rig: Rig) -> None:
    rig.delay(b"1", 1)
    rig.delay(b"ten", 3)
    rig.clock.advance(1_000)
    early = rig.schedule.snapshot()()
    await rig.deliver()
    again = crashed(rig, early, rig.disk.kill_image())
    await again.deliver()
    assert bodies(again.store) == [b"1"]
    rig.clock.advance(9_000)
    await again.deliver()
    assert bodies(again.store) == [b"1", b"ten"]
    again.close()


@pytest.mark.parametrize("seed", range(20))
async def test_a_power_failure_repeats_messages_and_loses_none(rig: Rig, seed: int) -> None:
    """The file of the progress may be on disk while parts of the log are not."""
    for number in range(8):
        rig.delay(b"%d" % number, 1 + number % 2)
    rig.store.flush_log()
    rig.clock.advance(5_000)
    early = rig.schedule.snapshot()()
    await rig.deliver()
    image = rig.disk.crash_image(random.Random(seed))
    again = crashed(rig, early, image, b"c1d0f7aa-52b1-4c0e-8f43-90a6a1e4b7d2")
    await again.deliver()
    assert set(bodies(again.store)) == {b"%d" % number for number in range(8)}
    again.close()


async def test_progress_that_the_log_does_not_have_is_forgotten(rig: Rig) -> None:
    rig.progress.save_levels({1: 7}, rig.store.log.appended + 1)
    again = DeliveryProgress(rig.disk, ROOT, BOOT)
    again.load(rig.store.log.appended)
    assert again.level_offsets == {}
    assert not rig.disk.exists(ROOT / FILE_NAME), "the log grows by other messages"


async def test_where_the_system_does_not_tell_its_runs_apart_nothing_is_noted(rig: Rig) -> None:
    DeliveryProgress(rig.disk, ROOT, b"").save_levels({1: 7}, 0)
    assert not rig.disk.exists(ROOT / FILE_NAME)
    assert len(current_boot()) in (0, len(BOOT))


async def test_a_damaged_file_is_forgotten(rig: Rig) -> None:
    rig.progress.save_levels({1: 7}, 0)
    rig.disk.open(ROOT / FILE_NAME, writable=True).write([b"x"], 30)
    again = DeliveryProgress(rig.disk, ROOT, BOOT)
    again.load(1 << 40)
    assert again.level_offsets == {}


async def test_a_full_disk_does_not_hold_up_delivery(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.disk.plan(Fault(Kind.WRITE, path_contains=FILE_NAME, error=errno.ENOSPC))
    rig.delay(b"1", 1)
    rig.clock.advance(1_000)
    await rig.deliver()
    assert bodies(rig.store) == [b"1"]
    assert "cannot note what was delivered" in caplog.text


async def test_a_restart_delivers_nothing_early(rig: Rig) -> None:
    rig.delay(b"ten", 3)
    rig.clock.advance(4_000)
    again = rig.restarted()
    await again.deliver()
    assert bodies(again.store) == []
    rig.clock.advance(6_000)
    await again.deliver()
    assert bodies(again.store) == [b"ten"]
    again.close()


def test_the_file_is_rocketmqs(rig: Rig) -> None:
    golden = golden_config("delayOffset.json")
    rig.schedule.load(golden)
    assert rig.schedule.offsets == {1: 0, 2: 0, 3: 0}  # none of them reaches into this empty store
    rig.schedule.offsets = {1: 12, 3: 1}
    rig.schedule.data_version = DataVersion(timestamp=5, counter=6)
    assert rig.schedule.snapshot()() == (
        b'{"dataVersion":{"counter":6,"stateVersion":0,"timestamp":5},"offsetTable":{1:12,3:1}}'
    )


def test_offsets_of_the_file_are_kept_within_the_queues(rig: Rig) -> None:
    rig.delay(b"1", 1)
    rig.delay(b"2", 1)
    rig.schedule.load(b'{"offsetTable":{1:99,2:-5,3:0,44:7}}')
    assert rig.schedule.offsets == {1: 2, 2: 0, 3: 0}
    rig.schedule.load(b'{"offsetTable":{1:1}}')
    assert rig.schedule.offsets[1] == 1


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"offsetTable":{"x":1}}', b"\xff"])
def test_a_file_that_cannot_be_read(rig: Rig, data: bytes) -> None:
    with pytest.raises(ValueError):
        rig.schedule.load(data)


def test_a_new_file_has_a_new_version(rig: Rig) -> None:
    before = rig.schedule.data_version
    rig.clock.advance(10)
    rig.schedule.bump()
    after = rig.schedule.data_version
    assert (after.counter, after.timestamp) == (before.counter + 1, before.timestamp + 10)
