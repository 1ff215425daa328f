"""`python -m benchmarks soak` for some seconds: every message arrives, log files roll and expire."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.soak import run


@pytest.mark.nightly
def test_a_short_soak_at_half_of_the_maximum_loses_nothing_while_log_files_roll_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MAXIMUM_S", 3.0)
    out, report = tmp_path / "soak.json", tmp_path / "soak.html"
    result = CliRunner().invoke(
        app,
        ["soak", "--minutes", "0.33", "--every", "1", "--keep", "10", "--log-mib", "2",
         "--out", str(out), "--report", str(report)],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "growth could not be judged" in result.output
    found = json.loads(out.read_bytes())
    values = {finding["name"]: int(finding["value"]) for finding in found["findings"]}
    assert values["messages missing"] == 0
    assert values["rolled back, yet received"] == 0
    assert values["not asked for, yet received"] == 0
    assert values["log files begun"] > 0
    conditions = found["conditions"]
    assert conditions["wanted per s"] == pytest.approx(conditions["maximum per s"] / 2, abs=1)
    assert conditions["sent"] > 500
    # Of four messages one goes to nobody but the pull consumer; most go to more than one group.
    assert conditions["received"] > conditions["sent"]
    assert found["send_us"]["count"] > 250
    assert found["end_to_end_us"]["count"] > 200
    assert {slope["name"] for slope in found["slopes"]} >= {"broker memory", "descriptors", "send p99"}
    samples = found["samples"]
    assert len(samples) >= 5
    assert all(sample["other_cores"] >= 0 for sample in samples)
    assert all(sample["broker_mib"] > 10 and sample["threads"] > 0 for sample in samples)
    page = report.read_text()
    assert page.startswith("<!doctype html>")
    assert "Memory, MiB" in page
    assert "<polyline" in page


def test_what_cannot_be_soaked_is_one_sentence() -> None:
    result = CliRunner().invoke(app, ["soak", "--rate", "0"])
    assert result.exit_code == 2
    assert "--rate" in result.stderr
