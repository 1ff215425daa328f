"""Runs streaming queries: progress, orderly stop, summary and plain errors."""

from __future__ import annotations

import json
import logging
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from skylark.errors import RocketMQError, SettingsError
from skylark.pipelines.jobs.counts import READ, REJECTED, WRITTEN, JobCounts
from skylark.pipelines.lake.progress import CHECKPOINTS
from skylark.quantities import parse_duration_ms

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.02
LOOK_INTERVAL_S = 0.5
"""Polling a query's end is cheap, reading its progress is not."""

START_ATTEMPTS_MAX = 4
OUR_ERROR = re.compile(r"^\s*skylark\.(?:\w+\.)*(\w+): (.*)$", re.MULTILINE)
"""The last line of a traceback that ends with one of our errors."""
PLACE = re.compile(
    r"^\s*(while reading topic .+, from offset \d+|rows \d+ to \d+ for topic .+)$", re.MULTILINE
)
"""The note below it that says which message, or which rows of the task, it was about."""
LATE_WORKER = ("Python worker failed to connect back", "CANNOT_OPEN_SOCKET")

DEDUPLICATION = "dedupe"
"""The beginning of the names of Spark's operators that drop repeated rows."""
LATE = "late"
"""Name of the metric for rows that came too late to be recognised as repeated."""
HELD = "held"
"""Name of the metric for rows that the table already held."""

END_OF_DATA = "end of data"
INTERRUPTED = "interrupted"


class JobSummary(msgspec.Struct, kw_only=True):
    """Result of a pipeline, printed as JSON."""

    pipeline: str
    status: str = END_OF_DATA
    seconds: float = 0.0
    batches: int = 0
    counts: JobCounts = msgspec.field(default_factory=JobCounts)
    """What became of the messages; with several outputs, those of the first."""
    outputs: dict[str, JobCounts] | msgspec.UnsetType = msgspec.UNSET
    """The counts of every output, if there are several: each reads the messages itself."""
    state: str | None = None
    details: dict[str, Any] = msgspec.field(default_factory=dict)

    def table(self) -> tuple[list[str], list[list[str | int]]]:
        """Columns and rows of the counts, a row for each output."""
        each = self.outputs or {str(self.details.get("to", self.pipeline)): self.counts}
        names = [name for name in JobCounts.__struct_fields__ if name != "added" or self._has_added()]
        return ["to", *names], [
            [output, *[getattr(counts, name) for name in names]] for output, counts in each.items()
        ]

    def _has_added(self) -> bool:
        return any(counts.added for counts in [self.counts, *(self.outputs or {}).values()])


class QueryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a query after a batch."""

    query: str
    batch: int
    messages: int
    messages_per_second: float
    behind: int | None
    rejected: int = 0


Watch = Callable[[QueryProgress], None]


def distance(start: str | Mapping[str, Any] | None, end: str | Mapping[str, Any] | None) -> int | None:
    """Messages between two offsets (JSON topic → broker → queue → offset). Pure; None if one is unknown."""
    if start is None or end is None:
        return None
    before, after = (json.loads(each) if isinstance(each, str) else each for each in (start, end))
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return None
    known = dict(_leaves(before))
    return sum(max(number - known.get(key, number), 0) for key, number in _leaves(after))


def _leaves(offsets: Mapping[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], int]]:
    for name, value in offsets.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, *path, name)
        elif isinstance(value, int):
            yield (*path, name), value


class ProgressTally:
    """Totals of batches and messages, collected from query progress."""

    def __init__(
        self,
        held: Mapping[str, int | None] | None = None,
        measures: Mapping[str, Callable[[int, Any], int]] | None = None,
    ) -> None:
        """`held` names for a query the batch that its table already holds: it is read again, not written.

        `measures` turn the values of metrics that are not numbers into numbers, given the batch.
        """
        self.batches = 0
        self.observed: dict[str, dict[str, int]] = {}
        """Sums of each query's observed metrics (`DataFrame.observe`)."""
        self.examples: dict[str, dict[str, str]] = {}
        """The first values of metrics that are texts."""
        self._held = held or {}
        self._measures = measures or {}
        self._seen: dict[str, int] = {}

    def is_new(self, query: str, batch: int) -> bool:
        return batch > self._seen.get(query, -1)

    def take(self, query: str, progress: Mapping[str, Any]) -> QueryProgress | None:
        """Count a batch once; return None for a repeated or empty one."""
        batch = int(progress["batchId"])
        sources = progress.get("sources") or []
        # A Connect server reports no total.
        rows = int(
            progress.get("numInputRows") or sum(int(each.get("numInputRows") or 0) for each in sources)
        )
        # A batch without rows may write: it closes windows. An idle trigger has the next batch's number.
        is_executed = rows > 0 or "addBatch" in (progress.get("durationMs") or {})
        if not self.is_new(query, batch) or not is_executed:
            return None
        self._seen[query] = batch
        metrics = self._add(query, batch, progress)
        if not rows:
            return None
        # A query that refers to its source twice has twice the rows; the first batch has no start offset.
        counted = metrics.get(READ, 0)
        read = counted or sum(
            distance(each.get("startOffset"), each.get("endOffset")) or 0 for each in sources
        )
        read = read or rows
        behind = [distance(each.get("endOffset"), each.get("latestOffset")) for each in sources]
        seconds = max(int(progress.get("batchDuration") or 0), 1) / 1000
        self.batches += 1
        return QueryProgress(
            query=query,
            batch=batch,
            messages=read,
            messages_per_second=round(read / seconds, 1),
            behind=sum(each or 0 for each in behind) if behind and behind[0] is not None else None,
            rejected=metrics.get(REJECTED, 0),
        )

    def _add(self, query: str, batch: int, progress: Mapping[str, Any]) -> dict[str, int]:
        """Add the metrics of a batch, and return them."""
        metrics: dict[str, int] = {}
        for each in map(_plain_row, (progress.get("observedMetrics") or {}).values()):
            for name, value in each.items():
                if name in self._measures:
                    metrics[name] = self._measures[name](batch, value)
                elif isinstance(value, str):
                    self.examples.setdefault(query, {}).setdefault(name, value)
                else:
                    metrics[name] = metrics.get(name, 0) + int(value or 0)
        for operator in progress.get("stateOperators") or ():
            if str(operator.get("operatorName")).startswith(DEDUPLICATION):
                metrics[LATE] = metrics.get(LATE, 0) + int(operator.get("numRowsDroppedByWatermark") or 0)
        if batch == self._held.get(query):
            metrics[HELD] = metrics.pop(WRITTEN, 0)
        sums = self.observed.setdefault(query, {})
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0) + value
        return metrics


def _plain_row(value: Any) -> Any:
    """A row as a dictionary: a Connect server sends the values of rows apart from their names."""
    if isinstance(value, list):
        return [_plain_row(each) for each in value]
    if isinstance(value, Mapping) and value.keys() == {"values", "schema"}:
        names = [field["name"] for field in value["schema"]["fields"]]
        return dict(zip(names, map(_plain_row, value["values"]), strict=True))
    return value


def checkpoint_of(state: Path, query: str) -> Path:
    return state / CHECKPOINTS / query


def start(writer: DataStreamWriter, name: str, state: Path, *, once: bool, trigger: str) -> StreamingQuery:
    """Start a query with its checkpoint in the state directory. Raises SettingsError."""
    checkpoint = checkpoint_of(state, name)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if once:
        return writer.trigger(availableNow=True).start()
    try:
        interval_ms = parse_duration_ms(trigger)
    except ValueError as error:
        raise SettingsError("trigger", str(error)) from None
    return writer.trigger(processingTime=f"{interval_ms} milliseconds").start()


def run(
    pipeline: str,
    writers: Mapping[str, DataStreamWriter],
    *,
    state: Path,
    once: bool,
    trigger: str,
    watch: Watch | None = None,
    tally: ProgressTally | None = None,
    now_and_then: Callable[[], None] | None = None,
) -> JobSummary:
    """Run queries to the end of data, one after the other; or all concurrently until interrupted.

    Ends when one fails. Calls `now_and_then` regularly. `tally` receives the observed metrics. Raises
    SettingsError and RocketMQError, unwrapped from Spark's errors.
    """
    started = time.monotonic()
    tally = tally or ProgressTally()
    rounds = [[name] for name in writers] if once else [list(writers)]
    is_stopped = False
    for names in rounds:
        for attempt in range(1, START_ATTEMPTS_MAX + 1):
            queries = {name: start(writers[name], name, state, once=once, trigger=trigger) for name in names}
            try:
                is_stopped = _wait(queries, tally, watch, now_and_then)
                break
            except RocketMQError as error:
                if attempt == START_ATTEMPTS_MAX or not is_late_worker(error.__cause__):
                    raise
                log.warning("restarting query attempt=%d error=%s", attempt, error)
        if is_stopped:
            break
    return JobSummary(
        pipeline=pipeline,
        status=INTERRUPTED if is_stopped else END_OF_DATA,
        seconds=round(time.monotonic() - started, 2),
        batches=tally.batches,
        state=str(state),
    )


def _wait(
    queries: Mapping[str, StreamingQuery],
    tally: ProgressTally,
    watch: Watch | None,
    now_and_then: Callable[[], None] | None,
) -> bool:
    """Wait for queries to end; return whether they were interrupted."""
    is_stopped = False
    try:
        with stop_signals():
            look_at = time.monotonic()
            while all(query.isActive for query in queries.values()):
                if time.monotonic() >= look_at:
                    _look(queries, tally, watch)
                    if now_and_then is not None:
                        now_and_then()
                    look_at = time.monotonic() + LOOK_INTERVAL_S
                time.sleep(POLL_INTERVAL_S)
        _look(queries, tally, watch)  # a Connect server reports nothing for a stopped query
    except KeyboardInterrupt:
        is_stopped = True
    finally:
        _stop(queries.values())
    if is_stopped:
        _look(queries, tally, watch)
    for query in () if is_stopped else queries.values():
        if (error := query.exception()) is not None:
            raise plain_error(error) from error
    return is_stopped


def is_late_worker(error: BaseException | None) -> bool:
    """Return whether a Python worker missed Spark's start timeout of ten seconds, as on a busy machine."""
    return any(text in str(error) for text in LATE_WORKER)


def _look(queries: Mapping[str, StreamingQuery], tally: ProgressTally, watch: Watch | None) -> None:
    for name, query in queries.items():
        last = query.lastProgress
        for progress in query.recentProgress if last is not None and tally.is_new(name, last.batchId) else ():
            seen = tally.take(name, json.loads(progress.json))
            if seen is not None and watch is not None:
                watch(seen)


def _stop(queries: Any) -> None:
    for query in queries:
        try:
            query.stop()
        except Exception:
            log.debug("cannot stop query", exc_info=True)


@contextmanager
def stop_signals() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: the caller handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def plain_error(error: BaseException | None) -> RocketMQError:
    """Extract the error message from Spark's nested tracebacks, with topic, queue and offset if known."""
    if isinstance(error, RocketMQError):
        return error
    text = str(error)
    place = f" ({found[-1]})" if (found := PLACE.findall(text)) else ""
    if ours := OUR_ERROR.findall(text):
        kind, sentence = ours[-1]
        name, reason = _setting(sentence) if kind == "SettingsError" else (kind, sentence)
        return SettingsError(name, reason + place)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if "Error: " in line and not line.startswith("at ")]
    return SettingsError("spark", (python or lines or ["it failed"])[-1 if python else 0] + place)


def _setting(sentence: str) -> tuple[str, str]:
    name, _, reason = sentence.removeprefix("setting ").partition(": ")
    return name, reason or sentence
