"""The commit log: what an append writes and refuses, how files follow one another, raw bytes for replicas."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from skylark.errors import DiskFull, OffsetOutOfRange
from skylark.model.message import PutMessage, SystemFlag, encode_properties, pack_host
from skylark.model.record import BatchColumns, BatchElement, decode, has_valid_crc_property
from skylark.settings import FlushMode
from skylark.store import commit_log
from skylark.store.append_result import AppendedBatch, AppendedRecord, PutResult, PutStatus, Refused
from skylark.store.commit_log import PADDED_WRITE_BYTES_MAX, PADDING_BYTES, CommitLog
from skylark.store.mapped_file import file_name
from skylark.store.queue_table import QueueTable
from tests.support.clock import ManualClock
from tests.support.simulated_disk import Fault, Kind, SimulatedDisk
from tests.support.store import NOW_MS, ROOT, message, placed, simulated_disk, sized, small_settings

FILE_BYTES = 4096
STORE_HOST = pack_host("10.1.2.3", 10911)
DIRECTORY = ROOT / "commitlog"


class Bench:
    """A log on a simulated disk with its queues."""

    def __init__(self, disk: SimulatedDisk | None = None, **changes: Any) -> None:
        self.disk = disk or simulated_disk(ManualClock(NOW_MS))
        self.settings = small_settings(**{"message_bytes_max": 4096, **changes})
        self.log = CommitLog(self.disk, self.settings, STORE_HOST)
        self.queues = QueueTable(
            self.disk, ROOT, small_settings(consume_queue_file_bytes=200), threading.Lock()
        )

    def append(self, *messages: PutMessage, now_ms: int = NOW_MS) -> list[PutResult]:
        return list(self.log.append(messages, self.queues, now_ms))

    def append_one(self, put: PutMessage, now_ms: int = NOW_MS) -> AppendedRecord:
        return placed(self.append(put, now_ms=now_ms)[0])

    def batch(self, head: PutMessage, *elements: BatchElement) -> list[PutResult]:
        return list(self.log.append_batches([(head, BatchColumns.of(elements))], self.queues, NOW_MS)[0])

    def batches(self, *heads: PutMessage) -> list[Sequence[PutResult]]:
        """Batches of two messages of 100 bytes, appended together."""
        elements = BatchColumns.of([element(bytes(100)), element(bytes(100))])
        return [*self.log.append_batches([(head, elements) for head in heads], self.queues, NOW_MS)]

    def refused(self, put: PutMessage) -> Refused:
        (result,) = self.append(put)
        assert isinstance(result, Refused), result
        return result

    def content(self, start: int) -> bytes:
        return self.disk.content(DIRECTORY / file_name(start))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def element(body: bytes, properties: bytes = b"") -> BatchElement:
    return BatchElement(0, body, properties)


# Appending


def test_the_first_record_makes_the_first_file(bench: Bench) -> None:
    assert bench.log.min_offset == bench.log.appended == 0
    result = bench.append_one(message(body=b"first", tags="TagA"))
    assert (result.queue_offset, result.physical_offset) == (0, 0)
    assert result.status is PutStatus.PUT_OK
    assert bench.log.appended == result.end == result.size
    assert bench.disk.files(DIRECTORY) == [file_name(0)]
    assert len(bench.content(0)) == FILE_BYTES
    stored = decode(bench.content(0))
    assert (stored.body, stored.store_host, stored.store_timestamp) == (b"first", "10.1.2.3:10911", NOW_MS)


def test_queue_offsets_count_per_queue_and_physical_ones_over_all(bench: Bench) -> None:
    results = [
        placed(result)
        for result in bench.append(message("a", 0), message("b", 0), message("a", 0), message("a", 1))
    ]
    assert [result.queue_offset for result in results] == [0, 0, 1, 0]
    assert [result.physical_offset for result in results[1:]] == [result.end for result in results[:-1]]


def test_one_write_for_many_messages(bench: Bench) -> None:
    bench.append_one(message())
    before = bench.disk.counts[Kind.WRITE]
    bench.append(*[message(body=b"%d" % n) for n in range(20)])
    assert bench.disk.counts[Kind.WRITE] == before + 1


@pytest.mark.parametrize("bad", range(3))
def test_messages_that_belong_together_are_all_stored_or_none(bench: Bench, bad: int) -> None:
    bench.append(message(body=b"first"))
    end, content = bench.log.appended, bench.content(0)
    messages = [message(body=bytes(9999 if number == bad else 9)) for number in range(3)]
    results = bench.log.append(messages, bench.queues, NOW_MS, together=True)
    assert [result.status for result in results] == [PutStatus.MESSAGE_ILLEGAL] * 3
    assert (bench.log.appended, bench.content(0)) == (end, content)
    results = bench.log.append([message(), message()], bench.queues, NOW_MS, together=True)
    assert [placed(result).queue_offset for result in results] == [1, 2]


def test_large_parts_are_not_copied_together(bench: Bench) -> None:
    body = bytes(range(256)) * 8
    result = bench.append_one(message(body=body), NOW_MS)
    assert decode(bench.content(0), result.physical_offset).body == body


def padded_bench(**changes: Any) -> Bench:
    """With files of two and a half paddings, synchronous unless told."""
    file_bytes = PADDING_BYTES * 5 // 2
    return Bench(**{"flush_mode": FlushMode.SYNC, "commit_log_file_bytes": file_bytes, **changes})


def written(bench: Bench, *messages: PutMessage) -> tuple[int, int]:
    """Append: how many bytes it took, and how many were written behind them."""
    before, begin = bench.disk.bytes_written, bench.log.appended
    bench.append(*messages)
    length = bench.log.appended - begin
    return length, bench.disk.bytes_written - before - length


def test_zeros_lie_ahead_of_small_records_that_are_flushed_one_by_one() -> None:
    bench = padded_bench()
    length, zeros = written(bench, message())
    assert length + zeros == PADDING_BYTES
    while bench.log.appended + length <= PADDING_BYTES:
        assert written(bench, message()) == (length, 0)
    _, zeros = written(bench, message())
    assert bench.log.appended + zeros == 2 * PADDING_BYTES
    # They end with the file, and the next one begins with new ones.
    while bench.log.appended + length <= 2 * PADDING_BYTES:
        bench.append(message())
    _, zeros = written(bench, message())
    assert bench.log.appended + zeros == bench.log.file_bytes
    while len(bench.log.files.starts) == 1:
        bench.append(message())
    begin = bench.log.file_bytes
    assert bench.log.appended == begin + length
    assert not bench.content(begin)[length:].strip(b"\0")


def test_zeros_are_no_part_of_the_log() -> None:
    bench = padded_bench()
    stored = [bench.append_one(message(body=b"%d" % number)) for number in range(3)]
    assert [decode(bench.content(0), each.physical_offset).body for each in stored] == [b"0", b"1", b"2"]
    assert not bench.content(0)[stored[-1].end :].strip(b"\0")
    assert bench.log.appended == stored[-1].end


def test_no_zeros_where_flushes_are_shared() -> None:
    assert written(padded_bench(flush_mode=FlushMode.ASYNC), message())[1] == 0
    many = [message(body=bytes(500))] * (PADDED_WRITE_BYTES_MAX // 500)
    length, zeros = written(padded_bench(), *many)
    assert (length > PADDED_WRITE_BYTES_MAX, zeros) == (True, 0)


def test_bodies_may_be_views(bench: Bench) -> None:
    result = bench.append_one(PutMessage("T", 0, memoryview(b"xxviewxx")[2:6]))
    assert decode(bench.content(0), result.physical_offset).body == b"view"


def test_store_times_never_go_back(bench: Bench) -> None:
    first = bench.append_one(message(), now_ms=5000)
    second = bench.append_one(message(), now_ms=3000)
    third = bench.append_one(message(), now_ms=6000)
    assert [each.store_timestamp for each in (first, second, third)] == [5000, 5000, 6000]
    assert decode(bench.content(0), second.physical_offset).store_timestamp == 5000


@pytest.mark.parametrize("flag", [SystemFlag.TRANSACTION_PREPARED, SystemFlag.TRANSACTION_ROLLBACK])
def test_transactions_under_way_take_no_queue_offset(bench: Bench, flag: SystemFlag) -> None:
    bench.append(message(), message())
    half = bench.append_one(message(sys_flag=flag))
    after = bench.append_one(message(sys_flag=SystemFlag.TRANSACTION_COMMIT))
    assert (half.queue_offset, after.queue_offset) == (0, 2)


def test_scheduled_messages_carry_their_time(bench: Bench) -> None:
    result = bench.append_one(message("SCHEDULE_TOPIC_XXXX", 2, delay="3", tags="TagA"))
    assert result.tags_code == NOW_MS + 10_000
    (result,) = map(placed, bench.batch(message("SCHEDULE_TOPIC_XXXX", 2), element(b"x", b"DELAY\x013\x02")))
    assert result.tags_code == NOW_MS + 10_000


def test_crc_properties_are_written_for_every_record() -> None:
    bench = Bench(append_crc_property=True)
    results = bench.append(message(tags="A"), message(properties=b"a\x01b"), message())
    results += bench.batch(message(keys="k"), element(b"x", b"__CRC32#\x01123\x02"), element(b"y"))
    data = bench.content(0)
    for result in map(placed, results):
        assert has_valid_crc_property(memoryview(data[result.physical_offset : result.end]))


# The end of a file


@pytest.mark.parametrize("left", [8, 9, 100, 300])
def test_a_blank_closes_a_file(bench: Bench, left: int) -> None:
    bench.append_one(sized(FILE_BYTES // 2))
    bench.append_one(sized(FILE_BYTES // 2 - left))
    assert bench.log.appended == FILE_BYTES - left
    result = bench.append_one(sized(left + 200 if left > 8 else 200))
    assert result.physical_offset == FILE_BYTES
    blank = bench.content(0)[-left:]
    assert blank == left.to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(left - 8)
    assert bench.disk.files(DIRECTORY) == [file_name(0), file_name(FILE_BYTES)]


def test_a_record_fits_if_eight_bytes_are_left_behind_it(bench: Bench) -> None:
    bench.append_one(sized(FILE_BYTES - 300))
    assert bench.append_one(sized(292)).physical_offset == FILE_BYTES - 300
    other = Bench()
    other.append_one(sized(FILE_BYTES - 300))
    assert other.append_one(sized(293)).physical_offset == FILE_BYTES
    assert other.content(0)[-300:-292].hex() == "0000012ccbd43194"


def test_the_largest_record_fills_a_file() -> None:
    bench = Bench(message_bytes_max=1 << 20)
    assert bench.append_one(sized(FILE_BYTES - 8)).physical_offset == 0
    assert bench.append_one(sized(FILE_BYTES - 8)).physical_offset == FILE_BYTES
    assert bench.content(0)[-8:].hex() == "00000008cbd43194"
    refused = bench.refused(sized(FILE_BYTES - 7))
    assert refused.status is PutStatus.MESSAGE_ILLEGAL
    assert refused.reason == "record has 4089 bytes, 4088 are allowed"
    assert bench.log.appended == 2 * FILE_BYTES - 8


def test_many_messages_go_over_several_files_in_order(bench: Bench) -> None:
    results = [placed(result) for result in bench.append(*[sized(1000) for _ in range(12)])]
    assert [result.queue_offset for result in results] == list(range(12))
    assert [result.physical_offset for result in results] == [
        file * FILE_BYTES + 1000 * n for file in range(3) for n in range(4)
    ]
    for result in results:
        start = bench.log.files.start_of(result.physical_offset)
        stored = decode(bench.content(start), result.physical_offset - start)
        assert (stored.physical_offset, stored.queue_offset) == (result.physical_offset, result.queue_offset)


def test_a_batch_stays_in_one_file(bench: Bench) -> None:
    bench.append_one(sized(FILE_BYTES - 1000))
    elements = [element(bytes(200)) for _ in range(4)]
    results = list(map(placed, bench.batch(message(), *elements)))
    assert results[0].physical_offset == FILE_BYTES
    assert [result.queue_offset for result in results] == [1, 2, 3, 4]
    assert bench.content(0)[-1000:-992].hex() == "000003e8cbd43194"


def test_a_batch_that_just_fits_stays_in_the_file(bench: Bench) -> None:
    head = message()
    size = 92 + 100
    bench.append_one(sized(FILE_BYTES - 8 - 2 * size))
    results = list(map(placed, bench.batch(head, element(bytes(100)), element(bytes(100)))))
    assert results[-1].end == FILE_BYTES - 8
    other = Bench()
    other.append_one(sized(FILE_BYTES - 7 - 2 * size))
    results = list(map(placed, other.batch(head, element(bytes(100)), element(bytes(100)))))
    assert results[0].physical_offset == FILE_BYTES


def test_batches_that_come_together_are_written_at_once(bench: Bench) -> None:
    bench.append_one(message())
    writes = bench.disk.operations
    results = bench.batches(message(), message("a/b"), message("other"), message())
    assert bench.disk.operations == writes + 1
    assert isinstance(results[1][0], Refused)
    stored = [[placed(each) for each in results[number]] for number in (0, 2, 3)]
    assert [[each.queue_offset for each in run] for run in stored] == [[1, 2], [0, 1], [3, 4]]
    assert [run[-1].end for run in stored[:2]] == [run[0].physical_offset for run in stored[1:]]


def test_batches_go_over_several_files_in_order(bench: Bench) -> None:
    size = 2 * (92 + 100)
    bench.append_one(sized(FILE_BYTES - 8 - 2 * size))
    results = [[placed(each) for each in run] for run in bench.batches(*[message()] * 4)]
    assert [run[0].physical_offset for run in results] == [
        FILE_BYTES - 8 - 2 * size, FILE_BYTES - 8 - size, FILE_BYTES, FILE_BYTES + size,
    ]  # fmt: skip
    assert [each.queue_offset for run in results for each in run] == list(range(1, 9))
    assert bench.content(0)[-8:].hex() == "00000008cbd43194"


def test_a_run_of_a_batch_reads_like_a_list(bench: Bench) -> None:
    run = bench.log.append_batches(
        [(message(tags="TagA"), BatchColumns.of([element(b"x"), element(b"y"), element(b"z")]))],
        bench.queues,
        NOW_MS,
    )[0]
    assert len(run) == 3
    assert [each.queue_offset for each in map(placed, run)] == [0, 1, 2]
    assert placed(run[-1]).queue_offset == 2
    assert [placed(each).queue_offset for each in run[1:]] == [1, 2]
    assert placed(run[0]).tags_code == 2598919
    assert isinstance(run, AppendedBatch)
    assert run.physical_offsets == [placed(each).physical_offset for each in run]
    with pytest.raises(IndexError):
        run[3]


# Refusals


@pytest.mark.parametrize(
    ("put", "status", "reason"),
    [
        (message(body=bytes(4097)), PutStatus.MESSAGE_ILLEGAL, "body has 4097 bytes, 4096 are allowed"),
        (message(properties=bytes(32768)), PutStatus.PROPERTIES_SIZE_EXCEEDED, "32767 are allowed"),
        (message(properties=b"a\x01\0\x02"), PutStatus.MESSAGE_ILLEGAL, "a property contains a NUL byte"),
        (message(topic=""), PutStatus.MESSAGE_ILLEGAL, "topic '' has 0 bytes"),
        (message(topic="t" * 128), PutStatus.MESSAGE_ILLEGAL, "has 128 bytes, 1 to 127 are allowed"),
        (message(topic="%RETRY%" + "g" * 249), PutStatus.MESSAGE_ILLEGAL, "1 to 255 are allowed"),
        (message(topic="../x"), PutStatus.MESSAGE_ILLEGAL, "cannot be a directory name"),
        (message(topic=".."), PutStatus.MESSAGE_ILLEGAL, "cannot be a directory name"),
        (message(topic="."), PutStatus.MESSAGE_ILLEGAL, "cannot be a directory name"),
        (message(topic="a/b"), PutStatus.MESSAGE_ILLEGAL, "cannot be a directory name"),
        (message(topic="a\\b"), PutStatus.MESSAGE_ILLEGAL, "cannot be a directory name"),
        (message(topic="a\0b"), PutStatus.MESSAGE_ILLEGAL, "cannot be a directory name"),
        (message(topic="\ud800"), PutStatus.MESSAGE_ILLEGAL, "illegal topic"),
        (message(queue_id=-1), PutStatus.MESSAGE_ILLEGAL, "invalid queue id -1"),
        (message(queue_id=1 << 31), PutStatus.MESSAGE_ILLEGAL, "invalid queue id 2147483648"),
        (message(born_host=b""), PutStatus.MESSAGE_ILLEGAL, "host"),
        (message(born_host=bytes(7)), PutStatus.MESSAGE_ILLEGAL, "host"),
        (message(born_host=bytes(19)), PutStatus.MESSAGE_ILLEGAL, "host"),
        (message(flag=1 << 31), PutStatus.MESSAGE_ILLEGAL, "a number is out of range"),
        (message(born_timestamp=1 << 63), PutStatus.MESSAGE_ILLEGAL, "a number is out of range"),
        (message(reconsume_times=-(1 << 40)), PutStatus.MESSAGE_ILLEGAL, "a number is out of range"),
        (message(sys_flag=SystemFlag.INNER_BATCH), PutStatus.MESSAGE_ILLEGAL, "inner batch"),
    ],
)
def test_what_is_refused_changes_nothing(
    bench: Bench, put: PutMessage, status: PutStatus, reason: str
) -> None:
    """A refused message leaves no bytes and takes no offset; its neighbours in the same call are stored."""
    bench.append_one(message(body=b"before"))
    first, refused, last = bench.append(message(body=b"one"), put, message(body=b"two"))
    assert isinstance(refused, Refused)
    assert refused.status is status
    assert reason in refused.reason
    assert (placed(first).queue_offset, placed(last).queue_offset) == (1, 2)
    assert placed(first).end == placed(last).physical_offset
    assert decode(bench.content(0), placed(last).physical_offset).body == b"two"


@pytest.mark.parametrize("length", [32767, 32768])
def test_the_longest_properties(length: int) -> None:
    bench = Bench(commit_log_file_bytes=1 << 17)
    put = message(properties=b"a\x01" + b"x" * (length - 3) + b"\x02")
    (result,) = bench.append(put)
    assert result.status is (PutStatus.PUT_OK if length == 32767 else PutStatus.PROPERTIES_SIZE_EXCEEDED)


@pytest.mark.parametrize("length", [32747, 32748])
def test_the_crc_property_counts_among_the_properties(length: int) -> None:
    bench = Bench(commit_log_file_bytes=1 << 17, append_crc_property=True)
    text = b"a\x01" + b"x" * (length - 3) + b"\x02"
    status = PutStatus.PUT_OK if length == 32747 else PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert bench.append(message(properties=text))[0].status is status
    assert bench.batch(message(), element(b"x", text))[0].status is status


def test_the_longest_body_and_the_longest_record() -> None:
    bench = Bench(commit_log_file_bytes=1 << 20, message_bytes_max=1000)
    bench.append_one(message(body=bytes(1000)))
    assert bench.refused(message(body=bytes(1001))).status is PutStatus.MESSAGE_ILLEGAL
    # The record may be up to 64 KiB longer than the body may be; nothing else is that long.
    assert bench.append_one(message(body=bytes(1000), properties=b"x" * 32767)).size > 32767


def test_the_limit_may_change_while_it_runs(bench: Bench) -> None:
    bench.log.message_bytes_max = 10
    assert bench.refused(message(body=bytes(11))).status is PutStatus.MESSAGE_ILLEGAL
    bench.log.message_bytes_max = 11
    bench.append_one(message(body=bytes(11)))


def test_the_longest_topics(bench: Bench) -> None:
    for topic in ("t" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 122):
        result = bench.append_one(message(topic))
        assert decode(bench.log.read(result.physical_offset, result.size)).topic == topic


@pytest.mark.parametrize(
    ("head", "elements", "status"),
    [
        (message("../x"), [element(b"x")], PutStatus.MESSAGE_ILLEGAL),
        (message(born_host=b"short"), [element(b"x")], PutStatus.MESSAGE_ILLEGAL),
        (message(), [element(b"x"), element(bytes(4000))], PutStatus.MESSAGE_ILLEGAL),
        (message(), [element(bytes(1000)) for _ in range(4)], PutStatus.MESSAGE_ILLEGAL),
        (message(), [element(b"x"), element(b"x", bytes(32768))], PutStatus.PROPERTIES_SIZE_EXCEEDED),
        (message(), [element(b"x"), element(b"x", b"a\x01\0\x02")], PutStatus.MESSAGE_ILLEGAL),
        (message(born_timestamp=1 << 63), [element(b"x")], PutStatus.MESSAGE_ILLEGAL),
        (message(), [element(b"x"), BatchElement(1 << 31, b"", b"")], PutStatus.MESSAGE_ILLEGAL),
    ],
)
def test_a_batch_is_stored_whole_or_not_at_all(
    bench: Bench, head: PutMessage, elements: list[BatchElement], status: PutStatus
) -> None:
    bench.append_one(message())
    before, end = bench.content(0), bench.log.appended
    results = bench.batch(head, *elements)
    assert [result.status for result in results] == [status]
    assert (bench.content(0), bench.log.appended) == (before, end)
    assert bench.append_one(message()).queue_offset == 1


def test_a_batch_has_a_limit_of_its_own() -> None:
    bench = Bench(commit_log_file_bytes=1 << 20, message_bytes_max=1000)
    assert bench.batch(message(), *[element(bytes(1000))] * 50)[0].status is PutStatus.PUT_OK
    refused = bench.batch(message(), *[element(bytes(1000))] * 62)
    assert [result.status for result in refused] == [PutStatus.MESSAGE_ILLEGAL]


# A disk that fails


def test_a_full_disk_refuses_and_forgets() -> None:
    bench = Bench(simulated_disk(capacity_bytes=2 * 4096))
    bench.append(*[sized(1000) for _ in range(4)])
    results = bench.append(sized(1000), sized(1000))
    assert [result.status for result in results] == [PutStatus.PUT_OK] * 2
    results = bench.append(*[sized(1000, fill=b"lost") for _ in range(4)])
    assert [result.status for result in results] == [PutStatus.PUT_OK] * 2 + [
        PutStatus.SERVICE_NOT_AVAILABLE
    ] * 2
    assert "disk full" in results[-1].reason  # type: ignore[union-attr]
    # The next file could be begun, but not filled.
    assert bench.log.appended == 2 * FILE_BYTES
    assert bench.content(2 * FILE_BYTES) == bytes(FILE_BYTES)
    bench.disk.capacity_bytes = None
    assert bench.append_one(sized(500)).queue_offset == 8


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("as_batch", [False, True])
def test_a_write_that_fails_gives_its_offsets_back(bench: Bench, error: int, as_batch: bool) -> None:
    bench.append_one(message(body=b"before"))
    before, end = bench.content(0), bench.log.appended
    bench.disk.plan(Fault(Kind.WRITE, error=error))
    puts = [message(body=b"lost"), message("other", 3), message(sys_flag=SystemFlag.TRANSACTION_PREPARED)]

    def append() -> list[PutResult]:
        if as_batch:
            return bench.batch(message(), element(b"lost"), element(b"lost"))
        return bench.append(*puts)

    if error == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            append()
    else:
        assert {result.status for result in append()} == {PutStatus.SERVICE_NOT_AVAILABLE}
    # Nothing of it may come back to life behind the records that follow.
    assert (bench.content(0), bench.log.appended) == (before, end)
    assert bench.append_one(message()).queue_offset == 1
    assert bench.append_one(message("other", 3)).queue_offset == 0


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_batches_whose_write_fails_give_their_offsets_back(bench: Bench, error: int) -> None:
    bench.append_one(message(body=b"before"))
    before, end = bench.content(0), bench.log.appended
    bench.disk.plan(Fault(Kind.WRITE, error=error))
    heads = message(), message("other", 3), message()
    if error == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            bench.batches(*heads)
    else:
        results = bench.batches(*heads)
        assert [[each.status for each in result] for result in results] == [
            [PutStatus.SERVICE_NOT_AVAILABLE]
        ] * 3
    assert (bench.content(0), bench.log.appended) == (before, end)
    assert bench.append_one(message()).queue_offset == 1
    assert bench.append_one(message("other", 3)).queue_offset == 0


@pytest.mark.parametrize("kind", [Kind.CREATE, Kind.WRITE])
def test_a_roll_that_fails_leaves_the_file_as_it_was(bench: Bench, kind: Kind) -> None:
    bench.append_one(sized(4000))
    end = bench.log.appended
    bench.disk.plan(Fault(kind, error=errno.ENOSPC))
    (result,) = bench.append(sized(500))
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert bench.log.appended == end
    assert bench.disk.files(DIRECTORY) == [file_name(0)]
    bench.disk.heal()
    assert bench.append_one(sized(500)).physical_offset == FILE_BYTES
    assert bench.content(0)[4000:4008].hex() == "00000060cbd43194"


def test_a_batch_that_cannot_roll_is_refused(bench: Bench) -> None:
    bench.append_one(sized(4000))
    bench.disk.plan(Fault(Kind.CREATE, error=errno.ENOSPC))
    assert bench.batch(message(), element(bytes(500)))[0].status is PutStatus.SERVICE_NOT_AVAILABLE
    assert bench.append_one(message()).queue_offset == 1


# Reading


def test_slices_and_plain_reads(bench: Bench) -> None:
    results = [placed(result) for result in bench.append(*[sized(1000) for _ in range(6)])]
    for result in results:
        view = bench.log.select(result.physical_offset, result.size)
        assert view is not None
        assert bytes(view) == bench.log.read(result.physical_offset, result.size)
        assert decode(view).queue_offset == result.queue_offset
    assert bench.log.select(results[0].physical_offset, FILE_BYTES + 1) is None
    assert bench.log.select(10 * FILE_BYTES, 10) is None
    assert bench.log.is_resident(0, 100)
    assert not bench.log.is_resident(10 * FILE_BYTES, 100)


def test_reads_end_at_the_files_end(bench: Bench) -> None:
    bench.append(*[sized(1000) for _ in range(6)])
    assert len(bench.log.read(4000, 1000)) == 96
    with pytest.raises(OffsetOutOfRange) as caught:
        bench.log.read(9000, 10)
    assert (caught.value.min_offset, caught.value.max_offset) == (0, bench.log.appended)


def test_a_deleted_file_lives_on_in_its_slices(bench: Bench) -> None:
    results = [placed(result) for result in bench.append(*[sized(1000) for _ in range(6)])]
    view = bench.log.select(0, results[0].size)
    assert view is not None
    bench.log.delete_file(0)
    assert bench.log.min_offset == FILE_BYTES
    assert decode(view).queue_offset == 0
    assert bench.log.select(0, results[0].size) is None
    with pytest.raises(OffsetOutOfRange):
        bench.log.read(0, 10)


def test_a_file_that_vanished_is_as_good_as_deleted(bench: Bench) -> None:
    bench.append(*[sized(1000) for _ in range(6)])
    again = CommitLog(bench.disk, bench.settings, STORE_HOST)
    assert again.load() == []
    bench.disk.lose(DIRECTORY / file_name(0))
    assert again.view(0) is None
    assert not again.is_resident(0, 10)
    with pytest.raises(OffsetOutOfRange):
        again.read(0, 10)


# Room ahead


def test_the_next_file_is_made_ahead_of_need(bench: Bench) -> None:
    bench.log.prepare_next()
    assert bench.disk.files(DIRECTORY) == []  # nobody knows where the log will begin
    bench.append_one(sized(1000))
    bench.log.prepare_next()
    assert bench.disk.files(DIRECTORY) == [file_name(0)]
    bench.append_one(sized(1500))
    bench.log.prepare_next()
    bench.log.prepare_next()
    assert bench.disk.files(DIRECTORY) == [file_name(0), file_name(FILE_BYTES)]
    assert bench.log.files.starts == [0]
    created = bench.disk.counts[Kind.CREATE]
    bench.append(sized(1500), sized(1500))
    assert bench.log.files.starts == [0, FILE_BYTES]
    assert bench.disk.counts[Kind.CREATE] == created


def test_the_file_made_ahead_goes_at_an_orderly_end(bench: Bench) -> None:
    bench.append_one(sized(3000))
    bench.log.prepare_next()
    bench.log.drop_ready_file()
    bench.log.drop_ready_file()
    assert bench.disk.files(DIRECTORY) == [file_name(0)]
    bench.append_one(sized(3000))
    assert bench.disk.files(DIRECTORY) == [file_name(0), file_name(FILE_BYTES)]


def test_an_append_that_was_faster_keeps_its_own_file(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.append_one(sized(3000))
    create = bench.disk.create

    def create_late(path: Any, length: int) -> Any:
        monkeypatch.undo()
        bench.append_one(sized(3000))
        return create(path, length)

    monkeypatch.setattr(bench.disk, "create", create_late)
    bench.log.prepare_next()
    assert bench.log.files.starts == [0, FILE_BYTES]
    bench.log.drop_ready_file()
    assert bench.disk.files(DIRECTORY) == [file_name(0), file_name(FILE_BYTES)]
    assert decode(bench.content(FILE_BYTES)).queue_offset == 1


def test_blocks_are_allocated_ahead_of_the_appends_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the call is emulated it writes bytes itself, so it may never touch a range being appended to."""
    monkeypatch.setattr(commit_log, "ALLOCATION_BYTES", 8192)
    bench = Bench(commit_log_file_bytes=1 << 15)
    ranges: list[tuple[int, int]] = []
    allocate = bench.disk.allocate

    def watched(path: Any, inode: Any, position: int, length: int) -> None:
        ranges.append((int(path.name) + position, length))
        assert ranges[-1][0] > bench.log.appended
        allocate(path, inode, position, length)

    monkeypatch.setattr(bench.disk, "allocate", watched)
    bench.append_one(sized(1000))
    for _ in range(3):
        bench.log.prepare_next()
    assert ranges == [(8192, 8192)]
    for _ in range(9):
        bench.append(*[sized(1000) for _ in range(8)])
        bench.log.prepare_next()
    # Each step once, those of the next files too.
    assert sorted(ranges) == [(start, 8192) for start in range(8192, ranges[-1][0] + 1, 8192)]
    assert len(bench.log.files.starts) == 3


def test_a_full_disk_is_met_ahead_of_need() -> None:
    bench = Bench(simulated_disk(capacity_bytes=4096), commit_log_file_bytes=4096)
    bench.append_one(sized(3000))
    with pytest.raises(DiskFull):
        bench.log.prepare_next()


# Cutting


def test_truncating_leaves_zeros_and_no_later_files(bench: Bench) -> None:
    results = [placed(result) for result in bench.append(*[sized(1000) for _ in range(12)])]
    bench.log.prepare_next()
    cut = results[5].physical_offset
    bench.log.truncate(cut)
    assert bench.log.appended == cut
    assert bench.disk.files(DIRECTORY) == [file_name(0), file_name(FILE_BYTES)]
    assert bench.content(FILE_BYTES)[cut - FILE_BYTES :] == bytes(2 * FILE_BYTES - cut)
    assert decode(bench.content(FILE_BYTES)).queue_offset == 4
    bench.append_one(sized(1000, fill=b"n"))
    assert bench.log.appended == cut + 1000


def test_truncating_at_a_files_start_deletes_the_file(bench: Bench) -> None:
    bench.append(*[sized(1000) for _ in range(6)])
    bench.log.truncate(FILE_BYTES)
    assert bench.disk.files(DIRECTORY) == [file_name(0)]
    assert bench.append_one(sized(1000)).physical_offset == FILE_BYTES
    bench.log.truncate(0)
    assert bench.disk.files(DIRECTORY) == []
    assert bench.append_one(sized(1000)).physical_offset == 0


@pytest.mark.parametrize("wipe", [True, False])
def test_the_end_that_recovery_found(bench: Bench, wipe: bool) -> None:
    bench.append(*[sized(1000) for _ in range(6)])
    log = CommitLog(bench.disk, bench.settings, STORE_HOST)
    log.load()
    log.end_at(2000, wipe=wipe)
    assert (log.appended, log.files.starts) == (2000, [0])
    assert (bench.content(0)[2000:] == bytes(FILE_BYTES - 2000)) == wipe
    assert len(bench.content(0)) == FILE_BYTES


# Raw bytes


def test_raw_bytes_make_an_equal_log(bench: Bench) -> None:
    bench.append(*[sized(1000) for _ in range(6)])
    replica = Bench()
    for start in bench.log.files.starts:
        length = min(FILE_BYTES, bench.log.appended - start)
        replica.log.append_raw(start, memoryview(bench.log.read(start, length)))
    assert replica.log.appended == bench.log.appended
    assert [replica.content(start) for start in (0, FILE_BYTES)] == [
        bench.content(start) for start in (0, FILE_BYTES)
    ]


def test_raw_bytes_may_cross_files(bench: Bench) -> None:
    bench.log.append_raw(0, bytes(FILE_BYTES - 10))
    bench.log.append_raw(FILE_BYTES - 10, b"x" * (FILE_BYTES + 20))
    assert bench.log.appended == 2 * FILE_BYTES + 10
    assert bench.log.files.starts == [0, FILE_BYTES, 2 * FILE_BYTES]
    assert bench.content(2 * FILE_BYTES)[:12] == b"x" * 10 + bytes(2)


@pytest.mark.parametrize("physical_offset", [0, 99, 101, 5000])
def test_raw_bytes_must_continue_the_log(bench: Bench, physical_offset: int) -> None:
    bench.log.append_raw(0, b"x" * 100)
    with pytest.raises(OffsetOutOfRange) as caught:
        bench.log.append_raw(physical_offset, b"y")
    assert (caught.value.physical_offset, caught.value.max_offset) == (physical_offset, 100)


def test_a_log_may_begin_anywhere(bench: Bench) -> None:
    bench.log.append_raw(3 * FILE_BYTES, b"x" * 100)
    assert (bench.log.min_offset, bench.log.appended) == (3 * FILE_BYTES, 3 * FILE_BYTES + 100)
    assert bench.disk.files(DIRECTORY) == [file_name(3 * FILE_BYTES)]


def test_nothing_is_nothing(bench: Bench) -> None:
    assert bench.append() == []
    bench.log.append_raw(0, b"")
    assert (bench.log.appended, bench.disk.files(DIRECTORY)) == (0, [])


def test_a_store_host_is_an_address() -> None:
    with pytest.raises(ValueError, match="store host"):
        CommitLog(SimulatedDisk(), small_settings(), b"short")


def test_properties_of_a_batch_are_joined(bench: Bench) -> None:
    shared = encode_properties({"CLUSTER": "c", "UNIQ_KEY": "batch"})
    head = PutMessage("T", 0, b"", shared)
    (one, two) = map(
        placed, bench.batch(head, element(b"x", b"UNIQ_KEY\x01own\x02TAGS\x01TagA"), element(b"y"))
    )
    assert decode(bench.content(0)).properties == {"UNIQ_KEY": "batch", "TAGS": "TagA", "CLUSTER": "c"}
    assert (one.tags_code, two.tags_code) == (2598919, 0)
    assert one.properties == b"UNIQ_KEY\x01own\x02TAGS\x01TagA\x02" + shared
