"""An etcd of one member, from Debian's package `etcd-server`."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from skylark.processes import HOST, PortReservation, Server
from tests.support.java import missing

PROGRAM = "etcd"
READY_TIMEOUT_S = 60


class EtcdServer(Server):
    """Keeps its data over `kill` and `start`."""

    title = "etcd"

    def __init__(self, home: Path) -> None:
        super().__init__(home, PortReservation(0, 1))

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def command(self, start: int) -> list[str]:
        peer = f"http://{HOST}:{self.port + 1}"
        return [
            program(), "--data-dir", str(self.home / "data"), "--name", "n0",
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"n0={peer}", "--logger", "zap", "--log-level", "error",
        ]  # fmt: skip

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
