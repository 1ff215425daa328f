"""`skylark store`: look into a store directory. The commands' options; the work is done in `store_*`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.descriptors import raise_descriptor_limit
from skylark.cli.errors import UsageError
from skylark.cli.options import AsJson, grouped

if TYPE_CHECKING:
    from skylark.cli.selection import Selection
    from skylark.store.store_reader import StoreReader

app = typer.Typer(
    no_args_is_help=True,
    help="Look into a store directory, ours or Apache's, or back it up. Nothing in it is changed, and a"
    " broker may go on writing to it.",
)


class ExportFormat(StrEnum):
    """How exported bodies are laid out."""

    FILES = "files"
    LINES = "lines"
    JSON = "json"


SLOTS = 5_000_000
ITEMS = 20_000_000
TIME_HELP = "(2026-11-15, '2026-11-15 10:30', or milliseconds since 1970)."

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The store: what holds commitlog and consumequeue.")
]
CommitLog = Annotated[
    Path | None,
    typer.Option("--commit-log", metavar="DIR", help="Where the commit log is, if not in DIR/commitlog."),
]


@dataclass(frozen=True)
class StoreLocation:
    """Where a store lies, and what its index files have room for."""

    directory: Directory
    commit_log: CommitLog = None
    slots: Annotated[
        int, typer.Option("--index-slots", help="Slots of an index file (the broker's maxHashSlotNum).")
    ] = SLOTS
    items: Annotated[
        int, typer.Option("--index-items", help="Items of an index file (the broker's maxIndexNum).")
    ] = ITEMS


@dataclass(frozen=True)
class SelectionOptions:
    """Which messages, as the command line says it."""

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
        str | None, typer.Option("--since", metavar="TIME", help=f"Stored at or after this time {TIME_HELP}")
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help=f"Stored at or before this time {TIME_HELP}")
    ] = None
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", help="Only messages with this key or unique key, by the index."),
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="At most so many messages.")] = (
        None
    )

    def selection(self) -> Selection:
        """Raises Mistake for what makes no sense together."""
        from skylark.cli.selection import Selection  # noqa: PLC0415  --help must not wait for it

        return Selection.parse(
            self.topic,
            self.queue,
            self.from_offset,
            self.to_offset,
            self.since,
            self.until,
            self.key,
            self.limit,
        )


def open_reader(place: StoreLocation, delay_levels: str | None = None) -> StoreReader:
    """Raises MissingFile, BadStoreFile, SettingsError, OSError."""
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
    """`serve --brokers N` has one store for each broker. Raises Mistake for the directory above them."""
    inside = sorted(path.parent.name for path in directory.glob("*/commitlog"))
    if inside and not (directory / "commitlog").exists():
        names = ", ".join(str(directory / name) for name in inside)
        raise UsageError(f"{directory} is no store, but holds {len(inside)}: say {names}")


@app.command()
@grouped
def info(place: StoreLocation, as_json: AsJson = False) -> None:
    """Sizes, topics and queues with their offsets and times, and what is not supported.

    Example: skylark store info ~/store
    """
    from skylark.cli import store_info  # noqa: PLC0415

    store_info.show(open_reader(place), as_json=as_json)


@app.command()
@grouped
def verify(
    place: StoreLocation,
    delay_levels: Annotated[
        str | None, typer.Option("--delay-levels", help="The broker's messageDelayLevel, if it has its own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every record, consume queue and index item. Exit code 1 if anything is wrong.

    Example: skylark store verify ~/store && echo good
    """
    from skylark.cli import store_verify  # noqa: PLC0415

    if not store_verify.show(open_reader(place, delay_levels), as_json=as_json):
        raise typer.Exit(1)


@app.command()
@grouped
def dump(wanted: SelectionOptions, place: StoreLocation, as_json: AsJson = False) -> None:
    """Print messages: all records in the log's order, or those of a topic, queue, time or key.

    Exit code 1 if some of them cannot be read, or none has the key.

    Examples: skylark store dump ~/store --limit 20

    skylark store dump ~/store -t orders -q 0 --from-offset 100 --json

    skylark store dump ~/store -t orders --key order-1001
    """
    from skylark.cli import store_dump  # noqa: PLC0415

    selection = wanted.selection()
    if not store_dump.show(open_reader(place), selection, as_json=as_json):
        raise typer.Exit(1)


@app.command()
@grouped
def export(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PATH", help="File or directory to make.")],
    layout: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            help="files: a file per body, PATH/topic/queue/offset; lines: one file, a line per body;"
            " json: one file, messages as lines of JSON.",
        ),
    ] = ExportFormat.FILES,
    decompress: Annotated[
        bool, typer.Option("--decompress", "-d", help="Bodies as they were before compression.")
    ] = False,
    wanted: SelectionOptions,
    place: StoreLocation,
) -> None:
    """Write message bodies to files. Exit code 1 if some messages cannot be read.

    Examples: skylark store export ~/store -t orders -o bodies

    skylark store export ~/store -t orders --format json -d -o orders.jsonl
    """
    from skylark.cli import store_export  # noqa: PLC0415

    selection = wanted.selection()
    if not store_export.write(open_reader(place), selection, out, layout.value, decompress=decompress):
        raise typer.Exit(1)


@app.command()
def backup(
    directory: Directory,
    target: Annotated[
        Path, typer.Argument(metavar="TO", help="A new directory, or one that holds a backup of DIR.")
    ],
    link: Annotated[
        bool,
        typer.Option("--link", help="Hard links for full files of the log; the same file system is needed."),
    ] = False,
    commit_log: CommitLog = None,
    as_json: AsJson = False,
) -> None:
    """Copy a store, running or not, so that a broker can be started on the copy; again, only what is new.

    Every message that was acknowledged before the backup began is in it.

    Example: skylark store backup ~/store /backups/store && skylark store verify /backups/store
    """
    from skylark.cli import store_backup  # noqa: PLC0415

    raise_descriptor_limit()
    refuse_several(directory)
    store_backup.show(directory, target, commit_log, link=link, as_json=as_json)
