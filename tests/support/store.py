"""Small builders for tests of the store: settings with tiny files, messages, stores on a simulated disk."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from skylark.clock import Clock
from skylark.model.message import PutMessage, StoredMessage, encode_properties
from skylark.model.record import BATCH_ELEMENT, LENGTH
from skylark.settings import StoreSettings
from skylark.store.append_result import AppendedRecord, PutResult
from skylark.store.disk import Disk
from skylark.store.dispatch import Arrival
from skylark.store.message_store import MessageStore
from tests.support.clock import ManualClock
from tests.support.simulated_disk import SimulatedDisk

ROOT = Path("/store")
NOW_MS = 1_700_000_000_000


def small_settings(path: Path = ROOT, **changes: Any) -> StoreSettings:
    """Files so small that a few dozen messages fill several of each kind; deleting does not pause."""
    settings = StoreSettings(
        path=path,
        commit_log_file_bytes=4096,
        consume_queue_file_bytes=20 * 10,
        index_slots=16,
        index_items=24,
        message_bytes_max=2048,
        delete_pause_ms=0,
    )
    return replace(settings, **changes)


def simulated_disk(clock: Clock | None = None, **options: Any) -> SimulatedDisk:
    """A disk with the store's root already there, as an administrator makes it."""
    disk = SimulatedDisk(clock=clock, **options)
    disk.make_directory(ROOT)
    return disk


def message(
    topic: str = "T", queue_id: int = 0, body: bytes = b"body", properties: bytes | None = None, **fields: Any
) -> PutMessage:
    """A message; `tags`, `keys` and `unique_key` become properties."""
    names = {"tags": "TAGS", "keys": "KEYS", "unique_key": "UNIQ_KEY", "delay": "DELAY"}
    named = {name: fields.pop(field) for field, name in names.items() if field in fields}
    return PutMessage(topic, queue_id, body, encode_properties(named) + (properties or b""), **fields)


def sized(size: int, topic: str = "T", queue_id: int = 0, fill: bytes = b"x") -> PutMessage:
    """A message whose record has exactly this size."""
    overhead = 91 + len(topic.encode())
    assert size >= overhead
    return PutMessage(topic, queue_id, (fill * size)[: size - overhead])


def placed(result: PutResult) -> AppendedRecord:
    assert isinstance(result, AppendedRecord), result
    return result


def put_all(store: MessageStore, messages: Sequence[PutMessage]) -> list[AppendedRecord]:
    """Append one by one; all must be taken."""
    return [placed(store.append([each])[0]) for each in messages]


@contextmanager
def opened(
    settings: StoreSettings | None = None,
    disk: Disk | None = None,
    clock: Clock | None = None,
    *,
    on_arrival: Arrival | None = None,
) -> Iterator[MessageStore]:
    """An open store without threads, closed at the end; on a simulated disk unless one is given."""
    clock = clock or ManualClock()
    store = MessageStore(
        settings or small_settings(), disk=disk or simulated_disk(clock), clock=clock, on_arrival=on_arrival
    )
    store.open()
    try:
        yield store
    finally:
        store.close()


def read_queue(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    """Every readable message of a queue, in order."""
    messages: list[StoredMessage] = []
    at, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    while at < end:
        result = store.get(topic, queue_id, at, 32)
        assert result.next_offset > at, f"no way past {at}: {result.status}"
        messages += result.messages()
        at = result.next_offset
    return messages


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [each.body for each in read_queue(store, topic, queue_id)]


# Directories that Apache RocketMQ wrote


def unpack_golden(golden: Path, name: str, into: Path) -> Path:
    """The store root of one of the archives, unpacked."""
    with tarfile.open(golden / "store" / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    return into / "store"


def golden_settings(golden: Path, root: Path, **changes: Any) -> StoreSettings:
    """The settings of the broker that wrote the archives, as far as they lay out files."""
    lines = (golden / "store" / "broker.conf").read_text().splitlines()
    conf = dict(line.split("=", 1) for line in lines if "=" in line)
    settings = StoreSettings(
        path=root,
        commit_log_file_bytes=int(conf["mappedFileSizeCommitLog"]),
        consume_queue_file_bytes=int(conf["mappedFileSizeConsumeQueue"]),
        index_slots=int(conf["maxHashSlotNum"]),
        index_items=int(conf["maxIndexNum"]),
    )
    return replace(settings, **changes)


def golden_topics(golden: Path, name: str) -> dict[str, Any]:
    """Topic -> queue id -> what the real broker said about it."""
    with gzip.open(golden / "store" / f"{name}.expected.json.gz") as file:
        topics: dict[str, Any] = json.load(file)["topics"]
    return topics


def encoded_batch(bodies: Sequence[bytes], properties: bytes = b"") -> bytes:
    """Messages as the body of a batch."""
    return b"".join(
        BATCH_ELEMENT.pack(BATCH_ELEMENT.size + len(body) + LENGTH.size + len(properties), 0, 0, 0, len(body))
        + body
        + LENGTH.pack(len(properties))
        + properties
        for body in bodies
    )
