"""The capacity model: more is never less, nothing is nothing, and what binds is what is used most."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.bench.plan import (
    GIB,
    TOPICS_PER_BROKER_MAX,
    BadCosts,
    BadPlan,
    Costs,
    Demand,
    Hardware,
    assumptions,
    load_costs,
    make_plan,
    save_costs,
)

# Fixed: what is shipped changes with every measurement.
COSTS = Costs(
    measured="2026-01-01", machine="a test's", commit="none", wake_us=60, send_us=10, send_kib_us=1,
    batch_us=30, batch_message_us=5, batch_kib_us=1.5, sync_us=4, flush_us=150, pull_us=25,
    pull_message_us=0.5, pull_kib_us=0.3,
    replica_us=1, slave_us=6, slave_kib_us=1, queues_growth=0.25, broker_mib=60, connection_kib=20,
    topic_kib=6, queue_kib=3, sync_ms=0.3, spark_row_us=10, spark_kib_us=10, spark_tasks_growth=0.1,
    client_send_us=15, client_receive_us=5,
)  # fmt: skip
ALONE = Demand(replicas=1, spark_jobs=0, peak_factor=1, retention_h=1)
# What makes a load heavier when it grows. Batches make it lighter, as do more messages in a pull.
HEAVIER = {
    "messages_per_s": st.floats(0.1, 2e6),
    "body_bytes": st.integers(0, 4 << 20),
    "fan_out": st.floats(0, 20),
    "retention_h": st.floats(0, 24 * 60),
    "peak_factor": st.floats(1, 20),
    "topics": st.integers(1, 1_000_000),
    "queues": st.integers(1, 64),
    "clients": st.integers(0, 100_000),
    "delayed": st.floats(0, 0.5),
    "transactional": st.floats(0, 0.5),
    "spark_jobs": st.integers(0, 10),
    "cached_s": st.floats(0, 600),
}
OTHERS = {
    "replicas": st.integers(1, 3),
    "topic_brokers": st.integers(1, 8),
    "batch": st.integers(1, 64),
    "pull_batch": st.integers(1, 32),
    "flush": st.sampled_from(["async", "sync"]),
    "in_flight": st.integers(1, 1024),
}
demands = st.builds(Demand, **HEAVIER, **OTHERS)
machines = st.builds(
    Hardware,
    cores=st.integers(1, 128),
    memory_gib=st.floats(4, 1024),
    disk_gib=st.floats(100, 1e5),
    disk_mib_per_s=st.floats(50, 1e4),
    network_gbit_per_s=st.floats(1, 400),
    sync_ms=st.floats(0.05, 20),
    core_speed=st.floats(0.3, 4),
)


def size(demand: Demand, hardware: Hardware) -> tuple[float, float]:
    """Brokers and machines; endless if no number suffices."""
    try:
        plan = make_plan(demand, hardware, COSTS)
    except BadPlan:
        return math.inf, math.inf
    return plan.brokers, plan.machines


@given(demands, machines, st.sampled_from(sorted(HEAVIER)), st.data())
def test_more_load_never_needs_fewer_brokers_or_machines(
    demand: Demand, hardware: Hardware, name: str, data: st.DataObject
) -> None:
    other = data.draw(HEAVIER[name], label=name)
    less, more = sorted([getattr(demand, name), other])
    before = size(replace(demand, **{name: less}), hardware)
    after = size(replace(demand, **{name: more}), hardware)
    assert before[0] <= after[0]
    assert before[1] <= after[1]


@given(demands, machines)
@example(Demand(messages_per_s=0.001, body_bytes=0, fan_out=0, retention_h=0), Hardware())
def test_a_plan_is_never_empty_and_keeps_all_limits(demand: Demand, hardware: Hardware) -> None:
    try:
        plan = make_plan(demand, hardware, COSTS)
    except BadPlan:
        return
    assert plan.brokers >= 1
    assert plan.machines >= demand.replicas
    assert 1 <= plan.cores <= plan.brokers + plan.slaves == plan.brokers * demand.replicas
    assert plan.disk_bytes > 0
    assert plan.memory_bytes > 0
    assert (plan.spark_cores >= 1) == (demand.spark_jobs >= 1)
    assert all(used.load <= 1 + 1e-6 for used in plan.limits)


def test_more_tasks_of_spark_at_once_cost_more_and_the_plan_says_what_was_measured() -> None:
    demand = replace(ALONE, spark_jobs=1, body_bytes=1024, messages_per_s=100_000)
    plain = msgspec.structs.replace(COSTS, spark_tasks_growth=0)
    share = Hardware().core_share
    assert make_plan(demand, Hardware(), plain).spark_cores == math.ceil(2 / share)
    tenfold = replace(demand, messages_per_s=1_000_000)
    linear = 20 / share
    grown = math.ceil(linear * (1 + 0.1 * math.log10(linear)))
    assert make_plan(tenfold, Hardware(), COSTS).spark_cores == grown > linear
    (said,) = [each for each in assumptions(demand, Hardware(), COSTS) if each.startswith("Spark")]
    assert "measured with up to 8 tasks" in said and "more are computed" in said


@given(demands, machines)
def test_what_binds_is_what_is_used_most(demand: Demand, hardware: Hardware) -> None:
    try:
        plan = make_plan(demand, hardware, COSTS)
    except BadPlan:
        return
    assert plan.binding.load == max(used.load for used in plan.limits)
    for used in plan.limits:
        count = plan.brokers if used.limit.per == "broker" else plan.machines
        assert used.share == pytest.approx(used.limit.needed / used.limit.each / count)
        assert used.load == pytest.approx(used.share / used.limit.ceiling)


@given(demands, machines)
def test_no_plan_is_larger_than_some_limit_asks_for(demand: Demand, hardware: Hardware) -> None:
    try:
        plan = make_plan(demand, hardware, COSTS)
    except BadPlan:
        return
    by_broker = max(used.limit.count for used in plan.limits if used.limit.per == "broker")
    by_machine = max(used.limit.count for used in plan.limits if used.limit.per == "machine")
    assert plan.machines == max(by_machine, demand.replicas)
    assert plan.brokers == max(by_broker, math.ceil(plan.machines / demand.replicas))


@pytest.mark.parametrize(
    ("demand", "hardware", "binding"),
    [
        (Demand(retention_h=24 * 365), Hardware(), "disk space"),
        (replace(ALONE, messages_per_s=1e6, body_bytes=10), Hardware(cores=100), "broker core"),
        (replace(ALONE, messages_per_s=20_000, fan_out=8), Hardware(network_gbit_per_s=0.3), "network out"),
        (replace(ALONE, messages_per_s=20_000, body_bytes=9000), Hardware(disk_mib_per_s=50), "disk writes"),
        (
            replace(ALONE, messages_per_s=100, flush="sync", in_flight=1),
            Hardware(sync_ms=8),
            "flushes",
        ),
        (replace(ALONE, messages_per_s=10, topics=90_000, queues=1), Hardware(), "topics"),
        (replace(ALONE, messages_per_s=20_000, cached_s=3600), Hardware(), "memory"),
        (
            replace(ALONE, messages_per_s=200_000, replicas=3),
            Hardware(cores=1, network_gbit_per_s=100, disk_mib_per_s=5000),
            "cores",
        ),
    ],
)
def test_what_binds_first(demand: Demand, hardware: Hardware, binding: str) -> None:
    assert make_plan(demand, hardware, COSTS).binding.limit.name == binding


def test_a_brokers_core_carries_what_a_message_costs() -> None:
    demand = replace(ALONE, body_bytes=1024, fan_out=0, topics=1, queues=1)
    plan = make_plan(demand, Hardware(), COSTS)
    cost_us = COSTS.wake_us / 64 + COSTS.send_us + COSTS.send_kib_us
    assert plan.message_core_us == pytest.approx(cost_us)
    assert plan.broker_messages_per_s_max == pytest.approx(1e6 / cost_us)
    faster = make_plan(demand, Hardware(core_speed=2), COSTS)
    assert faster.broker_messages_per_s_max == pytest.approx(2 * plan.broker_messages_per_s_max)
    # The rate that fills exactly three cores needs three brokers; a little more, four.
    full = 3 * 0.7 * 1e6 / cost_us
    assert make_plan(replace(demand, messages_per_s=full, clients=0), Hardware(), COSTS).brokers == 3
    assert make_plan(replace(demand, messages_per_s=full + 1, clients=0), Hardware(), COSTS).brokers == 4


def test_a_flush_and_the_work_take_turns() -> None:
    demand = replace(ALONE, fan_out=0, topics=1, queues=1, flush="sync", in_flight=1)
    work_us = COSTS.wake_us + COSTS.send_us + COSTS.send_kib_us + COSTS.sync_us + COSTS.flush_us
    plan = make_plan(demand, Hardware(sync_ms=2), COSTS)
    assert plan.binding.limit.name == "flushes"
    assert plan.binding.limit.each == pytest.approx(1e6 / (work_us + 2000))
    many = make_plan(replace(demand, in_flight=100), Hardware(sync_ms=2), COSTS)
    [flushes] = [used.limit for used in many.limits if used.limit.name == "flushes"]
    assert flushes.each > 20 * plan.binding.limit.each


def test_kept_messages_take_the_space_that_the_formats_say() -> None:
    demand = replace(ALONE, messages_per_s=1000, retention_h=10, properties_bytes=100, keys=2)
    less = make_plan(replace(demand, retention_h=0), Hardware(), COSTS)
    more = make_plan(demand, Hardware(), COSTS)
    per_message = 1024 + 100 + 91 + 20 + 20 + 2 * 21
    assert more.disk_bytes - less.disk_bytes == pytest.approx(36_000_000 * per_message)


def test_more_brokers_share_topics_that_one_cannot_have() -> None:
    demand = replace(ALONE, messages_per_s=1, topics=10 * TOPICS_PER_BROKER_MAX, topic_brokers=1, queues=1)
    assert make_plan(demand, Hardware(memory_gib=64), COSTS).brokers == 10


def test_a_machine_that_cannot_hold_a_broker_is_refused() -> None:
    with pytest.raises(BadPlan, match=r"needs more than 100,000 brokers because of disk space$"):
        make_plan(Demand(messages_per_s=1e6), Hardware(disk_gib=5, disk_share=0.01), COSTS)


@pytest.mark.parametrize(
    ("demand", "hardware", "reason"),
    [
        (Demand(topics=10_000_000, topic_brokers=100_000, queues=1), Hardware(memory_gib=4096), "topics"),
        (Demand(topics=1_000_000, topic_brokers=100_000, queues=100), Hardware(memory_gib=4096), "queues"),
        (Demand(clients=100_000), Hardware(core_speed=0.5), "broker core"),
        (Demand(clients=100_000), Hardware(memory_gib=0.5), "memory"),
        (Demand(messages_per_s=1e9, spark_jobs=1000), Hardware(), "broker core"),
    ],
)
def test_a_load_that_no_number_of_brokers_carries_says_what_it_lacks(
    demand: Demand, hardware: Hardware, reason: str
) -> None:
    with pytest.raises(BadPlan, match=rf"because of {reason}$"):
        make_plan(demand, hardware, COSTS)


def test_costs_of_nothing_are_refused() -> None:
    free = {name: 0.0 for name in COSTS.__struct_fields__ if name.endswith("_us")}
    with pytest.raises(BadPlan, match="a message costs nothing"):
        make_plan(Demand(), Hardware(), msgspec.structs.replace(COSTS, **free))


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        ({"messages_per_s": 0}, "messages_per_s"),
        ({"messages_per_s": math.nan}, "messages_per_s"),
        ({"messages_per_s": math.inf}, "messages_per_s"),
        ({"body_bytes": (4 << 20) + 1}, "body_bytes"),
        ({"replicas": 0}, "replicas"),
        ({"peak_factor": 0.9}, "peak_factor"),
        ({"pull_batch": 33}, "pull_batch"),
        ({"flush": "hard"}, "flush"),
        ({"delayed": 0.6, "transactional": 0.6}, "transactional"),
    ],
)
def test_a_bad_value_is_named(bad: dict[str, Any], name: str) -> None:
    with pytest.raises(BadPlan) as refused:
        Demand(**bad)
    assert refused.value.name == name
    assert "\n" not in str(refused.value)


def test_a_bad_machine_is_named() -> None:
    with pytest.raises(BadPlan, match=r"^cores 0: choose 1 to 4,096$"):
        Hardware(cores=0)


def test_the_assumptions_name_the_numbers_that_were_used() -> None:
    costs = msgspec.structs.replace(COSTS, sync_ms=3.25)
    said = " ".join(assumptions(Demand(peak_factor=7, pull_batch=5), Hardware(), costs))
    assert "3.25 ms" in said
    assert "7 times" in said
    assert "brings 5 messages" in said
    assert "0.125 ms" in " ".join(assumptions(Demand(), Hardware(sync_ms=0.125), costs))


def test_disk_space_is_that_of_all_replicas() -> None:
    demand = Demand(messages_per_s=1000, retention_h=72)
    one, two = (make_plan(replace(demand, replicas=n), Hardware(), COSTS) for n in (1, 2))
    assert two.disk_bytes == pytest.approx(2 * one.disk_bytes, rel=0.05)
    assert one.disk_bytes > 300 * GIB


def test_the_shipped_costs_are_whole_and_sensible() -> None:
    costs = load_costs()
    assert 1 < costs.send_us < 100
    assert costs.wake_us > costs.send_us, "waking up costs more than one message more"
    assert costs.batch_message_us < costs.send_us, "a message in a batch is cheaper than one alone"
    assert costs.pull_message_us < costs.pull_us
    assert 10 < costs.broker_mib < 500


def test_saved_costs_are_loaded_again(tmp_path: Path) -> None:
    costs = msgspec.structs.replace(load_costs(), send_us=12.5, machine="another one")
    save_costs(costs, tmp_path / "costs.json")
    assert load_costs(tmp_path / "costs.json") == costs


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "truncated"),
        (b"[]", "array"),
        (b'{"measured": "today"}', "required field"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: bytes, reason: str) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(text)
    with pytest.raises(BadCosts, match=reason) as refused:
        load_costs(path)
    assert str(refused.value).startswith(str(path))


@pytest.mark.parametrize("name", [name for name in Costs.__struct_fields__ if name.endswith("_us")])
def test_a_negative_cost_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(msgspec.json.encode({**msgspec.to_builtins(load_costs()), name: -1}))
    with pytest.raises(BadCosts, match=name):
        load_costs(path)
