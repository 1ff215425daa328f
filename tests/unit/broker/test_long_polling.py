"""Who waits, who is woken, and that nothing of it is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skylark.broker.due_requests import RESUMED_AT_ONCE
from skylark.broker.filters.compiled_subscription import CompiledSubscription
from skylark.broker.long_polling import HELD_PULL_BYTES, HeldPull, LongPolling
from skylark.model.sql92 import Selector, compile_selector
from skylark.protocol.bodies import SubscriptionData
from skylark.protocol.command import TypedCommand
from skylark.protocol.requests.pull import PullMessage
from skylark.remoting.server import Peer
from skylark.store.append_result import AppendedRecord
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.message_store import MessageStore
from skylark.store.tail_reader import TagsFilter
from tests.support.broker import until
from tests.support.store import message, opened, placed

FOR_EVER_S = 3600.0


class SomePeer:
    """Stands for a connection, which only counts as itself here."""

    active_at = 0.0
    is_closed = False

    def flush(self) -> None:
        """Nothing is written."""


def peer() -> Peer:
    return cast(Peer, SomePeer())


def pull_of(
    queue: ConsumeQueue,
    *,
    of: Peer | None = None,
    tags_filter: TagsFilter | None = None,
    selector: Selector | None = None,
    queue_offset: int = 0,
    **fields: Any,
) -> HeldPull:
    values = {"subscription": None, **fields}
    request = PullMessage("CG", queue.topic, queue.queue_id, queue_offset, 32, 2, 0, 15_000, 0, **values)
    held = TypedCommand(code=11, request=request)
    wanted = CompiledSubscription(SubscriptionData(topic=queue.topic), tags_filter, selector)
    return HeldPull(of or peer(), held, queue, queue_offset, wanted)


class Rig:
    def __init__(self, store: MessageStore, *, held_max: int = 1000, held_bytes_max: int = 1 << 20) -> None:
        self.store = store
        self.resumed: list[HeldPull] = []
        self.polling = LongPolling(self.resumed.append, held_max=held_max, held_bytes_max=held_bytes_max)

    def hold(self, queue_id: int = 0, *, timeout_s: float = FOR_EVER_S, **options: Any) -> HeldPull:
        pull = pull_of(self.store.queue("T", queue_id), **options)
        assert self.polling.hold(pull, timeout_s)
        return pull

    def put(self, queue_id: int = 0, **members: Any) -> AppendedRecord:
        return placed(self.store.append([message("T", queue_id, **members)])[0])

    async def woken(self) -> list[HeldPull]:
        """Return those that arrivals have resumed."""
        assert self.taken() == []
        while self.polling._due._is_scheduled:  # noqa: ASYNC110 (a turn at a time)
            await asyncio.sleep(0)
        return self.taken()

    def taken(self) -> list[HeldPull]:
        taken, self.resumed[:] = list(self.resumed), []
        return taken


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with opened() as store:
        made = Rig(store)
        yield made
        made.polling.wake_all()
        assert made.polling.count == made.polling.held_bytes == 0
        assert not made.polling._held
        assert not made.polling._by_peer


async def test_an_arrival_wakes_who_waits_at_its_queue(rig: Rig) -> None:
    first, second, other = rig.hold(0), rig.hold(0), rig.hold(1)
    rig.polling.arrived([rig.put(0)])
    assert await rig.woken() == [first, second]
    rig.polling.arrived([rig.put(0)])
    assert await rig.woken() == []
    rig.polling.arrived([rig.put(0), rig.put(1), rig.put(1)])
    assert await rig.woken() == [other]


async def test_arrivals_resume_some_at_a_time_in_later_turns_of_the_loop(rig: Rig) -> None:
    pulls = [rig.hold() for _ in range(2 * RESUMED_AT_ONCE + 1)]
    rig.polling.arrived([rig.put()])
    assert rig.taken() == []
    for first in range(0, len(pulls), RESUMED_AT_ONCE):
        await asyncio.sleep(0)
        assert rig.taken() == pulls[first : first + RESUMED_AT_ONCE]
    await asyncio.sleep(0)
    assert rig.taken() == []


async def test_a_pull_that_is_held_after_an_arrival_waits_for_the_next_one(rig: Rig) -> None:
    rig.hold(queue_offset=0)
    rig.polling.arrived([rig.put()])
    later = rig.hold(queue_offset=1)
    assert len(await rig.woken()) == 1
    rig.polling.arrived([rig.put()])
    assert await rig.woken() == [later]


async def test_all_are_resumed_at_once_when_the_broker_stops(rig: Rig) -> None:
    pulls = [rig.hold() for _ in range(RESUMED_AT_ONCE + 1)]
    rig.polling.arrived([rig.put()])
    await asyncio.sleep(0)
    other = rig.hold(1)
    rig.polling.wake_all()
    assert set(rig.taken()) == {*pulls, other}


async def test_tags_are_looked_at(rig: Rig) -> None:
    code = rig.put(tags="a").tags_code
    rig.taken()
    wanting = rig.hold(tags_filter={code}.__contains__)
    everything = rig.hold()
    rig.polling.arrived([rig.put(tags="b")])
    assert await rig.woken() == [everything]
    rig.polling.arrived([rig.put(tags="b"), rig.put(tags="a")])
    assert await rig.woken() == [wanting]


async def test_properties_are_looked_at(rig: Rig) -> None:
    wanting = rig.hold(selector=compile_selector("a > 5"))
    rig.polling.arrived([rig.put(properties=b"a\x015\x02"), rig.put()])
    assert await rig.woken() == []
    rig.polling.arrived([rig.put(properties=b"a\x016\x02")])
    assert await rig.woken() == [wanting]


async def test_sf_092_the_check_wakes_who_could_go_on(rig: Rig) -> None:
    rig.put()
    at_the_end = rig.hold(queue_offset=1)
    behind = rig.hold(queue_offset=0)
    rig.polling.check()
    assert rig.taken() == [behind]
    rig.put()
    rig.polling.check()
    assert rig.taken() == [at_the_end]


async def test_each_has_a_timer_of_its_own(rig: Rig) -> None:
    long = rig.hold(timeout_s=0.06)
    short = rig.hold(timeout_s=0.02)
    await until(lambda: len(rig.resumed) == 1)
    assert rig.taken() == [short]
    await until(lambda: len(rig.resumed) == 1)
    assert rig.taken() == [long]


async def test_who_was_woken_is_not_woken_again_when_its_time_is_up(rig: Rig) -> None:
    rig.hold(timeout_s=0.01)
    rig.polling.arrived([rig.put()])
    assert len(await rig.woken()) == 1
    await asyncio.sleep(0.03)
    assert rig.taken() == []


async def test_a_peer_that_left_is_forgotten(rig: Rig) -> None:
    leaver, stayer = peer(), peer()
    rig.hold(0, of=leaver, timeout_s=0.01)
    rig.hold(1, of=leaver)
    stays = rig.hold(0, of=stayer)
    rig.polling.drop(leaver)
    rig.polling.drop(leaver)
    assert rig.polling.count == 1
    await asyncio.sleep(0.03)
    rig.polling.arrived([rig.put(0), rig.put(1)])
    assert await rig.woken() == [stays]


async def test_a_topic_that_is_gone_wakes_who_waits_for_it(rig: Rig) -> None:
    waiting = [rig.hold(0), rig.hold(3)]
    elsewhere = pull_of(rig.store.queue("U", 0))
    assert rig.polling.hold(elsewhere, FOR_EVER_S)
    rig.polling.wake_topic("T")
    assert rig.taken() == waiting
    assert rig.polling.count == 1


async def test_no_more_than_allowed() -> None:
    with opened() as store:
        rig = Rig(store, held_max=2)
        rig.hold()
        rig.hold()
        assert not rig.polling.hold(pull_of(store.queue("T", 0)), FOR_EVER_S)
        rig.polling.arrived([rig.put()])
        assert len(await rig.woken()) == 2
        rig.hold()
        rig.polling.wake_all()


async def test_no_more_bytes_than_allowed() -> None:
    with opened() as store:
        rig = Rig(store, held_bytes_max=3 * HELD_PULL_BYTES)
        large = pull_of(store.queue("T", 0), subscription="t" * (2 * HELD_PULL_BYTES))
        assert not rig.polling.hold(large, FOR_EVER_S)
        rig.hold()
        rig.hold()
        assert 2 * HELD_PULL_BYTES < rig.polling.held_bytes < 3 * HELD_PULL_BYTES
        assert not rig.polling.hold(pull_of(store.queue("T", 0)), FOR_EVER_S)
        rig.polling.wake_all()


async def test_one_queue_may_have_very_many(rig: Rig) -> None:
    polling = rig.polling = LongPolling(rig.resumed.append, held_max=50_000, held_bytes_max=1 << 30)
    queue, one = rig.store.queue("T", 0), peer()
    for _ in range(20_000):
        assert polling.hold(pull_of(queue, of=one), FOR_EVER_S)
    started = asyncio.get_running_loop().time()
    polling.arrived([rig.put()])
    assert len(await rig.woken()) == 20_000
    assert asyncio.get_running_loop().time() - started < 2  # a list would take minutes to empty


# --- Anything, in any order ---


class AnyOrder(RuleBasedStateMachine):
    """Holds, arrivals, checks and leavings against a plain list of who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store_context = opened()
        self.store = self.store_context.__enter__()
        self.peers = [peer() for _ in range(3)]
        self.waiting: list[HeldPull] = []

    @initialize(held_max=st.integers(1, 6))
    def begin(self, held_max: int) -> None:
        self.rig = Rig(self.store, held_max=held_max)
        self.held_max = held_max

    @rule(queue_id=st.integers(0, 2), of=st.integers(0, 2), parity=st.sampled_from([None, 0, 1]))
    def hold(self, queue_id: int, of: int, parity: int | None) -> None:
        queue = self.store.queue("T", queue_id)
        wanted = None if parity is None else (lambda code, parity=parity: code % 2 == parity)
        pull = pull_of(queue, of=self.peers[of], tags_filter=wanted, queue_offset=queue.max_offset)

        async def hold() -> bool:
            return self.rig.polling.hold(pull, FOR_EVER_S)

        held = self.loop.run_until_complete(hold())
        assert held == (len(self.waiting) < self.held_max)
        if held:
            self.waiting.append(pull)

    @rule(queues=st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), min_size=1, max_size=3))
    def arrive(self, queues: list[tuple[int, str]]) -> None:
        batch = [self.rig.put(queue_id, tags=tag) for queue_id, tag in queues]

        async def arrive() -> None:
            self.rig.polling.arrived(batch)
            self.rig.resumed += await self.rig.woken()

        self.loop.run_until_complete(arrive())
        self.expect_woken(
            pull
            for pull in self.waiting
            if any(
                pull.queue is each.queue
                and ((wanted := pull.subscription.tags_filter) is None or wanted(each.tags_code))
                for each in batch
            )
        )

    @rule()
    def check(self) -> None:
        self.rig.polling.check()
        self.expect_woken(pull for pull in self.waiting if pull.queue.max_offset > pull.queue_offset)

    @rule(of=st.integers(0, 2))
    def leave(self, of: int) -> None:
        self.rig.polling.drop(self.peers[of])
        self.waiting = [pull for pull in self.waiting if pull.peer is not self.peers[of]]
        assert self.rig.taken() == []

    def expect_woken(self, expected: Iterator[HeldPull]) -> None:
        wanted = set(expected)
        woken = self.rig.taken()
        assert len(woken) == len(set(woken))
        assert set(woken) == wanted
        self.waiting = [pull for pull in self.waiting if pull not in wanted]

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "rig"):
            return
        polling = self.rig.polling
        assert polling.count == len(self.waiting)
        assert polling.held_bytes == sum(pull.held_bytes for pull in self.waiting)
        assert sum(map(len, polling._by_peer.values())) == len(self.waiting)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.polling.wake_all()
        self.loop.close()
        self.store_context.__exit__(None, None, None)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = hypothesis_settings(max_examples=30, stateful_step_count=30, deadline=None)


async def test_a_filter_that_fails_delays_no_other_pull(rig: Rig) -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    first = rig.hold(0)
    rig.hold(1, tags_filter=lambda code: 1 // 0 > code)
    rig.polling.arrived([rig.put(0)])
    rig.polling.arrived([rig.put(1)])
    await until(lambda: rig.resumed == [first])
    assert isinstance(failures[0]["exception"], ZeroDivisionError)
    later = rig.hold(2)
    rig.polling.arrived([rig.put(2)])
    await until(lambda: rig.resumed == [first, later])
