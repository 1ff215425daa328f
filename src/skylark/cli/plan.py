"""`skylark plan`: how many brokers, machines and Spark cores a load needs, and which limit binds first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark.cli.errors import UsageError
from skylark.cli.options import AsJson, grouped, parsed
from skylark.cli.output import Screen, Share, format_bytes, print_json
from skylark.quantities import parse_duration_ms, parse_number

if TYPE_CHECKING:
    from skylark.bench.plan import CapacityPlan, Costs, Demand

HOUR_MS = 3_600_000
# Options whose names differ from those of the model's members.
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
    """Options of one or several `Demand`s; members have the same names."""

    messages_per_s: Annotated[
        str, _load("--rate", help="Messages a second, daily average: 5k; several: 1k,1M.")
    ] = "1k"
    body_bytes: Annotated[str, _load("--size", help="Size of a message body: 300, 1KiB.")] = "1KiB"
    fan_out: Annotated[float, _load(help="Consumer groups that each receive every message.")] = 1.0
    retention_h: Annotated[str, _load("--retention", help="Retention of messages: 72h, 7d.")] = "72h"
    replicas: Annotated[int, _load(help="Copies of a message, including the master's.")] = 2
    peak_factor: Annotated[float, _load("--peak", help="Peak rate as a multiple of the average.")] = 3.0
    topics: Annotated[str, _load(help="Number of topics; several: 10,100k.")] = "10"
    queues: Annotated[int, _load(help="Queues of a topic on each of its brokers.")] = 8
    topic_brokers: Annotated[int, _load(help="Minimum number of brokers per topic.")] = 2
    batch: Annotated[int, _load(help="Messages per send.")] = 1
    pull_batch: Annotated[int, _load(help="Average messages per pull.")] = 8
    flush: Annotated[str, _load(help="Flush mode: async or sync.")] = "async"
    in_flight: Annotated[int, _load(help="Sends in flight per broker.")] = 64
    clients: Annotated[str, _load(help="Producers and consumers, each connected to every broker.")] = "100"
    delayed: Annotated[float, _load(help="Share of messages, 0 to 1.")] = 0.0
    transactional: Annotated[float, _load("--transactions", help="Share of messages, 0 to 1.")] = 0.0
    spark_jobs: Annotated[int, _load(help="Pipelines that each read every message.")] = 1

    def demands(self) -> Iterator[Demand]:
        """One per number of topics and rate. Raises UsageError, BadPlan."""
        from skylark.bench.plan import Demand  # noqa: PLC0415 - keeps `skylark --help` fast

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
    """Options of a `Hardware`; members have the same names."""

    cores: Annotated[int, _machine(help="Processor cores.")] = 8
    memory_gib: Annotated[float, _machine(help="Memory.")] = 32.0
    disk_gib: Annotated[float, _machine(help="Disk space.")] = 4000.0
    disk_mib_per_s: Annotated[float, _machine("--disk-mib-s", help="Sustained write rate of the disk.")] = (
        400.0
    )
    network_gbit_per_s: Annotated[
        float, _machine("--network-gbit", help="Network bandwidth per direction.")
    ] = 10.0
    sync_ms: Annotated[float | None, _machine(help="Duration of a disk flush; default: as in the costs.")] = (
        None
    )
    core_speed: Annotated[float, _machine(help="Core speed relative to the machine of the costs.")] = 1.0
    core_share: Annotated[float, _machine(help="Usable share of a core at the peak.")] = 0.7


@grouped
def plan(
    *,
    load: DemandOptions,
    machine: MachineOptions,
    costs: Annotated[
        Path | None, _costs(metavar="FILE", help="File of measured costs; default: the recorded ones.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan for a load: brokers, machines, disk, memory, network, Spark cores, and what binds first.

    The plan is computed from the recorded cost of a message, or from your own measurements (--costs).
    It prints its assumptions.

    Examples: skylark plan --rate 20k --size 1KiB --fan-out 2 --retention 72h
    skylark plan --rate 1k,10k,100k,1M --topics 10,100k --flush sync --sync-ms 0.5
    skylark plan --rate 5k --replicas 1 --cores 2 --network-gbit 1 --json
    skylark plan --costs costs.json --rate 5k
    """
    from skylark.bench.plan import (  # noqa: PLC0415 - keeps `skylark --help` fast
        BadPlan,
        Hardware,
        load_costs,
        make_plan,
    )

    known = load_costs(costs)
    try:
        hardware = Hardware(**asdict(machine))
        plans = [make_plan(demand, hardware, known) for demand in load.demands()]
    except BadPlan as error:
        option = OPTIONS.get(error.name, "--" + error.name.replace("_", "-"))
        raise UsageError(f"{option} {error.value}: {error.reason}") from None
    _show(plans, known, as_json=as_json)


def _numbers(text: str, option: str) -> list[float]:
    return [parsed(parse_number, part, option) for part in text.split(",")]


# --- Output ---


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
    screen.section("Assumptions", said)


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
