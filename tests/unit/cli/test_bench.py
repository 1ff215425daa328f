"""`skylark bench` without a load: its options, the live line, and what is missing."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skylark.bench.results import decode, make_document
from skylark.cli.bench_options import SendOptions
from skylark.cli.bench_output import ENDINGS, Outputs, interruptible, progress_line
from skylark.cli.main import app
from skylark.cli.reference import commands, root
from tests.support.signals import heeded

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
        ("producer", "-t -w -s -k -l -p -q -y -d -e -n"),
        ("batch", "-t -w -s -b -k -l -p -n"),
        ("consumer", "-t -w -g -f -e -r -n"),
        ("transaction", "-t -w -s -sr -su -cr -cu -n"),
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
    monkeypatch.setitem(sys.modules, "skylark.bench.servers", None)
    result = CliRunner().invoke(app, ["bench", "routes"])
    assert result.exit_code == 2
    assert "pip install 'skylarkmq[bench]'" in result.output


def test_no_benchmark_ends_with_a_trace_for_want_of_the_extra() -> None:
    """In a process of its own, where the library cannot be imported."""
    code = (
        "import sys; sys.modules['hdrh'] = None\n"
        "from typer.testing import CliRunner; from skylark.cli.main import app\n"
        f"for name in {list(COMMANDS)}:\n"
        "    words = ['bench', name, *(['x.json'] if name == 'merge' else [])]\n"
        "    print(name, CliRunner().invoke(app, words).output.strip(), sep='\\t')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    said = dict(line.split("\t") for line in done.stdout.splitlines())
    assert said.keys() == COMMANDS.keys()
    assert set(said.values()) == {"skylark: hdrh.histogram is missing: pip install 'skylarkmq[bench]'"}, said


def test_a_cell_of_an_open_loop_is_called_by_its_rate() -> None:
    assert SendOptions().pace(64) == "64 in flight"
    assert SendOptions(rate=1_000_000).pace(64) == "1,000,000/s"
    assert SendOptions(rate=0.5, in_flight=[1, 64]).pace(64) == "0.5/s, 64 in flight"


# --- Files ---


@pytest.mark.parametrize(
    ("words", "name", "sentence"),
    [
        ("producer --out", "none/out.json", "there is no directory"),
        ("producer --report", "", "it is a directory"),
        ("growth --svg", "file", "is no directory"),
        ("all --svg", "file", "is no directory"),
    ],
)
def test_files_that_cannot_be_written_are_told_before_the_work(
    tmp_path: Path, words: str, name: str, sentence: str
) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["bench", *words.split(), str(tmp_path / name)])
    assert result.exit_code == 2
    assert sentence in result.output


def test_what_was_found_is_printed_even_if_it_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "here"
    directory.mkdir()
    outputs = Outputs(as_json=True, out=directory / "out.json")
    directory.rmdir()
    with pytest.raises(FileNotFoundError):
        outputs.deliver(make_document("mine", {}, []), lambda: "", lambda screen: None)
    assert decode(capsys.readouterr().out.encode()).benchmark == "mine"


# --- An end from outside ---


@pytest.mark.parametrize("number", ENDINGS)
def test_an_end_from_outside_is_a_ctrl_c_and_comes_once(number: signal.Signals) -> None:
    with heeded(number):
        with pytest.raises(KeyboardInterrupt), interruptible():
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(number)  # while it is cleaned up
                cleaned_up = True
        assert cleaned_up
        assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize("number", ENDINGS)
def test_an_end_from_outside_cancels_what_an_event_loop_runs(number: signal.Signals) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            signal.raise_signal(number)
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # as long as it takes
            seen.append("cleaned up")
            raise

    with heeded(number), pytest.raises(KeyboardInterrupt), interruptible():
        asyncio.run(work())
    assert seen == ["cleaned up"]


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
