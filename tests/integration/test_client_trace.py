"""What push consumers tell in the trace topic, and that telling costs them nothing."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skylark.cli.main import app
from skylark.client import message_trace
from skylark.client.consumer.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeContext,
    ConsumeResult,
    MessageListenerConcurrently,
    Messages,
)
from skylark.client.consumer.push_consumer import PushConsumer as BlockingPushConsumer
from skylark.client.producer.producer import AsyncProducer
from skylark.model.message import Message
from skylark.settings.client import ProducerSettings, PushConsumerSettings
from tests.support.broker import until
from tests.support.client_rig import QUICK, cluster
from tests.support.consumer import ConsumerRig, consumer_rig, fast, until_count

TOPIC, GROUP, TRACES = "T", "G", "RMQ_SYS_TRACE_TOPIC"
TRACED: dict[str, Any] = {"trace": True, "trace_flush_ms": 50}


async def told(rig: ConsumerRig) -> list[list[str]]:
    """What is in the trace topic, split into fields."""
    stored = await rig.client.pull_all(TRACES, 0)
    return [row.split("\x01") for each in stored for row in each.body.decode().split("\x02") if row]


async def outcomes(rig: ConsumerRig) -> dict[str, list[tuple[int, str, str]]]:
    """By a message's only key: delivery, success and code of each call that was told from begin to end."""
    rows = await told(rig)
    before = {(row[4], row[5]): row for row in rows if row[0] == "SubBefore"}
    found: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for row in rows:
        if row[0] == "SubAfter":
            assert row[8] == GROUP
            began = before[row[1], row[2]]
            assert began[2:4] == ["DefaultRegion", GROUP]
            assert int(began[1]) <= int(row[7])
            found[row[5]].append((int(began[6]), row[4], row[6]))
    return {key: sorted(calls) for key, calls in found.items()}


class Nothing(MessageListenerConcurrently):
    """Returns None the first time, which is no status."""

    def consume_message(self, messages: Messages, context: ConsumeContext) -> ConsumeConcurrentlyStatus:
        if messages[0].reconsume_times == 0:
            return None  # type: ignore[return-value]
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def succeeding(messages: Messages) -> None:
    pass


def failing_once(messages: Messages) -> ConsumeResult:
    return ConsumeResult.SUCCESS if messages[0].reconsume_times else ConsumeResult.LATER


async def raising_once(messages: Messages) -> None:
    await asyncio.sleep(0)
    if not messages[0].reconsume_times:
        raise ValueError("once")


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    ("listener", "codes"),
    [(succeeding, ["0"]), (failing_once, ["4", "0"]), (raising_once, ["2", "0"])],
)
async def test_sf_056_every_call_of_a_listener_is_told(
    tmp_path: Path, listener: Callable[..., Any], codes: list[str], orderly: bool
) -> None:
    assert not PushConsumerSettings().trace
    assert PushConsumerSettings().trace_flush_ms == 5000
    expected = [(number, "true" if code == "0" else "false", code) for number, code in enumerate(codes)]
    async with consumer_rig(tmp_path, trace_topic=True) as rig:
        await rig.topic(TOPIC, 1)
        for number in range(20):
            await rig.send(TOPIC, b"x", properties={"KEYS": f"k{number}"})
        async with rig.consumer(GROUP, TOPIC, listener, orderly=orderly, **TRACED):

            async def all_told() -> bool:
                return await outcomes(rig) == {f"k{number}": expected for number in range(20)}

            await until(all_told)


async def test_a_java_shaped_listener_that_returns_nothing_is_told_so(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path, trace_topic=True) as rig:
        await rig.topic(TOPIC, 1)
        await rig.send(TOPIC, b"x", properties={"KEYS": "k"})
        consumer = rig.consumer(GROUP, **TRACED)
        consumer.listen(Nothing())
        consumer.subscribe(TOPIC)
        async with consumer:

            async def all_told() -> bool:
                return await outcomes(rig) == {"k": [(0, "false", "3"), (1, "true", "0")]}

            await until(all_told)


async def test_of_a_batch_each_message_has_its_own_outcome(tmp_path: Path) -> None:
    def half(messages: Messages, context: ConsumeContext) -> ConsumeResult:
        if messages[0].reconsume_times:
            return ConsumeResult.SUCCESS
        context.done = 2
        return ConsumeResult.LATER

    async with consumer_rig(tmp_path, trace_topic=True) as rig:
        await rig.topic(TOPIC, 1)
        for number in range(4):
            await rig.send(TOPIC, b"x", properties={"KEYS": f"k{number}"})
        async with rig.consumer(GROUP, TOPIC, half, batch_max=4, **TRACED):

            async def all_told() -> bool:
                again = [(0, "false", "4"), (1, "true", "0")]
                once = [(0, "true", "0")]
                return await outcomes(rig) == {"k0": once, "k1": once, "k2": again, "k3": again}

            await until(all_told)


async def test_what_is_gathered_is_told_at_the_end(tmp_path: Path) -> None:
    """By the blocking face: its end waits for the traces, not for their interval."""
    got: list[Any] = []

    def consume(namesrv: str) -> None:
        settings = fast(trace=True, trace_flush_ms=600_000)
        consumer = BlockingPushConsumer(GROUP, namesrv=namesrv, settings=settings)
        consumer.subscribe(TOPIC, "*", got.extend)
        with consumer:
            asyncio.run(until_count(got, 3))

    async with consumer_rig(tmp_path, trace_topic=True) as rig:
        await rig.topic(TOPIC, 1)
        for number in range(3):
            await rig.send(TOPIC, b"x", properties={"KEYS": f"k{number}"})
        await asyncio.to_thread(consume, rig.name_server.address)
        assert await outcomes(rig) == {f"k{number}": [(0, "true", "0")] for number in range(3)}


async def test_traces_are_not_traced_and_neither_is_what_the_broker_excludes(tmp_path: Path) -> None:
    got: list[Any] = []
    async with consumer_rig(tmp_path, trace_topic=True, trace_on=False) as rig:
        await rig.topic(TOPIC, 1)
        await rig.send(TOPIC, b"x")
        await rig.send(TRACES, b"Pub\x02", queue_id=0)
        consumer = rig.consumer(GROUP, TOPIC, got.extend, **TRACED)
        consumer.subscribe(TRACES, "*", got.extend)
        async with consumer:
            await until_count(got, 2)
        assert [each.body for each in await rig.client.pull_all(TRACES, 0)] == [b"Pub\x02"]


async def test_more_traces_than_fit_are_lost_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor do they hold up consumption when there is no trace topic at all."""
    monkeypatch.setattr(message_trace, "QUEUE_MAX", 10)
    got: list[Any] = []
    async with consumer_rig(tmp_path, auto_create_topics=False) as rig:
        await rig.topic(TOPIC, 1)
        await rig.fill(TOPIC, 0, *(b"%d" % number for number in range(500)))
        async with rig.consumer(GROUP, TOPIC, got.extend, batch_max=32, **TRACED):
            await until_count(got, 500)
            await rig.until_committed(GROUP, TOPIC, 500)
    assert {message.body for message in got} == {b"%d" % number for number in range(500)}
    lost = [each.getMessage() for each in caplog.records if "traces were lost" in each.getMessage()]
    assert lost == [f"traces were lost count={2 * len(got)}"]


async def test_the_command_shows_a_message_s_whole_life(tmp_path: Path) -> None:
    def life(message_id: str) -> list[dict[str, Any]]:
        words = ["message", "trace", message_id, "--namesrv", rig.name_server.address, "--json"]
        result = CliRunner().invoke(app, words)
        found: list[dict[str, Any]] = json.loads(result.stdout.splitlines()[0])
        return found

    async with consumer_rig(tmp_path, trace_topic=True) as rig:
        await rig.topic(TOPIC, 1)
        producer_settings = ProducerSettings(trace=True, trace_flush_ms=50, send_timeout_ms=30_000)
        namesrv = rig.name_server.address
        async with (
            AsyncProducer("PG", namesrv=namesrv, settings=producer_settings) as producer,
            rig.consumer(GROUP, TOPIC, failing_once, **TRACED),
        ):
            receipt = await producer.send(Message(TOPIC, b"x", keys=["k"]))

            async def is_whole() -> bool:
                return len(await asyncio.to_thread(life, receipt.message_id)) == 5

            await until(is_whole)
        steps = await asyncio.to_thread(life, receipt.message_id)
    shown = [(step["what"], step["outcome"], step["group"]) for step in steps]
    assert shown[0] == ("sent", "ok", "PG")
    assert {row[2] for row in shown[1:]} == {GROUP}
    # Steps of one millisecond have no order of their own.
    assert {(step["what"], step["outcome"], step["details"]) for step in steps[1:]} == {
        ("delivered", "ok", "delivery 1"),
        ("consumed", "FAILED", "failed"),
        ("delivered", "ok", "delivery 2"),
        ("consumed", "ok", "success"),
    }


async def test_traces_go_where_their_topic_has_moved_to(tmp_path: Path) -> None:
    settings = ProducerSettings(trace=True, trace_flush_ms=20, trace_topic="traces")
    async with cluster(tmp_path, "broker-a", "broker-b") as servers:
        await servers.create_topic(TOPIC, 1, "broker-b")
        await servers.create_topic("traces", 1, "broker-a")
        async with AsyncProducer("PG", namesrv=servers.namesrv, settings=settings, client=QUICK) as producer:

            async def are_told_at(broker: str) -> bool:
                await producer.send(Message(TOPIC, b"x"))
                return bool(await servers.stored("traces", broker, 1))

            await until(lambda: are_told_at("broker-a"))
            await servers.create_topic("traces", 1, "broker-b")
            servers.proxies["broker-a"].shut()
            servers.registrars["broker-a"].hang_up()  # so that the name server forgets it
            await until(lambda: are_told_at("broker-b"), timeout_s=20)
