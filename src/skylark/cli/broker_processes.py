"""`skylark serve --brokers N`: one name server, and broker processes that are restarted when they exit.

Brokers are RocketMQ's unit of scale: each has its own core, ports and store directory.
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
from pathlib import Path
from typing import Any

from skylark.cli.errors import UsageError
from skylark.namesrv.server import NameServer
from skylark.settings import BrokerSettings, NameServerSettings

log = logging.getLogger(__name__)

BROKERS_MAX = 26  # each has a letter
PORT_DISTANCE = 10
READY_MARK = "ready after"
LATE_S = 30.0
"""After so long somebody who waits for brokers is told which."""
RESTART_FIRST_S = 0.5
RESTART_MAX_S = 30.0
STEADY_S = 60.0
"""A broker that ran for so long is started again at once, whatever happened before."""
STOP_TIMEOUT_S = 15.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STORE_MARK = "lock"
"""A file that every store has."""
OWN_SETTINGS = frozenset(
    "name name_servers port replica_port metrics_port store.path store.commit_log_path".split()
)
"""What each broker has for itself, whatever was said for all: two of them in one log would destroy it."""

Say = Callable[[str], None]


class BrokerProcess:
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
                raise UsageError(f"{self.name} did not start, see above; the others are stopped")
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
        if self._stopping:  # since we asked for the process
            self._process.terminate()
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
    """The command of each broker, by its name; `more` are flags for all, none of them of OWN_SETTINGS."""
    commands = {}
    for number in range(count):
        name = f"broker-{chr(ord('a') + number)}"
        own = {
            "name": name,
            "name_servers": namesrv,
            "port": _apart(settings.port, number * PORT_DISTANCE),
            "metrics_port": _apart(settings.metrics_port, number),
            "store.path": settings.store.path / name,
        }
        if settings.replica_port is not None:
            own["replica_port"] = _apart(settings.replica_port, number * PORT_DISTANCE)
        if settings.store.commit_log_path is not None:
            own["store.commit_log_path"] = settings.store.commit_log_path / name
        sets = [word for key, value in own.items() for word in ("--set", f"{key}={value}")]
        command = (sys.executable, "-m", "skylark.cli.start", "broker", "--stop-with-stdin")
        commands[name] = [*command, *more, *sets]
    return commands


def _apart(port: int, distance: int) -> int:
    """0 is any port, for each of them."""
    return port + distance if port else 0


def check_layout(directory: Path, count: int) -> None:
    """Beside a store that is not theirs brokers would begin anew, as if it were lost. Raises Mistake."""
    is_one = (directory / STORE_MARK).exists()
    several = sorted(mark.parent.name for mark in directory.glob(f"broker-?/{STORE_MARK}"))
    if count > 1 and is_one and not several:
        raise UsageError(
            f"{directory} holds the store of one broker, which --brokers {count} would leave aside:"
            f" move it to {directory / 'broker-a'}, or choose another --data"
        )
    if count == 1 and several and not is_one:
        raise UsageError(
            f"{directory} holds the stores of {', '.join(several)}: say --brokers {len(several)},"
            " or choose another --data"
        )


def _check(count: int) -> None:
    if not 1 <= count <= BROKERS_MAX:
        raise UsageError(f"--brokers {count}: 1 to {BROKERS_MAX} are possible")


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
        brokers = [BrokerProcess(name, command, say) for name, command in commands.items()]
        watching = [asyncio.ensure_future(broker.watch()) for broker in brokers]
        try:
            ending = asyncio.ensure_future(stopped.wait())
            await _until_ready(brokers, [ending, *watching], say)
            if not ending.done():
                on_ready(namesrv)
                await _first([ending, *watching])
        finally:
            await asyncio.gather(*(broker.stop() for broker in brokers))
            await asyncio.gather(*watching, return_exceptions=True)
    finally:
        await name_server.stop()


async def _until_ready(
    brokers: Sequence[BrokerProcess], ends: Sequence[asyncio.Future[Any]], say: Say
) -> None:
    """Until all brokers are, or one of the ends has come. A long log takes its time to be recovered."""
    ready = asyncio.ensure_future(_all_ready(brokers))
    while not await _first([ready, *ends], LATE_S):
        late = ", ".join(broker.name for broker in brokers if not broker.ready.is_set())
        say(f"{late}: not ready yet; the store may be recovering")
    ready.cancel()


async def _all_ready(brokers: Sequence[BrokerProcess]) -> None:
    for broker in brokers:
        await broker.ready.wait()


async def _first(waiting: Sequence[asyncio.Future[Any]], timeout_s: float | None = None) -> bool:
    """Wait until one of them is done, and say whether one is; what it raised is raised here."""
    done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for each in done:
        each.result()
    return bool(done)
