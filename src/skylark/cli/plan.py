"""`skylark plan`: how many brokers, machines and Spark cores a load needs, and what binds first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark.cli.bench_output import check_files, extra_needed
from skylark.cli.mistake import Mistake
from skylark.cli.options import AsJson
from skylark.cli.output import Screen, Share, format_bytes, print_json
from skylark.cli.times import parse_duration_ms

if TYPE_CHECKING:
    from skylark.bench.plan import Plan
    from skylark.bench.plan_costs import Costs

HOUR_MS = 3_600_000
CELL_S = 4.0
"""Each measurement of --measure."""
NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*(k|M|G|KiB|MiB|GiB)?", re.IGNORECASE)
FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
# What a person typed, by the name that the model has for it; the others have the same names.
OPTIONS = {
    "messages_per_s": "--rate",
    "body_bytes": "--size",
    "retention_h": "--retention",
    "peak_factor": "--peak",
    "transactional": "--transactions",
    "disk_mib_per_s": "--disk-mib-s",
    "network_gbit_per_s": "--network-gbit",
}
LOAD, MACHINE, COSTS = "The load", "One machine", "Costs"

Rate = Annotated[
    str,
    typer.Option(
        "--rate", help="Messages a second, a day's average: 5k; several: 1k,1M.", rich_help_panel=LOAD
    ),
]
Size = Annotated[str, typer.Option("--size", help="Of a body: 300, 1KiB.", rich_help_panel=LOAD)]
FanOut = Annotated[
    float, typer.Option("--fan-out", help="Groups that each get every message.", rich_help_panel=LOAD)
]
Retention = Annotated[
    str, typer.Option("--retention", help="How long messages are kept: 72h, 7d.", rich_help_panel=LOAD)
]
Replicas = Annotated[
    int, typer.Option("--replicas", help="Copies of a message, the master's included.", rich_help_panel=LOAD)
]
Peak = Annotated[float, typer.Option("--peak", help="The peak, times the average.", rich_help_panel=LOAD)]
Topics = Annotated[str, typer.Option("--topics", help="How many; several: 10,100k.", rich_help_panel=LOAD)]
Queues = Annotated[
    int, typer.Option("--queues", help="Of a topic on each of its brokers.", rich_help_panel=LOAD)
]
TopicBrokers = Annotated[
    int, typer.Option("--topic-brokers", help="Brokers that a topic is on, at least.", rich_help_panel=LOAD)
]
Batch = Annotated[int, typer.Option("--batch", help="Messages in one send.", rich_help_panel=LOAD)]
PullBatch = Annotated[
    int, typer.Option("--pull-batch", help="Messages that a pull brings on average.", rich_help_panel=LOAD)
]
Flush = Annotated[
    str, typer.Option("--flush", help="When a send is answered: async or sync.", rich_help_panel=LOAD)
]
InFlight = Annotated[
    int, typer.Option("--in-flight", help="Sends that wait for one broker's answer.", rich_help_panel=LOAD)
]
Clients = Annotated[
    str,
    typer.Option(
        "--clients", help="Producers and consumers, each connected to every broker.", rich_help_panel=LOAD
    ),
]
Delayed = Annotated[
    float, typer.Option("--delayed", help="Share of the messages, 0 to 1.", rich_help_panel=LOAD)
]
Transactions = Annotated[
    float, typer.Option("--transactions", help="Share of the messages, 0 to 1.", rich_help_panel=LOAD)
]
SparkJobs = Annotated[
    int, typer.Option("--spark-jobs", help="Pipelines that each read everything.", rich_help_panel=LOAD)
]
Cores = Annotated[int, typer.Option("--cores", help="Processor cores.", rich_help_panel=MACHINE)]
MemoryGib = Annotated[float, typer.Option("--memory-gib", help="Memory.", rich_help_panel=MACHINE)]
DiskGib = Annotated[float, typer.Option("--disk-gib", help="Disk space.", rich_help_panel=MACHINE)]
DiskMibS = Annotated[
    float, typer.Option("--disk-mib-s", help="What the disk writes, lastingly.", rich_help_panel=MACHINE)
]
NetworkGbit = Annotated[
    float, typer.Option("--network-gbit", help="In each direction.", rich_help_panel=MACHINE)
]
SyncMs = Annotated[
    float | None,
    typer.Option("--sync-ms", help="A flush of the disk; without: as in the costs.", rich_help_panel=MACHINE),
]
CoreSpeed = Annotated[
    float, typer.Option("--core-speed", help="Times that of the costs' machine.", rich_help_panel=MACHINE)
]
CoreShare = Annotated[
    float, typer.Option("--core-share", help="How much of a core the peak may use.", rich_help_panel=MACHINE)
]
CostsFile = Annotated[
    Path | None, typer.Option("--costs", metavar="FILE", help="Costs from there.", rich_help_panel=COSTS)
]
Measure = Annotated[
    Path | None,
    typer.Option(
        "--measure", metavar="FILE", help="Measure the costs here, write them there.", rich_help_panel=COSTS
    ),
]


def plan(
    rate: Rate = "1k",
    size: Size = "1KiB",
    fan_out: FanOut = 1.0,
    retention: Retention = "72h",
    replicas: Replicas = 2,
    peak: Peak = 3.0,
    topics: Topics = "10",
    queues: Queues = 8,
    topic_brokers: TopicBrokers = 2,
    batch: Batch = 1,
    pull_batch: PullBatch = 8,
    flush: Flush = "async",
    in_flight: InFlight = 64,
    clients: Clients = "100",
    delayed: Delayed = 0.0,
    transactions: Transactions = 0.0,
    spark_jobs: SparkJobs = 1,
    cores: Cores = 8,
    memory_gib: MemoryGib = 32.0,
    disk_gib: DiskGib = 4000.0,
    disk_mib_s: DiskMibS = 400.0,
    network_gbit: NetworkGbit = 10.0,
    sync_ms: SyncMs = None,
    core_speed: CoreSpeed = 1.0,
    core_share: CoreShare = 0.7,
    costs: CostsFile = None,
    measure: Measure = None,
    as_json: AsJson = False,
) -> None:
    """Plan for a load: brokers, machines, disk, network, memory, Spark cores, and what binds first.

    It computes from what a message costs, as it was measured with this version, or in your file (--costs).
    --measure takes a minute and wants a machine that does nothing else. What is taken for granted is printed.

    Examples: skylark plan --rate 20k --size 1KiB --fan-out 2 --retention 72h
    skylark plan --rate 1k,10k,100k,1M --topics 10,100k --flush sync --sync-ms 0.5
    skylark plan --rate 5k --replicas 1 --cores 2 --network-gbit 1 --json
    skylark plan --measure here.json && skylark plan --costs here.json --rate 5k
    """
    from skylark.bench.plan import BadPlan, Demand, Hardware, make_plan  # noqa: PLC0415 - nobody else's
    from skylark.bench.plan_costs import load_costs  # noqa: PLC0415

    known = load_costs(costs) if measure is None else _measured(measure)
    loads = product(parse_numbers(topics, "--topics"), parse_numbers(rate, "--rate"))
    try:
        hardware = Hardware(
            cores=cores, memory_gib=memory_gib, disk_gib=disk_gib, disk_mib_per_s=disk_mib_s,
            network_gbit_per_s=network_gbit, sync_ms=sync_ms, core_speed=core_speed, core_share=core_share,
        )  # fmt: skip
        demands = [
            Demand(
                messages_per_s=per_s, body_bytes=round(parse_number(size, "--size")), fan_out=fan_out,
                retention_h=parse_duration_ms(retention, "--retention") / HOUR_MS, replicas=replicas,
                peak_factor=peak, topics=round(count), queues=queues, topic_brokers=topic_brokers,
                batch=batch, pull_batch=pull_batch, flush=flush, in_flight=in_flight,
                clients=round(parse_number(clients, "--clients")), delayed=delayed,
                transactional=transactions, spark_jobs=spark_jobs,
            )
            for count, per_s in loads
        ]  # fmt: skip
        plans = [make_plan(demand, hardware, known) for demand in demands]
    except BadPlan as error:
        option = OPTIONS.get(error.name, "--" + error.name.replace("_", "-"))
        raise Mistake(f"{option} {error.value}: {error.reason}") from None
    _show(plans, known, as_json=as_json)


def _measured(path: Path) -> Costs:
    """The costs of this machine, also written to a file. Raises Mistake."""
    import tempfile  # noqa: PLC0415

    from skylark.bench.plan_costs import load_costs, save_costs  # noqa: PLC0415

    with extra_needed():
        from skylark.bench.plan_measure import measure_costs  # noqa: PLC0415

    check_files(path)
    screen = Screen()

    def say(name: str, used_us: float) -> None:
        screen.err.print(f"{name}: {used_us:.2f} µs a message", style="dim")

    with tempfile.TemporaryDirectory(prefix="skylark-plan-") as directory:
        costs = measure_costs(Path(directory), CELL_S, load_costs(), say)
    save_costs(costs, path)
    return costs


def parse_number(text: str, option: str) -> float:
    """`300`, `1.5k`, `2M`, `1KiB`. Raises Mistake."""
    found = NUMBER.fullmatch(text.strip())
    if found is None:
        raise Mistake(f"{option} {text!r} is no number such as 300, 1.5k, 2M or 1KiB")
    return float(found[1]) * FACTORS[(found[2] or "").lower()]


def parse_numbers(text: str, option: str) -> list[float]:
    """Several, with commas between them. Raises Mistake."""
    return [parse_number(part, option) for part in text.split(",")]


# --- For people and programs ---


def _show(plans: Sequence[Plan], costs: Costs, *, as_json: bool) -> None:
    from skylark.bench.plan import assumptions  # noqa: PLC0415

    said = assumptions(plans[0].demand, plans[0].hardware, costs)
    if as_json:
        print_json([{**_as_json(each), "assumptions": said} for each in plans])
        return
    screen = Screen()
    if len(plans) == 1:
        _show_one(screen, plans[0])
    else:
        columns = ["messages/s", "topics", "brokers", "slaves", "machines", "disk", "memory", "in", "out"]
        screen.table([*columns, "Spark cores", "binds first"], [_row(each) for each in plans])
    screen.section("Taken for granted", said)


def _show_one(screen: Screen, plan: Plan) -> None:
    screen.facts(
        [
            ("brokers", plan.brokers),
            ("slaves", plan.slaves),
            ("machines", plan.machines),
            ("cores for brokers and slaves", plan.cores),
            ("cores for Spark", plan.spark_cores),
            (
                "cores for clients in Python",
                f"{plan.producer_cores:.1f} sending, {plan.consumer_cores:.1f} consuming",
            ),
            ("disk space", format_bytes(round(plan.disk_bytes))),
            ("disk writes at the peak", f"{format_bytes(round(plan.disk_write_bytes_per_s))}/s"),
            ("memory, cached messages included", format_bytes(round(plan.memory_bytes))),
            ("network in at the peak", f"{format_bytes(round(plan.network_in_bytes_per_s))}/s"),
            ("network out at the peak", f"{format_bytes(round(plan.network_out_bytes_per_s))}/s"),
            ("a message costs its broker", f"{plan.message_core_us:.1f} µs of a core"),
            ("one broker carries at most", f"{plan.broker_messages_per_s_max:,.0f} messages/s"),
            ("binds first", plan.binding.limit.name),
        ]
    )
    screen.line()
    screen.table(
        ["limit", "per", "used at the peak", "of it allowed", "asks for"],
        [
            (
                used.limit.name,
                used.limit.per,
                Share(used.share),
                Share(used.limit.ceiling),
                used.limit.count,
            )
            for used in plan.limits
        ],
    )


def _row(plan: Plan) -> tuple[object, ...]:
    return (
        f"{plan.demand.messages_per_s:,.0f}",
        f"{plan.demand.topics:,}",
        plan.brokers,
        plan.slaves,
        plan.machines,
        format_bytes(round(plan.disk_bytes)),
        format_bytes(round(plan.memory_bytes)),
        f"{format_bytes(round(plan.network_in_bytes_per_s))}/s",
        f"{format_bytes(round(plan.network_out_bytes_per_s))}/s",
        plan.spark_cores,
        plan.binding.limit.name,
    )


def _as_json(plan: Plan) -> dict[str, Any]:
    return {**asdict(plan), "binding": plan.binding.limit.name}
