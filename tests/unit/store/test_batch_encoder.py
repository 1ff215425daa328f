"""What the messages of a batch have in common: the tags code of all of them, and records made in pieces."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.model.message import PutMessage, pack_host
from skylark.model.record import BatchColumns, BatchElement, encode
from skylark.store.append_result import AppendedBatch
from skylark.store.batch_encoder import common_code
from skylark.store.commit_log import CommitLog
from skylark.store.queue_entry import tags_code
from skylark.store.queue_table import QueueTable
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import ROOT, small_settings

TAG_A = tags_code(b"TAGS\x01A\x02")
STORE_HOST = pack_host("10.1.2.3", 10911)


def batch_of(*texts: bytes) -> BatchColumns:
    return BatchColumns.of([BatchElement(0, b"", text) for text in texts])


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        ([b"a\x011\x02TAGS\x01A\x02", b"b\x02TAGS\x01A\x02"], TAG_A),
        ([b"a\x011\x02TAGS\x01A\x02k\x011\x02", b"b\x02TAGS\x01A\x02k\x012\x02"], TAG_A),
        ([b"a\x011\x02TAGS\x01A\x02k\x011\x02", b"b\x02k\x012\x02TAGS\x01A\x02"], TAG_A),
        ([b"a\x011\x02", b"b\x012\x02"], 0),
    ],
)
def test_messages_with_the_same_tags_have_one_code(texts: list[bytes], code: int) -> None:
    assert common_code(batch_of(*texts), b"WAIT\x01true\x02") == code


@pytest.mark.parametrize(
    "texts",
    [
        [b"a\x011\x02TAGS\x01A\x02", b"a\x011\x02TAGS\x01B\x02"],
        [b"a\x011\x02TAGS\x01A\x02", b"a\x011\x02"],
        [b"a\x011\x02", b"a\x011\x02TAGS\x01A\x02"],
        [b"a\x011\x02", b"TAGS\x01A\x02"],
        [b"a\x011\x02TAGS\x01A\x02k\x011\x02", b"a\x011\x02TAGS\x01B\x02k\x011\x02"],
        [b"a\x011\x02TAGS\x01A\x02k\x011\x02", b"a\x011\x02TAGS\x01A\x02TAGS\x01B\x02", b"a\x011\x02"],
        [b"a\x011\x02TAGS\x01A\x02k\x011\x02", b"a\x02TAGS\x01A\x02TAGS\x01B\x02k\x011\x02"],
        [b"a\x011\x02TAGS\x01\x02"],
        [b"a\x011\x02TAGS\x01A"],
        [b"a\x011\x02TAGS\x01"],
        [b"a\x011"],
        [b"a\x011\x02", b""],
        [b""],
    ],
)
def test_others_are_looked_at_one_by_one(texts: list[bytes]) -> None:
    assert common_code(batch_of(*texts), b"WAIT\x01true\x02") is None


def test_shared_tags_are_not_passed_over() -> None:
    assert common_code(batch_of(b"a\x011\x02TAGS\x01A\x02"), b"TAGS\x01B\x02") is None


PIECES = st.sampled_from(
    [b"a\x01b", b"TAGS\x01A", b"TAGS\x01B", b"TAGS\x01", b"XTAGS\x01A", b"", b"GS\x01A", b"TA"]
)
TEXTS = st.builds(
    lambda pieces, end: b"\x02".join(pieces) + end,
    st.lists(PIECES, max_size=3),
    st.sampled_from([b"\x02", b""]),
)


@given(first=TEXTS, others=st.lists(TEXTS, max_size=2), copies=st.integers(1, 3), shared=TEXTS)
def test_a_common_code_is_the_code_of_each(
    first: bytes, others: list[bytes], copies: int, shared: bytes
) -> None:
    texts = [first] * copies + others
    code = common_code(batch_of(*texts), shared)
    if code is not None:
        assert [tags_code(text + shared) for text in texts] == [code] * len(texts)
        assert all(text.endswith(b"\x02") for text in texts)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("body_bytes", [0, 100, 5000])
def test_messages_that_are_alike_become_encoded_records(count: int, body_bytes: int) -> None:
    settings = small_settings(commit_log_file_bytes=1 << 20, message_bytes_max=1 << 20)
    log = CommitLog(SimulatedDisk(), settings, STORE_HOST)
    queues = QueueTable(SimulatedDisk(), ROOT, small_settings(consume_queue_file_bytes=200), threading.Lock())
    elements = [
        BatchElement(7, number.to_bytes(2, "big") * (body_bytes // 2), b"n\x01%03d\x02TAGS\x01A\x02" % number)
        for number in range(count)
    ]
    head = PutMessage("T", 3, b"", b"UNIQ_KEY\x01u\x02", born_timestamp=5)
    run = log.append_batches([(head, BatchColumns.of(elements))], queues, 9)[0]
    assert isinstance(run, AppendedBatch)
    assert run.only_key == b"u"
    for number, (element, placed) in enumerate(zip(elements, run, strict=True)):
        put = PutMessage("T", 3, element.body, element.properties + head.properties, flag=7, born_timestamp=5)
        assert log.read(placed.physical_offset, placed.size) == encode(
            put,
            queue_offset=number,
            physical_offset=placed.physical_offset,
            store_timestamp=9,
            store_host=STORE_HOST,
        )
    assert log.appended == run.end
    assert log.read(run.end, 1000) == bytes(1000)


@pytest.mark.parametrize("keys", ["KEYS\x01k\x02", "XKEYS\x01k\x02"])
def test_a_run_with_other_keys_has_no_only_key(keys: str) -> None:
    log = CommitLog(SimulatedDisk(), small_settings(), STORE_HOST)
    queues = QueueTable(SimulatedDisk(), ROOT, small_settings(consume_queue_file_bytes=200), threading.Lock())
    batch = batch_of(b"a\x011\x02", keys.encode())
    run = log.append_batches([(PutMessage("T", 0, b"", b"UNIQ_KEY\x01u\x02"), batch)], queues, 9)[0]
    assert isinstance(run, AppendedBatch)
    assert run.only_key is None
