"""`skylark doctor`: checks of this machine and of the servers, with advice for each problem."""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from skylark.cli.options import NAMESRV, AsJson, Namesrv
from skylark.cli.output import Screen, format_bytes, print_json
from skylark.errors import RocketMQError

if TYPE_CHECKING:
    from skylark.admin.admin import Admin

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
DISK_USED_MAX = 0.85
"""Brokers refuse messages from 0.90 on."""
DESCRIPTORS_MIN = 65_536
MAPS_MIN = 65_530
MAPS_PATH = Path("/proc/sys/vm/max_map_count")
SKEW_S_MAX = 5.0
TIMEOUT_MS = 3000
EXPIRY_WARNING_DAYS = 30
RENEW = "renew it; servers load changed files by themselves (a trial: `skylark tls init DIR --renew`)"
_RUNTIME = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")


class HealthState(Enum):
    OK = "ok"
    NOTE = "note"
    FAULT = "FAULT"


STYLES = {HealthState.OK: "green", HealthState.NOTE: "yellow", HealthState.FAULT: "bold red"}


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """What was checked, what was found, and advice."""

    name: str
    state: HealthState
    found: str
    advice: str = ""


def doctor(
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="The store directory, existing or planned.")
    ] = Path("skylark-data"),
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Check this machine and the servers, with advice for each fault.

    Checks Python, Java, ports, disk, limits, clocks, routes, certificates, and whether the members of each
    group subscribe the same. Exit code 1 if there are faults.

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


# --- The servers ---


def servers(namesrv: str) -> Iterator[HealthCheck]:
    """Checks of the name servers and of all registered brokers."""
    from skylark.admin.admin import Admin  # noqa: PLC0415

    try:
        with Admin(namesrv=namesrv, timeout_ms=TIMEOUT_MS) as admin:
            yield from _asked(admin, namesrv)
    except RocketMQError as error:
        yield HealthCheck(
            "name servers",
            HealthState.FAULT,
            str(error),
            "start one with `skylark serve`, or pass --namesrv HOST:PORT",
        )


def _asked(admin: Admin, namesrv: str) -> Iterator[HealthCheck]:
    asked_s = time.time()
    summary = admin.brokers.summary()
    yield HealthCheck("name servers", HealthState.OK, namesrv)
    if not summary.brokers and not summary.failures:
        advice = f"start one with `skylark broker --namesrv {namesrv}`"
        yield HealthCheck("brokers", HealthState.FAULT, "none registered", advice)
    for address, error in summary.failures.items():
        advice = "check that it runs, and that clients can connect to this address: see --advertise"
        yield HealthCheck(f"broker at {address}", HealthState.FAULT, str(error), advice)
    different: set[str] = set()
    masters = {item.node.name for item in summary.brokers if item.node.is_master}
    for item in summary.brokers:
        runtime = admin.brokers.runtime(item.node.address)
        name = f"broker {item.node.name}" + ("" if item.node.is_master else f" ({item.node.broker_id})")
        if item.disk_used_ratio > DISK_USED_MAX:
            advice = "free some space, or shorten the retention: fileReservedTime"
            yield HealthCheck(name, HealthState.FAULT, f"disk {item.disk_used_ratio:.0%} full", advice)
        elif item.node.name not in masters:
            yield HealthCheck(
                name, HealthState.FAULT, "has no master", "start the master: producers cannot send to it now"
            )
        else:
            metrics = runtime.get("metricsAddress")
            served = f", metrics http://{metrics}/metrics" if metrics else ""
            yield HealthCheck(name, HealthState.OK, f"{item.node.address}, {item.version}{served}")
        yield _clock(name, runtime, asked_s, time.time())
        different.update((runtime.get("differentSubscriptions") or "").split())
        if host := runtime.get("insecureListener"):
            found = f"listens on {host} without authentication: everybody there may read, write and delete"
            advice = "set authenticationEnabled=true, or bind it to 127.0.0.1"
            yield HealthCheck(f"access to {name}", HealthState.NOTE, found, advice)
        if failure := runtime.get("tlsReloadFailure"):
            advice = "replace certificate and key; the old certificate is used until then"
            yield HealthCheck(f"certificate files of {name}", HealthState.FAULT, failure, advice)
    yield from certificates(namesrv, [item.node.address for item in summary.brokers], datetime.now(UTC))
    yield from _subscriptions(admin, sorted(different))


def _subscriptions(admin: Admin, groups: list[str]) -> Iterator[HealthCheck]:
    """The groups of which brokers say that not all members subscribe the same."""
    advice = "give all members of a group the same topics and expressions, or each its own group"
    for group in groups:
        try:
            kinds = admin.clients.consumers(group).different_subscriptions
        except RocketMQError:
            continue  # its members have left meanwhile
        if kinds:
            found = (
                f"members have different subscriptions, so messages are skipped: {'; '.join(map(str, kinds))}"
            )
            yield HealthCheck(f"group {group}", HealthState.FAULT, found, advice)


# --- Certificates ---


def certificates(namesrv: str, brokers: Iterable[str], now: datetime) -> Iterator[HealthCheck]:
    """Checks of the dates of all certificates that a client with TLS sees, its own included."""
    from skylark.settings.client import ClientSettings  # noqa: PLC0415
    from skylark.settings.tls import client_tls_settings  # noqa: PLC0415

    settings = client_tls_settings(ClientSettings())
    if settings is None:
        return
    for file in filter(None, (settings.trusted, settings.certificate)):
        yield _certificate(f"certificate {file}", file.read_bytes, now)
    for address in dict.fromkeys([*namesrv.replace(",", ";").split(";"), *brokers]):
        yield _certificate(f"certificate of {address}", partial(_served_certificate, address.strip()), now)


def _served_certificate(address: str) -> bytes:
    import ssl  # noqa: PLC0415

    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=TIMEOUT_MS / 1000).encode()


def _certificate(name: str, read: Callable[[], bytes], now: datetime) -> HealthCheck:
    from skylark.certificates import expires_at  # noqa: PLC0415

    try:
        expires = expires_at(read())
    except (OSError, ValueError) as error:
        return HealthCheck(
            name, HealthState.FAULT, str(error), "check the file, or that the server accepts TLS"
        )
    found = f"valid until {expires:%Y-%m-%d}"
    if expires <= now:
        return HealthCheck(name, HealthState.FAULT, f"expired on {expires:%Y-%m-%d}", RENEW)
    if expires - now < timedelta(days=EXPIRY_WARNING_DAYS):
        return HealthCheck(name, HealthState.NOTE, found, RENEW)
    return HealthCheck(name, HealthState.OK, found)


def _clock(broker: str, runtime: Mapping[str, str], before_s: float, after_s: float) -> HealthCheck:
    """Compare clocks: a broker reports its start time and, in whole seconds, its uptime."""
    name = f"clock of {broker}"
    ran = _RUNTIME.search(runtime.get("runtime", ""))
    try:
        started_s = int(runtime["bootTimestamp"]) / 1000
    except (KeyError, ValueError):
        return HealthCheck(name, HealthState.NOTE, "not reported")
    if ran is None:
        return HealthCheck(name, HealthState.NOTE, "not reported")
    days, hours, minutes, seconds = map(int, ran.groups())
    now_s = started_s + ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    skew_s = max(before_s - now_s - 1, now_s - after_s, 0.0)
    if skew_s > SKEW_S_MAX:
        advice = "synchronise the clocks of both machines (NTP): delays and searches by time depend on them"
        return HealthCheck(name, HealthState.FAULT, f"{skew_s:.0f} s off this machine's clock", advice)
    return HealthCheck(name, HealthState.OK, "agrees with this machine's clock")
