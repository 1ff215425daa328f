"""How long a loop stays awake for a peer that sends one request after the other, and that it then sleeps."""

import asyncio
import time
from collections.abc import Callable
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from skylark.remoting.server import CLOSELY_WINDOWS, RUN_MAX, RUN_MIN, BusyPoll, ServerLimits
from tests.unit.remoting.rig import SEND, frame, raw_client, run_on, running, until

WINDOW_US = 100
CLOSE_US = 80
FAR_US = CLOSELY_WINDOWS * WINDOW_US


class FakeLoop:
    """Turns of a loop, on a clock that only the test moves; a turn takes 5 us."""

    def __init__(self) -> None:
        self.now_us = 1_000_000
        self.turns = 0
        self._ready: list[Callable[[], None]] = []

    def now(self) -> float:
        return self.now_us / 1e6

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._ready.append(callback)

    def pass_us(self, us: int) -> None:
        """Let time pass: in turns while there is something to do, asleep then."""
        until_us = self.now_us + us
        while self._ready and self.now_us < until_us:
            ready, self._ready = self._ready, []
            self.now_us += 5
            self.turns += 1
            for callback in ready:
                callback()
        self.now_us = max(self.now_us, until_us)


class Rhythm:
    """Busy polling on a fake loop."""

    def __init__(self, window_us: int = WINDOW_US) -> None:
        self.loop = FakeLoop()
        self.ends = 0
        self.busy_poll = BusyPoll(window_us, now=self.loop.now)
        self.busy_poll.on_end = self._end

    def _end(self) -> None:
        self.ends += 1

    def answer(self, count: int, gap_us: int) -> None:
        for _ in range(count):
            self.loop.pass_us(gap_us)
            self.busy_poll.answered(cast("asyncio.AbstractEventLoop", self.loop))


def test_it_begins_only_with_a_run_of_close_requests() -> None:
    rhythm = Rhythm()
    rhythm.answer(RUN_MIN, CLOSE_US)
    assert not rhythm.busy_poll.is_polling
    rhythm.answer(1, CLOSE_US)
    assert rhythm.busy_poll.is_polling


def test_it_goes_on_while_requests_come_and_ends_once_when_they_do_not() -> None:
    rhythm = Rhythm()
    rhythm.answer(100, CLOSE_US)
    assert rhythm.busy_poll.is_polling
    assert rhythm.ends == 0
    before = rhythm.loop.turns
    rhythm.loop.pass_us(1_000_000)
    assert not rhythm.busy_poll.is_polling
    assert rhythm.ends == 1
    assert rhythm.loop.turns - before <= WINDOW_US // 5 + 1


def test_slow_requests_never_keep_the_loop_awake() -> None:
    rhythm = Rhythm()
    rhythm.answer(1000, FAR_US)
    assert rhythm.loop.turns == 0


def test_a_window_of_nothing_turns_it_off() -> None:
    rhythm = Rhythm(window_us=0)
    rhythm.answer(1000, 0)
    assert rhythm.loop.turns == 0


def test_requests_that_never_come_in_time_are_waited_for_ever_more_rarely() -> None:
    rhythm = Rhythm()
    rhythm.answer(16 * RUN_MAX, WINDOW_US + 50)  # close enough for a run, too late for the window
    awake_us = rhythm.loop.turns * 5
    assert 0 < rhythm.ends <= 16 + RUN_MAX.bit_length()
    assert awake_us < rhythm.loop.now_us / 50


def test_after_useful_polling_a_short_run_is_enough_again() -> None:
    rhythm = Rhythm()
    rhythm.answer(RUN_MIN + 1, CLOSE_US)  # of no use: the next does not come
    rhythm.loop.pass_us(10_000)
    rhythm.answer(RUN_MIN + 2, CLOSE_US)
    assert not rhythm.busy_poll.is_polling
    rhythm.answer(10 * RUN_MIN, CLOSE_US)
    assert rhythm.busy_poll.is_polling
    rhythm.loop.pass_us(10_000)
    rhythm.answer(RUN_MIN + 2, CLOSE_US)
    assert rhythm.busy_poll.is_polling


@given(st.lists(st.integers(0, 500), max_size=300))
def test_it_is_never_awake_longer_than_a_window_after_an_answer(gaps_us: list[int]) -> None:
    rhythm = Rhythm()
    for gap_us in gaps_us:
        before, was_kept = rhythm.loop.turns, rhythm.busy_poll.is_polling
        rhythm.answer(1, gap_us)
        awake = rhythm.loop.turns - before
        assert awake <= WINDOW_US // 5 + 1
        assert was_kept or not awake
    rhythm.loop.pass_us(2 * WINDOW_US)
    assert not rhythm.busy_poll.is_polling


def test_a_server_keeps_watch_for_a_lone_sender_and_sleeps_when_it_is_done() -> None:
    """On a real loop. The window is long, so that a slow machine keeps to it as well."""

    async def scenario() -> None:
        ended: list[float] = []
        async with running(ServerLimits(stay_awake_us=500_000)) as rig, raw_client(rig.port) as client:
            rig.server.busy_poll.on_end = lambda: ended.append(time.process_time())
            while not rig.server.busy_poll.is_polling and not ended:
                await client.send(frame(SEND.to_command()))
                await client.receive()
            await until(lambda: bool(ended))
            assert not rig.server.busy_poll.is_polling
            # Nobody sends any more: the connection is there, and costs nothing.
            await asyncio.sleep(1)
            assert time.process_time() - ended[0] < 0.5

    run_on("uvloop", scenario())


def test_who_sends_many_at_a_time_is_not_waited_for() -> None:
    async def scenario() -> None:
        async with running(ServerLimits(stay_awake_us=1_000_000)) as rig, raw_client(rig.port) as client:
            for _ in range(2 * RUN_MIN):
                await client.send(b"".join(frame(SEND.to_command(), opaque) for opaque in range(4)))
                for _ in range(4):
                    await client.receive()
            if set(rig.batches) == {4}:  # what was sent together came together
                assert not rig.server.busy_poll.is_polling

    run_on("uvloop", scenario())
