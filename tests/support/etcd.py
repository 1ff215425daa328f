"""An etcd of one or several members, from Debian's package `etcd-server`."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from skylark.controller.etcd_member import PROGRAM, EtcdMember
from skylark.processes import PortReservation, Server
from tests.support.certificates import CertificateFiles
from tests.support.java import missing

READY_TIMEOUT_S = 60
HEALTH_TIMEOUT_S = 2


class EtcdServer(Server):
    """Keeps its data over `kill` and `start`."""

    title = "etcd"

    def __init__(self, home: Path, name: str = "n0", tls: CertificateFiles | None = None) -> None:
        super().__init__(home, PortReservation(0, 1))
        self.name = name
        self.tls = tls
        self.members: Sequence[EtcdServer] = [self]
        """All of its cluster, itself included; set before the first start."""

    @property
    def url(self) -> str:
        return f"http{'' if self.tls is None else 's'}://{self.address}"

    @property
    def member(self) -> EtcdMember:
        return EtcdMember(self.name, self.port)

    def command(self, start: int) -> list[str]:
        command = self.member.command(program(), self.home, [each.member for each in self.members])
        if self.tls is None:
            return command
        files = ["--cert-file", str(self.tls.certificate), "--key-file", str(self.tls.key)]
        return [*(self.url if word == self.member.url else word for word in command), *files]

    def wait_until_serving(self) -> None:
        self._running().wait_until(self._is_healthy, "etcd to be healthy", READY_TIMEOUT_S)

    def _is_healthy(self) -> bool:
        try:
            return str(self.ask("/health").get("health")) == "true"
        except (OSError, urllib.error.URLError, ValueError):
            return False

    def ask(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Post to the gateway, or get a page. Raises OSError, ValueError."""
        data = None if body is None else json.dumps(body).encode()
        context = None if self.tls is None else self.tls.client_context()
        # A password takes a tenth of a second of the processor, which may be busy.
        timeout_s = HEALTH_TIMEOUT_S if body is None else READY_TIMEOUT_S
        request = urllib.request.urlopen(self.url + path, data, timeout_s, context=context)  # noqa: S310
        with request as reply:
            found: dict[str, Any] = json.load(reply)
            return found

    def add_user(self, name: str, password: str, prefix: str) -> None:
        """Let a user read and write keys with a prefix, and nobody else read or write anything."""
        self.ask("/v3/auth/user/add", {"name": "root", "password": password})
        self.ask("/v3/auth/role/add", {"name": "root"})
        self.ask("/v3/auth/user/grant", {"user": "root", "role": "root"})
        self.ask("/v3/auth/user/add", {"name": name, "password": password})
        self.ask("/v3/auth/role/add", {"name": name})
        first, last = prefix.encode(), prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1])
        keys = {"key": base64.b64encode(first).decode(), "range_end": base64.b64encode(last).decode()}
        self.ask("/v3/auth/role/grant", {"name": name, "perm": {"permType": "READWRITE", **keys}})
        self.ask("/v3/auth/user/grant", {"user": name, "role": name})
        self.ask("/v3/auth/enable", {})


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
