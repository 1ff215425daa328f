"""What a server says when asked to say everything: events in JSON, and no message's body."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from skylark import Message, Producer

BODY = "only-the-consumer-may-read-this"


def test_servers_log_events_and_never_bodies(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "skylark", "serve", "--data", str(tmp_path / "data"),
                "--namesrv-port", "0", "--broker-port", "0", "--set", "metricsPromExporterPort=0",
                "--log-format", "json", "--log-level", "DEBUG",
            ],
            stdout=subprocess.PIPE, stderr=file, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        namesrv = first.partition(" on ")[2].partition(",")[0]
        assert any("/health" in line for line in process.stdout), "the server ended"
        with Producer("logs", namesrv=namesrv) as producer:
            producer.send(Message("orders", BODY.encode(), keys=["k"]))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert any((tmp_path / "data" / "commitlog").iterdir())
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"broker", "namesrv"} <= {event["component"] for event in events}
    assert BODY not in log.read_text()
