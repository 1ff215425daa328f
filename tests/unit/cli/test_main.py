"""The command as a whole: version, help, what is imported, how it ends."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from skylark import __version__
from skylark.cli import main, start, store
from skylark.cli.main import app
from skylark.errors import ConnectFailed


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"skylark {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["store", "demo", "--version"]),
        (["-h"], ["store"]),
        (["store", "--help"], ["info", "verify", "dump", "export"]),
        (["store", "info", "--help"], ["Example", "--json"]),
        (["store", "verify", "--help"], ["Example", "Exit code 1"]),
        (["store", "dump", "--help"], ["Examples", "--from-offset", "--since", "--key"]),
        (["store", "export", "--help"], ["Examples", "--decompress", "--out"]),
        (["demo", "--help"], ["--keep"]),
    ],
)
def test_help(arguments: list[str], words: list[str]) -> None:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for word in words:
        assert word in result.output


def test_without_arguments_help_is_shown() -> None:
    assert "Usage" in CliRunner().invoke(app, []).output


HEAVY = (
    *(
        f"skylark.{part}"
        for part in ("store", "broker", "namesrv", "client", "admin", "remoting", "protocol")
    ),
    *(f"skylark.{part}" for part in ("settings", "pipelines", "torture", "embedded", "demo")),
    *("lark", "pyspark", "pyarrow", "numpy", "pandas", "uvloop", "prometheus_client", "rich.progress"),
)


def test_help_waits_for_nothing_heavy() -> None:
    code = (
        "import sys, skylark.cli.main, typer.main; typer.main.get_command(skylark.cli.main.app);"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_an_error_has_a_hint_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConnectFailed("127.0.0.1:9876", "refused\nSee the FAQ")

    monkeypatch.setattr(store, "open_reader", refuse)
    result = CliRunner().invoke(app, ["store", "info", "somewhere"])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "skylark: cannot connect to 127.0.0.1:9876: refused See the FAQ",
        "  hint: is it running? `skylark serve` starts servers here; `skylark doctor` looks for faults",
    ]
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)  # it would outlive the test
    debugged = CliRunner().invoke(app, ["--debug", "store", "info", "somewhere"])
    assert isinstance(debugged.exception, ConnectFailed)


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "open_reader", interrupt)
    result = CliRunner().invoke(app, ["store", "info", "somewhere"])
    assert (result.exit_code, result.stderr) == (130, "skylark: interrupted\n")


def test_ctrl_c_before_the_command_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", interrupt)
    monkeypatch.setattr(sys, "argv", ["skylark"])
    with pytest.raises(SystemExit) as ended:
        start.run()
    assert ended.value.code == 130


def test_serve_waits_for_no_other_command() -> None:
    code = (
        "import sys; from skylark.cli import start; sys.argv = ['skylark', 'serve', '--help']\n"
        "try: start.run()\n"
        "except SystemExit as ended: print(ended.code, 'skylark.cli.main' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "--brokers" in done.stdout
    assert done.stderr.strip() == "0 False"


def test_an_error_of_the_system_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/store/commitlog")

    monkeypatch.setattr(store, "open_reader", refuse)
    result = CliRunner().invoke(app, ["store", "info", "somewhere"])
    assert (result.exit_code, result.stderr) == (2, "skylark: /store/commitlog: Permission denied\n")


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store, "open_reader", fail)
    assert isinstance(CliRunner().invoke(app, ["store", "info", "somewhere"]).exception, ZeroDivisionError)
