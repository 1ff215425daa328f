"""`skylark store`: inspect, verify, dump, export or back up a store directory, without a broker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from skylark.cli.errors import UsageError
from skylark.cli.options import AsJson, grouped, parsed, tabular
from skylark.cli.output import Screen, When, counted, format_bytes, format_time, print_json
from skylark.cli.server_process import raise_descriptor_limit
from skylark.errors import BadStoreFile, CorruptRecord, OffsetOutOfRange
from skylark.quantities import TIME_HELP, parse_time_ms

if TYPE_CHECKING:
    from skylark.model.message import StoredMessage
    from skylark.store.backup import BackupReport
    from skylark.store.store_reader import QueueSummary, StoreReader
    from skylark.store.verification import Verification

app = typer.Typer(
    no_args_is_help=True,
    help="Inspect, verify, dump, export or back up a store directory, ours or Apache's. Nothing in it is"
    " changed, and a broker may be writing to it.",
)


class ExportFormat(StrEnum):
    """How exported bodies are laid out."""

    FILES = "files"
    LINES = "lines"
    JSON = "json"


BLOCK_BYTES = 512
KEY_MATCHES_MAX = 1 << 31
TIME_MS_END = 1 << 62
NAMES_SHOWN = 5
QUEUE_COLUMNS = ("topic", "queue", "min", "max", "messages", "first stored", "last stored")
ROWS_AT_A_TIME = 50

Unreadable = Callable[[str], None]
Sink = Callable[["StoredMessage", bytes], int]

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The store: the directory with commitlog and consumequeue.")
]
CommitLog = Annotated[
    Path | None,
    typer.Option("--commit-log", metavar="DIR", help="The commit log, if it is not DIR/commitlog."),
]


@dataclass(frozen=True)
class StoreLocation:
    """Where a store is, and the geometry of its index files."""

    directory: Directory
    commit_log: CommitLog = None
    slots: Annotated[
        int | None,
        typer.Option("--index-slots", help="Slots of an index file (maxHashSlotNum), if they are not found."),
    ] = None
    items: Annotated[
        int | None,
        typer.Option("--index-items", help="Items of an index file (maxIndexNum), if they are not found."),
    ] = None


@dataclass(frozen=True)
class SelectionOptions:
    """Which messages, as typed."""

    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None
    queue: Annotated[
        int | None, typer.Option("--queue", "-q", min=0, help="Only this queue of the topic.")
    ] = None
    from_offset: Annotated[int | None, typer.Option("--from-offset", min=0, help="First queue offset.")] = (
        None
    )
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="Queue offset to stop before.")
    ] = None
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help=f"Stored at or after: {TIME_HELP}.")
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help=f"Stored at or before: {TIME_HELP}.")
    ] = None
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", help="Only messages with this key or unique key, by the index."),
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="At most this many messages.")] = (
        None
    )

    def selection(self) -> Selection:
        """Raises UsageError for options that contradict each other."""
        since_ms = parsed(parse_time_ms, self.since, "--since") if self.since else None
        until_ms = parsed(parse_time_ms, self.until, "--until") if self.until else None
        has_offsets = self.from_offset is not None or self.to_offset is not None
        if self.topic is None and (self.queue is not None or self.key is not None):
            raise UsageError(f"{'--key' if self.key is not None else '--queue'} needs --topic")
        if self.topic is None and has_offsets:
            raise UsageError("--from-offset and --to-offset are offsets in a queue: they need --topic")
        if self.from_offset is not None and self.to_offset is not None and self.from_offset >= self.to_offset:
            raise UsageError(f"--from-offset {self.from_offset} is not below --to-offset {self.to_offset}")
        if since_ms is not None and until_ms is not None and since_ms > until_ms:
            raise UsageError(f"--since {self.since} is later than --until {self.until}")
        return Selection(
            self.topic, self.queue, self.from_offset, self.to_offset, since_ms, until_ms, self.key, self.limit
        )


# --- Commands ---


@app.command()
@tabular
@grouped
def info(place: StoreLocation, as_json: AsJson = False) -> None:
    """Print sizes, topics, queues with their offsets and times, and unsupported files.

    Example: skylark store info ~/store
    """
    reader = open_reader(place)
    if as_json:
        print_json(_info_document(reader))
        return
    screen = Screen()
    screen.facts(_info_facts(reader))
    screen.line()
    screen.table(QUEUE_COLUMNS, _queue_rows(reader.queues()))
    screen.section("Not supported, and left alone:", map(str, reader.unsupported()))
    screen.section("Problems:", reader.problems, "bold red")


@app.command()
@tabular
@grouped
def verify(
    place: StoreLocation,
    delay_levels: Annotated[
        str | None,
        typer.Option("--delay-levels", help="The broker's messageDelayLevel, if it is not the usual one."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every record, consume queue and index item. Exit code 1 if anything is wrong.

    Example: skylark store verify ~/store && echo good
    """
    from skylark.store.verification import verify as verify_store  # noqa: PLC0415

    screen, reader = Screen(), open_reader(place, delay_levels)
    with screen.progress("verifying", in_bytes=True) as (progress, task):
        result = verify_store(
            reader, progress=lambda done, total: progress.update(task, completed=done, total=total)
        )
    if as_json:
        print_json(_verification_document(reader, result))
    else:
        _print_verification(screen, reader, result)
    if not result.is_clean:
        raise typer.Exit(1)


@app.command()
@tabular
@grouped
def dump(wanted: SelectionOptions, place: StoreLocation, as_json: AsJson = False) -> None:
    """Print messages: all records in log order, or those of a topic, queue, time or key.

    Exit code 1 if some messages cannot be read, or none has the key. The JSON is that of `skylark tail`.

    Examples: skylark store dump ~/store --limit 20

    skylark store dump ~/store -t orders -q 0 --from-offset 100 --json

    skylark store dump ~/store -t orders --key order-1001
    """
    selection = wanted.selection()
    if not print_messages(open_reader(place), selection, as_json=as_json):
        raise typer.Exit(1)


@app.command()
@grouped
def export(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PATH", help="File or directory to create.")],
    layout: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            help="files: one file per body, PATH/topic/queue/offset; lines: one file, one line per body;"
            " json: one file, one JSON line per message.",
        ),
    ] = ExportFormat.FILES,
    decompress: Annotated[bool, typer.Option("--decompress", "-d", help="Decompress bodies.")] = False,
    wanted: SelectionOptions,
    place: StoreLocation,
) -> None:
    """Write message bodies to files. Exit code 1 if some messages cannot be read.

    Examples: skylark store export ~/store -t orders -o bodies

    skylark store export ~/store -t orders --format json -d -o orders.jsonl
    """
    selection = wanted.selection()
    if not export_messages(open_reader(place), selection, out, layout, decompress=decompress):
        raise typer.Exit(1)


@app.command()
def backup(
    directory: Directory,
    target: Annotated[
        Path, typer.Argument(metavar="TO", help="A new directory, or one that holds a backup of DIR.")
    ],
    link: Annotated[
        bool,
        typer.Option("--link", help="Hard-link full files of the log; needs the same file system."),
    ] = False,
    commit_log: CommitLog = None,
    as_json: AsJson = False,
) -> None:
    """Copy a store, running or not, so that a broker can start on the copy. Repeated, it copies what is new.

    The copy has every message that was acknowledged before the backup began.

    Example: skylark store backup ~/store /backups/store && skylark store verify /backups/store
    """
    from skylark.store.backup import back_up  # noqa: PLC0415

    raise_descriptor_limit()
    refuse_several(directory)
    screen, started = Screen(), time.monotonic()
    with screen.progress("copying", in_bytes=True) as (progress, task):
        report = back_up(
            directory,
            target,
            commit_log_path=commit_log,
            link=link,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if as_json:
        print_json({"source": str(directory), "target": str(target), **asdict(report)})
    else:
        _print_backup(screen, target, report, time.monotonic() - started)


def open_reader(place: StoreLocation, delay_levels: str | None = None) -> StoreReader:
    """Raises UsageError, MissingFile, BadStoreFile, SettingsError, OSError."""
    from skylark.settings import DELAY_LEVELS  # noqa: PLC0415  --help must not wait for it
    from skylark.store.store_reader import StoreReader  # noqa: PLC0415

    raise_descriptor_limit()
    refuse_several(place.directory)
    return StoreReader(
        place.directory,
        commit_log_path=place.commit_log,
        index_slots=place.slots,
        index_items=place.items,
        delay_levels=delay_levels or DELAY_LEVELS,
    )


def refuse_several(directory: Path) -> None:
    """`serve --brokers N` has one store per broker. Raises UsageError for the directory above them."""
    inside = sorted(path.parent.name for path in directory.glob("*/commitlog"))
    if inside and not (directory / "commitlog").exists():
        names = ", ".join(str(directory / name) for name in inside)
        raise UsageError(f"{directory} is not a store, but holds {len(inside)}; choose one of {names}")


# --- Selection ---


@dataclass(frozen=True, slots=True)
class Selection:
    """Filters; None means all. Times are milliseconds, both ends included; `to_offset` is excluded."""

    topic: str | None = None
    queue_id: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    key: str | None = None
    limit: int | None = None

    def messages(
        self, reader: StoreReader, unreadable: Unreadable, *, by_queue: bool = False
    ) -> Iterator[StoredMessage]:
        """The messages: by key, queue by queue, or without a topic in log order unless `by_queue`.

        Calls `unreadable` with a sentence for each message that cannot be read. Raises UsageError, when
        called, for topics, queues and offsets that are not in the store.
        """
        found: Iterator[StoredMessage]
        if self.topic is None and not by_queue:
            found = self._from_log(reader, unreadable)
        elif self.key is not None and self.topic is not None:
            found = self._by_key(reader, self.topic, self.key)
        else:
            ranges = self.ranges(reader)
            found = (
                message
                for low, high, queue in ranges
                for message in reader.messages(
                    queue.topic, queue.queue_id, low, high, on_corrupt=lambda error: unreadable(str(error))
                )
            )
        return islice(found, self.limit)

    def ranges(self, reader: StoreReader) -> list[tuple[int, int, QueueSummary]]:
        """The selected queues, each with its first offset and its end, excluded. Raises UsageError."""
        chosen = []
        for queue in self._queues(reader):
            low = max(queue.min_offset, self.from_offset or 0)
            high = queue.max_offset if self.to_offset is None else min(self.to_offset, queue.max_offset)
            if self.since_ms is not None:
                low = max(low, reader.offset_by_time(queue.topic, queue.queue_id, self.since_ms) or 0)
            if self.until_ms is not None:
                high = min(high, reader.offset_by_time(queue.topic, queue.queue_id, self.until_ms + 1) or 0)
            if low < high:
                chosen.append((low, high, queue))
        return chosen

    def _queues(self, reader: StoreReader) -> list[QueueSummary]:
        if self.topic is None:
            return reader.queues()
        queues = reader.queues(self.topic)
        if not queues:
            raise UsageError(f"topic {self.topic} is not in the store; it has {_names(reader.topics())}")
        if self.queue_id is None:
            return queues
        queue = next((queue for queue in queues if queue.queue_id == self.queue_id), None)
        if queue is None:
            numbers = _names([str(queue.queue_id) for queue in queues])
            raise UsageError(f"topic {self.topic} has no queue {self.queue_id}; its queues are {numbers}")
        self._check_offsets(queue)
        return [queue]

    def _check_offsets(self, queue: QueueSummary) -> None:
        name = f"queue {queue.topic}/{queue.queue_id}"
        if not queue.count:
            raise UsageError(f"{name} is empty")
        held = f"{name} holds offsets {queue.min_offset} to {queue.max_offset - 1}"
        if self.from_offset is not None and self.from_offset >= queue.max_offset:
            raise UsageError(f"{held}: nothing from {self.from_offset} on")
        if self.to_offset is not None and self.to_offset <= queue.min_offset:
            raise UsageError(f"{held}: nothing before {self.to_offset}")

    def _by_key(self, reader: StoreReader, topic: str, key: str) -> Iterator[StoredMessage]:
        self._queues(reader)
        try:
            found = reader.by_key(
                topic,
                key,
                maximum=KEY_MATCHES_MAX,
                begin_ms=self.since_ms or 0,
                end_ms=self.until_ms if self.until_ms is not None else TIME_MS_END,
            )
        except BadStoreFile as error:
            raise UsageError(f"{error}; give its geometry with --index-slots and --index-items") from error
        return filter(self._takes, found)

    def _from_log(self, reader: StoreReader, unreadable: Unreadable) -> Iterator[StoredMessage]:
        for record in reader.records(on_damage=lambda damage: unreadable(str(damage))):
            if self._is_in_time(record.store_timestamp):
                try:
                    yield reader.message_at(record.physical_offset)
                except OffsetOutOfRange:
                    continue  # deleted since it was scanned
                except CorruptRecord as error:
                    unreadable(str(error))

    def _takes(self, message: StoredMessage) -> bool:
        in_queue = self.queue_id is None or message.queue_id == self.queue_id
        from_here = self.from_offset is None or message.queue_offset >= self.from_offset
        to_here = self.to_offset is None or message.queue_offset < self.to_offset
        return in_queue and from_here and to_here and self._is_in_time(message.store_timestamp)

    def _is_in_time(self, timestamp: int) -> bool:
        is_late = self.since_ms is None or timestamp >= self.since_ms
        return is_late and (self.until_ms is None or timestamp <= self.until_ms)


def _names(all_names: list[str]) -> str:
    if not all_names:
        return "none"
    shown = ", ".join(all_names[:NAMES_SHOWN])
    more = len(all_names) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


# --- info ---


@dataclass(slots=True)
class DirectorySize:
    """Files below a directory: their lengths, and the blocks that they occupy."""

    files: int = 0
    bytes: int = 0
    disk_bytes: int = 0

    def __str__(self) -> str:
        files = counted(self.files, "file", "files")
        return f"{files}, {format_bytes(self.bytes)}, {format_bytes(self.disk_bytes)} of them on disk"


def size_of(path: Path) -> DirectorySize:
    """Sum up the files below a directory; files that vanish meanwhile do not count."""
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


def _info_facts(reader: StoreReader) -> list[tuple[str, object]]:
    queues = reader.queues()
    log = reader.log
    last = max((queue.last_timestamp for queue in queues if queue.last_timestamp is not None), default=None)
    state = "running, or not closed properly" if reader.is_marked_running else "closed"
    return [
        ("store", reader.path),
        ("state", state),
        ("commit log", size_of(log.files.directory)),
        ("  offsets", f"{log.min_offset} to {log.appended}, files of {format_bytes(log.file_bytes)}"),
        ("  stored", f"{format_time(_first_timestamp(reader))} to {format_time(last)}"),
        ("consume queues", size_of(reader.path / "consumequeue")),
        ("batch queues", size_of(reader.path / "batchconsumequeue")),
        ("  messages", f"{sum(queue.count for queue in queues)} in {len(queues)} queues"),
        ("index", size_of(reader.path / "index")),
        ("everything", size_of(reader.path)),
    ]


def _queue_rows(queues: list[QueueSummary]) -> list[list[object]]:
    return [
        [
            queue.topic,
            queue.queue_id,
            queue.min_offset,
            queue.max_offset,
            queue.count,
            When(queue.first_timestamp),
            When(queue.last_timestamp),
        ]
        for queue in queues
    ]


def _info_document(reader: StoreReader) -> dict[str, object]:
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
            "first_timestamp": _first_timestamp(reader),
        },
        "consume_queues": {
            **asdict(size_of(reader.path / "consumequeue")),
            "file_bytes": reader.settings.consume_queue_file_bytes,
        },
        "batch_consume_queues": {
            **asdict(size_of(reader.path / "batchconsumequeue")),
            "file_bytes": reader.settings.batch_consume_queue_file_bytes,
        },
        "index": asdict(size_of(reader.path / "index")),
        "checkpoint": asdict(checkpoint) if checkpoint else None,
        "topics": [{"topic": topic, "queues": queues} for topic, queues in topics.items()],
        "unsupported": [asdict(item) for item in reader.unsupported()],
        "problems": reader.problems,
    }


def _first_timestamp(reader: StoreReader) -> int | None:
    return next((record.store_timestamp for record in reader.records()), None)


# --- verify ---


def _verification_document(reader: StoreReader, result: Verification) -> dict[str, object]:
    return {
        "path": str(reader.path),
        "sound": result.is_clean,
        "counts": asdict(result.counts),
        "findings_total": result.total,
        "findings_by_kind": {kind.value: count for kind, count in result.by_kind.items()},
        "findings": [
            {
                "kind": finding.kind.value,
                "file": str(finding.path),
                "offset": finding.position,
                "reason": finding.reason,
            }
            for finding in result.findings
        ],
        "notes": result.notes,
        "unsupported": [asdict(item) for item in reader.unsupported()],
    }


def _print_verification(screen: Screen, reader: StoreReader, result: Verification) -> None:
    counts = result.counts
    if result.findings:
        rows = [
            [finding.kind.value, finding.path.relative_to(reader.path), finding.position, finding.reason]
            if finding.path.is_relative_to(reader.path)
            else [finding.kind.value, finding.path, finding.position, finding.reason]
            for finding in result.findings
        ]
        screen.table(["what", "file", "byte", "reason"], rows, long=["reason"])
        if result.total > len(result.findings):
            screen.line(f"and {result.total - len(result.findings)} more")
    looked_at = (
        f"{counted(counts.records, 'record', 'records')} in {counted(counts.log_files, 'file', 'files')}",
        f"{counted(counts.units, 'unit', 'units')} in {counted(counts.queues, 'queue', 'queues')}",
        f"{counted(counts.index_items, 'index item', 'index items')} in"
        f" {counted(counts.index_files, 'file', 'files')}",
        counted(counts.config_files, "configuration file", "configuration files"),
    )
    screen.line(f"Verified {format_bytes(counts.log_bytes)}: {', '.join(looked_at)}.")
    notes = [
        counted(number, *forms)
        for number, forms in (
            (counts.waiting, ("record is not yet in its queue", "records are not yet in their queues")),
            (
                counts.unindexed,
                ("record is outside the index's range", "records are outside the index's range"),
            ),
            (counts.left_over, ("record is of a deleted topic", "records are of deleted topics")),
            (counts.blank_units, ("queue offset has no message", "queue offsets have no message")),
        )
        if number
    ]
    screen.section("Notes:", [*notes, *result.notes])
    screen.section("Not supported, and not verified:", map(str, reader.unsupported()))
    screen.line()
    if result.is_clean:
        screen.line("The store is sound.", "bold green")
    else:
        kinds = ", ".join(f"{count} {kind.value}" for kind, count in result.by_kind.most_common())
        screen.line(f"{counted(result.total, 'finding', 'findings')}: {kinds}.", "bold red")


# --- dump ---


def print_messages(reader: StoreReader, selection: Selection, *, as_json: bool) -> bool:
    """Print messages as they are read; return whether all could be read, and any has the key."""
    from skylark.admin.message_json import document  # noqa: PLC0415
    from skylark.cli.message_text import STORED_COLUMNS, stored_row  # noqa: PLC0415

    screen = Screen()
    found = unreadable = 0

    def report(sentence: str) -> None:
        nonlocal unreadable
        unreadable += 1
        screen.warn(sentence)

    def counting(messages: Iterable[StoredMessage]) -> Iterator[StoredMessage]:
        nonlocal found
        for message in messages:
            found += 1
            yield message

    messages = counting(selection.messages(reader, report))
    if as_json:
        for message in messages:
            print_json(document(message))
    elif screen.out.is_terminal:
        _print_table(screen, STORED_COLUMNS, map(stored_row, messages))
    else:
        screen.cells(STORED_COLUMNS)
        for message in messages:
            screen.cells(stored_row(message))
    return not unreadable and (bool(found) or selection.key is None)


def _print_table(screen: Screen, columns: Sequence[str], cells: Iterable[Sequence[object]]) -> None:
    """Print a table in parts of ROWS_AT_A_TIME, so that the first rows appear at once.

    The heading is repeated when the widths of columns change.
    """
    from rich.console import Group  # noqa: PLC0415

    from skylark.cli.message_text import LONG_COLUMNS  # noqa: PLC0415

    rest, heading = iter(cells), None
    while (rows := list(islice(rest, ROWS_AT_A_TIME))) or heading is None:
        part = screen.layout(columns, rows, long=LONG_COLUMNS)
        screen.out.print(Group(*(() if part.heading == heading else part.heading), *part.rows))
        heading = part.heading


# --- export ---


def export_messages(
    reader: StoreReader, selection: Selection, out: Path, layout: ExportFormat, *, decompress: bool
) -> bool:
    """Write bodies to `out`; return whether all messages could be read. Raises UsageError, OSError."""
    from skylark.admin.message_json import body_of  # noqa: PLC0415

    _check_target(reader, out)
    screen = Screen()
    written = written_bytes = unreadable = 0

    def report(sentence: str) -> None:
        nonlocal unreadable
        unreadable += 1
        screen.warn(sentence)

    messages = selection.messages(reader, report, by_queue=True)
    with (
        _sink(out, layout, decompress) as put,
        screen.progress("exporting", in_bytes=False) as (progress, task),
    ):
        progress.update(task, total=_total(selection, reader))
        for message in messages:
            try:
                written_bytes += put(message, body_of(message, decompress=decompress))
                written += 1
            except ValueError as error:  # an invalid body or topic
                report(f"{message.topic}/{message.queue_id} at queue offset {message.queue_offset}: {error}")
            progress.advance(task)
    unread = f"; {unreadable} could not be read" if unreadable else ""
    screen.line(f"{written} messages, {format_bytes(written_bytes)}, written to {out}{unread}.")
    return not unreadable


def _check_target(reader: StoreReader, out: Path) -> None:
    """Raise UsageError if writing to `out` would change the store or an existing file."""
    resolved = out.resolve()
    for directory in (reader.path, reader.log.files.directory):
        if resolved.is_relative_to(directory.resolve()):
            raise UsageError(f"--out {out} is inside the store, which is never changed; choose another place")
    if out.exists():
        raise UsageError(f"--out {out} exists already; choose a new name")
    if not resolved.parent.is_dir():
        raise UsageError(f"--out {out}: no directory {resolved.parent}; create it first")


def _total(selection: Selection, reader: StoreReader) -> int | None:
    if selection.key is not None:
        return None
    total = sum(high - low for low, high, _ in selection.ranges(reader))
    return total if selection.limit is None else min(total, selection.limit)


@contextmanager
def _sink(out: Path, layout: ExportFormat, decompress: bool) -> Iterator[Sink]:
    from skylark.admin.message_json import document  # noqa: PLC0415

    if layout is ExportFormat.FILES:
        out.mkdir()
        yield lambda message, body: _write_file(out, message, body)
        return
    # The final name appears when the file is complete.
    part = out.with_name(out.name + ".part")
    file = part.open("xb")  # fails if it exists: it may be another export's
    try:
        with file:
            if layout is ExportFormat.LINES:
                yield lambda message, body: file.write(body + b"\n")
            else:
                yield lambda message, body: file.write(
                    msgspec.json.encode(document(message, decompress=decompress)) + b"\n"
                )
        part.replace(out)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _write_file(out: Path, message: StoredMessage, body: bytes) -> int:
    from skylark.store.consume_queue import check_topic  # noqa: PLC0415

    check_topic(message.topic)
    path = out / message.topic / str(message.queue_id) / f"{message.queue_offset:020d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_bytes(body)


# --- backup ---


def _print_backup(screen: Screen, target: Path, report: BackupReport, seconds: float) -> None:
    linked = f", {counted(report.linked_files, 'file', 'files')} linked" if report.linked_files else ""
    screen.line(
        f"{target} holds everything up to physical offset {report.end_physical_offset}:"
        f" {format_bytes(report.copied_bytes)} copied{linked} in {seconds:.1f} s."
    )
    if report.is_running:
        screen.line("The store is running, or was not closed: a broker that starts on the copy recovers it.")
    screen.section("Not supported, and not copied from a running store:", map(str, report.left_out))
    screen.line()
    screen.line(f"Check it: skylark store verify {target}")
    screen.line("Use it:   copy it to the new place, and start a broker there with --data")
