"""Pop consumption after a crash: from images of a running broker's files, nothing that is open is missing."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from pathlib import Path

import pytest

from skylark.broker.broker import Broker
from skylark.model import names
from skylark.settings.broker import PopSettings, TimerSettings
from tests.support.broker import GROUP, BrokerClient, running_broker, until
from tests.support.popping import Popped, Popper, quick_pops
from tests.support.store import unpack_golden

TOPIC = "T"
MESSAGES = 60


def image(broker: Broker, target: Path, *, with_power: bool) -> Path:
    """Copy the files as they are after kill -9, or after a power failure: without what was not flushed.

    Called on the loop, so that nothing is appended meanwhile.
    """
    path = broker.store.settings.path
    shutil.copytree(path, target, ignore=shutil.ignore_patterns("*.tmp"))
    # Threads go on: read behind what was copied, or a copied file could rely on more than was flushed.
    flushed, appended = broker.store.flushed_offset, broker.store.appended_offset
    if not with_power:
        file_bytes = broker.store.settings.commit_log_file_bytes
        assert appended < file_bytes
        with (target / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(flushed)
            log.write(bytes(appended - flushed))
        # Consume queues are built from the log again; what says that they were flushed is lost with them.
        shutil.rmtree(target / "consumequeue")
        for evidence in (target / "checkpoint", *target.glob("skylark-queues*")):
            evidence.unlink()
    return target


class Story:
    """What a consumer did: bodies by their state."""

    def __init__(self, popper: Popper) -> None:
        self.popper = popper
        self.acked: set[bytes] = set()
        self.held: list[Popped] = []

    async def step(self, chance: random.Random) -> None:
        match chance.randrange(4):
            case 0 | 1:
                self.held += (await self.popper.pop(chance.randrange(1, 8), invisible_ms=700)).messages
            case 2 if self.held:
                some = chance.sample(self.held, chance.randrange(1, len(self.held) + 1))
                await self.popper.ack_together(some)
                self.acked |= {each.body for each in some}  # a late one may count, too
                self.held = [each for each in self.held if each not in some]
            case 3 if self.held:
                each = self.held.pop()
                self.held.append(await self.popper.change(each, chance.randrange(200, 1500)))


async def all_that_comes(directory: Path, stay_ms: int, wanted: set[bytes]) -> set[bytes]:
    """Open an image and pop all that is wanted."""
    seen: set[bytes] = set()
    async with (
        running_broker(directory, **quick_pops(stay_ms=stay_ms)) as broker,
        BrokerClient(broker.address) as client,
        asyncio.timeout(60),
    ):
        popper = Popper(client, TOPIC)
        while not wanted <= seen:
            found = (await popper.pop(poll_ms=500)).messages
            seen |= {each.body for each in found}
            await popper.ack_together(found) if found else None
    return seen


@pytest.mark.parametrize(
    ("stay_ms", "with_power"),
    [
        (300, False),
        pytest.param(0, True, marks=pytest.mark.nightly),
        pytest.param(0, False, marks=pytest.mark.nightly),
        pytest.param(300, True, marks=pytest.mark.nightly),
    ],
)
async def test_what_was_open_in_a_crash_comes_again(tmp_path: Path, stay_ms: int, with_power: bool) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    images: list[tuple[Path, set[bytes]]] = []
    async with (
        running_broker(
            tmp_path / "store", store={"flush_interval_ms": 150}, **quick_pops(stay_ms=stay_ms)
        ) as broker,
        BrokerClient(broker.address) as client,
    ):
        bodies = {b"%d" % number for number in range(MESSAGES)}
        for number in range(MESSAGES):
            await client.send(TOPIC, b"%d" % number, number % 2)
        await until(lambda: broker.store.flushed_offset == broker.store.appended_offset)
        story = Story(Popper(client, TOPIC))
        for number in range(2):
            for _ in range(40):
                await story.step(chance)
                await asyncio.sleep(chance.random() / 50)
            open_then = bodies - story.acked
            images.append((image(broker, tmp_path / f"{number}", with_power=with_power), open_then))
    for directory, open_then in images:
        assert open_then <= await all_that_comes(directory, stay_ms, open_then), f"seed {seed}"


async def test_a_kill_between_reply_and_acknowledgement_repeats_the_batch(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path / "store", **quick_pops()) as broker,
        BrokerClient(broker.address) as client,
    ):
        await client.send(TOPIC, b"a", properties={"UNIQ_KEY": "k"})
        popper = Popper(client, TOPIC)
        [before] = (await popper.pop()).messages
        copied = image(broker, tmp_path / "image", with_power=True)
    async with running_broker(copied, **quick_pops()) as broker, BrokerClient(broker.address) as client:
        popper = Popper(client, TOPIC)
        await popper.ack(before)  # of a batch that nobody remembers: it is accepted, and does nothing
        [again] = (await popper.pop()).messages
        assert (again.body, again.message.reconsume_times) == (b"a", 0)


async def test_records_that_apache_left_in_the_revive_topic_are_honoured(tmp_path: Path) -> None:
    """As Apache's broker writes them, whose check points list everything and whose offsets are committed."""
    async with running_broker(tmp_path, **quick_pops()) as broker, BrokerClient(broker.address) as client:
        for body in (b"a", b"b", b"c"):
            await client.send(TOPIC, body)
        popper = Popper(client, TOPIC)
        assert (await popper.pop(queue_id=3)).messages == []
        popped = round(time.time() * 1000)
        revive = names.revive_topic("DefaultCluster")
        place = f'"bn":"broker-a","c":"{GROUP}"'
        check_point = (
            f'{{"bm":0,{place},"d":[0,1,2],"it":1500,"n":3,"pt":{popped},"q":0,"reviveTime":{popped + 1500},'
            f'"ro":0,"so":0,"t":"{TOPIC}"}}'
        )
        ack = f'{{"ao":1,{place},"pt":{popped},"q":0,"so":0,"t":"{TOPIC}"}}'
        broker.offsets.commit(TOPIC, GROUP, 0, 3, now_ms=popped)
        for tag, text, deliver in (("ck", check_point, popped + 500), ("ack", ack, popped + 1500)):
            properties = {"TAGS": tag, "UNIQ_KEY": tag, "TIMER_DELIVER_MS": str(deliver)}
            await client.send(revive, text.encode(), 5, properties=properties)
        found: list[Popped] = []
        async with asyncio.timeout(60):
            while len(found) < 2:
                found += (await popper.pop(poll_ms=1000)).messages
        assert [each.body for each in found] == [b"a", b"c"]
        await until(lambda: broker.offsets.query(revive, names.REVIVE_GROUP, 5) == 1)


MID_POP = {
    **dict.fromkeys(map(b"m%d".__mod__, (1, 4, 6, 8, 9, 11, 12, 13, 14, 16, 18, 20, 22)), 1),
    **dict.fromkeys((b"r0", b"r2"), 2),
    **dict.fromkeys(map(b"m%d".__mod__, (17, 19, 21, 23)), 0),
}
"""What the group had not acknowledged in the golden store, with the number of failed deliveries."""
MID_POP_TIMERS = TimerSettings(log_file_bytes=5200)
MID_POP_FILES = {
    "commit_log_file_bytes": 1 << 18,
    "consume_queue_file_bytes": 6000,
    "index_slots": 500,
    "index_items": 2000,
}


async def test_a_store_that_apache_left_in_mid_pop_goes_on(tmp_path: Path, golden: Path) -> None:
    """It was killed with check points in the timer wheel and in the revive topic."""
    store = unpack_golden(golden, "mid-pop", tmp_path)
    pop = PopSettings(revive_interval_ms=20)
    seen: dict[bytes, list[int]] = {}
    async with (
        running_broker(store, store=MID_POP_FILES, revive_queues=2, pop=pop, timers=MID_POP_TIMERS) as broker,
        BrokerClient(broker.address) as client,
        asyncio.timeout(60),
    ):
        popper = Popper(client, TOPIC)
        while len(seen) < len(MID_POP):
            found = (await popper.pop(poll_ms=500)).messages
            for each in found:
                seen.setdefault(each.body, []).append(each.message.reconsume_times)
            await popper.ack(*found)
        ordered = await Popper(client, "Ordered", "OrderedGroup").pop(order=True)
    assert seen == {body: [times] for body, times in MID_POP.items()}
    assert ordered.bodies == [b"o2", b"o3", b"o4", b"o5"]
