"""What signatures and TLS cost: sends and pulls, open and secured, on one broker of each kind in turn.

python -m benchmarks.security                   ours: about 90 seconds
python -m benchmarks.security --peer apache     and beside it Apache RocketMQ 5.3.3 with the same settings

Cells: 64 sends in flight of 128 B and 1 KiB, and pulls of 1 KiB (a backlog in 4 queues, one pull of 32 in
flight for each): open, signed by a user with rights to all topics, over TLS, and both. There are two brokers
of each make: one that is open, and one with users and rights. Both accept TLS beside plain text. The ratios
are those of a cell to the open one of the same round, and of ours to the peer's. Those of processor time
suffer least from what else the machine does.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks._common import report
from benchmarks.broker import BODIES, QUEUES, Contender, Contestant, Figures, spread
from benchmarks.broker import Cell as BrokerCell
from benchmarks.peers.apache import POM, ApacheNameServer, MeasuredBroker
from skylark.bench.load_client import LoadClient
from skylark.bench.machine import BROKER_CPU, can_pin, pinned, scratch
from skylark.bench.servers import SETTINGS, own_broker
from skylark.certificates import CertificateDirectory, make_directory
from skylark.errors import RocketMQError
from skylark.protocol.bodies import AclInfo, Policy, PolicyEntry, UserInfo
from skylark.protocol.requests.admin import AuthCreateAcl, AuthCreateUser
from skylark.settings.credentials import Credentials
from skylark.settings.tls import ClientTlsSettings
from tests.support.java import jars_of

ROOT = Credentials("root", "benchmark-root-secret")
USER = Credentials("benchmark", "benchmark-user-secret")
AUTH = "org.apache.rocketmq.auth"
USERS: dict[str, str | int] = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": "inner-secret"}),
}
"""The same for both makes."""
RIGHTS = {"Topic:*": ["Pub", "Sub", "Create", "Get"], "Group:*": ["Sub"]}
WAYS = ("open", "signed", "tls", "tls-signed")
IN_FLIGHT = 64
PULLED = 32
CELL_WARM_UP_S = 0.5
BACKLOG = 51_200
APACHE_HEAP_MB = 1024
CERTIFICATE_DAYS = 2
EXPECTED = {"send-signed": 0.8, "send-tls-1KiB": 0.6, "pull-tls": 0.5}
"""Ratios to the open cell: at least these."""
PEER_EXPECTED = 1.5


@dataclass(frozen=True)
class Cell:
    """A load in one of the ways."""

    way: str
    load: BrokerCell

    @property
    def name(self) -> str:
        return f"{'pull' if self.load.pulls else 'send'}-{self.way}-{self.load.name}"

    @property
    def open_name(self) -> str:
        return f"{'pull' if self.load.pulls else 'send'}-open-{self.load.name}"


def make_cells() -> list[Cell]:
    sends = [BrokerCell(body, "async", body_bytes, IN_FLIGHT) for body, body_bytes in BODIES.items()]
    pull = BrokerCell("1KiB", "async", 1024, QUEUES, batch=PULLED, pulls=True)
    return [Cell(way, load) for load in sends for way in WAYS] + [Cell(way, pull) for way in WAYS[:3]]


# --- Brokers ---

Start = Callable[[Path, dict[str, str | int], CertificateDirectory], AbstractContextManager[str]]


@contextmanager
def ours(
    directory: Path, settings: dict[str, str | int], certificates: CertificateDirectory
) -> Iterator[str]:
    tls = {"tls.config.file": str(certificates.properties), "tls.server.mode": "permissive"}
    with own_broker(directory, settings={**settings, **tls}, cpu=BROKER_CPU) as served:
        yield served.broker


@contextmanager
def apache(
    directory: Path, settings: dict[str, str | int], certificates: CertificateDirectory
) -> Iterator[str]:
    classpath = jars_of(POM)
    options = ("-Dtls.test.mode.enable=false", f"-Dtls.config.file={certificates.properties}")
    with pinned(BROKER_CPU), ApacheNameServer(classpath, directory / "name-server") as name_server:
        broker = MeasuredBroker(
            classpath,
            directory / "home",
            directory / "store",
            name_server=name_server.address,
            settings={**SETTINGS, **settings, "flushDiskType": "ASYNC_FLUSH"},
            heap_mb=APACHE_HEAP_MB,
        )
        broker.options = (*broker.options, *options)
        with broker:
            yield broker.address


MAKES: dict[str, Start] = {"ours": ours, "apache": apache}


def add_user(address: str) -> None:
    """Create the user that the loads are signed by."""
    body = UserInfo(username=USER.access_key, password=USER.secret_key, user_type="Normal")
    entries = [
        PolicyEntry(resource=name, actions=list(may), decision="Allow") for name, may in RIGHTS.items()
    ]
    subject = f"User:{USER.access_key}"
    with LoadClient(ROOT).connection(address) as connection:
        connection.call(AuthCreateUser(USER.access_key, body=body))
        connection.call(
            AuthCreateAcl(subject, body=AclInfo(subject=subject, policies=[Policy(entries=entries)]))
        )


class Make:
    """The two brokers of one make, as each of the ways sees them."""

    def __init__(self, name: str, by_way: dict[str, Contestant]) -> None:
        self.name = name
        self._by_way = by_way

    def measure(self, cell: Cell, seconds: float) -> tuple[Figures, list[str]]:
        return self._by_way[cell.way].measure_cell(
            cell.load, seconds, warm_up_s=CELL_WARM_UP_S, backlog=BACKLOG
        )

    def warm_up(self, cells: list[Cell], seconds: float) -> None:
        """For a JVM to compile itself, on all processors: on one it would take minutes."""
        if not seconds:
            return
        with ExitStack() as stack:
            for target in (self._by_way["open"], self._by_way["signed"]):
                stack.enter_context(target.process.spread())
            for cell in cells:
                self.measure(cell, seconds / len(cells))
        for target in (self._by_way["open"], self._by_way["signed"]):
            target.process.wait_settled()

    def signal(self, number: signal.Signals) -> None:
        for target in (self._by_way["open"], self._by_way["signed"]):
            target.process.signal(number)


def start(name: str, directory: Path, certificates: CertificateDirectory, stack: ExitStack) -> Make:
    with pinned(BROKER_CPU):
        plain = stack.enter_context(MAKES[name](directory / "open", {}, certificates))
        guarded = stack.enter_context(MAKES[name](directory / "guarded", USERS, certificates))
    add_user(guarded)
    tls = ClientTlsSettings(enabled=True, trusted=certificates.authority)
    contender = Contender(name, lambda *_: nullcontext(""))
    by_way: dict[str, Contestant] = {}
    for way in WAYS:
        is_signed = "signed" in way
        client = LoadClient(USER if is_signed else None, tls if "tls" in way else None)
        by_way[way] = Contestant(contender, guarded if is_signed else plain, client, directory)
        stack.callback(by_way[way].close)
    return Make(name, by_way)


# --- All cells ---

Rounds = dict[str, dict[str, list[Figures | None]]]
"""By cell and make; None for a round whose counts were wrong."""


def run(names: list[str], cells: list[Cell], arguments: argparse.Namespace) -> Rounds:
    rounds: Rounds = {cell.name: {name: [] for name in names} for cell in cells}
    with ExitStack() as stack:
        path = stack.enter_context(scratch())
        certificates = make_directory(path / "certificates", ["127.0.0.1"], days=CERTIFICATE_DAYS)
        makes = [start(name, path / name, certificates, stack) for name in names]
        for make in makes:
            with alone(make, makes):
                make.warm_up(cells, arguments.warm_up if make.name == "apache" else 0.0)
        for _ in range(arguments.rounds):
            for cell in cells:
                for make in makes:
                    with alone(make, makes):
                        figures, wrong = make.measure(cell, arguments.seconds)
                    rounds[cell.name][make.name].append(None if wrong else figures)
                    say(cell.name, make.name, figures, wrong)
    return rounds


@contextmanager
def alone(make: Make, makes: list[Make]) -> Iterator[None]:
    """The brokers of the other make are stopped: an idle JVM takes up to a tenth of a processor."""
    others = [other for other in makes if other is not make]
    for other in others:
        other.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for other in others:
            other.signal(signal.SIGCONT)


def say(cell: str, name: str, figures: Figures, wrong: list[str]) -> None:
    print(
        f"{cell:20} {name:7} {figures['messages_per_s']:>9,.0f}/s  p99 {figures['p99_us']:>8,.0f} us"
        f"  broker {figures['broker_cpu_us']} us/message{'  VOID: ' + '; '.join(wrong) if wrong else ''}",
        file=sys.stderr,
    )


def ratios(
    rounds: Rounds, over: tuple[str, str], under: tuple[str, str], key: str = "messages_per_s"
) -> dict[str, float] | None:
    """Of two cells, each with its make, in the same rounds."""
    below = rounds.get(under[0], {}).get(under[1], [])  # may not have been asked for
    pairs = zip(rounds[over[0]][over[1]], below, strict=False)
    found = [a / b for mine, other in pairs if mine and other and (a := mine[key]) and (b := other[key])]
    return spread(found) if found else None


def results(rounds: Rounds, cells: list[Cell], names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for cell in cells:
        result: dict[str, Any] = {}
        for name in names:
            good = [figures for figures in rounds[cell.name][name] if figures]
            result[name] = {
                key: spread([value for each in good if (value := each[key]) is not None])
                for key in ("messages_per_s", "p99_us", "broker_cpu_us")
                if good
            }
            if cell.way != "open":
                pair = (cell.name, name), (cell.open_name, name)
                result[f"{name}_to_open"] = ratios(rounds, *pair)
                result[f"{name}_cpu_to_open"] = ratios(rounds, *pair, "broker_cpu_us")
        wanted = next((least for name, least in EXPECTED.items() if cell.name.startswith(name)), None)
        if wanted is not None:
            result["expected_to_open_at_least"] = wanted
        if len(names) == 2:
            result["ratio"] = ratios(rounds, (cell.name, names[0]), (cell.name, names[1]))
            result["expected_ratio_at_least"] = PEER_EXPECTED
        found[cell.name] = result
        words = [
            f"{key} {value['median']}"
            for key, value in result.items()
            if key.endswith(("open", "ratio")) and value
        ]
        print(f"{cell.name:20} {', '.join(words)}", file=sys.stderr)
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [cell.name for cell in make_cells()]
    parser.add_argument("--cells", nargs="+", default=["*"], metavar="PATTERN", help=f"of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a round of a cell")
    parser.add_argument("--rounds", type=int, help="3; 2 beside a peer")
    parser.add_argument("--peer", choices=["apache"], help="measure another system beside it, and the ratio")
    parser.add_argument("--warm-up", type=float, default=25.0, help="seconds for a JVM to compile itself")
    arguments = parser.parse_args()
    if not any(fnmatch.fnmatchcase(name, each) for name in names for each in arguments.cells):
        parser.error(f"no cell is called {' or '.join(arguments.cells)}; there are {', '.join(names)}")
    arguments.rounds = arguments.rounds or (2 if arguments.peer else 3)
    return arguments


def main() -> None:
    arguments = parse_arguments()
    # An end from outside takes the brokers and their directories along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    names = ["ours", *([arguments.peer] if arguments.peer else [])]
    cells = [
        cell for cell in make_cells() if any(fnmatch.fnmatchcase(cell.name, each) for each in arguments.cells)
    ]
    found: dict[str, Any] = {
        "conditions": {
            "client": LoadClient.kind,
            "broker_cpus": "one" if can_pin() else "shared with the client",
            "seconds": arguments.seconds,
            "rounds": arguments.rounds,
        }
    }
    try:
        found |= results(run(names, cells, arguments), cells, names)
    except (RocketMQError, pytest.skip.Exception, pytest.fail.Exception) as error:
        found["failed"] = str(error)
    report("security", found)
    if "failed" in found:
        sys.exit(f"{found['failed']}")


if __name__ == "__main__":
    main()
