"""`skylark tail` goes on with queues and brokers that come while it follows."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skylark import ClientSettings, Message, Producer
from skylark.admin.admin import Admin
from skylark.errors import RocketMQError
from skylark.protocol.bodies import MessageQueue
from skylark.testing import EmbeddedServers
from tests.support.skylark_servers import SkylarkBroker

TIMEOUT_S = 120


class Tail:
    """A running `skylark tail`, and what it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def bodies(self, count: int) -> set[str]:
        """The next bodies. Raises queue.Empty if they do not come."""
        return {json.loads(self._lines.get(timeout=TIMEOUT_S))["body"] for _ in range(count)}


@contextmanager
def tail(topic: str, namesrv: str) -> Iterator[Tail]:
    command = [sys.executable, "-m", "skylark", "tail", topic, "--json", "--namesrv", namesrv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Tail(process)
        finally:
            process.kill()


def send_to(producer: Producer, queue: MessageQueue, body: str) -> None:
    """Send, as soon as the producer knows the broker."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            producer.send(Message(queue.topic, body.encode()), queue=queue, timeout_ms=TIMEOUT_S * 1000)
        except RocketMQError:
            assert time.monotonic() < deadline, f"no way to {queue}"
            time.sleep(0.2)
        else:
            return


@pytest.mark.timeout(600)
def test_queues_and_brokers_that_come_later_are_followed(tmp_path: Path) -> None:
    with EmbeddedServers() as servers, Admin(namesrv=servers.namesrv) as admin:
        servers.create_topic("orders", queues=1)
        client = ClientSettings(instance_name="sender", route_refresh_interval_ms=500)
        with (
            Producer("shop", namesrv=servers.namesrv, client=client) as producer,
            tail("orders", servers.namesrv) as following,
        ):
            producer.send(Message("orders", b"first"))
            assert following.bodies(1) == {"first"}
            servers.create_topic("orders", queues=3)
            for queue_id in (1, 2):
                send_to(producer, MessageQueue("orders", "broker-a", queue_id), f"queue {queue_id}")
            assert following.bodies(2) == {"queue 1", "queue 2"}
            with SkylarkBroker(tmp_path / "second", servers.namesrv, {"brokerName": "broker-b"}):
                admin.topics.create("orders", queues=1, broker="broker-b")
                send_to(producer, MessageQueue("orders", "broker-b", 0), "another broker")
                assert following.bodies(1) == {"another broker"}


def test_what_is_missing_because_a_broker_does_not_answer_is_said(tmp_path: Path) -> None:
    with EmbeddedServers() as servers, Admin(namesrv=servers.namesrv) as admin:
        with SkylarkBroker(tmp_path / "second", servers.namesrv, {"brokerName": "broker-b"}) as second:
            admin.topics.create("orders", queues=1)
            with Producer("shop", namesrv=servers.namesrv) as producer:
                producer.send(Message("orders", b"here"), queue=MessageQueue("orders", "broker-a", 0))
            second.signal(signal.SIGSTOP)
            words = ("tail", "orders", "--from", "begin", "--no-follow", "--body")
            done = subprocess.run(
                [sys.executable, "-m", "skylark", *words, "--namesrv", servers.namesrv],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
    assert (done.returncode, done.stdout) == (1, "here\n"), done.stderr
    assert f"no answer from {second.broker}" in done.stderr
