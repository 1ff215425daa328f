"""Hooks around every send attempt, for tracing, metrics and refusing messages."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from skylark.client.producer.message_encoder import RESERVED_PROPERTIES, UNSAFE_TEXT
from skylark.client.producer.send_receipt import SendReceipt
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SendContext:
    """One send attempt. A batch has several `messages`; `notes` carries data of hooks from `before` to
    `after`; `properties` holds what hooks have added.

    After the attempt either `receipts` (one per message, none for a one-way send) or `error` is set.
    """

    group: str
    client_id: str
    messages: list[Message]
    unique_keys: list[str]
    queue: MessageQueue
    broker_address: str
    attempt: int
    is_oneway: bool = False
    receipts: list[SendReceipt] = field(default_factory=list)
    error: BaseException | None = None
    elapsed_ms: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)

    def add_property(self, name: str, value: str) -> None:
        """Set a property of all messages of the attempt. Call it in `before`: later they are sent already.

        Raises ValueError for an invalid or reserved name, or an invalid value.
        """
        if name in RESERVED_PROPERTIES:
            raise ValueError(f"property {name} is reserved by the system")
        if not name.strip() or not value.strip() or UNSAFE_TEXT.search(name + value):
            raise ValueError(f"property {name!r}: name or value is blank or contains \\x00, \\x01 or \\x02")
        self.properties[name] = value


class SendHook:
    """Override what you need. Called on the client's loop or in the sending thread: do not block.

    `check` and `before` see the caller's context variables at every attempt, except for messages in automatic
    batches. An error of `check` stops the send; errors of the other methods are logged.
    """

    def check(self, context: SendContext) -> None:
        """Called first; raise an error to refuse the send."""

    def before(self, context: SendContext) -> None:
        """Called before an attempt."""

    def after(self, context: SendContext) -> None:
        """Called after an attempt, with its outcome."""


class Hooks:
    """The hooks of one producer, called in the order in which they were added."""

    def __init__(self) -> None:
        self._hooks: list[SendHook] = []

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def add(self, hook: SendHook) -> None:
        self._hooks.append(hook)

    def before(self, context: SendContext) -> None:
        """Raises the error of a `check`."""
        for hook in self._hooks:
            hook.check(context)
        for hook in self._hooks:
            try:
                hook.before(context)
            except Exception:
                log.exception("hook failed before a send hook=%r", hook)

    def after(self, context: SendContext) -> None:
        for hook in self._hooks:
            try:
                hook.after(context)
            except Exception:
                log.exception("hook failed after a send hook=%r", hook)
