"""A store in the middle of pop consumption: one broker is killed, the other goes on with its directory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.peers.apache import ApacheBroker, ApacheNameServer
from benchmarks.peers.java import Classpath
from skylark.protocol.bodies import ConsumerOffsetTable, SubscriptionGroupConfig, decode_body
from skylark.protocol.requests.group import UpdateAndCreateSubscriptionGroup
from tests.interop.servers import PATIENT, create_topic
from tests.support.broker import GROUP, BrokerClient, until
from tests.support.popping import Popped, Popper
from tests.support.skylark_servers import SMALL_STORE, SkylarkBroker

pytestmark = [
    pytest.mark.interop("java", "javac", "mvn"),
    pytest.mark.timeout(600),
    pytest.mark.nightly,  # every run opens a store that was recorded so (test_broker_pop_crash.py)
]

TOPIC, ORDERED_TOPIC, ORDERED_GROUP = "T", "Ordered", "OrderedGroup"
QUEUES = 2
SETTINGS: dict[str, str | int] = {
    **SMALL_STORE,
    "reviveQueueNum": 2,
    "flushConsumerOffsetInterval": 200,
    "mappedFileSizeTimerLog": 5200,
}
OURS: dict[str, str | int] = {"popCkStayBufferTime": 500}
SHORT_MS, OPEN_MS = 1500, 20_000
"""Invisible times: of what is to be revived before the kill, and of what is open then."""
COUNT = 24
WAIT_S = 120


@dataclass
class MidPop:
    """What was consumed before the kill."""

    acked: set[bytes] = field(default_factory=set)
    open: set[bytes] = field(default_factory=set)
    """Neither acknowledged nor in order."""
    revived: set[bytes] = field(default_factory=set)
    """Those of the open ones that had come a second time."""
    never_popped: set[bytes] = field(default_factory=set)
    ordered: list[bytes] = field(default_factory=list)
    """What is left of the ordered queue."""


async def consume_in_part(address: str, store: Path) -> MidPop:
    """Pop, acknowledge, postpone and leave open; return when all that is in the store's files."""
    past = MidPop()
    async with BrokerClient(address) as client, asyncio.timeout(WAIT_S):
        for group in (GROUP, ORDERED_GROUP):
            config = SubscriptionGroupConfig(group_name=group, consume_message_orderly=group == ORDERED_GROUP)
            await client.ask(UpdateAndCreateSubscriptionGroup(config))
        popper = Popper(client, TOPIC)
        await revive_some(client, popper, past)
        for number in range(COUNT):
            await client.send(TOPIC, b"m%d" % number, number % QUEUES)
        first = await take(popper, 0, 12)
        second = await take(popper, 1, 8)
        await popper.ack(*first[:2])
        await popper.ack_together(second[1:4])
        await popper.change(first[8], OPEN_MS // 2)
        await until(lambda: persisted(store, TOPIC, GROUP) == [2 + 12, 2 + 8])
        await popper.ack(first[5], second[7])  # after their check points
        acked = [*first[:2], first[5], *second[1:4], second[7]]
        past.acked |= {each.body for each in acked}
        past.open |= {each.body for each in (*first, *second)} - past.acked
        past.never_popped = {b"m%d" % number for number in range(COUNT)} - past.acked - past.open
        past.open |= past.never_popped
        past.ordered = await order_some(client)
        await until(lambda: persisted(store, ORDERED_TOPIC, ORDERED_GROUP) == [2])
    assert len(past.never_popped) == 4
    return past


async def take(popper: Popper, queue_id: int, count: int) -> list[Popped]:
    """Pop so many messages of a queue; a batch may be smaller than asked for."""
    found: list[Popped] = []
    while len(found) < count:
        batch = await popper.pop(min(6, count - len(found)), invisible_ms=OPEN_MS, queue_id=queue_id)
        found += batch.messages
    return found


async def revive_some(client: BrokerClient, popper: Popper, past: MidPop) -> None:
    """Let four messages come a second time, and acknowledge two of them."""
    for number in range(4):
        await client.send(TOPIC, b"r%d" % number, number % QUEUES)
    taken = 0
    while taken < 4:
        taken += len((await popper.pop(invisible_ms=SHORT_MS)).messages)
    again: list[Popped] = []
    while len(again) < 4:
        again += (await popper.pop(poll_ms=1000, invisible_ms=OPEN_MS)).messages
    assert {each.message.reconsume_times for each in again} == {1}
    await popper.ack(*again[:2])
    past.acked |= {each.body for each in again[:2]}
    past.revived = {each.body for each in again[2:]}
    past.open |= past.revived


async def order_some(client: BrokerClient) -> list[bytes]:
    """Take four of six messages in order and acknowledge two; return the others."""
    bodies = [b"o%d" % number for number in range(6)]
    for body in bodies:
        await client.send(ORDERED_TOPIC, body)
    popper = Popper(client, ORDERED_TOPIC, ORDERED_GROUP)
    batch = await popper.pop(4, order=True, invisible_ms=OPEN_MS)
    assert batch.bodies == bodies[:4]
    await popper.ack(*batch.messages[:2])
    return bodies[2:]


def persisted(store: Path, topic: str, group: str) -> list[int]:
    """The committed offsets of a group in the store's file, by queue."""
    try:
        data = (store / "config" / "consumerOffset.json").read_bytes()
    except FileNotFoundError:  # Apache replaces the file by two renames
        return []
    table = decode_body(data, ConsumerOffsetTable).offset_table
    return [offset for _, offset in sorted(table.get(f"{topic}@{group}", {}).items())]


async def check_rest(address: str, past: MidPop) -> None:
    """Everything that was open comes, once; nothing that was acknowledged does; the order is kept."""
    seen: Counter[bytes] = Counter()
    times: dict[bytes, int] = {}
    async with BrokerClient(address) as client, asyncio.timeout(WAIT_S):
        popper = Popper(client, TOPIC)
        while True:
            found = (await popper.pop(poll_ms=3000)).messages
            for each in found:
                seen[each.body] += 1
                times[each.body] = each.message.reconsume_times
            await popper.ack(*found)
            if not found and past.open <= seen.keys():
                break
        assert seen == Counter(past.open)
        popped = past.open - past.never_popped - past.revived
        assert {body: times[body] for body in popped} == dict.fromkeys(popped, 1)
        assert {times[body] for body in past.revived} == {2}
        assert {times[body] for body in past.never_popped} == {0}
        ordered = Popper(client, ORDERED_TOPIC, ORDERED_GROUP)
        order: list[bytes] = []
        while len(order) < len(past.ordered):
            batch = await ordered.pop(order=True, poll_ms=3000)
            order += batch.bodies
            await ordered.ack(*batch.messages)
        assert order == past.ordered


def hand_over(
    store: Path,
    before: AbstractContextManager[ApacheBroker | SkylarkBroker],
    after: AbstractContextManager[ApacheBroker | SkylarkBroker],
) -> None:
    with before as broker:
        create_topic(broker.address, TOPIC, QUEUES)
        create_topic(broker.address, ORDERED_TOPIC, 1)
        past = asyncio.run(consume_in_part(broker.address, store))
        broker.kill()
    with after as broker:
        asyncio.run(check_rest(broker.address, past))


@pytest.fixture
def apache_at(
    classpath: Classpath, name_server: ApacheNameServer, tmp_path: Path
) -> Callable[[Path], ApacheBroker]:
    return lambda store: ApacheBroker(
        classpath,
        tmp_path / "apache",
        store,
        name_server=name_server.address,
        settings={**PATIENT, **SETTINGS},
    )


@pytest.fixture
def ours(name_server: ApacheNameServer, tmp_path: Path) -> SkylarkBroker:
    return SkylarkBroker(tmp_path / "ours", name_server.address, {**SETTINGS, **OURS})


def test_skylark_goes_on_after_a_kill_of_apaches_broker(
    apache_at: Callable[[Path], ApacheBroker], ours: SkylarkBroker
) -> None:
    store = ours.home / "data"
    hand_over(store, apache_at(store), ours)


def test_apaches_broker_goes_on_after_a_kill_of_skylark(
    apache_at: Callable[[Path], ApacheBroker], ours: SkylarkBroker
) -> None:
    store = ours.home / "data"
    hand_over(store, ours, apache_at(store))
