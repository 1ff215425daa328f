"""The one judge of the fault suite: opens what a fault left behind and holds it against the promises made.

Lost = promised but not there. Unexpected = there but never sent. Reused = an offset that was promised to one
message and now holds another. Also: queues and log agree unit by unit, the index finds every promised key,
the next put works, and a second start finds nothing more to repair.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from skylark.clock import Clock
from skylark.errors import CorruptRecord
from skylark.model.java import java_hash
from skylark.model.message import TRANSACTION_MASK, PutMessage, StoredMessage, SystemFlag, encode_properties
from skylark.model.record import BLANK, MAGIC_BLANK, decode
from skylark.settings import StoreSettings
from skylark.store.append_result import AppendedRecord, PutStatus
from skylark.store.disk import Disk
from skylark.store.log_reader import GetStatus
from skylark.store.message_store import MessageStore
from skylark.store.recovery import RecoveryReport
from tests.fault.workload import Promises, Sent

UNIT = struct.Struct(">qiq")  # physical offset, size, tags code
BLANK_UNIT_SIZE = 0x7FFFFFFF

QueueName = tuple[str, int]
Found = dict[QueueName, dict[int, StoredMessage]]


@dataclass
class Verdict:
    """What the check saw, for tests that want more than that it passed."""

    report: RecoveryReport
    found: Found
    """Everything readable after the first opening, before the checker's own puts."""
    promises: Promises
    """What is promised now, the checker's own messages included."""
    told: list[str] = field(default_factory=list)
    """What recovery and reads said about damage."""
    spared: set[bytes] = field(default_factory=set)
    """Excused messages that could be read all the same."""
    added: list[Sent] = field(default_factory=list)


def check(
    disk: Disk,
    settings: StoreSettings,
    clock: Clock,
    promises: Promises,
    *,
    durable_only: bool,
    by_key: bool = True,
    by_files: bool = True,
) -> Verdict:
    """Open, verify, put, close, verify the files, open again. Raises AssertionError with what is wrong."""
    store = MessageStore(settings, disk=disk, clock=clock)
    report = store.open()
    promises = replace(promises, damaged=promises.damaged or bool(report.damages))
    verdict = Verdict(report, {}, promises, told=[*map(str, report.damages), *report.problems])
    verdict.found = read_all(store, verdict)
    check_found(verdict, durable_only=durable_only)
    if by_key:
        check_keys(store, promises.required(durable_only=durable_only))
    verdict.promises = rebased(promises, verdict.found)
    check_next_put(store, verdict, promises)
    store.close()
    if by_files and not promises.excused:
        check_files(disk, settings, verdict.promises)
        check_second_start(disk, settings, clock, verdict)
    return verdict


def read_all(store: MessageStore, verdict: Verdict) -> Found:
    """Everything in every queue, by the store's own reads."""
    return {
        (topic, queue_id): read_queue(store, topic, queue_id, verdict)
        for topic, queue_id in sorted(store.queues)
    }


def read_queue(store: MessageStore, topic: str, queue_id: int, verdict: Verdict) -> dict[int, StoredMessage]:
    """Only where a test has damaged something may a read stumble, and it must tell."""
    messages: dict[int, StoredMessage] = {}
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    excused = verdict.promises.excused
    at, physical_before = low, -1
    while at < high:
        result = store.get(topic, queue_id, at, 32)
        assert result.next_offset > at, f"{topic}/{queue_id}: no way past {at}, {result.status}"
        if result.damaged:
            assert excused, f"{topic}/{queue_id}: units from {at} on point to no record"
            verdict.told.append(f"{topic}/{queue_id}: {result.damaged} damaged units from {at} on")
        for message in decoded(result.records, verdict):
            name = f"{topic}/{queue_id} at {message.queue_offset}"
            if message.body in excused:
                verdict.spared.add(message.body)
                continue
            assert (message.topic, message.queue_id) == (topic, queue_id), f"{name}: message of another queue"
            assert at <= message.queue_offset < result.next_offset, f"{name}: outside of {at}"
            assert message.queue_offset not in messages, f"{name}: read twice"
            assert message.physical_offset > physical_before, f"{name}: out of order"
            messages[message.queue_offset] = message
            physical_before = message.physical_offset
        at = result.next_offset
    assert at == high, f"{topic}/{queue_id}: read up to {at}, the end is {high}"
    return messages


def decoded(records: Iterable[bytes | memoryview], verdict: Verdict) -> Iterator[StoredMessage]:
    for record in records:
        try:
            yield decode(record)
        except CorruptRecord as error:
            if not verdict.promises.excused:
                raise
            verdict.told.append(str(error))


def check_found(verdict: Verdict, *, durable_only: bool) -> None:
    """Nothing lost, nothing unexpected, nothing in a wrong place, no hole without reported damage."""
    found, promises = verdict.found, verdict.promises
    for sent in promises.required(durable_only=durable_only):
        message = found.get((sent.topic, sent.queue_id), {}).get(sent.queue_offset)
        assert message is not None, f"lost: {place(sent)}"
        assert message.body == sent.body, f"reused: {place(sent)} holds {message.body[:20]!r}"
        assert message.physical_offset == sent.physical_offset, f"moved: {place(sent)}"
        assert message.keys == [sent.key], f"altered: {place(sent)} has keys {message.keys}"
    by_body = {sent.body: sent for sent in promises.sent}
    attempts = {attempt.body: attempt for attempt in promises.attempts}
    for (topic, queue_id), messages in found.items():
        for queue_offset, message in messages.items():
            known = by_body.get(message.body)
            if known is not None:
                expected = (known.topic, known.queue_id, known.queue_offset)
                assert (topic, queue_id, queue_offset) == expected, f"wandered: {place(known)}"
                assert message.keys == [known.key], f"torn: {place(known)} has keys {message.keys}"
            else:
                name = f"{topic}/{queue_id} at {queue_offset} {message.body[:20]!r}"
                attempt = attempts.get(message.body)
                assert attempt is not None, f"unexpected: {name}"
                assert (attempt.topic, attempt.queue_id) == (topic, queue_id), f"wandered: {name}"
                assert message.keys == [attempt.key], f"torn: {name} has keys {message.keys}"
        holes = sorted(set(range(min(messages), max(messages))) - messages.keys()) if messages else []
        assert not holes or promises.damaged or promises.excused, f"{topic}/{queue_id} has holes at {holes}"
    lost = promises.excused - verdict.spared
    assert not lost or verdict.told, f"nobody tells that {len(lost)} messages are lost"


def place(sent: Sent) -> str:
    return (
        f"{sent.topic}/{sent.queue_id} at {sent.queue_offset}, "
        f"log {sent.physical_offset} to {sent.end} {sent.body[:20]!r}"
    )


def check_keys(store: MessageStore, required: Iterable[Sent]) -> None:
    if store.index is None:
        return
    store.build_index()
    for sent in required:
        bodies = [message.body for message in store.messages_by_key(sent.topic, sent.key)]
        assert bodies == [sent.body], f"index: key of {place(sent)} finds {len(bodies)} messages"


def rebased(promises: Promises, found: Found) -> Promises:
    """The promises of a store that went on from here: what it shows now, it has to keep."""
    sent = tuple(
        Sent(
            topic, queue_id, queue_offset, message.physical_offset, message.size, message.body,
            message.keys[0], message.tags or "",
        )
        for (topic, queue_id), messages in found.items()
        for queue_offset, message in messages.items()
    )  # fmt: skip
    return replace(
        promises, sent=tuple(sorted(sent, key=lambda each: each.physical_offset)), attempts=(), flushed=0
    )


def check_next_put(store: MessageStore, verdict: Verdict, promises: Promises) -> None:
    """A put to every queue, and to a new one, takes the next offset and is readable.

    The offset of a message that was damaged after it had been promised is not given out again.
    """
    taken = {
        (sent.topic, sent.queue_id): sent.queue_offset
        for sent in promises.sent
        if sent.body in promises.excused and sent.end <= promises.claimed
    }
    for topic, queue_id in dict.fromkeys([*verdict.found, ("fresh", 0)]):
        expected = store.max_offset(topic, queue_id)
        body, key = f"after {topic} {queue_id} {expected}".encode(), f"after-{topic}-{queue_id}-{expected}"
        properties = encode_properties({"TAGS": "red", "KEYS": key})
        status, result = store.put(PutMessage(topic, queue_id, body, properties))
        assert status is PutStatus.PUT_OK, f"next put to {topic}/{queue_id}: {result}"
        assert isinstance(result, AppendedRecord)
        assert result.queue_offset == expected, f"next put to {topic}/{queue_id}: {result.queue_offset}"
        assert expected > taken.get((topic, queue_id), -1), f"next put to {topic}/{queue_id}: reused"
        read = store.get(topic, queue_id, expected, 1)
        assert read.status is GetStatus.FOUND, f"next put to {topic}/{queue_id}: {read.status}"
        (message,) = read.messages()
        assert (message.body, message.queue_offset) == (body, expected)
        verdict.added.append(
            Sent(topic, queue_id, expected, result.physical_offset, result.size, body, key, "red")
        )
    before = verdict.promises
    verdict.promises = replace(
        before, sent=(*before.sent, *verdict.added), flushed=store.appended_offset, attempts=()
    )


def check_second_start(disk: Disk, settings: StoreSettings, clock: Clock, verdict: Verdict) -> None:
    """After the clean close nothing is left to repair, and everything is still there."""
    store = MessageStore(settings, disk=disk, clock=clock)
    report = store.open()
    assert report.clean_exit
    assert not report.damages, f"second start: {report.damages}"
    # A file of the log that is gone is gone for good: it is told every time.
    news = [problem for problem in report.problems if problem not in verdict.report.problems]
    assert not news, f"second start: {news}"
    second = Verdict(report, {}, verdict.promises)
    second.found = read_all(store, second)
    check_found(second, durable_only=True)
    check_keys(store, verdict.added)
    store.close()


# Files against files, by an independent reading of the bytes


def check_files(disk: Disk, settings: StoreSettings, promises: Promises) -> None:
    """Each unit points to the record with its queue and offset; each record has its unit."""
    records = dict(read_log(disk, settings))
    log_min = min((int(name) for name in disk.files(settings.commit_log_directory)), default=0)
    units: dict[QueueName, dict[int, tuple[int, int, int]]] = defaultdict(dict)
    root = settings.path / "consumequeue"
    for topic in disk.directories(root):
        for name in disk.directories(root / topic):
            units[topic, int(name)] = dict(read_units(disk, root / topic / name))
    for (topic, queue_id), queue in units.items():
        check_units(f"{topic}/{queue_id}", topic, queue_id, queue, records, log_min)
    for physical_offset, record in records.items():
        if record.sys_flag & TRANSACTION_MASK in (0, SystemFlag.TRANSACTION_COMMIT):
            unit = units[record.topic, record.queue_id].get(record.queue_offset)
            is_there = unit is not None and unit[0] == physical_offset
            is_forgotten = physical_offset < promises.forgotten.get(record.topic, 0)
            name = f"{record.topic}/{record.queue_id} at {record.queue_offset}"
            assert is_there or is_forgotten, f"record {physical_offset} of {name} has no unit: {unit}"


def check_units(
    name: str,
    topic: str,
    queue_id: int,
    queue: dict[int, tuple[int, int, int]],
    records: dict[int, StoredMessage],
    log_min: int,
) -> None:
    assert list(queue) == list(range(min(queue, default=0), max(queue, default=-1) + 1)), f"{name}: not dense"
    before = -1
    for queue_offset, (physical_offset, size, code) in queue.items():
        if size == BLANK_UNIT_SIZE or physical_offset < log_min:
            continue
        record = records.get(physical_offset)
        assert record is not None, f"{name}: unit {queue_offset} points to {physical_offset}, no record"
        expected = (topic, queue_id, queue_offset, size, java_hash(record.tags or ""))
        actual = (record.topic, record.queue_id, record.queue_offset, record.size, code)
        assert actual == expected, f"{name}: unit {queue_offset} is {expected}, the record {actual}"
        assert physical_offset > before, f"{name}: unit {queue_offset} goes back in the log"
        before = physical_offset


def read_units(disk: Disk, directory: Path) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """The written units of a queue by offset; behind the last one there must be zeros."""
    ended = False
    for name in disk.files(directory):
        file = disk.open(directory / name)
        data = file.read(file.length, 0)
        for position, unit in enumerate(UNIT.iter_unpack(data)):
            written = any(unit)
            assert not (written and ended), f"{directory / name}: unit {position} behind the end"
            ended = not written
            if written:
                yield int(name) // UNIT.size + position, unit


def read_log(disk: Disk, settings: StoreSettings) -> Iterator[tuple[int, StoredMessage]]:
    """Every record from the first file to the log's end; behind the end there must be zeros."""
    ended, timestamp = False, 0
    for name in disk.files(settings.commit_log_directory):
        file = disk.open(settings.commit_log_directory / name)
        data = file.read(file.length, 0)
        assert len(data) == settings.commit_log_file_bytes, f"{name} has {len(data)} bytes"
        position = 0
        while position < len(data) and not ended:
            left, magic = BLANK.unpack_from(data, position)
            if (left, magic) == (len(data) - position, MAGIC_BLANK):
                break
            try:
                record = decode(data, position)
            except CorruptRecord:
                ended = True
                break
            assert record.physical_offset == int(name) + position, f"{name}: record of another place"
            assert record.store_timestamp >= timestamp, f"{name}: store time goes back at {position}"
            timestamp = record.store_timestamp
            yield record.physical_offset, record
            position += record.size
        if ended:
            assert not data[position:].strip(b"\0"), f"{name}: bytes behind the end at {position}"
