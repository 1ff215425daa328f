"""The store against the bare work it cannot avoid, measured beside it in the same run.

python -m benchmarks.store                 all cells
python -m benchmarks.store put get         some of them
python -m benchmarks.store --gib 1         the large cells with 1 GiB instead of 10 and 20
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from zlib_ng.zlib_ng import crc32

from benchmarks._common import ratio, report, side_by_side
from skylark.bench.load import LoadFailed
from skylark.bench.machine import anonymous_bytes, free_bytes, scratch
from skylark.bench.store import (
    BATCH,
    HOST,
    PROPERTIES,
    TOPIC,
    append,
    fill,
    messages,
    open_store,
    sync_rate,
)
from skylark.model.message import PutMessage, encode_properties
from skylark.model.record import CRC_MASK, HEAD, LENGTH, MAGIC_V1, BatchColumns, BatchElement, Scan
from skylark.store.disk import Disk
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import ENTRY

CLIENT_BATCH = 32
QUEUES = 4
BODY_BYTES = (128, 1024)
PUTS, PUT_ROUNDS = 200, 15
TOPIC_PART = bytes((len(TOPIC),)) + TOPIC.encode()
BATCH_PROPERTIES = encode_properties(
    {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
)


class Bare:
    """Pack the record, CRC, one pwritev, pack the 20-byte entry: nothing else."""

    def __init__(self, path: Path, file_bytes: int = 1 << 30) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self._descriptor, file_bytes)
        os.posix_fallocate(self._descriptor, 0, file_bytes // 2)
        self._file_bytes = file_bytes
        self._position = 0
        self.entries = bytearray()

    def put(self, batch: list[PutMessage], shared: bytes = b"") -> None:
        pack, pack_unit, pack_length = HEAD.pack, ENTRY.pack, LENGTH.pack
        start = position = self._position
        parts: list[bytes | memoryview] = []
        entries = self.entries
        for message in batch:
            body, properties = message.body, message.properties + shared
            tail = TOPIC_PART + pack_length(len(properties)) + properties
            size = HEAD.size + len(body) + len(tail)
            head = pack(size, MAGIC_V1, crc32(body) & CRC_MASK, message.queue_id, 0, 7, position, 0, 1, HOST,
                        2, HOST, 0, 0, len(body))  # fmt: skip
            parts += (head, body, tail)
            entries += pack_unit(position, size, 2598919)
            position += size
        os.pwritev(self._descriptor, parts, start)
        self._position = position if position < self._file_bytes - (1 << 20) else 0
        if len(entries) > 1 << 20:
            entries.clear()

    def close(self) -> None:
        os.close(self._descriptor)


def against_bare(
    store: MessageStore,
    ours: Callable[[], object],
    alone: Callable[[], object],
    messages_each: int,
    expected_at_most: float,
) -> dict[str, Any]:
    def repeated(put: Callable[[], object]) -> Callable[[], int]:
        def run() -> int:
            for _ in range(PUTS):
                put()
            return PUTS * messages_each

        return run

    result: dict[str, Any] = dict(
        side_by_side({"store": repeated(ours), "bare": repeated(alone)}, PUT_ROUNDS)
    )
    stored = sum(store.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES))
    if stored != PUT_ROUNDS * PUTS * messages_each:  # refusing is quick
        raise LoadFailed(f"{stored} messages are stored instead of {PUT_ROUNDS * PUTS * messages_each}")
    return result | {"ratio": ratio(result, "store", "bare"), "expected_at_most": expected_at_most}


def put_cell(_: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for body_bytes in BODY_BYTES:
        with scratch() as path:
            store, bare = open_store(path / "store"), Bare(path / "bare")
            batch = messages(BATCH, body_bytes, QUEUES)
            put, put_bare = partial(store.append, batch), partial(bare.put, batch)
            results[f"{body_bytes}B"] = against_bare(store, put, put_bare, BATCH, 2.0)
            store.close()
            bare.close()
    return results


def put_batch_cell(_: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for body_bytes in BODY_BYTES:
        with scratch() as path:
            store, bare = open_store(path / "store"), Bare(path / "bare")
            envelope = PutMessage(TOPIC, 0, b"", BATCH_PROPERTIES, born_timestamp=1, born_host=HOST)
            elements = [BatchElement(0, os.urandom(body_bytes), PROPERTIES) for _ in range(CLIENT_BATCH)]
            batch = [PutMessage(TOPIC, 0, element.body, PROPERTIES) for element in elements]
            put = partial(store.append_batches, [(envelope, BatchColumns.of(elements))])
            put_bare = partial(bare.put, batch, BATCH_PROPERTIES)
            results[f"{body_bytes}B"] = against_bare(store, put, put_bare, CLIENT_BATCH, 1.3)
            store.close()
            bare.close()
    return results


def get_cell(_arguments: argparse.Namespace) -> dict[str, Any]:
    count, rounds = 32, 2000
    with scratch() as path:
        store = open_store(path / "store")
        for _ in range(50):
            append(store, messages(BATCH, 1024, queues=1))
        store.housekeeper.flush()
        view = store.log.select(0, store.appended_offset)
        units = store.queue(TOPIC, 0).entries(0, count)
        assert view is not None

        def ours() -> int:
            for _ in range(rounds):
                store.get(TOPIC, 0, 64, count, may_block=False)
            return rounds

        def by_hand() -> int:
            for _ in range(rounds):
                [view[at : at + size] for at, size, _ in ENTRY.iter_unpack(units)]
            return rounds

        result: dict[str, Any] = dict(side_by_side({"store": ours, "by_hand": by_hand}))
        store.close()
    return result | {"ratio": ratio(result, "store", "by_hand"), "expected_at_most": 3.0, "messages": count}


def scan_cell(_: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for body_bytes in (128, 1024, 16384):
        with scratch() as path:
            store = open_store(path / "store", commit_log_file_bytes=64 << 20)
            while store.appended_offset < 32 << 20:
                append(store, messages(BATCH, body_bytes))
            data = store.read_log(0, store.appended_offset)
            store.close()

        def ours(data: bytes = data) -> int:
            return sum(1 for _ in Scan(data, 0, 64 << 20))

        def bare(data: bytes = data) -> int:
            view, position, count = memoryview(data), 0, 0
            while position < len(data):
                fields = HEAD.unpack_from(data, position)
                body = position + HEAD.size
                zlib.crc32(view[body : body + fields[14]])
                position += fields[0]
                count += 1
            return count

        result: dict[str, Any] = dict(side_by_side({"scan": ours, "bare": bare}))
        result["speed_of_bare"] = round(1 / ratio(result, "scan", "bare"), 2)
        results[f"{body_bytes}B"] = result | {"expected_at_least": 0.6}
    return results


def start_cell(arguments: argparse.Namespace) -> dict[str, Any]:
    with scratch() as path:
        wanted = arguments.gib or 10
        gib = min(wanted, free_bytes(path) // (2 << 30))
        store = open_store(path)
        fill(store, gib << 30)
        store.close()
        before = anonymous_bytes()
        started = time.perf_counter()
        store = open_store(path)
        seconds = time.perf_counter() - started
        grown = anonymous_bytes() - before
        append(store, messages(1, 128))
        store.close()
    return {
        "gib": gib, "shrunk": gib < wanted, "seconds": round(seconds, 3), "expected_below_s": 2.0,
        "anonymous_growth_mib": round(grown / (1 << 20), 1), "expected_below_mib": 100,
    }  # fmt: skip


def sync_flush_cell(_: argparse.Namespace) -> dict[str, Any]:
    from tests.support.simulated_disk import SimulatedDisk  # noqa: PLC0415 - only this cell needs it

    with scratch() as path:
        real = {waiters: synced(path / str(waiters), waiters, None) for waiters in (1, 64)}
    slow = {}
    for waiters in (1, 64):
        disk = SimulatedDisk()
        disk.sync_latency_s = 0.001
        slow[waiters] = synced(Path("/simulated"), waiters, disk)
    return {
        "real_disk": real,
        "one_ms_disk": slow,
        "acknowledgements_per_fsync": round(real[64]["acknowledgements_per_fsync"], 1),
        "expected_acknowledgements_per_fsync": 16,
        "gain_of_64_waiters": round(slow[64]["per_second"] / slow[1]["per_second"], 1),
        "expected_gain": 20,
    }


def synced(path: Path, waiters: int, disk: Disk | None) -> dict[str, float]:
    found = sync_rate(path, waiters, disk)
    return {
        "per_second": round(found.answered / found.seconds),
        "fsyncs": found.fsyncs,
        "acknowledgements_per_fsync": found.answered / max(found.fsyncs, 1),
    }


def put_spread(store: MessageStore, spread: list[PutMessage]) -> int:
    for number in range(PUTS):
        start = number * BATCH % (len(spread) - BATCH)
        append(store, spread[start : start + BATCH])
    return PUTS * BATCH


def flat_cell(arguments: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with scratch() as path:
        stores = {queues: open_store(path / str(queues)) for queues in (1, 100, 10_000)}
        cells = {}
        for queues, store in stores.items():
            spread = messages(10_000, 128, queues)
            append(store, spread)
            store.start()
            cells[f"queues_{queues}"] = partial(put_spread, store, spread)
        measured = side_by_side(cells, 21)
        results |= measured
        results["growth_1_to_10000_queues"] = ratio(measured, "queues_10000", "queues_1")
        for store in stores.values():
            store.close()
        results |= long_log(path, arguments)
    return results | {"expected_growth_at_most": 1.2}


def long_log(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    wanted = arguments.gib or 20
    gib = min(wanted, free_bytes(path) // (2 << 30))
    empty, full = open_store(path / "empty"), open_store(path / "full")
    fill(full, gib << 30)
    full.flush_log()
    batch = messages(2 * BATCH, 1024)
    cells = {"log_empty": partial(put_spread, empty, batch), "log_full": partial(put_spread, full, batch)}
    measured = side_by_side(cells, 21)
    empty.close()
    full.close()
    return measured | {
        "log_gib": gib, "log_shrunk": gib < wanted,
        "growth_empty_to_full_log": ratio(measured, "log_full", "log_empty"),
    }  # fmt: skip


CELLS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "put": put_cell,
    "put_batch": put_batch_cell,
    "get": get_cell,
    "scan": scan_cell,
    "sync_flush": sync_flush_cell,
    "flat": flat_cell,
    "start": start_cell,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"of {', '.join(CELLS)}; all by default")
    parser.add_argument("--gib", type=int, default=0, help="size of the large cells")
    arguments = parser.parse_args()
    unknown = set(arguments.cells) - CELLS.keys()
    if unknown:
        parser.error(f"unknown cells {', '.join(sorted(unknown))}; there are {', '.join(CELLS)}")
    results = {}
    for name in arguments.cells or CELLS:
        print(f"running {name}", file=sys.stderr)
        results[name] = CELLS[name](arguments)
    report("store", results)


if __name__ == "__main__":
    main()
