"""`skylark store verify`: check everything, say what is wrong."""

from __future__ import annotations

from dataclasses import asdict

from skylark.cli.output import Screen, counted, format_bytes, print_json
from skylark.store.store_reader import StoreReader
from skylark.store.verification import Verification, verify


def show(reader: StoreReader, *, as_json: bool) -> bool:
    """Verify with a progress bar and print the result; return whether the store is sound."""
    screen = Screen()
    with screen.progress("verifying", in_bytes=True) as (progress, task):
        result = verify(
            reader, progress=lambda done, total: progress.update(task, completed=done, total=total)
        )
    if as_json:
        print_json(_document(reader, result))
    else:
        _print(screen, reader, result)
    return result.is_clean


def _document(reader: StoreReader, result: Verification) -> dict[str, object]:
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


def _print(screen: Screen, reader: StoreReader, result: Verification) -> None:
    counts = result.counts
    if result.findings:
        rows = [
            [finding.kind.value, finding.path.relative_to(reader.path), finding.position, finding.reason]
            if finding.path.is_relative_to(reader.path)
            else [finding.kind.value, finding.path, finding.position, finding.reason]
            for finding in result.findings
        ]
        screen.table(["what", "file", "byte", "reason"], rows)
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
            (counts.waiting, ("record waits for its unit", "records wait for their units")),
            (
                counts.unindexed,
                ("record is outside the index's range", "records are outside the index's range"),
            ),
            (counts.left_over, ("record is of a deleted topic", "records are of deleted topics")),
            (counts.blank_units, ("queue offset has no message", "queue offsets have no message")),
        )
        if number
    ]
    screen.section("To know:", [*notes, *result.notes])
    screen.section("Not supported, and not verified:", map(str, reader.unsupported()))
    screen.line()
    if result.is_clean:
        screen.line("The store is sound.", "bold green")
    else:
        kinds = ", ".join(f"{count} {kind.value}" for kind, count in result.by_kind.most_common())
        screen.line(f"{counted(result.total, 'finding', 'findings')}: {kinds}.", "bold red")
