"""Pure. Samples of a long run, their slopes, and whether these are flat.

A slope is the median of the slopes between all pairs of samples (Theil and Sen), so that a moment in which
the machine did something else does not tilt it, and has the bounds within which it lies with 95 % confidence.
Something is flat if the upper bound is, and not flat if not even the lower bound is; between them nobody can
tell. The first part of a run, in which everything warms up, does not count.

Latencies depend on what else the machine does, and others only ever add to them: medians doubled for minutes
in which neighbours took a percent of one of two busy cores. They are judged by the quieter half of the looks,
those in which others used no more than in the median; if that half is not spread over the run, or others used
too much even then, they are not judged. What grows in the broker itself grows in quiet moments, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

WARM_UP_SHARE = 0.15
JUDGED_SAMPLES_MIN = 20
JUDGED_MINUTES_MIN = 5.0
"""Before that, caches still fill and a slope means nothing."""
OTHERS_CORES_MAX = 0.5
"""Maximum median use by other programs; above it latencies are not judged."""
QUIET_SPAN_MIN = 0.6
"""Of the time that counts, from the first quiet look to the last."""
TOO_SHORT, UNCLEAR = "too short to say", "not clear: it varies too much"
WINDOWS_MAX = 40
"""Maximum number of windows of samples, of which the medians are used."""
CONFIDENCE_Z = 1.96
KEPT_FILES_MIN = 3
DELETED_WITHIN_S = 30.0
"""A file that may go: the broker looks every two seconds, on a machine that may be busy."""


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
    other_cores: float
    """Cores used by other programs, including those stolen by other virtual machines."""
    stolen_cores: float = 0.0
    """Those of the neighbours."""


class Measure(msgspec.Struct, frozen=True):
    """A value that must stay flat: by its slope per minute or its drift over the run."""

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
    """The slope of a measure. `is_flat` is None if it cannot be judged, for the reason `why`."""

    name: str
    unit: str
    first: float
    """Median of the first quarter that counts."""
    last: float
    """Median of the last quarter."""
    per_minute: float
    low: float
    high: float
    """Bounds of `per_minute`."""
    limit: str
    is_flat: bool | None
    why: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A required or forbidden event; `ok` is None if the run was too short to judge."""

    name: str
    value: str
    ok: bool | None


class Trend(NamedTuple):
    """A slope per minute, and its bounds."""

    per_minute: float
    low: float
    high: float


def trend(points: Sequence[tuple[float, float]]) -> Trend:
    """Of seconds and values; flat for fewer than two."""
    medians = [
        (statistics.median(at for at, _ in part), statistics.median(value for _, value in part))
        for part in windows(points)
    ]
    count = len(medians)
    slopes = sorted(
        (late_value - early_value) / (late - early) * 60
        for number, (early, early_value) in enumerate(medians)
        for late, late_value in medians[number + 1 :]
        if late > early
    )
    if not slopes:
        return Trend(0.0, 0.0, 0.0)
    # Kendall's count of pairs in order, of values that do not lean, varies by so much.
    spread = CONFIDENCE_Z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(math.floor((len(slopes) - spread) / 2), 0)
    high = min(math.ceil((len(slopes) + spread) / 2), len(slopes) - 1)
    return Trend(statistics.median(slopes), slopes[low], slopes[high])


def windows(items: Sequence[T]) -> list[Sequence[T]]:
    """Neighbours together, all windows but the last of the same length."""
    size = max(-(-len(items) // WINDOWS_MAX), 1)
    return [items[start : start + size] for start in range(0, len(items), size)]


def counted(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Without the warm-up."""
    return samples[round(len(samples) * WARM_UP_SHARE) :]


def lean(measure: Measure, samples: Sequence[Sample]) -> Slope | None:
    """How the measure leans over the samples that count; None if it was never seen."""
    kept, busy = counted(samples), ""
    if measure.drift_max is not None:
        kept, busy = quieter_half(kept)
    points = [(each.second, value) for each in kept if (value := measure.value(each)) is not None]
    if not points:
        return None
    found = trend(points)
    minutes = (points[-1][0] - points[0][0]) / 60
    first, last = _quarters([value for _, value in points])
    if measure.slope_max is not None:
        allowed = measure.slope_max
        limit = f"{measure.slope_max:g} {measure.unit}".strip() + " a minute"
    else:
        assert measure.drift_max is not None
        middle = statistics.median(value for _, value in points)
        allowed = max(measure.drift_max * middle, measure.drift_least) / max(minutes, 1e-9)
        limit = f"{measure.drift_max:.0%} or {measure.drift_least:g} {measure.unit} over the run"
    why = ""
    if len(points) < JUDGED_SAMPLES_MIN or minutes < JUDGED_MINUTES_MIN:
        why = TOO_SHORT
    elif busy:
        why = busy
    elif found.low <= allowed < found.high:
        why = UNCLEAR
    return Slope(
        name=measure.name,
        unit=measure.unit,
        first=round(first, 3),
        last=round(last, 3),
        per_minute=round(found.per_minute, 4),
        low=round(found.low, 4),
        high=round(found.high, 4),
        limit=limit,
        is_flat=None if why else found.high <= allowed,
        why=why,
    )


def quieter_half(samples: Sequence[Sample]) -> tuple[Sequence[Sample], str]:
    """The samples by which latencies can be judged.

    Where they cannot: all samples, and the reason.
    """
    if not samples:
        return samples, ""
    others = [sample.other_cores for sample in samples]
    usual = statistics.median(others)
    quiet = [sample for sample in samples if sample.other_cores <= usual]
    run_s, quiet_s = (part[-1].second - part[0].second for part in (samples, quiet))
    if usual <= OTHERS_CORES_MAX and quiet_s >= QUIET_SPAN_MIN * run_s:
        return quiet, ""
    stolen = statistics.median(sample.stolen_cores for sample in samples)
    return samples, (
        f"not judged: machine busy (others used {usual:.2f} cores, {min(others):.2f} to {max(others):.2f}, "
        f"{stolen:.2f} of them stolen; its quieter half lasted {quiet_s:.0f} of {run_s:.0f} s)"
    )


def _quarters(values: Sequence[float]) -> tuple[float, float]:
    """The medians of the first and of the last quarter."""
    quarter = max(len(values) // 4, 1)
    return statistics.median(values[:quarter]), statistics.median(values[-quarter:])


def slopes(samples: Sequence[Sample]) -> list[Slope]:
    return [found for measure in MEASURES if (found := lean(measure, samples)) is not None]


def log_findings(
    samples: Sequence[Sample], file_bytes: int, message_bytes: float, keep_s: float
) -> list[Finding]:
    """Did the log roll to new files, and did old ones go?

    A message has so many bytes at least, on average. Files may be deleted that nothing was written to for
    `keep_s`, but for the last `KEPT_FILES_MIN`.
    """
    if not samples:
        return []
    first, last = samples[0], samples[-1]
    rolled = last.log_end // file_bytes - first.log_end // file_bytes
    deleted = (last.log_begin - first.log_begin) // file_bytes
    filled = (last.sent - first.sent) * message_bytes // file_bytes
    is_full = filled > KEPT_FILES_MIN
    then = [sample for sample in samples if sample.second < last.second - keep_s - DELETED_WITHIN_S]
    is_old = is_full and bool(then) and then[-1].log_end > first.log_begin
    return [
        Finding(name="log files begun", value=str(rolled), ok=rolled >= filled - 1 if is_full else None),
        Finding(name="log files deleted", value=str(deleted), ok=deleted > 0 if is_old else None),
    ]
