"""One run: servers up, load on, faults one after the other, healed, drained, read back, judged."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from skylark.admin.admin import Admin
from skylark.client.pull_consumer import PullConsumer
from skylark.errors import RocketMQError
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import ClientSettings
from skylark.torture.checker import Verdict, check
from skylark.torture.cluster import (
    CLIENT_HOST,
    HOST,
    FakeClock,
    Process,
    ProcessFailed,
    find_faketime,
    free_ports,
    python_command,
    skylark_command,
)
from skylark.torture.faults import FAULTS, Planned, Targets, inflict, plan
from skylark.torture.history import History, Outcome, Place, Queue, number_in, read_receipts
from skylark.torture.load import Senders
from skylark.torture.proxy import Proxy

TOPIC = "torture"
CLOCK_FAULT = "jump-clock"
QUEUES = 4
PULL_MESSAGES = 32
READ_TRIES = 20
READ_PAUSE_S = 0.5
DRAIN_IDLE_S = 45.0
"""Without a new message for so long, what is missing is taken for lost."""
SAMPLE_S = 1.0
# A tenth of the usual times, so that a run of minutes sees what else takes an hour.
BROKER_SETTINGS = {
    "flushConsumerOffsetInterval": 500,
    "registerNameServerPeriod": 3000,
    "clientScanInterval": 1000,
    "rocketmq.broker.rebalance.lockMaxLiveTime": 6000,
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 60_000,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "metricsPromExporterPort": 0,
}


@dataclass(frozen=True, slots=True)
class Mode:
    """What is promised in a kind of run, and which faults it has to stand."""

    flush: str = "async"
    ordered: bool = False
    delayed: bool = False
    faults: tuple[str, ...] = tuple(FAULTS)


MODES = {
    "async": Mode(),
    "sync": Mode(flush="sync"),
    "orderly": Mode(ordered=True),
    # Whether a delay is over is a question to the wall clock: one that jumps makes it end early.
    "delay": Mode(delayed=True, faults=tuple(name for name in FAULTS if name != CLOCK_FAULT)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a person asks for."""

    directory: Path
    mode: str = "async"
    seconds: float = 60.0
    seed: int = 0
    brokers: int = 2
    members: int = 3
    senders: int = 8


@dataclass(slots=True)
class Report:
    """What a run came to."""

    wanted: Wanted
    verdict: Verdict
    faults: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0
    drained_s: float = 0.0


class Torture:
    """A run. `say` is told what happens, for a person to follow."""

    def __init__(self, wanted: Wanted, say: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._mode = MODES[wanted.mode]
        self._say = say
        self._chance = random.Random(wanted.seed)  # noqa: S311 - a run must be repeatable
        self._history = History()
        self._run = f"r{wanted.seed}"
        self._group = f"G-{self._run}"
        self._inflicted: list[str] = []
        self._namesrv = f"{HOST}:{free_ports(HOST)}"
        self._library = find_faketime()
        wanted.directory.mkdir(parents=True, exist_ok=True)
        self._clock = FakeClock(wanted.directory / "clock") if self._library is not None else None
        self._targets = self._make_targets()

    @property
    def fault_names(self) -> list[str]:
        """The faults of the mode, as far as this machine can have them."""
        return [name for name in self._mode.faults if name != CLOCK_FAULT or self._clock is not None]

    # --- The parts ---

    def _make_targets(self) -> Targets:
        directory = self._wanted.directory
        name_server_port = int(self._namesrv.rpartition(":")[2])
        name_server = Process(
            "name server",
            skylark_command("namesrv", "--port", str(name_server_port)),
            directory / "namesrv.log",
            name_server_port,
        )
        ports = {f"broker-{letter}": free_ports(HOST, -2, 1) for letter in "abcdefgh"[: self._wanted.brokers]}
        brokers = {name: self._broker(name, port) for name, port in ports.items()}
        members = [self._member(number) for number in range(self._wanted.members)]
        proxies = {name: Proxy((HOST, port), self._chance) for name, port in ports.items()}
        return Targets(name_server, brokers, members, proxies, ports, self._clock)

    def _broker(self, name: str, port: int) -> Process:
        directory = self._wanted.directory
        arguments = [
            "broker", "--name", name, "--namesrv", self._namesrv, "--port", str(port), "--bind", HOST,
            "--advertise", CLIENT_HOST, "--data", str(directory / name), "--flush", self._mode.flush,
        ]  # fmt: skip
        for key, value in BROKER_SETTINGS.items():
            arguments += ["--set", f"{key}={value}"]
        environment = None
        if self._clock is not None and self._library is not None:
            environment = self._clock.environment(self._library)
        return Process(name, skylark_command(*arguments), directory / f"{name}.log", port, environment)

    def _member(self, number: int) -> Process:
        directory = self._wanted.directory
        more = ["orderly"] if self._mode.ordered else []
        command = python_command(
            "skylark.torture.member", self._namesrv, TOPIC, self._group, self._run,
            str(self._receipts_file(number)), *more,
        )  # fmt: skip
        return Process(f"member-{number}", command, directory / f"member-{number}.log")

    def _receipts_file(self, number: int) -> Path:
        return self._wanted.directory / f"receipts-{number}"

    # --- The run ---

    async def run(self) -> Report:
        """Raises ProcessFailed if a server does not come up or back; OSError without free ports."""
        started = time.monotonic()
        planned = plan(self._chance, self.fault_names, self._wanted.seconds)
        try:
            await self._start()
            drained_s = await self._load(planned)
            self._read_receipts()
            await self._read_back()
        finally:
            await self._stop()
        verdict = check(self._history, ordered=self._mode.ordered)
        return Report(self._wanted, verdict, self._inflicted, time.monotonic() - started, drained_s)

    async def _start(self) -> None:
        targets = self._targets
        await targets.name_server.start()
        await asyncio.gather(*(broker.start() for broker in targets.brokers.values()))
        for name, proxy in targets.proxies.items():
            await proxy.start(CLIENT_HOST, targets.broker_ports[name])
        await self._until(self._make_topic, "the topic to be made")
        await asyncio.gather(*(member.start() for member in targets.members))
        self._say(f"{len(targets.brokers)} brokers, {len(targets.members)} members, mode {self._wanted.mode}")

    async def _make_topic(self) -> bool:
        async with Admin(namesrv=self._namesrv, client=_client("maker")) as admin:
            await admin.topics.create(TOPIC, queues=QUEUES)
            return len(await admin.topics.queues(TOPIC)) == QUEUES * self._wanted.brokers

    async def _load(self, planned: list[Planned]) -> float:
        senders = Senders(
            self._history, run=self._run, topic=TOPIC, namesrv=self._namesrv, count=self._wanted.senders,
            chance=self._chance,
        )  # fmt: skip
        senders.delayed = self._mode.delayed
        sending = asyncio.ensure_future(senders.run())
        sampling = asyncio.ensure_future(self._sample())
        try:
            await inflict(self._targets, planned, self._chance, self._note_fault)
        finally:
            senders.stop()
            await sending
            sampling.cancel()
        self._say(f"healed; {self._history.count(Outcome.OK)} messages acknowledged, draining")
        return await self._drain()

    def _note_fault(self, words: str) -> None:
        self._inflicted.append(words)
        self._say(words)

    async def _sample(self) -> None:
        """Look at what the group has committed; while servers are away there is nothing to see."""
        async with Admin(namesrv=self._namesrv, client=_client("sampler")) as admin:
            while True:
                await asyncio.sleep(SAMPLE_S)
                try:
                    committed = await admin.offsets.committed(self._group, TOPIC)
                except RocketMQError:
                    continue
                self._history.commits.append(
                    {_queue(queue): offset for queue, offset in committed.items() if offset is not None}
                )

    async def _drain(self) -> float:
        """Wait until all that was acknowledged has been received, or nothing comes any more."""
        started = progressed = time.monotonic()
        missing = -1
        while True:
            self._read_receipts()
            received = self._history.received_numbers()
            sends = self._history.sends.values()
            before, missing = (
                missing,
                sum(send.outcome is Outcome.OK and send.number not in received for send in sends),
            )
            now = time.monotonic()
            if missing != before:
                progressed = now
            if missing == 0 or now - progressed > DRAIN_IDLE_S:
                return now - started
            await asyncio.sleep(READ_PAUSE_S)

    def _read_receipts(self) -> None:
        self._history.receipts = []
        for number in range(self._wanted.members):
            file = self._receipts_file(number)
            if file.exists():
                with file.open("rb") as lines:
                    self._history.receipts += read_receipts(f"member-{number}", lines)

    async def _read_back(self) -> None:
        """Read every queue from its beginning."""
        async with PullConsumer(
            f"R-{self._run}", namesrv=self._namesrv, client=_client("reader")
        ) as consumer:
            for queue in await consumer.queues(TOPIC):
                await self._read_queue(consumer, queue)

    async def _read_queue(self, consumer: PullConsumer, queue: MessageQueue) -> None:
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
                    self._history.stored[Place(_queue(queue), message.queue_offset)] = number
            if queue_offset >= pulled.max_offset:
                return
            queue_offset = pulled.next_offset

    async def _stop(self) -> None:
        targets = self._targets
        for member in targets.members:
            await member.kill()
        for proxy in targets.proxies.values():
            await proxy.stop()
        for process in (*targets.brokers.values(), targets.name_server):
            await process.kill()

    async def _until(self, step: Callable[[], Awaitable[bool]], what: str) -> None:
        for _ in range(READ_TRIES):
            try:
                if await step():
                    return
            except RocketMQError as error:
                self._say(f"waiting for {what}: {error}")
            await asyncio.sleep(READ_PAUSE_S)
        raise ProcessFailed("servers", f"waited in vain for {what}", self._wanted.directory)


def _client(name: str) -> ClientSettings:
    return ClientSettings(instance_name=f"torture-{name}", route_refresh_interval_ms=1000)


def _queue(queue: MessageQueue) -> Queue:
    return Queue(queue.broker_name, queue.queue_id)
