"""Pure. The checker: which guarantees a history breaks, in the manner of a total queue.

Always faults: lost, unexpected, reused and missing offsets, visible rolled-back messages, group offsets that
go far back. Early delivery is a fault for delayed messages; key order and single storage count where they are
guaranteed. Repeated deliveries are allowed (at least once) and counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from skylark.torture.history import BrokerQueue, History, QueuePosition, SendOutcome

EXAMPLES_MAX = 10
REGRESS_ALLOWED_NS = 30 * 10**9
"""A crash, or a slave or member frozen for some seconds, may set the group's offsets back by this much."""
UNSEEN_COUNTED_NS = 2 * 10**9
"""Maximum time counted between two samples of the offsets: without samples the servers were down or the
machine stood still, and a commit just before a crash may be lost however long recovery takes."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A broken guarantee: the number of cases, and the first few as sentences."""

    count: int
    examples: tuple[str, ...]

    @staticmethod
    def of(cases: Iterator[str]) -> Breach:
        found = list(cases)
        return Breach(len(found), tuple(found[:EXAMPLES_MAX]))


@dataclass(frozen=True, slots=True)
class TortureVerdict:
    """The result of a check. `faults` maps the name of a guarantee to its breaches."""

    attempted: int
    acknowledged: int
    failed: int
    unknown: int
    rolled_back: int
    """Transactions that must stay invisible."""
    received: int
    deliveries: int
    duplicated: int
    """Messages received more than once."""
    recovered: int
    """Messages of unknown outcome that were received."""
    commit_regressions: int
    """How often an offset of the group went back at all."""
    faults: dict[str, Breach] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not any(finding.count for finding in self.faults.values())


def check(
    history: History,
    *,
    ordered: bool = False,
    stored_once: bool = True,
    regress_allowed_ns: int = REGRESS_ALLOWED_NS,
) -> TortureVerdict:
    """Check a run whose faults are repaired, whose messages are drained and whose queues are read back.

    With `ordered`, first deliveries must keep each key's order. With `stored_once`, a message that was sent
    once must lie in one place.
    """
    faults = {
        "lost": Breach.of(_lost(history)),
        "unexpected": Breach.of(_unexpected(history)),
        "rolled back but seen": Breach.of(_rolled_back(history)),
        "offset reused": Breach.of(_reused(history)),
        "gap": Breach.of(_gaps(history)),
        "early": Breach.of(_early(history)),
        "commit regress": Breach.of(_regressions(history, regress_allowed_ns)),
    }
    if ordered:
        faults["reordered"] = Breach.of(_reordered(history))
    if stored_once:
        faults["stored twice"] = Breach.of(_stored_twice(history))
    times = Counter(receipt.number for receipt in history.receipts)
    return TortureVerdict(
        attempted=len(history.sends),
        acknowledged=history.count(SendOutcome.OK),
        failed=history.count(SendOutcome.FAILED),
        unknown=history.count(SendOutcome.UNKNOWN),
        rolled_back=sum(send.rolled_back for send in history.sends.values()),
        received=len(times),
        deliveries=len(history.receipts),
        duplicated=sum(count > 1 for count in times.values()),
        recovered=sum(
            send.outcome is SendOutcome.UNKNOWN and number in times for number, send in history.sends.items()
        ),
        commit_regressions=sum(1 for _ in _regressions(history, 0)),
        faults=faults,
    )


def _lost(history: History) -> Iterator[str]:
    stored = {number: place for place, number in history.stored}
    for send in history.missing():
        place = stored.get(send.number)
        fate = "" if place is None else f", stored at {_place(place)} but never delivered"
        yield f"message {send.number}, acknowledged at {_place(send.place)}{fate}"


def _sightings(history: History) -> Iterator[tuple[QueuePosition, int]]:
    """Every message delivered to a consumer or stored at the end."""
    seen = {(receipt.place, receipt.number) for receipt in history.receipts}
    yield from sorted(seen.union(history.stored))


def _unexpected(history: History) -> Iterator[str]:
    for place, number in _sightings(history):
        send = history.sends.get(number)
        if send is None:
            yield f"message {number} at {_place(place)} was never sent"
        elif send.outcome is SendOutcome.FAILED:
            yield f"message {number} at {_place(place)} had definitely failed"


def _rolled_back(history: History) -> Iterator[str]:
    for place, number in _sightings(history):
        send = history.sends.get(number)
        if send is not None and send.rolled_back:
            yield f"message {number} at {_place(place)}"


def _reused(history: History) -> Iterator[str]:
    """A queue offset holds one message for ever: all observations of it must agree."""
    numbers: dict[QueuePosition, set[int]] = defaultdict(set)
    for place, number in _sightings(history):
        numbers[place].add(number)
    for send in history.sends.values():
        if send.place is not None:
            numbers[send.place].add(send.number)
    for place, found in numbers.items():
        if len(found) > 1:
            yield f"{_place(place)} held messages {', '.join(map(str, sorted(found)))}"


def _gaps(history: History) -> Iterator[str]:
    """Queues have no gap up to the last message stored or acknowledged."""
    present: dict[BrokerQueue, set[int]] = defaultdict(set)
    ends: dict[BrokerQueue, int] = defaultdict(int)
    for place, _ in history.stored:
        present[place.queue].add(place.queue_offset)
    promised = [send.place for send in history.sends.values() if send.place is not None]
    for place in (*(place for place, _ in history.stored), *promised):
        ends[place.queue] = max(ends[place.queue], place.queue_offset + 1)
    for queue, end in sorted(ends.items()):
        for queue_offset in range(end):
            if queue_offset not in present[queue]:
                yield _place(QueuePosition(queue, queue_offset))


def _stored_twice(history: History) -> Iterator[str]:
    places: dict[int, set[QueuePosition]] = defaultdict(set)
    for place, number in history.stored:
        places[number].add(place)
    for number, found in places.items():
        if len(found) > 1:
            yield f"message {number} at {' and '.join(map(_place, sorted(found)))}"


def _early(history: History) -> Iterator[str]:
    for receipt in history.receipts:
        send = history.sends.get(receipt.number)
        if send is not None and receipt.received_ns < send.not_before_ns:
            early_ms = (send.not_before_ns - receipt.received_ns) / 1e6
            yield f"message {receipt.number} arrived {early_ms:.0f} ms early"


def _reordered(history: History) -> Iterator[str]:
    """Covers first deliveries of acknowledged messages; unknown ones may have been stored at any time."""
    newest: dict[str, int] = {}
    seen: set[int] = set()
    for receipt in sorted(history.receipts, key=lambda each: each.received_ns):
        send = history.sends.get(receipt.number)
        if send is None or send.outcome is not SendOutcome.OK or receipt.number in seen:
            continue
        seen.add(receipt.number)
        if send.sequence < newest.get(send.key, -1):
            yield f"key {send.key}: {send.sequence} came after {newest[send.key]}"
        newest[send.key] = max(send.sequence, newest.get(send.key, -1))


def _regressions(history: History, allowed_ns: int) -> Iterator[str]:
    """Offsets that went back to before what was committed `allowed_ns` ago."""
    waiting: dict[BrokerQueue, deque[tuple[int, int]]] = defaultdict(deque)
    settled: dict[BrokerQueue, int] = defaultdict(int)
    newest: dict[BrokerQueue, int] = defaultdict(int)
    seen_ns = before_ns = 0
    for commits in history.commits:
        seen_ns += min(commits.at_ns - before_ns, UNSEEN_COUNTED_NS)
        before_ns = commits.at_ns
        for queue, queue_offset in commits.offsets.items():
            past = waiting[queue]
            while past and past[0][0] + allowed_ns <= seen_ns:
                settled[queue] = past.popleft()[1]
            if queue_offset < newest[queue]:
                if queue_offset < settled[queue]:
                    place = _place(QueuePosition(queue, queue_offset))
                    yield f"{place} was committed at {commits.at_ns / 1e9:.1f} s, long after {settled[queue]}"
                past.clear()
                settled[queue] = 0
            past.append((seen_ns, queue_offset))
            newest[queue] = queue_offset


def _place(place: QueuePosition | None) -> str:
    if place is None:
        return "an unknown offset"
    return f"{place.queue.broker}/{place.queue.queue_id} offset {place.queue_offset}"
