"""`skylark store export`: message bodies as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from skylark.cli.errors import UsageError
from skylark.cli.message_text import document
from skylark.cli.output import Screen, format_bytes
from skylark.cli.selection import Selection
from skylark.model.body import plain_body
from skylark.model.message import StoredMessage
from skylark.store.consume_queue import check_topic
from skylark.store.store_reader import StoreReader

Sink = Callable[[StoredMessage, bytes], int]


def write(reader: StoreReader, selection: Selection, out: Path, layout: str, *, decompress: bool) -> bool:
    """Write the bodies to `out`; return whether all messages could be read. Raises Mistake, OSError."""
    check_target(reader, out)
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
                written_bytes += put(message, plain_body(message) if decompress else message.body)
                written += 1
            except ValueError as error:  # a body or a topic that cannot be right
                report(f"{message.topic}/{message.queue_id} at queue offset {message.queue_offset}: {error}")
            progress.advance(task)
    unread = f"; {unreadable} could not be read" if unreadable else ""
    screen.line(f"{written} messages, {format_bytes(written_bytes)}, written to {out}{unread}.")
    return not unreadable


def check_target(reader: StoreReader, out: Path) -> None:
    """Raise Mistake if writing there would change the store or something else that is there."""
    resolved = out.resolve()
    for directory in (reader.path, reader.log.files.directory):
        if resolved.is_relative_to(directory.resolve()):
            raise UsageError(f"--out {out} is inside the store, in which nothing is changed")
    if out.exists():
        raise UsageError(f"--out {out} is there already; choose a new name")
    if not resolved.parent.is_dir():
        raise UsageError(f"--out {out} cannot be made: there is no directory {resolved.parent}")


def _total(selection: Selection, reader: StoreReader) -> int | None:
    if selection.key is not None:
        return None
    total = sum(high - low for low, high, _ in selection.ranges(reader))
    return total if selection.limit is None else min(total, selection.limit)


@contextmanager
def _sink(out: Path, layout: str, decompress: bool) -> Iterator[Sink]:
    if layout == "files":
        out.mkdir()
        yield lambda message, body: _write_file(out, message, body)
        return
    # The name appears when the file is whole.
    part = out.with_name(out.name + ".part")
    file = part.open("xb")  # one that is there is somebody else's, and stays
    try:
        with file:
            if layout == "lines":
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
    check_topic(message.topic)
    path = out / message.topic / str(message.queue_id) / f"{message.queue_offset:020d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.write_bytes(body)
