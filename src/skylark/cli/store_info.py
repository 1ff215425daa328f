"""`skylark store info`: what a store directory holds."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from skylark.cli.output import Screen, counted, format_bytes, format_time, print_json
from skylark.store.store_reader import QueueSummary, StoreReader

BLOCK_BYTES = 512
COLUMNS = ("topic", "queue", "min", "max", "messages", "first stored", "last stored")


@dataclass(slots=True)
class DirectorySize:
    """Files below a directory: their lengths, and the blocks they really take."""

    files: int = 0
    bytes: int = 0
    disk_bytes: int = 0

    def __str__(self) -> str:
        files = counted(self.files, "file", "files")
        return f"{files}, {format_bytes(self.bytes)}, {format_bytes(self.disk_bytes)} of them on disk"


def show(reader: StoreReader, *, as_json: bool) -> None:
    """Print everything that opening the directory shows."""
    if as_json:
        print_json(_document(reader))
        return
    screen = Screen()
    screen.facts(_facts(reader))
    screen.line()
    screen.table(COLUMNS, _rows(reader.queues()))
    screen.section("Not supported, and left alone:", map(str, reader.unsupported()))
    screen.section("Problems:", reader.problems, "bold red")


def _facts(reader: StoreReader) -> list[tuple[str, object]]:
    queues = reader.queues()
    log = reader.log
    last = max((queue.last_timestamp for queue in queues if queue.last_timestamp is not None), default=None)
    state = "running, or ended without closing" if reader.is_marked_running else "closed"
    return [
        ("store", reader.path),
        ("state", state),
        ("commit log", size_of(log.files.directory)),
        ("  offsets", f"{log.min_offset} to {log.appended}, files of {format_bytes(log.file_bytes)}"),
        ("  stored", f"{format_time(first_timestamp(reader))} to {format_time(last)}"),
        ("consume queues", size_of(reader.path / "consumequeue")),
        ("  messages", f"{sum(queue.count for queue in queues)} in {len(queues)} queues"),
        ("index", size_of(reader.path / "index")),
        ("everything", size_of(reader.path)),
    ]


def _rows(queues: list[QueueSummary]) -> list[list[object]]:
    return [
        [
            queue.topic,
            queue.queue_id,
            queue.min_offset,
            queue.max_offset,
            queue.count,
            format_time(queue.first_timestamp),
            format_time(queue.last_timestamp),
        ]
        for queue in queues
    ]


def _document(reader: StoreReader) -> dict[str, object]:
    log = reader.log
    topics: dict[str, list[dict[str, object]]] = {}
    for queue in reader.queues():
        members = asdict(queue)
        topics.setdefault(str(members.pop("topic")), []).append(members)
    checkpoint = reader.checkpoint
    return {
        "path": str(reader.path),
        "running": reader.is_marked_running,
        "commit_log": {
            "path": str(log.files.directory),
            **asdict(size_of(log.files.directory)),
            "file_bytes": log.file_bytes,
            "min_offset": log.min_offset,
            "end_offset": log.appended,
            "first_timestamp": first_timestamp(reader),
        },
        "consume_queues": {
            **asdict(size_of(reader.path / "consumequeue")),
            "file_bytes": reader.settings.consume_queue_file_bytes,
        },
        "index": asdict(size_of(reader.path / "index")),
        "checkpoint": asdict(checkpoint) if checkpoint else None,
        "topics": [{"topic": topic, "queues": queues} for topic, queues in topics.items()],
        "unsupported": [asdict(item) for item in reader.unsupported()],
        "problems": reader.problems,
    }


def first_timestamp(reader: StoreReader) -> int | None:
    """Store time of the log's first record."""
    return next((record.store_timestamp for record in reader.records()), None)


def size_of(path: Path) -> DirectorySize:
    """Sum up the files below a directory; those that vanish meanwhile do not count."""
    size = DirectorySize()
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                status = (Path(directory) / name).stat()
            except FileNotFoundError:
                continue
            size.files += 1
            size.bytes += status.st_size
            size.disk_bytes += status.st_blocks * BLOCK_BYTES
    return size
