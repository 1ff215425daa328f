"""Transactions against a model: whatever is asked, killed and restarted, no commit is lost or made twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skylark.broker.broker import Broker
from skylark.broker.clients import ConnectedClient
from skylark.broker.transactions.half_messages import HalfRecord, prepare
from skylark.model import names
from skylark.model.message import PutMessage
from skylark.model.names import TRANSACTION_GROUP
from skylark.protocol.requests.transaction import COMMIT, ROLLBACK, EndTransaction
from skylark.remoting.server import RemotingServer
from skylark.settings import BrokerSettings
from skylark.settings.broker import TransactionSettings
from skylark.store.append_result import AppendedRecord
from tests.support.clock import ManualClock
from tests.support.simulated_disk import Crash
from tests.support.store import placed, read_queue, simulated_disk, small_settings
from tests.unit.broker.handlers.rig import Client as Connection

COMMITTED, ROLLED_BACK, EITHER = "committed", "rolled back", "committed, or still open"


class World:
    """A broker whose process may end anywhere, and what was asked of it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = simulated_disk(self.clock)
        self.fate: dict[int, str] = {}
        self.places: dict[int, list[AppendedRecord]] = {}
        self.taken = 0
        """Transactions that ended together."""
        self.saved = {names.HALF_TOPIC: 0, names.HALF_OP_TOPIC: 0}
        self.open()

    def open(self) -> None:
        settings = BrokerSettings(
            port=10911,
            store=small_settings(),
            transactions=TransactionSettings(check_max=1000),
        )
        self.broker = Broker(settings, clock=self.clock, disk=self.disk)
        self.broker.store.open()
        self.broker.topics.ensure_topic("T", 1, now_ms=self.clock.now_ms())
        self.broker.store.queue("T", 0)
        for topic, queue_offset in self.saved.items():
            if queue_offset:
                self.broker.offsets.try_commit(
                    topic, TRANSACTION_GROUP, 0, queue_offset, now_ms=self.clock.now_ms()
                )
        self.broker.transactions.load()

    async def ask(self) -> None:
        """Have a producer asked, that never answers."""
        connection = Connection(RemotingServer(), 40_000)
        self.broker.producers.register(
            "PG", ConnectedClient(connection.peer, "p@1", "JAVA", 479), now=self.clock.monotonic()
        )
        self.clock.advance(7000)
        await self.broker.transactions.check()
        self.broker.producers.channel_closed(connection.peer)

    def close(self) -> None:
        self.broker.store.close()
        self.broker.readers.shutdown()

    def kill(self) -> None:
        self.broker.readers.shutdown()
        self.disk = self.disk.kill_image()
        self.open()

    def send(self, number: int) -> None:
        message = PutMessage("T", 0, b"%d" % number, born_timestamp=self.clock.now_ms())
        prepare(message, {"UNIQ_KEY": f"K{number}", "PGROUP": "PG", "TRAN_MSG": "true"})
        self.places.setdefault(number, []).append(placed(self.broker.store.append([message])[0]))

    def record(self, number: int) -> HalfRecord:
        place = self.places[number][-1]
        return HalfRecord(self.broker.store.reader.record_at(place.physical_offset))

    def commit(self, number: int) -> None:
        assert self.broker.transactions.commit(self.record(number)) is None

    def end_together(self, ends: dict[int, int]) -> None:
        """Commit or roll back transactions, those that are recent with one write."""
        requests = [
            EndTransaction(
                producer_group="PG", queue_offset=place.queue_offset, physical_offset=place.physical_offset,
                commit_or_rollback=how, msg_id="",
            )
            for number, how in ends.items()
            for place in self.places[number][-1:]
        ]  # fmt: skip
        self.taken += (taken := self.broker.transactions.end_recent(requests))
        for number in list(ends)[taken:]:
            if ends[number] == COMMIT:
                self.commit(number)
            else:
                self.broker.transactions.roll_back(self.record(number))

    def save(self) -> None:
        self.broker.transactions.save_progress()
        for topic in self.saved:
            self.saved[topic] = self.broker.offsets.query(topic, TRANSACTION_GROUP, 0) or 0

    def dying_after(self, operations: int, work: Callable[[], None]) -> bool:
        """Do something while the process is killed after so many operations of its disk; was it?"""
        never = self.disk.crash_at
        self.disk.crash_after(self.disk.operations + operations)
        try:
            work()
        except Crash:
            self.kill()
            return True
        self.disk.crash_after(never)
        return False

    def delivered(self) -> list[int]:
        return [int(message.body) for message in read_queue(self.broker.store)]

    def open_numbers(self) -> set[int]:
        self.broker.transactions.follow()
        return {int(half.key[0][1:]) for half in self.broker.transactions.table}

    def check(self) -> None:
        """The laws."""
        delivered, is_open = self.delivered(), self.open_numbers()
        assert len(delivered) == len(set(delivered)), "a commit was made twice"
        for number in self.places:
            fate = self.fate.get(number)
            if fate == COMMITTED:
                assert number in delivered, "a commit is lost"
                assert number not in is_open
            elif fate == ROLLED_BACK:
                assert number not in delivered
                assert number not in is_open
            elif fate == EITHER:
                assert (number in delivered) != (number in is_open)
            else:
                assert number not in delivered
                assert number in is_open, "an open transaction was forgotten"


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule()
    def send(self) -> None:
        self.world.send(len(self.world.places))

    @precondition(lambda self: self.world.places)
    @rule(data=st.data())
    def send_once_more(self, data: st.DataObject) -> None:
        number = self._any(data)
        if number not in self.world.fate:
            self.world.send(number)

    @precondition(lambda self: self.world.places)
    @rule(data=st.data(), times=st.integers(1, 2))
    def commit(self, data: st.DataObject, times: int) -> None:
        number = self._any(data)
        for _ in range(times):
            self.world.commit(number)
        if self.world.fate.get(number, EITHER) == EITHER:
            self.world.fate[number] = COMMITTED

    @precondition(lambda self: self.world.places)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        number = self._any(data)
        if number not in self.world.fate:
            self.world.fate[number] = ROLLED_BACK
        if self.world.fate[number] != EITHER:
            self.world.broker.transactions.roll_back(self.world.record(number))

    @precondition(lambda self: self.world.places)
    @rule(data=st.data(), operations=st.integers(0, 4))
    def commit_and_die(self, data: st.DataObject, operations: int) -> None:
        number = self._any(data)
        died = self.world.dying_after(operations, lambda: self.world.commit(number))
        if self.world.fate.get(number, EITHER) == EITHER:
            self.world.fate[number] = EITHER if died else COMMITTED

    @precondition(lambda self: self.world.places)
    @rule(data=st.data(), how=st.sampled_from([COMMIT, ROLLBACK]), operations=st.integers(0, 3))
    def end_together(self, data: st.DataObject, how: int, operations: int) -> None:
        world = self.world
        undecided = sorted(world.places.keys() - world.fate.keys()) or [self._any(data)]
        numbers = data.draw(st.lists(st.sampled_from(undecided), unique=True, max_size=4))
        ends = {number: how if world.fate.get(number) is None else COMMIT for number in numbers}
        if ROLLBACK in ends.values():
            world.end_together(ends)
            died = False
        else:
            died = world.dying_after(operations, lambda: world.end_together(ends))
        for number, each in ends.items():
            if world.fate.get(number, EITHER) == EITHER:
                world.fate[number] = ROLLED_BACK if each == ROLLBACK else EITHER if died else COMMITTED

    @rule()
    def ask(self) -> None:
        asyncio.run(self.world.ask())

    @rule(operations=st.integers(0, 12))
    def ask_and_die(self, operations: int) -> None:
        self.world.dying_after(operations, lambda: asyncio.run(self.world.ask()))

    @rule()
    def save(self) -> None:
        self.world.save()

    @rule()
    def restart(self) -> None:
        self.world.save()
        self.world.close()
        self.world.open()

    @rule()
    def kill(self) -> None:
        self.world.kill()

    @invariant()
    def laws(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.close()

    def _any(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.world.places)))


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("operations", range(8))
def test_a_commit_survives_a_kill_after_any_write(operations: int) -> None:
    world = World()
    for number in range(5):
        world.send(number)
    world.commit(0)
    world.fate[0] = COMMITTED
    world.fate[1] = EITHER if world.dying_after(operations, lambda: world.commit(1)) else COMMITTED
    world.check()
    world.commit(1)
    world.fate[1] = COMMITTED
    world.check()
    world.close()


def test_the_end_of_a_transaction_may_be_torn_anywhere() -> None:
    """A commit and its op message are one write: what is left of it is both, the commit alone, or neither."""
    world = World()
    world.send(0)
    world.send(1)
    log = world.broker.store.log
    begin = log.appended
    world.commit(1)
    end, disk = log.appended, world.disk
    path, start = log.files.path(log.files.start_of(begin)), log.files.start_of(begin)
    assert end <= start + log.file_bytes, "one file holds both"
    commit_end = begin + int.from_bytes(disk.content(path)[begin - start :][:4])
    assert begin < commit_end < end
    for torn_at in range(begin, end + 1):
        world.disk = disk.kill_image()
        world.disk.overwrite(path, torn_at - start, bytes(end - torn_at))
        world.kill()
        world.fate = {1: EITHER} if torn_at < commit_end else {1: COMMITTED}
        world.check()
        assert (1 in world.delivered()) == (torn_at >= commit_end)
        world.commit(1)
        world.fate[1] = COMMITTED
        world.check()
    world.close()


def test_ends_that_are_one_write_may_be_torn_anywhere() -> None:
    """Commits and the op message behind them are one write: the first of them may be left, without it."""
    world = World()
    for number in range(4):
        world.send(number)
    log, store = world.broker.store.log, world.broker.store
    begin = log.appended
    world.end_together({1: COMMIT, 2: ROLLBACK, 3: COMMIT})
    assert world.taken == 3
    end, disk = log.appended, world.disk
    start = log.files.start_of(begin)
    path = log.files.path(start)
    ends = [begin]
    while ends[-1] < end:
        ends.append(ends[-1] + int.from_bytes(disk.content(path)[ends[-1] - start :][:4]))
    assert len(ends) == 4, "two commits and an op message, in one file"
    assert store.max_offset(names.HALF_OP_TOPIC, 0) == 1
    for torn_at in sorted({*range(begin, end, 13), *ends, *(each - 1 for each in ends[1:])}):
        world.disk = disk.kill_image()
        world.disk.overwrite(path, torn_at - start, bytes(end - torn_at))
        world.kill()
        world.fate = {number: COMMITTED for number, at in ((1, ends[1]), (3, ends[2])) if torn_at >= at}
        if torn_at == end:
            world.fate[2] = ROLLED_BACK
        world.check()
    world.close()
