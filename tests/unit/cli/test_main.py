"""The command as a whole: version, help, what is imported, how it ends."""

from __future__ import annotations

import errno
import logging
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from skylark import __version__
from skylark.cli import main, start, store
from skylark.cli.main import COMMANDS, app, load_command
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


def test_help_fills_the_lines_of_a_narrow_terminal() -> None:
    told = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    [start] = [
        number for number, line in enumerate(told.splitlines()) if "all that one machine needs" in line
    ]
    paragraph = [line.strip() for line in told.splitlines()[start : start + 3]]
    assert all(len(line) > 60 for line in paragraph), paragraph


def test_without_arguments_help_is_shown() -> None:
    assert "Usage" in CliRunner().invoke(app, []).output


HEAVY = (
    *(
        f"skylark.{part}"
        for part in ("store", "broker", "namesrv", "client", "admin", "remoting", "protocol")
    ),
    *(f"skylark.{part}" for part in ("settings", "pipelines", "torture", "embedded", "demo")),
    *("lark", "pyspark", "pyarrow", "numpy", "pandas", "uvloop", "prometheus_client", "rich.progress"),
    *("asyncio", "multiprocessing", "concurrent.futures", "ssl", "pydantic"),
)
SHARED = {"errors", "main", "start"}
"""Modules of the command line that every command has."""


def modules_after(*words: str) -> tuple[str, set[str]]:
    """What a command prints in a process of its own, and the modules that it has loaded by then."""
    code = (
        f"import sys; from skylark.cli import start; sys.argv = ['skylark', *{words!r}]\n"
        "try: start.run()\n"
        "except SystemExit as ended: print(ended.code, *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    exit_code, *modules = done.stderr.splitlines()[-1].split()
    assert exit_code == ("2" if words == ("topik",) else "0")
    return done.stdout, set(modules)


def own(modules: set[str]) -> set[str]:
    return {name.removeprefix("skylark.cli.") for name in modules if name.startswith("skylark.cli.")}


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("topik",)])
def test_help_and_mistakes_wait_for_no_command(words: tuple[str, ...]) -> None:
    _, modules = modules_after(*words)
    assert own(modules) == SHARED
    assert not modules & set(HEAVY)


def test_commands_explain_themselves_without_anything_heavy() -> None:
    """One process explains all of them, one after the other: in the end nothing heavy is there."""
    code = (
        f"import sys; from skylark.cli import start\nfor name in {list(COMMANDS)!r}:\n"
        "    print('explained:', name); sys.argv = ['skylark', name, '--help']\n"
        "    try: start.run()\n"
        "    except SystemExit as ended: assert not ended.code, name\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    _, *explained = done.stdout.split("explained: ")
    assert [text.split()[0] for text in explained] == list(COMMANDS)
    for text, place in zip(explained, COMMANDS.values(), strict=True):
        assert " ".join(place.line.split()[:4]) in text
    assert not set(done.stderr.splitlines()[-1].split()) & set(HEAVY)


@pytest.mark.parametrize(("name", "option"), [("serve", "--brokers"), ("topic", "create"), ("send", "--tag")])
def test_a_command_waits_for_no_other(name: str, option: str) -> None:
    printed, modules = modules_after(name, "--help")
    assert option in printed
    assert not own(modules) & {"store", "bench", "spark", "plan"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_of_each_what_it_says_of_itself(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert " ".join(command.help.split()).startswith(COMMANDS[name].line.removesuffix("."))


def test_the_list_of_commands_has_a_line_for_each() -> None:
    lines = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output.splitlines()
    for name, place in COMMANDS.items():
        assert any(re.fullmatch(rf"\W*{name} +{re.escape(place.line)}\W*", line) for line in lines)


def test_an_error_has_a_hint_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConnectFailed("127.0.0.1:9876", "refused\nSee the FAQ")

    monkeypatch.setattr(store, "open_reader", refuse)
    result = CliRunner().invoke(app, ["store", "info", "somewhere"])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "skylark: cannot connect to 127.0.0.1:9876: refused See the FAQ",
        "  hint: is it running? `skylark serve` starts servers here; `skylark doctor` checks them",
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
    with pytest.raises(SystemExit) as ended:
        start.run()
    assert ended.value.code == 130


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
        (["serve", "--data", __file__], "is a file", "skylark serve"),
        (["serve", "--namesrv-port", "65536"], "65536 is not in the range", "skylark serve"),
        (["broker", "--port", "-1"], "-1 is not in the range", "skylark broker"),
        (["store", "dump", "d", "--limit", "-1"], "-1 is not in the range", "skylark store dump"),
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
    assert hint == f"  hint: `{command} --help` shows the usage"


def test_a_command_that_is_like_none_is_answered_by_those_that_there_are() -> None:
    result = CliRunner().invoke(app, ["dlq", "exhume"], prog_name="skylark")
    assert result.exit_code == 2
    assert "`skylark dlq --help` shows the usage; commands: list, show, resend\n" in result.stderr


def test_an_error_of_the_system_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/store/commitlog")

    monkeypatch.setattr(store, "open_reader", refuse)
    result = CliRunner().invoke(app, ["store", "info", "somewhere"])
    assert result.exit_code == 2
    said, advice = result.stderr.splitlines()
    assert said == "skylark: /store/commitlog: Permission denied"
    assert advice.startswith("  hint: change the owner or the mode")


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EADDRINUSE, "is in use already"), (errno.EADDRNOTAVAIL, "is not an address of this machine")],
)
def test_where_a_server_cannot_listen_is_said_plainly(number: int, words: str) -> None:
    text = f"error while attempting to bind on address ('10.1.2.3', 9876): {os.strerror(number)}"
    assert main.error_text(OSError(number, text)) == f"10.1.2.3:9876 {words}"


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store, "open_reader", fail)
    assert isinstance(CliRunner().invoke(app, ["store", "info", "somewhere"]).exception, ZeroDivisionError)
