"""A cluster with many topics and groups, in a process of its own, for what pages of the console cost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skylark import Admin, Message, Producer
from skylark.admin.results import Group, Topic

TIMEOUT_S = 60
QUEUES = 4
READ_WRITE = 6


@dataclass(frozen=True)
class LargeCluster:
    """Where it listens, and its process."""

    namesrv: str
    process: int


@contextlib.contextmanager
def large_cluster(directory: Path, *, topics: int, groups: int, letters: int = 0) -> Iterator[LargeCluster]:
    """Each group has offsets in one topic; `letters` of them have dead letters."""
    names = [f"topic-{number:04}" for number in range(topics)]
    members = [f"group-{number:04}" for number in range(groups)]
    committed = {str(queue): 0 for queue in range(QUEUES)}
    offsets = {f"{names[number % topics]}@{group}": committed for number, group in enumerate(members)}
    (directory / "config").mkdir(parents=True)
    (directory / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    words = ["serve", "--data", str(directory), "--namesrv-port", "0", "--broker-port", "0"]
    words += ["--grpc-port", "off", "--set", "metricsPromExporterPort=0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "skylark", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        namesrv = next(
            found[1]
            for line in process.stdout
            if (found := re.search(r"name server on (127\.0\.0\.1:\d+)", line))
        )
        _fill(namesrv, names, members, letters)
        yield LargeCluster(namesrv, process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)


def _fill(namesrv: str, topics: list[str], groups: list[str], letters: int) -> None:
    with Admin(namesrv=namesrv) as admin, Producer("filler", namesrv=namesrv) as producer:
        dead = [f"%DLQ%{name}" for name in groups[:letters]]
        for names, queues in ((topics, QUEUES), (dead, 1)):
            if names:
                admin.topics.create_all(
                    [Topic(name, queues, queues, READ_WRITE, ordered=False, attributes={}) for name in names]
                )
        admin.groups.create_all([Group(name) for name in groups])
        for name in [*topics[:50], *dead]:
            producer.send(Message(name, b"{}"))
