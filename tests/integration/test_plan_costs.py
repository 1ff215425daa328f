"""`python -m benchmarks costs` in small: all costs, on real brokers, with a master and its slave."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks import plan_costs
from skylark.bench.plan import Demand, Hardware, load_costs, make_plan


@pytest.mark.nightly
def test_the_costs_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BACKLOG": 3200, "CONNECTIONS": 20, "TOPICS": 20, "SYNCS": 5, "ROUNDS": 1}.items():
        monkeypatch.setattr(plan_costs, name, value)
    monkeypatch.setattr(plan_costs, "HUGE_MESSAGES", 2000)  # no more than any disk takes
    # Nothing that is measured may stay as it was given.
    given = msgspec.structs.replace(
        load_costs(),
        commit="given",
        machine="given",
        send_us=9999.0,
        slave_us=9999.0,
        sync_ms=9999.0,
        broker_mib=9999.0,
    )
    told: dict[str, float] = {}
    costs = plan_costs.measure_costs(tmp_path, 2.0, given, told.__setitem__)
    assert {
        "send-1",
        "send-small",
        "send-huge",
        "batch-few",
        "batch-large",
        "pull-1",
        "sync-1",
        "sync-small",
        "master-large",
        "slave-small",
    } <= told.keys()
    # What few messages cost a slave may be less than the clock of processor time shows.
    assert all(used_us > 0 for name, used_us in told.items() if not name.startswith("slave"))
    assert costs.machine != "given"
    assert all(getattr(costs, name) < 9999 for name in ("send_us", "slave_us", "sync_ms", "broker_mib"))
    assert costs.broker_mib > 10
    assert costs.sync_ms > 0
    assert costs.spark_row_us == given.spark_row_us, "Spark is not measured"
    assert make_plan(Demand(), Hardware(), costs).brokers >= 1
