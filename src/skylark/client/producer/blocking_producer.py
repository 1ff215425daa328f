"""Producer: sends messages, for programs without asyncio. Any thread may use it.

What waits for one answer goes straight from the caller's thread to the broker and back; routes, heartbeats,
futures and automatic batching are the asyncio producer's, on the loop thread.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Iterable
from concurrent.futures import InvalidStateError
from contextvars import copy_context
from typing import Any

from skylark.client.blocking_client import BlockingClient
from skylark.client.producer.async_sender import AsyncSender, InFlightSend
from skylark.client.producer.blocking_sender import BlockingSender
from skylark.client.producer.message_encoder import EncodedMessage, check_batch
from skylark.client.producer.producer import AsyncProducer
from skylark.client.producer.queue_selectors import Selector
from skylark.client.producer.reply_message import Reply
from skylark.client.producer.request_reply import REQUEST_TIMEOUT_MS
from skylark.client.producer.send_hooks import SendHook
from skylark.client.producer.send_receipt import SendReceipt
from skylark.client.received_message import ReceivedMessage
from skylark.errors import ClientClosed, SendFailed
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import ClientSettings, ProducerSettings


class _ThreadSend(InFlightSend):
    """A send whose outcome a future of the caller's thread awaits."""

    outcome: concurrent.futures.Future[SendReceipt]

    @property
    def is_abandoned(self) -> bool:
        return self.outcome.cancelled()

    def deliver(self, receipts: list[SendReceipt]) -> None:
        try:  # cheaper than to suppress it, for what happens to every message
            self.outcome.set_result(receipts[0])
        except InvalidStateError:
            pass  # its owner may cancel it at any moment

    def fail(self, error: Exception) -> None:
        with contextlib.suppress(InvalidStateError):
            self.outcome.set_exception(error)


class _Room:
    """How much callers have handed over that has no answer yet. Any thread."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._changed = threading.Condition()

    def take(self, size: int, deadline: float) -> bool:
        """Wait for room; False if there is none in time."""
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
    """Sends messages of one group. Any thread; start it after a fork, never before.

    >>> with Producer("orders", namesrv="127.0.0.1:9876") as producer:
    ...     receipt = producer.send(Message("orders", b"hello", tags="created", keys=["42"]))

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
        self._settings = settings or ProducerSettings()
        inner = self._make_inner(group, namesrv, self._settings, client)
        super().__init__(inner, "producer")
        self._direct: BlockingSender | None = None
        self._direct_lock = threading.Lock()
        self._is_ending = False
        self._room = _Room(self._settings.in_flight_max, self._settings.in_flight_bytes_max)
        self._inbox: list[_ThreadSend] = []
        self._inbox_lock = threading.Lock()

    def _make_inner(
        self, group: str, namesrv: str, settings: ProducerSettings, client: ClientSettings | None
    ) -> AsyncProducer:
        return AsyncProducer(group, namesrv=namesrv, settings=settings, client=client)

    def stop(self) -> None:
        """Take no more messages, wait for those in flight (`client.stop_timeout_ms`), and leave."""
        if self._thread is None:
            return
        self._running()
        with self._direct_lock:
            self._is_ending = True
            direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()
        super().stop()

    @property
    def group(self) -> str:
        """The group as brokers know it, with its namespace."""
        return self._inner.group

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client. Raises ClientClosed before the start."""
        self._running()
        return self._inner.client_id

    def add_hook(self, hook: SendHook) -> None:
        """Let a hook see every attempt to send; see `SendHook`. It is called by the thread that sends."""
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
        """Send a message and wait until the broker has it.

        It goes to the topic's queues in turn; to `queue`, or to the one that `selector(queues, message,
        argument)` returns (`by_hash`, `by_random`, your own function), if one is given; messages with a
        `sharding_key` go by its hash. Such a choice is tried once, all others again at other brokers.

        Raises BadMessage, BadName and MessageTooLarge before anything is sent; NoRoute if the topic does not
        exist, RemotingError if no name server can be asked; SendFailed when all attempts failed. A send that
        is interrupted may still be stored.
        """
        if self._settings.batching:
            return self._wait(
                self._inner.send(
                    message, queue=queue, selector=selector, argument=argument, timeout_ms=timeout_ms
                )
            )
        direct = self._direct or self._connect()
        if queue is not None or message.sharding_key is not None or isinstance(message, Reply):
            queue, selector, argument = self._inner.target(message, queue, selector, argument)
        prepared = direct.sender.preparation.prepare(message)
        return direct.send(
            prepared, queue=queue, selector=selector, argument=argument, timeout_ms=timeout_ms
        )[0]

    def submit(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout_ms: float | None = None,
    ) -> concurrent.futures.Future[SendReceipt]:
        """Send a message and return the future of its receipt, to have many on their way at once.

        Waits only while too much is in flight (`settings.in_flight_max`, `in_flight_bytes_max`). Raises what
        is wrong with the message, and SendFailed if there is no room in time; all else is in the future. With
        automatic batching, what is wrong with the message is in the future, too.
        """
        if self._settings.batching:
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
        direct = self._direct or self._connect()
        queue, selector, argument = self._inner.target(message, queue, selector, argument)
        prepared = direct.sender.preparation.prepare(message)
        flight = self._flight(direct.sender, prepared, pinned=queue is not None or selector is not None)
        flight.fixed_queue, flight.selector, flight.argument = queue, selector, argument
        if timeout_ms is not None:
            flight.deadline = flight.started + timeout_ms / 1000
        size = flight.bytes
        self._take_room(message.topic, size, flight.started, flight.deadline)
        flight.outcome.add_done_callback(lambda _: self._room.give(size))
        loop = self._running().loop
        with self._inbox_lock:
            self._inbox.append(flight)
            if len(self._inbox) == 1:  # else the loop was called and has not come yet
                loop.call_soon_threadsafe(self._launch_all)
        return flight.outcome

    def _take_room(self, topic: str, size: int, started: float, deadline: float) -> None:
        if not self._room.take(size, deadline):
            elapsed_ms = round((time.monotonic() - started) * 1000)
            raise SendFailed(topic, (), elapsed_ms, "no room in flight in time")

    def _flight(self, sender: AsyncSender, prepared: EncodedMessage, *, pinned: bool) -> _ThreadSend:
        now = time.monotonic()
        flight = _ThreadSend(
            sender,
            prepared,
            started=now,
            deadline=now + self._settings.send_timeout_ms / 1000,
            attempts=1 if pinned else 1 + self._settings.retries,
        )
        flight.outcome = concurrent.futures.Future()
        if sender.rules.hooks:
            flight.caller = copy_context()
        return flight

    def _launch_all(self) -> None:
        """Send what callers have handed over. On the loop."""
        with self._inbox_lock:
            flights, self._inbox = self._inbox, []
        for flight in flights:
            flight.sender.launch(flight)

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic as one request to one queue; all are stored or none is.

        See `split_into_batches` for more than fits. Raises BadMessage, and what `send` raises.
        """
        direct = self._direct or self._connect()
        batch = list(messages)
        check_batch(batch)
        target, _, _ = self._inner.target(batch[0], queue, None, None)
        prepared = direct.sender.preparation.prepare_batch(batch)
        return direct.send(prepared, queue=target, timeout_ms=timeout_ms)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> None:
        """Send a message and hear nothing of it: for what may be lost, such as logs.

        Raises BadMessage, BadName, MessageTooLarge, NoRoute, ConnectFailed; SendFailed for no route in time.
        """
        direct = self._direct or self._connect()
        queue, selector, argument = self._inner.target(message, queue, selector, argument)
        prepared = direct.sender.preparation.prepare(message)
        direct.send_oneway(prepared, queue=queue, selector=selector, argument=argument)

    def request(
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
        return self._wait(
            self._inner.request(
                message, timeout_ms=timeout_ms, queue=queue, selector=selector, argument=argument
            )
        )

    def submit_request(
        self,
        message: Message,
        *,
        timeout_ms: float = REQUEST_TIMEOUT_MS,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> concurrent.futures.Future[ReceivedMessage]:
        """As `request`, but return the future of the reply. All that `request` raises is in it."""
        return self._submit(
            self._inner.request(
                message, timeout_ms=timeout_ms, queue=queue, selector=selector, argument=argument
            )
        )

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be written to. Raises NoRoute, RemotingError."""
        return self._wait(self._inner.queues(topic))

    def recall(self, topic: str, handle: str) -> str:
        """Take back a timed message whose time has not come, by its receipt's `recall_handle`; return its id.

        Raises BadMessage for a text that is no handle, BrokerError if it is too late, RemotingError.
        """
        return self._wait(self._inner.recall(topic, handle))

    def flush(self) -> None:
        """Send what automatic batching is still gathering, without waiting for the answers."""
        self._wait(self._inner.flush())

    def _connect(self) -> BlockingSender:
        """Return the way from this thread to brokers. Raises ClientClosed, ForkedClient."""
        thread = self._running()
        with self._direct_lock:
            if self._is_ending:
                raise ClientClosed(self._name)
            if self._direct is None:
                self._direct = BlockingSender(self._inner.sender, self._inner.session, thread)
            return self._direct
