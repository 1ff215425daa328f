"""Pure. The checker: which promises a history breaks, in the manner of a total queue.

Lost, unexpected, reused and missing offsets, and rolled-back messages that were seen are always faults; early
delivery is one where messages wait; the order of keys counts only where it was promised. Duplicates are
allowed (at least once), and counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from skylark.torture.history import History, Outcome, Place, Queue

EXAMPLES_MAX = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken promise: how often, and the first few cases as sentences."""

    count: int
    examples: tuple[str, ...]

    @staticmethod
    def of(cases: Iterator[str]) -> Finding:
        found = list(cases)
        return Finding(len(found), tuple(found[:EXAMPLES_MAX]))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker found. `faults` maps the name of a promise to its breaches."""

    attempted: int
    acknowledged: int
    failed: int
    unknown: int
    received: int
    duplicated: int
    """Messages that were received more than once."""
    recovered: int
    """Messages of unknown outcome that were received after all."""
    commit_regressions: int
    """How often a committed offset went back: allowed after a crash, since offsets are saved now and then."""
    faults: dict[str, Finding] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not any(finding.count for finding in self.faults.values())


def check(history: History, *, ordered: bool = False) -> Verdict:
    """Judge a run that is healed and drained. With `ordered`, first deliveries must keep each key's order."""
    faults = {
        "lost": Finding.of(_lost(history)),
        "unexpected": Finding.of(_unexpected(history)),
        "rolled back but seen": Finding.of(_rolled_back(history)),
        "offset reused": Finding.of(_reused(history)),
        "gap": Finding.of(_gaps(history)),
        "early": Finding.of(_early(history)),
    }
    if ordered:
        faults["reordered"] = Finding.of(_reordered(history))
    times = Counter(receipt.number for receipt in history.receipts)
    return Verdict(
        attempted=len(history.sends),
        acknowledged=history.count(Outcome.OK),
        failed=history.count(Outcome.FAILED),
        unknown=history.count(Outcome.UNKNOWN),
        received=len(times),
        duplicated=sum(count > 1 for count in times.values()),
        recovered=sum(
            send.outcome is Outcome.UNKNOWN and number in times for number, send in history.sends.items()
        ),
        commit_regressions=sum(1 for _ in _regressions(history)),
        faults=faults,
    )


def _lost(history: History) -> Iterator[str]:
    received = history.received_numbers()
    for number, send in history.sends.items():
        if send.outcome is Outcome.OK and not send.rolled_back and number not in received:
            yield f"message {number}, acknowledged at {_place(send.place)}"


def _unexpected(history: History) -> Iterator[str]:
    for receipt in history.receipts:
        send = history.sends.get(receipt.number)
        if send is None:
            yield f"message {receipt.number} at {_place(receipt.place)} was never sent"
        elif send.outcome is Outcome.FAILED:
            yield f"message {receipt.number} at {_place(receipt.place)} had failed for sure"


def _rolled_back(history: History) -> Iterator[str]:
    for receipt in history.receipts:
        send = history.sends.get(receipt.number)
        if send is not None and send.rolled_back:
            yield f"message {receipt.number} at {_place(receipt.place)}"


def _reused(history: History) -> Iterator[str]:
    """A place in a queue has one message, for ever: what was said of it at any time must agree."""
    numbers: dict[Place, set[int]] = defaultdict(set)
    for place, number in history.stored.items():
        numbers[place].add(number)
    for receipt in history.receipts:
        numbers[receipt.place].add(receipt.number)
    for send in history.sends.values():
        if send.place is not None:
            numbers[send.place].add(send.number)
    for place, found in numbers.items():
        if len(found) > 1:
            yield f"{_place(place)} was of messages {', '.join(map(str, sorted(found)))}"


def _gaps(history: History) -> Iterator[str]:
    offsets: dict[Queue, set[int]] = defaultdict(set)
    for queue, queue_offset in history.stored:
        offsets[queue].add(queue_offset)
    for queue, found in offsets.items():
        for queue_offset in range(max(found)):
            if queue_offset not in found:
                yield _place(Place(queue, queue_offset))


def _early(history: History) -> Iterator[str]:
    for receipt in history.receipts:
        send = history.sends.get(receipt.number)
        if send is not None and receipt.received_ns < send.not_before_ns:
            early_ms = (send.not_before_ns - receipt.received_ns) / 1e6
            yield f"message {receipt.number} came {early_ms:.0f} ms too early"


def _reordered(history: History) -> Iterator[str]:
    """First deliveries of acknowledged messages; one of unknown outcome may have been stored at any time."""
    newest: dict[str, int] = {}
    seen: set[int] = set()
    for receipt in sorted(history.receipts, key=lambda each: each.received_ns):
        send = history.sends.get(receipt.number)
        if send is None or send.outcome is not Outcome.OK or receipt.number in seen:
            continue
        seen.add(receipt.number)
        if send.sequence < newest.get(send.key, -1):
            yield f"key {send.key}: {send.sequence} came after {newest[send.key]}"
        newest[send.key] = max(send.sequence, newest.get(send.key, -1))


def _regressions(history: History) -> Iterator[Queue]:
    newest: dict[Queue, int] = {}
    for commits in history.commits:
        for queue, queue_offset in commits.items():
            if queue_offset < newest.get(queue, 0):
                yield queue
            newest[queue] = queue_offset


def _place(place: Place | None) -> str:
    if place is None:
        return "an unknown place"
    return f"{place.queue.broker}/{place.queue.queue_id} offset {place.queue_offset}"
