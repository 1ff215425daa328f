"""The command as a whole: version, help, what is imported, how it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from skylark import __version__
from skylark.cli import main, store
from skylark.cli.main import app


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


def test_help_does_not_wait_for_the_store() -> None:
    code = "import sys, skylark.cli.main; print([name for name in sys.modules if 'skylark.store' in name])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


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
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 130


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
