"""`skylark demo`: run it, tell what happens, end with one readable screen."""

from __future__ import annotations

import tempfile
from pathlib import Path

from skylark import demo
from skylark.cli.mistake import Mistake
from skylark.cli.output import Screen


def show(keep: Path | None) -> bool:
    """Run the demonstration; return whether all counts agreed. Raises Mistake, OSError."""
    screen = Screen()
    if keep is not None:
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise Mistake(f"--keep {keep} is there already; choose a new directory")
        outcome = _run(screen, keep)
        _print_next(screen, keep)
        return outcome.agrees
    with tempfile.TemporaryDirectory(prefix="skylark-demo-") as directory:
        outcome = _run(screen, Path(directory) / "store")
    _print_next(screen, None)
    return outcome.agrees


def _run(screen: Screen, directory: Path) -> demo.Outcome:
    outcome = demo.run(directory, lambda sentence: screen.line(f"- {sentence}", "dim"))
    screen.line()
    rates = [[name, count, f"{count / seconds:,.0f}/s"] for name, count, seconds in outcome.rates]
    screen.table(("what", "messages", "rate"), rates)
    checks = [
        [check.name, check.expected, check.found, "ok" if check.holds else "WRONG"]
        for check in outcome.checks
    ]
    screen.table(("check", "expected", "found", ""), checks)
    if outcome.agrees:
        screen.line("Everything agrees: nothing acknowledged was lost.", "bold green")
    else:
        screen.line("Some counts are wrong.", "bold red")
    return outcome


def _print_next(screen: Screen, kept: Path | None) -> None:
    screen.line()
    if kept is None:
        screen.line("Next: skylark demo --keep DIR, and look into what it leaves behind.")
        return
    screen.line("Next, look into the store:")
    for command in ("info", "verify", "dump -t orders -n 10", "dump -t orders --key order-4242 --json"):
        name, _, options = command.partition(" ")
        screen.line(f"  skylark store {name} {kept} {options}".rstrip())
