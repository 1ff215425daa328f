"""The commands of docs/migration.md, in both directions, with Apache's broker beside ours or in its place."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.peers.apache import ApacheBroker, ApacheNameServer
from skylark import ClientSettings, ConsumeFrom, Message, Producer, PullConsumer, PullConsumerSettings
from skylark.admin.admin import Admin
from skylark.admin.results import Group
from skylark.errors import NoRoute
from skylark.processes import GroupProcess, PortReservation
from tests.interop.mqadmin import admin_classpath
from tests.interop.servers import PATIENT
from tests.support.pages import ROOT, blocks
from tests.support.skylark_servers import SMALL_STORE

pytestmark = [pytest.mark.nightly, pytest.mark.interop("java", "javac", "mvn"), pytest.mark.timeout(600)]

TIMEOUT_S = 120
COUNT = 40
QUEUES = 6
WRITE = 2
SIDE_BY_SIDE, TO_SKYLARK, TO_APACHE = [
    block.commands() for block in blocks(ROOT / "docs" / "migration.md") if block.run_by
]
LAYOUT = {**SMALL_STORE, **PATIENT, "reviveQueueNum": 0}


class Page:
    """Runs lines of the page with this machine's name server and directories; servers go on until the end."""

    def __init__(self, directory: Path, namesrv: str) -> None:
        self.directory = directory
        self._namesrv = namesrv
        self._ports = PortReservation(-2, 0, 1)
        self._servers: list[GroupProcess] = []

    def given(self, line: str) -> str:
        """A line with what is so here."""
        line = line.replace("NAMESRV:9876", self._namesrv).replace("/data/", f"{self.directory}/data/")
        return line.replace("--bind 0.0.0.0 --advertise HOST", "--bind 127.0.0.1 --advertise 127.0.0.1")

    def run(self, line: str) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-c", self.given(line)],
            cwd=self.directory,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

    def serve(self, line: str, *, port: int | None = None) -> GroupProcess:
        self._ports.release()
        command = [sys.executable, "-m", "skylark", *shlex.split(self.given(line))[1:]]
        command += ["--port", str(port or self._ports.base), "--set", "metrics_port=0"]
        for key, value in SMALL_STORE.items():
            command += ["--set", f"{key}={value}"]
        log = self.directory / f"skylark-{len(self._servers)}.log"
        server = GroupProcess(command, log=log, directory=self.directory)
        self._servers.append(server)
        server.wait_until(lambda: "ready after" in server.log_text(), "ready", TIMEOUT_S)
        return server

    def close(self) -> None:
        self._ports.release()
        for server in self._servers:
            server.kill()


@contextmanager
def page_of(directory: Path, namesrv: str) -> Iterator[Page]:
    page = Page(directory, namesrv)
    try:
        yield page
    finally:
        page.close()


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    with ApacheNameServer(admin_classpath(), tmp_path / "name-server") as server:
        yield server.address


def apache_broker(directory: Path, namesrv: str) -> ApacheBroker:
    store = directory / "data" / "rocketmq" / "store"
    return ApacheBroker(admin_classpath(), directory / "home", store, name_server=namesrv, settings=LAYOUT)


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.1)


def brokers_of(namesrv: str, *, writable: bool = False) -> set[str]:
    """Which brokers serve the topic, or take messages for it."""
    with Admin(namesrv=namesrv) as admin:
        try:
            brokers = admin.topics.route("orders").brokers
        except NoRoute:
            return set()
    return {part.broker_name for part in brokers if not writable or part.permission & WRITE}


def send(namesrv: str, first: int, *, name: str) -> set[str]:
    """Send messages and say which brokers took them."""
    with Producer("shop", namesrv=namesrv, client=ClientSettings(instance_name=name)) as producer:
        receipts = [
            producer.send(Message("orders", b"%d" % number, keys=[str(number)]), timeout_ms=TIMEOUT_S * 1000)
            for number in range(first, first + COUNT)
        ]
    return {receipt.queue.broker_name for receipt in receipts}


def received(namesrv: str, wanted: set[int], group: str) -> set[int]:
    """What can be consumed, once all that is wanted has come."""
    found: set[int] = set()
    settings = PullConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
    client = ClientSettings(instance_name=group)
    with PullConsumer(group, namesrv=namesrv, settings=settings, client=client) as consumer:
        consumer.subscribe("orders")
        deadline = time.monotonic() + TIMEOUT_S
        while not wanted <= found and time.monotonic() < deadline:
            found |= {int(message.body) for message in consumer.poll(500)}
    return found


def test_side_by_side_as_the_page_says(tmp_path: Path, name_server: str) -> None:
    start, export, take_over, drain = SIDE_BY_SIDE
    with apache_broker(tmp_path, name_server), page_of(tmp_path, name_server) as page:
        with Admin(namesrv=name_server) as admin:
            admin.topics.create("orders", queues=QUEUES, broker="broker-a")
            admin.groups.create(Group("billing", retries_max=5), broker="broker-a")
        page.serve(start)
        page.run(export)
        page.run(take_over)
        with Admin(namesrv=name_server) as admin:
            assert {topic.name: topic.read_queues for topic in admin.topics.on_broker("broker-sky")}[
                "orders"
            ] == QUEUES
            assert {group.name: group.retries_max for group in admin.groups.on_broker("broker-sky")}[
                "billing"
            ] == 5
        until("both serve the topic", lambda: brokers_of(name_server) == {"broker-a", "broker-sky"})
        assert send(name_server, 0, name="before") == {"broker-a", "broker-sky"}
        page.run(drain)
        until("only ours takes messages", lambda: brokers_of(name_server, writable=True) == {"broker-sky"})
        assert send(name_server, COUNT, name="after") == {"broker-sky"}
        wanted = set(range(2 * COUNT))
        assert received(name_server, wanted, "billing") == wanted


def test_directory_is_handed_over_to_us_and_back_as_the_page_says(tmp_path: Path, name_server: str) -> None:
    stop, copy, verify, start = TO_SKYLARK
    assert stop == "mqshutdown broker"
    apache = apache_broker(tmp_path, name_server)
    with page_of(tmp_path, name_server) as page, apache:
        page.run(f"skylark topic create orders --namesrv {name_server}")
        send(name_server, 0, name="to-apache")
        apache.stop()
        configuration = {"brokerName": apache.name, "brokerClusterName": apache.cluster, **SMALL_STORE}
        (tmp_path / "broker.conf").write_text(
            "".join(f"{key}={configuration[key]}\n" for key in configuration)
        )
        page.run(copy)
        page.run(verify)
        ours = page.serve(start, port=apache.port)
        wanted = set(range(COUNT))
        until("ours serves the topic", lambda: brokers_of(name_server) == {"broker-a"})
        assert received(name_server, wanted, "billing") == wanted
        send(name_server, COUNT, name="to-skylark")
        assert ours.terminate(TIMEOUT_S) == 0

        check, away, back, start_apache = TO_APACHE
        assert start_apache.startswith("sh mqbroker ")
        for line in (check, away, back):
            page.run(line)
        apache.start()
        wanted = set(range(2 * COUNT))
        assert received(name_server, wanted, "audit") == wanted
