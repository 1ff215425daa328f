"""The store against a dictionary: whatever is done in whatever order, it shows what the model shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skylark.model.java import java_hash
from skylark.model.message import PutMessage, encode_properties
from skylark.model.record import BatchColumns, BatchElement
from skylark.settings import FlushMode, StoreSettings
from skylark.store.append_result import AppendedRecord, PutResult
from skylark.store.message_store import MessageStore
from tests.support.clock import ManualClock
from tests.support.simulated_disk import SimulatedDisk

ROOT = Path("/store")
TOPICS = st.sampled_from(["alpha", "beta"])
QUEUE_IDS = st.sampled_from([0, 1])
TAGS = st.sampled_from(["", "red", "green"])
BODIES = st.binary(max_size=40) | st.integers(0, 1500).map(bytes)
FULL_RATIO = 0.87


@dataclass
class Message:
    body: bytes
    tag: str
    physical_offset: int


@dataclass
class Queue:
    """Messages by queue offset, and the next one to be given out."""

    messages: dict[int, Message] = field(default_factory=dict)
    next_offset: int = 0


class StoreMachine(RuleBasedStateMachine):
    """`store` does what `queues` says. Under sync flush every put is flushed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.disk = SimulatedDisk(clock=self.clock)
        self.disk.make_directory(ROOT)
        self.queues: defaultdict[tuple[str, int], Queue] = defaultdict(Queue)
        self.deleted: set[str] = set()

    @initialize(
        mode=st.sampled_from(FlushMode),
        log_bytes=st.sampled_from([4096, 8192]),
        units=st.sampled_from([4, 50]),
        index=st.booleans(),
    )
    def begin(self, mode: FlushMode, log_bytes: int, units: int, index: bool) -> None:
        self.settings = StoreSettings(
            path=ROOT,
            commit_log_file_bytes=log_bytes,
            consume_queue_file_bytes=20 * units,
            index_enabled=index,
            index_slots=8,
            index_items=12,
            flush_mode=mode,
            message_bytes_max=2000,
            delete_pause_ms=0,
            delete_files_max=1,
        )
        self._open()

    def _open(self) -> None:
        self.store = MessageStore(self.settings, disk=self.disk, clock=self.clock)
        report = self.store.open()
        assert report.damages == []

    # Putting

    @rule(topic=TOPICS, queue_id=QUEUE_IDS, body=BODIES, tag=TAGS)
    def put(self, topic: str, queue_id: int, body: bytes, tag: str) -> None:
        (result,) = self.store.append([self._message(topic, queue_id, body, tag)])
        self._note(topic, queue_id, body, tag, result)
        self._flush_if_sync()

    @rule(data=st.lists(st.tuples(TOPICS, QUEUE_IDS, BODIES, TAGS), min_size=2, max_size=5))
    def put_several(self, data: list[tuple[str, int, bytes, str]]) -> None:
        results = self.store.append([self._message(*each) for each in data])
        for each, result in zip(data, results, strict=True):
            self._note(*each, result)
        self._flush_if_sync()

    @rule(topic=TOPICS, queue_id=QUEUE_IDS, data=st.lists(st.tuples(BODIES, TAGS), min_size=1, max_size=4))
    def put_batch(self, topic: str, queue_id: int, data: list[tuple[bytes, str]]) -> None:
        elements = [BatchElement(0, body, tag_properties(tag)) for body, tag in data]
        batch = PutMessage(topic, queue_id, b""), BatchColumns.of(elements)
        results: Sequence[PutResult] = self.store.append_batches([batch])[0]
        if len(results) == 1 and not isinstance(results[0], AppendedRecord):
            # All or nothing: too much for one file.
            size = sum(len(body) for body, _ in data) + len(data) * 91
            assert size > self.settings.commit_log_file_bytes // 2, results
            return
        for (body, tag), result in zip(data, results, strict=True):
            self._note(topic, queue_id, body, tag, result)
        self._flush_if_sync()

    def _message(self, topic: str, queue_id: int, body: bytes, tag: str) -> PutMessage:
        return PutMessage(topic, queue_id, body, tag_properties(tag))

    def _note(self, topic: str, queue_id: int, body: bytes, tag: str, result: PutResult) -> None:
        assert isinstance(result, AppendedRecord), result
        if (topic, queue_id) not in self.queues and topic in self.deleted:
            # A topic that was there before may begin anew or go on: only that it then goes on matters.
            self.queues[topic, queue_id].next_offset = result.queue_offset
        queue = self.queues[topic, queue_id]
        assert result.queue_offset == queue.next_offset
        queue.messages[queue.next_offset] = Message(body, tag, result.physical_offset)
        queue.next_offset += 1

    def _flush_if_sync(self) -> None:
        if self.settings.syncs_every_put:
            self.store.flush_log()

    # Everything else

    @rule()
    def flush_log(self) -> None:
        self.store.flush_log()
        assert self.store.flushed_offset == self.store.appended_offset

    @rule()
    def flush_queues(self) -> None:
        self.store.build_index()
        self.store.housekeeper.flush()

    @rule(duration_ms=st.integers(0, 100_000))
    def wait(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self._open()
        assert self.store.report.clean_exit

    @rule()
    def kill_and_restart(self) -> None:
        self.disk = self.disk.kill_image()
        self._open()
        assert not self.store.report.clean_exit

    @precondition(lambda self: len(self.store.log.files.starts) > 2)
    @rule()
    def delete_the_oldest_file(self) -> None:
        before = self.store.log.files.starts[0]
        self.disk.used = FULL_RATIO
        assert self.store.housekeeper.clean() == [before]
        self.disk.used = None
        minimum = self.store.log.min_offset
        for queue in self.queues.values():
            for queue_offset, message in list(queue.messages.items()):
                if message.physical_offset < minimum:
                    del queue.messages[queue_offset]

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        self.store.housekeeper.delete_topic(topic)
        self.deleted.add(topic)
        for name in [name for name in self.queues if name[0] == topic]:
            del self.queues[name]
        # A crash before the next checkpoint may bring some of its messages back: the fault suite's matter.
        self.store.close()
        self._open()

    # What must hold

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        for (topic, queue_id), queue in self.queues.items():
            assert self.store.max_offset(topic, queue_id) == queue.next_offset
            expected = min(queue.messages, default=queue.next_offset)
            assert self.store.min_offset(topic, queue_id) == expected

    @rule(topic=TOPICS, queue_id=QUEUE_IDS, tag=TAGS.filter(bool), start=st.integers(0, 60))
    def get_with_a_tag(self, topic: str, queue_id: int, tag: str, start: int) -> None:
        queue = self.queues.get((topic, queue_id), Queue())
        code = java_hash(tag)
        at = max(min(queue.messages, default=0), start)
        found: list[bytes] = []
        while at < queue.next_offset:
            result = self.store.get(topic, queue_id, at, 3, tags_filter=lambda other: other == code)
            assert result.next_offset > at, result.status
            found += [message.body for message in result.messages()]
            at = result.next_offset
        wanted = [each.body for offset, each in sorted(queue.messages.items()) if offset >= start]
        tags = [each.tag for offset, each in sorted(queue.messages.items()) if offset >= start]
        assert found == [body for body, other in zip(wanted, tags, strict=True) if other == tag]

    @rule()
    def get_everything(self) -> None:
        for (topic, queue_id), queue in self.queues.items():
            found: dict[int, bytes] = {}
            at = min(queue.messages, default=queue.next_offset)
            while at < queue.next_offset:
                result = self.store.get(topic, queue_id, at, 5)
                found |= {message.queue_offset: message.body for message in result.messages()}
                assert result.next_offset > at, result.status
                at = result.next_offset
            assert found == {offset: message.body for offset, message in queue.messages.items()}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.get_everything()
            self.store.close()


def tag_properties(tag: str) -> bytes:
    return encode_properties({"TAGS": tag, "KEYS": "a b"}) if tag else b""


def run_settings(examples: int) -> hypothesis_settings:
    return hypothesis_settings(
        max_examples=examples, stateful_step_count=60, deadline=None, report_multiple_bugs=False
    )


TestStoreModel = StoreMachine.TestCase
TestStoreModel.settings = run_settings(50)


@pytest.mark.nightly
class TestStoreModelForLonger(StoreMachine.TestCase):  # type: ignore[valid-type,misc]
    settings = run_settings(250)
