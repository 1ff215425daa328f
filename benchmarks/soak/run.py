"""One soak: servers up, mixed load on, a look every few seconds, drained, judged."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import uvloop

from benchmarks.soak.load import BODY_BYTES_MEAN, MixedLoad
from benchmarks.soak.slopes import KEPT_FILES_MIN, Finding, Sample, Slope, log_findings, slopes
from skylark.bench.latencies import LatencyHistogram, Percentiles
from skylark.bench.machine import BROKER_CPU, CLIENT_CPU, ListeningProcess, anonymous_bytes, pinned
from skylark.bench.results import ResultFile, Value, conditions_section
from skylark.bench.servers import Served, own_servers
from skylark.html_report import Chart, HtmlReport, Section, render

BENCHMARK = "soak"
MAXIMUM_S = 15.0
"""So long the maximum is looked for."""
RATE_SHARE = 0.5
"""Of the maximum."""
RESERVED_HOURS = 1
DRAIN_IDLE_S = 60.0
POLL_S = 0.1
STAT = Path("/proc/stat")
ALL_HOURS = ";".join(f"{hour:02d}" for hour in range(24))
# Small files and a short retention: in half an hour they roll and go as else in weeks.
BROKER_SETTINGS: dict[str, str | int] = {
    "mappedFileSizeConsumeQueue": 60_000,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "cleanResourceInterval": 2000,
    "cleanResourceFirstDelay": 1000,
    "deleteWhen": ALL_HOURS,
    "fileReservedTime": RESERVED_HOURS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """Options of a soak."""

    directory: Path
    seconds: float = 1800.0
    rate: float | None = None
    """Messages a second; None: half of the maximum, which is measured first."""
    every_s: float = 5.0
    keep_s: float = 60.0
    """Log files that nothing was written to for so long are made as old as the broker deletes them."""
    log_file_bytes: int = 16 << 20


class SoakReport(ResultFile, frozen=True, kw_only=True):
    """The result of a run, as `--out` writes it."""

    slopes: list[Slope]
    findings: list[Finding]
    send_us: Percentiles
    end_to_end_us: Percentiles
    samples: list[Sample]

    @property
    def is_clean(self) -> bool:
        """Nothing that could be judged was wrong."""
        return all(slope.is_flat is not False for slope in self.slopes) and all(
            finding.ok is not False for finding in self.findings
        )


class Soak:
    """A run. `say` is called with each sample."""

    def __init__(self, wanted: SoakOptions, say: Callable[[Sample], None]) -> None:
        self._wanted = wanted
        self._say = say
        self._samples: list[Sample] = []

    def run(self) -> SoakReport:
        """Raises ProcessFailed if the servers do not start, and the errors of clients."""
        directory = self._wanted.directory
        settings = {**BROKER_SETTINGS, "mappedFileSizeCommitLog": self._wanted.log_file_bytes}
        with own_servers(directory, settings=settings, cpu=BROKER_CPU) as served:
            with pinned(CLIENT_CPU):
                load, conditions = uvloop.run(self._measure(served, LogFiles(directory)))
            return self._report(load, conditions)

    async def _measure(self, served: Served, files: LogFiles) -> tuple[MixedLoad, dict[str, Value]]:
        async with MixedLoad(served.namesrv) as load:
            maximum, rate = None, self._wanted.rate
            if rate is None:
                maximum = await load.find_maximum(min(MAXIMUM_S, self._wanted.seconds))
                await _drain(load)
                rate = max(maximum * RATE_SHARE, 1.0)
            before = _counts(load)
            looking = asyncio.ensure_future(self._look_on(load, ListeningProcess(served.broker), files))
            sending = asyncio.ensure_future(load.run(self._wanted.seconds, rate))
            try:
                # Whichever fails first fails the run.
                await asyncio.wait((looking, sending), return_when=asyncio.FIRST_COMPLETED)
                if looking.done():
                    looking.result()
                await sending
            finally:
                looking.cancel()
                sending.cancel()
                await asyncio.gather(looking, sending, return_exceptions=True)
            await _drain(load)
            load.sends.turn()
            load.arrivals.turn()
            sent, received = (now - then for now, then in zip(_counts(load), before, strict=True))
            conditions: dict[str, Value] = {
                "seconds": self._wanted.seconds,
                "maximum per s": maximum and round(maximum),
                "wanted per s": round(rate, 1),
                "sent": sent,
                "received": received,
                "log file bytes": self._wanted.log_file_bytes,
                "log kept s": self._wanted.keep_s,
            }
            return load, conditions

    async def _look_on(self, load: MixedLoad, broker: ListeningProcess, files: LogFiles) -> None:
        started = time.monotonic()
        before = _Used.now(broker)
        while True:
            await asyncio.sleep(self._wanted.every_s)
            files.age(self._wanted.keep_s)
            now = _Used.now(broker)
            self._samples.append(
                _look(load, broker, files, second=now.at_s - started, cores=now.cores_since(before))
            )
            self._say(self._samples[-1])
            before = now

    def _report(self, load: MixedLoad, conditions: dict[str, Value]) -> SoakReport:
        ledger, wanted = load.ledger, self._wanted
        findings = [
            Finding(name="messages missing", value=str(ledger.missing), ok=ledger.missing == 0),
            Finding(
                name="rolled back, yet received", value=str(ledger.unexpected), ok=ledger.unexpected == 0
            ),
            Finding(name="not asked for, yet received", value=str(ledger.stray), ok=ledger.stray == 0),
            Finding(name="sends failed", value=str(ledger.failed), ok=ledger.failed == 0),
            Finding(name="received more than once", value=str(ledger.again), ok=None),
            *log_findings(self._samples, wanted.log_file_bytes, BODY_BYTES_MEAN, wanted.keep_s),
        ]
        return SoakReport.now(
            BENCHMARK,
            conditions,
            slopes=slopes(self._samples),
            findings=findings,
            send_us=load.sends.whole.percentiles(),
            end_to_end_us=load.arrivals.whole.percentiles(),
            samples=self._samples,
        )


def _counts(load: MixedLoad) -> tuple[int, int]:
    return load.ledger.sent, load.ledger.received


class _Cores(NamedTuple):
    """Cores in use."""

    broker: float
    others: float
    stolen: float


class _Used(NamedTuple):
    """Seconds of processors up to a moment: of the broker, of this process, of all there are, and those that
    neighbours of a virtual machine took."""

    at_s: float
    broker_s: float
    own_s: float
    all_s: float
    stolen_s: float

    @classmethod
    def now(cls, broker: ListeningProcess) -> Self:
        # user, nice, system, idle, iowait, irq, softirq, steal
        words = STAT.read_text().split(maxsplit=9)[1:9]
        user, nice, system, _, _, interrupts, soft, stolen = map(int, words)
        ticks = user + nice + system + interrupts + soft + stolen
        broker_s, ticks_per_s = (broker.cpu_us() or 0.0) / 1e6, os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), broker_s, time.process_time(), ticks / ticks_per_s, stolen / ticks_per_s)

    def cores_since(self, before: _Used) -> _Cores:
        passed_s, broker_s, own_s, all_s, stolen_s = (
            now - then for now, then in zip(self, before, strict=True)
        )
        return _Cores(broker_s / passed_s, max(all_s - broker_s - own_s, 0.0) / passed_s, stolen_s / passed_s)


class LogFiles:
    """The broker's log files, whose age can be changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _paths(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in sorted(self._directory.glob("**/commitlog/*")):
            try:
                found.append((path, path.stat()))
            except FileNotFoundError:
                continue  # deleted meanwhile
        return found

    def age(self, keep_s: float) -> None:
        """Set back the times of files written more than `keep_s` ago, so the broker deletes them."""
        now = time.time()
        expired = now - (RESERVED_HOURS * 3600 + 600)
        for path, status in self._paths()[:-KEPT_FILES_MIN]:
            if now - status.st_mtime > keep_s:
                try:
                    os.utime(path, (expired, expired))
                except FileNotFoundError:
                    continue

    def state(self) -> tuple[int, int, int]:
        """How many there are, where the first begins, where the one begins that is being written."""
        paths = self._paths()
        if not paths:
            return 0, 0, 0
        newest = max(paths, key=lambda found: found[1].st_mtime)[0]
        return len(paths), int(paths[0][0].name), int(newest.name)


def _look(
    load: MixedLoad, broker: ListeningProcess, files: LogFiles, *, second: float, cores: _Cores
) -> Sample:
    process = Path(f"/proc/{broker.pid}")
    count, begin, end = files.state()
    sends, arrivals = load.sends.turn(), load.arrivals.turn()
    return Sample(
        second=round(second, 2),
        sent=load.ledger.sent,
        received=load.ledger.received,
        broker_mib=round(broker.anonymous_mib() or 0.0, 2),
        client_mib=round(anonymous_bytes() / (1 << 20), 2),
        descriptors=sum(1 for _ in (process / "fd").iterdir()),
        threads=sum(1 for _ in (process / "task").iterdir()),
        broker_core_share=round(cores.broker, 3),
        send_p50_ms=_milliseconds(sends, 50),
        send_p99_ms=_milliseconds(sends, 99),
        end_to_end_p50_ms=_milliseconds(arrivals, 50),
        end_to_end_p99_ms=_milliseconds(arrivals, 99),
        log_files=count,
        log_begin=begin,
        log_end=end,
        load_1m=round(os.getloadavg()[0], 2),
        other_cores=round(cores.others, 3),
        stolen_cores=round(cores.stolen, 3),
    )


def _milliseconds(latencies: LatencyHistogram, percent: float) -> float | None:
    return round(latencies.at_percent(percent) / 1000, 3) if len(latencies) else None


async def _drain(load: MixedLoad) -> None:
    """Wait until everybody has everything, or nothing comes any more."""
    received, deadline = load.ledger.received, time.monotonic() + DRAIN_IDLE_S
    while load.ledger.missing and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
        if load.ledger.received != received:
            received, deadline = load.ledger.received, time.monotonic() + DRAIN_IDLE_S


# --- For people ---

SLOPE_COLUMNS = ["measure", "first", "last", "a minute", "95 %", "allowed", "verdict"]
FINDING_COLUMNS = ["what", "value", "verdict"]
_WORDS = {True: "flat", False: "NOT FLAT"}
_FOUND_WORDS = {True: "good", False: "WRONG", None: ""}
_COURSES = (
    ("memory", "Memory, MiB", {"broker": "broker_mib", "clients": "client_mib"}),
    ("handles", "Descriptors and threads", {"descriptors": "descriptors", "threads": "threads"}),
    ("sends", "Latency of sends, ms", {"p50": "send_p50_ms", "p99": "send_p99_ms"}),
    ("arrivals", "From send to consumer, ms", {"p50": "end_to_end_p50_ms", "p99": "end_to_end_p99_ms"}),
    ("log", "Log files", {"files": "log_files"}),
    (
        "cores",
        "Cores in use",
        {"broker": "broker_core_share", "others": "other_cores", "stolen": "stolen_cores"},
    ),
)  # fmt: skip


def slope_rows(report: SoakReport) -> list[list[object]]:
    return [
        [
            each.name,
            f"{each.first:g} {each.unit}".strip(),
            f"{each.last:g} {each.unit}".strip(),
            f"{each.per_minute:+.3f}",
            f"{each.low:+.3f} to {each.high:+.3f}",
            each.limit,
            each.why or _WORDS[bool(each.is_flat)],
        ]
        for each in report.slopes
    ]


def finding_rows(report: SoakReport) -> list[list[object]]:
    return [[each.name, each.value, _FOUND_WORDS[each.ok]] for each in report.findings]


def soak_page(report: SoakReport) -> str:
    """The run as one HTML page that fetches nothing."""
    sections = [
        Section("verdict", "Flat?", SLOPE_COLUMNS, slope_rows(report)),
        Section("findings", "Every message, every file", FINDING_COLUMNS, finding_rows(report)),
        *(_course(report, name, title, fields) for name, title, fields in _COURSES),
        conditions_section(report),
    ]
    return render(HtmlReport("python -m benchmarks soak", report.made_at, sections))


def _course(report: SoakReport, name: str, title: str, fields: dict[str, str]) -> Section:
    rows: list[list[object]] = [
        [line, round(sample.second), value]
        for line, field in fields.items()
        for sample in report.samples
        if (value := getattr(sample, field)) is not None
    ]
    chart = Chart(label="second", value="value", series="line", kind="lines")
    return Section(name, title, ["line", "second", "value"], rows, chart)
