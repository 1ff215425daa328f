"""GroupConsumer: what push and pull consumers share as members of a group and of a session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeVar

from skylark.client.consumer.allocation_strategies import Strategy, strategy_named
from skylark.client.consumer.broker_requests import BrokerRequests
from skylark.client.consumer.subscription import TopicSubscription, by_class, by_sql, by_tags
from skylark.client.namespace import with_namespace
from skylark.client.producer.message_encoder import check_group
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import CONSUMER, BrokerHandler
from skylark.clock import Clock, SystemClock
from skylark.protocol.bodies import ConsumerData
from skylark.settings.client import (
    ClientSettings,
    PullConsumerSettings,
    PushConsumerSettings,
    consume_timestamp_ms,
    name_server_list,
)

HALF_AN_HOUR_MS = 1_800_000

S = TypeVar("S", PushConsumerSettings, PullConsumerSettings)


class GroupConsumer(ABC, Generic[S]):
    """Base of the asyncio consumers; a `session.Member`. Loop thread."""

    consume_type: ClassVar[str]

    def __init__(
        self,
        group: str,
        namesrv: str,
        settings: S,
        client: ClientSettings | None,
        strategy: str | Strategy,
        clock: Clock | None,
    ) -> None:
        """Raises BadName, SettingsError."""
        check_group(group)
        self._client = client or ClientSettings()
        self.settings: S = settings
        self._name_servers = name_server_list(namesrv, self._client)
        self._group = with_namespace(self._client.namespace, group)
        self._strategy = strategy_named(strategy) if isinstance(strategy, str) else strategy
        self._clock = clock or SystemClock()
        self._created_ms = self._clock.now_ms()
        # Where ConsumeFrom.TIMESTAMP starts.
        self._timestamp_ms = (
            consume_timestamp_ms(settings.consume_timestamp)
            if settings.consume_timestamp
            else self._created_ms - HALF_AN_HOUR_MS
        )
        self._state = "CREATE_JUST"
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._broker_requests: BrokerRequests | None = None

    @abstractmethod
    async def start(self) -> Self: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    def wake_rebalancer(self) -> None:
        """Start a rebalancing round soon, if the consumer runs."""

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _wire(self, topic: str) -> str:
        return with_namespace(self._client.namespace, topic)

    def _subscription(
        self, topic: str, expression: str, sql: str | None, filter_class: str | None = None
    ) -> TopicSubscription:
        wire_topic, now_ms = self._wire(topic), self._clock.now_ms()
        if sql is not None:
            return by_sql(wire_topic, sql, now_ms=now_ms)
        if filter_class is not None:
            return by_class(wire_topic, filter_class, now_ms=now_ms)
        return by_tags(wire_topic, expression, now_ms=now_ms)

    # --- session.Member ---

    @property
    def kind(self) -> str:
        return CONSUMER

    @property
    def group(self) -> str:
        """The group with its namespace."""
        return self._group

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self._group,
            consume_type=self.consume_type,
            message_model=self.settings.model.value,
            consume_from_where=self.settings.consume_from.value,
            subscription_data_set=[wanted.data() for wanted in self._announced_subscriptions()],
        )

    def _announced_subscriptions(self) -> Iterable[TopicSubscription]:
        return self._subscriptions.values()

    def topics(self) -> Iterable[str]:
        return list(self._subscriptions)

    def on_route_change(self, route: TopicRoute) -> None:
        if route.topic in self._subscriptions:
            self.wake_rebalancer()

    def on_connected(self, address: str) -> None:
        self.wake_rebalancer()

    def handlers(self) -> Mapping[int, BrokerHandler]:
        return {} if self._broker_requests is None else self._broker_requests.handlers()
