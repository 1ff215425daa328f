"""Comparison tables of docs/performance.md: `python -m benchmarks compare` and other benchmarks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from benchmarks._common import ProgramResult
from benchmarks.compare import cells as c
from benchmarks.compare.figures import BETWEEN, Comparison, Spread, merge
from benchmarks.compare.figures import Row as Compared
from scripts.performance_tables import VOID, Row, number, table, when

NOTHING = "none"
SEND_AIM, OTHER_AIM = 1.5, 1.0
"""How many times Apache's rate ours shall be, with the brokers on one core."""
WHOLE_AIM, WHOLE_BATCH_AIM = 2.0, 1.5
"""With the brokers on all cores."""
BARE_AIM = 0.9
"""What share of a bare loop's rate a lone synchronous send shall have."""
WHOLE_MACHINE = "all"
"""The condition `broker_cpus` of brokers that may use every core."""
SPARK_BODY = "200 B"
SPARK_PROGRAMS = ("spark", "spark-kafka")
"""Their results are by size of body first, then by cell."""


def joined(parts: Sequence[ProgramResult]) -> ProgramResult:
    """Several runs of one program, each of some cells; a cell measured twice counts as in the last run."""
    results: dict[str, Any] = {}
    for part in parts:
        results = _over(results, part.results, depth=3 if part.benchmark in SPARK_PROGRAMS else 2)
    last = parts[-1]
    load = max(part.machine.load_1m for part in parts)
    return msgspec.structs.replace(
        last,
        made_at=BETWEEN.join(part.made_at for part in parts),
        machine=msgspec.structs.replace(last.machine, load_1m=load),
        results=results,
    )


def _over(old: Mapping[str, Any], new: Mapping[str, Any], depth: int) -> dict[str, Any]:
    merged = dict(old)
    for name, value in new.items():
        known = merged.get(name)
        both = isinstance(value, dict) and isinstance(known, dict) and depth > 1
        merged[name] = _over(known, value, depth - 1) if both and known is not None else value
    return merged


# --- `benchmarks.broker --peer apache` ---

SENDS = re.compile(r"(async|sync)-(\d+)-(\w+)")
KINDS = {
    "async": "",
    "sync": "synchronous flush, ",
    "batch": f"batches of {c.BATCH}, ",
    "batch-topic": f"batches of {c.BATCH}, BatchCQ topic, ",
    "pull": "pulls of 32, backlog of ",
    "pull-tag": "pulls of 32 by tag, backlog of ",
    "pull-sql92": "pulls of 32 by SQL92, backlog of ",
    "delay": "delay level, 64 in flight, ",
    "timer": "timer, 64 in flight, ",
    "transaction": "transactions, 64 in flight, ",
}
"""Beginnings of cells' names, in the order of the table."""
BODIES = {"128B": "128 B", "1KiB": "1 KiB"}
WAITS = ("p50_us", "p99_us", "p999_us")


def apache(found: ProgramResult) -> str:
    is_whole = _is_whole(found)
    names = [name for name, cell in found.results.items() if _is_pair(cell)]
    rows = [
        _beside(name, found.results[name], _broker_aim(name, is_whole=is_whole))
        for name in sorted(names, key=_place)
    ]
    waits = [f"{name}, p50 / p99 / p99.9 ms" for name in ("ours", "Apache")]
    columns = ("Cell", "ours, messages/s", "Apache, messages/s", *waits, "ours, µs", "Apache, µs")
    return table((*columns, "times (lowest to highest)"), rows, " rrrrrrr")


def bare_loop(found: ProgramResult) -> str:
    """Empty without such cells."""
    rows = [
        (
            cell_title(name),
            _median(cell["ours"], "messages_per_s"),
            _median(cell["bare"], "messages_per_s"),
            _times(cell["to_bare_loop"], BARE_AIM),
        )
        for name, cell in found.results.items()
        if isinstance(cell, dict) and {"ours", "bare"} <= cell.keys()
    ]
    columns = ("Cell", "ours, messages/s", "bare loop, messages/s", "share (lowest to highest)")
    return table(columns, rows, " rrr") if rows else ""


def _broker_aim(name: str, *, is_whole: bool) -> float:
    if is_whole:
        return WHOLE_BATCH_AIM if name.startswith("batch") else WHOLE_AIM
    return SEND_AIM if SENDS.match(name) else OTHER_AIM


def _kind(name: str) -> str:
    found = SENDS.fullmatch(name)
    return found[1] if found else name.rpartition("-")[0]


def _place(name: str) -> tuple[int, int]:
    """Sends, then synchronous ones by how many are in flight, batches, pulls; stable for bodies."""
    found = SENDS.fullmatch(name)
    return list(KINDS).index(_kind(name)), int(found[2]) if found else 0


def _is_pair(cell: Any) -> bool:
    return isinstance(cell, dict) and {"ours", "apache"} <= cell.keys()


def _is_whole(found: ProgramResult) -> bool:
    return found.conditions.get("broker_cpus") == WHOLE_MACHINE


def _beside(name: str, cell: Mapping[str, Any], aim: float) -> Row:
    ours, theirs, times = cell["ours"], cell["apache"], cell["ratio"]
    rates = [_median(each, "messages_per_s") for each in (ours, theirs)]
    waits = [
        " / ".join(_median(each, key, 1000) for key in WAITS) if "p50_us" in each else ""
        for each in (ours, theirs)
    ]
    costs = [_median(each, "broker_cpu_us") for each in (ours, theirs)]
    return (
        cell_title(name),
        *rates,
        *waits,
        *costs,
        _times(times, aim),
    )


def _median(figures: Mapping[str, Any], key: str, divisor: int = 1) -> str:
    if not figures.get("rounds"):
        return VOID
    found = figures.get(key)
    return NOTHING if found is None else number(found["median"] / divisor)


def _times(ratio: Mapping[str, Any], aim: float) -> str:
    """Bold where it is below the aim."""
    if "median" not in ratio:
        return VOID
    text = f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"
    return f"**{text}**" if ratio["median"] < aim else text


def cell_title(name: str) -> str:
    """A cell of the broker's benchmark in words."""
    body = BODIES[name.rpartition("-")[2]]
    if found := SENDS.fullmatch(name):
        return f"{KINDS[found[1]]}{int(found[2]):,} in flight, {body}"
    return KINDS[_kind(name)] + body


# --- `benchmarks.security` ---

WAYS = {"open": "", "signed": "signed", "tls": "TLS", "tls-signed": "TLS and signed"}


def security(found: ProgramResult) -> str:
    has_peer = any("apache" in cell for cell in found.results.values() if isinstance(cell, dict))
    rows = [
        _secured(name, cell, has_peer=has_peer)
        for name, cell in found.results.items()
        if isinstance(cell, dict) and "ours" in cell
    ]
    columns = ("Cell", "ours, messages/s", "ours, µs", "of open ones")
    more = ("Apache, messages/s", "of open ones", "times") if has_peer else ()
    return table((*columns, *more), rows, " rrr" + "r" * len(more))


def _secured(name: str, cell: Mapping[str, Any], *, has_peer: bool) -> Row:
    kind, rest = name.partition("-")[::2]
    way, _, body = rest.rpartition("-")
    title = ", ".join(filter(None, (f"{kind}s", BODIES[body], WAYS[way])))
    peer = (
        _rate(cell.get("apache")),
        _share(cell, "apache_to_open"),
        _share(cell, "ratio"),
    )
    cost = (cell["ours"].get("broker_cpu_us") or {}).get("median")
    return (
        title,
        _rate(cell["ours"]),
        VOID if cost is None else number(cost),
        _share(cell, "ours_to_open", cell.get("expected_to_open_at_least", 0.0)),
        *(peer if has_peer else ()),
    )


def _rate(figures: Mapping[str, Any] | None) -> str:
    return number(figures["messages_per_s"]["median"]) if figures and "messages_per_s" in figures else VOID


def _share(cell: Mapping[str, Any], key: str, aim: float = 0.0) -> str:
    return _times(cell[key], aim) if cell.get(key) else ""


# --- `python -m benchmarks compare` ---

SHOWN: dict[c.Kind, tuple[c.Metric, ...]] = {
    c.Kind.JAVA: (c.PER_S,),
    c.Kind.CONSUME: (c.PER_S,),
    c.Kind.LATENCY: (c.P50, c.P99, c.P999),
    c.Kind.TOPICS: (c.PER_S,),
    c.Kind.ROUTES: (c.ROUTES_PER_S,),
    c.Kind.RECOVER: (c.RECOVERY,),
}
"""Figures of a cell, in one field; what is not here has a table of its own."""


def peers(found: Comparison) -> str:
    systems = [name for name in c.PEERS if any(row.peer == name for row in found.rows)]
    titles = [next((each.title for each in found.systems if each.name == name), name) for name in systems]
    shown = [
        (cell, metrics)
        for cell in c.CELLS
        if (metrics := SHOWN.get(cell.kind) or c.FRESH_METRICS.get(cell.name))
        and any(row.cell == cell.name for row in found.rows)
    ]
    rows = [
        (_compared_title(cell, found), *_fields(cell, metrics, systems, found)) for cell, metrics in shown
    ]
    return table(("", "Skylark", *titles), rows, " " + "r" * (len(systems) + 1))


def _fields(cell: c.Cell, metrics: Sequence[c.Metric], systems: Sequence[str], found: Comparison) -> Row:
    """Ours, then each peer's; the best of a row is bold."""
    by_peer = {
        (row.peer, row.metric): row for row in found.rows if row.cell == cell.name and row.peer in systems
    }
    ours = [
        _first(row.ours for (_, name), row in by_peer.items() if name == metric.name) for metric in metrics
    ]
    spreads = [ours, *([_theirs(by_peer.get((peer, m.name))) for m in metrics] for peer in systems)]
    known = [each[0].median for each in spreads if each[0] is not None]
    best = (max if metrics[0].more_is_better else min)(known) if len(known) > 1 else None
    return [
        f"**{text}**" if each[0] is not None and each[0].median == best else text
        for each in spreads
        for text in [_joined_figures(metrics, each)]
    ]


def _first(spreads: Iterator[Spread | None]) -> Spread | None:
    return next((spread for spread in spreads if spread is not None), None)


def _theirs(row: Compared | None) -> Spread | None:
    return row.theirs if row is not None else None


def _joined_figures(metrics: Sequence[c.Metric], spreads: Sequence[Spread | None]) -> str:
    if all(spread is None for spread in spreads):
        return NOTHING
    divisor = 1000 if metrics[0].unit == "µs" else 1
    figures = " / ".join(NOTHING if spread is None else number(spread.median / divisor) for spread in spreads)
    unit = metrics[0].unit
    return figures + {"/s": "/s", "s": " s"}.get(unit, "")


def _compared_title(cell: c.Cell, found: Comparison) -> str:
    body = BODIES.get(next((name for name, size in c.BODIES.items() if size == cell.body_bytes), ""), "")
    flush = "synchronous flush, " if cell.flush == "sync" else ""
    sizes = str(found.conditions.get("recover_mib", "0")).split(BETWEEN)  # several, if runs were joined
    gib = " or ".join(f"{int(mib) / 1024:g}" for mib in sizes)
    words: dict[c.Kind, str] = {
        c.Kind.JAVA: f"sends, {cell.in_flight:,} in flight, {body}",
        c.Kind.CONSUME: f"a backlog of {body}",
        c.Kind.LATENCY: f"end to end at {c.LATENCY_RATE:,}/s, {body}, p50 / p99 / p99.9, ms",
        c.Kind.TOPICS: f"sends in turn to {cell.topics:,} topics, thin client",
        c.Kind.ROUTES: f"routes of {cell.topics} topics, {cell.in_flight} connections, thin client",
        c.Kind.RECOVER: f"kill -9 with {gib} GiB of log to the first acknowledged send",
    }
    if cell.kind is c.Kind.JAVA and cell.batch > 1:
        return f"{flush}batches of {cell.batch}, {body}"
    if cell.name == c.STOP_TIME:
        return "SIGTERM to the end of the process"
    if cell.name == c.MEMORY:
        return f"anonymous memory idle / at {c.LATENCY_RATE:,}/s, MiB"
    return flush + words.get(cell.kind, "start to the first acknowledged send")


def counting(parts: Sequence[Comparison]) -> list[Comparison]:
    """Those of which something counts: not all of it was measured again later."""
    kept: list[Comparison] = []
    later: set[tuple[str, str]] = set()
    for part in reversed(parts):
        good = {(each.cell, each.system) for each in part.outcomes if not each.wrong}
        if good - later:
            kept.append(part)
        later |= good
    return kept[::-1]


def compare_tables(parts: Sequence[Comparison]) -> dict[str, str]:
    found = merge(counting(parts) or parts)
    return {"peers": when(found.made_at, found.machine.load_1m) + peers(found)}


# --- `benchmarks.client` ---

CLIENTS = {
    "blocking-1": "blocking, one after the other",
    "asyncio-1": "asyncio, one after the other",
    "java-one_in_flight": "Java's, one after the other",
    "blocking-futures": "blocking, futures, 256 in flight",
    "asyncio-256": "asyncio, 256 in flight",
    "asyncio-256-tasks": "asyncio, 256 tasks that each send",
    "java-many_in_flight": "Java's, many in flight",
    "thin-256": "the thin client, 256 in flight",
    "blocking-batch-32": "blocking, batches of 32",
    "asyncio-batch-32": "asyncio, batches of 32",
    "java-batch": "Java's, batches of 32",
    "auto-batching": "asyncio, automatic batching",
    "consume-backlog-32": "push consumer, backlog, 32 a pull",
    "consume-backlog": "push consumer, backlog, 1,024 a pull",
    "consume-backlog-blocking": "blocking push consumer, backlog, 1,024 a pull",
    "decode": "a bare loop that decodes records",
}


def clients(found: ProgramResult) -> str:
    rates: dict[str, dict[str, float]] = found.results["rates"]
    names = [name for name in CLIENTS if name in rates] + [name for name in rates if name not in CLIENTS]
    rows = [
        (CLIENTS.get(name, name), number(rates[name]["best_per_s"]), number(rates[name]["median_per_s"]))
        for name in names
    ]
    return table(("Client", "messages/s, best round", "median"), rows, " rr")


# --- `benchmarks.python_clients` ---

PYTHON_CLIENTS = ("skylark", "confluent-kafka", "aiokafka", "nats-py")
PYTHON_ROWS = (
    ("send, one after the other", "send-1", "send-1"),
    ("send, many in flight, a callback for each message", "send-posts", "send-many"),
    ("the same, to a topic of type BatchCQ", "send-posts-batch", "send-many"),
    ("the same, a future for each message", "send-many", "send-many"),
    ("send Arrow tables, each row acknowledged", "send-arrow", "send-many"),
    ("the same, to a topic of type BatchCQ", "send-arrow-batch", "send-many"),
    ("consume, 1,000 at once", "consume", "consume"),
    ("the same, by a function in threads", "consume-threads", "consume"),
    ("the same, by the pull consumer", "consume-pull", "consume"),
    ("consume, 1,000 at once, body and keys read", "consume-read", "consume-read"),
    ("consume, 32 at once", "consume-32", "consume-32"),
    ("consume Arrow tables of seven columns", "consume-arrow", "consume"),
    ("consume, 1,000 at once, librdkafka tuned", "consume", "consume-tuned"),
    ("Arrow tables, beside the same", "consume-arrow", "consume-tuned"),
)
"""What it is, our cell, and the cell of other clients that it is compared with."""


def python_clients(found: ProgramResult) -> str:
    """Rates and processor time; the last column is bold where ours is not the fastest."""
    cells = found.results["cells"]
    rows: list[Row] = []
    shown: set[str] = set()
    for title, our_cell, other_cell in PYTHON_ROWS:
        ours = cells.get(our_cell, {}).get("skylark")
        others = [cells.get(other_cell, {}).get(client) for client in PYTHON_CLIENTS[1:]]
        rates = [each["median_per_s"] for each in others if each is not None]
        if ours is None or (our_cell in shown and not rates):  # or the row would only repeat ours
            continue
        times = f"{ours['median_per_s'] / max(rates):.2f}" if rates else ""
        is_lost = bool(rates) and ours["median_per_s"] < max(rates)
        if other_cell in shown:  # others' figures stand in the row of their cell
            others = [None] * len(others)
        shown |= {our_cell, other_cell}
        rows.append((title, *map(_client_figure, (ours, *others)), f"**{times}**" if is_lost else times))
    columns = ("Messages/s, µs of a core: client + server", *PYTHON_CLIENTS, "times the best other")
    return table(columns, rows, " rrrrr")


def _client_figure(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return ""
    used = " + ".join(number(figure[part]) for part in ("client_us", "server_us"))
    return f"{figure['median_per_s']:,.0f}, {used}"


def python_ratios(found: ProgramResult) -> str:
    """Bold where the aim is not reached."""
    rows = [
        (
            name,
            f"at least {ratio['expected']:g}",
            "{0}{1[median]:.2f}{0} ({1[lowest]:.2f} to {1[highest]:.2f})".format(
                "" if ratio["met"] else "**", ratio
            ),
        )
        for name, ratio in found.results["ratios"].items()
    ]
    return table(("Rates of one run", "aim", "median of the rounds"), rows, " rr")


# --- `benchmarks.cores` ---


def cores(found: ProgramResult) -> str:
    """Bold where two brokers of ours are slower than Apache's."""
    rows: list[Row] = []
    for name, cell in found.results["cells"].items():
        pair = [cell.get(system) for system in ("ours", "apache")]
        figures = [
            text
            for each in pair
            for text in (("", "") if each is None else (_per_s(each), number(each["broker_cpu_us"])))
        ]
        times = _times(cell["ratio"], OTHER_AIM) if "ratio" in cell else ""
        rows.append((cell_title(name), *figures, times))
    columns = (
        "Cell",
        "two of ours, messages/s",
        "µs of a core",
        "Apache's, messages/s",
        "µs of a core",
        "times",
    )
    return table(columns, rows, " rrrrr")


def _per_s(figures: Mapping[str, float]) -> str:
    return number(figures["messages_per_s"])


# --- `benchmarks.store` ---


def store(found: ProgramResult) -> str:
    cells = found.results
    sizes = {"128B": "128 B", "1024B": "1 KiB", "16384B": "16 KiB"}
    rows: list[Row] = []
    for name, title, own in (
        ("put", "append, one at a time", "store"),
        ("put_batch", "append, batches of 32", "store"),
        ("scan", "scan (recovery)", "scan"),
    ):
        if by_size := cells.get(name):
            words = " / ".join(sizes[size] for size in by_size)
            rows.append((f"{title}, {words}", *(_each(by_size.values(), kind) for kind in (own, "bare"))))
    if got := cells.get("get"):
        rows.append((f"read of {got['messages']} messages", _each([got], "store"), _each([got], "by_hand")))
    if flat := cells.get("flat"):
        logs = f"append with an empty log / {flat['log_gib']} GiB of it"
        counts = ("queues_1", "queues_100", "queues_10000")
        rows.append(("append with 1 / 100 / 10,000 queues", _best(flat, counts), ""))
        rows.append((logs, _best(flat, ("log_empty", "log_full")), ""))
    return table(("µs, the best round", "store", "bare"), rows, " rr")


def _each(cells: Any, kind: str) -> str:
    return " / ".join(f"{cell[kind]['best_us']:.3g}" for cell in cells)


def _best(cell: Mapping[str, Any], names: Sequence[str]) -> str:
    return " / ".join(f"{cell[name]['best_us']:.3g}" for name in names)


# --- `benchmarks.spark` ---

SPARK_ROWS = (
    ("the decoder alone, one core", "nothing", "decoder, one core", "{}", "files"),
    ("one batch again and again", "nothing (`noop`)", "floor", "{}", "noop"),
    ("store files", "nothing (`noop`)", "files, batch", "{}", "noop"),
    ("store files", "Spark's Parquet, zstd", "files, batch", "{}", "parquet_zstd"),
    ("store files, AvailableNow", "nothing", "files, AvailableNow", "{} -> noop", ""),
    ("store files, AvailableNow", "Spark's Parquet, zstd", "files, AvailableNow", "{} -> parquet", ""),
    ("store files, AvailableNow", "`archive` to Delta, zstd", "files, archive", "{}", ""),
    ("store files, in turn with the next two", "nothing", "files beside the broker, batch", "{}", "noop"),
    ("our broker, bulk pulls", "nothing", "broker, bulk, batch", "{}", "noop"),
    ("our broker, pulls of 32", "nothing", "broker, 32 messages, batch", "{}", "noop"),
    ("our broker, bulk pulls", "Spark's Parquet, zstd", "broker, bulk, batch", "{}", "parquet_zstd"),
    ("our broker, AvailableNow", "nothing", "broker, AvailableNow", "{} -> noop", ""),
    ("our broker, AvailableNow", "Spark's Parquet, zstd", "broker, AvailableNow", "{} -> parquet", ""),
    ("our broker, AvailableNow", "`archive` to Delta, zstd", "broker, archive", "{}", ""),
)
"""From, into, and where the figure stands: the cell, the key for a number of columns, the member."""
SEVEN, ALL = "7", "18"


def spark(found: ProgramResult) -> str:
    results = found.results[SPARK_BODY]
    rows: list[Row] = []
    for origin, into, cell, key, member in SPARK_ROWS:
        of_columns = [_krows(results, cell, key.format(columns), member) for columns in (SEVEN, ALL)]
        if any(of_columns):
            rows.append((origin, into, *of_columns))
    if sink := results.get("sink"):
        rows.append(
            (
                "a DataFrame of bodies alone",
                "a topic, each row acknowledged",
                number(sink["median_krows"]),
                "",
            )
        )
    return table(("From", "Into", "seven columns", "all columns"), rows, "  rr") if rows else ""


def _krows(results: Mapping[str, Any], cell: str, key: str, member: str) -> str:
    found = results.get(cell, {}).get(key)
    if found is not None and member:
        found = found.get(member)
    return "" if found is None else number(found["median_krows"])


def spark_ratios(found: ProgramResult) -> str:
    """By what is divided; bold where the aim is not reached."""
    by_name: dict[str, dict[str, str]] = {}
    aims: dict[str, str] = {}
    for key, ratio in found.results[SPARK_BODY]["ratios"].items():
        columns, colon, name = key.partition(": ")
        columns, name = (columns, name) if colon and columns in (SEVEN, ALL) else (SEVEN, key)
        text = number(ratio["value"])
        if "lowest" in ratio:
            text += f" ({number(ratio['lowest'])} to {number(ratio['highest'])})"
        by_name.setdefault(name, {})[columns] = text if ratio.get("met", True) else f"**{text}**"
        aims[name] = _aim(ratio.get("expected", ""))
    rows = [
        (name, aims[name], *(values.get(columns, "") for columns in (SEVEN, ALL)))
        for name, values in by_name.items()
    ]
    return table(("Of one run", "aim", "seven columns", "all columns"), rows, " rrr") if rows else ""


def spark_growth(found: ProgramResult) -> str:
    """Rate and cost of a row by number of tasks at once."""
    growth = found.results[SPARK_BODY].get("growth")
    if growth is None:
        return ""
    rows: list[Row] = []
    for tasks, cell in growth.items():
        jvm, workers = (cell["cpu_us_per_row"][part] for part in ("jvm", "workers"))
        each = (cell["median_krows"], jvm, workers, jvm + workers)
        rows.append((tasks, *map(number, each)))
    columns = ("tasks and workers", "thousand rows/s", "JVM, µs a row", "workers, µs a row", "together")
    return table(columns, rows, "rrrrr")


def _aim(expected: str) -> str:
    return expected.replace(">=", "at least").replace("<=", "at most")


# --- `benchmarks.spark --peer kafka` ---

SIDES = ("kafka", "files", "broker")
BODY = re.compile(r"\d+ B")


def spark_kafka(found: ProgramResult) -> str:
    """Rates, then how many times Kafka's ours are; bold where the aim is not reached."""
    rows: list[Row] = []
    for body, cells in found.results.items():
        if not BODY.fullmatch(body):
            continue
        for cell in ("batch, noop", "batch, Parquet", "AvailableNow, noop", "write"):
            if sides := cells.get(cell):
                rates = [number(sides[side]["median_krows"]) if side in sides else "" for side in SIDES]
                times = [_times_kafka(sides["times_kafka"].get(side)) for side in SIDES[1:]]
                rows.append((f"{cell}, {body}", *rates, *times))
        if live := cells.get("continuous"):
            delays = [
                f"{number(live[side]['p50_ms'])} / {number(live[side]['p99_ms'])} ms" if side in live else ""
                for side in SIDES
            ]
            rows.append((f"continuous, {body}, delay p50 / p99", *delays, "", ""))
    columns = ("Thousand rows/s", "Kafka", "our files", "our broker", "files / Kafka", "broker / Kafka")
    return table(columns, rows, " rrrrr")


def _times_kafka(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return ""
    text = f"{number(ratio['value'])} ({number(ratio['lowest'])} to {number(ratio['highest'])})"
    return text if ratio.get("met", True) else f"**{text}**"


# --- `benchmarks.lake` ---

LAKE_BODY = "200 bytes"
LAKE_ROWS = (
    ("store files", "files", "a Delta table in a directory", "directory"),
    ("store files", "files", "a Delta table in an S3 server", "s3"),
    ("our broker", "broker", "a Delta table in a directory", "directory"),
    ("our broker", "broker", "a Delta table in an S3 server", "s3"),
)


def lake(found: ProgramResult) -> str:
    """The job beside Kafka; bold where the aim is not reached."""
    results = found.results.get(LAKE_BODY, {})
    if "times_kafka" not in results:
        return ""
    job, aims = results["job"], results["expected"]
    kafka = number(job["kafka to directory"]["median_krows"])
    rows: list[Row] = [("Kafka, by Spark's connector", "Spark's Parquet in a directory", kafka, "", "")]
    for title, origin, into, place in LAKE_ROWS:
        is_local = place == "directory"
        value = (results["times_kafka"] if is_local else results["s3_of_directory"])[origin]
        aim = aims["times_kafka"][origin] if is_local else aims["s3_of_directory"]
        text = number(value) if value >= aim else f"**{number(value)}**"
        of = "times Kafka" if is_local else "of the directory"
        rate = number(job[f"{origin} to {place}"]["median_krows"])
        rows.append((title, into, rate, f"{text} {of}", f"at least {aim}"))
    return table(("From", "Into", "thousand rows/s", "ratio", "aim"), rows, "  rrr")


def lake_memory(found: ProgramResult) -> str:
    rows: list[Row] = [
        (name, number(each["messages"]), number(each["krows"]), number(each["megabytes_at_most"]))
        for name, each in found.results.items()
        if name.startswith("backlog")
    ]
    columns = ("Backlog in the broker", "messages", "thousand messages/s", "MB at most")
    return table(columns, rows, " rrr") if rows else ""


def lake_topics(found: ProgramResult) -> str:
    """How long a turn takes, as a table and a chart."""
    measured = {
        int(name.split()[0]): each for name, each in found.results.items() if name.endswith(" topics")
    }
    if not measured:
        return ""
    rows: list[Row] = [
        (number(count), f"{each['turn_s']:.2f}", f"{each['idle_turn_s']:.2f}", number(each["megabytes"]))
        for count, each in sorted(measured.items())
    ]
    columns = ("Topics", "turn with a message in each, s", "idle turn, s", "MB of memory after it")
    drawing = "![Time of a turn of the lake by topics](charts/lake-topics.svg)"
    return "\n".join([table(columns, rows, "rrrr").rstrip(), "", drawing, ""])


# --- By name ---

TABLES: dict[str, dict[str, Callable[[ProgramResult], str]]] = {
    "broker": {"apache": apache, "bare-loop": bare_loop},
    "security": {"security": security},
    "client": {"clients": clients},
    "cores": {"cores": cores},
    "python_clients": {"python-clients": python_clients, "python-ratios": python_ratios},
    "store": {"store": store},
    "spark": {"spark": spark, "spark-ratios": spark_ratios, "spark-growth": spark_growth},
    "spark-kafka": {"spark-kafka": spark_kafka},
    "lake": {"lake": lake, "lake-memory": lake_memory, "lake-topics": lake_topics},
}
"""By what the program calls itself."""


def program_tables(parts: Sequence[ProgramResult]) -> dict[str, str]:
    """Tables of one program; of brokers on the whole machine they have names of their own."""
    made: dict[str, str] = {}
    for is_whole in (False, True):
        some = [part for part in parts if _is_whole(part) is is_whole]
        if some:
            found = joined(some)
            for name, make in TABLES[found.benchmark].items():
                if text := make(found):  # some programs measure one table at a time
                    title = f"{name}-whole" if is_whole and name == "apache" else name
                    made[title] = when(found.made_at, found.machine.load_1m) + text
    return made
