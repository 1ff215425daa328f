"""Tables of docs/performance.md that `python -m benchmarks survey`, `growth` and `soak` tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.compare.figures import BETWEEN
from benchmarks.growth import TITLES, growth_of
from benchmarks.soak.run import SoakReport
from benchmarks.survey.run import GROWTH, Survey
from skylark.bench.plan import Demand, Hardware, load_costs, make_plan
from skylark.bench.results import Cell, Document

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
    if cell.is_void:
        return VOID
    if found is None:
        return ""
    return " / ".join(number(value / 1000) for value in (found.p50, found.p99, found.p999))


def rate(cell: Cell) -> str:
    return VOID if cell.is_void else number(cell.per_s)


def when(made_at: str, load_1m: float) -> str:
    """The line above a table, also of runs that were joined."""
    times = sorted({time[:16] for time in made_at.split(BETWEEN)})
    day = times[0][:10]
    times[1:] = [time.removeprefix(day).strip() for time in times[1:]]
    return f"*Measured on {' and '.join(times)} UTC, load average {load_1m:g} at the end.*\n\n"


# --- Of `python -m benchmarks survey` ---


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


def growth(found: Document) -> str:
    rows = []
    cells = found.cells
    for dimension in dict.fromkeys(str(cell.settings["dimension"]) for cell in cells):
        points = [cell for cell in cells if cell.settings["dimension"] == dimension]
        costs = [VOID if cell.is_void else number(cell.server_cpu_us) for cell in points]
        loads = sorted(float(cell.settings["load_1m"] or 0) for cell in points)
        rows.append(
            (
                TITLES[dimension],
                ", ".join(number(float(cell.settings["point"] or 0)) for cell in points),
                ", ".join(costs),
                f"{times:.2f}" if (times := growth_of(points).get(dimension)) else "",
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
    """Whether `python -m benchmarks costs` knows such a load."""
    in_flight, batch, body_bytes = (cell.settings[name] for name in ("in_flight", "batch", "body_bytes"))
    if (in_flight, body_bytes) == (1, 128):
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
        VOID if cell.is_void else f"{number(cell.server_cpu_us)} µs, {cell.per_s:,.0f}/s",
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


# --- Of `python -m benchmarks soak` ---


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


# --- By name ---

SURVEYED: dict[str, Callable[[Survey], str]] = {
    "sends": sends,
    "features": features,
    "reads": reads,
    "latency": latency,
    "servers": servers,
    "growth": lambda found: growth(found.documents[GROWTH]),
    "predictions": predictions,
}
SOAKED: dict[str, Callable[[SoakReport], str]] = {"soak": soak, "soak-counts": soak_counts}


def survey_tables(found: Survey) -> dict[str, str]:
    """Of the steps that were measured."""
    made = {}
    for name, make in SURVEYED.items():
        try:
            made[name] = when(found.made_at, found.machine.load_1m) + make(found)
        except KeyError:
            continue
    return made


def growth_tables(found: Document) -> dict[str, str]:
    """Of `python -m benchmarks growth` alone."""
    return {"growth": when(found.made_at, found.machine.load_1m) + growth(found)}


def soak_tables(found: SoakReport) -> dict[str, str]:
    return {name: when(found.made_at, found.machine.load_1m) + make(found) for name, make in SOAKED.items()}
