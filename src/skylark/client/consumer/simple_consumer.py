"""Simple consumers: `AsyncSimpleConsumer` (`skylark.aio.SimpleConsumer`) and the blocking `SimpleConsumer`.

They pop: the broker keeps the position of the group, hides a received message for a while and delivers it
again unless it is acknowledged. No queue belongs to a member, so there is no rebalancing.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from skylark.client.blocking_client import BlockingClient, blocking, on_loop
from skylark.client.consumer.rebalancer import check_expression
from skylark.client.consumer.send_back import SendBack
from skylark.client.consumer.subscription import TopicSubscription, by_sql, by_tags
from skylark.client.namespace import with_namespace, without_namespace
from skylark.client.producer.message_encoder import check_group
from skylark.client.received_message import ReceivedMessage, decode_pull
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import CONSUMER, BrokerHandler, Session, join
from skylark.clock import Clock, SystemClock
from skylark.errors import (
    AlreadyStarted,
    BrokerError,
    ClientClosed,
    ClientError,
    NoRoute,
    RemoteProtocolError,
)
from skylark.model.tag_expression import MATCH_ALL
from skylark.protocol.bodies import ConsumerData, MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.pop_handle import (
    PopHandle,
    find_handle,
    offset_key,
    queue_key,
    read_order_counts,
    read_starts,
)
from skylark.protocol.requests.pop import (
    INIT_MAX,
    INIT_MIN,
    POP_MESSAGES_MAX,
    AckMessage,
    BatchAck,
    BatchAckBody,
    BatchAckMessage,
    ChangeMessageInvisibleTime,
    Notification,
    NotificationReply,
    PopMessage,
    PopReply,
    PopResult,
    bits_of,
)
from skylark.settings.client import ClientSettings, ConsumeFrom, SimpleConsumerSettings, name_server_list

log = logging.getLogger(__name__)

ANY_QUEUE = -1
DEAD_LETTER_LEVEL = -1
"""The delay level that sends a message to the dead letters of its group."""
CONSUME_POP = "CONSUME_POP"
_SIZE_AND_QUEUE = struct.Struct(">i8xi")


class _PopTarget(NamedTuple):
    """A topic on a broker, which one request pops."""

    subscription: TopicSubscription
    broker_name: str


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
        self._notices: dict[_PopTarget, asyncio.Task[NotificationReply]] = {}

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
        for notice in list(self._notices.values()):
            notice.cancel()
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
        targets = await self._targets()
        if len(targets) == 1:
            return await self._pop(targets[0], messages_max, hidden_ms, wait_ms)
        deadline_ms = self._clock.now_ms() + wait_ms
        while True:
            for target in targets:
                found = await self._pop(target, messages_max, hidden_ms, 0)
                if found:
                    return found
            left_ms = deadline_ms - self._clock.now_ms()
            if left_ms <= 0 or not await self._wait_for_any(targets, left_ms):
                return []

    async def _targets(self) -> list[_PopTarget]:
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
            targets += [_PopTarget(wanted, broker) for broker in brokers]
        self._turn += 1
        first = self._turn % len(targets)
        return targets[first:] + targets[:first]

    async def _pop(
        self, target: _PopTarget, messages_max: int, invisible_ms: int, wait_ms: int
    ) -> list[ReceivedMessage]:
        session, settings, wanted = self._running(), self.settings, target.subscription
        request = PopMessage(
            consumer_group=self._group,
            topic=wanted.topic,
            queue_id=ANY_QUEUE,
            max_msg_nums=messages_max,
            invisible_time=invisible_ms,
            poll_time=wait_ms,
            born_time=self._clock.now_ms(),
            init_mode=INIT_MIN if settings.consume_from is ConsumeFrom.FIRST_OFFSET else INIT_MAX,
            exp_type=wanted.expression_type,
            exp=wanted.expression,
            order=settings.orderly,
        )
        address = session.routes.master(target.broker_name)
        result = await session.call(address, request, timeout_ms=wait_ms + settings.request_timeout_ms)
        if result.code != ResponseCode.SUCCESS or result.reply is None:
            return []
        messages = popped_messages(result, result.reply, wanted.topic, target.broker_name)
        matching = wanted.filtered(messages)
        if len(matching) < len(messages):
            kept = set(map(id, matching))
            await self.ack(*(message for message in messages if id(message) not in kept))
        return await self._without_dead_letters(matching)

    async def _wait_for_any(self, targets: Sequence[_PopTarget], wait_ms: int) -> bool:
        """Wait until a broker has messages; False at the timeout. Nothing is popped meanwhile."""
        failure: BaseException | None = None
        deadline_ms = self._clock.now_ms() + wait_ms
        earlier = {self._notices[target]: target for target in targets if target in self._notices}
        waits = set(earlier) | {self._notice(target, wait_ms) for target in targets}
        while waits and (left_ms := deadline_ms - self._clock.now_ms()) > 0:
            done, waits = await asyncio.wait(
                waits, timeout=left_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
            for notice in done:
                if not notice.cancelled() and (error := notice.exception()) is not None:
                    failure = error
                elif not notice.cancelled() and notice.result().has_msg:
                    return True
                elif notice in earlier and self._state == "RUNNING":
                    waits.add(self._notice(earlier[notice], left_ms))
        if failure is not None:
            raise failure
        return False

    def _notice(self, target: _PopTarget, wait_ms: int) -> asyncio.Task[NotificationReply]:
        """Return the request that a broker answers when a topic has messages: one at a time for all calls."""
        notice = self._notices.get(target)
        if notice is None:
            session = self._running()
            request = Notification(
                consumer_group=self._group,
                topic=target.subscription.topic,
                queue_id=ANY_QUEUE,
                poll_time=wait_ms,
                born_time=self._clock.now_ms(),
                order=self.settings.orderly,
            )
            address = session.routes.master(target.broker_name)
            timeout_ms = wait_ms + self.settings.request_timeout_ms
            notice = asyncio.create_task(session.call(address, request, timeout_ms=timeout_ms))
            self._notices[target] = notice
            notice.add_done_callback(lambda done: self._forget_notice(target, done))
        return notice

    def _forget_notice(self, target: _PopTarget, notice: asyncio.Task[NotificationReply]) -> None:
        del self._notices[target]
        if not notice.cancelled():
            notice.exception()  # a call that waits for it reports the failure; others do not care

    async def _without_dead_letters(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Send messages that failed too often to the dead letters; return the others."""
        assert self._send_back is not None
        namespace, limit = self._client.namespace, self.settings.attempts_max
        good = []
        for message in messages:
            if namespace:
                message.topic = without_namespace(namespace, message.topic)
            if message.reconsume_times < limit:
                good.append(message)
            elif await self._send_back.send_back(message, DEAD_LETTER_LEVEL):
                log.warning("dead letter topic=%s id=%s", message.topic, message.message_id)
                await self.ack(message)
        return good

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
            by_broker.setdefault(_handle_of(message).broker_name, []).append(message)
        await asyncio.gather(
            *(self._ack_all(session, broker, of_broker) for broker, of_broker in by_broker.items())
        )

    async def _ack_one(self, session: Session, message: ReceivedMessage) -> None:
        handle = _handle_of(message)
        topic = with_namespace(self._client.namespace, message.topic)
        request = AckMessage(
            consumer_group=self._group,
            topic=handle.popped_from(topic, self._group),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            queue_offset=handle.queue_offset,
        )
        address = session.routes.master(handle.broker_name)
        await session.call(address, request, timeout_ms=self.settings.request_timeout_ms)

    async def _ack_all(self, session: Session, broker: str, messages: Sequence[ReceivedMessage]) -> None:
        by_batch: dict[tuple[str, str, int, int, int], list[PopHandle]] = {}
        for message in messages:
            handle = _handle_of(message)
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
        session, handle = self._running(), _handle_of(message)
        topic = with_namespace(self._client.namespace, message.topic)
        request = ChangeMessageInvisibleTime(
            consumer_group=self._group,
            topic=handle.popped_from(topic, self._group),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            queue_offset=handle.queue_offset,
            invisible_time=invisible_ms,
        )
        address = session.routes.master(handle.broker_name)
        reply = await session.call(address, request, timeout_ms=self.settings.request_timeout_ms)
        message.handle = handle.changed(reply.pop_time, reply.invisible_time, reply.revive_queue_id)

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


def _handle_of(message: ReceivedMessage) -> PopHandle:
    handle = message.handle
    if handle is None:
        raise ClientError(
            f"message {message.message_id} has no receipt; it was not received by a simple consumer"
        )
    return handle


def popped_messages(
    result: PopResult, reply: PopReply, topic: str, broker_name: str
) -> list[ReceivedMessage]:
    """Return the messages of a pop, each with its handle. Raises RemoteProtocolError, CorruptRecord."""
    data = bytes(result.records)
    starts, counts = read_starts(reply.start_offset_info), read_order_counts(reply.order_count_info)
    messages = decode_pull(data, MessageQueue(topic, broker_name, ANY_QUEUE))
    queue_ids = _queue_ids(data)
    if len(queue_ids) != len(messages):
        raise RemoteProtocolError(f"{len(queue_ids)} records hold {len(messages)} messages")
    queues: dict[int, MessageQueue] = {}
    for message, queue_id in zip(messages, queue_ids, strict=True):
        queue = queues.get(queue_id)
        if queue is None:
            queue = queues[queue_id] = MessageQueue(topic, broker_name, queue_id)
        message.queue = queue
        text = find_handle(message.properties_text)
        if text is not None:
            message.handle = PopHandle.decode(text.decode())
            continue
        offset = message.queue_offset
        message.handle = PopHandle(
            starts.get(("0", queue_id), offset), reply.pop_time, reply.invisible_time, reply.revive_queue_id,
            "0", broker_name, queue_id, offset,
        )  # fmt: skip
        if counts:
            times = counts.get(offset_key("0", queue_id, offset), counts.get(queue_key("0", queue_id), 0))
            message.reconsume_times = times
    return messages


def _queue_ids(data: bytes) -> list[int]:
    """Return the queue id of each record."""
    ids, position = [], 0
    while position < len(data):
        size, queue_id = _SIZE_AND_QUEUE.unpack_from(data, position)
        ids.append(queue_id)
        position += size
    return ids
