"""`skylark plan`: how many brokers, machines and Spark cores a load needs, and what binds first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark.cli.bench_output import check_files, extra_needed, interruptible
from skylark.cli.errors import UsageError
from skylark.cli.options import AsJson, grouped, parsed
from skylark.cli.output import Screen, Share, format_bytes, print_json
from skylark.quantities import parse_duration_ms, parse_number

if TYPE_CHECKING:
    from skylark.bench.plan import CapacityPlan, Costs, Demand

HOUR_MS = 3_600_000
CELL_S = 4.0
"""Each measurement of --measure."""
# What a person types for a member of the model, where it is not the member's own name.
OPTIONS = {
    "messages_per_s": "--rate",
    "body_bytes": "--size",
    "retention_h": "--retention",
    "peak_factor": "--peak",
    "transactional": "--transactions",
    "disk_mib_per_s": "--disk-mib-s",
    "network_gbit_per_s": "--network-gbit",
}
_load = partial(typer.Option, rich_help_panel="The load")
_machine = partial(typer.Option, rich_help_panel="One machine")
_costs = partial(typer.Option, rich_help_panel="Costs")


@dataclass(frozen=True, kw_only=True)
class DemandOptions:
    """A `Demand`, or several, as a person says it; members have the same names."""

    messages_per_s: Annotated[
        str, _load("--rate", help="Messages a second, a day's average: 5k; several: 1k,1M.")
    ] = "1k"
    body_bytes: Annotated[str, _load("--size", help="Of a body: 300, 1KiB.")] = "1KiB"
    fan_out: Annotated[float, _load(help="Groups that each get every message.")] = 1.0
    retention_h: Annotated[str, _load("--retention", help="How long messages are kept: 72h, 7d.")] = "72h"
    replicas: Annotated[int, _load(help="Copies of a message, the master's included.")] = 2
    peak_factor: Annotated[float, _load("--peak", help="The peak, times the average.")] = 3.0
    topics: Annotated[str, _load(help="How many; several: 10,100k.")] = "10"
    queues: Annotated[int, _load(help="Of a topic on each of its brokers.")] = 8
    topic_brokers: Annotated[int, _load(help="Brokers that a topic is on, at least.")] = 2
    batch: Annotated[int, _load(help="Messages in one send.")] = 1
    pull_batch: Annotated[int, _load(help="Messages that a pull brings on average.")] = 8
    flush: Annotated[str, _load(help="When a send is answered: async or sync.")] = "async"
    in_flight: Annotated[int, _load(help="Sends that wait for one broker's answer.")] = 64
    clients: Annotated[str, _load(help="Producers and consumers, each connected to every broker.")] = "100"
    delayed: Annotated[float, _load(help="Share of the messages, 0 to 1.")] = 0.0
    transactional: Annotated[float, _load("--transactions", help="Share of the messages, 0 to 1.")] = 0.0
    spark_jobs: Annotated[int, _load(help="Pipelines that each read everything.")] = 1

    def demands(self) -> Iterator[Demand]:
        """One for each number of topics and each rate. Raises Mistake, BadPlan."""
        from skylark.bench.plan import Demand  # noqa: PLC0415 - nobody else's

        given = asdict(self) | {
            "body_bytes": round(parsed(parse_number, self.body_bytes, "--size")),
            "clients": round(parsed(parse_number, self.clients, "--clients")),
            "retention_h": parsed(parse_duration_ms, self.retention_h, "--retention") / HOUR_MS,
        }
        loads = product(_numbers(self.topics, "--topics"), _numbers(self.messages_per_s, "--rate"))
        for topics, per_s in loads:
            yield Demand(**given | {"topics": round(topics), "messages_per_s": per_s})


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """A `Hardware`, as a person says it; members have the same names."""

    cores: Annotated[int, _machine(help="Processor cores.")] = 8
    memory_gib: Annotated[float, _machine(help="Memory.")] = 32.0
    disk_gib: Annotated[float, _machine(help="Disk space.")] = 4000.0
    disk_mib_per_s: Annotated[float, _machine("--disk-mib-s", help="What the disk writes, lastingly.")] = (
        400.0
    )
    network_gbit_per_s: Annotated[float, _machine("--network-gbit", help="In each direction.")] = 10.0
    sync_ms: Annotated[float | None, _machine(help="A flush of the disk; without: as in the costs.")] = None
    core_speed: Annotated[float, _machine(help="Times that of the costs' machine.")] = 1.0
    core_share: Annotated[float, _machine(help="How much of a core the peak may use.")] = 0.7


@grouped
def plan(
    *,
    load: DemandOptions,
    machine: MachineOptions,
    costs: Annotated[Path | None, _costs(metavar="FILE", help="Costs from there.")] = None,
    measure: Annotated[
        Path | None, _costs(metavar="FILE", help="Measure the costs here, write them there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan for a load: brokers, machines, disk, memory, network, Spark cores, and what binds first.

    It computes from what a message costs, as it was measured with this version, or in your file (--costs).
    --measure takes two minutes of a machine that does nothing else. What is taken for granted is printed.

    Examples: skylark plan --rate 20k --size 1KiB --fan-out 2 --retention 72h
    skylark plan --rate 1k,10k,100k,1M --topics 10,100k --flush sync --sync-ms 0.5
    skylark plan --rate 5k --replicas 1 --cores 2 --network-gbit 1 --json
    skylark plan --measure here.json && skylark plan --costs here.json --rate 5k
    """
    from skylark.bench.plan import (  # noqa: PLC0415 - nobody else's
        BadPlan,
        Hardware,
        load_costs,
        make_plan,
    )

    known = load_costs(costs) if measure is None else _measured(measure)
    try:
        hardware = Hardware(**asdict(machine))
        plans = [make_plan(demand, hardware, known) for demand in load.demands()]
    except BadPlan as error:
        option = OPTIONS.get(error.name, "--" + error.name.replace("_", "-"))
        raise UsageError(f"{option} {error.value}: {error.reason}") from None
    _show(plans, known, as_json=as_json)


def _measured(path: Path) -> Costs:
    """The costs of this machine, also written to a file. Raises Mistake."""
    import tempfile  # noqa: PLC0415

    from skylark.bench.plan import load_costs, save_costs  # noqa: PLC0415

    with extra_needed():
        from benchmarks.plan_costs import measure_costs  # noqa: PLC0415

    check_files(path)
    screen = Screen()

    def say(name: str, used_us: float) -> None:
        screen.err.print(f"{name}: {used_us:.2f} µs a message", style="dim")

    with interruptible(), tempfile.TemporaryDirectory(prefix="skylark-plan-") as directory:
        costs = measure_costs(Path(directory), CELL_S, load_costs(), say)
    save_costs(costs, path)
    return costs


def _numbers(text: str, option: str) -> list[float]:
    return [parsed(parse_number, part, option) for part in text.split(",")]


# --- For people and programs ---


def _show(plans: Sequence[CapacityPlan], costs: Costs, *, as_json: bool) -> None:
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


def _show_one(screen: Screen, plan: CapacityPlan) -> None:
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


def _row(plan: CapacityPlan) -> tuple[object, ...]:
    return (
        f"{plan.demand.messages_per_s:,.10g}",
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


def _as_json(plan: CapacityPlan) -> dict[str, Any]:
    return {**asdict(plan), "binding": plan.binding.limit.name}
