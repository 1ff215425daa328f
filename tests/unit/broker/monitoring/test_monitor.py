"""Metrics and health over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from skylark.broker.clients import ACTIVELY, PASSIVELY, ConnectedClient
from skylark.broker.monitoring import metrics
from skylark.broker.monitoring.metric_specs import METRICS, markdown
from skylark.broker.monitoring.metrics import most, settled
from skylark.broker.monitoring.stats import Counter
from skylark.histogram import TRANSACTION_S, Histogram
from skylark.model import names
from skylark.model.message import PutMessage
from skylark.protocol.bodies import ConsumerData, SubscriptionData, TopicConfig
from skylark.remoting import monitor
from skylark.remoting.address import split_address
from skylark.remoting.latency import ONEWAY, UNKNOWN_CODE, RequestLatencies
from skylark.remoting.monitor import Monitor
from skylark.remoting.pages import PAGES_AT_ONCE_MAX, _Quiet
from skylark.settings import BrokerRole
from tests.support.broker import until
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import message
from tests.unit.broker.handlers.rig import Rig, rigged

ROOT = Path(__file__).parents[4]
OF_A_MASTER = {name for name, spec in METRICS.items() if spec.text.endswith("Of a master.")}
OF_A_SLAVE = {name for name, spec in METRICS.items() if spec.text.endswith("Of a slave.")}
COMMON = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
DISK = ("local", "disk")
Found = dict[str, dict[tuple[str, ...], Any]]


class Watched:
    """A broker without a loop of its own, and its pages."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.monitor = Monitor(rig.broker.make_pages)
        self.monitor.start("127.0.0.1", 0)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.monitor.address}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> Found:
        """By name and the values of a metric's own labels: the values. Names and labels are as described.

        A histogram has the counts of its ranges, and then the sum.
        """
        status, text = self.get("/metrics")
        assert status == 200
        found: Found = {}
        for family in text_string_to_metric_families(text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            spec = METRICS[name]
            assert family.type == spec.kind
            common = COMMON if name.startswith("rocketmq_") else {}
            values: dict[tuple[str, ...], Any] = found.setdefault(name, {})
            for sample in family.samples:
                labels = dict(sample.labels)
                bound = labels.pop("le", None)
                assert {**labels, **common} == labels
                assert set(labels) == {*common, *spec.labels}
                key = tuple(labels[label] for label in spec.labels)
                if spec.kind == "histogram":
                    assert bound is None or bound in {"+Inf", *(f"{each}.0" for each in spec.bounds)}
                    _add_to_histogram(
                        values.setdefault(key, []), sample.name.removeprefix(name), bound, sample.value
                    )
                else:
                    assert sample.name == name
                    values[key] = sample.value
            if spec.kind == "histogram":
                assert all(len(histogram) == len(spec.bounds) + 2 for histogram in values.values())
        return found


def _add_to_histogram(histogram: list[float], suffix: str, bound: str | None, value: float) -> None:
    """Samples come in order: the ranges, of which each includes those before, then count and sum."""
    if suffix == "_bucket":
        assert bound is not None
        histogram.append(value - sum(histogram))
    elif suffix == "_count":
        assert value == sum(histogram)
    else:
        assert suffix == "_sum"
        histogram.append(value)


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    with rigged() as rig:
        made = Watched(rig)
        yield made
        made.monitor.stop()


async def test_all_metrics_are_there_and_no_others(watched: Watched) -> None:
    assert set(watched.metrics()) == set(METRICS) - OF_A_SLAVE
    watched.rig.broker.role.kind = BrokerRole.SLAVE
    assert set(watched.metrics()) == set(METRICS) - OF_A_MASTER


async def test_metrics_are_what_the_broker_holds(watched: Watched) -> None:
    broker = watched.rig.broker
    results = [watched.rig.put(topic) for topic in ("A", "A", "B")]
    broker.stats.count_puts(results)
    broker.stats.count_gets("A", "G", 5, 500)
    broker.stats.count_send_back("A", "G")
    found = watched.metrics()
    assert found["rocketmq_messages_in_total"] == {
        ("A", "normal", "false"): 2,
        ("B", "normal", "false"): 1,
    }
    assert found["rocketmq_throughput_in_total"]["B", "normal", "false"] == results[2].size
    assert found["rocketmq_messages_out_total"] == {("A", "G", "false", "false"): 5}
    assert found["rocketmq_throughput_out_total"] == {("A", "G", "false", "false"): 500}
    assert found["skylark_messages_sent_back_total"] == {("A", "G"): 1}
    assert found["rocketmq_topic_number"][()] == len(broker.topics)
    assert found["rocketmq_consumer_group_number"][()] == len(broker.groups)
    assert found["rocketmq_broker_permission"][()] == 6


async def test_labels_say_what_kind_of_topic_and_group_it_is(watched: Watched) -> None:
    broker = watched.rig.broker
    broker.topics.update(
        TopicConfig(topic_name="F", attributes={"+message.type": "FIFO"}), now_ms=watched.rig.clock.now_ms()
    )
    for topic in ("F", "%DLQ%G", "SCHEDULE_TOPIC_XXXX"):
        broker.stats.count_puts([watched.rig.append(message(topic, 0, b"x"))])
    broker.stats.count_gets("%RETRY%G", "G", 1, 1)
    broker.stats.count_gets("F", "CID_RMQ_SYS_TRANS", 1, 1)
    found = watched.metrics()
    assert set(found["rocketmq_messages_in_total"]) == {
        ("F", "fifo", "false"),
        ("%DLQ%G", "normal", "false"),
        ("SCHEDULE_TOPIC_XXXX", "delay", "true"),
    }
    assert set(found["rocketmq_messages_out_total"]) == {
        ("%RETRY%G", "G", "false", "true"),
        ("F", "CID_RMQ_SYS_TRANS", "true", "false"),
    }
    assert found["rocketmq_send_to_dlq_messages_total"] == {("G", "%DLQ%G", "false"): 1}


async def test_storage_is_measured(watched: Watched) -> None:
    store, disk = watched.rig.broker.store, DISK
    assert watched.metrics()["rocketmq_storage_message_reserve_time"] == {disk: 0}
    watched.rig.put()
    watched.rig.clock.advance(5000)
    found = watched.metrics()
    end = store.appended_offset
    assert end > 0
    assert found["rocketmq_storage_size"] == {disk: end}
    assert found["rocketmq_storage_flush_behind_bytes"] == {disk: end}
    assert found["rocketmq_storage_dispatch_behind_bytes"] == {disk: 0}
    assert found["rocketmq_storage_message_reserve_time"] == {disk: 5000}
    assert found["skylark_log_appended_offset"][()] == end
    assert found["skylark_log_flushed_offset"][()] == 0
    store.flush_log()
    found = watched.metrics()
    assert found["skylark_log_flushed_offset"][()] == end
    assert found["rocketmq_storage_flush_behind_bytes"] == {disk: 0}


async def test_lag_is_what_a_group_has_still_to_do(watched: Watched) -> None:
    rig, offsets = watched.rig, watched.rig.broker.offsets
    for queue_id in (0, 0, 0, 1):
        rig.put("T", queue_id)
        rig.clock.advance(1000)
    offsets.commit("T", "G", 0, 1, now_ms=0)
    offsets.note_pull("T", "G", 0, 2)
    offsets.commit("T", "DONE", 0, 3, now_ms=0)
    offsets.commit("T", "DONE", 1, 99, now_ms=0)
    offsets.commit("GONE", "G", 0, 1, now_ms=0)
    found = watched.metrics()
    behind, done = ("T", "G", "false", "false"), ("T", "DONE", "false", "false")
    assert found["rocketmq_consumer_lag_messages"] == {behind: 3, done: 0}
    assert found["rocketmq_consumer_inflight_messages"] == {behind: 1, done: 0}
    assert found["rocketmq_consumer_ready_messages"] == {behind: 2, done: 0}
    assert found["rocketmq_consumer_lag_latency"] == {behind: 3000, done: 0}
    assert found["rocketmq_consumer_queueing_latency"] == {behind: 2000, done: 0}


async def test_lag_includes_retries_and_dead_letters_are_counted(watched: Watched) -> None:
    rig, broker = watched.rig, watched.rig.broker
    broker.groups.find("G", now_ms=0)
    for topic in ("%RETRY%G", "%DLQ%G"):
        broker.topics.ensure_topic(topic, now_ms=0)
        for _ in range(3):
            rig.put(topic)
    found = watched.metrics()
    assert found["rocketmq_consumer_lag_messages"] == {("%RETRY%G", "G", "false", "true"): 3}
    assert found["skylark_dead_letters"] == {("G",): 3}
    broker.offsets.commit("%DLQ%G", "G", 0, 2, now_ms=0)
    found = watched.metrics()
    assert found["rocketmq_consumer_lag_messages"] == {("%RETRY%G", "G", "false", "true"): 3}
    assert found["skylark_dead_letters"] == {("G",): 1}, "two were sent again"


async def test_only_the_slowest_groups_have_series_and_ages(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SERIES_MAX", 3)
    monkeypatch.setattr(metrics, "AGES_MAX", 8)  # the queues of two pairs
    for _ in range(10):
        watched.rig.put("T", 0)
    for number in range(10):
        watched.rig.broker.offsets.commit("T", f"G{number}", 0, number, now_ms=0)
    found = watched.metrics()
    assert [key[1] for key in found["rocketmq_consumer_lag_messages"]] == ["G0", "G1", "G2"]
    assert [key[1] for key in found["rocketmq_consumer_lag_latency"]] == ["G0", "G1"]


async def test_what_cannot_be_read_has_no_age(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    watched.rig.put("T", 0)
    watched.rig.broker.offsets.commit("T", "G", 0, 0, now_ms=0)
    monkeypatch.setattr(watched.rig.broker.store, "store_timestamp", fail)
    found = watched.metrics()
    assert found["rocketmq_consumer_lag_messages"] == {("T", "G", "false", "false"): 1}
    assert found["rocketmq_consumer_lag_latency"] == {("T", "G", "false", "false"): 0}


@pytest.mark.parametrize(("consume_type", "mode"), [(ACTIVELY, "pull"), (PASSIVELY, "push")])
async def test_connections_are_counted_by_kind(watched: Watched, consume_type: str, mode: str) -> None:
    rig = watched.rig
    for client_id in ("1", "2"):
        client = ConnectedClient(rig.connect().peer, client_id, "JAVA", 479)
        rig.broker.producers.register("P", client, now=0.0)
    rig.broker.groups.find("G", now_ms=0)
    data = ConsumerData(group_name="G", consume_type=consume_type, message_model="CLUSTERING")
    rig.broker.consumers.register(
        ConnectedClient(rig.client.peer, "3", "PYTHON", 479), data, notify=False, now=0.0
    )
    found = watched.metrics()
    assert found["rocketmq_producer_connections"] == {("java", "v5_3_3", "remoting"): 2}
    assert found["rocketmq_consumer_connections"] == {("python", "v5_3_3", "remoting", "G", mode, "false"): 1}


async def test_kinds_of_subscriptions_are_counted(watched: Watched) -> None:
    rig = watched.rig
    for number, tag in enumerate(("a", "b", "a")):
        member = ConnectedClient(rig.connect().peer, f"c{number}", "JAVA", 479)
        data = ConsumerData(group_name="G", subscription_data_set=[SubscriptionData("T", tag)])
        rig.broker.consumers.register(member, data, notify=False, now=0.0)
    assert watched.metrics()["skylark_subscription_kinds"] == {("G",): 2}


async def test_timed_and_half_messages_are_counted(watched: Watched) -> None:
    broker = watched.rig.broker
    broker.timers.load_metrics(b'{"timingCount":{"T":{"count":2,"timeStamp":1}}}')
    broker.transactions.load()
    watched.rig.append(message(names.HALF_TOPIC, 0, b"x"))
    broker.transactions.commits["T"] += 3
    broker.transactions.rollbacks["U"] += 1
    found = watched.metrics()
    assert found["rocketmq_commit_messages_total"] == {("T",): 3}
    assert found["rocketmq_rollback_messages_total"] == {("U",): 1}
    assert found["rocketmq_timing_messages"] == {("T", *DISK): 2}
    assert found["rocketmq_half_messages"] == {(names.HALF_TOPIC,): 1}
    assert found["rocketmq_timer_enqueue_lag"] == found["rocketmq_timer_enqueue_latency"] == {DISK: 0}


async def test_timers_are_measured(watched: Watched) -> None:
    rig, timers = watched.rig, watched.rig.broker.timers
    timers.load()
    for topic, delay_s in (("T", 3), ("T", 100), ("U", 100_000)):
        wanted = PutMessage(topic, 0, b"x", born_timestamp=rig.clock.now_ms())
        timers.admit(wanted, {"TIMER_DELAY_SEC": str(delay_s), "UNIQ_KEY": f"{topic}{delay_s}"})
        rig.append(wanted)
    rig.clock.advance(1500)
    found = watched.metrics()
    assert found["rocketmq_timer_enqueue_lag"] == {DISK: 3}
    assert found["rocketmq_timer_enqueue_latency"] == {DISK: 1500}
    assert found["rocketmq_timer_enqueue_total"] == {}
    await timers.step()
    found = watched.metrics()
    assert found["rocketmq_timer_enqueue_lag"] == found["rocketmq_timer_enqueue_latency"] == {DISK: 0}
    assert found["rocketmq_timer_enqueue_total"] == {("T", *DISK): 2, ("U", *DISK): 1}
    assert found["rocketmq_timer_dequeue_total"] == {}
    assert found["rocketmq_timer_dequeue_lag"] == {DISK: 3}
    assert found["rocketmq_timing_messages"] == {("T", *DISK): 2, ("U", *DISK): 1}
    due = {key[0]: count for key, count in found["rocketmq_timer_message_snapshot"].items()}
    assert due == {"5": 1, "60": 0, "300": 1, "900": 0, "3600": 0, "14400": 0, "28800": 0, "86400": 0}
    delays = found["rocketmq_delay_message_latency"]
    assert delays["T", *DISK][:-1] == [1, 1, 0, 0, 0, 0, 0]
    assert delays["U", *DISK][:-1] == [0, 0, 0, 0, 0, 1, 0]
    rig.clock.advance(5000)
    await timers.step()
    assert watched.metrics()["rocketmq_timer_dequeue_total"] == {("T", *DISK): 1}


async def test_requests_creations_sizes_and_commits_are_measured(watched: Watched) -> None:
    broker = watched.rig.broker
    broker.latencies = RequestLatencies(lambda: 10.0045)
    for code, response_code, held in (
        (310, 0, False),
        (310, 0, False),
        (11, 19, True),
        (UNKNOWN_CODE, 3, False),
    ):
        broker.latencies.count(code, response_code, 10.0, was_held=held)
    broker.latencies.count(15, 987, 10.0, 3, result=ONEWAY)
    with broker.stats.creation("topic", lambda: 0.0, is_system=False):
        pass
    with pytest.raises(KeyError), broker.stats.creation("consumer_group", lambda: 0.0, is_system=True):
        raise KeyError
    broker.stats.count_puts([watched.rig.put("T", 0, bytes(2000)), watched.rig.put("T", 0, b"x")])
    broker.transactions.commit_times["T"] = Histogram(TRANSACTION_S)
    broker.transactions.commit_times["T"].add(70)
    found = watched.metrics()
    assert found["rocketmq_rpc_latency"] == {
        ("remoting", "send_message_v2", "success", "false", "success"): [0, 0, 2, *[0] * 7, 8],
        ("remoting", "pull_message", "pull_not_found", "true", "success"): [0, 0, 1, *[0] * 7, 4],
        ("remoting", "unknown", "request_code_not_supported", "false", "success"): [0, 0, 1, *[0] * 7, 4],
        ("remoting", "update_consumer_offset", "987", "false", "oneway"): [0, 0, 3, *[0] * 7, 12],
    }
    assert found["rocketmq_topic_create_execution_time"] == {("success", "false"): [1, 0, 0, 0, 0, 0, 0]}
    assert found["rocketmq_consumer_group_create_execution_time"] == {
        ("failure", "true"): [1, 0, 0, 0, 0, 0, 0]
    }
    size = found["rocketmq_throughput_in_total"]["T", "normal", "false"]
    assert found["rocketmq_message_size"] == {("T", "normal", "false"): [1, 1, 0, 0, 0, 0, 0, size]}
    assert found["rocketmq_finish_message_latency"] == {("T",): [0, 0, 1, 0, 0, 0, 0, 70]}
    assert found["rocketmq_processor_watermark"] == {("send",): 3, ("pull",): 1}


def test_a_table_that_grows_is_read_again() -> None:
    table = {number: number for number in range(3)}
    added = iter(range(10, 12))

    def read() -> list[int]:
        copy = []
        for key in table:
            copy.append(key)
            if (number := next(added, None)) is not None:
                table[number] = number
        return copy

    assert settled(read) == [0, 1, 2, 10, 11]


def test_a_table_that_never_settles_is_an_error() -> None:
    def read() -> None:
        raise RuntimeError("dictionary changed size during iteration")

    with pytest.raises(RuntimeError):
        settled(read)


async def test_a_table_that_never_settles_costs_its_own_metrics_alone(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read() -> None:
        raise RuntimeError("dictionary changed size during iteration")

    watched.rig.put("T", 0)
    watched.rig.broker.offsets.commit("T", "G", 0, 0, now_ms=0)
    monkeypatch.setattr(watched.rig.broker.offsets, "topics_by_group", read)
    found = watched.metrics()
    assert found["rocketmq_consumer_lag_messages"] == {}
    assert found["rocketmq_storage_size"]["local", "disk"] > 0
    assert "some metrics are missing" in caplog.text


async def test_scrapes_while_tables_grow(watched: Watched) -> None:
    """The loop goes on while a thread scrapes: neither waits for the other, and nothing fails."""
    broker = watched.rig.broker
    watched.rig.put("T", 0)
    scrape = asyncio.get_running_loop().run_in_executor(None, lambda: [watched.metrics() for _ in range(3)])
    number = 0
    while not scrape.done():
        number += 1
        broker.offsets.commit("T", f"G{number % 5000}", 0, 0, now_ms=0)
        broker.stats.count_gets("T", f"G{number % 5000}", 1, 1)
        broker.producers.register(
            f"P{number % 50}", ConnectedClient(watched.rig.client.peer, "1", "JAVA", 479), now=0.0
        )
        await asyncio.sleep(0.0005)
    assert all(found["rocketmq_topic_number"] for found in scrape.result())
    assert number


def test_the_reference_is_up_to_date() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert page == markdown(), (
        "run: python -m skylark.broker.monitoring.metric_specs > docs/reference/metrics.md"
    )


async def test_labels_may_hold_anything(watched: Watched) -> None:
    watched.rig.broker.stats.count_gets('to"pic\\\n', "gröup", 1, 1)
    assert watched.metrics()["rocketmq_messages_out_total"] == {('to"pic\\\n', "gröup", "false", "false"): 1}


async def test_only_the_busiest_topics_have_series(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES_MAX", 3)
    for number in range(10):
        watched.rig.broker.stats.count_gets(f"T{number}", "G", number, 1)
    found = watched.metrics()["rocketmq_messages_out_total"]
    assert {key[0] for key in found} == {"T7", "T8", "T9"}


async def test_only_the_busiest_topics_have_histograms(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "HISTOGRAMS_MAX", 2)
    for number in range(5):
        watched.rig.broker.stats.count_puts([watched.rig.put(f"T{number}")] * (number + 1))
    found = watched.metrics()
    assert {key[0] for key in found["rocketmq_message_size"]} == {"T3", "T4"}
    assert len(found["rocketmq_messages_in_total"]) == 5


def test_the_busiest_of_few_are_all() -> None:
    table: dict[Any, Any] = {"a": Counter(), "b": Counter()}
    assert most(table) == list(table.items())


async def test_health_says_why_nothing_can_be_stored(watched: Watched) -> None:
    assert watched.get("/health") == (200, "ok\n")
    disk = watched.rig.broker.store._disk
    assert isinstance(disk, SimulatedDisk)
    disk.used = 0.95
    watched.rig.broker.store.housekeeper.clean()
    assert watched.get("/health") == watched.get("/ready") == (503, "disk of /store is too full\n")
    assert watched.metrics()["skylark_store_writable"][()] == 0
    disk.used = 0.1
    watched.rig.broker.store.housekeeper.clean()
    assert watched.get("/health") == (200, "ok\n")


async def test_a_broker_is_ready_when_it_does_its_work(watched: Watched) -> None:
    broker = watched.rig.broker
    assert watched.get("/ready") == (200, "ok\n")
    broker.live.current = replace(broker.live.current, permission=0)
    assert watched.get("/health") == (200, "ok\n")
    assert watched.get("/ready") == (503, "its permission is neither to be read nor to be written\n")
    broker.role.kind = BrokerRole.SLAVE
    assert watched.get("/ready") == (503, "not connected to its master\n")
    broker.role.slave.sees_master = True
    assert watched.get("/ready") == (200, "ok\n")


async def test_other_pages_are_not_there(watched: Watched) -> None:
    for path in ("/metricsx", "/../etc/passwd"):
        assert watched.get(path) == (404, "there are /metrics, /health and /ready\n")


async def test_no_more_connections_than_there_may_be_threads(watched: Watched) -> None:
    host, port = split_address(watched.monitor.address)
    assert watched.get("/health")[0] == 200

    def threads() -> int:
        return sum("process_request_thread" in thread.name for thread in threading.enumerate())

    await until(lambda: not threads())
    with contextlib.ExitStack() as opened:
        idle = [
            opened.enter_context(socket.create_connection((host, port), 60))
            for _ in range(PAGES_AT_ONCE_MAX + 8)
        ]
        for refused in idle[PAGES_AT_ONCE_MAX:]:
            assert refused.recv(1) == b""
        assert threads() <= PAGES_AT_ONCE_MAX
    await until(lambda: not threads())
    assert watched.get("/health")[0] == 200


async def test_clients_that_say_nothing_or_vanish_are_not_heard_of(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_Quiet, "timeout", 0.2)
    address = split_address(watched.monitor.address)
    with socket.create_connection(address, 60) as silent:
        assert silent.recv(1) == b""
    with socket.create_connection(address, 60) as vanishing:
        vanishing.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        vanishing.sendall(b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 20_000)
    assert watched.get("/health")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


async def test_the_next_free_port_is_used_if_one_is_taken() -> None:
    with rigged() as rig, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first, second = Monitor(rig.broker.make_pages), Monitor(rig.broker.make_pages)
        for made in (first, second):
            made.start("127.0.0.1", port)
        assert int(first.address.rpartition(":")[2]) > port
        assert first.address != second.address
        assert first.remark == second.remark == f"port {port} is taken"
        for made in (first, second):
            made.stop()


@pytest.mark.parametrize("errno_", [errno.EACCES, errno.EADDRINUSE])
async def test_a_broker_without_a_port_for_metrics_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, errno_: int
) -> None:
    tried = []

    def refuse(host: str, port: int) -> None:
        tried.append(port)
        raise OSError(errno_, os.strerror(errno_))

    monkeypatch.setattr(monitor, "SocketListener", refuse)
    with rigged() as rig:
        made = Monitor(rig.broker.make_pages)
        made.start("127.0.0.1", 65_500)
        assert tried == ([65_500] if errno_ == errno.EACCES else list(range(65_500, 65_536)))
        assert made.address == ""
        assert made.remark == f"no metrics on 127.0.0.1:65500: {os.strerror(errno_)}"
        assert made.remark in caplog.text
        made.stop()


async def test_stopping_frees_the_port_of_pages_that_nobody_read() -> None:
    with rigged() as rig:
        made = Monitor(rig.broker.make_pages)
        made.start("127.0.0.1", 0)
        host, _, port = made.address.rpartition(":")
        made.stop()
        with socket.create_server((host, int(port))):
            pass


async def test_a_broker_starts_without_what_serves_the_pages() -> None:
    """Whoever waits for the first send does not wait for it."""
    code = "import sys, skylark.broker.broker; print('prometheus_client' in sys.modules)"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    said, _ = await child.communicate()
    assert (child.returncode, said) == (0, b"False\n")


async def test_stopping_frees_the_port_and_may_be_done_twice(watched: Watched) -> None:
    host, _, port = watched.monitor.address.rpartition(":")
    assert watched.get("/health")[0] == 200
    watched.monitor.stop()
    watched.monitor.stop()
    with socket.create_server((host, int(port))):
        pass
