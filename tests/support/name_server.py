"""Our name server as a process of its own, for tests that start Java programs or send signals."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from skylark.processes import GroupProcess

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
PROGRAM = """
import logging, sys
from pathlib import Path
import uvloop
from skylark.namesrv.server import serve
from skylark.settings import NameServerSettings

logging.basicConfig(level=logging.INFO)
directory, *pairs = sys.argv[1:]
settings = NameServerSettings(
    port=0,
    kv_config_path=Path(directory, "kvConfig.json"),
    config_path=Path(directory, "namesrv.conf"),
    **{name: int(value) for name, value in (pair.split("=") for pair in pairs)},
)
uvloop.run(serve(settings, on_ready=lambda server: print("ready at", server.address, flush=True)))
"""
_READY = re.compile(r"ready at (\S+)")


class NameServerProcess:
    """A name server on a free port, at `address`; its files lie in `directory`. Numbers are settings."""

    def __init__(self, directory: Path, **numbers: int) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        pairs = [f"{name}={value}" for name, value in numbers.items()]
        self.process = GroupProcess(
            [sys.executable, "-c", PROGRAM, str(directory), *pairs], log=directory / "output.log"
        )
        self.address = ""

    def __enter__(self) -> Self:
        try:
            self.process.wait_until(
                lambda: _READY.search(self.process.log_text()) is not None, "ready", START_TIMEOUT_S
            )
        except BaseException:
            self.process.kill()
            raise
        ready = _READY.search(self.process.log_text())
        assert ready is not None
        self.address = ready[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()

    def stop(self) -> int:
        """SIGTERM, then the exit code. Raises ProcessFailed if SIGKILL was needed."""
        return self.process.terminate(STOP_TIMEOUT_S)
