"""Everything that a page about performance needs, in one sitting: benchmark after benchmark, one document.

`compare` (other systems) and `soak` (half an hour) are commands of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.growth import Growth, GrowthOptions, sections
from benchmarks.survey.cold import measure_cold
from benchmarks.survey.features import measure_features, measure_filters, measure_routes
from benchmarks.survey.replication import measure_replication
from benchmarks.survey.topics import measure_topics
from skylark.bench.consumer import Consuming, measure_consumer, measure_delay, measure_latency
from skylark.bench.load import Load, LoadKind
from skylark.bench.machine import scratch
from skylark.bench.results import Cell, Document, ResultFile, conditions_section, figure_rows, table
from skylark.bench.servers import Progress, ServerChoice, measure_loads
from skylark.bench.store import measure_store
from skylark.bench.transaction import Shares, measure_transactions
from skylark.errors import RocketMQError
from skylark.html_report import HtmlReport, Section, render

BENCHMARK = "survey"
WARM_UP_S = 1.0
BACKLOG = 200_000
PULLED = 32
LATENCY_RATES = (1000.0, 5000.0, 20_000.0)
SLOW_RATE = 5000.0
COLD_LOG_BYTES = 2 << 30
COLD_RATE = 2000.0
DELAY_LEVEL, DELAY_MS = 1, 1000
STORE_S_MAX = 2.0
LARGE_MESSAGES = 3_200
"""Of 64 KiB: 200 MiB, less than may wait for the disk. More would be refused as soon as it is slower."""
GROWTH = "growth"

Step = Callable[[Progress], Document]


class Survey(ResultFile, frozen=True, kw_only=True):
    """Results by step, and the reasons for missing ones."""

    benchmark: str = BENCHMARK
    documents: dict[str, Document]
    missing: dict[str, str]
    taken_s: dict[str, float]

    @property
    def is_void(self) -> bool:
        return bool(self.missing) or any(
            cell.is_void for document in self.documents.values() for cell in document.cells
        )


def steps(seconds: float) -> dict[str, Step]:
    """`seconds` for each cell."""
    base = Load(address="", seconds=seconds, warm_up_s=WARM_UP_S)
    alone: dict[str, Step] = {"store": partial(measure_store, 128, min(seconds, STORE_S_MAX))}
    return {**_sending(base), **_receiving(base), **alone, GROWTH: _growth}


def _sending(base: Load) -> dict[str, Step]:
    own, small = ServerChoice(), replace(base, body_bytes=128)
    traded = replace(base, topic="traded", body_bytes=2048, in_flight=32)
    asked = replace(base, topic="asked", topics=100, in_flight=16, processes=16)
    many = replace(small, topic="many", queues=1, in_flight=1024)
    waiting = _in_flight(small, (1, 16, 64, 256, 1024))
    return {
        "sends": partial(measure_loads, "producer", own, _sends(base)),
        "sync": partial(measure_loads, "producer", ServerChoice(flush="sync"), waiting),
        "features": partial(measure_features, own, replace(small, topic="feature")),
        "transactions": partial(measure_transactions, own, traded, Shares()),
        "replication": partial(measure_replication, own, replace(base, topic="copied", body_bytes=1024)),
        "topics": partial(measure_topics, own, many, (1, 10_000)),
        "routes": partial(measure_routes, own, asked),
    }


def _receiving(base: Load) -> dict[str, Step]:
    own, how = ServerChoice(), Consuming(batch=PULLED)
    large = replace(base, body_bytes=1024)
    pulls = replace(large, kind=LoadKind.PULL, batch=PULLED)
    cold = replace(pulls, topic="cold", rate=COLD_RATE)
    timed = [replace(large, topic=f"timed-{rate:g}", rate=rate, in_flight=1024) for rate in LATENCY_RATES]
    beside = [replace(timed[0], rate=SLOW_RATE)]
    delayed = replace(timed[0], topic="delayed", properties={"DELAY": str(DELAY_LEVEL)})
    consumed = replace(base, body_bytes=128, topic="consumed")
    return {
        "filters": partial(measure_filters, own, replace(pulls, topic="filtered"), BACKLOG),
        "fan-out": partial(_fan_out, own, replace(pulls, topic="pulled")),
        "cold": partial(measure_cold, own, cold, COLD_LOG_BYTES),
        "consumer": partial(measure_consumer, own, consumed, BACKLOG, how),
        "latency": partial(measure_latency, own, timed, how),
        "slow-group": partial(measure_latency, own, beside, replace(how, slow_groups=1)),
        "delay": partial(measure_delay, own, delayed, DELAY_MS),
    }


def _in_flight(load: Load, counts: Sequence[int]) -> dict[str, Load]:
    return {f"{count:,} in flight, {load.body_bytes} B": replace(load, in_flight=count) for count in counts}


def _sends(base: Load) -> dict[str, Load]:
    batches = {
        f"batches of {size}, 128 B": replace(base, body_bytes=128, batch=size) for size in (16, 32, 100)
    }
    return {
        **_in_flight(replace(base, body_bytes=128), (1, 64, 1024)),
        **_in_flight(replace(base, body_bytes=1024), (1, 64, 1024)),
        **_in_flight(replace(base, body_bytes=65_536, warm_up_s=0.1, messages_max=LARGE_MESSAGES), (64,)),
        "one-way, 128 B": replace(base, body_bytes=128, kind=LoadKind.ONEWAY),
        **batches,
    }


def _fan_out(choice: ServerChoice, load: Load, progress: Progress) -> Document:
    loads = {
        **{f"{readers} readers, 4 queues": replace(load, processes=readers) for readers in (1, 4, 16)},
        "1 readers, 1 queues": replace(load, queues=1, topic=f"{load.topic}-1"),
    }
    return measure_loads("pull", choice, loads, progress, backlog=BACKLOG)


def _growth(progress: Progress) -> Document:
    def say(cell: Cell) -> None:
        progress(cell.name, "end")

    with scratch() as directory:
        return Growth(GrowthOptions(directory=directory), say).run()


def survey(
    chosen: Mapping[str, Step],
    minutes: float,
    progress: Progress,
    keep: Callable[[Survey], None] = lambda _: None,
) -> Survey:
    """Run the steps in turn, none after `minutes`. `keep` gets the results so far after each."""
    started = time.monotonic()
    documents: dict[str, Document] = {}
    missing: dict[str, str] = {}
    taken_s: dict[str, float] = {}

    def found() -> Survey:
        return Survey.now(
            BENCHMARK,
            {"minutes_max": minutes},
            documents=dict(documents),
            missing=dict(missing),
            taken_s=dict(taken_s),
        )

    for name, step in chosen.items():
        begun = time.monotonic()
        if begun - started > minutes * 60:
            missing[name] = f"not begun: {minutes:g} minutes were over"
            continue
        try:
            documents[name] = step(partial(_prefixed, progress, name))
        except (RocketMQError, OSError) as error:
            missing[name] = str(error)
        taken_s[name] = round(time.monotonic() - begun, 1)
        keep(found())
    return found()


def _prefixed(progress: Progress, step: str, cell: str, word: str) -> None:
    progress(f"{step}: {cell}", word)


# --- For people ---

COLUMNS = ("step", "cell", "per s", "p50 µs", "p99 µs", "p99.9 µs", "server µs", "more")


def rows(found: Survey) -> list[list[Any]]:
    """A line for each cell of all steps."""
    return [_row(name, cell) for name, document in found.documents.items() for cell in document.cells]


def _row(step: str, cell: Cell) -> list[Any]:
    latency = cell.latency_us
    times = [latency.p50, latency.p99, latency.p999] if latency is not None else [None] * 3
    more = [f"{name} {value}" for name, value in cell.figures.items()] + [
        f"VOID: {each}" for each in cell.wrong
    ]
    return [step, cell.name, round(cell.per_s), *times, cell.server_cpu_us, "; ".join(more)]


def page(found: Survey) -> str:
    """The survey as one HTML page that fetches nothing."""
    parts: list[Section] = []
    for name, document in found.documents.items():
        if name == GROWTH:
            parts += sections(document)
        else:
            columns, lines = table(document.cells)
            parts.append(Section(name, name, columns, lines))
    extra = [
        [name, *seen]
        for name, document in found.documents.items()
        if name != GROWTH
        for seen in figure_rows(document.cells)
    ]
    parts.append(Section("figures", "Also seen", ["step", "cell", "figure", "value"], extra))
    parts.append(
        Section("missing", "Not measured", ["step", "reason"], [list(each) for each in found.missing.items()])
    )
    return render(
        HtmlReport("python -m benchmarks survey", found.made_at, [*parts, conditions_section(found)])
    )
