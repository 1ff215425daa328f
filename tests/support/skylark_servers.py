"""Our servers as a process of their own, by the command of the users, for tests with other people's clients.

Their stores have small files. Leaving the context kills the process, because a test that cares for an
orderly end calls `stop`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from skylark.bench import servers as commands

SMALL_STORE = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
}
VERSION = "V5_3_3"
"""The release whose behaviour ours is, as brokers name it."""
GREETING = ("skylark ", "store ", "metrics ", "try: skylark ", "     skylark ")
SLOW_DISK = " append took "
"""What a store says on a machine that stood still for a second."""


class SkylarkServers(commands.SkylarkServers):
    """`skylark serve`: a name server and a broker, everything they write below `directory`."""

    version = VERSION

    def __init__(self, directory: Path, settings: Mapping[str, str | int]) -> None:
        super().__init__(directory, {**SMALL_STORE, **settings})

    def complaints(self) -> str:
        """What the servers have written beside their greeting, over all starts."""
        return complaints(self)


class SkylarkBroker(commands.SkylarkCommand):
    """`skylark broker` with somebody else's name server."""

    version = VERSION

    def __init__(self, directory: Path, name_server: str, settings: Mapping[str, str | int]) -> None:
        super().__init__(directory, {**SMALL_STORE, **settings})
        self.name_server = name_server

    def arguments(self) -> Sequence[str]:
        flags = ["--namesrv", self.name_server, "--port", str(self.port)]
        return ["broker", "--data", str(self.home / "data"), *flags]

    def complaints(self) -> str:
        """As of `SkylarkServers`."""
        return complaints(self)


def complaints(servers: commands.SkylarkCommand) -> str:
    """The lines of all logs that are no greeting, and not about the machine."""
    lines = [
        line
        for log in sorted(servers.home.glob(f"{servers.title}-*.log"))
        for line in log.read_text(errors="replace").splitlines()
    ]
    return "\n".join(line for line in lines if not line.startswith(GREETING) and SLOW_DISK not in line)
