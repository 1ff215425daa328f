"""`skylark bench` without a load: its options, the live line, and what is missing."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from skylark.cli.bench_output import progress_line
from skylark.cli.main import app
from skylark.cli.reference import commands, root

COMMANDS = {name.split()[-1]: found for name, found in commands(root()) if name.startswith("skylark bench ")}
MEASURING = (
    "producer batch consumer pull filters cold latency transaction delay topics features routes store"
    " replication spark".split()
)
SHARED = {"--namesrv", "-n", "--flush", "--seconds", "--warm-up", "--json", "--out", "--report"}


@pytest.mark.parametrize("name", MEASURING)
def test_every_benchmark_has_the_shared_options(name: str) -> None:
    options = {option for param in COMMANDS[name].params for option in param.opts}
    assert options >= SHARED


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("producer", "-t -w -s -k -l -p -q -y -n"),
        ("batch", "-t -w -s -b -k -l -p -n"),
        ("consumer", "-t -w -n"),
        ("transaction", "-t -w -s -n"),
        ("delay", "-t -e -s -n"),
    ],
)
def test_options_are_those_of_rocketmqs_own_programs(name: str, options: str) -> None:
    assert set(options.split()) <= {option for param in COMMANDS[name].params for option in param.opts}


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("begin", "64 in flight: measuring"),
        ("tick 2.000 50000", "64 in flight: 2 s, 50,000 done, 25,000/s"),
        ("end", "64 in flight: the last answers"),
    ],
)
def test_the_live_line(word: str, line: str) -> None:
    assert progress_line("64 in flight", word) == line


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skylark.bench.place", None)
    result = CliRunner().invoke(app, ["bench", "routes"])
    assert result.exit_code == 2
    assert "pip install 'skylarkmq[bench]'" in result.output
