"""A member of a group as a process of its own, which can be killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Self

MEMBER = """
import sys
from skylark import ClientSettings, PushConsumer
from tests.support.consumer import fast

namesrv, path = sys.argv[1:]
client = ClientSettings(route_refresh_interval_ms=500)
consumer = PushConsumer("G", namesrv=namesrv, settings=fast(), client=client)
file = open(path, "ab", buffering=0)

@consumer.subscribe("T")
def handle(messages):
    for message in messages:
        file.write(message.body + b"\\n")

consumer.run()
"""


DEFAULT_MEMBER = MEMBER.replace("settings=fast(), client=client", "")
"""The same with the settings that users get."""


class MemberProcess:
    """A consumer in a process of its own, which writes what it gets to a file."""

    def __init__(self, directory: Path, name: str, namesrv: str, program: str = MEMBER) -> None:
        self._path = directory / name
        self._arguments = [sys.executable, "-c", program, namesrv, str(self._path)]
        self.process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            *self._arguments, cwd=Path(__file__).parents[2], stderr=asyncio.subprocess.DEVNULL
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        async with asyncio.timeout(60):
            return await self.process.wait()

    def got(self) -> list[bytes]:
        return self._path.read_bytes().split() if self._path.exists() else []
