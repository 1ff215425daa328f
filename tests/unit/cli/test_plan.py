"""`skylark plan`: tables, JSON, and one sentence for what cannot be planned."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from skylark.bench.plan import Demand, Hardware, load_costs, save_costs
from skylark.cli.main import app
from skylark.cli.plan import DemandOptions, MachineOptions


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def test_one_load_is_told_in_full() -> None:
    result = run("--rate", "20k", "--size", "1KiB")
    assert result.exit_code == 0
    for word in (
        "brokers\t",
        "machines\t",
        "disk space\t",
        "cores for Spark\t",
        "binds first\t",
        "broker core\t",
    ):
        assert f"\n{word}" in f"\n{result.output}"
    assert "Assumptions" in result.output


def test_several_loads_are_rows() -> None:
    result = run("--rate", "1k,1M", "--topics", "10,100k")
    rows = [line.split("\t") for line in result.output.splitlines() if line[:1].isdigit()]
    assert [row[:2] for row in rows] == [
        ["1,000", "10"],
        ["1,000,000", "10"],
        ["1,000", "100,000"],
        ["1,000,000", "100,000"],
    ]
    brokers = [int(row[2]) for row in rows]
    assert brokers[0] < brokers[1]


def test_a_rate_below_one_is_told_as_it_is() -> None:
    lines = run("--rate", "0.05,2.5").output.splitlines()
    assert [line.split("\t")[0] for line in lines if line[:1].isdigit()] == ["0.05", "2.5"]


def test_json_has_the_plan_and_what_it_takes_for_granted() -> None:
    (plan,) = json.loads(run("--rate", "5k", "--replicas", 1, "--json").output)
    assert plan["slaves"] == 0
    assert plan["demand"]["messages_per_s"] == 5000
    assert plan["binding"] == plan["limits"][0]["limit"]["name"]
    assert plan["assumptions"]


def test_without_options_the_models_own_defaults_are_planned_for() -> None:
    assert list(DemandOptions().demands()) == [Demand()]
    assert Hardware(**asdict(MachineOptions())) == Hardware()


def test_costs_come_from_a_file(tmp_path: Path) -> None:
    import msgspec

    path = tmp_path / "costs.json"
    save_costs(msgspec.structs.replace(load_costs(), send_us=500.0), path)
    cheap, dear = (
        json.loads(run("--rate", "50k", "--json", *more).output)[0]["brokers"]
        for more in ((), ("--costs", path))
    )
    assert dear > cheap


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--rate", "0"), "--rate 0.0: choose 0.001 to 1,000,000,000"),
        (("--rate", "many"), "--rate: invalid number 'many'; try 300, 1.5k, 2M or 1KiB"),
        (("--rate", "1k,,2k"), "--rate: invalid number ''"),
        (("--size", "5MiB"), "--size 5242880: choose 0 to 4,194,304"),
        (("--retention", "long"), "--retention: invalid duration 'long'"),
        (("--flush", "hard"), "--flush hard: choose async or sync"),
        (("--peak", "0.5"), "--peak 0.5: choose 1 to 1,000"),
        (("--cores", "0"), "--cores 0: choose 1 to 4,096"),
        (
            ("--rate", "1G", "--disk-gib", "5"),
            "--rate 1000000000.0: needs more than 100,000 brokers because of disk space",
        ),
        (("--size", "9" * 400), "9'; try 300, 1.5k, 2M or 1KiB"),
        (("--costs", "nowhere.json"), "nowhere.json: No such file or directory"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
