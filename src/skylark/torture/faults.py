"""What is done to servers, members and the network: a table of faults, chosen by a seeded generator."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from skylark.torture.cluster import HOST, FakeClock, Process
from skylark.torture.proxy import Proxy

FLOOD_CONNECTIONS = 500


@dataclass(frozen=True, slots=True)
class Targets:
    """What faults can hit."""

    name_server: Process
    brokers: dict[str, Process]
    members: list[Process]
    proxies: dict[str, Proxy]
    broker_ports: dict[str, int]
    clock: FakeClock | None = None


Fault = Callable[[Targets, random.Random], AbstractAsyncContextManager[str]]
"""Entered, it breaks something and says what; left, it has healed it."""


@asynccontextmanager
async def kill_broker(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    broker = _broker(targets, chance)
    await broker.kill()
    yield f"kill -9 {broker.name}"
    await broker.start()


@asynccontextmanager
async def restart_broker(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    broker = _broker(targets, chance)
    await broker.terminate()
    yield f"stop {broker.name}"
    await broker.start()


@asynccontextmanager
async def freeze_broker(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    async with _frozen(_broker(targets, chance)) as words:
        yield words


@asynccontextmanager
async def kill_name_server(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    await targets.name_server.kill()
    yield "kill -9 name server"
    await targets.name_server.start()


@asynccontextmanager
async def freeze_name_server(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    async with _frozen(targets.name_server) as words:
        yield words


@asynccontextmanager
async def kill_member(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    member = chance.choice(targets.members)
    await member.kill()
    yield f"kill -9 {member.name}"
    await member.start()


@asynccontextmanager
async def stop_member(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    member = chance.choice(targets.members)
    await member.terminate()
    yield f"stop {member.name}"
    await member.start()


@asynccontextmanager
async def freeze_member(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    async with _frozen(chance.choice(targets.members)) as words:
        yield words


@asynccontextmanager
async def cut_network(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    name, proxy = chance.choice(sorted(targets.proxies.items()))
    proxy.refuse(True)
    proxy.cut()
    yield f"cut the network to {name}"
    proxy.refuse(False)


@asynccontextmanager
async def slow_network(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    name, proxy = chance.choice(sorted(targets.proxies.items()))
    proxy.delay_ms = chance.randint(20, 300)
    yield f"delay the network to {name} by up to {proxy.delay_ms} ms"
    proxy.delay_ms = 0


@asynccontextmanager
async def half_network(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """Requests arrive and answers do not; then all connections end."""
    name, proxy = chance.choice(sorted(targets.proxies.items()))
    proxy.silent = True
    yield f"lose the answers of {name}"
    proxy.cut()
    proxy.silent = False


@asynccontextmanager
async def flood(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    name = chance.choice(sorted(targets.broker_ports))
    port = targets.broker_ports[name]
    writers = []
    for _ in range(FLOOD_CONNECTIONS):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"\0")
            writers.append(writer)
    yield f"open {len(writers)} idle connections to {name}"
    for writer in writers:
        writer.transport.abort()


@asynccontextmanager
async def full_disk(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """Files can grow no more: for a broker that is what a full disk is."""
    broker = _broker(targets, chance)
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (0, hard))
    yield f"no room on the disk of {broker.name}"
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))


@asynccontextmanager
async def jump_clock(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """The wall clock of all brokers jumps, there and back."""
    assert targets.clock is not None
    seconds = chance.choice([-3600, -60, 60, 3600])
    targets.clock.set(seconds)
    yield f"clocks of the brokers jump by {seconds} s"
    targets.clock.set(0)


FAULTS: dict[str, Fault] = {
    "kill-broker": kill_broker,
    "restart-broker": restart_broker,
    "freeze-broker": freeze_broker,
    "kill-namesrv": kill_name_server,
    "freeze-namesrv": freeze_name_server,
    "kill-member": kill_member,
    "stop-member": stop_member,
    "freeze-member": freeze_member,
    "cut-network": cut_network,
    "slow-network": slow_network,
    "half-network": half_network,
    "flood": flood,
    "full-disk": full_disk,
    "jump-clock": jump_clock,
}


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault of a plan: what, after which pause, for how long."""

    name: str
    after_s: float
    for_s: float


def plan(chance: random.Random, names: list[str], seconds: float) -> list[Planned]:
    """The faults of a run; the same seed gives the same plan."""
    planned: list[Planned] = []
    at_s = 0.0
    while True:
        each = Planned(chance.choice(names), chance.uniform(1, 4), chance.uniform(0.2, 4))
        at_s += each.after_s + each.for_s
        if at_s > seconds:
            return planned
        planned.append(each)


async def inflict(
    targets: Targets,
    planned: list[Planned],
    chance: random.Random,
    on_fault: Callable[[str], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Do one fault after the other; all is healed at the end. Raises ProcessFailed."""
    for each in planned:
        await sleep(each.after_s)
        async with FAULTS[each.name](targets, chance) as words:
            on_fault(words)
            await sleep(each.for_s)


def _broker(targets: Targets, chance: random.Random) -> Process:
    return targets.brokers[chance.choice(sorted(targets.brokers))]


@asynccontextmanager
async def _frozen(process: Process) -> AsyncIterator[str]:
    process.signal(signal.SIGSTOP)
    try:
        yield f"freeze {process.name}"
    finally:
        process.signal(signal.SIGCONT)
