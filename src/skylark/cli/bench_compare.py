"""`skylark bench compare`: the same work on our broker and on other people's, and how many times better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from skylark.cli.bench_output import AsJson, Out, ReportFile, check_files, interruptible
from skylark.cli.output import Screen

if TYPE_CHECKING:
    from skylark.bench.compare.figures import Comparison

GIB = 1 << 30


def compare(
    peer: Annotated[
        str, typer.Option("--peer", metavar="NAME,…", help="apache, kafka, nats: one or several.")
    ] = "apache",
    cell: Annotated[
        list[str] | None,
        typer.Option("--cell", metavar="PATTERN", help="Cells by name, * allowed; several; none: all."),
    ] = None,
    list_cells: Annotated[bool, typer.Option("--list", help="Say which cells there are, and end.")] = False,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="3; systems take turns.")] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="5; of a round of a cell.")
    ] = None,
    warm_up: Annotated[
        float | None, typer.Option("--warm-up", min=0, help="60; seconds for a JVM to compile itself.")
    ] = None,
    backlog: Annotated[
        int | None, typer.Option("--backlog", min=1, help="200,000; messages that consumers find.")
    ] = None,
    recover_gib: Annotated[
        float | None, typer.Option("--recover-gib", min=0.01, help="4; of log before a kill -9.")
    ] = None,
    heap_mb: Annotated[
        int | None, typer.Option("--heap-mb", min=256, help="2048; the heap of a peer's JVM.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One round of a second, small logs, without the longest cells.")
    ] = False,
    as_json: AsJson = False,
    out: Out = None,
    report: ReportFile = None,
) -> None:
    """Measure our broker beside Apache RocketMQ, Kafka or NATS: rates, latency, start, memory, recovery.

    The peers are fetched once (Maven, Go) into ~/.cache/skylark and started in a temporary directory with the
    same flush mode and file sizes. What cannot run on this machine is listed with the reason.

    Examples: skylark bench compare --peer apache --quick
              skylark bench compare --peer apache --cell 'send-*' --report compare.html
              skylark bench compare --peer kafka,nats --cell 'java-async-*' --cell start
    """
    from skylark.bench.compare.cells import parse_peers  # noqa: PLC0415 - `skylark --help` must not wait
    from skylark.bench.compare.measures import Effort  # noqa: PLC0415
    from skylark.bench.compare.run import compare as run  # noqa: PLC0415

    screen = Screen()
    if list_cells:
        _show_cells(screen)
        return
    check_files(out, report)
    wanted: dict[str, Any] = {
        "rounds": rounds,
        "seconds": seconds,
        "warm_up_s": warm_up,
        "backlog": backlog,
        "recover_bytes": None if recover_gib is None else round(recover_gib * GIB),
        "heap_mb": heap_mb,
    }
    usual = Effort.quick() if quick else Effort()
    effort = replace(usual, **{name: value for name, value in wanted.items() if value is not None})
    with interruptible():
        comparison = run(
            parse_peers(peer),
            cell or [],
            effort,
            quick=quick,
            say=lambda words: screen.err.print(words, style="dim", markup=False),
        )
    _finish(screen, comparison, as_json=as_json, out=out, report=report)


def _show_cells(screen: Screen) -> None:
    from skylark.bench.compare.cells import CELLS  # noqa: PLC0415

    rows = [(cell.name, ", ".join(sorted(cell.systems)), cell.what) for cell in CELLS]
    screen.table(("cell", "systems", "what"), rows)


def _finish(
    screen: Screen, comparison: Comparison, *, as_json: bool, out: Path | None, report: Path | None
) -> None:
    """Print and write what was found."""
    from skylark.bench.compare import tables  # noqa: PLC0415

    encoded = msgspec.json.format(msgspec.json.encode(comparison), indent=2)
    if out is not None:
        out.write_bytes(encoded + b"\n")
    if report is not None:
        report.write_text(tables.page(comparison), encoding="utf-8")
    if as_json:
        screen.out.file.write(encoded.decode() + "\n")
    else:
        _show(screen, comparison)


def _show(screen: Screen, comparison: Comparison) -> None:
    """For people."""
    from skylark.bench.compare import tables  # noqa: PLC0415

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
    machine = comparison.machine
    conditions = ", ".join(
        f"{name} {value}" for name, value in comparison.conditions.items() if name != "cells"
    )
    screen.line()
    screen.line(tables.RATIO_NOTE, "dim")
    screen.line(f"{machine.processor}, {machine.cores} cores, load {machine.load_1m}; {conditions}", "dim")
