"""Pure. Options and results of runs, as a table, as JSON and as an HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from skylark.html_report import Chart, Section, render
from skylark.html_report import HtmlReport as Page
from skylark.torture.checker import TortureVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TortureOptions:
    """The options of a run."""

    directory: Path
    mode: str = "async"
    seconds: float = 60.0
    seed: int = 0
    brokers: int | None = None
    """None: as many as the mode has."""
    replicas: int | None = None
    """Of each broker, in modes with a controller. None: as many as the mode has."""
    members: int = 3
    senders: int = 2
    """Sender processes."""
    keys: int = 4
    """Keys of each sender; the messages of a key are sent one after the other."""
    fault_s_max: float = 4.0
    """Maximum duration of a fault."""
    secure: Mapping[str, str] = field(default_factory=dict)
    """Settings of all servers for TLS and users. Clients find theirs in the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inflicted:
    """An injected fault, in seconds since the start of the load."""

    at_s: float
    name: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TortureReport:
    """The result of a run."""

    wanted: TortureOptions
    verdict: TortureVerdict
    faults: list[Inflicted]
    skipped: dict[str, int]
    """Planned faults that this machine does not support."""
    elapsed_s: float
    drained_s: float


COLUMNS = (
    "mode", "sent", "acknowledged", "unknown", "failed", "rolled back", "received", "more than once", "lost",
    "faults", "drained", "verdict",
)  # fmt: skip


def row(report: TortureReport) -> list[Any]:
    """A run as a row of `COLUMNS`."""
    verdict = report.verdict
    return [
        report.wanted.mode, verdict.attempted, verdict.acknowledged, verdict.unknown, verdict.failed,
        verdict.rolled_back, verdict.received, verdict.duplicated, verdict.faults["lost"].count,
        len(report.faults), f"{report.drained_s:.1f} s", "clean" if verdict.is_clean else "BROKEN",
    ]  # fmt: skip


def as_json(report: TortureReport) -> dict[str, Any]:
    """A run as plain values."""
    return {
        "wanted": {**asdict(report.wanted), "directory": str(report.wanted.directory)},
        "verdict": asdict(report.verdict),
        "clean": report.verdict.is_clean,
        "faults": [asdict(fault) for fault in report.faults],
        "skipped": report.skipped,
        "elapsed_s": report.elapsed_s,
        "drained_s": report.drained_s,
    }


def page(reports: Sequence[TortureReport], made_at: str) -> str:
    """All runs as one HTML page."""
    broken = [
        [report.wanted.mode, name, finding.count, "; ".join(finding.examples)]
        for report in reports
        for name, finding in report.verdict.faults.items()
        if finding.count
    ]
    kinds = Counter(fault.name for report in reports for fault in report.faults)
    sections = [
        Section("runs", "Runs", list(COLUMNS), [row(report) for report in reports], note=_note(reports)),
        Section("broken", "Broken guarantees", ["mode", "guarantee", "times", "examples"], broken),
        Section(
            "kinds", "Faults by kind", ["fault", "times"], [list(pair) for pair in sorted(kinds.items())],
            Chart("fault", "times"),
        ),
        *(
            Section(
                f"faults-{report.wanted.mode}", f"Faults of {report.wanted.mode}",
                ["second", "fault", "what"],
                [[fault.at_s, fault.name, fault.words] for fault in report.faults],
            )
            for report in reports
        ),
    ]  # fmt: skip
    return render(Page("skylark torture", made_at, sections))


def _note(reports: Sequence[TortureReport]) -> str:
    seconds = sum(report.wanted.seconds for report in reports)
    return f"Seed {reports[0].wanted.seed}, {seconds / 60:g} minutes of faults in total."
