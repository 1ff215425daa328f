"""Request-reply: messages whose sender waits for a reply."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

from skylark.client.producer.async_sender import AsyncSender
from skylark.client.producer.queue_selectors import Selector
from skylark.client.producer.send_receipt import SendReceipt
from skylark.client.received_message import COMPRESSED, ReceivedMessage, inflate
from skylark.client.session.session import Session
from skylark.clock import Clock, SystemClock
from skylark.errors import BadMessage, ClientClosed, NoReply, SendFailed
from skylark.model.message import (
    PROPERTY_ARRIVE_TIME,
    PROPERTY_CORRELATION_ID,
    PROPERTY_REPLY_TO,
    PROPERTY_TTL,
    Message,
    decode_properties,
    encode_properties,
    pack_host,
)
from skylark.model.record import crc32
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.send import PushReplyMessageToClient

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS = 3000
"""How long a reply is waited for, from the request on, unless the caller says otherwise."""


class PendingRequests:
    """The requests of one producer. Loop thread only.

    Those that wait are in the session's table, as a broker gives a reply to a client id, not to a producer.
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
        *,
        queue: MessageQueue | None,
        selector: Selector | None,
        argument: Any,
        timeout_ms: float,
    ) -> ReceivedMessage:
        """Send a request and return its reply. Raises NoReply, ClientClosed, and what a send raises."""
        if timeout_ms <= 0:
            raise BadMessage(message.topic, f"timeout_ms {timeout_ms} is not positive: no reply can come")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        correlation_id = str(uuid.uuid4())
        prepared = self._sender.preparation.prepare(
            message,
            system=(
                (PROPERTY_CORRELATION_ID, correlation_id),
                (PROPERTY_REPLY_TO, self._session.client_id),
                (PROPERTY_TTL, str(round(timeout_ms))),
            ),
        )
        await self._introduce(prepared.topic, deadline)
        reply: asyncio.Future[ReceivedMessage] = loop.create_future()
        self._session.awaited_replies[correlation_id] = reply
        self._waiting.add(reply)
        try:
            sent = await self._sender.send(
                prepared,
                queue=queue,
                selector=selector,
                argument=argument,
                timeout_ms=max(0.0, deadline - loop.time()) * 1000,
            )
            await _either(reply, sent, deadline)
            if not reply.done():
                raise NoReply(message.topic, round(timeout_ms), prepared.unique_key, correlation_id)
            return reply.result()
        finally:
            del self._session.awaited_replies[correlation_id]
            self._waiting.discard(reply)

    async def _introduce(self, topic: str, deadline: float) -> None:
        """Let the topic's brokers hear of us before the first request, else they cannot push the reply."""
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
        """Tell brokers of us; one that hangs must not take all the time of a request to another one."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._session.heartbeat()
        except TimeoutError:
            log.info("not all brokers were told of us before a request")

    def on_push(self, command: RemotingCommand, address: str) -> RemotingCommand:
        """Take a reply that a broker has for one of the session's producers."""
        try:
            message = pushed_reply(
                PushReplyMessageToClient.from_command(command),
                broker=self._session.routes.broker_of(address) or "",
                now_ms=self._clock.now_ms(),
            )
        except ValueError as error:
            log.warning("reply cannot be read broker=%s reason=%s", address, error)
            return command.reply(ResponseCode.SYSTEM_ERROR, "process reply message fail")
        correlation_id = message.properties.get(PROPERTY_CORRELATION_ID, "")
        waiting = self._session.awaited_replies.get(correlation_id)
        if waiting is None:
            log.info("reply that nobody waits for correlation_id=%s broker=%s", correlation_id, address)
        elif not waiting.done():
            waiting.set_result(message)
        return command.reply()

    def close(self) -> None:
        """Wait no more: who waits gets ClientClosed."""
        for reply in self._waiting:
            if not reply.done():
                reply.set_exception(ClientClosed("producer"))


async def _either(
    reply: asyncio.Future[ReceivedMessage], sent: asyncio.Future[SendReceipt], deadline: float
) -> None:
    """Wait for the reply, or until the time is over, or until the send has failed: then raises its error."""
    sent.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may fail after the reply
    both: tuple[asyncio.Future[Any], ...] = (reply, sent)
    # The send has the same deadline, so one of both ends.
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            await sent
            await asyncio.wait([reply], timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
    finally:
        sent.cancel()  # so that it is not tried again when nobody waits for it any more


def pushed_reply(pushed: PushReplyMessageToClient, *, broker: str, now_ms: int) -> ReceivedMessage:
    """Return the message that a broker has pushed. Raises ValueError for addresses that are none."""
    properties = decode_properties(pushed.properties.encode(errors="replace"))
    body = bytes(pushed.body)
    message = ReceivedMessage(
        topic=pushed.topic,
        queue=MessageQueue(pushed.topic, broker, pushed.queue_id),
        queue_offset=0,
        physical_offset=0,
        stored_bytes=0,
        flag=pushed.flag,
        sys_flag=pushed.sys_flag,
        born_timestamp=pushed.born_timestamp,
        store_timestamp=pushed.store_timestamp,
        reconsume_times=pushed.reconsume_times,
        prepared_transaction_offset=0,
        queue_min_offset=0,
        queue_max_offset=0,
        body_crc=crc32(body),
        properties_text=encode_properties({**properties, PROPERTY_ARRIVE_TIME: str(now_ms)}),
        packed_born_host=_packed(pushed.born_host),
        packed_store_host=_packed(pushed.store_host),
        plain_body=body,
    )
    if pushed.sys_flag & COMPRESSED:
        inflate(message)
    return message


def _packed(address: str) -> bytes:
    """An address as text, of Java's kind too (`/127.0.0.1:10911`), as records hold it."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    return pack_host(host.strip("[]"), int(port))
