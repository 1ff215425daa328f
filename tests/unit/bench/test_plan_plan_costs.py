"""The file of costs: what is shipped can be used, what is broken is refused with its name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from skylark.bench.plan import BadCosts, Costs, load_costs, save_costs


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
