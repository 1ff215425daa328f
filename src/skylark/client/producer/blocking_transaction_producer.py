"""The blocking face of `TransactionProducer`. Any thread may use it."""

from __future__ import annotations

from typing import Any

from skylark.client.producer import blocking_producer, transaction_producer
from skylark.client.producer.transaction_producer import (
    CheckTransaction,
    LocalTransaction,
    TransactionReceipt,
)
from skylark.model.message import Message
from skylark.settings.client import ClientSettings, ProducerSettings


class TransactionProducer(blocking_producer.Producer):
    """Sends messages that nobody sees until their local transaction is committed; and others, as `Producer`.

    >>> with TransactionProducer("shop", execute=execute, check=check) as producer:
    ...     producer.send_in_transaction(Message("orders", b"hello", keys=["42"]), order)

    `execute(message, argument)` does the work and returns a `TransactionState`; `check(message)` says later
    what became of it, if a broker asks. Both run in threads. What they raise is UNKNOWN: the broker asks any
    producer of the group, also after a restart, so `check` must not rely on memory.
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
        self._execute = execute
        self._check = check
        super().__init__(group, namesrv=namesrv, settings=settings, client=client)

    def _make_inner(
        self, group: str, namesrv: str, settings: ProducerSettings, client: ClientSettings | None
    ) -> transaction_producer.AsyncTransactionProducer:
        self._transactions = transaction_producer.AsyncTransactionProducer(
            group,
            execute=self._execute,
            check=self._check,
            namesrv=namesrv,
            settings=settings,
            client=client,
        )
        return self._transactions

    def send_in_transaction(
        self, message: Message, argument: Any = None, *, timeout_ms: float | None = None
    ) -> TransactionReceipt:
        """Send a half message, run the local transaction, and tell the broker what became of it.

        Raises what `Producer.send` raises: then the local transaction did not run.
        """
        return self._wait(self._transactions.send_in_transaction(message, argument, timeout_ms=timeout_ms))
