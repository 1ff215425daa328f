"""Pure. The members of an etcd on this machine: their addresses and command lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skylark.processes import HOST

PROGRAM = "etcd"
ETCD_PORTS = (0, 1)  # for clients, for peers
MEMBERS = 3
"""The loss of one of them costs nothing."""


@dataclass(frozen=True)
class EtcdMember:
    """One process. Its port for other members is the next one."""

    name: str
    port: int
    peer_host: str = HOST
    """Where the other members reach it."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def peer_url(self) -> str:
        return f"http://{self.peer_host}:{self.peer_port}"

    @property
    def peer_port(self) -> int:
        return self.port + ETCD_PORTS[1]

    def command(self, program: str, home: Path, members: Sequence[EtcdMember]) -> list[str]:
        """`members` are all of its cluster, itself included."""
        return [
            program, "--data-dir", str(home / "data"), "--name", self.name,
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", f"http://{HOST}:{self.peer_port}",
            "--initial-advertise-peer-urls", self.peer_url,
            "--initial-cluster", ",".join(f"{each.name}={each.peer_url}" for each in members),
            "--logger", "zap", "--log-level", "error",
        ]  # fmt: skip
