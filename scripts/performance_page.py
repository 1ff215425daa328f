"""Fill the tables of docs/performance.md from what commands wrote.

python scripts/performance_page.py FILE...     results of `skylark bench all` and `skylark bench soak`

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; what no file tells stays as it is. The
tables behind `skylark plan` and the predictions are made from the shipped costs.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from typer.testing import CliRunner

from skylark.bench.growth import TITLES
from skylark.bench.plan import Demand, Hardware, make_plan
from skylark.bench.plan_costs import load_costs
from skylark.bench.results import Cell, Stamped
from skylark.bench.soak_run import SoakReport
from skylark.bench.survey import GROWTH, Survey
from skylark.cli.main import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
TABLE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
PLAN = re.compile(r"(```sh\n(skylark plan .*)\n```\n\n)((?:\|.*\n)+)")
VOID = "void"

Row = Sequence[str]


def table(columns: Row, rows: Iterable[Row], aligned: str = "") -> str:
    """Markdown; `aligned` has an `r` for each column of numbers."""
    marks = ["---:" if mark == "r" else "---" for mark in aligned.ljust(len(columns))]
    lines = [list(columns), marks, *rows]
    return "".join(
        f"| {' | '.join(line)} |\n" if line is not marks else f"|{'|'.join(line)}|\n" for line in lines
    )


def number(value: float | None) -> str:
    """As many digits as mean something."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def milliseconds(cell: Cell) -> str:
    """Of the median, of 99 and of 99.9 in a hundred."""
    found = cell.latency_us
    return (
        ""
        if found is None
        else " / ".join(number(value / 1000) for value in (found.p50, found.p99, found.p999))
    )


def rate(cell: Cell) -> str:
    return VOID if cell.is_void else number(cell.per_s)


def when(found: Stamped) -> str:
    return f"*Measured on {found.made_at[:16]} UTC, load average {found.machine.load_1m:g} at the end.*\n\n"


# --- Of `skylark bench all` ---


def _load(name: str, cell: Cell) -> tuple[str, ...]:
    return name, rate(cell), number(cell.mib_per_s), milliseconds(cell), number(cell.server_cpu_us)


def sends(found: Survey) -> str:
    cells = [("", cell) for cell in _cells(found, "sends")]
    cells += [("synchronous flush, ", cell) for cell in _cells(found, "sync")]
    rows = [_load(words + cell.name, cell) for words, cell in cells]
    return table(("Sends", "messages/s", "MiB/s", "p50 / p99 / p99.9 ms", "µs of a core"), rows, " rr r")


def features(found: Survey) -> str:
    rows = [
        (
            cell.name,
            rate(cell),
            number(cell.server_cpu_us),
            _figure(cell, "server_time_of_first"),
            _figure(cell, "log_bytes"),
        )
        for cell in _cells(found, "features")
    ]
    plain = _cells(found, "features")[0].server_cpu_us
    for cell in _cells(found, "transactions"):
        times = cell.server_cpu_us / plain if cell.server_cpu_us and plain else None
        rows.append(("a transaction", rate(cell), number(cell.server_cpu_us), number(times), ""))
    return table(
        ("Message with", "a second", "µs of a core", "times a plain one", "bytes in the log"), rows, " rrrr"
    )


def reads(found: Survey) -> str:
    groups = {"filters": "pulls, ", "fan-out": "pulls, ", "cold": "", "consumer": "our push "}
    rows = [_load(words + cell.name, cell) for step, words in groups.items() for cell in _cells(found, step)]
    return table(("Reads", "messages/s", "MiB/s", "p50 / p99 / p99.9 ms", "µs of a core"), rows, " rr r")


def latency(found: Survey) -> str:
    rows = [
        (f"{words}{cell.name}{behind}", milliseconds(cell), number(cell.server_cpu_us))
        for step, words, behind in (
            ("latency", "", ""),
            ("slow-group", "", ", beside a group that takes a second for a message"),
            ("delay", "lateness of a delay of a second, ", ""),
        )
        for cell in _cells(found, step)
    ]
    return table(("End to end, 1 KiB", "p50 / p99 / p99.9 ms", "µs of a core"), rows, "  r")


def servers(found: Survey) -> str:
    rows = [
        (
            f"master, {cell.name}",
            rate(cell),
            milliseconds(cell),
            number(cell.server_cpu_us),
            _behind(cell),
        )
        for cell in _cells(found, "replication")
    ]
    rows += [
        (f"routes, {cell.name}", rate(cell), milliseconds(cell), number(cell.server_cpu_us), "")
        for cell in _cells(found, "routes")
    ]
    rows += [
        (
            f"sends in turn to {cell.name}",
            rate(cell),
            milliseconds(cell),
            number(cell.server_cpu_us),
            f"{_figure(cell, 'rate_of_first')} of the rate of one",
        )
        for cell in _cells(found, "topics")
    ]
    return table(("", "a second", "p50 / p99 / p99.9 ms", "µs of a core", "also"), rows, " r r")


def growth(found: Survey) -> str:
    rows = []
    cells = _cells(found, GROWTH)
    for dimension in dict.fromkeys(str(cell.settings["dimension"]) for cell in cells):
        points = [cell for cell in cells if cell.settings["dimension"] == dimension]
        costs = [cell.server_cpu_us or 0.0 for cell in points]
        loads = sorted(float(cell.settings["load_1m"] or 0) for cell in points)
        rows.append(
            (
                TITLES[dimension],
                ", ".join(number(float(cell.settings["point"] or 0)) for cell in points),
                ", ".join(map(number, costs)),
                f"{costs[-1] / costs[0]:.2f}" if costs[0] else "",
                f"{points[0].anonymous_mib or 0:.0f} → {points[-1].anonymous_mib or 0:.0f}",
                f"{loads[0]:.1f} to {loads[-1]:.1f}",
            )
        )
    return table(("With", "at", "µs of a core", "last over first", "memory, MiB", "load"), rows, "   r")


def predictions(found: Survey) -> str:
    """What the model says of loads that it was not fitted to, beside what was measured of them."""
    rows = [
        _prediction(step, cell)
        for step in ("sends", "sync")
        for cell in _cells(found, step)
        if cell.settings["kind"] == "send" and not _is_fitted(step, cell)
    ]
    return table(("Load", "predicted", "measured"), rows)


def _is_fitted(step: str, cell: Cell) -> bool:
    """Whether `skylark plan --measure` knows such a load."""
    in_flight, batch, body_bytes = (cell.settings[name] for name in ("in_flight", "batch", "body_bytes"))
    if step == "sends" and (in_flight, body_bytes) == (1, 128):
        return True
    return in_flight == 64 and batch in (1, 32) and body_bytes in (128, 1024)


def _prediction(step: str, cell: Cell) -> Row:
    given = {name: int(cell.settings[name] or 0) for name in ("body_bytes", "batch", "in_flight")}
    flush = "sync" if step == "sync" else "async"
    demand = Demand(fan_out=0.0, spark_jobs=0, replicas=1, topics=1, queues=4, flush=flush, **given)
    plan = make_plan(demand, Hardware(), load_costs())
    flushes = [used.limit.each for used in plan.limits if used.limit.name == "flushes"]
    per_s = min([plan.broker_messages_per_s_max, *flushes])
    return (
        ("synchronous flush, " if step == "sync" else "") + cell.name,
        f"{number(plan.message_core_us)} µs, {per_s:,.0f}/s",
        f"{number(cell.server_cpu_us)} µs, {cell.per_s:,.0f}/s",
    )


def _cells(found: Survey, step: str) -> list[Cell]:
    return found.documents[step].cells


def _figure(cell: Cell, name: str) -> str:
    value = cell.figures.get(name)
    return "" if value is None else number(float(value))


def _behind(cell: Cell) -> str:
    if "slave_behind_p99_ms" not in cell.figures:
        return ""
    behind = " / ".join(_figure(cell, f"slave_behind_{share}_ms") for share in ("p50", "p99"))
    return f"the slave is {behind} ms behind (p50 / p99)"


# --- Of `skylark bench soak` ---


def soak(found: SoakReport) -> str:
    verdicts = {True: "flat", False: "not flat"}
    rows = [
        (
            each.name,
            f"{number(each.first)} {each.unit}".strip(),
            f"{number(each.last)} {each.unit}".strip(),
            f"{each.per_minute:+.3f}",
            f"{each.low:+.3f} to {each.high:+.3f}",
            each.limit,
            each.why or verdicts[bool(each.is_flat)],
        )
        for each in found.slopes
    ]
    return table(
        ("What", "first quarter", "last quarter", "a minute", "95 % within", "allowed", ""), rows, " rrr"
    )


def soak_counts(found: SoakReport) -> str:
    facts = {**found.conditions, **{each.name: each.value for each in found.findings}}
    return table(("Of the run", ""), [(name, _fact(value)) for name, value in facts.items()], " r")


def _fact(value: object) -> str:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return f"{value:,}" if isinstance(value, int | float) else str(value)


# --- The page ---

SURVEYED: dict[str, Callable[[Survey], str]] = {
    "sends": sends,
    "features": features,
    "reads": reads,
    "latency": latency,
    "servers": servers,
    "growth": growth,
    "predictions": predictions,
}
SOAKED: dict[str, Callable[[SoakReport], str]] = {"soak": soak, "soak-counts": soak_counts}


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with these tables, and with plans of the shipped costs."""
    page = TABLE.sub(lambda found: found[1] + tables.get(found[2], found[3]) + found[4], page)
    return PLAN.sub(lambda found: found[1] + _planned(found[2]), page)


def _planned(command: str) -> str:
    printed = CliRunner().invoke(app, shlex.split(command)[1:]).output
    columns, *rows = [line.split("\t") for line in printed.splitlines() if "\t" in line]
    return table(columns, rows, "r" * (len(columns) - 1))


def tables_of(data: bytes) -> dict[str, str]:
    """What a file tells. Raises msgspec.ValidationError if it is no such result."""
    if msgspec.json.decode(data)["benchmark"] == "soak":
        report = msgspec.json.decode(data, type=SoakReport)
        return {name: when(report) + make(report) for name, make in SOAKED.items()}
    survey = msgspec.json.decode(data, type=Survey)
    made = {}
    for name, make in SURVEYED.items():
        try:
            made[name] = when(survey) + make(survey)
        except KeyError:
            continue  # a step that was not measured
    return made


def main(files: Sequence[str]) -> None:
    tables = {name: text for file in files for name, text in tables_of(Path(file).read_bytes()).items()}
    PAGE.write_text(filled(PAGE.read_text(), tables))


if __name__ == "__main__":
    main(sys.argv[1:])
