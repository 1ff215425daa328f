"""Request-reply: requests whose sender waits for a reply, and the replies of consumers."""

from __future__ import annotations

import asyncio
import logging
import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from skylark.client.producer.async_sender import AsyncSender
from skylark.client.producer.message_encoder import SystemMessage
from skylark.client.producer.queue_selectors import SendTarget
from skylark.client.producer.send_receipt import SendReceipt
from skylark.client.received_message import ReceivedMessage, decode_pull
from skylark.client.session.session import Session
from skylark.clock import Clock, SystemClock
from skylark.errors import BadMessage, ClientClosed, CorruptRecord, NoReply, SendFailed
from skylark.model.message import (
    PROPERTY_ARRIVE_TIME,
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_REPLY_TO,
    PROPERTY_TTL,
    Message,
    PutMessage,
    decode_properties,
    encode_properties,
    pack_host,
)
from skylark.model.names import reply_topic
from skylark.model.record import encode
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.send import PushReplyMessageToClient

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS = 3000
"""Default time for a request and its reply."""

REPLY_TYPE = "reply"


class Reply(SystemMessage, frozen=True, gc=False, kw_only=True):
    """The reply to a request message, created by `reply`. Any producer can send it; it goes to the requester.

    `broker_name` is the broker that stored the request: the requester is connected to it.
    """

    broker_name: str
    correlation_id: str
    reply_to: str
    ttl: str | None

    def system_properties(self) -> list[tuple[str, str]]:
        pairs = [
            (PROPERTY_MESSAGE_TYPE, REPLY_TYPE),
            (PROPERTY_CORRELATION_ID, self.correlation_id),
            (PROPERTY_REPLY_TO, self.reply_to),
        ]
        return pairs if self.ttl is None else [*pairs, (PROPERTY_TTL, self.ttl)]


def reply(
    request: ReceivedMessage,
    body: bytes,
    *,
    tags: str | None = None,
    keys: Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Reply:
    """Return the reply to a request message; any producer can send it.

    >>> @consumer.subscribe("questions")
    ... def answer(messages):
    ...     for message in messages:
    ...         producer.send(reply(message, b"42"))

    `send` raises SendFailed with code 1 if the requester is gone: do not retry. Raises BadMessage for a
    message that is not a request (see `message.wants_reply`).
    """
    found = request.properties
    for name in (PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO):
        if name not in found:
            raise BadMessage(
                request.topic, f"not a request message: property {name} is missing, check wants_reply"
            )
    cluster = found.get(PROPERTY_CLUSTER)
    if cluster is None:
        reason = "create reply message fail, requestMessage error, property[CLUSTER] is null."
        raise BadMessage(request.topic, reason)
    return Reply(
        topic=reply_topic(cluster),
        body=body,
        tags=tags,
        keys=keys,
        properties=properties or {},
        broker_name=request.broker_name,
        correlation_id=found[PROPERTY_CORRELATION_ID],
        reply_to=found[PROPERTY_REPLY_TO],
        ttl=found.get(PROPERTY_TTL),
    )


class PendingRequests:
    """Requests of one producer that wait for replies. Loop thread only.

    Their futures are in the session's table: a broker pushes a reply to a client id, not to a producer.
    """

    def __init__(self, sender: AsyncSender, session: Session, *, clock: Clock | None = None) -> None:
        self._sender = sender
        self._session = session
        self._clock = clock or SystemClock()
        self._waiting: set[asyncio.Future[ReceivedMessage]] = set()
        self._introduced: set[str] = set()
        self._introducing = asyncio.Lock()

    async def ask(
        self,
        message: Message,
        target: SendTarget,
        timeout_ms: float,
    ) -> ReceivedMessage:
        """Send a request and return its reply. Raises NoReply, ClientClosed, and as a send."""
        if timeout_ms <= 0:
            raise BadMessage(message.topic, f"timeout_ms must be positive, not {timeout_ms}")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        correlation_id = str(uuid.uuid4())
        encoded = self._sender.encoder.encode(
            message,
            system=(
                (PROPERTY_CORRELATION_ID, correlation_id),
                (PROPERTY_REPLY_TO, self._session.client_id),
                (PROPERTY_TTL, str(round(timeout_ms))),
            ),
        )
        await self._introduce(encoded.topic, deadline)
        received: asyncio.Future[ReceivedMessage] = loop.create_future()
        self._session.awaited_replies[correlation_id] = received
        self._waiting.add(received)
        try:
            timeout_left_ms = max(0.0, deadline - loop.time()) * 1000
            sent = await self._sender.send(encoded, target, timeout_left_ms)
            await _reply_or_failure(received, sent, deadline)
            if not received.done():
                raise NoReply(message.topic, round(timeout_ms), encoded.unique_key, correlation_id)
            return received.result()
        finally:
            del self._session.awaited_replies[correlation_id]
            self._waiting.discard(received)

    async def _introduce(self, topic: str, deadline: float) -> None:
        """Send heartbeats to a topic's brokers before the first request, so that they can push the reply."""
        if topic in self._introduced:
            return
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout_at(deadline), self._introducing:
                if topic not in self._introduced:
                    await self._sender.find_topic(topic)
                    await self._heartbeat((deadline - loop.time()) / 2)
                    self._introduced.add(topic)
        except TimeoutError:
            elapsed_ms = round((loop.time() - started) * 1000)
            raise SendFailed(topic, (), elapsed_ms, "no route in time") from None

    async def _heartbeat(self, timeout_s: float) -> None:
        """Send heartbeats within a time limit: one broker that hangs must not use up the request's time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._session.heartbeat()
        except TimeoutError:
            log.info("heartbeat before a request did not reach all brokers in time")

    def on_push(self, command: RemotingCommand, address: str) -> RemotingCommand:
        """Handle a reply that a broker pushes to one of the session's producers."""
        try:
            message = pushed_reply(
                PushReplyMessageToClient.from_command(command),
                broker=self._session.routes.broker_of(address) or "",
                now_ms=self._clock.now_ms(),
            )
        except (ValueError, struct.error, CorruptRecord) as error:
            log.warning("cannot read pushed reply broker=%s reason=%s", address, error)
            return command.reply(ResponseCode.SYSTEM_ERROR, "process reply message fail")
        correlation_id = message.properties.get(PROPERTY_CORRELATION_ID, "")
        waiting = self._session.awaited_replies.get(correlation_id)
        if waiting is None:
            log.info("dropped late reply correlation_id=%s broker=%s", correlation_id, address)
        elif not waiting.done():
            waiting.set_result(message)
        return command.reply()

    def close(self) -> None:
        """Fail all pending requests with ClientClosed."""
        for reply in self._waiting:
            if not reply.done():
                reply.set_exception(ClientClosed("producer"))


async def _reply_or_failure(
    received: asyncio.Future[ReceivedMessage], sent: asyncio.Future[SendReceipt], deadline: float
) -> None:
    """Wait for the reply until the deadline. Raises the error of a failed send."""
    # The send may fail after the reply has arrived: its error is retrieved then.
    sent.add_done_callback(lambda done: done.cancelled() or done.exception())
    both: tuple[asyncio.Future[Any], ...] = (received, sent)
    # The send has the same deadline, so one of the two completes.
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not received.done():
            await sent
            await asyncio.wait([received], timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
    finally:
        sent.cancel()  # no more retries


def pushed_reply(pushed: PushReplyMessageToClient, *, broker: str, now_ms: int) -> ReceivedMessage:
    """Return a pushed reply as a message.

    Raises ValueError for invalid addresses, struct.error or CorruptRecord for values that no record holds.
    """
    properties = decode_properties(pushed.properties.encode(errors="replace"))
    message = PutMessage(
        pushed.topic,
        pushed.queue_id,
        bytes(pushed.body),
        encode_properties({**properties, PROPERTY_ARRIVE_TIME: str(now_ms)}),
        flag=pushed.flag,
        sys_flag=pushed.sys_flag,
        born_timestamp=pushed.born_timestamp,
        born_host=_packed(pushed.born_host),
        reconsume_times=pushed.reconsume_times,
    )
    record = encode(
        message,
        queue_offset=0,
        physical_offset=0,
        store_timestamp=pushed.store_timestamp,
        store_host=_packed(pushed.store_host),
    )
    [reply] = decode_pull(record, MessageQueue(pushed.topic, broker, pushed.queue_id))
    return reply


def _packed(address: str) -> bytes:
    """Pack an address, also in Java's form (`/127.0.0.1:10911`), as in records."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    return pack_host(host.strip("[]"), int(port))
