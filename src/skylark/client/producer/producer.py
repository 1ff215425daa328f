"""Producer: sends messages, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from skylark.client.message_trace import TraceHook
from skylark.client.namespace import with_namespace, without_namespace
from skylark.client.producer.async_sender import AsyncSender
from skylark.client.producer.batches import Accumulator
from skylark.client.producer.message_encoder import broker_of_handle, check_batch, check_group
from skylark.client.producer.queue_selectors import Selector, by_hash
from skylark.client.producer.reply_message import Reply
from skylark.client.producer.request_reply import REQUEST_TIMEOUT_MS, PendingRequests
from skylark.client.producer.send_hooks import SendHook
from skylark.client.producer.send_receipt import SendReceipt
from skylark.client.received_message import ReceivedMessage
from skylark.client.session import fork_guard
from skylark.client.session.fork_guard import ForkGuard
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import PRODUCER, BrokerHandler, Session, join
from skylark.errors import AlreadyStarted, BadMessage, ClientClosed
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue, ProducerData
from skylark.protocol.codes import RequestCode
from skylark.protocol.requests.send import RecallMessage
from skylark.settings.client import ClientSettings, ProducerSettings, name_server_list

log = logging.getLogger(__name__)


class AsyncProducer:
    """Sends messages of one group. All methods belong to the loop on which it was started.

    >>> async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
    ...     receipt = await producer.send(Message("orders", b"hello", tags="created"))

    Routes and connections are made when the first message needs them. A message that fails is sent again to
    another broker (`settings.retries`), within `settings.send_timeout_ms` for all attempts together.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = "",
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
    ) -> None:
        """`namesrv` is `a:9876;b:9876`; empty: as `client` or the variable NAMESRV_ADDR say.

        Raises BadName for a group that cannot be one, SettingsError without name servers.
        """
        self._client = client or ClientSettings()
        self._settings = settings or ProducerSettings()
        self._name_servers = name_server_list(namesrv, self._client)
        self._group = with_namespace(self._client.namespace, group)
        check_group(group)
        check_group(self._group)
        self._state = "CREATE_JUST"
        self._birth = ForkGuard()
        self._hooks: list[SendHook] = []
        self._session: Session | None = None
        self._sender: AsyncSender | None = None
        self._requests: PendingRequests | None = None
        self._accumulator: Accumulator | None = None
        self._trace: TraceHook | None = None

    # --- Life ---

    async def start(self) -> Self:
        """Start: nothing is asked of any server yet. Raises AlreadyStarted, GroupInUse."""
        if self._state != "CREATE_JUST":
            raise AlreadyStarted("producer", self._state)
        self._state = "START_FAILED"
        self._birth = ForkGuard()
        self._session = await join(self, self._client, self._name_servers)
        self._sender = AsyncSender(self._session, self._group, self._settings)
        self._requests = PendingRequests(self._sender, self._session)
        for hook in self._hooks:
            self._sender.rules.hooks.add(hook)
        if self._settings.trace:
            self._trace = TraceHook(self._session, self._group, self._settings)
            self._sender.rules.hooks.add(self._trace)
        if self._settings.batching:
            self._accumulator = Accumulator(self._sender, self._settings)
        self._state = "RUNNING"
        return self

    async def stop(self) -> None:
        """Take no more messages, wait for those in flight (`client.stop_timeout_ms`), and leave.

        A producer that does not run is left alone.
        """
        if self._state != "RUNNING":
            return
        self._state = "SHUTDOWN_ALREADY"
        assert self._session is not None and self._sender is not None and self._requests is not None
        self._session.check_process()
        if self._accumulator is not None:
            self._accumulator.flush()
        stop_timeout_s = self._client.stop_timeout_ms / 1000
        async with contextlib.AsyncExitStack() as then:  # the last first, also after a cancellation
            then.push_async_callback(self._session.leave, self)
            if self._trace is not None:
                then.push_async_callback(self._trace.line.close, stop_timeout_s)
            then.callback(self._requests.close)
            await self._sender.close(stop_timeout_s)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client. Raises ClientClosed before the start."""
        return self.session.client_id

    def add_hook(self, hook: SendHook) -> None:
        """Let a hook see every attempt to send; see `SendHook`."""
        self._hooks.append(hook)
        if self._sender is not None:
            self._sender.rules.hooks.add(hook)

    def _running(self) -> AsyncSender:
        if self._state != "RUNNING" or self._sender is None:
            raise ClientClosed(f"producer {self._group}")
        if self._birth.forks != fork_guard.forks:
            self._birth.check("producer")
        return self._sender

    # --- Sending ---

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout_ms: float | None = None,
    ) -> SendReceipt:
        """Send a message and wait until the broker has it.

        It goes to the topic's queues in turn; to `queue`, or to the one that `selector(queues, message,
        argument)` returns (`by_hash`, `by_random`, your own function), if one is given; messages with a
        `sharding_key` go by its hash. Such a choice is tried once, all others again at other brokers.

        Raises BadMessage, BadName and MessageTooLarge before anything is sent; NoRoute if the topic does not
        exist, RemotingError if no name server can be asked; SendFailed when all attempts failed. A send that
        is cancelled may still be stored.
        """
        future = await self.submit(
            message, queue=queue, selector=selector, argument=argument, timeout_ms=timeout_ms
        )
        try:
            return await future
        except asyncio.CancelledError as error:
            error.add_note(f"send to topic {message.topic}: whether the message is stored is unknown")
            log.info("send cancelled, outcome unknown topic=%s", message.topic)
            raise

    async def submit(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout_ms: float | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Send a message and return the future of its receipt: the fastest way to send many.

        Waits only while too much is in flight (`settings.in_flight_max`, `in_flight_bytes_max`). Raises what
        is wrong with the message; all else, as for `send`, is in the future.
        """
        sender = self._running()
        if queue is not None or message.sharding_key is not None or type(message) is not Message:
            queue, selector, argument = self.target(message, queue, selector, argument)
        gathering = self._accumulator
        if gathering is not None and timeout_ms is None and selector is None:
            future = gathering.add(message, queue) or await gathering.begin(message, queue)
            if future is not None:
                return future
        return await sender.send(
            sender.preparation.prepare(message),
            queue=queue,
            selector=selector,
            argument=argument,
            timeout_ms=timeout_ms,
        )

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic as one request to one queue; all are stored or none is.

        See `split_into_batches` for more than fits. Raises BadMessage, and what `send` raises.
        """
        sender = self._running()
        batch = list(messages)
        check_batch(batch)
        queue, _, _ = self.target(batch[0], queue, None, None)
        prepared = sender.preparation.prepare_batch(batch)
        future = await sender.send(prepared, queue=queue, timeout_ms=timeout_ms)
        receipts: list[SendReceipt] = await future
        return receipts

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> None:
        """Send a message and hear nothing of it: for what may be lost, such as logs.

        Raises BadMessage, BadName, MessageTooLarge, NoRoute, ConnectFailed.
        """
        sender = self._running()
        queue, selector, argument = self.target(message, queue, selector, argument)
        await sender.send_oneway(
            sender.preparation.prepare(message), queue=queue, selector=selector, argument=argument
        )

    async def request(
        self,
        message: Message,
        *,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> ReceivedMessage:
        """Send a message and wait for the reply of whoever consumes it (see `reply`).

        `timeout_ms` is for all together. Raises NoReply if the message was sent but no reply came in time: it
        may still be worked on, and a reply that comes later is dropped. Else as `send`.
        """
        self._running()
        assert self._requests is not None
        queue, selector, argument = self.target(message, queue, selector, argument)
        return await self._requests.ask(
            message, queue=queue, selector=selector, argument=argument, timeout_ms=timeout_ms
        )

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be written to. Raises NoRoute, RemotingError."""
        sender = self._running()
        found = await sender.find_topic(with_namespace(self._client.namespace, topic))
        return [MessageQueue(topic, each.broker_name, each.queue_id) for each in found.route.write_queues]

    async def recall(self, topic: str, handle: str) -> str:
        """Take back a timed message whose time has not come, by its receipt's `recall_handle`; return its id.

        Raises BadMessage for a text that is no handle, BrokerError if it is too late, RemotingError.
        """
        sender = self._running()
        wire_topic = with_namespace(self._client.namespace, topic)
        broker = broker_of_handle(topic, handle)
        await sender.find_topic(wire_topic)
        address = self.session.routes.master(broker)
        reply = await self.session.call(address, RecallMessage(wire_topic, handle, self._group))
        return reply.msg_id

    async def flush(self) -> None:
        """Send what automatic batching is still gathering, without waiting for the answers."""
        self._running()
        if self._accumulator is not None:
            self._accumulator.flush()

    def target(
        self, message: Message, queue: MessageQueue | None, selector: Selector | None, argument: Any
    ) -> tuple[MessageQueue | None, Selector | None, Any]:
        """Return which queue, or which way to choose one, a message's sender means. Raises BadMessage."""
        if queue is None and selector is None and isinstance(message, Reply):
            return MessageQueue(message.topic, message.broker_name, 0), None, None
        if queue is None:
            if selector is None and message.sharding_key is not None:
                return None, by_hash, message.sharding_key
            return None, selector, argument
        namespace = self._client.namespace
        if without_namespace(namespace, queue.topic) != message.topic:
            reason = f"message's topic not equal mq's topic, which is {queue.topic}"
            raise BadMessage(message.topic, reason)
        if namespace:
            queue = MessageQueue(with_namespace(namespace, queue.topic), queue.broker_name, queue.queue_id)
        return queue, None, None

    @property
    def sender(self) -> AsyncSender:
        """What carries the messages. Raises ClientClosed."""
        return self._running()

    @property
    def session(self) -> Session:
        """What the producer shares with others of its client id. Raises ClientClosed."""
        self._running()
        assert self._session is not None
        return self._session

    # --- As a member of the session ---

    @property
    def kind(self) -> str:
        return PRODUCER

    @property
    def group(self) -> str:
        """The group as brokers know it, with its namespace."""
        return self._group

    def heartbeat_data(self) -> ProducerData:
        return ProducerData(self._group)

    def topics(self) -> Iterable[str]:
        return list(self._sender.topics()) if self._sender is not None else ()

    def on_route_change(self, route: TopicRoute) -> None:
        if self._sender is not None:
            self._sender.on_route_change(route)

    def on_connected(self, address: str) -> None:
        """Nothing to do: a producer owns no queues."""

    def handlers(self) -> Mapping[int, BrokerHandler]:
        if self._requests is None:
            return {}
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._requests.on_push}
