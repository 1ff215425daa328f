"""Telemetry, Heartbeat and NotifyClientTermination: who is connected, and with which settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from skylark.errors import RocketMQError
from skylark.model.lite_topic import CLIENT_QUOTA, CLIENT_QUOTA_DEFAULT
from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.requests.lite import (
    OFFSET,
    POLICY,
    TAIL_N,
    TIMESTAMP,
    LiteSubscriptionChange,
    OffsetOption,
)
from skylark.proxy.call import Call, Send
from skylark.proxy.clients import ClientTable, GrpcClient
from skylark.proxy.cluster import Cluster
from skylark.proxy.message_checks import check_expression, check_group, check_lite_topic, check_topic
from skylark.proxy.schema import ClientType, Code, LiteSubscriptionAction, v2
from skylark.proxy.status import OK, CallRefused
from skylark.settings.proxy import ProxySettings

RETRY_DELAYS_S = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""Delays of a group with a customized retry policy that names none."""
EXPONENTIAL = {"initial": 5000, "max": 7_200_000, "multiplier": 2}
INT_MAX = (1 << 31) - 1
TOPICS_MAX = 1000
"""Topics of one client."""
_SERVED = frozenset(
    {
        ClientType.PRODUCER,
        ClientType.PUSH_CONSUMER,
        ClientType.SIMPLE_CONSUMER,
        ClientType.LITE_PUSH_CONSUMER,
    }
)
_OFFSET_TYPES = {"policy": POLICY, "offset": OFFSET, "tail_n": TAIL_N, "timestamp": TIMESTAMP}


def group_backoff(config: SubscriptionGroupConfig) -> Any:
    """Return the retry policy of a group for its consumers."""
    policy = v2.RetryPolicy(max_attempts=config.retry_max_times + 1)
    given = config.group_retry_policy
    if given.get("type") == "EXPONENTIAL":
        wanted = {**EXPONENTIAL, **(given.get("exponentialRetryPolicy") or {})}
        policy.exponential_backoff.initial.FromMilliseconds(int(wanted["initial"]))
        policy.exponential_backoff.max.FromMilliseconds(int(wanted["max"]))
        policy.exponential_backoff.multiplier = float(wanted["multiplier"])
        return policy
    delays_ms = (given.get("customizedRetryPolicy") or {}).get("next")
    for delay_ms in delays_ms or [seconds * 1000 for seconds in RETRY_DELAYS_S]:
        policy.customized_backoff.next.add().FromMilliseconds(int(delay_ms))
    return policy


class ClientCalls:
    """Settings are the client's with the server's values in them; they live as long as the client."""

    def __init__(self, settings: ProxySettings, cluster: Cluster, clients: ClientTable) -> None:
        self._settings = settings
        self._cluster = cluster
        self._clients = clients

    async def telemetry(self, call: Call, commands: AsyncIterator[Any], send: Send) -> None:
        """Serve a stream until the client ends it."""
        client: GrpcClient | None = None
        try:
            async for command in commands:
                kind = command.WhichOneof("command")
                if kind == "settings":
                    client = await self._settle(call, command.settings, send)
                    await send(v2.TelemetryCommand(status=OK, settings=client.settings))
                elif client is not None and kind in ("thread_stack_trace", "verify_message_result"):
                    self._clients.answered(client, getattr(command, kind).nonce, command)
        finally:
            if client is not None and client.stream is send:
                client.stream = None

    async def _settle(self, call: Call, given: Any, send: Send) -> GrpcClient:
        """Complete and keep settings. Raises CallRefused."""
        settings = v2.Settings()
        settings.CopyFrom(given)
        kind = settings.WhichOneof("pub_sub")
        if kind == "publishing":
            self._settle_producer(settings)
        elif kind == "subscription":
            await self._settle_consumer(settings)
        else:
            raise CallRefused(Code.BAD_REQUEST, "there is no publishing or subscription data in settings")
        settings.metric.on = False
        client = self._clients.connected(call)
        client.settings = settings
        client.stream = send  # the last one wins
        self._clients.register(client)
        return client

    def _settle_producer(self, settings: Any) -> None:
        own = self._settings
        _check_count(settings.publishing.topics)
        for topic in settings.publishing.topics:
            check_topic(topic.name)
        settings.publishing.max_body_size = own.body_bytes_max
        settings.publishing.validate_message_type = own.check_message_type
        policy = settings.backoff_policy
        policy.max_attempts = own.producer_attempts_max
        policy.exponential_backoff.initial.FromMilliseconds(own.producer_backoff_initial_ms)
        policy.exponential_backoff.max.FromMilliseconds(own.producer_backoff_ms_max)
        policy.exponential_backoff.multiplier = own.producer_backoff_multiplier

    async def _settle_consumer(self, settings: Any) -> None:
        subscription = settings.subscription
        group = check_group(subscription.group.name)
        _check_count(subscription.subscriptions)
        for entry in subscription.subscriptions:
            check_topic(entry.topic.name)
            check_expression(entry.expression)
        config = await self._group(group, [entry.topic.name for entry in subscription.subscriptions])
        subscription.fifo = config.consume_message_orderly
        subscription.receive_batch_size = self._settings.receive_batch
        subscription.long_polling_timeout.FromMilliseconds(self._settings.poll_ms_max)
        settings.backoff_policy.CopyFrom(group_backoff(config))
        if settings.client_type == ClientType.LITE_PUSH_CONSUMER:
            quota = int(config.attributes.get(CLIENT_QUOTA, CLIENT_QUOTA_DEFAULT))
            subscription.lite_subscription_quota = min(quota, INT_MAX)
            subscription.max_lite_topic_size = self._settings.lite_topic_bytes_max

    async def _group(self, group: str, topics: list[str]) -> SubscriptionGroupConfig:
        """Return a group's configuration; that of a new group if no broker can be asked."""
        for topic in topics:
            try:
                return await self._cluster.group_config(group, topic)
            except RocketMQError:
                continue
        return SubscriptionGroupConfig(group_name=group)

    async def heartbeat(self, call: Call, request: Any) -> Any:
        if request.client_type not in _SERVED:
            name = ClientType(request.client_type).name if request.client_type in _TYPES else "unknown"
            raise CallRefused(Code.UNRECOGNIZED_CLIENT_TYPE, f"client type {name} is not supported")
        client = self._clients.get(call.client_id)
        if client is None or client.settings is None:
            raise CallRefused(Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        if request.group.name and request.client_type != ClientType.PRODUCER:
            check_group(request.group.name)
        self._clients.seen(client)
        return v2.HeartbeatResponse(status=OK)

    async def sync_lite(self, call: Call, request: Any) -> Any:
        """Change which lite topics a client wants, or say all of them again."""
        topic, group = check_topic(request.topic.name), check_group(request.group.name)
        client = self._clients.get(call.client_id)
        if client is None or client.group != group:
            raise CallRefused(Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        action = LiteSubscriptionAction(request.action)
        change = LiteSubscriptionChange(
            action.name, topic=topic, lite_topic_set=list(request.lite_topic_set), version=request.version
        )
        if action is LiteSubscriptionAction.PARTIAL_ADD:
            for lite_topic in request.lite_topic_set:
                check_lite_topic(lite_topic, self._settings)
            kind = request.offset_option.WhichOneof("offset_type")
            if kind is not None:
                value = getattr(request.offset_option, kind)
                change.offset_option = OffsetOption(_OFFSET_TYPES[kind], value)
        await self._clients.change_lite(client, change)
        return v2.SyncLiteSubscriptionResponse(status=OK)

    async def terminate(self, call: Call, _: Any) -> Any:
        await self._clients.terminate(call.client_id)
        return v2.NotifyClientTerminationResponse(status=OK)


_TYPES = frozenset(ClientType)


def _check_count(entries: Any) -> None:
    if len(entries) > TOPICS_MAX:
        raise CallRefused(Code.BAD_REQUEST, f"{len(entries)} topics are more than {TOPICS_MAX} of one client")
