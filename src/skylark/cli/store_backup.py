"""`skylark store backup`: copy a store that may be running, or bring a copy up to date."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from skylark.cli.output import Screen, counted, format_bytes, print_json
from skylark.store.backup import BackupReport, back_up


def show(source: Path, target: Path, commit_log: Path | None, *, link: bool, as_json: bool) -> None:
    """Back up with a progress bar and say what was done. Raises StoreError, OSError."""
    screen, started = Screen(), time.monotonic()
    with screen.progress("copying", in_bytes=True) as (progress, task):
        report = back_up(
            source,
            target,
            commit_log_path=commit_log,
            link=link,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if as_json:
        print_json({"source": str(source), "target": str(target), **asdict(report)})
    else:
        _print(screen, target, report, time.monotonic() - started)


def _print(screen: Screen, target: Path, report: BackupReport, seconds: float) -> None:
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
    screen.line("Use it:   copy it to where a broker shall have it, and start that with --data there")
