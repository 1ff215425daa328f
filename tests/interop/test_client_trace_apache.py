"""Traces across makes: Apache's tool reads our consumers', our command reads those of Java clients."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skylark import Message, ProducerSettings, aio
from skylark.cli.main import app
from skylark.client.consumer.listeners import ConsumeResult, Messages
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from tests.interop.client_driver import SCENARIOS_TIMEOUT_S, ClientDriver
from tests.interop.mqadmin import MqAdmin, admin_classpath
from tests.interop.servers import ApacheServers, create_topic
from tests.interop.verdict import results
from tests.support.broker import until
from tests.support.consumer import fast
from tests.support.names import fresh_name

pytestmark = [pytest.mark.interop("java", "mvn"), pytest.mark.timeout(300)]
WAIT_S = 120
STEPS = 7
"""Sent once; by one group consumed twice, as it fails the first time, and once by the other."""


def life(name_server: str, message_id: str) -> list[dict[str, Any]]:
    """What our command shows."""
    words = ["message", "trace", message_id, "--namesrv", name_server, "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code in (0, 1), result.output
    found: list[dict[str, Any]] = json.loads(result.stdout.splitlines()[0])
    return found


def steps(found: list[dict[str, Any]]) -> set[tuple[str, str, str, str]]:
    return {(step["group"], step["what"], step["outcome"], step["details"]) for step in found}


async def test_sf_056_apache_s_tool_reads_what_our_consumers_tell(
    apache: ApacheServers, tmp_path: Path
) -> None:
    topic, name = fresh_name("apache-life"), fresh_name("life")
    create_topic(apache.broker, topic, 1)

    def failing_once(messages: Messages) -> ConsumeResult:
        return ConsumeResult.SUCCESS if messages[0].reconsume_times else ConsumeResult.LATER

    def consumer(group: str, listener: Any, *, orderly: bool) -> AsyncPushConsumer:
        settings = fast(trace=True, orderly=orderly)
        made = AsyncPushConsumer(group, namesrv=apache.name_server, settings=settings)
        made.subscribe(topic, "*", listener)
        return made

    settings = ProducerSettings(trace=True, trace_flush_ms=50, send_timeout_ms=20_000)
    async with (
        aio.Producer(f"{name}-producer", namesrv=apache.name_server, settings=settings) as producer,
        consumer(f"{name}-concurrent", failing_once, orderly=False),
        consumer(f"{name}-orderly", lambda messages: None, orderly=True),
    ):
        receipt = await producer.send(Message(topic, b"x"))  # without keys, which the tool trips over easily

        async def is_whole() -> bool:
            return len(await asyncio.to_thread(life, apache.name_server, receipt.message_id)) >= STEPS

        await until(is_whole, timeout_s=WAIT_S)
    tool = MqAdmin(admin_classpath(), apache.name_server, tmp_path)
    [shown] = await asyncio.to_thread(tool.run, ["queryMsgTraceById", "-i", receipt.message_id])
    rows = [line.split() for line in shown.splitlines()]
    told = {(row[1], row[-1]) for row in rows if len(row) > 2 and row[0] in ("Pub", "Sub")}
    assert told == {
        (f"{name}-concurrent", "failed"),
        (f"{name}-concurrent", "success"),
        (f"{name}-orderly", "success"),
        (f"{name}-producer", "success"),
    }, shown


@pytest.mark.nightly
def test_our_command_reads_what_java_clients_tell(apache: ApacheServers, tmp_path: Path) -> None:
    driver = ClientDriver("5.3.3", apache.name_server, tmp_path)
    with driver.running("traced") as process:
        assert results(process, SCENARIOS_TIMEOUT_S) == {"traced": None}
        found = re.search(r"^TRACED (\S+)$", process.log_text(), re.MULTILINE)
    assert found is not None

    async def is_whole() -> bool:
        return len(await asyncio.to_thread(life, apache.name_server, found[1])) >= STEPS

    asyncio.run(until(is_whole, timeout_s=WAIT_S))
    told = steps(life(apache.name_server, found[1]))
    concurrent, orderly = f"TracedConcurrent-{driver.name}", f"TracedOrderly-{driver.name}"
    producer = f"TracedProducer-{driver.name}"
    assert {step[:3] for step in told if step[1] == "sent"} == {(producer, "sent", "ok")}
    assert {step for step in told if step[1] != "sent"} == {
        (concurrent, "consumed", "FAILED", "failed"),
        (concurrent, "consumed", "ok", "success"),
        (concurrent, "delivered", "ok", "delivery 1"),
        (concurrent, "delivered", "ok", "delivery 2"),
        (orderly, "consumed", "ok", "success"),
        (orderly, "delivered", "ok", "delivery 1"),
    }
