"""Pure. What a long run looks like: samples over time, how they lean, and whether that is flat.

A slope is the median of the slopes between all pairs of samples (Theil and Sen), so that a moment in which
the machine did something else does not tilt it. The first part of a run, in which everything warms up, does
not count. Latencies that grow while the machine gets busier by other work are not judged.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

WARM_UP_SHARE = 0.15
JUDGED_SAMPLES_MIN = 20
JUDGED_MINUTES_MIN = 5.0
"""Before that, memory still fills caches and a slope says nothing."""
BUSIER_SHARE, BUSIER_LEAST = 0.2, 1.0
"""By how much the load average must rise, as a share and in itself, for the machine to count as busier."""
TOO_SHORT, BUSIER = "too short to say", "not judged: the machine got busier"
PAIRS_SAMPLES_MAX = 500
"""More samples are thinned: their pairs would be too many."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One look. Latencies are of the messages since the look before; None if there were none."""

    second: float
    sent: int
    received: int
    broker_mib: float
    """Anonymous memory: mapped log pages belong to the page cache."""
    client_mib: float
    descriptors: int
    threads: int
    broker_core_share: float
    send_p50_ms: float | None
    send_p99_ms: float | None
    end_to_end_p50_ms: float | None
    end_to_end_p99_ms: float | None
    log_files: int
    log_begin: int
    """Physical offset: it grows when files are deleted."""
    log_end: int
    load_1m: float


class Measure(msgspec.Struct, frozen=True):
    """What must stay flat: its slope a minute, or its drift over the whole run, up to a limit."""

    name: str
    unit: str
    value: Callable[[Sample], float | None]
    slope_max: float | None = None
    """Per minute."""
    drift_max: float | None = None
    """Over the run, as a share of the median."""
    drift_least: float = 0.0
    """A drift of less than this, in the unit itself, is flat whatever share it is."""


MEASURES = (
    Measure("broker memory", "MiB", lambda sample: sample.broker_mib, slope_max=1.0),
    Measure("client memory", "MiB", lambda sample: sample.client_mib, slope_max=1.0),
    Measure("descriptors", "", lambda sample: sample.descriptors, slope_max=0.2),
    Measure("threads", "", lambda sample: sample.threads, slope_max=0.1),
    Measure("log files", "", lambda sample: sample.log_files, slope_max=0.5),
    Measure("send p50", "ms", lambda sample: sample.send_p50_ms, drift_max=0.2, drift_least=1.0),
    Measure("send p99", "ms", lambda sample: sample.send_p99_ms, drift_max=0.2, drift_least=5.0),
    Measure("end to end p50", "ms", lambda sample: sample.end_to_end_p50_ms, drift_max=0.2, drift_least=1.0),
    Measure("end to end p99", "ms", lambda sample: sample.end_to_end_p99_ms, drift_max=0.2, drift_least=5.0),
)


class Slope(msgspec.Struct, frozen=True, kw_only=True):
    """How a measure leans. `is_flat` is None if that cannot be said; `why` tells the reason."""

    name: str
    unit: str
    first: float
    """Median of the first quarter that counts."""
    last: float
    """Median of the last quarter."""
    per_minute: float
    limit: str
    is_flat: bool | None
    why: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that had to happen or must not: `ok` is None if the run was too short to say."""

    name: str
    value: str
    ok: bool | None


def slope_per_minute(points: Sequence[tuple[float, float]]) -> float:
    """Of seconds and values; 0 for fewer than two."""
    step = -(-len(points) // PAIRS_SAMPLES_MAX)
    thinned = points[::step] if step > 1 else points
    slopes = [
        (late_value - early_value) / (late - early) * 60
        for number, (early, early_value) in enumerate(thinned)
        for late, late_value in thinned[number + 1 :]
        if late > early
    ]
    return statistics.median(slopes) if slopes else 0.0


def counted(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Without the warm-up."""
    return samples[round(len(samples) * WARM_UP_SHARE) :]


def lean(measure: Measure, samples: Sequence[Sample]) -> Slope | None:
    """How the measure leans over the samples that count; None if it was never seen."""
    kept = counted(samples)
    points = [(each.second, value) for each in kept if (value := measure.value(each)) is not None]
    if not points:
        return None
    per_minute = slope_per_minute(points)
    minutes = (points[-1][0] - points[0][0]) / 60
    quarter = max(len(points) // 4, 1)
    first, last = (
        statistics.median(value for _, value in part) for part in (points[:quarter], points[-quarter:])
    )
    if measure.slope_max is not None:
        flat = per_minute <= measure.slope_max
        limit = f"{measure.slope_max:g} {measure.unit}".strip() + " a minute"
    else:
        assert measure.drift_max is not None
        drift = per_minute * minutes
        middle = statistics.median(value for _, value in points)
        flat = drift <= max(measure.drift_max * middle, measure.drift_least)
        limit = f"{measure.drift_max:.0%} or {measure.drift_least:g} {measure.unit} over the run"
    why = ""
    if len(points) < JUDGED_SAMPLES_MIN or minutes < JUDGED_MINUTES_MIN:
        why = TOO_SHORT
    elif measure.drift_max is not None and not flat and got_busier(kept):
        why = BUSIER
    return Slope(
        name=measure.name,
        unit=measure.unit,
        first=round(first, 3),
        last=round(last, 3),
        per_minute=round(per_minute, 4),
        limit=limit,
        is_flat=None if why else flat,
        why=why,
    )


def got_busier(samples: Sequence[Sample]) -> bool:
    """Has the machine more to do at the end than at the begin? The broker's own share is constant."""
    quarter = max(len(samples) // 4, 1)
    first, last = (
        statistics.median(sample.load_1m for sample in part)
        for part in (samples[:quarter], samples[-quarter:])
    )
    return last - first > max(BUSIER_LEAST, BUSIER_SHARE * first)


def slopes(samples: Sequence[Sample]) -> list[Slope]:
    return [found for measure in MEASURES if (found := lean(measure, samples)) is not None]


def log_findings(samples: Sequence[Sample], file_bytes: int) -> list[Finding]:
    """Did the log roll to new files, and did old ones go?"""
    if not samples:
        return []
    first, last = samples[0], samples[-1]
    rolled = last.log_end // file_bytes - first.log_end // file_bytes
    deleted = (last.log_begin - first.log_begin) // file_bytes
    long_enough = rolled > 2
    return [
        Finding(name="log files begun", value=str(rolled), ok=rolled > 0 if long_enough else None),
        Finding(name="log files deleted", value=str(deleted), ok=deleted > 0 if long_enough else None),
    ]
