"""Timed messages against a model: killed anywhere, none is lost or early; an orderly end doubles none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skylark.broker.broker import Broker
from skylark.broker.delayed.timed_messages import RecallHandle, recall_message
from skylark.model.message import PutMessage
from skylark.settings import BrokerSettings
from skylark.settings.broker import TimerSettings
from tests.support.clock import ManualClock
from tests.support.simulated_disk import Crash
from tests.support.store import placed, read_queue, simulated_disk, small_settings


class TimerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.disk = simulated_disk(self.clock)
        self.due_ms: dict[int, int] = {}
        self.slots: dict[int, int] = {}
        self.recalled: set[int] = set()
        self.was_killed = False
        self.stepped_ms = 0
        self.loop = asyncio.new_event_loop()
        self._open()

    def _open(self) -> None:
        settings = BrokerSettings(
            port=10911,
            store=small_settings(),
            timers=TimerSettings(log_file_bytes=5200, roll_window_slots=20, max_delay_s=600),
        )
        self.broker = Broker(settings, clock=self.clock, disk=self.disk)
        self.broker.store.open()
        self.broker.timers.load()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(work)

    def _delivered(self) -> Counter[int]:
        return Counter(int(message.body) for message in read_queue(self.broker.store))

    @rule(delay_ms=st.integers(1, 90_000))
    def send(self, delay_ms: int) -> None:
        number = len(self.due_ms)
        self.due_ms[number] = self.clock.now_ms() + delay_ms
        message = PutMessage("T", 0, b"%d" % number)
        properties = {"TIMER_DELIVER_MS": str(self.due_ms[number]), "UNIQ_KEY": f"K{number}"}
        self.broker.timers.admit(message, properties)
        self.slots[number] = int(properties["TIMER_OUT_MS"])
        placed(self.broker.store.append([message])[0])

    @precondition(lambda self: self.due_ms)
    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.due_ms)))
        # What is about to be delivered may come all the same.
        if self.slots[number] <= self.clock.now_ms() + 2000 or number in self.recalled:
            return
        handle = RecallHandle("T", "broker-a", self.slots[number] + 1, f"K{number}")
        message, properties = recall_message(handle, "PG", b"\x7f\0\0\x01\0\0\0\0", self.clock.now_ms())
        self.broker.timers.admit(message, properties)
        placed(self.broker.store.append([message])[0])
        self.recalled.add(number)

    @rule(ms=st.integers(0, 8000))
    def step(self, ms: int) -> None:
        self.clock.advance(ms)
        self._run(self.broker.timers.step())
        self.stepped_ms = self.clock.now_ms()

    @rule()
    def flush(self) -> None:
        self._run(self.broker.timers.flush())

    @rule()
    def restart(self) -> None:
        self._run(self.broker.timers.flush())
        self._close()
        self._open()

    @rule()
    def kill(self) -> None:
        self.was_killed = True
        self.broker.readers.shutdown()
        self.disk = self.disk.kill_image()
        self._open()

    @rule(operations=st.integers(0, 20), ms=st.integers(0, 8000))
    def step_and_die(self, operations: int, ms: int) -> None:
        never = self.disk.crash_at
        self.disk.crash_after(self.disk.operations + operations)
        try:
            self.step(ms)
            self.flush()
        except Crash:
            self.kill()
        else:
            self.disk.crash_after(never)

    @invariant()
    def laws(self) -> None:
        delivered = self._delivered()
        now_ms = self.clock.now_ms()
        for number, due_ms in self.due_ms.items():
            if now_ms < due_ms:
                assert number not in delivered, "a message came before its time"
            if number in self.recalled:
                assert number not in delivered, "a message came that was taken back"
            elif self.slots[number] + 1000 <= self.stepped_ms:
                assert number in delivered, "a message did not come"
        if not self.was_killed:
            assert all(times == 1 for times in delivered.values()), "a message came twice"

    def _close(self) -> None:
        self.broker.store.close()
        self.broker.readers.shutdown()

    def teardown(self) -> None:
        self._close()
        self.loop.close()


TestTimers = TimerMachine.TestCase
TestTimers.settings = hypothesis_settings(max_examples=25, stateful_step_count=20, deadline=None)
