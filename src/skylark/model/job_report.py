"""Pure. What a job of a pipeline reports about itself: JSON messages of one topic, each the whole state."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

import msgspec

REPORT_TOPIC = "skylark_pipelines"
TAG_STATE = "state"
"""Tag of the first and the last report of a run."""
TAG_PROGRESS = "progress"
RUNNING, FINISHED, STOPPED, FAILED, SILENT = "running", "finished", "stopped", "failed", "silent"
HEARTBEAT_S = 60.0
SILENT_AFTER_MS = round(2.5 * HEARTBEAT_S * 1000)
"""A run that reported nothing for this long was killed, or does not reach the cluster."""
BATCHES_MAX = 20
TEXT_CHARS_MAX = 2000
_SECRET = re.compile(r"(?i)(secret|password|passwd|token|credential|access.?key)[^=]*=")
_USER = re.compile(r"(?<=://)[^/@\s]+@")


class JobBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch of one of the job's queries. `lag` is what remained to be read."""

    query: str
    number: int
    time_ms: int
    rows: int
    rows_per_s: float
    lag: int | None = None
    rejected: int = 0


class JobReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one run. `name` is the same in every run of a job, `run` in every report of a run."""

    name: str
    kind: str
    run: str
    state: str = RUNNING
    time_ms: int
    started_ms: int
    source: str = ""
    topics: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    group: str = ""
    directory: str = ""
    """Where the job keeps its state."""
    command: str = ""
    host: str = ""
    pid: int = 0
    batches: int = 0
    rows: int = 0
    rejected: int = 0
    last: tuple[JobBatch, ...] = ()
    """Oldest first."""
    counts: dict[str, int] = {}
    """What became of the rows, once the run has ended."""
    error: str = ""

    @property
    def lag(self) -> int | None:
        """Lag of the query that is furthest behind; None if no batch knew it."""
        newest = {batch.query: batch.lag for batch in self.last}
        return max((lag for lag in newest.values() if lag is not None), default=None)

    @property
    def rows_per_s(self) -> float | None:
        """Rows per second of the last batch, while the job runs."""
        return self.last[-1].rows_per_s if self.last and self.state == RUNNING else None

    def state_at(self, now_ms: int) -> str:
        """The state, or `silent` for a run that should have reported meanwhile."""
        is_late = now_ms - self.time_ms > SILENT_AFTER_MS
        return SILENT if self.state == RUNNING and is_late else self.state


def encode_report(report: JobReport) -> bytes:
    return msgspec.json.encode(report)


def decode_reports(bodies: Iterable[bytes]) -> list[JobReport]:
    """Anybody can send to the topic: what is not a report is left out."""
    found = []
    for body in bodies:
        try:
            found.append(msgspec.json.decode(body, type=JobReport))
        except msgspec.DecodeError:
            continue
    return found


def newest_runs(reports: Iterable[JobReport]) -> list[JobReport]:
    """The last report of every run, the run that started last first."""
    newest: dict[str, JobReport] = {}
    for report in reports:
        known = newest.get(report.run)
        if known is None or _age(report) > _age(known):
            newest[report.run] = report
    return sorted(newest.values(), key=lambda report: (-report.started_ms, report.run))


def _age(report: JobReport) -> tuple[bool, int]:
    """A run ends once, even if its clock was set back meanwhile."""
    return report.state != RUNNING, report.time_ms


def newest_of_jobs(runs: Iterable[JobReport]) -> list[JobReport]:
    """Return the latest run of every job; running ones first, then those that reported last."""
    jobs: dict[str, JobReport] = {}
    for report in runs:
        known = jobs.get(report.name)
        if known is None or report.started_ms > known.started_ms:
            jobs[report.name] = report
    return sorted(jobs.values(), key=lambda report: (report.state != RUNNING, -report.time_ms, report.name))


def command_text(words: Sequence[str]) -> str:
    """A command line without secrets."""
    hidden = [_SECRET.sub(lambda match: f"{match.group()}\0", word).partition("\0") for word in words]
    shown = [f"{name}…" if mark else word for word, (name, mark, _) in zip(words, hidden, strict=True)]
    return _USER.sub("…@", shlex.join(shown))[:TEXT_CHARS_MAX]
