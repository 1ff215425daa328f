"""Producers: `AsyncProducer` (`skylark.aio.Producer`) and the blocking `Producer` (`skylark.Producer`)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import InvalidStateError
from contextvars import copy_context
from types import TracebackType
from typing import Any, Self

from skylark.client.blocking_client import BlockingClient, blocking
from skylark.client.message_trace import TraceHook
from skylark.client.namespace import with_namespace, without_namespace
from skylark.client.producer.async_sender import AsyncSender, InFlightSend
from skylark.client.producer.batches import Accumulator, OnOutcome, PostedSend, SubmittedSend
from skylark.client.producer.blocking_sender import BlockingSender
from skylark.client.producer.message_encoder import (
    broker_of_handle,
    check_batch,
    check_group,
    check_message,
)
from skylark.client.producer.queue_selectors import ROUND_ROBIN, Selector, SendTarget, by_hash
from skylark.client.producer.request_reply import REQUEST_TIMEOUT_MS, PendingRequests, Reply
from skylark.client.producer.send_hooks import SendHook
from skylark.client.producer.send_receipt import SendReceipt
from skylark.client.producer.sent_rows import SentRows
from skylark.client.received_message import ReceivedMessage
from skylark.client.session import fork_guard
from skylark.client.session.fork_guard import ForkGuard
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import PRODUCER, BrokerHandler, Session, join
from skylark.errors import AlreadyStarted, BadMessage, ClientClosed, SendFailed, SettingsError
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue, ProducerData
from skylark.protocol.codes import RequestCode
from skylark.protocol.requests.send import RecallMessage
from skylark.settings.client import ClientSettings, ProducerSettings, name_server_list

log = logging.getLogger(__name__)


class AsyncProducer:
    """`skylark.aio.Producer`: sends messages of one group. Use it only on the loop on which it was started.

    >>> async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
    ...     receipt = await producer.send(Message("orders", b"hello", tags="created"))

    Routes and connections are opened when the first message needs them. A failed send is retried on another
    broker (`settings.retries`), within `settings.send_timeout_ms` for all attempts together.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = "",
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
    ) -> None:
        """`namesrv` is `a:9876;b:9876`; if empty, `client` or the variable NAMESRV_ADDR provides it.

        Raises BadName for an invalid group, SettingsError without name servers.
        """
        self._client = client or ClientSettings()
        self._settings = settings or ProducerSettings()
        self._name_servers = name_server_list(namesrv, self._client)
        self._group = with_namespace(self._client.namespace, group)
        check_group(group)
        check_group(self._group)
        self._state = "CREATE_JUST"
        self._fork_guard = ForkGuard()
        self._hooks: list[SendHook] = []
        self._session: Session | None = None
        self._sender: AsyncSender | None = None
        self._requests: PendingRequests | None = None
        self._submitted: Accumulator[asyncio.Future[SendReceipt]] | None = None
        self._posted: Accumulator[OnOutcome] | None = None
        self._trace: TraceHook | None = None

    # --- Lifecycle ---

    async def start(self) -> Self:
        """Start the producer; no server is contacted yet. Raises AlreadyStarted, GroupInUse."""
        if self._state != "CREATE_JUST":
            raise AlreadyStarted("producer", self._state)
        self._state = "START_FAILED"
        self._fork_guard = ForkGuard()
        self._session = await join(self, self._client, self._name_servers)
        self._sender = AsyncSender(self._session, self._group, self._settings)
        self._requests = PendingRequests(self._sender, self._session)
        for hook in self._hooks:
            self._sender.policy.hooks.add(hook)
        if self._settings.trace:
            self._trace = TraceHook(self._session, self._group, self._settings)
            self._sender.policy.hooks.add(self._trace)
        if self._settings.batching:
            self._submitted = Accumulator(self._sender, self._settings, SubmittedSend)
            self._posted = Accumulator(self._sender, self._settings, PostedSend)
        self._state = "RUNNING"
        return self

    async def stop(self) -> None:
        """Refuse new messages, wait for those in flight (`client.stop_timeout_ms`), and unregister.

        Does nothing unless the producer runs.
        """
        if self._state != "RUNNING":
            return
        self._state = "SHUTDOWN_ALREADY"
        assert self._session is not None and self._sender is not None and self._requests is not None
        self._session.check_process()
        self._flush()
        stop_timeout_s = self._client.stop_timeout_ms / 1000
        async with contextlib.AsyncExitStack() as then:  # runs in reverse order, also after a cancellation
            then.push_async_callback(self._session.leave, self)
            if self._trace is not None:
                then.push_async_callback(self._trace.queue.close, stop_timeout_s)
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
        """The client id that brokers see. Raises ClientClosed before the start."""
        return self.session.client_id

    def add_hook(self, hook: SendHook) -> None:
        """Add a hook that is called around every send attempt; see `SendHook`."""
        self._hooks.append(hook)
        if self._sender is not None:
            self._sender.policy.hooks.add(hook)

    def _running(self) -> AsyncSender:
        if self._state != "RUNNING" or self._sender is None:
            raise ClientClosed(f"producer {self._group}")
        if self._fork_guard.fork_count != fork_guard.fork_count:
            self._fork_guard.check("producer")
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
        """Send a message and wait until the broker has acknowledged it.

        Queues are used round robin, unless `queue` or `selector(queues, message, argument)` (`by_hash`,
        `by_random`, your own function) names one; messages with a `sharding_key` are placed by its hash. A
        chosen queue gets one attempt; otherwise a failed attempt is retried on other brokers.

        Raises BadMessage, BadName and MessageTooLarge before anything is sent; NoRoute if the topic does not
        exist, RemotingError if no name server is reachable; SendFailed when all attempts failed. A cancelled
        send may still be stored.
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
        """Send a message and return the future of its receipt: a fast way to send many (see also `post`).

        Waits only while too much is in flight (`settings.in_flight_max`, `in_flight_bytes_max`). Raises for
        an invalid message; all other errors of `send` are set on the future.
        """
        sender, target = self._running(), ROUND_ROBIN
        if (
            queue is not None
            or selector is not None
            or type(message) is not Message
            or message.sharding_key is not None
        ):
            target = self.target(message, queue, selector, argument)
        submitted = self._submitted
        if submitted is not None and timeout_ms is None and target.selector is None:
            queue, future = target.queue, sender.new_future()
            if submitted.add(message, queue, future) or await submitted.begin(message, queue, future):
                return future
        return await sender.send(sender.encoder.encode(message), target, timeout_ms)

    def post(self, message: Message, on_outcome: OnOutcome) -> bool:
        """Send a message and call a function with it and its receipt or error: the fastest way to send many.

        >>> def on_outcome(message: Message, outcome: SendReceipt | Exception) -> None: ...
        >>> while not producer.post(message, on_outcome):
        ...     await producer.drain()

        Returns False, and does not take the message, if too much is in flight: wait for `drain`. The function
        runs on the loop and must not block. Use automatic batching (`settings.batching`). Raises for an
        invalid message; all other errors of `send` are passed to the function.
        """
        sender, posted = self._running(), self._posted
        if posted is not None and type(message) is Message and posted.add(message, None, on_outcome):
            return True
        target = self.target(message)
        if not sender.takes_more:
            return False
        batches = None if target.selector is not None else posted
        if batches is None or not batches.open(message, target.queue, on_outcome):
            send = PostedSend(sender, sender.encoder.encode(message), sender.now(), target)
            send.outcomes = [on_outcome]
            if sender.policy.hooks:
                send.caller = copy_context()
            sender.launch(send)
        return True

    async def drain(self) -> None:
        """Let the loop work, and wait until `post` takes messages. Await it now and then while you post many.

        Raises SendFailed if that takes longer than `settings.send_timeout_ms`.
        """
        await self._running().drain()

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic as one request to one queue; all are stored or none is.

        Use `split_into_batches` for more than one request can hold. Raises BadMessage, and as `send`.
        """
        sender = self._running()
        batch = list(messages)
        check_batch(batch)
        target = SendTarget(self.target(batch[0], queue).queue)
        future = await sender.send(sender.encoder.encode_batch(batch), target, timeout_ms)
        receipts: list[SendReceipt] = await future
        return receipts

    async def send_arrow(
        self,
        data: Any,
        topic: str,
        *,
        body: str = "body",
        keys: str | None = None,
        tags: str | None = None,
        sharding_key: str | None = None,
        properties: Sequence[str] = (),
        queue: MessageQueue | None = None,
        timeout_ms: float | None = None,
        wait_for_store: bool = True,
    ) -> SentRows:
        """Send every row of a table as a message, and return which rows are stored where.

        `data` is a `pyarrow.RecordBatch` or `Table`, or anything that pyarrow makes a table of, such as a
        DataFrame of pandas or polars. `body`, `keys`, `tags` and `sharding_key` name columns; those in
        `properties` become properties, a column of maps brings its own. Null means without. Rows are encoded
        by columns and sent as batches, many times faster than messages, without compression.

        Requests take the queues in turn and are in flight together, so rows keep their order only within a
        range of the result. All rows go in order to `queue` if one is named; rows with a sharding key go in
        order to the queue that `send` chooses for the key. `timeout_ms` is for each request.

        Needs the extra `skylarkmq[arrow]`. Raises SettingsError, BadMessage and MessageTooLarge (with the
        row) before anything is sent, NoRoute, and RowsFailed if some rows were not acknowledged.
        """
        sender = self._running()
        target = self.target(Message(topic, b""), queue)
        try:
            from skylark.client.producer import arrow_rows  # noqa: PLC0415  needs pyarrow, an optional package
        except ImportError as error:
            raise SettingsError("send_arrow", f"{error}; run: pip install 'skylarkmq[arrow]'") from error
        columns = arrow_rows.RowColumns(body, keys, tags, sharding_key, properties)
        return await arrow_rows.send_rows(
            sender, data, topic, columns, target, timeout_ms=timeout_ms, wait_for_store=wait_for_store
        )

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> None:
        """Send a message without waiting for an acknowledgement: for data that may be lost, such as logs.

        Raises BadMessage, BadName, MessageTooLarge, NoRoute, ConnectFailed.
        """
        sender = self._running()
        target = self.target(message, queue, selector, argument)
        await sender.send_oneway(sender.encoder.encode(message), target)

    async def request(
        self,
        message: Message,
        *,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> ReceivedMessage:
        """Send a message and wait for the reply of its consumer (see `reply`).

        `timeout_ms` covers send and reply. Raises NoReply if the message was sent but no reply arrived in
        time: it may still be processed, and a late reply is dropped. Otherwise as `send`.
        """
        self._running()
        assert self._requests is not None
        target = self.target(message, queue, selector, argument)
        return await self._requests.ask(message, target, timeout_ms)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of a topic. Raises NoRoute, RemotingError."""
        sender = self._running()
        found = await sender.find_topic(with_namespace(self._client.namespace, topic))
        return [MessageQueue(topic, each.broker_name, each.queue_id) for each in found.route.write_queues]

    async def recall(self, topic: str, handle: str) -> str:
        """Cancel a timed message that is not due yet, by its receipt's `recall_handle`; return its id.

        Raises BadMessage for an invalid handle, BrokerError if it is too late, RemotingError.
        """
        sender = self._running()
        wire_topic = with_namespace(self._client.namespace, topic)
        broker = broker_of_handle(topic, handle)
        await sender.find_topic(wire_topic)
        address = self.session.routes.master(broker)
        reply = await self.session.call(address, RecallMessage(wire_topic, handle, self._group))
        return reply.msg_id

    async def flush(self) -> None:
        """Send the open batches of automatic batching now, without waiting for the acknowledgements."""
        self._running()
        self._flush()

    def _flush(self) -> None:
        if self._submitted is not None and self._posted is not None:
            self._submitted.flush()
            self._posted.flush()

    def target(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> SendTarget:
        """Return where a message goes. Raises BadMessage for no Message and for a queue of another topic."""
        check_message(message)
        if queue is None:
            if selector is not None:
                return SendTarget(None, selector, argument)
            if isinstance(message, Reply):
                return SendTarget(MessageQueue(message.topic, message.broker_name, 0))
            if message.sharding_key is not None:
                return SendTarget(None, by_hash, message.sharding_key)
            return ROUND_ROBIN
        namespace = self._client.namespace
        if without_namespace(namespace, queue.topic) != message.topic:
            reason = f"message's topic not equal mq's topic, which is {queue.topic}"
            raise BadMessage(message.topic, reason)
        if namespace:
            queue = MessageQueue(with_namespace(namespace, queue.topic), queue.broker_name, queue.queue_id)
        return SendTarget(queue)

    @property
    def sender(self) -> AsyncSender:
        """Raises ClientClosed unless the producer runs."""
        return self._running()

    @property
    def session(self) -> Session:
        """Raises ClientClosed unless the producer runs."""
        self._running()
        assert self._session is not None
        return self._session

    # --- session.Member ---

    @property
    def kind(self) -> str:
        return PRODUCER

    @property
    def group(self) -> str:
        """The group with its namespace."""
        return self._group

    def heartbeat_data(self) -> ProducerData:
        return ProducerData(self._group)

    def topics(self) -> Iterable[str]:
        return list(self._sender.topics()) if self._sender is not None else ()

    def on_route_change(self, route: TopicRoute) -> None:
        if self._sender is not None:
            self._sender.on_route_change(route)

    def on_connected(self, address: str) -> None:
        """Does nothing: a producer owns no queues."""

    def handlers(self) -> Mapping[int, BrokerHandler]:
        if self._requests is None:
            return {}
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._requests.on_push}


class _ThreadSend(InFlightSend):
    """An in-flight send whose outcome is set on a future of the caller's thread."""

    outcome: concurrent.futures.Future[SendReceipt]

    @property
    def is_abandoned(self) -> bool:
        return self.outcome.cancelled()

    def deliver(self, receipts: list[SendReceipt]) -> None:
        try:  # on the hot path, cheaper than contextlib.suppress
            self.outcome.set_result(receipts[0])
        except InvalidStateError:
            pass  # the caller may cancel it at any moment

    def fail(self, error: Exception) -> None:
        with contextlib.suppress(InvalidStateError):
            self.outcome.set_exception(error)


class _Room:
    """Limits the number and bytes of submitted sends without a receipt. Any thread."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._changed = threading.Condition()

    def take(self, size: int, deadline: float) -> bool:
        """Wait for room; False at the deadline."""
        with self._changed:
            if self._fits(size) or self._changed.wait_for(
                lambda: self._fits(size), timeout=max(0.0, deadline - time.monotonic())
            ):
                self._count += 1
                self._bytes += size
                return True
            return False

    def _fits(self, size: int) -> bool:
        return not self._count or (self._count < self._count_max and self._bytes + size <= self._bytes_max)

    def give(self, size: int) -> None:
        with self._changed:
            self._count -= 1
            self._bytes -= size
            self._changed.notify()


class Producer(BlockingClient[AsyncProducer]):
    """`skylark.Producer`: sends messages of one group. Any thread may use it. Start it after a fork, not
    before.

    >>> with Producer("orders", namesrv="127.0.0.1:9876") as producer:
    ...     receipt = producer.send(Message("orders", b"hello", tags="created", keys=["42"]))

    Routes and connections are opened when the first message needs them. A failed send is retried on another
    broker (`settings.retries`), within `settings.send_timeout_ms` for all attempts together. Sends that wait
    for their receipt run in the caller's thread (`BlockingSender`); all else runs on the loop thread.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str = "",
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
    ) -> None:
        """`namesrv` is `a:9876;b:9876`; if empty, `client` or the variable NAMESRV_ADDR provides it.

        Raises BadName for an invalid group, SettingsError without name servers.
        """
        self._set_up(AsyncProducer(group, namesrv=namesrv, settings=settings, client=client), settings)

    def _set_up(self, inner: AsyncProducer, settings: ProducerSettings | None) -> None:
        super().__init__(inner, "producer")
        self._settings = settings or ProducerSettings()
        self._sender: BlockingSender | None = None
        self._sender_lock = threading.Lock()
        self._is_ending = False
        self._room = _Room(self._settings.in_flight_max, self._settings.in_flight_bytes_max)
        self._inbox: list[_ThreadSend] = []
        self._inbox_lock = threading.Lock()

    def stop(self) -> None:
        """Refuse new messages, wait for those in flight (`client.stop_timeout_ms`), and unregister."""
        if self._thread is None:
            return
        self._running()
        with self._sender_lock:
            self._is_ending = True
            sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
        super().stop()

    @property
    def group(self) -> str:
        """The group with its namespace."""
        return self._inner.group

    @property
    def client_id(self) -> str:
        """The client id that brokers see. Raises ClientClosed before the start."""
        self._running()
        return self._inner.client_id

    def add_hook(self, hook: SendHook) -> None:
        """Add a hook that is called around every send attempt, in the sending thread; see `SendHook`."""
        self._inner.add_hook(hook)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout_ms: float | None = None,
    ) -> SendReceipt:
        """Send a message and wait until the broker has acknowledged it.

        Queues are used round robin, unless `queue` or `selector(queues, message, argument)` (`by_hash`,
        `by_random`, your own function) names one; messages with a `sharding_key` are placed by its hash. A
        chosen queue gets one attempt; otherwise a failed attempt is retried on other brokers.

        Raises BadMessage, BadName and MessageTooLarge before anything is sent; NoRoute if the topic does not
        exist, RemotingError if no name server is reachable; SendFailed when all attempts failed. An
        interrupted send may still be stored.
        """
        if self._settings.batching:
            return self._wait(
                self._inner.send(
                    message, queue=queue, selector=selector, argument=argument, timeout_ms=timeout_ms
                )
            )
        sender = self._sender or self._connect()
        target = ROUND_ROBIN
        if (
            queue is not None
            or selector is not None
            or type(message) is not Message
            or message.sharding_key is not None
        ):
            target = self._inner.target(message, queue, selector, argument)
        return sender.send(sender.encoder.encode(message), target, timeout_ms)[0]

    def submit(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout_ms: float | None = None,
    ) -> concurrent.futures.Future[SendReceipt]:
        """Send a message and return the future of its receipt, to have many in flight at once.

        Waits only while too much is in flight (`settings.in_flight_max`, `in_flight_bytes_max`). Raises for
        an invalid message, and SendFailed if there is no room in time; all other errors are set on the
        future. With automatic batching, an invalid message is reported by the future, too.
        """
        if self._settings.batching:
            check_message(message)
            wait_ms = self._settings.send_timeout_ms if timeout_ms is None else timeout_ms
            size, now = len(message.body), time.monotonic()
            self._take_room(message.topic, size, now, now + wait_ms / 1000)
            gathered = self._submit(
                self._inner.send(
                    message, queue=queue, selector=selector, argument=argument, timeout_ms=timeout_ms
                )
            )
            gathered.add_done_callback(lambda _: self._room.give(size))
            return gathered
        sender = self._sender or self._connect()
        target = self._inner.target(message, queue, selector, argument)
        encoded = sender.encoder.encode(message)
        send = _ThreadSend(sender.async_sender, encoded, time.monotonic(), target, timeout_ms)
        send.outcome = concurrent.futures.Future()
        if sender.async_sender.policy.hooks:
            send.caller = copy_context()
        size = send.bytes
        self._take_room(message.topic, size, send.started, send.deadline)
        send.outcome.add_done_callback(lambda _: self._room.give(size))
        loop = self._running().loop
        with self._inbox_lock:
            self._inbox.append(send)
            if len(self._inbox) == 1:  # otherwise the loop is scheduled already
                loop.call_soon_threadsafe(self._launch_all)
        return send.outcome

    def _take_room(self, topic: str, size: int, started: float, deadline: float) -> None:
        if not self._room.take(size, deadline):
            elapsed_ms = round((time.monotonic() - started) * 1000)
            raise SendFailed(topic, (), elapsed_ms, "no room in flight in time")

    def _launch_all(self) -> None:
        """Launch the submitted sends, on the loop."""
        with self._inbox_lock:
            submitted, self._inbox = self._inbox, []
        for send in submitted:
            send.sender.launch(send)

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic as one request to one queue; all are stored or none is.

        Use `split_into_batches` for more than one request can hold. Raises BadMessage, and as `send`.
        """
        sender = self._sender or self._connect()
        batch = list(messages)
        check_batch(batch)
        target = SendTarget(self._inner.target(batch[0], queue).queue)
        return sender.send(sender.encoder.encode_batch(batch), target, timeout_ms)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> None:
        """Send a message without waiting for an acknowledgement: for data that may be lost, such as logs.

        Raises BadMessage, BadName, MessageTooLarge, NoRoute, ConnectFailed; SendFailed without a route in
        time.
        """
        sender = self._sender or self._connect()
        target = self._inner.target(message, queue, selector, argument)
        sender.send_oneway(sender.encoder.encode(message), target)

    request = blocking(AsyncProducer.request)

    def submit_request(
        self,
        message: Message,
        *,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> concurrent.futures.Future[ReceivedMessage]:
        """As `request`, but return the future of the reply; all errors are set on it."""
        return self._submit(
            self._inner.request(
                message, timeout_ms=timeout_ms, queue=queue, selector=selector, argument=argument
            )
        )

    send_arrow = blocking(AsyncProducer.send_arrow)
    queues = blocking(AsyncProducer.queues)
    recall = blocking(AsyncProducer.recall)
    flush = blocking(AsyncProducer.flush)

    def _connect(self) -> BlockingSender:
        """Raises ClientClosed, ForkedClient."""
        thread = self._running()
        with self._sender_lock:
            if self._is_ending:
                raise ClientClosed(self._name)
            if self._sender is None:
                self._sender = BlockingSender(self._inner.sender, self._inner.session, thread)
            return self._sender
