"""Pure. Pull and consume rates of a consumer by topic, as brokers and tools query them (code 307)."""

from __future__ import annotations

from collections import deque

from skylark.protocol.bodies import ConsumeStatus

SAMPLE_INTERVAL_MS = 10_000
MINUTE_SAMPLES = 7
HOUR_SAMPLES = 361


class _Totals:
    """Cumulative sums of one topic."""

    __slots__ = ("failed", "ok", "pull_ms", "pulled", "pulls", "ran", "ran_ms")

    def __init__(self) -> None:
        self.pulls = self.pulled = 0
        self.pull_ms = 0.0
        self.ran = self.ok = self.failed = 0
        self.ran_ms = 0.0

    def sample(self, now: float) -> tuple[float, ...]:
        return (now, self.pulls, self.pulled, self.pull_ms, self.ran, self.ok, self.failed, self.ran_ms)


class ConsumeRates:
    """Sums by topic, sampled every ten seconds. Loop thread; times are monotonic seconds."""

    def __init__(self) -> None:
        self._totals: dict[str, _Totals] = {}
        self._samples: dict[str, deque[tuple[float, ...]]] = {}

    def _of(self, topic: str, now: float) -> _Totals:
        totals = self._totals.get(topic)
        if totals is None:
            totals = self._totals[topic] = _Totals()
            self._samples[topic] = deque([totals.sample(now)], HOUR_SAMPLES)
        return totals

    def pulled(self, topic: str, count: int, took_ms: float, now: float) -> None:
        totals = self._of(topic, now)
        totals.pulls += 1
        totals.pulled += count
        totals.pull_ms += took_ms

    def ran(self, topic: str, ok: int, failed: int, runs: int, took_ms: float, now: float) -> None:
        totals = self._of(topic, now)
        totals.ran += runs
        totals.ran_ms += took_ms
        totals.ok += ok
        totals.failed += failed

    def take_sample(self, now: float) -> None:
        """Call it every SAMPLE_INTERVAL_MS."""
        for topic, totals in self._totals.items():
            self._samples[topic].append(totals.sample(now))

    def status(self, topic: str, now: float) -> ConsumeStatus:
        """Return rates over the last minute (at most since the first use of the topic).

        Consume times without calls in that minute are taken over the hour.
        """
        totals = self._of(topic, now)
        samples = self._samples[topic]
        current = totals.sample(now)
        minute = samples[max(0, len(samples) - MINUTE_SAMPLES)]
        hour = samples[0]
        seconds = max(current[0] - minute[0], 1e-3)
        _, pulls, pulled, pull_ms, ran, ok, failed, ran_ms = (
            now_value - then for now_value, then in zip(current, minute, strict=True)
        )
        if not ran:
            ran, ran_ms = current[4] - hour[4], current[7] - hour[7]
        return ConsumeStatus(
            pull_rt=pull_ms / pulls if pulls else 0.0,
            pull_tps=pulled / seconds,
            consume_rt=ran_ms / ran if ran else 0.0,
            consume_ok_tps=ok / seconds,
            consume_failed_tps=failed / seconds,
            consume_failed_msgs=int(current[6] - hour[6]),
        )
