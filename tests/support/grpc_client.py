"""A proxy inside a test, and a gRPC client on our own messages, by grpclib's channel.

async with running_proxy(name_server.address) as proxy, GrpcTestClient(proxy.address) as client:
    reply = await client.call("QueryRoute", v2.QueryRouteRequest(...))
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self

from grpclib.client import Channel, StreamStreamMethod, UnaryStreamMethod, UnaryUnaryMethod

from skylark.clock import Clock
from skylark.proxy.proxy import GrpcProxy
from skylark.proxy.schema import SERVICE, ClientType, Code, FilterType, MessageType, v2
from skylark.remoting.address import split_address
from skylark.remoting.nearby import NearbyServer
from skylark.settings.client import ClientSettings
from skylark.settings.proxy import ProxySettings

TIMEOUT_S = 30.0
_ids = itertools.count(1)


@contextlib.asynccontextmanager
async def running_proxy(
    name_servers: str, *, nearby: NearbyServer | None = None, clock: Clock | None = None, **changes: Any
) -> AsyncIterator[GrpcProxy]:
    """Run a proxy on a free port, with short intervals. `nearby` is a broker on the same loop."""
    settings = ProxySettings(**{"port": 0, "metadata_fresh_ms": 50, "renew_interval_ms": 100, **changes})
    proxy = GrpcProxy(settings, ClientSettings(name_servers=name_servers), nearby=nearby, clock=clock)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


def resource(name: str) -> Any:
    return v2.Resource(name=name)


def new_message(topic: str, body: bytes = b"body", **system: Any) -> Any:
    """A message as the Java client makes it; `system` changes its system properties."""
    message = v2.Message(topic=resource(topic), body=body)
    values = {
        "message_id": f"01AABBCCDDEEFF{next(_ids):020X}",
        "message_type": MessageType.NORMAL,
        "body_encoding": 1,
        "born_host": "test-host",
        **system,
    }
    keys = values.pop("keys", [])
    delivery_ms = values.pop("delivery_ms", None)
    for name, value in values.items():
        setattr(message.system_properties, name, value)
    message.system_properties.keys.extend(keys)
    message.system_properties.born_timestamp.GetCurrentTime()
    if delivery_ms is not None:
        message.system_properties.delivery_timestamp.FromMilliseconds(delivery_ms)
    return message


class Telemetry:
    """An open stream; the first settings were answered with `settings`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.settings: Any = None

    async def send(self, command: Any) -> None:
        await self._stream.send_message(command)

    async def receive(self) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            return await self._stream.recv_message()


class GrpcTestClient:
    """One client id on one connection."""

    def __init__(
        self,
        address: str,
        client_id: str = "",
        *,
        metadata: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        host, port = split_address(address)
        self.client_id = client_id or f"test@{next(_ids)}"
        self.channel = Channel(host, port, ssl=tls)
        self.metadata = {
            "x-mq-client-id": self.client_id,
            "x-mq-language": "JAVA",
            "x-mq-client-version": "5.2.0",
            "x-mq-protocol": "v2",
            **(metadata or {}),
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()

    async def call(self, method: str, request: Any, *, timeout_s: float | None = TIMEOUT_S) -> Any:
        """Return the reply, of whatever status."""
        reply_type = getattr(v2, f"{method}Response")
        rpc = UnaryUnaryMethod(self.channel, f"/{SERVICE}/{method}", type(request), reply_type)
        return await rpc(request, timeout=timeout_s, metadata=self.metadata)

    async def ok(self, method: str, request: Any) -> Any:
        """Return the reply, which must be OK."""
        reply = await self.call(method, request)
        assert reply.status.code == Code.OK, reply
        return reply

    async def code(self, method: str, request: Any) -> tuple[Code, str]:
        reply = await self.call(method, request)
        return Code(reply.status.code), reply.status.message

    async def send(self, *messages: Any) -> Any:
        return await self.call("SendMessage", v2.SendMessageRequest(messages=messages))

    async def receive(
        self,
        topic: str,
        group: str,
        *,
        batch: int = 32,
        expression: str = "*",
        filter_type: FilterType = FilterType.TAG,
        invisible_s: int = 30,
        auto_renew: bool = False,
        attempt_id: str = "",
        broker: str = "",
        timeout_s: float | None = TIMEOUT_S,
        poll_ms: int = 5000,
    ) -> tuple[Any, list[Any]]:
        """Return the status and the messages of one receive."""
        request = v2.ReceiveMessageRequest(group=resource(group), batch_size=batch, auto_renew=auto_renew)
        request.message_queue.topic.name = topic
        request.message_queue.broker.name = broker
        request.filter_expression.expression = expression
        request.filter_expression.type = filter_type
        request.invisible_duration.FromSeconds(invisible_s)
        request.long_polling_timeout.FromMilliseconds(poll_ms)
        if attempt_id:
            request.attempt_id = attempt_id
        rpc = UnaryStreamMethod(
            self.channel, f"/{SERVICE}/ReceiveMessage", type(request), v2.ReceiveMessageResponse
        )
        async with rpc.open(timeout=timeout_s, metadata=self.metadata) as stream:
            await stream.send_message(request, end=True)
            frames = [frame async for frame in stream]
        statuses = [frame.status for frame in frames if frame.WhichOneof("content") == "status"]
        return statuses[0], [frame.message for frame in frames if frame.WhichOneof("content") == "message"]

    async def ack(self, topic: str, group: str, *messages: Any) -> Any:
        request = v2.AckMessageRequest(group=resource(group), topic=resource(topic))
        for message in messages:
            system = message.system_properties
            request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        return await self.call("AckMessage", request)

    @contextlib.asynccontextmanager
    async def telemetry(self, settings: Any) -> AsyncIterator[Telemetry]:
        """Open a stream, send settings and wait for the answer."""
        rpc = StreamStreamMethod(
            self.channel, f"/{SERVICE}/Telemetry", v2.TelemetryCommand, v2.TelemetryCommand
        )
        async with rpc.open(metadata=self.metadata) as stream:
            opened = Telemetry(stream)
            await opened.send(v2.TelemetryCommand(settings=settings))
            answer = await opened.receive()
            assert answer is not None and answer.status.code == Code.OK, answer
            opened.settings = answer.settings
            try:
                yield opened
            finally:
                await stream.cancel()


def producer_settings(*topics: str) -> Any:
    settings = v2.Settings(client_type=ClientType.PRODUCER)
    settings.publishing.topics.extend(resource(topic) for topic in topics)
    settings.request_timeout.FromSeconds(3)
    return settings


def consumer_settings(
    group: str, *topics: str, expression: str = "*", client_type: ClientType = ClientType.SIMPLE_CONSUMER
) -> Any:
    settings = v2.Settings(client_type=client_type)
    settings.subscription.group.name = group
    settings.request_timeout.FromSeconds(3)
    for topic in topics:
        entry = settings.subscription.subscriptions.add(topic=resource(topic))
        entry.expression.type = FilterType.TAG
        entry.expression.expression = expression
    return settings
