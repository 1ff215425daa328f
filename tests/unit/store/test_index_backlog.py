"""Messages that wait for the index: taken in order, cut, and their keys found however alike they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skylark.model.message import find_keys, find_unique_key
from skylark.store.index_backlog import BacklogColumns, IndexBacklog, SharedKeyBatch, key_rows

PIECES = st.sampled_from(
    [b"UNIQ_KEY\x01A1", b"UNIQ_KEY\x01A2", b"UNIQ_KEY\x01", b"XUNIQ_KEY\x01A1", b"KEYS\x01k1 k2", b"KEYS\x01",
     b"KEYS\x01 k3", b"TAGS\x01T", b"WAIT\x01true", b"UNIQ_KEY\x01A11", b"", b"A1"]
)  # fmt: skip
TEXTS = st.builds(lambda pieces, end: b"\x02".join(pieces) + end, st.lists(PIECES, max_size=4), PIECES)


def columns(texts: list[bytes]) -> BacklogColumns:
    count = len(texts)
    return BacklogColumns(
        [100 * n for n in range(count)], [n for n in range(count)], [7 * n for n in range(count)], texts
    )


def keys_one_by_one(messages: BacklogColumns) -> list[tuple[int, int, int, bytes]]:
    rows = []
    for offset, timestamp, topic_hash, text in zip(*messages, strict=True):
        unique_key, keys = find_unique_key(text), find_keys(text)
        found = [] if unique_key is None else [unique_key]
        found += [key for key in (keys or b"").split(b" ") if key]
        rows += [(offset, timestamp, topic_hash, key) for key in found]
    return rows


@given(texts=st.lists(TEXTS, max_size=8), ending=TEXTS)
def test_keys_are_those_that_each_text_has(texts: list[bytes], ending: bytes) -> None:
    for messages in (columns(texts), columns([text + b"\x02" + ending for text in texts])):
        assert list(zip(*key_rows(messages), strict=True)) == keys_one_by_one(messages)


@given(
    keys=st.lists(st.text("AB\x01\x02", min_size=3, max_size=3), min_size=1, max_size=6),
    before=TEXTS,
    after=TEXTS,
)
def test_keys_of_texts_that_are_alike(keys: list[str], before: bytes, after: bytes) -> None:
    for first in (before + b"\x02", b""):
        messages = columns([first + b"UNIQ_KEY\x01" + key.encode() + b"\x02" + after for key in keys])
        assert list(zip(*key_rows(messages), strict=True)) == keys_one_by_one(messages)


@given(takes=st.lists(st.integers(0, 3000), max_size=10), cut=st.integers(0, 1_000_000))
def test_a_queue_by_columns_is_a_queue(takes: list[int], cut: int) -> None:
    queue, model = IndexBacklog(), list[int]()
    for number, limit in enumerate(takes):
        offsets = [10_000 * number + each for each in range(2 * limit)]
        queue.add(offsets, offsets, offsets, [b"%d" % offset for offset in offsets])
        model += offsets
        taken = queue.take(limit, 0)
        assert isinstance(taken, BacklogColumns)
        assert taken.physical_offsets == model[:limit]
        assert taken.texts == [b"%d" % offset for offset in model[:limit]]
        del model[:limit]
        assert len(queue) == len(model)
        assert queue.first_offset == (model[0] if model else None)
    queue.truncate(cut)
    assert queue.take(len(model), 0).physical_offsets == [offset for offset in model if offset < cut]
    assert len(queue) == 0


@given(
    counts=st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.integers(0, 12)), max_size=12),
    cut=st.integers(0, 200),
)
def test_runs_stay_together_and_in_their_place(counts: list[tuple[int, bool, int]], cut: int) -> None:
    queue, model = IndexBacklog(), list[int]()
    end = 0
    for count, is_run, limit in counts:
        offsets = list(range(end, end + count))
        end += count
        if is_run and count:
            queue.add_run(SharedKeyBatch(offsets, 1, 2, b"key"))
        else:
            queue.add(offsets, offsets, offsets, [b"%d" % offset for offset in offsets])
        model += offsets
        assert queue.first_offset == (model[0] if model else None)
        taken = queue.take(limit, limit).physical_offsets
        assert taken == model[: len(taken)]
        assert (len(taken) > 0) == (limit > 0 and len(model) > 0)
        del model[: len(taken)]
        assert len(queue) == len(model)
    queue.truncate(cut)
    model = [offset for offset in model if offset < cut]
    assert len(queue) == len(model)
    while len(queue):
        taken = queue.take(5, 3).physical_offsets
        assert taken == model[: len(taken)]
        del model[: len(taken)]
    assert model == []


def test_a_run_is_the_same_as_its_messages() -> None:
    run = SharedKeyBatch([10, 20, 30], 1, 2, b"key")
    assert list(zip(*key_rows(run.messages()), strict=True)) == [
        (10, 1, 2, b"key"), (20, 1, 2, b"key"), (30, 1, 2, b"key"),
    ]  # fmt: skip
