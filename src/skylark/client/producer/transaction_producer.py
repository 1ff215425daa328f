"""Transaction producers: messages that are delivered only if a local transaction commits."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from typing import Any

import msgspec

from skylark.client.callback import check_callback
from skylark.client.namespace import without_namespace
from skylark.client.producer.producer import AsyncProducer, Producer
from skylark.client.producer.send_receipt import SendReceipt
from skylark.client.received_message import ReceivedMessage, decode_pull
from skylark.client.session.session import BrokerHandler
from skylark.errors import RocketMQError
from skylark.model.message import Message
from skylark.model.message_id import parse_offset_message_id
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

CHECKS_MAX = 2000
"""Concurrent state checks of brokers. Checks beyond it are dropped; the broker repeats them."""


class TransactionState(IntEnum):
    """The state of a local transaction."""

    COMMIT = COMMIT
    ROLLBACK = ROLLBACK
    UNKNOWN = UNKNOWN
    """Not known yet: the broker will check later."""


class TransactionReceipt(msgspec.Struct, frozen=True):
    """Where a half message was stored, and the state of its local transaction."""

    receipt: SendReceipt
    state: TransactionState
    error: Exception | None = None
    """The error of the local transaction; its state is then UNKNOWN."""


LocalTransaction = Callable[[Message, Any], TransactionState | Awaitable[TransactionState]]
"""Runs the local transaction. Takes the message and the argument of the send."""
CheckTransaction = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]
"""Returns the state of the local transaction of a message, when a broker checks."""


class AsyncTransactionProducer(AsyncProducer):
    """`skylark.aio.TransactionProducer`: sends messages that are delivered once their transaction commits.

    >>> async def execute(message: Message, order: Order) -> TransactionState:
    ...     await database.store(order)
    ...     return TransactionState.COMMIT
    >>> async def check(message: ReceivedMessage) -> TransactionState:
    ...     stored = await database.has(message.keys[0])
    ...     return TransactionState.COMMIT if stored else TransactionState.ROLLBACK
    >>> async with TransactionProducer("shop", execute=execute, check=check) as producer:
    ...     await producer.send_in_transaction(Message("orders", b"hello", keys=["42"]), order)

    Both functions may also be plain functions, which run in threads. An error means UNKNOWN: the broker calls
    `check` later, on any producer of the group, also after a restart, so it must not rely on memory.
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
        check_callback("execute", execute, "message", "argument")
        check_callback("check", check, "message")
        self._execute = execute
        self._check = check
        self._answering = Tasks()
        self._checks = 0

    async def stop(self) -> None:
        """Refuse new messages and checks; brokers check other producers of the group instead."""
        await self._answering.close()
        await super().stop()

    async def send_in_transaction(
        self, message: Message, argument: Any = None, *, timeout_ms: float | None = None
    ) -> TransactionReceipt:
        """Send a half message, run the local transaction, and report its state to the broker.

        Raises as `send`; the local transaction has not run then. A half message that is stored less safely
        than requested is rolled back without running it. If the report fails, the broker checks later.
        """
        sender = self.sender
        target = self.target(message)
        encoded = sender.encoder.encode(message, is_half=True)
        future = await sender.send(encoded, target, timeout_ms)
        receipt: SendReceipt = await future
        if not receipt.is_ok:
            state, error = TransactionState.ROLLBACK, None
        else:
            state, error = await _outcome(self._execute, message, argument)
        await self._end(receipt, state, encoded.topic)
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
            log.warning(
                "end of transaction not sent, broker will check transaction=%s reason=%s",
                request.msg_id,
                error,
            )

    # --- Checks by brokers ---

    def handlers(self) -> Mapping[int, BrokerHandler]:
        return {**super().handlers(), RequestCode.CHECK_TRANSACTION_STATE: self._on_check}

    def _on_check(self, command: RemotingCommand, address: str) -> None:
        """Start a task that answers: a check may take a while."""
        if self._checks >= CHECKS_MAX:
            log.warning("transaction check dropped, broker will repeat it broker=%s", address)
            return
        self._checks += 1
        self._answering.spawn(self._answer(command, address), "check transaction")

    async def _answer(self, command: RemotingCommand, address: str) -> None:
        try:
            check = CheckTransactionState.from_command(command)
            message = self._half_message(check)
            key = message.unique_key or ""
            state, _ = await _outcome(self._check, message)
            await self.session.notify(
                address,
                EndTransaction(
                    producer_group=self.group,
                    queue_offset=check.queue_offset,
                    physical_offset=check.physical_offset,
                    commit_or_rollback=state,
                    msg_id=key,
                    from_transaction_check=True,
                    transaction_id=check.transaction_id,
                    topic=check.topic,
                ),
            )
        except RocketMQError as error:
            log.warning("transaction check not answered broker=%s reason=%s", address, error)
        finally:
            self._checks -= 1

    def _half_message(self, check: CheckTransactionState) -> ReceivedMessage:
        """Return the message that a broker checks, with its original topic."""
        queue = MessageQueue("", check.broker_name or "", 0)
        [message] = decode_pull(check.body, queue)
        message.topic = without_namespace(self._client.namespace, message.topic)
        return message


async def _outcome(
    work: Callable[..., TransactionState | Awaitable[TransactionState]],
    message: Message | ReceivedMessage,
    *rest: Any,
) -> tuple[TransactionState, Exception | None]:
    """Run a local transaction or a check; errors and invalid states become UNKNOWN."""
    try:
        if inspect.iscoroutinefunction(work):
            state = await work(message, *rest)
        else:
            state = await asyncio.to_thread(work, message, *rest)
            if inspect.isawaitable(state):
                state = await state
        return TransactionState(state), None
    except Exception as error:
        log.exception("local transaction failed, state unknown topic=%s", message.topic)
        return TransactionState.UNKNOWN, error


class TransactionProducer(Producer):
    """`skylark.TransactionProducer`: sends messages that are delivered once their local transaction commits.

    >>> with TransactionProducer("shop", execute=execute, check=check) as producer:
    ...     producer.send_in_transaction(Message("orders", b"hello", keys=["42"]), order)

    `execute(message, argument)` runs the transaction and returns a `TransactionState`; `check(message)`
    returns the state later, if a broker checks. Both run in threads. An error means UNKNOWN: the broker
    checks on any producer of the group, also after a restart, so `check` must not rely on memory.
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
        self._transactions = AsyncTransactionProducer(
            group, execute=execute, check=check, namesrv=namesrv, settings=settings, client=client
        )
        self._set_up(self._transactions, settings)

    def send_in_transaction(
        self, message: Message, argument: Any = None, *, timeout_ms: float | None = None
    ) -> TransactionReceipt:
        """Send a half message, run the local transaction, and report its state to the broker.

        Raises as `Producer.send`; the local transaction has not run then.
        """
        return self._wait(self._transactions.send_in_transaction(message, argument, timeout_ms=timeout_ms))
