"""Apache's admin tool: `java/admin/AdminLines.java`, one JVM for any number of commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.peers.java import Classpath, jvm_command
from skylark.processes import run
from tests.interop.versions import JAVA, MAIN, POMS
from tests.support.java import compiled

HEAP_MB = 256
COMMANDS_TIMEOUT_S = 300


def admin_classpath(version: str = MAIN) -> Classpath:
    """The tool of a release. Skips (or fails) the test where it cannot be fetched."""
    return compiled(POMS[version], sorted((JAVA / "admin").glob("*.java")))


class MqAdmin:
    """The tool, set to one name server. Its logs, and files that it leaves, lie in `directory`."""

    def __init__(
        self, classpath: Classpath, name_server: str, directory: Path, *, options: Sequence[str] = ()
    ) -> None:
        self._options = options
        self._classpath = classpath
        self._name_server = name_server
        self._directory = directory
        self._calls = 0

    def run(self, *commands: Sequence[str]) -> list[str]:
        """What each command has printed. Raises ProcessFailed if the tool did not come to its end."""
        self._calls += 1
        base = self._directory / f"admin-{self._calls}"
        lines, result = base.with_suffix(".in.json"), base.with_suffix(".out.json")
        lines.write_bytes(msgspec.json.encode([[*command, "-n", self._name_server] for command in commands]))
        command = jvm_command(
            self._classpath,
            "AdminLines",
            str(lines),
            str(result),
            home=self._directory,
            heap_mb=HEAP_MB,
            options=self._options,
        )
        run(command, log=base.with_suffix(".log"), timeout_s=COMMANDS_TIMEOUT_S, directory=self._directory)
        return msgspec.json.decode(result.read_bytes(), type=list[str])
