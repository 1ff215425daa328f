"""`skylark serve --brokers N`: one name server, and brokers as processes that are watched and started again.

Brokers are RocketMQ's unit of scale: each has a core, ports and a store directory of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skylark.cli.mistake import Mistake
from skylark.namesrv.server import NameServer
from skylark.settings import BrokerSettings, NameServerSettings

log = logging.getLogger(__name__)

BROKERS_MAX = 26  # each has a letter
PORT_DISTANCE = 10
READY_MARK = "ready after"
READY_TIMEOUT_S = 30.0
RESTART_FIRST_S = 0.5
RESTART_MAX_S = 30.0
STEADY_S = 60.0
"""A broker that ran for so long is started again at once, whatever happened before."""
STOP_TIMEOUT_S = 15.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Say = Callable[[str], None]


class Broker:
    """A broker process and what to do when it ends by itself."""

    def __init__(self, name: str, command: Sequence[str], say: Say) -> None:
        self.name = name
        self._command = command
        self._say = say
        self._process: Process | None = None
        self._stopping = False
        self.ready = asyncio.Event()

    async def watch(self) -> None:
        """Run it, and again whenever it has ended, until `stop`. Raises Mistake if the first start fails."""
        pause_s = RESTART_FIRST_S
        while True:
            started = time.monotonic()
            code = await self._run_once()
            if self._stopping:
                return
            if not self.ready.is_set():
                raise Mistake(f"{self.name} did not start, see above; the others are stopped")
            if time.monotonic() - started > STEADY_S:
                pause_s = RESTART_FIRST_S
            self._say(f"{self.name} ended with code {code} and is started again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RESTART_MAX_S)

    async def _run_once(self) -> int:
        # In a group of its own: Ctrl-C is for us, who then stop brokers one by one.
        # Its standard input is ours to close, which the system does for us if we are killed: it then stops.
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            words = line.decode(errors="replace").rstrip()
            self._say(words if self.name in words else f"{self.name}: {words}")
            if READY_MARK in words:
                self.ready.set()
        return await self._process.wait()

    async def stop(self) -> None:
        self._stopping = True
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._say(f"{self.name} does not stop and is killed")
            self._process.kill()


def broker_commands(
    count: int, settings: BrokerSettings, namesrv: str, more: Sequence[str]
) -> Mapping[str, list[str]]:
    """The command of each broker, by its name."""
    commands = {}
    for number in range(count):
        name = f"broker-{chr(ord('a') + number)}"
        port = settings.port + number * PORT_DISTANCE if settings.port else 0
        metrics_port = settings.metrics_port + number if settings.metrics_port else 0
        commands[name] = [
            sys.executable, "-m", "skylark.cli.start", "broker", "--stop-with-stdin", *more,
            "--name", name, "--namesrv", namesrv,
            "--port", str(port), "--data", str(settings.store.path / name),
            "--set", f"metrics_port={metrics_port}",
        ]  # fmt: skip
    return commands


def _check(count: int) -> None:
    if not 1 <= count <= BROKERS_MAX:
        raise Mistake(f"--brokers {count}: 1 to {BROKERS_MAX} are possible")


async def serve(
    name_server_settings: NameServerSettings,
    settings: BrokerSettings,
    count: int,
    more: Sequence[str],
    say: Say,
    on_ready: Callable[[str], None],
) -> None:
    """Run until SIGTERM or SIGINT. Main thread only. Raises Mistake, OSError."""
    _check(count)
    stopped = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    name_server = NameServer(name_server_settings)
    await name_server.start()
    try:
        namesrv = name_server.address
        commands = broker_commands(count, settings, namesrv, more)
        brokers = [Broker(name, command, say) for name, command in commands.items()]
        watching = [asyncio.ensure_future(broker.watch()) for broker in brokers]
        try:
            await _until_ready(brokers, watching)
            on_ready(namesrv)
            await _first([asyncio.ensure_future(stopped.wait()), *watching])
        finally:
            await asyncio.gather(*(broker.stop() for broker in brokers))
            await asyncio.gather(*watching, return_exceptions=True)
    finally:
        await name_server.stop()


async def _until_ready(brokers: Sequence[Broker], watching: Sequence[asyncio.Future[None]]) -> None:
    ready = asyncio.ensure_future(asyncio.wait_for(_all_ready(brokers), READY_TIMEOUT_S))
    try:
        await _first([ready, *watching])
    except TimeoutError:
        late = ", ".join(broker.name for broker in brokers if not broker.ready.is_set())
        raise Mistake(f"{late}: not ready after {READY_TIMEOUT_S:g} s") from None


async def _all_ready(brokers: Sequence[Broker]) -> None:
    for broker in brokers:
        await broker.ready.wait()


async def _first(waiting: Sequence[asyncio.Future[Any]]) -> None:
    """Wait until one of them is done; what it raised is raised here."""
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in done:
        each.result()
