"""Pure. What happened in a run, as seen from outside: sends, receipts, what the queues hold at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Outcome(Enum):
    """What the sender knows of its message."""

    OK = "acknowledged"
    FAILED = "surely not stored"
    UNKNOWN = "stored or not"


class Queue(NamedTuple):
    """A queue of the one topic that a run uses."""

    broker: str
    queue_id: int


class Place(NamedTuple):
    queue: Queue
    queue_offset: int


@dataclass(slots=True)
class Send:
    """One attempt to store a message. Attempts of one key follow one another."""

    number: int
    key: str
    sequence: int
    outcome: Outcome = Outcome.UNKNOWN
    place: Place | None = None
    rolled_back: bool = False
    """A transaction that the sender ended so: nobody may see it."""
    not_before_ns: int = 0
    """A delayed message must not arrive before; 0: at once."""


class Receipt(NamedTuple):
    """A message that a consumer was given. Times are of the machine's monotonic clock."""

    number: int
    place: Place
    received_ns: int
    member: str


@dataclass(slots=True)
class History:
    """All of a run."""

    sends: dict[int, Send] = field(default_factory=dict)
    receipts: list[Receipt] = field(default_factory=list)
    stored: dict[Place, int] = field(default_factory=dict)
    """The queues read back at the end: place to number."""
    commits: list[dict[Queue, int]] = field(default_factory=list)
    """The group's offsets, looked at now and then."""

    def attempt(self, key: str, sequence: int) -> Send:
        """Note that a message is about to be sent."""
        send = Send(len(self.sends), key, sequence)
        self.sends[send.number] = send
        return send

    def count(self, outcome: Outcome) -> int:
        return sum(send.outcome is outcome for send in self.sends.values())

    def received_numbers(self) -> set[int]:
        return {receipt.number for receipt in self.receipts}


def body_of(run: str, send: Send) -> bytes:
    """What a message carries, so that whoever receives it knows which one it is."""
    return f"{run} {send.number} {send.key} {send.sequence}".encode()


def number_in(run: str, body: bytes) -> int | None:
    """The number of a message of this run; None for others."""
    words = body.split(b" ")
    return int(words[1]) if len(words) == 4 and words[0] == run.encode() and words[1].isdigit() else None


def receipt_line(receipt: Receipt) -> bytes:
    """A receipt as a line of a member's file: one write, so that a kill loses none that was acted on."""
    (broker, queue_id), queue_offset = receipt.place
    return f"{receipt.number} {broker} {queue_id} {queue_offset} {receipt.received_ns}\n".encode()


def read_receipts(member: str, lines: Iterable[bytes]) -> list[Receipt]:
    """Read a member's file; the last line may be cut off by a kill."""
    receipts = []
    for line in lines:
        if not line.endswith(b"\n"):
            break
        number, broker, queue_id, queue_offset, received_ns = line.split()
        place = Place(Queue(broker.decode(), int(queue_id)), int(queue_offset))
        receipts.append(Receipt(int(number), place, int(received_ns), member))
    return receipts
