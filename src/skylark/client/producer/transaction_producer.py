"""TransactionProducer: messages that are delivered only if something else succeeds, for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from typing import Any

import msgspec

from skylark.client.namespace import without_namespace
from skylark.client.producer.producer import AsyncProducer
from skylark.client.producer.send_receipt import SendReceipt
from skylark.client.received_message import ReceivedMessage, decode_pull
from skylark.client.session.session import BrokerHandler
from skylark.errors import RocketMQError, SettingsError
from skylark.model.message import Message
from skylark.model.record import parse_offset_message_id
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.transaction import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    CheckTransactionState,
    EndTransaction,
)
from skylark.settings.client import ClientSettings, ProducerSettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

QUESTIONS_MAX = 2000
"""Of brokers, at once; they ask again about what is beyond."""


class TransactionState(IntEnum):
    """What became of a local transaction."""

    COMMIT = COMMIT
    ROLLBACK = ROLLBACK
    UNKNOWN = UNKNOWN
    """Not known yet: the broker will ask."""


class TransactionReceipt(msgspec.Struct, frozen=True):
    """Where a half message was stored, and what became of its local transaction."""

    receipt: SendReceipt
    state: TransactionState
    error: Exception | None = None
    """What the local transaction raised: nobody knows then what became of it."""


LocalTransaction = Callable[[Message, Any], TransactionState | Awaitable[TransactionState]]
"""Does the work that a message belongs to. Takes the message and the argument of the send."""
CheckTransaction = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]
"""Says what became of the work for a message that a broker asks about."""


class AsyncTransactionProducer(AsyncProducer):
    """Sends messages that nobody sees until their local transaction is committed.

    >>> async def execute(message: Message, order: Order) -> TransactionState:
    ...     await database.store(order)
    ...     return TransactionState.COMMIT
    >>> async def check(message: ReceivedMessage) -> TransactionState:
    ...     stored = await database.has(message.keys[0])
    ...     return TransactionState.COMMIT if stored else TransactionState.ROLLBACK
    >>> async with TransactionProducer("shop", execute=execute, check=check) as producer:
    ...     await producer.send_in_transaction(Message("orders", b"hello", keys=["42"]), order)

    Both functions may be plain ones, which then run in threads. What they raise is UNKNOWN: the broker asks
    `check` later, of any producer of the group, also after a restart, so it must not rely on memory.
    """

    def __init__(
        self,
        group: str,
        *,
        execute: LocalTransaction,
        check: CheckTransaction,
        namesrv: str = "",
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
    ) -> None:
        """As `Producer`. Raises BadName, SettingsError."""
        super().__init__(group, namesrv=namesrv, settings=settings, client=client)
        for name, function in (("execute", execute), ("check", check)):
            if not callable(function):
                raise SettingsError(name, f"{function!r} is no function")
        self._execute = execute
        self._check = check
        self._answering = Tasks()
        self._questions = 0

    async def stop(self) -> None:
        """Take no more messages and answer no more questions; others of the group will be asked."""
        await self._answering.close()
        await super().stop()

    async def send_in_transaction(
        self, message: Message, argument: Any = None, *, timeout_ms: float | None = None
    ) -> TransactionReceipt:
        """Send a half message, run the local transaction, and tell the broker what became of it.

        Raises what `send` raises: then the local transaction did not run. A half message that is stored less
        safely than was asked for is rolled back, without a local transaction. If the broker cannot be told,
        it asks.
        """
        sender = self.sender
        prepared = sender.preparation.prepare(message, is_half=True)
        queue, selector, key = self.target(message, None, None, None)
        sending = sender.send(prepared, queue=queue, selector=selector, argument=key, timeout_ms=timeout_ms)
        receipt: SendReceipt = await (await sending)
        if not receipt.is_ok:
            state, error = TransactionState.ROLLBACK, None
        else:
            state, error = await _outcome(self._execute, message, argument)
        await self._end(receipt, state, prepared.topic)
        return TransactionReceipt(receipt, state, error)

    async def _end(self, receipt: SendReceipt, state: TransactionState, topic: str) -> None:
        request = EndTransaction(
            producer_group=self.group,
            queue_offset=receipt.queue_offset,
            physical_offset=parse_offset_message_id(receipt.offset_message_id)[1],
            commit_or_rollback=state,
            msg_id=receipt.message_id,
            transaction_id=receipt.transaction_id,
            topic=topic,
        )
        try:
            address = self.session.routes.master(receipt.queue.broker_name)
            await self.session.notify(address, request)
        except RocketMQError as error:
            log.warning("end not told, the broker will ask transaction=%s reason=%s", request.msg_id, error)

    # --- Questions of brokers ---

    def handlers(self) -> Mapping[int, BrokerHandler]:
        return {**super().handlers(), RequestCode.CHECK_TRANSACTION_STATE: self._asked}

    def _asked(self, command: RemotingCommand, address: str) -> None:
        """Answer later: what became of a transaction may take a while to find out."""
        if self._questions >= QUESTIONS_MAX:
            log.warning("question about a transaction dropped, the broker will ask again broker=%s", address)
            return
        self._questions += 1
        self._answering.spawn(self._answer(command, address), "check transaction")

    async def _answer(self, command: RemotingCommand, address: str) -> None:
        try:
            question = CheckTransactionState.from_command(command)
            message = self._half_message(question)
            key = message.unique_key or ""
            state, _ = await _outcome(self._check, message)
            await self.session.notify(
                address,
                EndTransaction(
                    producer_group=self.group,
                    queue_offset=question.queue_offset,
                    physical_offset=question.physical_offset,
                    commit_or_rollback=state,
                    msg_id=key,
                    from_transaction_check=True,
                    transaction_id=question.transaction_id,
                    topic=question.topic,
                ),
            )
        except RocketMQError as error:
            log.warning("question about a transaction not answered broker=%s reason=%s", address, error)
        finally:
            self._questions -= 1

    def _half_message(self, question: CheckTransactionState) -> ReceivedMessage:
        """The message that a broker asks about, under its own topic."""
        queue = MessageQueue("", question.broker_name or "", 0)
        [message] = decode_pull(question.body, queue)
        message.topic = without_namespace(self._client.namespace, message.topic)
        return message


async def _outcome(
    work: Callable[..., TransactionState | Awaitable[TransactionState]],
    message: Message | ReceivedMessage,
    *rest: Any,
) -> tuple[TransactionState, Exception | None]:
    """Run a local transaction or a check; what it raises, and what is no state, is UNKNOWN."""
    try:
        if inspect.iscoroutinefunction(work):
            state = await work(message, *rest)
        else:
            state = await asyncio.to_thread(work, message, *rest)
            if inspect.isawaitable(state):
                state = await state
        return TransactionState(state), None
    except Exception as error:
        log.exception("a local transaction is of unknown outcome topic=%s", message.topic)
        return TransactionState.UNKNOWN, error
