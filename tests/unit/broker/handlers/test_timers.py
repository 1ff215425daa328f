"""Timed messages without sockets: delivered in time, taken back, rolled, kept over restarts."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from skylark.broker.delayed.timed_messages import RecallHandle
from skylark.broker.delayed.timers import Timers
from skylark.errors import DiskFull
from skylark.model import names
from skylark.model.message import PutMessage
from skylark.protocol.bodies import TimerMetrics
from skylark.protocol.requests.admin import GetTimerCheckPoint, GetTimerMetrics, SwitchTimerEngine
from skylark.protocol.requests.send import RecallMessage
from skylark.settings.broker import TimerSettings
from skylark.store.queue_entry import ENTRY
from skylark.store.timer_files import TimerCheckpoint
from tests.support.simulated_disk import Fault, Kind, SimulatedDisk
from tests.support.store import ROOT
from tests.unit.broker.handlers.rig import Rig, rigged

SETTINGS = TimerSettings(log_file_bytes=5200, roll_window_slots=60, max_delay_s=600)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with rigged(store={"commit_log_file_bytes": 1 << 20}, timers=SETTINGS) as made:
        made.broker.timers.load()
        yield made


def timed(rig: Rig, delay_ms: int, body: bytes = b"body", key: str = "K", **properties: str) -> int:
    """Store a message for queue 1 of topic T; return its slot."""
    rig.broker.topics.ensure_topic("T", 4, now_ms=rig.clock.now_ms())
    message = PutMessage("T", 1, body)
    wanted = {"TIMER_DELAY_MS": str(delay_ms), "UNIQ_KEY": key, **properties}
    rig.broker.timers.admit(message, wanted)
    rig.append(message)
    return int(wanted.get("TIMER_OUT_MS", 0))


def delivered(rig: Rig) -> list[bytes]:
    return [message.body for message in rig.stored("T", 1)]


async def step(rig: Rig, after_ms: int = 0, timers: Timers | None = None) -> None:
    rig.clock.advance(after_ms)
    await (timers or rig.broker.timers).step()


def made_anew(rig: Rig) -> Timers:
    broker = rig.broker
    return Timers(
        live=broker.live,
        clock=broker.clock,
        store=broker.store,
        disk=broker.store._disk,
        restore_topics=broker.restoration.restore_undeleted,
        stats=broker.stats,
        read_cold=broker.read_cold,
        progress=broker._delivered,
    )


def restarted(rig: Rig) -> Timers:
    """The timers of the next run of the broker."""
    timers = made_anew(rig)
    timers.load()
    rig.broker.timers = timers
    return timers


async def test_messages_come_at_their_time_or_up_to_a_second_later(rig: Rig) -> None:
    rig.clock.advance(300)
    due = {b"%d" % delay: rig.clock.now_ms() + delay for delay in (1, 700, 1000, 1700, 2500, 9999)}
    for body, at in due.items():
        timed(rig, at - rig.clock.now_ms(), body)
    arrived: dict[bytes, int] = {}
    while len(arrived) < len(due):
        await step(rig, 100)
        for body in delivered(rig):
            arrived.setdefault(body, rig.clock.now_ms())
    assert all(0 <= arrived[body] - at <= 1000 for body, at in due.items()), (due, arrived)
    assert sorted(delivered(rig)) == sorted(due)


async def test_a_delivered_message_is_as_apaches(rig: Rig) -> None:
    slot = timed(rig, 3000, KEYS="k")
    await step(rig)
    enqueued = rig.clock.now_ms() - rig.clock.now_ms() % 1000
    await step(rig, 4000)
    [message] = rig.stored("T", 1)
    assert message.properties == {
        **{"TIMER_DELAY_MS": "3000", "UNIQ_KEY": "K", "KEYS": "k", "REAL_TOPIC": "T", "REAL_QID": "1"},
        **{"TIMER_OUT_MS": str(slot), "TIMER_ENQUEUE_MS": str(enqueued)},
        "TIMER_DEQUEUE_MS": str(rig.clock.now_ms()),
    }


async def test_what_was_not_enqueued_in_time_is_delivered_at_once(rig: Rig) -> None:
    timed(rig, 2000)
    await step(rig, 60_000)
    assert delivered(rig) == [b"body"]
    slot = timed(rig, 2000)
    rig.broker.timers.read_ms = slot + 1000
    await step(rig)
    assert rig.stored("T", 1)[-1].properties["TIMER_ENQUEUE_MS"] == str((1 << 63) - 1)


async def test_a_message_is_taken_back_although_the_wheel_is_late(rig: Rig) -> None:
    slot = timed(rig, 5000)
    assert (await recall(rig, RecallHandle("T", "broker-a", slot + 1, "K"))).code == 0
    await step(rig, 60_000)
    assert delivered(rig) == []


async def test_what_is_far_away_is_rolled(rig: Rig) -> None:
    timed(rig, 200_000)
    arrived = 0
    for seconds in range(1, 203):
        await step(rig, 1000)
        if delivered(rig):
            arrived = seconds
            break
    assert 200 <= arrived <= 201
    [message] = rig.stored("T", 1)
    assert int(message.properties["TIMER_ROLL_TIMES"]) >= 2


async def test_many_of_a_slot_come_in_order_through_files_and_batches(rig: Rig) -> None:
    """Two hundred and fifty of a slot, others between them: its log has 99 units in a file."""
    wanted = [b"%d" % number for number in range(250)]
    for number, body in enumerate(wanted):
        timed(rig, 2000, body, key=f"K{number}")
        if number % 3 == 0:
            timed(rig, 5000 + 1000 * (number % 2), b"other", key=f"O{number}")
    await step(rig)
    assert (rig.broker.timers.waiting, delivered(rig)) == (250 + 84, [])
    await step(rig, 2000)
    assert delivered(rig) == wanted
    await step(rig, 5000)
    assert delivered(rig) == wanted + [b"other"] * 84
    assert rig.broker.timers.waiting == 0


async def test_a_timer_log_that_could_not_be_written_has_everything_once_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        timed(rig, 3000, b"%d" % number, key=f"K{number}")
    timers, writes = rig.broker.timers, itertools.count()
    append = timers.log.append

    def fail_once(*units: bytes) -> int:
        if next(writes) == 1:
            raise DiskFull(ROOT, "no room")
        return append(*units)

    monkeypatch.setattr(timers.log, "append", fail_once)
    with pytest.raises(DiskFull):
        await step(rig)
    assert 0 < timers.waiting == timers.queue_offset < 100
    await step(rig)
    assert timers.waiting == timers.queue_offset == 100
    await step(rig, 3000)
    assert delivered(rig) == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_wheel_that_could_not_be_written_is_written_later(
    rig: Rig, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    """So much later that its log is not read from the beginning after a restart."""
    timed(rig, 50_000, b"first")
    await step(rig)
    disk = rig.broker.store._disk
    assert isinstance(disk, SimulatedDisk)
    disk.plan(Fault(Kind.WRITE, path_contains="timerwheel", error=error))
    await rig.broker.timers.flush()
    assert "cannot write timers, retrying" in caplog.text
    for number in range(300):
        timed(rig, 55_000, b"%d" % number, key=f"K{number}")
    await step(rig)
    await rig.broker.timers.flush()
    await step(rig, 51_000, restarted(rig))
    assert delivered(rig) == [b"first"]


async def test_units_without_a_record_do_not_stop_the_others(rig: Rig) -> None:
    timed(rig, 2000, b"first")
    queue = rig.broker.store.queue(names.TIMER_TOPIC, 0)
    [(physical_offset, size, code)] = ENTRY.iter_unpack(queue.entries(0, 1))
    queue.add(200, physical_offset, size, code)  # blank ones come between
    await step(rig)
    assert rig.broker.timers.queue_offset == 201
    await step(rig, 2000)
    assert delivered(rig) == [b"first", b"first"]


async def test_a_record_that_names_no_time_does_not_stop_the_others(rig: Rig) -> None:
    rig.append(PutMessage(names.TIMER_TOPIC, 0, b"stray"))
    timed(rig, 1000)
    await step(rig)
    await step(rig, 3000)
    assert delivered(rig) == [b"body"]


async def test_a_full_store_is_waited_for(rig: Rig) -> None:
    timed(rig, 1000)
    await step(rig)
    rig.broker.store.housekeeper.disk_full.is_set = True
    waiting = asyncio.create_task(step(rig, 3000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    rig.broker.store.housekeeper.disk_full.is_set = False
    await waiting
    assert delivered(rig) == [b"body"]


# --- Taking back ---


async def recall(rig: Rig, handle: RecallHandle | str, topic: str = "T") -> Any:
    text = handle if isinstance(handle, str) else handle.encode()
    return await rig.ask(RecallMessage(topic, text, "PG"))


async def test_a_message_is_taken_back(rig: Rig) -> None:
    slot = timed(rig, 5000, b"first", "K1")
    timed(rig, 5000, b"second", "K2")
    await step(rig)
    assert rig.broker.timers.waiting == 2
    answer = await recall(rig, RecallHandle("T", "broker-a", slot + 1, "K1"))
    assert (answer.code, answer.fields) == (0, {"msgId": "K1", "MSG_REGION": "DefaultRegion"})
    await step(rig)
    assert rig.broker.timers.waiting == 1
    await step(rig, 7000)
    assert delivered(rig) == [b"second"]
    assert rig.broker.timers.metrics().timing_count["T"].count == 0


async def test_a_message_that_is_rolled_is_taken_back(rig: Rig) -> None:
    slot = timed(rig, 200_000)
    await step(rig)
    await step(rig, 10_000)
    assert (await recall(rig, RecallHandle("T", "broker-a", slot + 1, "K"))).code == 0
    for _ in range(202):
        await step(rig, 1000)
    assert delivered(rig) == []


@pytest.mark.parametrize(
    ("handle", "topic", "code"),
    [
        ("nonsense", "T", 604),
        (RecallHandle("Other", "broker-a", 10**15, "K"), "T", 604),
        (RecallHandle("T", "broker-b", 10**15, "K"), "T", 604),
        (RecallHandle("T", "broker-a", 1, "K"), "T", 604),
        (RecallHandle("T", "broker-a", 10**15, "K"), "T", 604),
        (RecallHandle("Unknown", "broker-a", 10**15, "K"), "Unknown", 17),
    ],
)
async def test_what_cannot_be_taken_back(rig: Rig, handle: Any, topic: str, code: int) -> None:
    rig.broker.topics.ensure_topic("T", 4, now_ms=rig.clock.now_ms())
    answer = await recall(rig, handle, topic)
    assert (answer.code, answer.fields) == (code, {"MSG_REGION": "DefaultRegion"})
    assert rig.broker.store.appended_offset == 0


async def test_recalls_can_be_forbidden() -> None:
    with rigged(timers=TimerSettings(recall=False)) as rig:
        assert (await recall(rig, "x")).code == 16


# --- Limits and counts ---


async def test_a_slot_that_is_full_takes_no_more() -> None:
    settings = TimerSettings(slot_messages_max=2)
    with rigged(store={"commit_log_file_bytes": 1 << 20}, timers=settings) as rig:
        rig.broker.timers.load()
        for _ in range(4):
            timed(rig, 5000)
        await step(rig)
        message = PutMessage("T", 1, b"x")
        with pytest.raises(Exception, match="under flow control"):
            rig.broker.timers.admit(message, {"TIMER_DELAY_MS": "5000"})


async def test_what_waits_is_counted_and_told(rig: Rig) -> None:
    for delay in (5000, 6000):
        timed(rig, delay)
    await step(rig)
    answer = await rig.ask(GetTimerMetrics())
    metrics = GetTimerMetrics().parse(answer)
    assert isinstance(metrics, TimerMetrics)
    assert metrics.timing_count["T"].count == 2
    await rig.broker.timers.flush()
    check = TimerCheckpoint.decode(bytes((await rig.ask(GetTimerCheckPoint())).body))
    assert (check.queue_offset, check.master_queue_offset, check.log_flushed) == (2, 2, 104)
    again = made_anew(rig)
    again.load_metrics(rig.broker.timers.snapshot()())
    assert again.metrics().timing_count["T"].count == 2


async def test_a_broker_without_timers_says_so() -> None:
    with rigged(timers=TimerSettings(enabled=False)) as rig:
        for request, remark in (
            (GetTimerCheckPoint(), "The checkpoint is null"),
            (GetTimerMetrics(), "The timer message store is null"),
            (SwitchTimerEngine("F"), "broker timerWheelEnable is false"),
        ):
            answer = await rig.ask(request)
            assert (answer.code, answer.remark) == (1, remark)


@pytest.mark.parametrize(
    ("engine", "code", "remark"),
    [
        ("F", 0, "switch timer engine success"),
        ("R", 1, "timers are kept in the timer wheel only; RocksDB is not supported"),
        ("X", 29, "param error"),
        ("", 29, "param error"),
    ],
)
async def test_the_wheel_is_the_only_engine(rig: Rig, engine: str, code: int, remark: str) -> None:
    answer = await rig.ask(SwitchTimerEngine(engine))
    assert (answer.code, answer.remark) == (code, remark)


# --- Over restarts ---


@pytest.mark.parametrize("flushed", [True, False])
async def test_what_waits_is_found_again(rig: Rig, flushed: bool) -> None:
    for number in range(300):
        timed(rig, 2000 + number * 20, b"%d" % number)
    await step(rig)
    if flushed:
        await rig.broker.timers.flush()
    timers = restarted(rig)
    assert (timers.waiting, timers.queue_offset) == (300, 300)
    for _ in range(10):
        await step(rig, 1000)
    assert sorted(map(int, delivered(rig))) == list(range(300))


@pytest.mark.parametrize("flushed", [True, False])
async def test_nothing_is_delivered_twice_after_an_orderly_end_or_a_kill(rig: Rig, flushed: bool) -> None:
    for number in range(20):
        timed(rig, 1000 + number * 500, b"%d" % number)
    for _ in range(14):
        await step(rig, 1000)
        if flushed:
            await rig.broker.timers.flush()
        restarted(rig)
    assert sorted(map(int, delivered(rig))) == list(range(20))


async def test_what_became_due_meanwhile_is_delivered_at_the_start(rig: Rig) -> None:
    timed(rig, 5000)
    await step(rig)
    await rig.broker.timers.flush()
    rig.clock.advance(3 * 86_400_000)
    restarted(rig)
    await step(rig)
    assert delivered(rig) == [b"body"]


async def test_an_idle_wheel_writes_nothing(rig: Rig) -> None:
    timed(rig, 1000)
    await step(rig, 5000)
    await rig.broker.timers.flush()
    saved = rig.broker.timers.check
    for _ in range(5):
        await step(rig, 1000)
        await rig.broker.timers.flush()
    assert rig.broker.timers.check is saved


async def test_a_disk_that_fails_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(rig, 5000)
    await step(rig)

    def fail(*_: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as broken:
        broken.setattr(rig.broker.timers.log, "flush", fail)
        await rig.broker.timers.flush()
    assert rig.broker.timers.check.queue_offset == 0
    await rig.broker.timers.flush()
    assert restarted(rig).waiting == 1


async def test_late_messages_come_once_though_the_log_takes_no_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late ones before the first that is not; those behind it wait with it."""
    slot = timed(rig, 2000, b"late")
    timed(rig, 50_000, b"in time")
    timed(rig, 2000, b"late, too")
    timers = rig.broker.timers
    timers.read_ms = slot + 1000

    def fail(*_: object) -> None:
        raise DiskFull(ROOT, "no room")

    with monkeypatch.context() as full:
        full.setattr(timers.log, "append", fail)
        for _ in range(3):
            with pytest.raises(DiskFull):
                await step(rig)
        assert delivered(rig) == [b"late"]
    await step(rig)
    assert delivered(rig) == [b"late", b"late, too"]
    assert (timers.waiting, timers.enqueued["T"], timers.dequeued["T"]) == (1, 3, 2)


# --- Without files ---


def lose_files(rig: Rig) -> None:
    disk = rig.broker.store._disk
    for path in (ROOT / "config" / "timercheck", ROOT / "timerwheel"):
        disk.delete(path)
    disk.delete_directory(ROOT / "timerlog")


async def delivered_after(rig: Rig, seconds: int) -> list[int]:
    for _ in range(seconds):
        await step(rig, 1000)
    return sorted(map(int, delivered(rig)))


async def test_timers_whose_files_are_gone_are_found_in_the_queue(rig: Rig) -> None:
    """What was delivered is not delivered again, what waits is."""
    for number in range(12):
        timed(rig, 1500 + number * 1000, b"%d" % number, f"K{number}")
    slot = timed(rig, 150_000, b"12", "K12")
    timed(rig, 160_000, b"13", "K13")
    assert await delivered_after(rig, 5) == [0, 1, 2, 3]
    assert (await recall(rig, RecallHandle("T", "broker-a", slot + 1, "K12"))).code == 0
    await step(rig)
    lose_files(rig)
    timers = restarted(rig)
    assert timers.waiting >= 8
    assert await delivered_after(rig, 170) == [*range(12), 13]


async def test_a_rolled_message_is_found_once(rig: Rig) -> None:
    timed(rig, 150_000, b"0")
    assert await delivered_after(rig, 100) == []
    assert rig.broker.store.max_offset(names.TIMER_TOPIC, 0) > 1
    lose_files(rig)
    restarted(rig)
    assert await delivered_after(rig, 60) == [0]


async def test_timers_whose_log_is_gone_are_found_in_the_queue(rig: Rig) -> None:
    timed(rig, 5000, b"0")
    await step(rig)
    await rig.broker.timers.flush()
    rig.broker.store._disk.delete_directory(ROOT / "timerlog")
    restarted(rig)
    assert await delivered_after(rig, 8) == [0]


async def test_what_goes_through_the_wheel_is_counted_by_topic(rig: Rig) -> None:
    timers = rig.broker.timers
    for delay_ms in (1_000, 59_000, 500_000):  # the last is put back on its way
        timed(rig, delay_ms, key=f"K{delay_ms}")
    await step(rig)
    assert (timers.enqueued, timers.dequeued) == ({"T": 3}, {})
    now_ms = rig.clock.now_ms()
    assert timers.wheel.waiting_between(now_ms, now_ms + 5_000) == 1
    assert timers.wheel.waiting_between(now_ms, now_ms + 3_600_000) == timers.waiting == 3
    while len(delivered(rig)) < 3:
        await step(rig, 10_000)
    assert timers.enqueued == timers.dequeued
    assert timers.enqueued["T"] > 3
    assert timers.delays["T"].count == 3


async def test_what_is_delivered_counts_for_its_topic(rig: Rig) -> None:
    timed(rig, 1_000)
    timed(rig, 500_000)  # it is put back on its way
    await step(rig)
    await step(rig, 62_000)
    puts = rig.broker.stats.topic_puts
    assert (puts["T"].count, puts["T"].size) == (1, rig.stored("T", 1)[0].size)
    assert puts[names.TIMER_TOPIC].count == 1
    assert rig.broker.stats.puts.count == 2


async def test_delays_are_counted_from_birth(rig: Rig) -> None:
    rig.broker.topics.ensure_topic("T", 4, now_ms=rig.clock.now_ms())
    for delay_ms in (30_000, 300_000):
        message = PutMessage("T", 1, b"body", born_timestamp=rig.clock.now_ms())
        rig.broker.timers.admit(message, {"TIMER_DELAY_MS": str(delay_ms), "UNIQ_KEY": str(delay_ms)})
        rig.append(message)
    await step(rig)
    delays = rig.broker.timers.delays["T"]
    assert delays.counts[:3] == [1, 1, 0]
    assert 328 <= delays.sum <= 330  # the slots begin up to a second before
