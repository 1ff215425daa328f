"""`skylark serve --console` and `skylark demo --console`: the console in a process beside the servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from skylark.cli.demo import FAST_ORDERS
from skylark.demo.scenario import TOPIC

TIMEOUT_S = 60


def children_of(pid: int) -> list[int]:
    """The consoles that a process started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"console" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def test_the_console_is_served_beside_the_broker_and_ends_with_it(tmp_path: Path) -> None:
    words = ["serve", "--data", str(tmp_path / "data"), "--namesrv-port", "0", "--broker-port", "0"]
    words += ["--console", "--console-port", "0", "--grpc-port", "off"]
    words += ["--set", "metricsPromExporterPort=0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "skylark", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    link = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"console on (http://127\.0\.0\.1:\d+/)", line):
                link = found[1]
                break
        with urllib.request.urlopen(link, timeout=TIMEOUT_S) as page:  # noqa: S310
            assert b"<h1>Overview</h1>" in page.read()
        # It is started again if it ends.
        [console] = children_of(process.pid)
        os.kill(console, signal.SIGKILL)
        for line in process.stdout:
            if found := re.search(r"console on (http://127\.0\.0\.1:\d+/)", line):
                link = found[1]
                break
        with urllib.request.urlopen(link, timeout=TIMEOUT_S) as page:  # noqa: S310
            assert page.status == 200
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)  # ends when the console, which writes there, too, has ended
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(link, timeout=TIMEOUT_S)  # noqa: S310


def test_the_demo_shows_its_orders_in_the_console() -> None:
    words = ["demo", "--fast", "--no-spark", "--console"]
    process = subprocess.Popen(
        [sys.executable, "-m", "skylark", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        found = (re.search(r"console on (http://127\.0\.0\.1:\d+/)", line) for line in process.stdout)
        link = next(match[1] for match in found if match)
        with urllib.request.urlopen(f"{link}local/topics.json", timeout=TIMEOUT_S) as page:  # noqa: S310
            topics = {row["topic"]: row["messages"] for row in json.load(page)["topics"]}
        assert topics[TOPIC] > FAST_ORDERS // 2  # some are rolled back
    finally:
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
