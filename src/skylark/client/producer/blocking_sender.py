"""BlockingSender: one send from the caller's thread to the broker and back, without the loop in between.

Decisions come from `send_policy.SendPolicy`, routes from the asyncio sender. Only name server requests
cross to the loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from skylark.client.blocking_client import LoopThread
from skylark.client.producer.async_sender import AsyncSender
from skylark.client.producer.message_encoder import EncodedBatch, EncodedMessage
from skylark.client.producer.queue_selectors import RoundRobin, Selector
from skylark.client.producer.send_policy import PendingSend, vip_address
from skylark.client.producer.send_receipt import SendReceipt
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import Session
from skylark.clock import SystemClock
from skylark.errors import (
    BadMessage,
    BrokerUnknown,
    ClientClosed,
    ConnectFailed,
    GoAway,
    LocalProtocolError,
    RocketMQError,
)
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import Buffer, RemotingCommand
from skylark.remoting.threaded_connection import ThreadedConnection

T = TypeVar("T")

_REQUEST = RequestCode.SEND_MESSAGE_V2.name


class _ThreadRobins(threading.local):
    """Whose turn it is, by topic; each thread has its own start."""

    def __init__(self) -> None:
        self.robins: dict[str, RoundRobin] = {}


class BlockingSender:
    """Sends of one producer by any thread, over one connection per broker."""

    def __init__(self, sender: AsyncSender, session: Session, thread: LoopThread) -> None:
        self.sender = sender
        self._session = session
        self._thread = thread
        self._turns = _ThreadRobins()
        self._connections: dict[str, ThreadedConnection] = {}
        self._lock = threading.Lock()
        self._active = 0
        self._idle = threading.Condition(self._lock)
        self._closed = False
        self._clock = SystemClock()

    def send(
        self,
        prepared: EncodedMessage | EncodedBatch,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout_ms: float | None = None,
    ) -> list[SendReceipt]:
        """Send and return the receipts. Raises NoRoute, SendFailed, BadMessage, ClientClosed."""
        sending = self._sending(prepared, queue, selector, argument, timeout_ms)
        self._enter()
        try:
            while True:
                receipts = self._attempt(sending)
                if receipts is not None:
                    return receipts
        except RocketMQError:
            if sending.stored is None:
                raise
            return sending.stored
        except KeyboardInterrupt as error:
            error.add_note(f"send to topic {sending.topic}: whether the message is stored is unknown")
            raise
        finally:
            self._leave()

    def send_oneway(
        self,
        prepared: EncodedMessage,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> None:
        """Send without wanting an answer. Raises NoRoute, BrokerUnknown, ConnectFailed, ConnectionLost."""
        sending = self._sending(prepared, queue, selector, argument, None)
        rules = self.sender.rules
        self._enter()
        try:
            self._begin(sending)
            self._connection(sending.address).notify(
                lambda opaque: rules.frame(sending, opaque, self._clock.now_ms(), is_oneway=True),
                deadline=sending.deadline,
            )
            rules.sent_oneway(sending, time.monotonic())
        except ConnectFailed as error:
            raise self._session.explained(error) from error
        finally:
            self._leave()

    def _sending(
        self,
        prepared: EncodedMessage | EncodedBatch,
        queue: MessageQueue | None,
        selector: Selector | None,
        argument: Any,
        timeout_ms: float | None,
    ) -> PendingSend:
        settings = self.sender.settings
        now = time.monotonic()
        sending = PendingSend(
            prepared,
            started=now,
            deadline=now + (settings.send_timeout_ms if timeout_ms is None else timeout_ms) / 1000,
            attempts=1 if queue is not None or selector is not None else 1 + settings.retries,
        )
        sending.fixed_queue, sending.selector, sending.argument = queue, selector, argument
        return sending

    def _attempt(self, sending: PendingSend) -> list[SendReceipt] | None:
        """Try once; None if it is to be tried again. Raises SendFailed, NoRoute, BadMessage."""
        rules = self.sender.rules
        self._begin(sending)
        try:
            reply = self._exchange(sending)
            receipts = rules.answered(sending, reply, time.monotonic())
        except (BadMessage, LocalProtocolError) as error:  # it cannot be sent, to nobody
            rules.ended(sending, error, time.monotonic())
            raise
        except RocketMQError as error:
            if isinstance(error, ConnectFailed):
                error = self._session.explained(error)
            elif isinstance(error, GoAway):
                self._connection(sending.address).close()
            step = rules.failed(sending, error, time.monotonic())
            time.sleep(rules.pause_s(sending, self.sender.known_route(sending.topic), time.monotonic()))
            if step.refresh_route:
                self._refresh(sending)
            return None
        if self.sender.settings.retry_when_not_stored and rules.wants_better(
            sending, receipts, time.monotonic()
        ):
            return None
        return receipts

    def _begin(self, sending: PendingSend) -> None:
        route = self._route(sending)
        robin = self._turns.robins.get(sending.topic)
        if robin is None:
            robin = self._turns.robins[sending.topic] = RoundRobin()
        now = time.monotonic()
        queue = self.sender.rules.choose(sending, route, robin, now)
        try:
            address = self._session.routes.master(queue.broker_name)
        except BrokerUnknown:
            self._refresh(sending)
            queue = self.sender.rules.choose(sending, self._route(sending), robin, now)
            address = self._session.routes.master(queue.broker_name)
        if self._session.settings.vip_channel:
            address = vip_address(address)
        self.sender.rules.begin(sending, queue, address, now)

    def _exchange(self, sending: PendingSend) -> RemotingCommand:
        rules = self.sender.rules

        def frame(opaque: int) -> tuple[Buffer, ...]:
            return rules.frame(sending, opaque, self._clock.now_ms())

        deadline = rules.attempt_deadline(sending, sending.tried_at)
        return self._connection(sending.address).exchange(frame, deadline=deadline, request=_REQUEST)

    def _route(self, sending: PendingSend) -> TopicRoute:
        known = self.sender.known_route(sending.topic)
        return known if known is not None else self._ask(sending, self._introduce)

    async def _introduce(self, topic: str) -> TopicRoute:
        """Find a topic's route and let its brokers hear of us, as this connection does not tell them."""
        found = await self.sender.find_topic(topic)
        self._session.tasks.spawn(self._session.heartbeat(), "heartbeat")
        return found.route

    def _refresh(self, sending: PendingSend) -> None:
        self._ask(sending, self.sender.refresh)

    def _ask(self, sending: PendingSend, ask: Callable[[str], Coroutine[Any, Any, T]]) -> T:
        """Ask name servers about the topic while the send has time. Raises SendFailed, what `ask` raises."""

        async def in_time() -> T:
            async with asyncio.timeout(sending.deadline - time.monotonic()):
                return await ask(sending.topic)

        try:
            return self._thread.wait(in_time())
        except TimeoutError:
            raise self.sender.rules.without_route(sending, time.monotonic()) from None

    def _connection(self, address: str) -> ThreadedConnection:
        connection = self._connections.get(address)
        if connection is None:
            with self._lock:
                connection = self._connections.get(address)
                if connection is None:
                    timeout_s = self._session.settings.connect_timeout_ms / 1000
                    connection = ThreadedConnection(address, connect_timeout_s=timeout_s)
                    self._connections[address] = connection
        return connection

    # --- Life ---

    def _enter(self) -> None:
        self._thread.birth.check("producer")
        with self._lock:
            if self._closed:
                raise ClientClosed("producer")
            self._active += 1

    def _leave(self) -> None:
        with self._lock:
            self._active -= 1
            if self._closed and not self._active:
                self._idle.notify_all()

    def close(self) -> None:
        """Take no more, wait for the threads that are sending, and close the connections."""
        timeout_s = self._session.settings.stop_timeout_ms / 1000
        with self._lock:
            self._closed = True
            self._idle.wait_for(lambda: not self._active, timeout=timeout_s)
        for connection in self._connections.values():
            connection.close()
