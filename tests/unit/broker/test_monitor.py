"""Metrics and health over HTTP."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from skylark.broker import monitor
from skylark.broker.monitor import Monitor, most
from skylark.broker.stats import Counter
from skylark.settings import BrokerRole
from tests.support.simulated_disk import SimulatedDisk
from tests.unit.broker.handlers.rig import Rig, rigged

NAMES = {
    "rocketmq_broker_permission",
    "rocketmq_consumer_group_number",
    "rocketmq_messages_in",
    "rocketmq_messages_out",
    "rocketmq_throughput_in",
    "rocketmq_throughput_out",
    "rocketmq_topic_number",
    "skylark_held_pulls",
    "skylark_log_appended_offset",
    "skylark_log_flushed_offset",
    "skylark_log_min_offset",
    "skylark_messages_refused",
    "skylark_open_transactions",
    "skylark_timed_messages",
}
OF_A_MASTER = {"skylark_slave_lag_bytes", "skylark_slave_lag_seconds", "skylark_slaves"}
OF_A_SLAVE = {
    "skylark_master_connected",
    "skylark_master_connections",
    "skylark_master_lag_bytes",
    "skylark_master_lag_seconds",
}
LABELS = ("topic", "consumer_group")


class Watched:
    """A broker without a loop of its own, and its pages."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.monitor = Monitor(rig.broker)
        self.monitor.start("127.0.0.1", 0)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.monitor.address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[str, dict[tuple[str, ...], float]]:
        """By name and labels: the values."""
        status, text = self.get("/metrics")
        assert status == 200
        return {
            family.name: {
                tuple(sample.labels[name] for name in LABELS if name in sample.labels): sample.value
                for sample in family.samples
            }
            for family in text_string_to_metric_families(text)
        }


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    with rigged() as rig:
        made = Watched(rig)
        yield made
        made.monitor.stop()


async def test_the_names_of_all_metrics(watched: Watched) -> None:
    assert set(watched.metrics()) == NAMES | OF_A_MASTER
    watched.rig.broker.role.kind = BrokerRole.SLAVE
    assert set(watched.metrics()) == NAMES | OF_A_SLAVE


async def test_metrics_are_what_the_broker_holds(watched: Watched) -> None:
    broker = watched.rig.broker
    results = [watched.rig.put(topic) for topic in ("A", "A", "B")]
    broker.stats.count_puts(results)
    broker.stats.count_gets("A", "G", 5, 500)
    found = watched.metrics()
    assert found["rocketmq_messages_in"] == {("A",): 2, ("B",): 1}
    assert found["rocketmq_throughput_in"]["B",] == results[2].size
    assert found["rocketmq_messages_out"] == {("A", "G"): 5}
    assert found["rocketmq_throughput_out"] == {("A", "G"): 500}
    assert found["rocketmq_topic_number"][()] == len(broker.topics)
    assert found["rocketmq_consumer_group_number"][()] == len(broker.groups)
    assert found["rocketmq_broker_permission"][()] == 6
    assert found["skylark_log_appended_offset"][()] == broker.store.appended_offset > 0
    assert found["skylark_log_flushed_offset"][()] == 0
    broker.store.flush_log()
    assert watched.metrics()["skylark_log_flushed_offset"][()] == broker.store.appended_offset


async def test_labels_may_hold_anything(watched: Watched) -> None:
    watched.rig.broker.stats.count_gets('to"pic\\\n', "gröup", 1, 1)
    assert watched.metrics()["rocketmq_messages_out"] == {('to"pic\\\n', "gröup"): 1}


async def test_only_the_busiest_topics_have_series(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "SERIES_MAX", 3)
    for number in range(10):
        watched.rig.broker.stats.count_gets(f"T{number}", "G", number, 1)
    found = watched.metrics()["rocketmq_messages_out"]
    assert set(found) == {("T7", "G"), ("T8", "G"), ("T9", "G")}


def test_the_busiest_of_few_are_all() -> None:
    table: dict[Any, Any] = {"a": Counter(), "b": Counter()}
    assert most(table) == list(table.items())


async def test_health_says_why_nothing_can_be_stored(watched: Watched) -> None:
    assert watched.get("/health") == (200, "ok\n")
    disk = watched.rig.broker.store._disk
    assert isinstance(disk, SimulatedDisk)
    disk.used = 0.95
    watched.rig.broker.store.housekeeper.clean()
    assert watched.get("/health") == (503, "disk of /store is too full\n")
    disk.used = 0.1
    watched.rig.broker.store.housekeeper.clean()
    assert watched.get("/health") == (200, "ok\n")


async def test_other_pages_are_not_there(watched: Watched) -> None:
    for path in ("/", "/metricsx", "/../etc/passwd"):
        assert watched.get(path) == (404, "there are /metrics and /health\n")


async def test_a_port_that_is_taken_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    with rigged() as rig, socket.create_server(("127.0.0.1", 0)) as taken:
        made = Monitor(rig.broker)
        made.start("127.0.0.1", taken.getsockname()[1])
        assert made.address == ""
        assert "no metrics on 127.0.0.1:" in caplog.text
        made.stop()


async def test_stopping_frees_the_port_and_may_be_done_twice(watched: Watched) -> None:
    host, _, port = watched.monitor.address.rpartition(":")
    watched.monitor.stop()
    watched.monitor.stop()
    with socket.create_server((host, int(port))):
        pass
