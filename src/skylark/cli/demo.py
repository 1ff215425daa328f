"""`skylark demo`: run a demonstration and print its counts."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.errors import UsageError
from skylark.cli.output import Screen
from skylark.errors import SettingsError

if TYPE_CHECKING:
    from skylark.demo import scenario

EXIT_WRONG = 1
FAST_ORDERS = 1_000
ORDERS = 10_000


def demo(
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep store, Delta table and report there.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="1,000 orders instead of 10,000.")] = False,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Skip the parts that need Spark.")] = False,
    console: Annotated[
        bool, typer.Option("--console", help="Then serve its store with the web console, until Ctrl-C.")
    ] = False,
) -> None:
    """See it work: orders are sent, billed, retried, kept by Spark.

    Some are dead-lettered and sent again. Exit code 1 if counts in and out do not agree.

    Examples: skylark demo --keep ./demo

    skylark demo --fast --console
    """
    if not run_demo(keep, fast=fast, spark=not no_spark, console=console):
        raise typer.Exit(EXIT_WRONG)


def run_demo(keep: Path | None, *, fast: bool = False, spark: bool = True, console: bool = False) -> bool:
    """Run the demonstration; return whether all counts agree. Raises UsageError, RocketMQError, OSError."""
    import asyncio  # noqa: PLC0415 - `skylark demo --help` must not wait for it

    from skylark.demo import scenario  # noqa: PLC0415

    screen = Screen()
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"--keep {keep} exists already; choose a new directory")
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
            shutil.rmtree(wanted.directory)  # incomplete, and created by us
            raise
        _print(screen, outcome, kept=keep)
        if console:
            _serve(outcome.places["store"])
    return outcome.agrees


def _serve(store: Path) -> None:
    """The store's servers with the web console, on free ports, until Ctrl-C, which they get, too."""
    import contextlib  # noqa: PLC0415
    import subprocess  # noqa: PLC0415

    sys.stdout.flush()
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--grpc-port", "off", "--console-port", "0")
    words = [sys.executable, "-m", "skylark", "serve", "--data", str(store), "--console", *ports]
    with subprocess.Popen(words) as servers, contextlib.suppress(KeyboardInterrupt):  # noqa: S603 - our own command
        servers.wait()


def _has_spark(screen: Screen) -> bool:
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("deltalake") is None:
        screen.warn("Spark is skipped: install skylarkmq[spark]")
        return False
    from skylark.pipelines.jobs.session import check_java  # noqa: PLC0415

    try:
        check_java()
    except SettingsError as error:
        screen.warn(f"Spark is skipped: {error.reason}")
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
            "All counts agree: everything sent or committed has arrived, nothing that was rolled back has,"
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
    """How to get the command into PATH, if `make` ran it."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("skylark") is None and script.exists():
        here = Path.cwd()
        yield f". {script.relative_to(here) if script.is_relative_to(here) else script}"


def _next_commands(outcome: scenario.DemoResult, kept: Path | None) -> Iterator[str]:
    from skylark.demo import scenario  # noqa: PLC0415

    if kept is None:
        yield "skylark demo --keep ./demo       # keeps the store, the Delta table and the report"
        yield "skylark demo --fast --console    # its orders in the web console"
        yield "skylark serve --console          # your own servers, with the web console"
        return
    store = outcome.places["store"]
    yield f"skylark store dump {store} -t {scenario.TOPIC} --key order-42"
    if "Delta table" in outcome.places:
        question = f"select tags, count(*) from {scenario.TOPIC} group by tags"  # noqa: S608 - to copy
        yield f"skylark spark sql --store {store} -t {scenario.TOPIC} '{question}'"
    yield f"skylark serve --data {store} --console   # prints the link of the web console"
