"""The table of faults of servers, clients, network, disk and clock, each with its repair."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from skylark.processes import HOST
from skylark.torture.child import Knob
from skylark.torture.cluster import BrokerPair, FakeClock, Process, TortureNode
from skylark.torture.proxy import NORMAL, Direction, LinkState, Proxy
from skylark.torture.replica_group import ReplicaGroup, ReplicaNode

FLOOD_CONNECTIONS = 500
FLOOD_TIMEOUT_S = 3.0
LOOP_KILLS = (2, 4)
LAG_MS, LAG_S = 500, 1.0
LOOP_LIFE_S = 1.5
"""Maximum life of a broker between two kills; it may not even become ready."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of faults."""

    name_server: Process
    pairs: list[BrokerPair]
    members: list[Process]
    senders: list[Process]
    slowness_ms: list[Knob]
    """One knob per member."""
    clock: FakeClock | None = None
    controllers: list[Process] = field(default_factory=list)
    etcds: list[Process] = field(default_factory=list)
    """The members of an etcd."""

    @property
    def nodes(self) -> list[TortureNode]:
        """All brokers, in an order independent of their roles."""
        return sorted((node for pair in self.pairs for node in pair.nodes), key=lambda node: node.label)

    def master(self, chance: random.Random) -> TortureNode:
        return chance.choice(self.pairs).master

    def slave(self, chance: random.Random) -> TortureNode:
        slave = chance.choice(self.pairs).slave
        assert slave is not None
        return slave


Fault = Callable[[Targets, random.Random], AbstractAsyncContextManager[str]]
"""Entering breaks something and returns a description; leaving repairs it. Raises ProcessFailed."""


Choice = Callable[[Targets, random.Random], Process]


def _master(targets: Targets, chance: random.Random) -> Process:
    return targets.master(chance).process


def _slave(targets: Targets, chance: random.Random) -> Process:
    return targets.slave(chance).process


def _name_server(targets: Targets, chance: random.Random) -> Process:
    return targets.name_server


def _member(targets: Targets, chance: random.Random) -> Process:
    return chance.choice(targets.members)


def _sender(targets: Targets, chance: random.Random) -> Process:
    return chance.choice(targets.senders)


# --- Processes ---


def _ending(words: str, end: Callable[[Process], Awaitable[None]], choose: Choice) -> Fault:
    @asynccontextmanager
    async def fault(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
        process = choose(targets, chance)
        await end(process)
        yield f"{words} {process.name}"
        await process.start()

    return fault


killing = partial(_ending, "kill -9", Process.kill)
stopping = partial(_ending, "stop", Process.terminate)


def freezing(choose: Choice) -> Fault:
    """SIGSTOP and SIGCONT."""

    @asynccontextmanager
    async def fault(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
        process = choose(targets, chance)
        process.signal(signal.SIGSTOP)
        try:
            yield f"freeze {process.name}"
        finally:
            process.signal(signal.SIGCONT)

    return fault


@asynccontextmanager
async def kill_broker_often(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """Repeatedly, also during recovery."""
    broker = targets.master(chance).process
    times = chance.randint(*LOOP_KILLS)
    await broker.kill()
    for _ in range(times):
        broker.spawn()
        await asyncio.sleep(chance.random() * LOOP_LIFE_S)
        await broker.kill()
    yield f"kill -9 {broker.name} {times + 1} times"
    await broker.start()


@asynccontextmanager
async def slow_member(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    index = chance.randrange(len(targets.members))
    delay_ms = chance.randint(100, 1000)
    targets.slowness_ms[index].turn(delay_ms)
    yield f"slow {targets.members[index].name} to {delay_ms} ms a batch"
    targets.slowness_ms[index].turn(0)


# --- Network ---


@asynccontextmanager
async def cut_network(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    node = chance.choice(targets.nodes)
    with _cut(node.proxy):
        yield f"cut the network to {node.label}"


@asynccontextmanager
async def slow_network(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    node = chance.choice(targets.nodes)
    delay_ms = chance.randint(20, 300)
    with _conditioned(node.proxy, LinkState(delay_ms=delay_ms)):
        yield f"delay the network to {node.label} by up to {delay_ms} ms"


@asynccontextmanager
async def lose_answers(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """Requests arrive, replies do not; then all connections are cut."""
    node = chance.choice(targets.nodes)
    with _conditioned(node.proxy, LinkState(lost=Direction.REPLIES)):
        yield f"lose the replies of {node.label}"
        node.proxy.cut()


def network_fault(words: str, condition: LinkState) -> Fault:
    """Another condition of the network to a broker, described by `words`."""

    @asynccontextmanager
    async def fault(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
        node = chance.choice(targets.nodes)
        with _conditioned(node.proxy, condition):
            yield f"{words} {node.label}"

    return fault


@asynccontextmanager
async def forget_connections(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """Half-open: clients reconnect while the broker keeps their old connections."""
    node = chance.choice(targets.nodes)
    before = node.proxy.forget()
    yield f"leave {before} half-open connections to {node.label}"
    node.proxy.cut()


@asynccontextmanager
async def flood(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    node = chance.choice(targets.nodes)
    writers = []
    with contextlib.suppress(OSError, TimeoutError):  # the broker may be down or frozen
        async with asyncio.timeout(FLOOD_TIMEOUT_S):
            for _ in range(FLOOD_CONNECTIONS):
                _, writer = await asyncio.open_connection(HOST, node.port)
                writer.write(b"\0")
                writers.append(writer)
    yield f"open {len(writers)} idle connections to {node.label}"
    for writer in writers:
        writer.transport.abort()


# --- Disk and clock ---


@asynccontextmanager
async def full_disk(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """A file size limit of 0, which a broker sees as a full disk."""
    broker = chance.choice(targets.nodes).process
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (0, hard))
    yield f"fill the disk of {broker.name}"
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))


@asynccontextmanager
async def slow_disk(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    node = chance.choice(targets.nodes)
    delay_ms = chance.randint(50, 2000)
    node.disk_delay_ms.turn(delay_ms)
    yield f"slow the disk of {node.label} by up to {delay_ms} ms"
    node.disk_delay_ms.turn(0)


@asynccontextmanager
async def jump_clock(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """The wall clock of all brokers jumps and returns."""
    assert targets.clock is not None
    seconds = chance.choice([-3600, -60, 60, 3600])
    targets.clock.set(seconds)
    yield f"move the clocks of the brokers by {seconds} s"
    targets.clock.set(0)


# --- Replication ---


@asynccontextmanager
async def cut_link(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    master = targets.master(chance)
    with _cut(master.link_proxy):
        yield f"cut the link from {master.label} to its slave"


@asynccontextmanager
async def slow_link(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    master = targets.master(chance)
    delay_ms = chance.randint(20, 500)
    with _conditioned(master.link_proxy, LinkState(delay_ms=delay_ms)):
        yield f"delay the link from {master.label} to its slave by up to {delay_ms} ms"


@asynccontextmanager
async def lose_master(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """The master is lost with its disk; its slave takes over and gets an empty slave."""
    async with _promoted(chance.choice(targets.pairs), disk_is_lost=True) as words:
        yield words


@asynccontextmanager
async def change_masters(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """The master is killed, its slave takes over, the old master returns as a slave with its disk."""
    async with _promoted(chance.choice(targets.pairs), disk_is_lost=False) as words:
        yield words


# --- Controller mode ---


async def _group(targets: Targets, chance: random.Random) -> ReplicaGroup:
    group = chance.choice(targets.pairs)
    assert isinstance(group, ReplicaGroup)
    await group.see_roles()
    return group


Role = Callable[[ReplicaGroup], ReplicaNode]


def _elected(group: ReplicaGroup) -> ReplicaNode:
    return group.master


def _follower(group: ReplicaGroup) -> ReplicaNode:
    return group.slave


def ending_replica(words: str, end: Callable[[Process], Awaitable[None]], role: Role) -> Fault:
    @asynccontextmanager
    async def fault(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
        process = role(await _group(targets, chance)).process
        await end(process)
        yield f"{words} {process.name}"
        await process.start()

    return fault


def freezing_replica(words: str, role: Role) -> Fault:
    @asynccontextmanager
    async def fault(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
        process = role(await _group(targets, chance)).process
        process.signal(signal.SIGSTOP)
        try:
            yield f"{words} {process.name}"
        finally:
            process.signal(signal.SIGCONT)

    return fault


def cutting_replica(words: str, proxies: Callable[[ReplicaNode], list[Proxy]]) -> Fault:
    """Cut connections of the elected master."""

    @asynccontextmanager
    async def fault(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
        node = (await _group(targets, chance)).master
        with contextlib.ExitStack() as stack:
            for proxy in proxies(node):
                stack.enter_context(_cut(proxy))
            yield f"{words} {node.label}"

    return fault


@asynccontextmanager
async def lose_controllers_words(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """One way: the controller hears the master, which does not hear the controller."""
    node = (await _group(targets, chance)).master
    with contextlib.ExitStack() as stack:
        for proxy in node.controller_proxies:
            stack.enter_context(_conditioned(proxy, LinkState(lost=Direction.REPLIES)))
        yield f"lose what the controller says to {node.label}"
        for proxy in node.controller_proxies:
            proxy.cut()


@asynccontextmanager
async def lose_disk(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    group = await _group(targets, chance)
    slave = group.slave
    await group.lose_disk_of_slave()
    yield f"kill -9 {slave.label} and delete its disk"
    await slave.process.start()


def _controller(targets: Targets, chance: random.Random) -> Process:
    return chance.choice(targets.controllers)


def _etcd(targets: Targets, chance: random.Random) -> Process:
    return chance.choice(targets.etcds)


@asynccontextmanager
async def lose_majority(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """Masters go on; no master can be elected, and no set can change."""
    frozen = chance.sample(targets.etcds, len(targets.etcds) // 2 + 1)
    for process in frozen:
        process.signal(signal.SIGSTOP)
    try:
        yield f"freeze {' and '.join(process.name for process in frozen)}"
    finally:
        for process in frozen:
            process.signal(signal.SIGCONT)


SERVER_FAULTS: dict[str, Fault] = {
    "kill-broker": killing(_master),
    "kill-broker-often": kill_broker_often,
    "restart-broker": stopping(_master),
    "freeze-broker": freezing(_master),
    "kill-namesrv": killing(_name_server),
    "freeze-namesrv": freezing(_name_server),
    "full-disk": full_disk,
    "slow-disk": slow_disk,
    "jump-clock": jump_clock,
}
CLOCK_FAULT = "jump-clock"
REPLICA_FAULTS: dict[str, Fault] = {
    "kill-slave": killing(_slave),
    "freeze-slave": freezing(_slave),
    "cut-link": cut_link,
    "slow-link": slow_link,
    "lose-master": lose_master,
    "change-masters": change_masters,
}
GROUP_FAULTS: dict[str, Fault] = {
    "kill-elected": ending_replica("kill -9 the elected master", Process.kill, _elected),
    "stop-elected": ending_replica("stop the elected master", Process.terminate, _elected),
    "freeze-elected": freezing_replica("freeze the elected master", _elected),
    "kill-follower": ending_replica("kill -9 the follower", Process.kill, _follower),
    "freeze-follower": freezing_replica("freeze the follower", _follower),
    "lose-follower": lose_disk,
    "cut-followers": cutting_replica("cut the followers from", lambda node: [node.link_proxy]),
    "cut-controller": cutting_replica("cut the controller from", lambda node: node.controller_proxies),
    "cut-both": cutting_replica(
        "cut followers and controller from", lambda node: [node.link_proxy, *node.controller_proxies]
    ),
    "deafen-elected": lose_controllers_words,
    "kill-controller": killing(_controller),
    "freeze-controller": freezing(_controller),
}
ETCD_FAULTS: dict[str, Fault] = {
    "kill-etcd": killing(_etcd),
    "freeze-etcd": freezing(_etcd),
    "lose-majority": lose_majority,
}
CLIENT_FAULTS: dict[str, Fault] = {
    "kill-member": killing(_member),
    "stop-member": stopping(_member),
    "freeze-member": freezing(_member),
    "slow-member": slow_member,
    "kill-sender": killing(_sender),
    "freeze-sender": freezing(_sender),
    "cut-network": cut_network,
    "slow-network": slow_network,
    "lose-answers": lose_answers,
    "tear-network": network_fault("cut in the middle of a frame all connections to", LinkState(torn=True)),
    "reorder-network": network_fault("hold one direction of most connections to", LinkState(held_share=0.7)),
    "shred-network": network_fault("pass a few bytes at a time to and from", LinkState(in_pieces=True)),
    "half-open": forget_connections,
    "flood": flood,
}
ALL_FAULTS = {**SERVER_FAULTS, **REPLICA_FAULTS, **GROUP_FAULTS, **ETCD_FAULTS, **CLIENT_FAULTS}


# --- Common parts ---


@contextlib.contextmanager
def _cut(proxy: Proxy) -> Iterator[None]:
    proxy.refuse(True)
    proxy.cut()
    yield
    proxy.refuse(False)


@contextlib.contextmanager
def _conditioned(proxy: Proxy, condition: LinkState) -> Iterator[None]:
    proxy.condition = condition
    yield
    proxy.condition = NORMAL


@asynccontextmanager
async def _promoted(pair: BrokerPair, *, disk_is_lost: bool) -> AsyncIterator[str]:
    await pair.in_sync()
    master = pair.master
    with _conditioned(master.link_proxy, LinkState(delay_ms=LAG_MS)):
        await asyncio.sleep(LAG_S)  # the slave falls behind
        await master.process.kill()
        master.link_proxy.cut()  # data in flight is lost
    yield f"kill -9 {master.label}{' and delete its disk' if disk_is_lost else ''}, promote its slave"
    await pair.promote(disk_is_lost=disk_is_lost)
