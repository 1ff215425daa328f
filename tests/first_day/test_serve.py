"""A developer runs servers in a terminal, stops them, and loses them under a running `tail`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skylark import Admin, Message, Producer
from skylark.testing import EmbeddedServers
from tests.support.terminal import Terminal

PORTS = ["--namesrv-port", "0", "--broker-port", "0", "--set", "metrics_port=0"]
STOPPING = re.compile(r"^skylark \S+: stopping at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (.*)$", re.MULTILINE)
STOPPED = re.compile(r"^skylark \S+: stopped after \d+\.\d\d s$", re.MULTILINE)


@pytest.mark.parametrize(
    ("columns", "number", "reason"),
    [
        (80, signal.SIGINT, "Ctrl-C"),
        (120, signal.SIGTERM, "SIGTERM from another process or the system"),
        (120, signal.SIGHUP, "SIGHUP, its terminal was closed"),
    ],
)
def test_serve_says_when_and_why_it_stops(
    tmp_path: Path, columns: int, number: signal.Signals, reason: str
) -> None:
    words = ["serve", "--data", str(tmp_path / "data"), *PORTS]
    with Terminal(words, {}, columns=columns) as terminal:
        terminal.until("try: skylark send")
        terminal.process.send_signal(number)
        assert terminal.end() == 0
    assert STOPPING.findall(terminal.text) == [reason]
    assert STOPPED.search(terminal.text)


def test_several_brokers_stop_with_their_name_server(tmp_path: Path) -> None:
    words = ["serve", "--brokers", "2", "--data", str(tmp_path / "data"), *PORTS]
    with Terminal(words, {}, columns=80) as terminal:
        terminal.until("try: skylark send")
        terminal.interrupt()
        assert terminal.end() == 0
    assert STOPPING.findall(terminal.text) == ["Ctrl-C"]
    assert STOPPED.search(terminal.text)


def test_the_package_is_the_command() -> None:
    words = [sys.executable, "-m", "skylark", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert re.fullmatch(r"skylark \S+\n", done.stdout)


@pytest.mark.parametrize("columns", [80, 120])
def test_a_warning_that_repeats_is_shown_once_with_a_count(columns: int) -> None:
    with EmbeddedServers() as servers:
        with Admin(namesrv=servers.namesrv) as admin, Producer("shop", namesrv=servers.namesrv) as producer:
            admin.topics.create("orders", queues=1)
            producer.send(Message("orders", b"hello"))
        terminal = Terminal(["tail", "orders"], {"NAMESRV_ADDR": servers.namesrv}, columns=columns)
        with terminal:
            terminal.until("hello")
            servers.stop()
            terminal.until("skylark: pull failed")
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                terminal.read(0.1)
            terminal.interrupt()
            assert terminal.end() == 0
    warnings = [line for line in terminal.text.splitlines() if line.startswith("skylark: ")]
    assert len(warnings) == len(set(warnings)), "each is shown once"
    assert any(re.search(r"\(repeated (once|\d+ times)\)$", line) for line in warnings), warnings


def test_bench_says_that_the_machine_is_busy(tmp_path: Path) -> None:
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
    ]
    try:
        words = ["bench", "store", "--seconds", "0.1", "--out", str(tmp_path / "result.json")]
        with Terminal(words, {}, columns=120) as terminal:
            terminal.until("skylark: the machine was busy before the run:")
            assert terminal.end() == 0
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert "of its processors, so figures are too low; stop other programs and measure again" in terminal.text
    assert "the machine was busy" in (tmp_path / "result.json").read_text()
