"""An etcd of one or several members, from Debian's package `etcd-server`."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from skylark.controller.etcd_member import PROGRAM, EtcdMember
from skylark.processes import PortReservation, Server
from tests.support.java import missing

READY_TIMEOUT_S = 60


class EtcdServer(Server):
    """Keeps its data over `kill` and `start`."""

    title = "etcd"

    def __init__(self, home: Path, name: str = "n0") -> None:
        super().__init__(home, PortReservation(0, 1))
        self.name = name
        self.members: Sequence[EtcdServer] = [self]
        """All of its cluster, itself included; set before the first start."""

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def member(self) -> EtcdMember:
        return EtcdMember(self.name, self.port)

    def command(self, start: int) -> list[str]:
        return self.member.command(program(), self.home, [each.member for each in self.members])

    def wait_until_serving(self) -> None:
        self._running().wait_until(self._is_healthy, "etcd to be healthy", READY_TIMEOUT_S)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as reply:  # noqa: S310 - ours
                return str(json.load(reply).get("health")) == "true"
        except (OSError, urllib.error.URLError, ValueError):
            return False


def program() -> str:
    """The path of etcd; skips the test where it is not installed, except under CI."""
    found = shutil.which(PROGRAM)
    if found is None:
        missing("etcd is not installed; apt-get install etcd-server")
    return str(found)


def running_etcd(home: Path) -> Iterator[EtcdServer]:
    """For a fixture."""
    with EtcdServer(home) as server:
        yield server


@contextmanager
def running_etcd_members(home: Path, count: int = 3) -> Iterator[list[EtcdServer]]:
    """Members of one cluster, which all serve."""
    members = [EtcdServer(home / f"n{number}", f"n{number}") for number in range(count)]
    with ExitStack() as stack:
        for each in members:
            each.members = members
            stack.callback(each.kill)
            each.launch()
        for each in members:
            each.wait_until_serving()
        yield members
