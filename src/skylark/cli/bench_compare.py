"""`skylark bench compare`: the same work on our broker and on other people's, and how many times better."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from skylark.cli.bench_output import Outputs, extra_needed, interruptible, show_conditions
from skylark.cli.errors import UsageError
from skylark.cli.options import grouped
from skylark.cli.output import Screen

if TYPE_CHECKING:
    from benchmarks.compare.figures import Comparison
    from benchmarks.compare.measures import Effort

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class EffortOptions:
    """How long and how large a run is, as `Effort`; None: as it usually is."""

    rounds: Annotated[int | None, typer.Option(min=1, help="3; systems take turns.")] = None
    seconds: Annotated[float | None, typer.Option(min=0.1, help="5; of a round of a cell.")] = None
    warm_up_s: Annotated[
        float | None, typer.Option("--warm-up", min=0, help="60; seconds for a JVM to compile itself.")
    ] = None
    backlog: Annotated[int | None, typer.Option(min=1, help="200,000; messages that consumers find.")] = None
    recover_bytes: Annotated[
        float | None,
        typer.Option("--recover-gib", min=0.01, metavar="GIB", help="4; of log before a kill -9."),
    ] = None
    heap_mb: Annotated[int | None, typer.Option(min=256, help="2048; the heap of a peer's JVM.")] = None

    def changed(self, usual: Effort) -> Effort:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if self.recover_bytes is not None:
            given["recover_bytes"] = round(self.recover_bytes * GIB)
        return replace(usual, **given)


@grouped
def compare(
    *,
    peer: Annotated[
        str, typer.Option("--peer", metavar="NAME,…", help="apache, kafka, nats: one or several.")
    ] = "apache",
    cell: Annotated[
        list[str] | None,
        typer.Option("--cell", metavar="PATTERN", help="Cells by name, * allowed; several; none: all."),
    ] = None,
    list_cells: Annotated[bool, typer.Option("--list", help="Say which cells there are, and end.")] = False,
    effort: EffortOptions,
    quick: Annotated[
        bool, typer.Option("--quick", help="One round of a second, small logs, without the longest cells.")
    ] = False,
    outputs: Outputs,
) -> None:
    """Measure our broker beside Apache RocketMQ, Kafka or NATS: rates, latency, start, memory, recovery.

    The peers are fetched once (Maven, Go) into ~/.cache/skylark and started in a temporary directory with the
    same flush mode and file sizes. What cannot run on this machine is listed with the reason. --out is
    written after each round: what was measured before an interruption is there.

    Examples: skylark bench compare --peer apache --quick
              skylark bench compare --peer apache --cell 'send-*' --report compare.html
              skylark bench compare --peer kafka,nats --cell 'java-async-*' --cell start
    """
    with extra_needed():
        from benchmarks.compare.cells import parse_peers  # noqa: PLC0415 - `skylark --help` must not wait
        from benchmarks.compare.measures import Effort  # noqa: PLC0415
        from benchmarks.compare.run import compare as run  # noqa: PLC0415

    screen = Screen()
    if list_cells:
        _show_cells(screen)
        return
    with interruptible():
        comparison = run(
            parse_peers(peer),
            cell or [],
            effort.changed(Effort.quick() if quick else Effort()),
            quick=quick,
            say=lambda words: screen.err.print(words, style="dim", markup=False),
            keep=outputs.keep,
        )
    _deliver(comparison, outputs)


@grouped
def merge(
    *,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What --out of `compare` wrote.")],
    outputs: Outputs,
) -> None:
    """Join what several runs of `skylark bench compare` found into one result.

    What several of them measured counts as the last file has it: measure a cell again and name its file
    last.

    Example: skylark bench merge sends.json topics.json --out all.json --report compare.html
    """
    with extra_needed():
        from benchmarks.compare.figures import merge as merged  # noqa: PLC0415

    _deliver(merged([_read(file) for file in files]), outputs)


def _read(file: Path) -> Comparison:
    """Raises Mistake."""
    from benchmarks.compare.figures import BENCHMARK, Comparison  # noqa: PLC0415

    try:
        found = msgspec.json.decode(file.read_bytes(), type=Comparison)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"{file} is no result of `skylark bench {BENCHMARK}`: {error}") from None
    return found


def _show_cells(screen: Screen) -> None:
    from benchmarks.compare.cells import CELLS  # noqa: PLC0415

    rows = [(cell.name, ", ".join(sorted(cell.systems)), cell.what) for cell in CELLS]
    screen.table(("cell", "systems", "what"), rows)


def _deliver(comparison: Comparison, outputs: Outputs) -> None:
    from benchmarks.compare import tables  # noqa: PLC0415

    outputs.deliver(comparison, partial(tables.page, comparison), partial(_show, comparison))


def _show(comparison: Comparison, screen: Screen) -> None:
    """For people."""
    from benchmarks.compare import tables  # noqa: PLC0415

    for peer in tables.peers_of(comparison):
        screen.line()
        screen.line(f"Ours and {tables.title_of(comparison, peer)}" if peer else "Ours alone", "bold")
        rows = [tables.cells_of(row) for row in tables.rows_for(comparison, peer)]
        screen.table(tables.COLUMNS, rows)
    screen.section("Where ours is worse, or below its bar", tables.loss_lines(comparison.rows), "bold yellow")
    screen.section("Not run, or void", tables.missing_lines(comparison))
    screen.section(
        "What ran",
        [f"{each.title}: {each.settings}; {each.client}" for each in comparison.systems],
    )
    screen.line()
    screen.line(tables.RATIO_NOTE, "dim")
    show_conditions(screen, comparison, "cells")
