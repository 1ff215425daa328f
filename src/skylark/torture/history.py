"""Pure. The history of a run as seen from outside: sends, receipts, final contents of the queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class SendOutcome(Enum):
    """The outcome of a send as its sender knows it."""

    OK = "acknowledged"
    FAILED = "definitely not stored"
    UNKNOWN = "possibly stored"


class BrokerQueue(NamedTuple):
    """A queue of the run's topic."""

    broker: str
    queue_id: int


class QueuePosition(NamedTuple):
    queue: BrokerQueue
    queue_offset: int


@dataclass(slots=True)
class Send:
    """One attempt to store a message. The attempts of a key are sequential."""

    number: int
    key: str
    sequence: int
    outcome: SendOutcome = SendOutcome.UNKNOWN
    place: QueuePosition | None = None
    rolled_back: bool = False
    """A transaction that is rolled back, at once or by a check: it must stay invisible."""
    not_before_ns: int = 0
    """Earliest delivery of a delayed message; 0: no delay."""

    @property
    def must_arrive(self) -> bool:
        return self.outcome is SendOutcome.OK and not self.rolled_back


class Receipt(NamedTuple):
    """A delivery to a consumer. Times are of the monotonic clock."""

    number: int
    place: QueuePosition
    received_ns: int
    member: str


class OffsetSample(NamedTuple):
    """The group's committed offsets at a time after the start of the load."""

    at_ns: int
    offsets: dict[BrokerQueue, int]


@dataclass(slots=True)
class History:
    """The whole history of a run."""

    sends: dict[int, Send] = field(default_factory=dict)
    receipts: list[Receipt] = field(default_factory=list)
    stored: list[tuple[QueuePosition, int]] = field(default_factory=list)
    """Contents of the queues at the end: position and message number."""
    commits: list[OffsetSample] = field(default_factory=list)
    """Samples of the group's offsets."""

    def count(self, outcome: SendOutcome) -> int:
        return sum(send.outcome is outcome for send in self.sends.values())

    def received_numbers(self) -> set[int]:
        return {receipt.number for receipt in self.receipts}

    def missing(self) -> list[Send]:
        """Messages that must arrive and have not."""
        received = self.received_numbers()
        return [send for send in self.sends.values() if send.must_arrive and send.number not in received]

    # --- Journals of the processes ---

    def take_receipts(self, member: str, lines: Iterable[bytes]) -> None:
        """Add the journal of a consumer; ignores a line that a kill cut off."""
        for line in lines:
            words = line.split(b" ")
            if len(words) != 6 or words[-1] != LINE_END:
                continue
            number, queue_id, queue_offset, received_ns = map(int, (words[0], *words[2:5]))
            place = QueuePosition(BrokerQueue(words[1].decode(), queue_id), queue_offset)
            self.receipts.append(Receipt(number, place, received_ns, member))

    def take_sends(self, lines: Iterable[bytes]) -> list[Send]:
        """Add the journal of a sender and return the new sends; ignores a line that a kill cut off."""
        new = []
        for line in lines:
            kind, *words = line.decode().split(" ")
            if not words or words[-1] != LINE_END.decode():
                continue
            number = int(words[0])
            if kind == ATTEMPT:
                send = Send(number, words[1], int(words[2]), not_before_ns=int(words[3]))
                self.sends[number] = send
                new.append(send)
            elif kind == FAILED:
                self.sends[number].outcome = SendOutcome.FAILED
            elif kind == OK:
                self.sends[number].outcome = SendOutcome.OK
                if len(words) > 2:
                    self.sends[number].place = QueuePosition(
                        BrokerQueue(words[1], int(words[2])), int(words[3])
                    )
        return new


ATTEMPT, OK, FAILED, QUIET = "attempt", "ok", "failed", "quiet"
LINE_END = b"."
"""Last word of every complete line."""


def receipt_line(receipt: Receipt) -> bytes:
    (broker, queue_id), queue_offset = receipt.place
    return f"{receipt.number} {broker} {queue_id} {queue_offset} {receipt.received_ns} .\n".encode()


def attempt_line(send: Send) -> bytes:
    """Written before a send."""
    return f"{ATTEMPT} {send.number} {send.key} {send.sequence} {send.not_before_ns} .\n".encode()


def outcome_line(send: Send) -> bytes:
    """Written after a send; empty while the outcome is unknown."""
    if send.outcome is SendOutcome.UNKNOWN:
        return b""
    if send.outcome is SendOutcome.FAILED:
        return f"{FAILED} {send.number} .\n".encode()
    if send.place is None:
        return f"{OK} {send.number} .\n".encode()
    (broker, queue_id), queue_offset = send.place
    return f"{OK} {send.number} {broker} {queue_id} {queue_offset} .\n".encode()


QUIET_LINE = f"{QUIET} 0 .\n".encode()
"""Written when the sender has stopped and no send is in flight."""


def commits_line(commits: OffsetSample) -> bytes:
    """For a reader who looks for the time of a regression."""
    offsets = (f"{queue.broker}/{queue.queue_id}={at}" for queue, at in sorted(commits.offsets.items()))
    return f"{commits.at_ns / 1e9:.1f} s {' '.join(offsets)}\n".encode()


def body_of(run: str, send: Send) -> bytes:
    """The body of a message, which identifies it."""
    return f"{run} {send.number} {send.key} {send.sequence}".encode()


def number_in(run: str, body: bytes) -> int | None:
    """The number of a message of this run, or None."""
    words = body.split(b" ")
    return int(words[1]) if len(words) == 4 and words[0] == run.encode() and words[1].isdigit() else None
