"""Stock Java clients of several releases: `java/clients/ClientsDriver.java`, one JVM for many scenarios."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.java import Classpath, jvm_command
from skylark.processes import GroupProcess
from tests.interop.verdict import Results, results
from tests.interop.versions import JAVA, POMS
from tests.support.java import compiled
from tests.support.names import fresh_name

HEAP_MB = 256
SCENARIOS_TIMEOUT_S = 300
BINARY_HEADER = "-Drocketmq.serialize.type=ROCKETMQ"
_LIVE = re.compile(r"^LIVE (\S+) (\S+)$", re.MULTILINE)


def client_classpath(version: str) -> Classpath:
    """The driver compiled against the client of a version. Skips (or fails) the test where that cannot be."""
    return compiled(POMS[version], sorted((JAVA / "clients").glob("*.java")))


class ClientDriver:
    """Clients of one version and one name server; `name` is part of the names of all topics and groups."""

    def __init__(self, version: str, name_server: str, directory: Path, name: str | None = None) -> None:
        """Without a name it is one that no other driver has."""
        self._classpath = client_classpath(version)
        self._name_server = name_server
        self._directory = directory
        self.name = name or fresh_name(version.replace(".", "_"))

    @contextmanager
    def running(self, command: str, *scenarios: str, options: Sequence[str] = ()) -> Iterator[GroupProcess]:
        line = jvm_command(
            self._classpath,
            "ClientsDriver",
            command,
            self._name_server,
            self.name,
            *scenarios,
            home=self._directory,
            heap_mb=HEAP_MB,
            options=options,
        )
        with GroupProcess(line, log=self._directory / f"{command}-{self.name}.log") as process:
            yield process

    def run(self, command: str, *scenarios: str, options: Sequence[str] = ()) -> Results:
        """Run every scenario of a command, or these; what went wrong in each, or None."""
        with self.running(command, *scenarios, options=options) as process:
            return results(process, SCENARIOS_TIMEOUT_S)

    @contextmanager
    def live(self) -> Iterator[tuple[str, str]]:
        """A consumer and a producer that stay connected during the block; their client ids."""
        with self.running("live") as process:
            process.wait_until(
                lambda: _LIVE.search(process.log_text()) is not None, "live clients", SCENARIOS_TIMEOUT_S
            )
            found = _LIVE.search(process.log_text())
            assert found is not None
            yield found[1], found[2]
