"""A slave's wheel turns with its master's time, whatever that one says of it."""

from __future__ import annotations

import pytest

from skylark.broker.delayed.timers import MARGIN_MS, WEEK_MS, SlaveTimers
from skylark.protocol.bodies import TimerMetrics
from skylark.store.timer_files import TimerCheckpoint, TimerSlot
from tests.unit.broker.handlers.rig import rigged


@pytest.mark.parametrize("said_ms", [0, -1, 1_500_000_000_000])
async def test_a_master_that_has_not_written_its_time_for_years_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, said_ms: int
) -> None:
    with rigged(broker_id=1) as rig:
        timers = rig.broker.timers
        assert isinstance(timers, SlaveTimers)
        timers.load()
        looked_at = 0

        def look(_: int) -> TimerSlot | None:
            nonlocal looked_at
            looked_at += 1
            assert looked_at <= WEEK_MS // 1000, "it goes through years, second by second"
            return None

        monkeypatch.setattr(timers.wheel, "get", look)
        rig.clock.advance(3_600_000)
        timers.follow(TimerCheckpoint(read_ms=said_ms), TimerMetrics())
        await timers.step()
        assert 0 <= rig.clock.now_ms() - MARGIN_MS - timers.read_ms < 1000
