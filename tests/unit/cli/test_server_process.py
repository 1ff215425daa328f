"""Logs of the servers: text or JSON, levels by component, usage errors."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skylark.cli import server_process
from skylark.cli.errors import UsageError
from skylark.cli.main import app
from skylark.cli.server_process import JsonLines, TextLines, component_of, configure_logs, log_flags
from skylark.errors import SettingsError
from skylark.settings import BrokerSettings

SCRIPT = """
import logging, sys
from skylark.cli import server_process
server_process.configure_logs(sys.argv[1], sys.argv[2:])
for name in ("skylark.store.flush", "skylark.broker.broker", "asyncio"):
    for level in (logging.DEBUG, logging.INFO, logging.WARNING):
        logging.getLogger(name).log(level, "it is %s", name)
"""


def written(log_format: str, *levels: str) -> list[str]:
    """What is logged in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, log_format, *levels],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_warnings_are_written_unless_told_otherwise() -> None:
    lines = written("text")
    assert [line.split(" ", 2)[2] for line in lines] == [
        "WARNING skylark.store.flush it is skylark.store.flush",
        "WARNING skylark.broker.broker it is skylark.broker.broker",
        "WARNING asyncio it is asyncio",
    ]


def test_one_component_may_say_more_and_all_others_less() -> None:
    events = [json.loads(line) for line in written("json", "ERROR", "store=debug", "broker=INFO")]
    assert [(event["component"], event["level"]) for event in events] == [
        ("store", "DEBUG"),
        ("store", "INFO"),
        ("store", "WARNING"),
        ("broker", "INFO"),
        ("broker", "WARNING"),
    ]


def test_an_event_in_text_is_one_line_whatever_clients_call_things() -> None:
    forged = "a\n2026-01-01 ERROR fake\r\x1b[2J\ud800 消息"
    record = logging.LogRecord("skylark.broker", logging.WARNING, "", 0, "key=%s", (forged,), None)
    line = TextLines().format(record)
    assert line.endswith(r"WARNING skylark.broker key=a\n2026-01-01 ERROR fake\r\x1b[2J\ud800 消息")
    assert line.isprintable()


def test_a_traceback_keeps_its_lines() -> None:
    error = OSError("no room")
    record = logging.LogRecord(
        "skylark.store", logging.ERROR, "", 0, "it failed", None, (OSError, error, None)
    )
    assert TextLines().format(record).splitlines()[-1] == "OSError: no room"


def test_an_event_in_json_is_one_line_with_its_time_and_its_error() -> None:
    error = OSError("no\nroom")
    record = logging.getLogger("skylark.store.flush").makeRecord(
        "skylark.store.flush",
        logging.ERROR,
        "f",
        1,
        "flush of %s failed",
        ("a\nb",),
        (OSError, error, None),
    )
    record.created, record.msecs = 1_700_000_000.25, 250.0
    line = JsonLines().format(record)
    assert "\n" not in line
    event = json.loads(line)
    assert event.pop("error").endswith("OSError: no\nroom")
    assert event == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "ERROR",
        "component": "store",
        "logger": "skylark.store.flush",
        "message": "flush of a\nb failed",
    }


@pytest.mark.parametrize(
    ("logger", "component"),
    [("skylark.store.flush", "store"), ("skylark", "skylark"), ("asyncio", "asyncio"), ("a.b", "a")],
)
def test_components(logger: str, component: str) -> None:
    assert component_of(logger) == component


@pytest.mark.parametrize(
    ("log_format", "levels", "words"),
    [
        ("xml", [], "invalid --log-format 'xml'; choose text or json"),
        ("text", ["LOUD"], "invalid --log-level 'LOUD'; levels are DEBUG, INFO, WARNING, ERROR, CRITICAL"),
        (
            "text",
            ["stor=INFO"],
            "invalid --log-level 'stor=INFO'; components are broker, store, namesrv, controller, proxy,",
        ),
        ("text", ["=INFO"], "invalid --log-level '=INFO'; components are broker, store, namesrv,"),
        ("text", ["store="], "invalid --log-level 'store='; levels are"),
    ],
)
def test_usage_errors(log_format: str, levels: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        configure_logs(log_format, levels)
    assert str(caught.value).startswith(words)


def test_processes_that_are_started_log_alike() -> None:
    assert log_flags("json", ["store=DEBUG", "INFO"]) == [
        "--log-format", "json", "--log-level", "store=DEBUG", "--log-level", "INFO",
    ]  # fmt: skip
    assert log_flags(server_process.TEXT, None) == ["--log-format", "text"]


def test_components_are_packages() -> None:
    for component in server_process.COMPONENTS:
        __import__(f"skylark.{component}")


@pytest.mark.parametrize("command", ["broker", "serve"])
def test_a_copied_store_is_not_started_with_the_log_of_the_original(command: str, tmp_path: Path) -> None:
    """As after `cp -a` of a store whose broker.conf names its log, which RocketMQ's examples do."""
    log, data, config = tmp_path / "store" / "commitlog", tmp_path / "sky", tmp_path / "broker.conf"
    config.write_text(f"storePathRootDir={tmp_path}/store\nstorePathCommitLog={log}\n")
    refused = CliRunner().invoke(app, [command, "-c", str(config), "--data", str(data)])
    assert refused.exit_code == 2
    told = " ".join(refused.output.split())
    assert f"{log} (broker.conf line 2) is not in --data {data}; if you copied the log" in told
    assert not data.exists()


def test_the_log_may_be_elsewhere_if_that_is_meant(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"

    def loaded(data: Path | None, log: Path, *sets: str) -> None:
        config.write_text(f"storePathCommitLog={log}\n")
        flags = server_process.store_flags(data, None)
        server_process.check_log_of_data(
            server_process.load(BrokerSettings, "SKYLARK_BROKER_", config, flags, list(sets))
        )

    loaded(None, tmp_path / "disk" / "log")
    loaded(tmp_path / "sky", tmp_path / "sky" / "log")
    loaded(tmp_path / "sky", tmp_path / "x", f"storePathCommitLog={tmp_path / 'disk' / 'log'}")
    with pytest.raises(SettingsError, match="is not in --data"):
        loaded(tmp_path / "sky", tmp_path / "sky2")
