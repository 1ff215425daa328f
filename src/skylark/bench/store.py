"""`skylark bench store`: appends, reads, scans and group commit of the store in this process."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from skylark.bench.latencies import LatencyHistogram
from skylark.bench.load import BadLoad, LoadFailed
from skylark.bench.machine import scratch
from skylark.bench.results import Cell, Document, Value, make_cell, make_document
from skylark.bench.servers import Progress
from skylark.model.message import PutMessage, encode_properties
from skylark.model.record import Scan
from skylark.settings import FlushMode, StoreSettings
from skylark.store.append_result import PutResult, PutStatus, Refused
from skylark.store.disk import Disk
from skylark.store.message_store import MessageStore

BATCH = 64
"""Messages of one append, as in a busy broker."""
PULLED = 32
SCANNED_BYTES = 32 << 20
FILE_BYTES = 1 << 30
SYNC_WAITERS = (1, 64)
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
TOPIC = "TopicBench"
PROPERTIES = encode_properties(
    {"KEYS": "order-1001", "UNIQ_KEY": "C0A8010A3E7018B4AAC24F3B1C2D0000", "TAGS": "TagA"}
)
UNFLUSHED_MAX_BYTES = 256 << 20
EXPIRY_S = 0.1
"""Interval of the check for expired waiters."""


def open_store(path: Path, *, disk: Disk | None = None, **changes: Any) -> MessageStore:
    settings = {"index_enabled": False, "unflushed_bytes_max": 1 << 40, **changes}
    store = MessageStore(StoreSettings(path=path, **settings), disk=disk)
    store.open()
    return store


def messages(count: int, body_bytes: int, queues: int = 4) -> list[PutMessage]:
    return [
        PutMessage(
            TOPIC, number % queues, os.urandom(body_bytes), PROPERTIES, born_timestamp=1, born_host=HOST
        )
        for number in range(count)
    ]


def append(store: MessageStore, batch: list[PutMessage]) -> Sequence[PutResult]:
    """Append a batch. Raises LoadFailed if the store rejects it, for example on a full disk."""
    results = store.append(batch)
    if isinstance(last := results[-1], Refused):
        raise LoadFailed(f"append rejected: {last.status.name}, {last.reason}")
    return results


def fill(store: MessageStore, end: int, body_bytes: int = 4096, queues: int = 4) -> None:
    """Append until the log ends at `end`. Raises LoadFailed."""
    batch = messages(BATCH, body_bytes, queues)
    while store.appended_offset < end:
        append(store, batch)
        if store.appended_offset - store.flushed_offset > 2 * UNFLUSHED_MAX_BYTES:
            store.flush_log()


@dataclass(frozen=True)
class SyncRate:
    """Rate of a store with synchronous flush."""

    answered: int
    seconds: float
    fsyncs: int


def sync_rate(
    path: Path, waiters: int, disk: Disk | None, seconds: float = 2.0, body_bytes: int = 128
) -> SyncRate:
    """Appends with `waiters` in flight, each answered after a flush, as in a broker. Raises LoadFailed."""
    store = open_store(path, disk=disk, flush_mode=FlushMode.SYNC, commit_log_file_bytes=64 << 20)
    store.start()
    template = messages(1, body_bytes)[0]
    answered = threading.Semaphore(waiters)
    statuses: Counter[PutStatus] = Counter()
    lock = threading.Lock()

    def answer(status: PutStatus) -> None:
        with lock:
            statuses[status] += 1
        answered.release()

    flushes = store.flusher.count
    started = time.perf_counter()
    try:
        while time.perf_counter() - started < seconds:
            while not answered.acquire(timeout=EXPIRY_S):
                store.expire_waiters()
            if bad := statuses.keys() - {PutStatus.PUT_OK}:
                raise LoadFailed(f"append failed: {', '.join(sorted(status.name for status in bad))}")
            ready = 1
            while answered.acquire(blocking=False):
                ready += 1
            for result in append(store, [template] * ready):
                store.when_flushed(result.end, answer)  # type: ignore[union-attr]
        # Excludes what closing the store still answers.
        return SyncRate(
            statuses[PutStatus.PUT_OK], time.perf_counter() - started, store.flusher.count - flushes
        )
    finally:
        store.close()


# --- `skylark bench store` ---


def measure_store(body_bytes: int, seconds: float, progress: Progress) -> Document:
    """Run every cell for `seconds` in a temporary directory. Raises BadLoad, LoadFailed."""
    if seconds <= 0 or not 1 <= body_bytes <= 4 << 20:
        raise BadLoad(
            f"invalid seconds {seconds} or body_bytes {body_bytes}; choose more than 0, and 1 to {4 << 20}"
        )
    with scratch() as directory:
        cells = list(_cells(directory, body_bytes, seconds, progress))
    conditions: dict[str, Value] = {
        "servers": "none: the store in this process",
        "body_bytes": body_bytes,
        "seconds": seconds,
    }
    return make_document("store", conditions, cells)


def _cells(directory: Path, body_bytes: int, seconds: float, progress: Progress) -> Iterator[Cell]:
    store = open_store(directory / "store", commit_log_file_bytes=FILE_BYTES)
    try:
        batch = messages(BATCH, body_bytes)
        watch = partial(progress, "put")
        before = store.appended_offset
        yield _repeated("put", partial(_put, store, batch), seconds, body_bytes, watch)
        if store.appended_offset <= before:
            raise BadLoad(f"nothing appended in {seconds} s; choose more seconds")
        store.flush_log()
        store.housekeeper.flush()
        read = partial(_get, store)
        yield _repeated(f"get of {PULLED}", read, seconds, body_bytes, partial(progress, "get"))
        data = store.read_log(0, min(store.appended_offset, SCANNED_BYTES))
        scan = partial(_scan, data, FILE_BYTES)
        yield _repeated("scan with checksums", scan, seconds, body_bytes, partial(progress, "scan"))
    finally:
        store.close()
    for waiters in SYNC_WAITERS:
        name = f"sync flush, {waiters} waiting"
        progress(name, "begin")
        found = sync_rate(directory / str(waiters), waiters, None, seconds, body_bytes)
        progress(name, "end")
        yield make_cell(
            name,
            found.answered,
            found.seconds,
            operation_bytes=body_bytes,
            figures={
                "fsyncs": found.fsyncs,
                "answers_per_fsync": round(found.answered / max(found.fsyncs, 1), 1),
            },
        )


def _repeated(
    name: str, step: Callable[[], int], seconds: float, body_bytes: int, watch: Callable[[str], None]
) -> Cell:
    """Repeat a step that returns the number of messages it handled. Latencies are those of steps."""
    latencies = LatencyHistogram()
    count, series = 0, []
    watch("begin")
    started = now = time.perf_counter()
    tick = started + 1
    while now < started + seconds:
        count += step()
        before, now = now, time.perf_counter()
        latencies.record(round((now - before) * 1e9))
        if now >= tick:
            series.append((round(now - started, 3), count))
            watch(f"tick {now - started:.3f} {count}")
            tick += 1
    watch("end")
    return make_cell(
        name, count, now - started, latencies=latencies, operation_bytes=body_bytes, series=series
    )


def _put(store: MessageStore, batch: list[PutMessage]) -> int:
    append(store, batch)
    if store.appended_offset - store.flushed_offset > UNFLUSHED_MAX_BYTES:
        store.flush_log()
    return len(batch)


def _get(store: MessageStore) -> int:
    return len(store.get(TOPIC, 0, 0, PULLED, may_block=False).records)


def _scan(data: bytes, file_bytes: int) -> int:
    return sum(1 for _ in Scan(data, 0, file_bytes))
