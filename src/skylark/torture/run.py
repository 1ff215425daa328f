"""One torture run: start servers and load, inject faults, repair, drain, read back, check."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from skylark.admin.admin import AsyncAdmin
from skylark.client.consumer.pull_consumer import AsyncPullConsumer
from skylark.errors import RocketMQError
from skylark.processes import HOST, free_ports, python_command
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.offset import QueryConsumerOffset
from skylark.protocol.signature import Signer
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.tls_client import ClientTls
from skylark.settings.client import ClientSettings
from skylark.settings.credentials import client_credentials
from skylark.settings.tls import client_tls_settings
from skylark.torture.checker import REGRESS_ALLOWED_NS, Breach, check
from skylark.torture.child import Journal, Knob, Tail
from skylark.torture.cluster import (
    TOPIC,
    BrokerPair,
    BrokerSet,
    ClusterSettings,
    Process,
    failure,
    find_faketime,
)
from skylark.torture.controllers import ControllerNode, etcd_nodes
from skylark.torture.faults import Targets
from skylark.torture.history import (
    QUIET_LINE,
    BrokerQueue,
    History,
    OffsetSample,
    QueuePosition,
    SendOutcome,
    commits_line,
    number_in,
)
from skylark.torture.member import MemberTask
from skylark.torture.plan import MODES, Planned, inflict, plan
from skylark.torture.replica_group import ReplicaGroup
from skylark.torture.report import Inflicted, TortureOptions, TortureReport
from skylark.torture.sender import NUMBERS_OF_A_SENDER, SenderTask, is_committed

QUEUES = 4
PULL_MESSAGES = 32
READ_TRIES = 60
READ_PAUSE_S = 0.5
PATIENCE_S = 120.0
"""A dozen processes start at the same time, possibly on a busy machine."""
QUIET_TIMEOUT_S = 60.0
DRAIN_IDLE_S = 60.0
"""Maximum time without a new message; missing messages then count as lost."""
LINGER_S = 3.0
"""Extra time after the last expected message, to catch rolled-back transactions."""
SAMPLE_S = 1.0


class Torture:
    """A run. `say` is called with progress messages."""

    def __init__(self, wanted: TortureOptions, say: Callable[[str], None]) -> None:
        """Raises OSError without free ports or a writable directory."""
        self._wanted = wanted
        self._mode = MODES[wanted.mode]
        self._say = say
        self._history = History()
        self._run = f"r{wanted.seed}"
        self._group = f"G-{self._run}"
        self._inflicted: list[Inflicted] = []
        self._loaded_at = 0.0
        wanted.directory.mkdir(parents=True, exist_ok=True)
        self._namesrv = f"{HOST}:{free_ports()}"
        self._controller_ports = [free_ports() for _ in range(self._mode.controllers)]
        self._quiet = Knob(wanted.directory / "quiet")
        self._targets = self._make_targets()
        self._receipts = {member.name: self._tail(member.name) for member in self._targets.members}
        self._sends = [self._tail(sender.name) for sender in self._targets.senders]
        self._quiet_senders = 0

    @property
    def planned(self) -> list[list[Planned]]:
        """The faults of this run, a function of its seed, mode, duration and longest fault."""
        return plan(self._wanted.seed, self._mode, self._wanted.seconds, self._wanted.fault_s_max)

    # --- The parts ---

    def _make_targets(self) -> Targets:
        wanted = self._wanted
        settings = ClusterSettings(
            directory=wanted.directory,
            namesrv=self._namesrv,
            flush=self._mode.flush,
            faketime=find_faketime(),
            secure=wanted.secure,
            chance=random.Random(wanted.seed),  # noqa: S311 - only delays
        )
        names = [f"broker-{letter}" for letter in "abcdefgh"[: wanted.brokers or self._mode.brokers]]
        sets = [self._broker_set(number, name, settings) for number, name in enumerate(names)]
        etcd = etcd_nodes(wanted.directory, settings.chance) if self._mode.needs_etcd else []
        ports = self._controller_ports if self._mode.with_controller else []
        slowness = [Knob(wanted.directory / f"member-{number}.slow") for number in range(wanted.members)]
        return Targets(
            name_server=self._name_server(),
            sets=sets,
            members=[self._member(number, knob) for number, knob in enumerate(slowness)],
            senders=[self._sender(number, sets) for number in range(wanted.senders)],
            slowness_ms=slowness,
            controllers=[ControllerNode(number, ports, etcd, settings) for number in range(len(ports))],
            etcds=etcd,
        )

    def _broker_set(self, number: int, name: str, settings: ClusterSettings) -> BrokerSet:
        sizes = self._mode.replicas
        if not sizes:
            return BrokerPair(name, settings, with_slave=self._mode.with_slaves)
        count = self._wanted.replicas or sizes[number % len(sizes)]
        return ReplicaGroup(name, count, settings, self._controller_ports)

    def _name_server(self) -> Process:
        port = self._namesrv.rpartition(":")[2]
        settings = {
            "listenPort": port,
            "bindAddress": HOST,
            "kvConfigPath": str(self._wanted.directory / "kvConfig.json"),
            **self._wanted.secure,
        }
        return self._process(
            "name server", "server", "namesrv", msgspec.json.encode(settings).decode(), port=int(port)
        )

    def _member(self, number: int, slowness: Knob) -> Process:
        name = f"member-{number}"
        task = MemberTask(
            namesrv=self._namesrv,
            topic=TOPIC,
            group=self._group,
            run=self._run,
            journal=str(self._journal(name)),
            slowness=str(slowness.file),
            orderly=self._mode.ordered,
            popping=self._mode.popping,
        )
        return self._process(name, "member", msgspec.json.encode(task).decode())

    def _sender(self, number: int, sets: list[BrokerSet]) -> Process:
        name = f"sender-{number}"
        queues = [(each.name, queue_id) for queue_id in range(QUEUES) for each in sets]
        task = SenderTask(
            index=number,
            keys=self._wanted.keys,
            run=self._run,
            topic=TOPIC,
            namesrv=self._namesrv,
            journal=str(self._journal(name)),
            quiet=str(self._quiet.file),
            queues=queues if self._mode.ordered else [],
            delayed=self._mode.delayed,
            transactions=self._mode.transactions,
        )
        return self._process(name, "sender", msgspec.json.encode(task).decode())

    def _process(self, name: str, module: str, *arguments: str, port: int | None = None) -> Process:
        command = python_command(f"skylark.torture.{module}", *arguments)
        return Process(name, command, self._wanted.directory / f"{name.replace(' ', '-')}.log", port)

    def _journal(self, name: str) -> Path:
        return self._wanted.directory / f"{name}.journal"

    def _tail(self, name: str) -> Tail:
        return Tail(self._journal(name))

    # --- The run ---

    async def run(self) -> TortureReport:
        """Raises ProcessFailed if a server does not start or restart; OSError without free ports."""
        started = time.monotonic()
        planned = self.planned
        try:
            await self._start()
            await self._load(planned)
            drained_s = await self._drain()
            await self._read_back()
        finally:
            await self._stop()
        verdict = check(
            self._history,
            ordered=self._mode.ordered,
            stored_once=self._mode.stored_once,
            regress_allowed_ns=REGRESS_ALLOWED_NS + round(self._wanted.fault_s_max * 1e9),
        )
        groups = [each for each in self._targets.sets if isinstance(each, ReplicaGroup)]
        if groups:
            found = (sentence for group in groups for sentence in group.epochs_of_two())
            verdict.faults["two masters in an epoch"] = Breach.of(found)
        names = Counter(each.name for sequence in planned for each in sequence)
        skipped = names - Counter(each.name for each in self._inflicted)
        elapsed_s = time.monotonic() - started
        return TortureReport(
            wanted=self._wanted, verdict=verdict, faults=self._inflicted, skipped=dict(skipped),
            elapsed_s=elapsed_s, drained_s=drained_s,
        )  # fmt: skip

    async def _start(self) -> None:
        targets = self._targets
        await targets.name_server.start()
        await asyncio.gather(*(node.start() for node in targets.etcds))
        await asyncio.gather(*(node.start() for node in targets.controllers))
        await asyncio.gather(*(each.start() for each in targets.sets))
        await self._until(self._make_topic, "creation of the topic")
        await asyncio.gather(*(each.in_sync() for each in targets.sets))
        await asyncio.gather(*(process.start() for process in (*targets.members, *targets.senders)))
        await self._until(self._first_messages, "first delivery")
        self._say(
            f"{self._wanted.mode}: {len(targets.nodes)} brokers, {len(targets.senders)} senders, "
            f"{len(targets.members)} members"
        )

    async def _make_topic(self) -> bool:
        async with AsyncAdmin(namesrv=self._namesrv, client=_client("maker")) as admin:
            await admin.topics.create(TOPIC, queues=QUEUES)
            return len(await admin.topics.queues(TOPIC)) == QUEUES * len(self._targets.sets)

    async def _first_messages(self) -> bool:
        """Whether all senders send and a message has arrived."""
        self._read_journals()
        senders = {send.number // NUMBERS_OF_A_SENDER for send in self._history.sends.values()}
        return len(senders) == len(self._targets.senders) and bool(self._history.receipts)

    async def _load(self, planned: list[list[Planned]]) -> None:
        """Inject faults under load, then stop the senders."""
        self._loaded_at = time.monotonic()
        sampling = asyncio.ensure_future(self._sample())
        try:
            await inflict(self._targets, planned, self._note_fault)
            self._quiet.turn(1)
            await self._until_quiet()
        finally:
            sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sampling
        self._say(f"repaired; {self._history.count(SendOutcome.OK)} messages acknowledged, draining")

    def _note_fault(self, name: str, words: str) -> None:
        at_s = round(time.monotonic() - self._loaded_at, 1)
        self._inflicted.append(Inflicted(at_s=at_s, name=name, words=words))
        self._say(f"{at_s:6.1f} s  {words}")

    async def _until_quiet(self) -> None:
        deadline = time.monotonic() + QUIET_TIMEOUT_S
        while True:
            self._read_journals()
            if self._quiet_senders >= len(self._targets.senders):
                return
            if time.monotonic() > deadline:
                raise failure("senders", f"still sending after {QUIET_TIMEOUT_S:g} s", self._wanted.directory)
            await asyncio.sleep(READ_PAUSE_S)

    async def _sample(self) -> None:
        """Sample the group's committed offsets while servers are reachable."""
        began_ns = time.monotonic_ns()
        credentials, tls = client_credentials(_client("sample")), client_tls_settings(_client("sample"))
        pool = ConnectionPool(
            signer=None if credentials is None else Signer(credentials),
            tls=None if tls is None else ClientTls(tls),
        )
        with contextlib.closing(Journal(self._journal("commits"))) as journal:
            try:
                while True:
                    await asyncio.sleep(SAMPLE_S)
                    with contextlib.suppress(RocketMQError):
                        offsets = await self._committed(pool)
                        commits = OffsetSample(time.monotonic_ns() - began_ns, offsets)
                        self._history.commits.append(commits)
                        journal.write(commits_line(commits))
            finally:
                await pool.close()

    async def _committed(self, pool: ConnectionPool) -> dict[BrokerQueue, int]:
        """Offsets at the masters; those committed at a slave reach its master late.

        Raises RocketMQError, also while the group has no offset in some queue.
        """
        offsets = {}
        for each in self._targets.sets:
            await each.see_roles()
            for queue_id in range(QUEUES):
                request = QueryConsumerOffset(self._group, TOPIC, queue_id, set_zero_if_not_found=False)
                offsets[BrokerQueue(each.name, queue_id)] = await pool.call(each.master.address, request)
        return offsets

    async def _drain(self) -> float:
        """Wait until all expected messages have arrived, or no more arrive."""
        started = progressed = time.monotonic()
        missing = -1
        while True:
            self._read_journals()
            before, missing = missing, len(self._history.missing())
            now = time.monotonic()
            if missing != before:
                progressed = now
            if missing == 0 or now - progressed > DRAIN_IDLE_S:
                break
            self._check_alive()
            await asyncio.sleep(READ_PAUSE_S)
        if self._mode.transactions:
            await asyncio.sleep(LINGER_S)
            self._read_journals()
        return now - started

    def _check_alive(self) -> None:
        """Raise ProcessFailed if a process ended unexpectedly."""
        targets = self._targets
        for process in (targets.name_server, *targets.servers, *targets.members, *targets.senders):
            if not process.is_running:
                raise failure(process.name, "ended unexpectedly", process.log)

    def _read_journals(self) -> None:
        history = self._history
        for tail in self._sends:
            lines = tail.read()
            self._quiet_senders += lines.count(QUIET_LINE.strip())
            for send in history.take_sends(lines):
                send.rolled_back = self._mode.transactions and not is_committed(send.number)
        for name, tail in self._receipts.items():
            history.take_receipts(name, tail.read())

    async def _read_back(self) -> None:
        """Read every queue from its start. Raises RocketMQError."""
        async with AsyncPullConsumer(
            f"R-{self._run}", namesrv=self._namesrv, client=_client("reader")
        ) as consumer:
            await self._until(lambda: self._knows_all_queues(consumer), "registration of all queues")
            for queue in await consumer.queues(TOPIC):
                await self._read_queue(consumer, queue)

    async def _knows_all_queues(self, consumer: AsyncPullConsumer) -> bool:
        """Brokers register at a restarted name server only after a while."""
        return len(await consumer.queues(TOPIC)) == QUEUES * len(self._targets.sets)

    async def _read_queue(self, consumer: AsyncPullConsumer, queue: MessageQueue) -> None:
        queue_offset, failures = 0, 0
        while True:
            try:
                pulled = await consumer.pull(queue, "*", queue_offset, PULL_MESSAGES)
            except RocketMQError:
                failures += 1
                if failures == READ_TRIES:
                    raise
                await asyncio.sleep(READ_PAUSE_S)
                continue
            for message in pulled.messages:
                number = number_in(self._run, message.body)
                if number is not None:
                    self._history.stored.append((QueuePosition(_queue(queue), message.queue_offset), number))
            if queue_offset >= pulled.max_offset:
                return
            queue_offset = pulled.next_offset

    async def _stop(self) -> None:
        """End all processes in whatever state they are."""
        targets = self._targets
        for process in (*targets.members, *targets.senders):
            await process.kill()
        for node in targets.nodes:
            await node.close()
        for controller in targets.controllers:
            await controller.close()
        for member in targets.etcds:
            await member.close()
        await targets.name_server.kill()
        for knob in (self._quiet, *targets.slowness_ms):
            knob.close()

    async def _until(self, step: Callable[[], Awaitable[bool]], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                if await step():
                    return
            except RocketMQError as error:
                self._say(f"waiting for {what}: {error}")
            await asyncio.sleep(READ_PAUSE_S)
        raise failure("servers", f"{what} did not happen within {PATIENCE_S:g} s", self._wanted.directory)


def _client(name: str) -> ClientSettings:
    return ClientSettings(instance_name=f"torture-{name}", route_refresh_interval_ms=1000)


def _queue(queue: MessageQueue) -> BrokerQueue:
    return BrokerQueue(queue.broker_name, queue.queue_id)
