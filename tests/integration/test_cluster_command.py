"""`skylark cluster start`: a cluster of processes; its master is killed, and nothing acknowledged is lost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark import Message, Producer, PullConsumer
from skylark.cluster.supervisor import ClusterState, read_state
from skylark.processes import GroupProcess, python_command
from skylark.settings.client import ProducerSettings
from tests.support.etcd import program

pytestmark = pytest.mark.nightly

START_TIMEOUT_S = 180
PATIENT = ProducerSettings(send_timeout_ms=60_000)


def skylark(*words: str) -> str:
    return subprocess.run(
        python_command("skylark", *words), capture_output=True, text=True, timeout=120, check=True
    ).stdout


@contextmanager
def cluster(directory: Path, *words: str) -> Iterator[ClusterState]:
    home = directory / "cluster"
    command = python_command("skylark", "cluster", "start", "--dir", str(home), *words)
    with GroupProcess(command, log=directory / "start.log") as process:
        process.wait_until(lambda: "NAMESRV_ADDR" in process.log_text(), "cluster to run", START_TIMEOUT_S)
        yield read_state(home)
        skylark("cluster", "stop", "--dir", str(home))
        assert process.wait(60) == 0


def roles(directory: Path) -> dict[str, dict[str, Any]]:
    rows = json.loads(skylark("cluster", "status", "--json", "--dir", str(directory / "cluster")))
    return {row["node"]: row for row in rows}


@pytest.mark.parametrize("words", [(), ("--controllers", "3", "--etcd", "local")], ids=["file", "etcd"])
def test_a_killed_master_is_replaced_and_nothing_is_lost(tmp_path: Path, words: tuple[str, ...]) -> None:
    if words:
        program()  # or the test is skipped
    with (
        cluster(tmp_path, "--brokers", "1", "--replicas", "2", *words) as state,
        Producer("PG", namesrv=state.namesrv, settings=PATIENT) as producer,
    ):
        for number in range(20):
            assert producer.send(Message("orders", b"%d" % number)).is_ok
        wait_in_sync(tmp_path)
        before = roles(tmp_path)
        [master] = [name for name, row in before.items() if row["role"] == "master"]
        skylark("cluster", "kill", master, "--dir", str(tmp_path / "cluster"))
        for number in range(20, 40):
            assert producer.send(Message("orders", b"%d" % number)).is_ok
        after = roles(tmp_path)
        assert [name for name, row in after.items() if row["role"] == "master"] != [master]
        assert read_bodies(state.namesrv, 40) == {b"%d" % number for number in range(40)}


def wait_in_sync(directory: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        brokers = [row for row in roles(directory).values() if row["kind"] == "broker"]
        if {row["role"] for row in brokers} == {"master", "in sync"}:
            return
    raise AssertionError(roles(directory))


def read_bodies(namesrv: str, count: int) -> set[bytes]:
    """What consumers get, until it is as much as is expected."""
    seen: set[bytes] = set()
    deadline = time.monotonic() + 60
    with PullConsumer("CG", namesrv=namesrv) as consumer:
        queues = consumer.queues("orders")
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        while len(seen) < count and time.monotonic() < deadline:
            seen |= {message.body for message in consumer.poll(1000)}
    return seen
