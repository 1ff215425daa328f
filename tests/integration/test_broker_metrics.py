"""A broker at work, and what its page of metrics says of that. Read by Prometheus's own parser."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from skylark.broker.broker import Broker
from skylark.errors import BrokerError
from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.requests.group import UpdateAndCreateSubscriptionGroup
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from tests.support.broker import BrokerClient, running_broker, until

LONG_MS = 60_000


class Page:
    """What was scraped, by the names of series."""

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def sum(self, name: str, **labels: str) -> float:
        """Of all series with these labels; 0 if there is none."""
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


async def scrape(broker: Broker) -> Page:
    def read() -> str:
        with urllib.request.urlopen(f"http://{broker.monitor.address}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    return Page(await asyncio.get_running_loop().run_in_executor(None, read))


def topic_request(topic: str, queues: int = 4) -> UpdateAndCreateTopic:
    return UpdateAndCreateTopic(
        topic=topic, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6,
        topic_filter_type="SINGLE_TAG", order=False, topic_sys_flag=0,
    )  # fmt: skip


async def test_sends_and_pulls_are_counted_once_each(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        for size in (10, 10, 3000):
            await client.send("T", bytes(size))
        with pytest.raises(BrokerError):
            await client.send("no topic", b"x")
        assert len(await client.pull("T")) == 3
        held = asyncio.create_task(client.pull("T", queue_offset=3, suspend_ms=LONG_MS))
        await until(lambda: broker.long_polling.count == 1)
        await client.send("T", b"wake up")
        assert len(await held) == 1
        page = await scrape(broker)
    sends = {"request_code": "send_message_v2", "is_long_polling": "false", "result": "success"}
    assert page.sum("rocketmq_rpc_latency_count", response_code="success", **sends) == 4
    assert page.sum("rocketmq_rpc_latency_count", response_code="invalid_parameter", **sends) == 1
    pulls = {"request_code": "pull_message", "response_code": "success"}
    assert page.sum("rocketmq_rpc_latency_count", is_long_polling="false", **pulls) == 1
    assert page.sum("rocketmq_rpc_latency_count", is_long_polling="true", **pulls) == 1
    assert page.sum("rocketmq_rpc_latency_bucket", le="+Inf", **sends) == 5
    assert page.sum("rocketmq_message_size_bucket", le="1024.0", topic="T") == 3
    assert page.sum("rocketmq_message_size_count", topic="T") == 4
    received = page.sum("rocketmq_throughput_in_total", topic="T")
    assert page.sum("rocketmq_message_size_sum", topic="T") == received > 3000


async def test_what_administrators_make_is_timed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        await client.ask(topic_request("Made"))
        with pytest.raises(BrokerError):
            await client.ask(topic_request("not a name"))
        await client.ask(UpdateAndCreateSubscriptionGroup(SubscriptionGroupConfig(group_name="G")))
        page = await scrape(broker)
    topics, groups = (f"rocketmq_{what}_create_execution_time_count" for what in ("topic", "consumer_group"))
    assert page.sum(topics, invocation_status="success", is_system="false") == 1
    assert page.sum(topics, invocation_status="failure", is_system="false") == 1
    assert page.sum(groups, invocation_status="success", is_system="false") == 1
    assert page.sum("rocketmq_rpc_latency_count", request_code="update_and_create_topic") == 2


async def test_a_timed_message_is_followed_through_the_wheel(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        await client.send("T", b"soon", properties={"TIMER_DELAY_MS": "1500", "UNIQ_KEY": "1"})
        await client.send("T", b"late", properties={"TIMER_DELAY_SEC": "7200", "UNIQ_KEY": "2"})
        await until(lambda: broker.timers.dequeued["T"] == broker.timers.waiting == 1)
        page = await scrape(broker)
    assert page.sum("rocketmq_timer_enqueue_total", topic="T") == 2
    assert page.sum("rocketmq_timer_dequeue_total", topic="T") == 1
    assert page.sum("rocketmq_timer_dequeue_lag") == page.sum("rocketmq_timing_messages", topic="T") == 1
    assert page.sum("rocketmq_timer_message_snapshot", timer_bound_s="14400") == 1
    assert page.sum("rocketmq_delay_message_latency_count", topic="T") == 2
    assert page.sum("rocketmq_delay_message_latency_bucket", topic="T", le="3600.0") == 1
