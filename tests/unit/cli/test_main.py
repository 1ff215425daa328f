"""The command as a whole: version, help, what is imported, how it ends."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from skylark import __version__
from skylark.cli import main, start, store
from skylark.cli.commands import PLACES
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
    assert "<bool>" not in result.output


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


@pytest.mark.parametrize(("name", "option"), [("serve", "--brokers"), ("topic", "create"), ("send", "--tag")])
def test_a_command_waits_for_no_other(name: str, option: str) -> None:
    code = (
        f"import sys; from skylark.cli import start; sys.argv = ['skylark', {name!r}, '--help']\n"
        "try: start.run()\n"
        "except SystemExit as ended:\n"
        "    others = [f'skylark.cli.{name}' for name in ('main', 'store', 'bench', 'spark', 'plan')]\n"
        "    print(ended.code, *(name for name in others if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert option in done.stdout
    assert done.stderr.strip() == "0"


@pytest.mark.parametrize("name", PLACES)
def test_a_command_alone_is_the_same_as_among_all(name: str) -> None:
    alone, among = (typer.main.get_command(each) for each in (start._app([name]), app))
    found, known = alone.commands[name], among.commands[name]  # type: ignore[attr-defined]
    assert [param.opts for param in found.params] == [param.opts for param in known.params]
    assert (found.help, sorted(getattr(found, "commands", ()))) == (
        known.help,
        sorted(getattr(known, "commands", ())),
    )


def test_what_is_no_command_is_looked_for_among_all() -> None:
    assert [start._app(words) is app for words in ([], ["--help"], ["topik"], ["--debug"])] == [True] * 4


@pytest.mark.parametrize(
    ("arguments", "sentence", "command"),
    [
        (["topik"], "No such command 'topik'. Did you mean 'topic'", "skylark"),
        (["--josn"], "No such option: --josn", "skylark"),
        (["topic", "lst"], "No such command 'lst'. Did you mean 'list'", "skylark topic"),
        (["topic", "create"], "Missing argument 'TOPIC'", "skylark topic create"),
        (["topic", "create", "a", "b"], "unexpected extra argument", "skylark topic create"),
        (["topic", "create", "a", "--queues", "many"], "value for '--queues'", "skylark topic create"),
        (["topic", "create", "a", "--queues", "0"], "value for '--queues'", "skylark topic create"),
        (["topic", "create", "a", "--quees", "1"], "No such option: --quees", "skylark topic create"),
    ],
)
def test_words_that_make_no_command_are_a_sentence_and_a_hint(
    arguments: list[str], sentence: str, command: str
) -> None:
    result = CliRunner().invoke(app, arguments, prog_name="skylark")
    assert (result.exit_code, result.stdout) == (2, "")
    said, hint = result.stderr.splitlines()
    assert said.startswith("skylark: ")
    assert sentence in said
    assert hint == f"  hint: `{command} --help` shows how it is used"


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
