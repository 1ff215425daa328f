"""The system clock tells the system's time, in the units promised."""

import time

from skylark.clock import Clock, SystemClock


def test_wall_time_is_in_milliseconds() -> None:
    clock: Clock = SystemClock()
    before = int(time.time() * 1000)
    now_ms = clock.now_ms()
    assert before <= now_ms <= int(time.time() * 1000) + 1


def test_monotonic_time_is_in_seconds_and_never_goes_back() -> None:
    clock: Clock = SystemClock()
    before = time.monotonic()
    readings = [clock.monotonic() for _ in range(1000)]
    assert readings == sorted(readings)
    assert before <= readings[0]
    assert readings[-1] <= time.monotonic()
