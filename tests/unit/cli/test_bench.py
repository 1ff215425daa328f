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
from skylark.cli.bench import SendOptions
from skylark.cli.bench_output import ENDINGS, Outputs, interruptible, progress_line
from skylark.cli.main import app
from skylark.cli.reference import commands, root
from tests.support.signals import heeded

COMMANDS = {name.split()[-1]: found for name, found in commands(root()) if name.startswith("skylark bench ")}
SHARED = {"--namesrv", "-n", "--flush", "--seconds", "--warm-up", "--json", "--out", "--report"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_benchmark_has_the_shared_options(name: str) -> None:
    options = {option for param in COMMANDS[name].params for option in param.opts}
    assert options >= SHARED


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("producer", "-t -w -s -b -k -l -p -q -y -d -e -n"),
        ("consumer", "-t -w -g -f -e -r -n"),
        ("transaction", "-t -w -s -sr -su -cr -cu -n"),
    ],
)
def test_options_are_those_of_rocketmqs_own_programs(name: str, options: str) -> None:
    assert set(options.split()) <= {option for param in COMMANDS[name].params for option in param.opts}


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("begin", "64 in flight: measuring"),
        ("tick 2.000 50000", "64 in flight: 2 s, 50,000 done, 25,000/s"),
        ("end", "64 in flight: last replies"),
    ],
)
def test_the_live_line(word: str, line: str) -> None:
    assert progress_line("64 in flight", word) == line


def test_the_commands_of_a_user() -> None:
    assert set(COMMANDS) == {"producer", "consumer", "pull", "latency", "transaction", "store"}


def test_benchmarks_need_no_extra() -> None:
    """In a process without the optional packages: every command runs up to a server that is not there."""
    code = (
        "import sys; sys.modules.update(hdrh=None, numpy=None, pyarrow=None, pyspark=None)\n"
        "from typer.testing import CliRunner; from skylark.cli.main import app\n"
        "for name in ('producer', 'consumer', 'pull', 'latency', 'transaction'):\n"
        "    words = ['bench', name, '-n', '127.0.0.1:1']\n"
        "    print(CliRunner().invoke(app, words).output)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.count("skylark: cannot connect to 127.0.0.1:1") == 5, done.stdout


def test_a_cell_of_an_open_loop_is_called_by_its_rate() -> None:
    assert SendOptions().cell_name(64, 128) == "64 in flight, 128 B"
    assert SendOptions(rate=1_000_000).cell_name(64, 128) == "1,000,000/s, 128 B"
    assert (
        SendOptions(rate=0.5, in_flight=[1, 64], batch=8).cell_name(64, 9) == "0.5/s, 64 in flight, 8 x 9 B"
    )


# --- Files ---


@pytest.mark.parametrize(
    ("words", "name", "sentence"),
    [
        ("producer --out", "none/out.json", "no directory"),
        ("producer --report", "", "it is a directory"),
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
    with heeded(number, signal.SIGINT):
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

    with heeded(number, signal.SIGINT), pytest.raises(KeyboardInterrupt), interruptible():
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
