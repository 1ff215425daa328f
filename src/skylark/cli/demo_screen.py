"""`skylark demo`: run it, tell what happens, end with one readable screen."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from skylark.cli.errors import UsageError
from skylark.cli.output import Screen
from skylark.demo import scenario
from skylark.errors import SettingsError

FAST_ORDERS = 1_000
ORDERS = 10_000


def show(keep: Path | None, *, fast: bool = False, spark: bool = True) -> bool:
    """Run the demonstration; return whether all counts agreed. Raises Mistake, RocketMQError, OSError."""
    screen = Screen()
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"--keep {keep} is there already; choose a new directory")
    archive: scenario.Archive | None = None
    if spark and _has_spark(screen):
        from skylark.demo.spark_scenario import archive  # noqa: PLC0415 - it takes a second to load
    with tempfile.TemporaryDirectory(prefix="skylark-demo-") as temporary:
        orders = FAST_ORDERS if fast else ORDERS
        wanted = scenario.DemoOptions(directory=keep or Path(temporary) / "demo", orders=orders)
        wanted.directory.mkdir(parents=True, exist_ok=True)
        try:
            outcome = asyncio.run(
                scenario.run(wanted, lambda words: screen.line(f"- {words}", "dim"), archive)
            )
        except KeyboardInterrupt:
            shutil.rmtree(wanted.directory)  # half of it is of no use, and was not there before
            raise
    _print(screen, outcome, kept=keep)
    return outcome.agrees


def _has_spark(screen: Screen) -> bool:
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("deltalake") is None:
        screen.warn("Spark is left out: install skylarkmq[spark]")
        return False
    from skylark.pipelines.jobs.session import check_java  # noqa: PLC0415

    try:
        check_java()
    except SettingsError as error:
        screen.warn(f"Spark is left out: {error.reason}")
        return False
    return True


def _print(screen: Screen, outcome: scenario.DemoResult, kept: Path | None) -> None:
    screen.line()
    rates = [[name, count, round(count / seconds)] for name, count, seconds in outcome.rates]
    screen.table(("what", "messages", "messages/s"), rates)
    screen.line()
    checks = [
        [check.name, check.expected, check.found, "ok" if check.holds else "WRONG"]
        for check in outcome.checks
    ]
    screen.table(("check", "expected", "found", ""), checks)
    screen.line()
    if outcome.agrees:
        screen.line(
            "Everything agrees: what was sent or committed has arrived, what was rolled back has not,"
            " and nothing was lost.",
            "bold green",
        )
    else:
        screen.line("Some counts are wrong.", "bold red")
    screen.line()
    if kept is not None:
        screen.facts(list(outcome.places.items()))
        screen.line()
    screen.line("Next:")
    for command in (*_activation(), *_next_commands(outcome, kept)):
        screen.line(f"  {command}")


def _activation() -> Iterator[str]:
    """How to have the command, for somebody who was shown it by `make`."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("skylark") is None and script.exists():
        here = Path.cwd()
        yield f". {script.relative_to(here) if script.is_relative_to(here) else script}"


def _next_commands(outcome: scenario.DemoResult, kept: Path | None) -> Iterator[str]:
    if kept is None:
        yield "skylark demo --keep ./demo       # leaves the store, the Delta table and the report there"
        yield "skylark serve                    # a queue of your own"
        return
    store = outcome.places["store"]
    yield f"skylark store dump {store} -t {scenario.TOPIC} --key order-42"
    if "Delta table" in outcome.places:
        question = f"select tags, count(*) from {scenario.TOPIC} group by tags"  # noqa: S608 - for a person to copy
        yield f"skylark spark sql --store {store} -t {scenario.TOPIC} '{question}'"
    yield f"skylark serve --data {store}"
