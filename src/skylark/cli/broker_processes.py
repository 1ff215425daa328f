"""`skylark serve --brokers N`: one name server, and broker processes that are restarted when they exit.

Brokers are RocketMQ's unit of scale: each process has its own core, ports and store directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skylark.cli.errors import UsageError
from skylark.cli.grpc_front import GrpcFront
from skylark.namesrv.server import NameServer
from skylark.settings import BrokerSettings, NameServerSettings
from skylark.stop_signal import StopSignal

BROKERS_MAX = 26  # each has a letter
PORT_DISTANCE = 10
READY_MARK = "ready after"
LATE_S = 30.0
"""After this time, and each time again, brokers that are not ready are named."""
RESTART_FIRST_S = 0.5
RESTART_MAX_S = 30.0
STEADY_S = 60.0
"""A broker that ran for this long is restarted after RESTART_FIRST_S, whatever happened before."""
STOP_TIMEOUT_S = 15.0
STORE_MARK = "lock"
"""A file that every store has."""
OWN_SETTINGS = frozenset(
    "name name_servers port replica_port metrics_port store.path store.commit_log_path".split()
)
"""Settings that each broker has for itself: two brokers in one commit log would destroy it."""

Say = Callable[[str], None]


def check_layout(directory: Path, count: int) -> None:
    """Refuse a directory with stores that this number of brokers would not use. Raises UsageError."""
    is_one = (directory / STORE_MARK).exists()
    several = sorted(mark.parent.name for mark in directory.glob(f"broker-?/{STORE_MARK}"))
    if count > 1 and is_one and not several:
        raise UsageError(
            f"{directory} holds the store of one broker, which --brokers {count} would not use;"
            f" move it to {directory / 'broker-a'}, or choose another --data"
        )
    if count == 1 and several and not is_one:
        raise UsageError(
            f"{directory} holds the stores of {', '.join(several)}; pass --brokers {len(several)},"
            " or choose another --data"
        )


def broker_commands(
    count: int, settings: BrokerSettings, namesrv: str, more: Sequence[str]
) -> Mapping[str, list[str]]:
    """The command line of each broker, by its name; `more` are flags for all, without OWN_SETTINGS."""
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
        command = (sys.executable, "-m", "skylark", "broker", "--stop-with-stdin")
        commands[name] = [*command, "--set", "share_new_topics=true", *more, *sets]
    return commands


def _apart(port: int, distance: int) -> int:
    """0 is any port, for every broker."""
    return port + distance if port else 0


class WatchedProcess:
    """A server process that is restarted when it exits by itself."""

    def __init__(self, name: str, command: Sequence[str], say: Say) -> None:
        self.name = name
        self._command = command
        self._say = say
        self._process: Process | None = None
        self._stopping = False
        self.ready = asyncio.Event()

    async def watch(self) -> None:
        """Run it until `stop`, restarting it when it exits. Raises UsageError if the first start fails."""
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
            self._say(f"{self.name} exited with code {code}; restarting in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RESTART_MAX_S)

    async def _run_once(self) -> int:
        # In its own process group: Ctrl-C reaches only us, and we stop the brokers.
        # The system closes its standard input if we are killed, and it then stops (--stop-with-stdin).
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        if self._stopping:  # while the process was being started
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
            self._say(f"{self.name} did not stop within {STOP_TIMEOUT_S:g} s; killing it")
            self._process.kill()


async def serve_processes(
    name_server_settings: NameServerSettings,
    settings: BrokerSettings,
    count: int,
    more: Sequence[str],
    say: Say,
    on_ready: Callable[[str], None],
    on_stop: Callable[[signal.Signals], None] = lambda number: None,
    front: GrpcFront | None = None,
) -> None:
    """Run a name server, broker processes and a gRPC port until SIGTERM or SIGINT. Main thread only.

    Raises UsageError, OSError.
    """
    if not 1 <= count <= BROKERS_MAX:
        raise UsageError(f"invalid --brokers {count}; choose 1 to {BROKERS_MAX}")
    with StopSignal() as stop_signal:
        name_server = NameServer(name_server_settings)
        await name_server.start()
        try:
            commands = broker_commands(count, settings, name_server.address, more)
            cluster = replace(settings, name_servers=name_server.address)

            async def ready() -> None:
                on_ready(name_server.address)
                if front is not None:
                    await front.start_at(cluster)

            await watch_processes(stop_signal, commands, say, ready, on_stop)
        finally:
            if front is not None:
                await front.stop()
            await name_server.stop()


async def watch_processes(
    stop_signal: StopSignal,
    commands: Mapping[str, Sequence[str]],
    say: Say,
    on_ready: Callable[[], Awaitable[None]],
    on_stop: Callable[[signal.Signals], None],
) -> None:
    """Run processes, restarted when they exit, until the signal. Raises UsageError if a first start fails."""
    servers = [WatchedProcess(name, command, say) for name, command in commands.items()]
    watching = [asyncio.ensure_future(server.watch()) for server in servers]
    ending = asyncio.ensure_future(stop_signal.wait())
    try:
        await _until_ready(servers, [ending, *watching], say)
        if not ending.done():
            await on_ready()
            await _first([ending, *watching])
        if ending.done():
            on_stop(ending.result())
    finally:
        ending.cancel()
        await asyncio.gather(*(server.stop() for server in servers))
        await asyncio.gather(*watching, return_exceptions=True)


async def _until_ready(
    brokers: Sequence[WatchedProcess], ends: Sequence[asyncio.Future[Any]], say: Say
) -> None:
    """Wait until all brokers are ready or one of `ends` is done. Recovery of a long log takes time."""

    async def all_ready() -> None:
        for broker in brokers:
            await broker.ready.wait()

    ready = asyncio.ensure_future(all_ready())
    while not await _first([ready, *ends], LATE_S):
        late = ", ".join(broker.name for broker in brokers if not broker.ready.is_set())
        say(f"{late}: not ready yet; the store may be recovering")
    ready.cancel()


async def _first(waiting: Sequence[asyncio.Future[Any]], timeout_s: float | None = None) -> bool:
    """Wait until one is done and return whether one is. Raises what it raised."""
    done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for each in done:
        each.result()
    return bool(done)
