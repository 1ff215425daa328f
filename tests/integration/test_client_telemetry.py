"""OpenTelemetry on our own servers: one trace from who sends to who handles, with the SDK's own exporter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from skylark.client.consumer.listeners import ConsumeResult
from skylark.client.producer.producer import AsyncProducer, Producer
from skylark.client.received_message import ReceivedMessage
from skylark.client.telemetry import TelemetryHook, telemetry_middleware
from skylark.errors import SendFailed
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.topic import DeleteTopicInBroker
from tests.support.broker import BrokerClient, until
from tests.support.client_rig import cluster
from tests.support.consumer import ConsumerRig, consumer_rig

TOPIC = "orders"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ConsumerRig]:
    async with consumer_rig(tmp_path) as running:
        await running.topic(TOPIC, 1)
        yield running


class Spans:
    """A provider of tracers, and the spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def identity(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


async def test_one_trace_from_sender_to_listener(rig: ConsumerRig) -> None:
    spans = Spans()
    current: list[int] = []

    async def listen(messages: Sequence[ReceivedMessage]) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)

    consumer = rig.consumer("G", TOPIC, listen)
    consumer.use(telemetry_middleware(spans.provider))
    async with consumer, AsyncProducer("PG", namesrv=rig.name_server.address) as producer:
        producer.add_hook(TelemetryHook(spans.provider))
        with spans.tracer.start_as_current_span("order"):
            message = Message(TOPIC, b"hello", tags="paid", keys=["42"], properties={"mine": "kept"})
            receipt = await producer.send(message)
        await until(lambda: bool(spans.named(f"process {TOPIC}")), timeout_s=60)
    [order], [sent], [handled] = (
        spans.named(name) for name in ("order", f"send {TOPIC}", f"process {TOPIC}")
    )
    assert parent(sent) == identity(order)
    assert parent(handled) == identity(sent) == handled.links[0].context.span_id
    assert (sent.kind, handled.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert current == [identity(handled)]
    common = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": TOPIC,
        "messaging.destination.partition.id": "0",
        "messaging.message.id": receipt.message_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("42",),
    }
    assert sent.attributes is not None
    host, _, port = rig.broker.address.rpartition(":")
    assert sent.attributes == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.client.id": sent.attributes["messaging.client.id"],
        "messaging.rocketmq.client_group": "PG",
        "server.address": host,
        "server.port": int(port),
    }
    assert handled.attributes == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "G",
    }
    assert (sent.status.status_code, handled.status.status_code) == (StatusCode.UNSET, StatusCode.UNSET)


async def test_listeners_that_fail(rig: ConsumerRig) -> None:
    """A plain function, in a thread: it raises, then says later, then succeeds."""
    spans = Spans()

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        if messages[0].reconsume_times == 0:
            raise KeyError("no such order")
        return ConsumeResult.LATER if messages[0].reconsume_times == 1 else ConsumeResult.SUCCESS

    consumer = rig.consumer("G", TOPIC, listen)
    consumer.use(telemetry_middleware(spans.provider))
    async with consumer, AsyncProducer("PG", namesrv=rig.name_server.address) as producer:
        await producer.send(Message(TOPIC, b"untraced"))
        await until(lambda: len(spans.named(f"process {TOPIC}")) == 3, timeout_s=60)
    calls = spans.named(f"process {TOPIC}")
    assert [span.attributes.get("error.type") for span in calls if span.attributes] == [
        "KeyError",
        "LATER",
        None,
    ]
    codes = [span.status.status_code for span in calls]
    assert codes == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert [event.name for event in calls[0].events] == ["exception"]
    assert all(span.parent is None and not span.links for span in calls)


async def test_batches_are_linked(rig: ConsumerRig) -> None:
    spans = Spans()
    got: list[ReceivedMessage] = []
    async with AsyncProducer("PG", namesrv=rig.name_server.address) as producer:
        producer.add_hook(TelemetryHook(spans.provider))
        await producer.send_batch([Message(TOPIC, b"1"), Message(TOPIC, b"2")])
        await producer.send(Message(TOPIC, b"3"))
    consumer = rig.consumer("G", TOPIC, got.extend, batch_max=3)
    consumer.use(telemetry_middleware(spans.provider))
    async with consumer:
        await until(lambda: len(got) == 3, timeout_s=60)
    batch, single = spans.named(f"send {TOPIC}")
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 2
    links = [link.context.span_id for span in spans.named(f"process {TOPIC}") for link in span.links]
    assert sorted(links) == sorted([identity(batch), identity(batch), identity(single)])


async def test_a_send_that_fails(rig: ConsumerRig) -> None:
    spans = Spans()
    async with AsyncProducer("PG", namesrv=rig.name_server.address) as producer:
        producer.add_hook(TelemetryHook(spans.provider))
        [queue] = await producer.queues(TOPIC)
        with pytest.raises(SendFailed):
            await producer.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, queue.broker_name, 99))
    [sent] = spans.named(f"send {TOPIC}")
    assert sent.status.status_code is StatusCode.ERROR
    assert sent.attributes is not None
    assert sent.attributes["error.type"] == "29"


async def test_attempts_are_children_of_one_span(tmp_path: Path) -> None:
    """The second attempt begins when the first one's answer comes, not where the message was sent."""
    spans = Spans()
    async with cluster(tmp_path, "broker-a", "broker-b", auto_create_topics=False) as servers:
        await servers.create_topic(TOPIC, 1)
        async with BrokerClient(servers.brokers["broker-a"].address) as client:
            await client.ask(DeleteTopicInBroker(TOPIC))
        async with AsyncProducer("PG", namesrv=servers.namesrv) as producer:
            for _ in range(2):
                await producer.send(Message(TOPIC, b"x"))  # so that the connections are nobody's
            producer.add_hook(TelemetryHook(spans.provider))
            with spans.tracer.start_as_current_span("order"):
                for _ in range(2):
                    assert (await producer.send(Message(TOPIC, b"x"))).queue.broker_name == "broker-b"
    attempts = spans.named(f"send {TOPIC}")
    assert "17" in {(span.attributes or {}).get("error.type") for span in attempts}
    assert {parent(span) for span in attempts} == {identity(spans.named("order")[0])}


def send_blocking(namesrv: str, spans: Spans) -> None:
    with Producer("PG", namesrv=namesrv) as producer:
        producer.add_hook(TelemetryHook(spans.provider))
        with spans.tracer.start_as_current_span("waits"):
            producer.send(Message(TOPIC, b"1"))
        futures = []
        for name in ("first", "second"):
            with spans.tracer.start_as_current_span(name):
                futures.append(producer.submit(Message(TOPIC, b"2")))
        for future in futures:
            future.result()


async def test_blocking(rig: ConsumerRig) -> None:
    """Also what is submitted is a child of its own sender's span, though the loop sends it."""
    spans = Spans()
    await asyncio.to_thread(send_blocking, rig.name_server.address, spans)
    parents = [parent(span) for span in spans.named(f"send {TOPIC}")]
    assert parents == [identity(spans.named(name)[0]) for name in ("waits", "first", "second")]
