"""The table of faults of servers, clients, network, disk and clock, each with its repair."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from skylark.processes import HOST
from skylark.torture.child import Knob
from skylark.torture.cluster import BrokerPair, BrokerSet, FakeClock, Process, TortureNode
from skylark.torture.controllers import ControllerNode, EtcdNode
from skylark.torture.proxy import NORMAL, Direction, LinkState, Proxy
from skylark.torture.replica_group import ReplicaGroup, ReplicaNode

FLOOD_CONNECTIONS = 500
FLOOD_TIMEOUT_S = 3.0
LOOP_KILLS = (2, 4)
LAG_MS, LAG_S = 500, 1.0
CLOCK_JUMPS_S = (-3600, -60, 60, 3600)
IN_FLIGHT_S = 0.1
"""In which requests that a frozen process has sent reach their target."""
LOOP_LIFE_S = 1.5
"""Maximum life of a broker between two kills; it may not even become ready."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of faults."""

    name_server: Process
    sets: list[BrokerSet]
    members: list[Process]
    senders: list[Process]
    slowness_ms: list[Knob]
    """One knob per member."""
    controllers: list[ControllerNode] = field(default_factory=list)
    etcds: list[EtcdNode] = field(default_factory=list)
    """The members of an etcd."""

    @property
    def nodes(self) -> list[TortureNode]:
        """All brokers, in an order independent of their roles."""
        return sorted((node for each in self.sets for node in each.nodes), key=lambda node: node.label)

    @property
    def servers(self) -> list[Process]:
        """Brokers, controllers and members of etcd."""
        brokers = [node.process for node in self.nodes]
        controllers = [node.process for node in self.controllers]
        return [*brokers, *controllers, *(node.process for node in self.etcds)]

    @property
    def clocks(self) -> dict[str, FakeClock]:
        """The clocks of brokers and controllers; empty if this machine cannot move them."""
        return {each.name: each.clock for each in self.servers if each.clock is not None}

    def master(self, chance: random.Random) -> TortureNode:
        return chance.choice(self.sets).master

    def pair(self, chance: random.Random) -> BrokerPair:
        pair = chance.choice(self.sets)
        assert isinstance(pair, BrokerPair)
        return pair

    def slave(self, chance: random.Random) -> TortureNode:
        slave = self.pair(chance).slave
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
    with _one_way([node.proxy], Direction.REPLIES):
        yield f"lose the replies of {node.label}"


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
    """The wall clocks of all brokers and controllers jump and return."""
    seconds = chance.choice(CLOCK_JUMPS_S)
    for clock in targets.clocks.values():
        clock.set(seconds)
    yield f"move the clocks of the servers by {seconds} s"
    for clock in targets.clocks.values():
        clock.set(0)


@asynccontextmanager
async def skew_clock(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """The wall clock of one broker or controller jumps, the others keep the time."""
    name, clock = chance.choice(list(targets.clocks.items()))
    seconds = chance.choice(CLOCK_JUMPS_S)
    clock.set(seconds)
    yield f"move the clock of {name} by {seconds} s"
    clock.set(0)


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
    async with _promoted(targets.pair(chance), disk_is_lost=True) as words:
        yield words


@asynccontextmanager
async def change_masters(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """The master is killed, its slave takes over, the old master returns as a slave with its disk."""
    async with _promoted(targets.pair(chance), disk_is_lost=False) as words:
        yield words


# --- Controller mode ---


async def _group(targets: Targets, chance: random.Random) -> ReplicaGroup:
    group = chance.choice(targets.sets)
    assert isinstance(group, ReplicaGroup)
    await group.see_roles()
    return group


Role = Callable[[Targets, random.Random], Awaitable[ReplicaNode]]
Proxies = Callable[[ReplicaNode], Sequence[Proxy]]


async def _elected(targets: Targets, chance: random.Random) -> ReplicaNode:
    return (await _group(targets, chance)).master


async def _follower(targets: Targets, chance: random.Random) -> ReplicaNode:
    return chance.choice((await _group(targets, chance)).followers)


def _replica_link(node: ReplicaNode) -> Sequence[Proxy]:
    """What its followers read from, while it is the master."""
    return [node.link_proxy]


def _to_controllers(node: ReplicaNode) -> Sequence[Proxy]:
    return node.controller_proxies


def _both(node: ReplicaNode) -> Sequence[Proxy]:
    return [*_replica_link(node), *_to_controllers(node)]


def ending_replica(words: str, end: Callable[[Process], Awaitable[None]], role: Role) -> Fault:
    @asynccontextmanager
    async def fault(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
        process = (await role(targets, chance)).process
        await end(process)
        yield f"{words} {process.name}"
        await process.start()

    return fault


def freezing_replica(words: str, role: Role) -> Fault:
    @asynccontextmanager
    async def fault(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
        process = (await role(targets, chance)).process
        process.signal(signal.SIGSTOP)
        try:
            yield f"{words} {process.name}"
        finally:
            process.signal(signal.SIGCONT)

    return fault


def cutting_replica(words: str, role: Role, proxies: Proxies) -> Fault:
    @asynccontextmanager
    async def fault(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
        node = await role(targets, chance)
        with _all_cut(proxies(node)):
            yield f"{words} {node.label}"

    return fault


def muting_elected(words: str, proxies: Proxies, lost: Direction) -> Fault:
    """A cut in one direction: what the elected master says, or what is said to it, is lost."""

    @asynccontextmanager
    async def fault(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
        node = await _elected(targets, chance)
        with _one_way(proxies(node), lost):
            yield f"{words} {node.label}"

    return fault


def parting_one(words: str, condition: LinkState | None) -> Fault:
    """One follower's link to its master is cut, or gets a condition; those of the others stay as they are."""

    @asynccontextmanager
    async def fault(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
        master = await _elected(targets, chance)
        proxy = master.link_proxy
        proxy.single_out(condition)
        proxy.refuse(True)  # only the follower that lost its link asks for a new one
        yield f"{words} {master.label}"
        proxy.refuse(False)
        if condition is not None:
            proxy.cut()  # the connection misses bytes

    return fault


@asynccontextmanager
async def lose_follower(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    node = await _follower(targets, chance)
    await node.lose_disk()
    yield f"kill -9 {node.label} and delete its disk"
    await node.process.start()


@asynccontextmanager
async def lose_elected(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """The master is lost with its disk, unless it is alone in its set and has the only copy."""
    group = await _group(targets, chance)
    node = group.master
    node.process.signal(signal.SIGSTOP)  # it cannot make its set smaller any more
    await asyncio.sleep(IN_FLIGHT_S)
    if await group.has_other_members():
        await node.lose_disk()
        yield f"kill -9 the elected master {node.label} and delete its disk"
    else:
        await node.process.kill()
        yield f"kill -9 the elected master {node.label}, whose set has no other living member"
    await node.process.start()


def _controller(targets: Targets, chance: random.Random) -> Process:
    return chance.choice(targets.controllers).process


@asynccontextmanager
async def cut_register(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    node = chance.choice(targets.controllers)
    with _all_cut(node.register_proxies):
        yield f"cut etcd from {node.process.name}"


@asynccontextmanager
async def deafen_register(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """One way: etcd carries out what a controller asks for, and the controller does not learn it."""
    node = chance.choice(targets.controllers)
    with _one_way(node.register_proxies, Direction.REPLIES):
        yield f"lose what etcd answers to {node.process.name}"


def _etcd(targets: Targets, chance: random.Random) -> Process:
    return chance.choice(targets.etcds).process


@asynccontextmanager
async def cut_etcd(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """One way: the others cannot connect to this member, which can connect to them."""
    node = chance.choice(targets.etcds)
    with _all_cut([node.peer_proxy]):
        yield f"cut the other members from {node.process.name}"


@asynccontextmanager
async def lose_majority(targets: Targets, chance: random.Random) -> AsyncIterator[str]:
    """Masters go on; no master can be elected, and no set can change."""
    frozen = [node.process for node in chance.sample(targets.etcds, len(targets.etcds) // 2 + 1)]
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
CLOCK_FAULTS = ("jump-clock", "skew-clock")
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
    "lose-follower": lose_follower,
    "lose-elected": lose_elected,
    "cut-followers": cutting_replica("cut the followers from", _elected, _replica_link),
    "cut-controller": cutting_replica("cut the controllers from", _elected, _to_controllers),
    "cut-both": cutting_replica("cut followers and controllers from", _elected, _both),
    "cut-follower": cutting_replica("cut the controllers from the follower", _follower, _to_controllers),
    "deafen-elected": muting_elected("lose what the controllers say to", _to_controllers, Direction.REPLIES),
    "mute-elected": muting_elected("lose what the controllers hear of", _to_controllers, Direction.REQUESTS),
    "deafen-followers": muting_elected("lose what the followers hear of", _replica_link, Direction.REPLIES),
    "mute-followers": muting_elected("lose what the followers say to", _replica_link, Direction.REQUESTS),
    "cut-one-follower": parting_one("cut one follower from", None),
    "deafen-one-follower": parting_one("lose what one follower hears of", LinkState(lost=Direction.REPLIES)),
    "mute-one-follower": parting_one("lose what one follower says to", LinkState(lost=Direction.REQUESTS)),
    "kill-controller": killing(_controller),
    "freeze-controller": freezing(_controller),
    "skew-clock": skew_clock,
}
ETCD_FAULTS: dict[str, Fault] = {
    "kill-etcd": killing(_etcd),
    "freeze-etcd": freezing(_etcd),
    "lose-majority": lose_majority,
    "cut-register": cut_register,
    "deafen-register": deafen_register,
    "cut-etcd": cut_etcd,
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


@contextlib.contextmanager
def _all_cut(proxies: Sequence[Proxy]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for proxy in proxies:
            stack.enter_context(_cut(proxy))
        yield


@contextlib.contextmanager
def _one_way(proxies: Sequence[Proxy], lost: Direction) -> Iterator[None]:
    """Lose one direction; then cut, since the connections miss bytes."""
    with contextlib.ExitStack() as stack:
        for proxy in proxies:
            stack.callback(proxy.cut)
            stack.enter_context(_conditioned(proxy, LinkState(lost=lost)))
        yield


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
