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
    """One attempt. `messages` are several for a batch; `notes` is the hooks' own, kept from before to after;
    `properties` is what hooks have added.

    After the attempt exactly one of `receipts` (one per message; none of a one-way send) and `error` counts.
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
        """Give all messages of the attempt a property, instead of what they have of that name.

        For `before` alone: later they are sent. Raises ValueError for a name or value that cannot be.
        """
        if name in RESERVED_PROPERTIES:
            raise ValueError(f"property {name} is used by the system")
        if not name.strip() or not value.strip() or UNSAFE_TEXT.search(name + value):
            raise ValueError(f"property {name!r}: name or value is blank, or holds \\x00, \\x01 or \\x02")
        self.properties[name] = value


class SendHook:
    """Override what you need. Called on the client's loop (or the sender's thread): do not block there.

    `check` and `before` see the context variables of who sends, at every attempt; those of messages that
    automatic batching has gathered see none.

    What `check` raises stops the send; what the others raise is logged and does not.
    """

    def check(self, context: SendContext) -> None:
        """Called first: raise to forbid the send."""

    def before(self, context: SendContext) -> None:
        """Called before an attempt."""

    def after(self, context: SendContext) -> None:
        """Called after an attempt, with what came of it."""


class Hooks:
    """The hooks of one producer, in the order in which they were added."""

    def __init__(self) -> None:
        self._hooks: list[SendHook] = []

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def add(self, hook: SendHook) -> None:
        self._hooks.append(hook)

    def before(self, context: SendContext) -> None:
        """Raises what a `check` raises."""
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
