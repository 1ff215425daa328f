"""Topics with batch consume queues against a list: whatever is done in whatever order, it shows the same."""

from __future__ import annotations

import random
import zlib
from collections import defaultdict

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skylark.model.message import PutMessage, SystemFlag
from skylark.model.record import unwrap
from skylark.settings import FlushMode, StoreSettings
from skylark.store.append_result import AppendedInnerBatch, AppendedRecord
from skylark.store.message_store import MessageStore
from skylark.store.store_reader import StoreReader
from skylark.store.verification import verify
from tests.support.clock import ManualClock
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import ROOT, encoded_batch, small_settings

TOPIC = "inner"
QUEUE_IDS = st.sampled_from([0, 1])
BODIES = st.binary(min_size=1, max_size=60)
FULL_RATIO = 0.87
COMPRESSED = SystemFlag.COMPRESSED | SystemFlag.ZLIB


class BatchQueueMachine(RuleBasedStateMachine):
    """Each queue is a list of bodies by offset, with the physical offsets of their records."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.disk = SimulatedDisk(clock=self.clock)
        self.disk.make_directory(ROOT)
        self.queues: defaultdict[int, list[tuple[bytes, int, int]]] = defaultdict(list)

    @initialize(mode=st.sampled_from(FlushMode), units=st.sampled_from([2, 5, 50]), with_crc=st.booleans())
    def begin(self, mode: FlushMode, units: int, with_crc: bool) -> None:
        self.settings: StoreSettings = small_settings(
            flush_mode=mode,
            batch_consume_queue_file_bytes=46 * units,
            append_crc_property=with_crc,
            delete_files_max=1,
        )
        self._open()

    def _open(self) -> None:
        self.store = MessageStore(self.settings, disk=self.disk, clock=self.clock)
        self.store.queues.is_declared_batched = lambda topic: topic == TOPIC
        report = self.store.open()
        assert report.problems == []

    # Putting

    @rule(queue_id=QUEUE_IDS, bodies=st.lists(BODIES, min_size=1, max_size=7), is_compressed=st.booleans())
    def put_batch(self, queue_id: int, bodies: list[bytes], is_compressed: bool) -> None:
        body, sys_flag = encoded_batch(bodies, b"n\x011\x02"), 0
        if is_compressed:
            body, sys_flag = zlib.compress(body), COMPRESSED
        message = PutMessage(TOPIC, queue_id, body, b"UNIQ_KEY\x01u\x02", sys_flag=sys_flag)
        (result,) = self.store.append_batches([(message, len(bodies))])
        assert isinstance(result, AppendedInnerBatch)
        assert result.first_offset == len(self.queues[queue_id])
        self._note(queue_id, bodies, result.physical_offsets[0])

    @rule(queue_id=QUEUE_IDS, body=BODIES)
    def put_one(self, queue_id: int, body: bytes) -> None:
        (result,) = self.store.append([PutMessage(TOPIC, queue_id, body)])
        assert isinstance(result, AppendedRecord)
        assert result.queue_offset == len(self.queues[queue_id])
        self._note(queue_id, [body], result.physical_offset)

    def _note(self, queue_id: int, bodies: list[bytes], physical_offset: int) -> None:
        now_ms = self.clock.now_ms()
        self.queues[queue_id] += [(body, physical_offset, now_ms) for body in bodies]
        if self.settings.syncs_every_put:
            self.store.flush_log()

    # Everything else

    @rule()
    def flush_queues(self) -> None:
        self.store.housekeeper.flush()

    @rule(duration_ms=st.integers(0, 100_000))
    def wait(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self._open()

    @rule()
    def kill_and_restart(self) -> None:
        self.disk = self.disk.kill_image()
        self._open()

    @precondition(lambda self: len(self.store.log.files.starts) > 2)
    @rule()
    def delete_the_oldest_file(self) -> None:
        self.disk.used = FULL_RATIO
        self.store.housekeeper.clean()
        self.disk.used = None

    @precondition(lambda self: self.store.log.appended > self.store.log.min_offset)
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        records = sorted({each[1] for queue in self.queues.values() for each in queue})
        kept = [place for place in records if place >= self.store.log.min_offset]
        if not kept:
            return
        end = kept[int(share * (len(kept) - 1))]
        self.store.truncate(end)
        for queue_id, queue in self.queues.items():
            self.queues[queue_id] = [each for each in queue if each[1] < end]

    # What must hold

    def _first(self, queue_id: int) -> int:
        queue, minimum = self.queues[queue_id], self.store.log.min_offset
        return next((at for at, each in enumerate(queue) if each[1] >= minimum), len(queue))

    @invariant()
    def offsets_agree(self) -> None:
        for queue_id, queue in self.queues.items() if hasattr(self, "store") else ():
            found = self.store.queues[TOPIC, queue_id]
            assert (found.next_offset, found.max_offset) == (len(queue), len(queue))
            assert found.min_offset == self._first(queue_id)

    @rule(queue_id=QUEUE_IDS, share=st.floats(0, 1), wanted=st.integers(1, 40))
    def get_from_anywhere(self, queue_id: int, share: float, wanted: int) -> None:
        queue, first = self.queues[queue_id], self._first(queue_id)
        start = at = first + int(share * (len(queue) - first))
        found: dict[int, bytes] = {}
        while at < len(queue):
            result = self.store.get(TOPIC, queue_id, at, wanted)
            assert result.next_offset > at, result.status
            for record in result.messages():
                for message in unwrap(record):
                    assert message.queue_offset not in found
                    found[message.queue_offset] = message.body
            at = result.next_offset
        expected = {offset: queue[offset][0] for offset in range(start, len(queue))}
        assert {offset: body for offset, body in found.items() if offset >= start} == expected

    @rule(queue_id=QUEUE_IDS, seed=st.integers(0, 1000))
    def get_by_time(self, queue_id: int, seed: int) -> None:
        queue, first = self.queues[queue_id], self._first(queue_id)
        if first < len(queue):
            time_ms = random.Random(seed).choice(queue[first:])[2]
            expected = next(at for at in range(first, len(queue)) if queue[at][2] >= time_ms)
            assert self.store.offset_by_time(TOPIC, queue_id, time_ms) == expected

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for queue_id in self.queues:
            self.get_from_anywhere(queue_id, 0, 32)
        self.store.close()
        reader = StoreReader(ROOT, disk=self.disk)
        for queue_id, queue in self.queues.items():
            bodies = [message.body for message in reader.messages(TOPIC, queue_id)]
            assert bodies == [body for body, _, _ in queue[self._first(queue_id) :]]
        assert verify(reader).findings == []


TestBatchQueueModel = BatchQueueMachine.TestCase
TestBatchQueueModel.settings = hypothesis_settings(
    max_examples=25, stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
