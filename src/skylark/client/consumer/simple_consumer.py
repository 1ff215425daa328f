"""Simple consumers: `AsyncSimpleConsumer` (`skylark.aio.SimpleConsumer`) and the blocking `SimpleConsumer`.

They pop: the broker keeps the position of the group, hides a received message for a while and delivers it
again unless it is acknowledged. No queue belongs to a member, so there is no rebalancing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from skylark.client.blocking_client import BlockingClient, blocking, on_loop
from skylark.client.consumer.group_pops import (
    DEAD_LETTER_LEVEL,
    GroupPops,
    PopTarget,
    PopTerms,
    handle_of,
    in_turn,
)
from skylark.client.consumer.rebalancer import check_expression
from skylark.client.consumer.send_back import SendBack
from skylark.client.consumer.subscription import TopicSubscription, by_sql, by_tags
from skylark.client.namespace import with_namespace, without_namespace
from skylark.client.producer.message_encoder import check_group
from skylark.client.received_message import ReceivedMessage
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import CONSUMER, BrokerHandler, Session, join
from skylark.clock import Clock, SystemClock
from skylark.errors import AlreadyStarted, BrokerError, ClientClosed, ClientError, NoRoute
from skylark.model.tag_expression import MATCH_ALL
from skylark.protocol.bodies import ConsumerData
from skylark.protocol.codes import ResponseCode
from skylark.protocol.pop_handle import PopHandle
from skylark.protocol.request import Request
from skylark.protocol.requests.pop import (
    POP_MESSAGES_MAX,
    BatchAck,
    BatchAckBody,
    BatchAckMessage,
    bits_of,
)
from skylark.settings.client import ClientSettings, ConsumeFrom, SimpleConsumerSettings, name_server_list

T = TypeVar("T")

log = logging.getLogger(__name__)

CONSUME_POP = "CONSUME_POP"


class AsyncSimpleConsumer:
    """`skylark.aio.SimpleConsumer`: receives messages on demand and acknowledges each. For one event loop.

    >>> async with SimpleConsumer("billing", namesrv="127.0.0.1:9876") as consumer:
    ...     consumer.subscribe("orders", "created || paid")
    ...     for message in await consumer.receive(32):
    ...         print(message.body)
    ...         await consumer.ack(message)

    A received message is hidden from the other members of the group for `invisible_ms`. Acknowledge it in
    that time, or extend the time with `change_invisible_duration`; otherwise it is delivered again, with
    `reconsume_times` one higher. After `attempts_max` deliveries it becomes a dead letter.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = "",
        settings: SimpleConsumerSettings | None = None,
        client: ClientSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is connected yet. Raises BadName, SettingsError."""
        check_group(group)
        self._client = client or ClientSettings()
        self.settings = settings or SimpleConsumerSettings()
        self._name_servers = name_server_list(namesrv, self._client)
        self._group = with_namespace(self._client.namespace, group)
        self._clock = clock or SystemClock()
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._session: Session | None = None
        self._send_back: SendBack | None = None
        self._state = "CREATE_JUST"
        self._turn = 0
        self._pops = GroupPops(
            self._group, self._call, self._bury, self._clock, self.settings.request_timeout_ms
        )

    # --- Lifecycle ---

    async def start(self) -> Self:
        """Raises AlreadyStarted, GroupInUse, BrokerError 23 for an SQL92 expression that a broker refuses."""
        if self._state != "CREATE_JUST":
            raise AlreadyStarted("SimpleConsumer", self._state)
        self._state = "START_FAILED"
        session = self._session = await join(self, self._client, self._name_servers)
        try:
            for wanted in self._subscriptions.values():
                await check_expression(session, self._group, wanted)
        except BaseException:
            await session.leave(self)
            raise
        settings = self.settings
        self._send_back = SendBack(
            session, self._group, attempts_max=settings.attempts_max, timeout_ms=settings.request_timeout_ms
        )
        self._state = "RUNNING"
        return self

    async def stop(self) -> None:
        """Unregister. Messages that are not acknowledged are delivered again. Does nothing unless it runs."""
        if self._state != "RUNNING":
            return
        session = self._running()
        self._state = "SHUTDOWN_ALREADY"
        self._pops.close()
        await session.leave(self)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _running(self) -> Session:
        """Raises ClientClosed."""
        if self._state != "RUNNING" or self._session is None:
            raise ClientClosed(f"simple consumer {self._group}")
        return self._session

    # --- Subscriptions ---

    def subscribe(self, topic: str, expression: str = MATCH_ALL, *, sql: str | None = None) -> None:
        """Receive messages of a topic, by tags or an SQL92 condition. Before or after the start.

        All members of a group must subscribe the same. Raises SettingsError for an invalid expression.
        """
        wire, now_ms = with_namespace(self._client.namespace, topic), self._clock.now_ms()
        self._subscriptions[wire] = (
            by_tags(wire, expression, now_ms=now_ms) if sql is None else by_sql(wire, sql, now_ms=now_ms)
        )

    def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of a topic, if it is subscribed."""
        self._subscriptions.pop(with_namespace(self._client.namespace, topic), None)

    # --- Messages ---

    async def receive(
        self,
        messages_max: int = POP_MESSAGES_MAX,
        *,
        invisible_ms: int | None = None,
        wait_ms: int | None = None,
    ) -> list[ReceivedMessage]:
        """Return up to `messages_max` (1 to 32) messages; wait for them up to `wait_ms`, then return none.

        They are hidden from others for `invisible_ms`. Several calls may run at the same time. Raises
        ClientError without a subscription, NoRoute, BrokerError, RemotingError.
        """
        self._running()
        if not 1 <= messages_max <= POP_MESSAGES_MAX:
            raise ClientError(f"messages_max is {messages_max}; use 1 to {POP_MESSAGES_MAX}")
        wait_ms = self.settings.wait_ms if wait_ms is None else wait_ms
        hidden_ms = self.settings.invisible_ms if invisible_ms is None else invisible_ms
        from_end = self.settings.consume_from is not ConsumeFrom.FIRST_OFFSET
        terms = PopTerms(messages_max, hidden_ms, from_end=from_end, is_ordered=self.settings.orderly)
        messages = await self._pops.receive(await self._targets(), terms, wait_ms)
        if namespace := self._client.namespace:
            for message in messages:
                message.topic = without_namespace(namespace, message.topic)
        return messages

    async def _targets(self) -> list[PopTarget]:
        """Return all topics on all their brokers, another first each time."""
        session = self._running()
        if not self._subscriptions:
            raise ClientError("nothing is subscribed; call subscribe first")
        targets = []
        for wanted in list(self._subscriptions.values()):
            route = await session.find_route(wanted.topic)
            brokers = dict.fromkeys(queue.broker_name for queue in route.read_queues)
            if not brokers:
                raise NoRoute(wanted.topic)
            targets += [PopTarget(wanted, broker, session.routes.master(broker)) for broker in brokers]
        self._turn += 1
        return in_turn(targets, self._turn)

    async def _call(self, address: str, request: Request[T], *, timeout_ms: int) -> T:
        return await self._running().call(address, request, timeout_ms=timeout_ms)

    async def _bury(self, message: ReceivedMessage) -> bool:
        """Send a message that failed too often to the dead letters."""
        assert self._send_back is not None
        if message.reconsume_times < self.settings.attempts_max:
            return False
        if not await self._send_back.send_back(message, DEAD_LETTER_LEVEL):
            return False
        log.warning("dead letter topic=%s id=%s", message.topic, message.message_id)
        return True

    # --- Receipts ---

    async def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledge received messages: they are not delivered again. Several cost one request per broker.

        Raises ClientError for a message that was not received here, BrokerError, RemotingError.
        """
        session = self._running()
        if len(messages) == 1:
            await self._ack_one(session, messages[0])
            return
        by_broker: dict[str, list[ReceivedMessage]] = {}
        for message in messages:
            by_broker.setdefault(handle_of(message).broker_name, []).append(message)
        await asyncio.gather(
            *(self._ack_all(session, broker, of_broker) for broker, of_broker in by_broker.items())
        )

    async def _ack_one(self, session: Session, message: ReceivedMessage) -> None:
        handle = handle_of(message)
        topic = with_namespace(self._client.namespace, message.topic)
        await self._pops.ack(topic, handle, session.routes.master(handle.broker_name))

    async def _ack_all(self, session: Session, broker: str, messages: Sequence[ReceivedMessage]) -> None:
        by_batch: dict[tuple[str, str, int, int, int], list[PopHandle]] = {}
        for message in messages:
            handle = handle_of(message)
            key = (message.topic, handle.retry, handle.start_offset, handle.queue_id, handle.pop_time)
            by_batch.setdefault(key, []).append(handle)
        namespace = self._client.namespace
        acks = [
            BatchAck(
                group=self._group,
                topic=with_namespace(namespace, topic),
                retry=retry,
                start_offset=start,
                queue_id=queue_id,
                revive_queue_id=handles[0].revive_queue_id,
                pop_time=pop_time,
                invisible_time=handles[0].invisible_time,
                bits=bits_of(start, [handle.queue_offset for handle in handles]),
            )
            for (topic, retry, start, queue_id, pop_time), handles in by_batch.items()
        ]
        try:
            await session.call(
                session.routes.master(broker),
                BatchAckMessage(BatchAckBody(acks, broker)),
                timeout_ms=self.settings.request_timeout_ms,
            )
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            for message in messages:  # brokers before 5.1
                await self._ack_one(session, message)

    async def change_invisible_duration(self, message: ReceivedMessage, invisible_ms: int) -> None:
        """Hide a received message for this time from now on; 0 has it delivered again at once.

        The message has a new receipt then: use the same object to acknowledge it. Raises ClientError for a
        message that was not received here, BrokerError, RemotingError.
        """
        session, handle = self._running(), handle_of(message)
        topic = with_namespace(self._client.namespace, message.topic)
        address = session.routes.master(handle.broker_name)
        message.handle = await self._pops.hide(topic, handle, address, invisible_ms)

    # --- session.Member ---

    @property
    def kind(self) -> str:
        return CONSUMER

    @property
    def group(self) -> str:
        """The group with its namespace."""
        return self._group

    @property
    def client_id(self) -> str:
        """The client id that brokers see. Raises ClientClosed before the start."""
        return self._running().client_id

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self._group,
            consume_type=CONSUME_POP,
            message_model="CLUSTERING",
            consume_from_where=self.settings.consume_from.value,
            subscription_data_set=[wanted.data() for wanted in self._subscriptions.values()],
        )

    def topics(self) -> Iterable[str]:
        return list(self._subscriptions)

    def on_route_change(self, route: TopicRoute) -> None:
        """Routes are looked up for every receive."""

    def on_connected(self, address: str) -> None:
        """There is nothing to divide."""

    def handlers(self) -> Mapping[int, BrokerHandler]:
        return {}


class SimpleConsumer(BlockingClient[AsyncSimpleConsumer]):
    """Receives messages on demand and acknowledges each. Any thread.

    >>> with SimpleConsumer("billing", namesrv="127.0.0.1:9876") as consumer:
    ...     consumer.subscribe("orders", "created || paid")
    ...     for message in consumer.receive(32):
    ...         print(message.body)
    ...         consumer.ack(message)

    A received message is hidden from the other members of the group for `invisible_ms`. Acknowledge it in
    that time, or extend the time with `change_invisible_duration`; otherwise it is delivered again, with
    `reconsume_times` one higher. After `attempts_max` deliveries it becomes a dead letter.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = "",
        settings: SimpleConsumerSettings | None = None,
        client: ClientSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is connected yet. Raises BadName, SettingsError."""
        inner = AsyncSimpleConsumer(group, namesrv=namesrv, settings=settings, client=client, clock=clock)
        super().__init__(inner, f"simple consumer {group}")

    @property
    def client_id(self) -> str:
        """The client id that brokers see. Raises ClientClosed before the start."""
        return self._inner.client_id

    subscribe = on_loop(AsyncSimpleConsumer.subscribe)
    unsubscribe = on_loop(AsyncSimpleConsumer.unsubscribe)
    receive = blocking(AsyncSimpleConsumer.receive)
    ack = blocking(AsyncSimpleConsumer.ack)
    change_invisible_duration = blocking(AsyncSimpleConsumer.change_invisible_duration)
