"""BlockingSender: sends from the caller's thread to the broker and back, without a loop hop.

Decisions come from `SendPolicy`, routes from the asyncio sender. Only name-server queries cross to the loop.
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
from skylark.client.producer.queue_selectors import ROUND_ROBIN, RoundRobin, SendTarget
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
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import Buffer, RemotingCommand
from skylark.remoting.threaded_connection import ThreadedConnection

T = TypeVar("T")

_REQUEST = RequestCode.SEND_MESSAGE_V2.name


class _ThreadRobins(threading.local):
    """Round-robin positions by topic, separate for each thread."""

    def __init__(self) -> None:
        self.by_topic: dict[str, RoundRobin] = {}


class BlockingSender:
    """Sends for one producer, from any thread, over one connection per broker."""

    def __init__(self, async_sender: AsyncSender, session: Session, thread: LoopThread) -> None:
        self.async_sender = async_sender
        self.encoder = async_sender.encoder
        self._policy = async_sender.policy
        self._session = session
        self._thread = thread
        self._robins = _ThreadRobins()
        self._connections: dict[str, ThreadedConnection] = {}
        self._lock = threading.Lock()
        self._active = 0
        self._idle = threading.Condition(self._lock)
        self._closed = False
        self._clock = SystemClock()

    def send(
        self,
        encoded: EncodedMessage | EncodedBatch,
        target: SendTarget = ROUND_ROBIN,
        timeout_ms: float | None = None,
    ) -> list[SendReceipt]:
        """Send and return the receipts. Raises NoRoute, SendFailed, BadMessage, ClientClosed."""
        send = PendingSend(encoded, self.async_sender.settings, time.monotonic(), target, timeout_ms)
        self._enter()
        try:
            while True:
                receipts = self._attempt(send)
                if receipts is not None:
                    return receipts
        except RocketMQError as error:
            if send.stored is None:
                error.shorten()
                raise
            return send.stored
        except KeyboardInterrupt as error:
            error.add_note(f"send to topic {send.topic}: whether the message is stored is unknown")
            raise
        finally:
            self._leave()

    def send_oneway(self, encoded: EncodedMessage, target: SendTarget = ROUND_ROBIN) -> None:
        """Send without waiting for a reply. Raises NoRoute, BrokerUnknown, ConnectFailed, ConnectionLost."""
        send = PendingSend(encoded, self.async_sender.settings, time.monotonic(), target)
        self._enter()
        try:
            self._begin(send)
            self._connection(send.address).notify(
                lambda opaque: self._policy.frame(send, opaque, self._clock.now_ms(), is_oneway=True),
                deadline=send.deadline,
            )
            self._policy.sent_oneway(send, time.monotonic())
        except ConnectFailed as error:
            raise self._session.explained(error) from None
        finally:
            self._leave()

    def _attempt(self, send: PendingSend) -> list[SendReceipt] | None:
        """Make one attempt; None means retry. Raises SendFailed, NoRoute, BadMessage."""
        self._begin(send)
        try:
            reply = self._exchange(send)
            receipts = self._policy.answered(send, reply, time.monotonic())
        except (BadMessage, LocalProtocolError) as error:  # not sendable to any broker
            self._policy.ended(send, error, time.monotonic())
            raise
        except RocketMQError as error:
            if isinstance(error, ConnectFailed):
                error = self._session.explained(error)
            elif isinstance(error, GoAway):
                self._connection(send.address).close()
            step = self._policy.failed(send, error, time.monotonic())
            time.sleep(
                self._policy.pause_s(send, self.async_sender.known_route(send.topic), time.monotonic())
            )
            if step.refresh_route:
                self._refresh(send)
            return None
        if self.async_sender.settings.retry_when_not_stored and self._policy.wants_better(
            send, receipts, time.monotonic()
        ):
            return None
        return receipts

    def _begin(self, send: PendingSend) -> None:
        route = self._route(send)
        robin = self._robins.by_topic.get(send.topic)
        if robin is None:
            robin = self._robins.by_topic[send.topic] = RoundRobin()
        now = time.monotonic()
        tries = 0
        while True:
            try:
                queue = self._policy.choose(send, route, robin, now)
                address = self._session.routes.master(queue.broker_name)
                break
            except BrokerUnknown as error:
                if tries and not self._session.routes.awaits_master(error.broker):
                    raise
                self._refresh(send)
                if self._session.routes.awaits_master(error.broker):
                    time.sleep(self._policy.master_pause_s(send, tries, time.monotonic()))
                route = self._route(send)
                tries += 1
        if self._session.settings.vip_channel:
            address = vip_address(address)
        self._policy.begin(send, queue, address, time.monotonic() if tries else now)

    def _exchange(self, send: PendingSend) -> RemotingCommand:

        def frame(opaque: int) -> tuple[Buffer, ...]:
            return self._policy.frame(send, opaque, self._clock.now_ms())

        deadline = self._policy.attempt_deadline(send, send.tried_at)
        return self._connection(send.address).exchange(frame, deadline=deadline, request=_REQUEST)

    def _route(self, send: PendingSend) -> TopicRoute:
        known = self.async_sender.known_route(send.topic)
        return known if known is not None else self._ask(send, self._introduce)

    async def _introduce(self, topic: str) -> TopicRoute:
        """Find a topic's route and send its brokers a heartbeat: this connection carries none."""
        found = await self.async_sender.find_topic(topic)
        self._session.tasks.spawn(self._session.heartbeat(), "heartbeat")
        return found.route

    def _refresh(self, send: PendingSend) -> None:
        self._ask(send, self.async_sender.refresh)

    def _ask(self, send: PendingSend, ask: Callable[[str], Coroutine[Any, Any, T]]) -> T:
        """Run a name-server query until the send's deadline. Raises SendFailed, and as `ask`."""

        async def in_time() -> T:
            async with asyncio.timeout(send.deadline - time.monotonic()):
                return await ask(send.topic)

        try:
            return self._thread.wait(in_time())
        except TimeoutError:
            raise self._policy.without_route(send, time.monotonic()) from None

    def _connection(self, address: str) -> ThreadedConnection:
        connection = self._connections.get(address)
        if connection is None:
            with self._lock:
                connection = self._connections.get(address)
                if connection is None:
                    timeout_s = self._session.settings.connect_timeout_ms / 1000
                    connection = ThreadedConnection(
                        address, connect_timeout_s=timeout_s, tls=self._session.tls
                    )
                    self._connections[address] = connection
        return connection

    # --- Lifecycle ---

    def _enter(self) -> None:
        self._thread.fork_guard.check("producer")
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
        """Refuse new sends, wait for the sending threads, and close the connections."""
        timeout_s = self._session.settings.stop_timeout_ms / 1000
        with self._lock:
            self._closed = True
            self._idle.wait_for(lambda: not self._active, timeout=timeout_s)
        for connection in self._connections.values():
            connection.close()
