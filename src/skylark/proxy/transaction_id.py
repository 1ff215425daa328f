"""Pure. Transaction ids: they say where the half message is, so that any proxy can end its transaction."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from skylark.proxy.schema import Code
from skylark.proxy.status import CallRefused

VERSION = "v1"


@dataclass(frozen=True, slots=True)
class TransactionId:
    """The place of a half message. Clients do not look into the text."""

    broker: str
    queue_offset: int
    physical_offset: int
    unique_key: str

    def __str__(self) -> str:
        text = f"{VERSION} {self.broker} {self.queue_offset} {self.physical_offset} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def parse(cls, text: str) -> TransactionId:
        """Raises CallRefused."""
        if not text.strip():
            raise CallRefused(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        try:
            fields = base64.b64decode(text.encode(), altchars=b"-_", validate=True).decode().split(" ")
            version, broker, queue_offset, physical_offset, unique_key = fields
            found = cls(broker, int(queue_offset), int(physical_offset), unique_key)
        except (binascii.Error, ValueError):
            version = ""
        if version != VERSION:
            raise CallRefused(
                Code.INVALID_TRANSACTION_ID,
                f"transaction id {text[:100]!r} is not one that this proxy gave out",
            )
        return found
