"""Progress and results of benchmarks: a live line, a table, JSON, an HTML page; interruption by signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark.cli.errors import UsageError
from skylark.cli.output import NOT_KNOWN, Screen

if TYPE_CHECKING:
    from skylark.bench.results import Document, ResultFile
    from skylark.bench.servers import Progress
    from skylark.html_report import Section

AsJson = Annotated[bool, typer.Option("--json", help="Print the whole result as JSON instead of a table.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write the JSON there.")]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Write an HTML page with charts there.")
]
EXIT_VOID = 1
BUSY_SHARE = 0.15
ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""`kill`, and the end of the terminal; SIGHUP stays ignored under `nohup`."""


def check_files(*files: Path | None) -> None:
    """Check before the work that the files can be written. Raises UsageError."""
    for file in files:
        if file is None:
            continue
        directory = file.absolute().parent
        if not directory.is_dir():
            raise UsageError(f"cannot write {file}: no directory {directory}")
        if file.is_dir():
            raise UsageError(f"cannot write {file}: it is a directory")
        place = file if file.exists() else directory
        if not os.access(place, os.W_OK):
            raise UsageError(f"cannot write {file}: no permission for {place}")


def check_directory(directory: Path | None) -> None:
    """Check a directory that is created after the work if necessary. Raises UsageError."""
    if directory is not None and directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is not a directory")


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where a result goes. Raises UsageError for files that cannot be written."""

    as_json: AsJson = False
    out: Out = None
    report: ReportFile = None

    def __post_init__(self) -> None:
        check_files(self.out, self.report)

    def keep(self, found: ResultFile) -> None:
        """Write the JSON atomically. Raises OSError."""
        from skylark.bench.results import encode  # noqa: PLC0415 - keeps `skylark --help` fast

        if self.out is not None:
            part = self.out.with_name(f"{self.out.name}.part")
            part.write_bytes(encode(found))
            part.replace(self.out)

    def deliver(self, found: ResultFile, page: Callable[[], str], show: Callable[[Screen], None]) -> None:
        """Write and print the result; `show` prints its table. Raises OSError after printing."""
        from skylark.bench.results import encode  # noqa: PLC0415

        try:
            self.keep(found)
            if self.report is not None:
                self.report.write_text(page(), encoding="utf-8")
        finally:  # a full disk must not lose the result of minutes
            screen = Screen()
            if self.as_json:
                screen.out.file.write(encode(found).decode())
            else:
                show(screen)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end servers and remove their directories, as Ctrl-C does."""
    heeded = [number for number in ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in heeded:  # a terminal may send SIGHUP twice during the cleanup
            signal.signal(each, signal.SIG_IGN)
        on_ctrl_c = signal.getsignal(signal.SIGINT)  # possibly that of an event loop
        heard = on_ctrl_c if callable(on_ctrl_c) else signal.default_int_handler
        heard(signal.SIGINT, frame)

    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def warn_if_busy(screen: Screen) -> list[str]:
    """Warn if other programs use the processors; return the sentence for the result."""
    from skylark.bench.machine import busy_share  # noqa: PLC0415

    share = busy_share()
    if share < BUSY_SHARE:
        return []
    sentence = f"the machine was busy before the run: {share:.0%} of its processors, so figures are too low"
    screen.warn(f"{sentence}; stop other programs and measure again")
    return [sentence]


@contextmanager
def live(screen: Screen) -> Iterator[Progress]:
    """A progress line on standard error if it is a terminal; it disappears at the end."""
    if not screen.err.is_terminal:
        yield lambda name, word: None
        return
    with screen.err.status("starting") as status:

        def show(name: str, word: str) -> None:
            status.update(progress_line(name, word))

        yield show


def progress_line(name: str, word: str) -> str:
    """The text of the progress line."""
    kind, _, numbers = word.partition(" ")
    if kind == "begin":
        return f"{name}: measuring"
    if kind != "tick":
        return f"{name}: last replies"
    second, operations = numbers.split()
    rate = int(operations) / max(float(second), 1e-9)
    return f"{name}: {float(second):.0f} s, {int(operations):,} done, {rate:,.0f}/s"


def finish(document: Document, outputs: Outputs, more: Sequence[Section] = ()) -> None:
    """Print and write the result; `more` comes first on the page. Exits with 1 if a cell is void."""
    from skylark.bench import results  # noqa: PLC0415

    outputs.deliver(
        document, lambda: results.page(document, more), lambda screen: _show_cells(screen, document)
    )
    if any(cell.is_void for cell in document.cells):
        raise typer.Exit(EXIT_VOID)


def _show_cells(screen: Screen, document: Document) -> None:
    from skylark.bench import results  # noqa: PLC0415

    columns, rows = results.table(document.cells)
    screen.table(columns, [[_text(value) for value in row] for row in rows])
    for cell in document.cells:
        screen.section(cell.name, [f"{name}: {_text(value)}" for name, value in cell.figures.items()])
    show_conditions(screen, document)
    for note in document.notes:
        screen.line(note, "dim")


def show_conditions(screen: Screen, found: ResultFile, *but: str) -> None:
    """Machine and conditions of a run in one line, except those in `but`."""
    machine = found.machine
    conditions = [
        f"{name} {value}" for name, value in found.conditions.items() if name not in but and value is not None
    ]
    screen.line()
    cores = f"{machine.cores} cores, of which a broker uses one"
    screen.line(f"{machine.processor}, {cores}, load {machine.load_1m}; {', '.join(conditions)}", "dim")


def _text(value: Any) -> str:
    if value is None:
        return NOT_KNOWN
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
