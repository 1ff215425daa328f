"""`skylark doctor`: checks of this machine and of the servers, with advice for each problem."""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from skylark.cli.options import NAMESRV, AsJson, Namesrv
from skylark.cli.output import Screen, format_bytes, print_json
from skylark.health import DISK_USED_MAX, HealthCheck, HealthState, servers

EXIT_FAULTS = 1
PYTHON_MIN = (3, 11)
JAVA_MIN = 17
JAVA_TIMEOUT_S = 20
PORTS = {
    9876: "name server",
    10909: "broker, fast port",
    10911: "broker",
    10912: "broker, for slaves",
    5557: "metrics and health",
}
FREE_BYTES_MIN = 2 << 30
DESCRIPTORS_MIN = 65_536
MAPS_MIN = 65_530
MAPS_PATH = Path("/proc/sys/vm/max_map_count")


STYLES = {HealthState.OK: "green", HealthState.NOTE: "yellow", HealthState.FAULT: "bold red"}


def doctor(
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="The store directory, existing or planned.")
    ] = Path("skylark-data"),
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Check this machine and the servers, with advice for each fault.

    Checks Python, Java, ports, disk, limits, clocks, routes, controllers, certificates, and whether the
    members of each group subscribe the same. Exit code 1 if there are faults.

    Example: skylark doctor --namesrv 127.0.0.1:9876
    """
    checks = [*machine(data), *servers(namesrv)]
    if as_json:
        print_json(
            [
                {"check": item.name, "state": item.state.value, "found": item.found, "advice": item.advice}
                for item in checks
            ]
        )
    else:
        _print(checks)
    if any(item.state is HealthState.FAULT for item in checks):
        raise typer.Exit(EXIT_FAULTS)


def _print(checks: list[HealthCheck]) -> None:
    screen = Screen()
    if not screen.out.is_terminal:
        for item in checks:
            screen.cells((item.name, item.state.value, item.found, item.advice))
        return
    width = max(len(item.name) for item in checks)
    for item in checks:
        line = Text(f"{item.state.value:>5}  ", style=STYLES[item.state])
        line.append(f"{item.name:<{width}}  ", style="bold not dim")
        line.append(item.found, style="default not bold")
        screen.out.print(line)
        if item.advice:
            screen.line(f"       {'':<{width}}  -> {item.advice}", "cyan")


# --- This machine ---


def machine(data: Path) -> Iterator[HealthCheck]:
    """Checks of this machine."""
    import asyncio  # noqa: PLC0415 - `skylark doctor --help` must not wait for it

    yield _python()
    yield _java(_java_version())
    yield _spark()
    yield asyncio.run(_ports())
    yield _disk(data)
    yield _descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    if MAPS_PATH.exists():
        yield _maps(int(MAPS_PATH.read_text()))


def _python() -> HealthCheck:
    found = sys.version.split()[0]
    if sys.version_info[:2] < PYTHON_MIN:
        return HealthCheck(
            "Python", HealthState.FAULT, found, f"install Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or newer"
        )
    return HealthCheck("Python", HealthState.OK, found)


def _java_version() -> str | None:
    """The first line of `java -version`, None without Java."""
    java = shutil.which("java")
    if java is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - the program that PATH names
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr or done.stdout).partition("\n")[0]


def _java(version: str | None) -> HealthCheck:
    advice = f"install Java {JAVA_MIN} or newer for `skylark spark`; nothing else needs it"
    if version is None:
        return HealthCheck("Java", HealthState.NOTE, "none", advice)
    found = re.search(r'"(?:1\.)?(\d+)', version)
    if found is None or int(found[1]) < JAVA_MIN:
        return HealthCheck("Java", HealthState.NOTE, version, advice)
    return HealthCheck("Java", HealthState.OK, version)


def _spark() -> HealthCheck:
    if importlib.util.find_spec("pyspark") is None:
        return HealthCheck(
            "Spark", HealthState.NOTE, "none", "pip install 'skylarkmq[spark]' for `skylark spark`"
        )
    return HealthCheck("Spark", HealthState.OK, "installed")


async def _ports() -> HealthCheck:
    """Whether servers can listen on their usual ports."""
    import asyncio  # noqa: PLC0415

    taken = []
    for port, purpose in PORTS.items():
        try:
            server = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
        except OSError:
            taken.append(f"{port} ({purpose})")
        else:
            server.close()
            await server.wait_closed()
    if taken:
        advice = "fine if servers run here; else choose other ports, see `skylark serve --help`"
        return HealthCheck("ports", HealthState.NOTE, f"in use: {', '.join(taken)}", advice)
    return HealthCheck("ports", HealthState.OK, f"free: {', '.join(map(str, PORTS))}")


def _disk(data: Path) -> HealthCheck:
    # A directory that may not be read counts as missing: the one above it is checked.
    there = next(path for path in (data.absolute(), *data.absolute().parents) if os.access(path, os.F_OK))
    try:
        usage = shutil.disk_usage(there)
    except OSError as error:
        return HealthCheck(
            "disk", HealthState.FAULT, f"{there}: {error.strerror}", "choose another directory with --data"
        )
    if not os.access(there, os.W_OK):
        advice = "choose another directory with --data, or give this user write permission"
        return HealthCheck("disk", HealthState.FAULT, f"{there}: not writable", advice)
    used = usage.used / (
        usage.used + usage.free
    )  # as brokers compute it: what is reserved for root is neither
    found = f"{there}: {format_bytes(usage.free)} free, {used:.0%} used"
    if usage.free < FREE_BYTES_MIN or used > DISK_USED_MAX:
        advice = "free some space, or choose another --data: brokers refuse messages from 90 % on"
        return HealthCheck("disk", HealthState.FAULT, found, advice)
    return HealthCheck("disk", HealthState.OK, found)


def _descriptors(hard: int) -> HealthCheck:
    found = "no limit" if hard == resource.RLIM_INFINITY else str(hard)
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_MIN:
        advice = f"raise it to {DESCRIPTORS_MIN} (ulimit -Hn, LimitNOFILE=) for many queues and clients"
        return HealthCheck("open files", HealthState.NOTE, found, advice)
    return HealthCheck("open files", HealthState.OK, found)


def _maps(count: int) -> HealthCheck:
    if count < MAPS_MIN:
        advice = f"sysctl -w vm.max_map_count={MAPS_MIN} for large stores"
        return HealthCheck("memory maps", HealthState.NOTE, str(count), advice)
    return HealthCheck("memory maps", HealthState.OK, str(count))
