"""Costs of the parts, from costs of the whole."""

from __future__ import annotations

import math
from unittest.mock import create_autospec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plan_costs import BATCH, HUGE_KIB, IN_FLIGHT, SMALL_BATCH, SMALL_KIB, Least, fit, loads
from skylark.bench.load import Load, LoadFailed, LoadKind
from skylark.bench.load_target import LoadTarget
from skylark.bench.plan import Demand, Hardware, load_costs, make_plan
from skylark.bench.results import make_cell

BASE = load_costs()
costs = st.floats(0.1, 200)


@given(costs, costs, costs, costs, costs, costs, costs, costs, costs)
def test_the_parts_are_found_again_in_the_whole(
    wake: float, send: float, send_kib: float, a_batch: float, batched: float, batch_kib: float, pull: float,
    pulled: float, pull_kib: float,
) -> None:  # fmt: skip
    def single(in_flight: int, kib: float) -> float:
        return wake / in_flight + send + kib * send_kib

    def batch(kib: float, count: int = BATCH) -> float:
        return (wake / IN_FLIGHT + a_batch) / count + batched + kib * batch_kib

    def pulls(count: int, kib: float) -> float:
        return pull / count + pulled + kib * pull_kib

    found = fit(
        {
            "send-1": single(1, SMALL_KIB),
            "send-small": single(IN_FLIGHT, SMALL_KIB),
            "send-large": single(IN_FLIGHT, 1),
            "send-huge": single(IN_FLIGHT, HUGE_KIB),
            "batch-few": batch(SMALL_KIB, SMALL_BATCH),
            "batch-small": batch(SMALL_KIB),
            "batch-large": batch(1),
            "pull-1": pulls(1, SMALL_KIB),
            "pull-small": pulls(BATCH, SMALL_KIB),
            "pull-large": pulls(BATCH, 1),
            "send-queues": single(IN_FLIGHT, SMALL_KIB) * (1 + 0.1 * math.log10(800)),
            "sync-1": single(1, SMALL_KIB) + 3 + 150,
            "sync-small": single(IN_FLIGHT, SMALL_KIB) + 3 + 150 / IN_FLIGHT,
            "master-large": single(IN_FLIGHT, 1) + 2,
            "slave-small": 5 + SMALL_KIB * 1.5,
            "slave-large": 6.5,
        },
        BASE,
    )
    parts = {
        "wake_us": wake, "send_us": send, "send_kib_us": send_kib, "batch_us": a_batch,
        "batch_message_us": batched,
        "batch_kib_us": batch_kib, "pull_us": pull, "pull_message_us": pulled, "pull_kib_us": pull_kib,
        "sync_us": 3, "flush_us": 150, "replica_us": 2,
        "slave_us": 5, "slave_kib_us": 1.5, "queues_growth": 0.1,
    }  # fmt: skip
    for name, value in parts.items():
        assert getattr(found, name) == pytest.approx(value, abs=0.02), name
    assert found.spark_row_us == BASE.spark_row_us


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "send-1",
                "send-small",
                "batch-few",
                "pull-1",
                "sync-1",
                "sync-small",
                "master-large",
                "slave-small",
                "slave-large",
            ]
        ),
        costs,
    )
)
def test_what_noise_turned_round_never_becomes_negative(noise: dict[str, float]) -> None:
    names = [f"{kind}-{size}" for kind in ("send", "batch", "pull", "slave") for size in ("small", "large")]
    used = {
        **dict.fromkeys(
            [
                *names,
                "send-1",
                "send-huge",
                "batch-few",
                "pull-1",
                "sync-1",
                "sync-small",
                "master-large",
                "send-queues",
            ],
            10.0,
        ),
        **noise,
    }
    found = fit(used, BASE)
    assert all(getattr(found, name) >= 0 for name in found.__struct_fields__ if name.endswith("_us"))
    assert 0 <= found.queues_growth <= 1
    assert make_plan(Demand(), Hardware(), found).brokers >= 1


def test_every_cell_that_is_fitted_is_measured() -> None:
    found = loads("127.0.0.1:1", 2.0)
    assert set(found) == {
        "send-1", "send-small", "send-large", "send-huge", "batch-few", "batch-small", "batch-large",
        "pull-1", "pull-small", "pull-large", "send-queues",
    }  # fmt: skip
    assert found["send-1"].in_flight == 1
    assert found["pull-1"].topic == found["pull-small"].topic, "it needs the same backlog"
    assert list(found).index("pull-1") > list(found).index("pull-small")
    assert {name for name, load in found.items() if load.kind is LoadKind.PULL} == {
        "pull-1",
        "pull-small",
        "pull-large",
    }


def test_the_least_of_the_rounds_counts_and_void_ones_do_not() -> None:
    told: list[tuple[str, float]] = []
    rounds = [
        make_cell("send", 10, 1.0, server_cpu_us=12.0),
        make_cell("send", 10, 1.0, server_cpu_us=1.0, wrong=["1 refused"]),
        make_cell("send", 10, 1.0, server_cpu_us=11.0),
        make_cell("send", 10, 1.0, server_cpu_us=13.0),
    ]
    least = Least(lambda name, cost: told.append((name, cost)))
    target = create_autospec(LoadTarget, instance=True)
    target.measure.side_effect = rounds
    for _ in range(3):
        least.measure(target, "send", Load(address=""))
    assert target.measure.call_count == 4, "the void one was tried again"
    assert least.found() == {"send": 11.0}
    assert told == [("send", 12.0), ("send", 11.0), ("send", 13.0)]


def test_what_took_less_than_the_clock_shows_is_no_cost() -> None:
    """Costs of nothing would be divided by."""
    least = Least(lambda name, cost: None)
    target = create_autospec(LoadTarget, instance=True)
    target.measure.side_effect = [
        make_cell("send", 10, 1.0, server_cpu_us=0.0),
        make_cell("send", 10, 1.0, server_cpu_us=9.0),
    ]
    least.measure(target, "send", Load(address=""))
    assert least.found() == {"send": 9.0}


def test_a_cell_that_is_void_in_all_rounds_is_an_error() -> None:
    least = Least(lambda name, cost: None)
    target = create_autospec(LoadTarget, instance=True)
    target.measure.return_value = make_cell("pull", 10, 1.0, server_cpu_us=1.0, wrong=["1 refused"])
    least.measure(target, "pull", Load(address=""))
    with pytest.raises(LoadFailed, match="pull: 1 refused"):
        least.found()
