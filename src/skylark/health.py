"""Checks of name servers and brokers, with advice for each problem: for `skylark doctor` and the console."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from skylark.errors import RocketMQError

if TYPE_CHECKING:
    from skylark.admin.admin import Admin

DISK_USED_MAX = 0.85
"""Brokers refuse messages from 0.90 on."""
SKEW_S_MAX = 5.0
TIMEOUT_MS = 3000
EXPIRY_WARNING_DAYS = 30
RENEW = "renew it; servers load changed files by themselves (a trial: `skylark tls init DIR --renew`)"
_RUNTIME = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")


class HealthState(Enum):
    OK = "ok"
    NOTE = "note"
    FAULT = "FAULT"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """What was checked, what was found, and advice."""

    name: str
    state: HealthState
    found: str
    advice: str = ""


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
        yield from _security(name, runtime)
    with suppress(RocketMQError):  # without the right to read settings
        for address, settings in admin.name_servers.config().items():
            yield from _security(f"name server {address}", settings)
    for known in sorted(_controllers_of(admin, [item.node.address for item in summary.brokers])):
        yield from controllers(admin, known)
    yield from certificates(namesrv, [item.node.address for item in summary.brokers], datetime.now(UTC))
    yield from _subscriptions(admin, sorted(different))


def _security(name: str, told: Mapping[str, str]) -> Iterator[HealthCheck]:
    """Tell of a server that is open to everybody, and of certificate files that it could not load."""
    if host := told.get("insecureListener"):
        found = f"listens on {host} without authentication: everybody there may read, write and delete"
        advice = "set authenticationEnabled=true, or bind it to 127.0.0.1"
        yield HealthCheck(f"access to {name}", HealthState.NOTE, found, advice)
    if failure := told.get("tlsReloadFailure"):
        advice = "replace certificate and key; the old certificate is used until then"
        yield HealthCheck(f"certificate files of {name}", HealthState.FAULT, failure, advice)


def _controllers_of(admin: Admin, brokers: Iterable[str]) -> set[str]:
    """The controllers that brokers are given, as they are written in their settings."""
    found: set[str] = set()
    for address in brokers:
        try:
            config = admin.brokers.config(address)
        except RocketMQError:
            continue  # no permission, or gone meanwhile
        if config.get("enableControllerMode") == "true":
            found.add(config.get("controllerAddr", ""))
    return found - {""}


def controllers(admin: Admin, addresses: str) -> Iterator[HealthCheck]:
    """Checks of the controllers at these addresses, and of the broker names that they know."""
    try:
        leader = admin.controllers.leader(addresses)
        answered = admin.controllers.metadata(addresses)
        groups = admin.controllers.replicas(addresses)
    except RocketMQError as error:
        advice = "start a controller, or its etcd: a lost master is not replaced until then"
        yield HealthCheck("controllers", HealthState.FAULT, str(error), advice)
        return
    silent = [each for each in addresses.split(";") if each.strip() and each.strip() not in answered]
    if silent:
        found, advice = (
            f"{leader} leads, no answer of {', '.join(silent)}",
            "start them: another loss may stop all",
        )
        yield HealthCheck("controllers", HealthState.NOTE, found, advice)
    else:
        yield HealthCheck("controllers", HealthState.OK, f"{leader} leads, {len(answered)} answer")
    with suppress(RocketMQError):  # without the right to read settings
        for address, settings in admin.controllers.config(";".join(answered)).items():
            yield from _security(f"controller {address}", settings)
    for name, group in sorted(groups.items()):
        behind = [each.broker_id for each in group.not_in_sync_replicas]
        dead = [each.broker_id for each in group.in_sync_replicas if not each.alive]
        if group.master_broker_id is None or group.master_broker_id in dead:
            found, advice = "has no master", "start a replica that was in sync (`skylark controller status`)"
            yield HealthCheck(f"replicas of {name}", HealthState.FAULT, found, advice)
        elif behind or dead:
            found = f"not in sync: {', '.join(map(str, sorted(behind + dead)))}"
            advice = f"start them, or forget them: `skylark controller clean {name} ID`"
            yield HealthCheck(f"replicas of {name}", HealthState.NOTE, found, advice)
        else:
            found = f"all {len(group.in_sync_replicas)} in sync"
            yield HealthCheck(f"replicas of {name}", HealthState.OK, found)


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
