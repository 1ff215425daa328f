"""How benchmarks show what they do, and what they found: a live line, a table, JSON, a page."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark.cli.mistake import Mistake
from skylark.cli.output import NOT_KNOWN, Screen

if TYPE_CHECKING:
    from skylark.bench.results import Document
    from skylark.bench.sending import Progress
    from skylark.page import Section

AsJson = Annotated[bool, typer.Option("--json", help="The whole result as JSON, instead of a table.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the JSON there as well.")]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Write a page with charts there.")
]
EXIT_VOID = 1


@contextmanager
def extra_needed() -> Iterator[None]:
    """Around the imports of a command. Raises Mistake without the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Mistake(f"{error.name} is missing: pip install 'skylarkmq[bench]'") from error


def check_files(*files: Path | None) -> None:
    """Before the work, not after it. Raises Mistake."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise Mistake(f"{file} cannot be written: there is no directory {file.absolute().parent}")


@contextmanager
def interruptible() -> Iterator[None]:
    """An end from outside takes servers and their directories along, as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def live(screen: Screen) -> Iterator[Progress]:
    """A line on standard error while it is a terminal; nothing stays of it."""
    if not screen.err.is_terminal:
        yield lambda name, word: None
        return
    with screen.err.status("starting") as status:

        def show(name: str, word: str) -> None:
            status.update(progress_line(name, word))

        yield show


def progress_line(name: str, word: str) -> str:
    """What a person reads of what a load says."""
    kind, _, numbers = word.partition(" ")
    if kind == "begin":
        return f"{name}: measuring"
    if kind != "tick":
        return f"{name}: the last answers"
    second, operations = numbers.split()
    rate = int(operations) / max(float(second), 1e-9)
    return f"{name}: {float(second):.0f} s, {int(operations):,} done, {rate:,.0f}/s"


def finish(
    document: Document,
    *,
    as_json: bool,
    out: Path | None,
    report: Path | None,
    more: Sequence[Section] = (),
) -> None:
    """Print and write what was found; `more` comes first on the page. Exits with 1 if a cell is void."""
    from skylark.bench import results  # noqa: PLC0415 - `skylark --help` must not wait for it

    encoded = results.encode(document)
    if out is not None:
        out.write_bytes(encoded + b"\n")
    if report is not None:
        report.write_text(results.page(document, more), encoding="utf-8")
    screen = Screen()
    if as_json:
        screen.out.file.write(encoded.decode() + "\n")
    else:
        show(screen, document)
    if any(cell.is_void for cell in document.cells):
        raise typer.Exit(EXIT_VOID)


def show(screen: Screen, document: Document) -> None:
    """For people."""
    from skylark.bench import results  # noqa: PLC0415

    columns, rows = results.table(document.cells)
    screen.table(columns, [[_text(value) for value in row] for row in rows])
    for cell in document.cells:
        screen.section(cell.name, [f"{name}: {_text(value)}" for name, value in cell.figures.items()])
    machine = document.machine
    screen.line()
    screen.line(
        f"{machine.processor}, {machine.cores} cores, load {machine.load_1m}; "
        f"{', '.join(f'{name} {value}' for name, value in document.conditions.items())}",
        "dim",
    )
    for note in document.notes:
        screen.line(note, "dim")


def _text(value: Any) -> str:
    if value is None:
        return NOT_KNOWN
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
