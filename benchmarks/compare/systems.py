"""The systems that are compared: each on a directory of its own, with settings that can be compared."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from benchmarks.compare.cells import APACHE, KAFKA, NATS, OURS
from benchmarks.compare.figures import SystemFacts
from benchmarks.peers import apache, kafka, nats
from benchmarks.peers.java import JavaLoadDriver, driver_classpath, fetch_jars
from skylark import __version__
from skylark.bench.machine import BROKER_CPU, CLIENT_CPU, ListeningProcess, pinned
from skylark.bench.servers import SETTINGS, SkylarkServers
from skylark.errors import RocketMQError
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.processes import ProcessFailed, Server
from skylark.protocol.requests.send import SendMessageV2
from skylark.remoting.blocking_connection import BlockingConnection

FIRST_SEND_TIMEOUT_S = 300
FIRST_SEND_POLL_S = 0.002
FIRST_TOPIC = "first"
FLUSH_TYPES = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}
FLUSH_WORDS = {
    OURS: {"async": "flush every 500 ms", "sync": "group commit: a flush before each acknowledgement"},
    APACHE: {"async": "flush every 500 ms", "sync": "group commit: a flush before each acknowledgement"},
    KAFKA: {"async": "no flush of its own (its default)", "sync": "log.flush.interval.messages=1"},
    NATS: {"async": "sync every 2 minutes (its default)", "sync": "sync_interval: always"},
}
LOG_FILE_WORDS = f"log files of {int(SETTINGS['mappedFileSizeCommitLog']) >> 30} GiB"
ROCKETMQ_CLIENT = "thin client; rocketmq-client 5.3.3 (Java) in the cells java-*, consume, latency, memory"


class System(ABC):
    """A system that can be started. Entering prepares it without starting the measured server."""

    name: ClassVar[str]
    title: ClassVar[str]
    client: ClassVar[str]
    pom: ClassVar[Path]
    driver_class: ClassVar[str]
    log_words: ClassVar[str] = LOG_FILE_WORDS
    needs_warm_up: ClassVar[bool] = True
    """A JVM compiles itself first."""
    stops_when_idle: ClassVar[bool] = False
    """Whether it takes so much of a processor doing nothing that others would be measured wrongly."""
    server: Server

    def __init__(self, directory: Path, flush: str, heap_mb: int) -> None:
        self.directory = directory
        self._stack = ExitStack()
        self._driver: JavaLoadDriver | None = None

    @classmethod
    def fetch(cls) -> None:
        """Have what it needs in the cache. Raises MissingToolchain, ProcessFailed."""
        driver_classpath(cls.pom, cls.driver_class)

    @classmethod
    def facts(cls, flushes: list[str], heap_mb: int) -> SystemFacts:
        flushed = [f"{flush}: {FLUSH_WORDS[cls.name][flush]}" for flush in flushes]
        words = [*flushed, cls.log_words, cls.memory_words(heap_mb)]
        return SystemFacts(cls.name, cls.title, "; ".join(words), cls.client)

    @classmethod
    def memory_words(cls, heap_mb: int) -> str:
        return f"heap {heap_mb} MiB, fixed"

    @property
    def driver_address(self) -> str:
        """The address for its Java client."""
        return self.server.address

    def __enter__(self) -> Self:
        self._stack.__enter__()
        try:
            self.prepare()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything and remove what it wrote, even if one step is interrupted. May be repeated."""
        driver, self._driver = self._driver, None
        with ExitStack() as steps:
            steps.callback(shutil.rmtree, self.directory, ignore_errors=True)
            steps.push(self._stack)
            steps.callback(self.server.release_ports)
            steps.callback(self.server.kill)
            if driver is not None:
                steps.callback(driver.kill)

    def prepare(self) -> None:  # noqa: B027 - some need nothing
        """Prepare what the server needs before its start."""

    def start(self) -> None:
        """Start the server on the processor of servers, and wait until it serves. Raises ProcessFailed."""
        with pinned(BROKER_CPU):
            self.server.launch()
        self.server.wait_until_serving()

    @property
    def process(self) -> ListeningProcess:
        """The process of the running server."""
        return ListeningProcess(self.server.address)

    @property
    def driver(self) -> JavaLoadDriver:
        """Its own Java client, started with the first use. Raises MissingToolchain, ProcessFailed."""
        if self._driver is None:
            classpath = driver_classpath(self.pom, self.driver_class)
            with pinned(CLIENT_CPU):
                self._driver = JavaLoadDriver(
                    classpath, self.driver_class, self.driver_address, self.directory / "driver"
                )
        return self._driver

    def signal(self, number: signal.Signals) -> None:
        """For the server and its client, so that neither misses the other while both are stopped."""
        self.server.signal(number)
        if self._driver is not None:
            self._driver.signal(number)

    def time_first_send(self) -> float:
        """Start the server, on any processor, and count the seconds until a send was acknowledged.

        Raises ProcessFailed.
        """
        started = time.perf_counter()
        process = self.server.launch()
        deadline = started + FIRST_SEND_TIMEOUT_S
        while not self.try_first_send(deadline - time.perf_counter()):
            if not process.running or time.perf_counter() > deadline:
                raise ProcessFailed(f"{self.title} acknowledged no send\n{process.log_tail()}")
            time.sleep(FIRST_SEND_POLL_S)
        return time.perf_counter() - started

    @abstractmethod
    def try_first_send(self, timeout_s: float) -> bool:
        """Whether the server acknowledges one message now."""


class _RocketMQ(System):
    """A system with RocketMQ's protocol."""

    pom = apache.POM
    driver_class = "RocketMQLoad"
    client = ROCKETMQ_CLIENT

    def try_first_send(self, timeout_s: float) -> bool:
        request = SendMessageV2(
            producer_group="first", topic=FIRST_TOPIC, default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=4, queue_id=0, sys_flag=0, born_timestamp=time.time_ns() // 1_000_000,
            flag=0, body=bytes(128),
        )  # fmt: skip
        with contextlib.suppress(RocketMQError), BlockingConnection(self.server.address) as connection:
            return connection.call(request, timeout_s=timeout_s).code == 0
        return False


class Ours(_RocketMQ):
    """`skylark serve`: name server and broker in one process."""

    name = OURS
    title = f"Skylark {__version__}"
    needs_warm_up = False
    server: SkylarkServers

    def __init__(self, directory: Path, flush: str, heap_mb: int) -> None:
        super().__init__(directory, flush, heap_mb)
        settings = {**SETTINGS, "flushDiskType": FLUSH_TYPES[flush]}
        self.server = SkylarkServers(directory / "servers", settings)

    @classmethod
    def fetch(cls) -> None:
        """It is here. Its Java client is fetched with the first cell that needs it."""

    @classmethod
    def memory_words(cls, heap_mb: int) -> str:
        return "CPython, no heap limit"

    @property
    def driver_address(self) -> str:
        return self.server.name_server


class Apache(_RocketMQ):
    """Apache's broker; its name server runs before it and is not measured."""

    name = APACHE
    title = "Apache RocketMQ 5.3.3"
    stops_when_idle = True  # a fourteenth of a processor

    def __init__(self, directory: Path, flush: str, heap_mb: int) -> None:
        super().__init__(directory, flush, heap_mb)
        classpath = fetch_jars(apache.POM)
        self._name_server = apache.ApacheNameServer(classpath, directory / "name-server")
        self.server = apache.MeasuredBroker(
            classpath,
            directory / "home",
            directory / "store",
            name_server=self._name_server.address,
            settings={**SETTINGS, "flushDiskType": FLUSH_TYPES[flush]},
            heap_mb=heap_mb,
        )

    @property
    def driver_address(self) -> str:
        return self._name_server.address

    def prepare(self) -> None:
        with pinned(BROKER_CPU):  # as ours, which is one process with the broker
            self._stack.enter_context(self._name_server)


class Kafka(System):
    """One node, broker and controller. Its log directory is formatted before the start."""

    name = KAFKA
    title = f"Apache Kafka {kafka.VERSION}"
    client = f"kafka-clients {kafka.VERSION} (Java), acks=all, linger.ms=0, batches of its own making"
    pom = kafka.POM
    driver_class = "KafkaLoad"

    def __init__(self, directory: Path, flush: str, heap_mb: int) -> None:
        super().__init__(directory, flush, heap_mb)
        settings: dict[str, str | int] = {"log.segment.bytes": SETTINGS["mappedFileSizeCommitLog"]}
        if flush == "sync":
            settings["log.flush.interval.messages"] = 1
        self.server: kafka.KafkaServer = kafka.KafkaServer(
            fetch_jars(kafka.POM), directory / "home", heap_mb=heap_mb, settings=settings
        )

    def prepare(self) -> None:
        self.server.format()
        assert self.driver  # it asks for the first send, and must not have to start then

    def try_first_send(self, timeout_s: float) -> bool:
        self.driver.call("first", FIRST_TOPIC, timeout_s=timeout_s)
        return True


class Nats(System):
    """A server with JetStream; a topic is a stream in files with one subject."""

    name = NATS
    title = f"nats-server {nats.VERSION}"
    client = f"jnats {nats.CLIENT_VERSION} (Java), JetStream: publishAsync, ordered consumer"
    pom = nats.POM
    driver_class = "NatsLoad"
    log_words = "log files of sizes that it chooses"

    def __init__(self, directory: Path, flush: str, heap_mb: int) -> None:
        super().__init__(directory, flush, heap_mb)
        program = nats.fetch_server()
        self.server: nats.NatsServer = nats.NatsServer(program, directory / "home", sync=flush == "sync")

    @classmethod
    def fetch(cls) -> None:
        super().fetch()
        nats.fetch_server()

    @classmethod
    def memory_words(cls, heap_mb: int) -> str:
        return "Go, no heap limit"

    @property
    def driver_address(self) -> str:
        return self.server.url

    def try_first_send(self, timeout_s: float) -> bool:
        return self.server.try_send(FIRST_TOPIC)


SYSTEMS: dict[str, type[System]] = {system.name: system for system in (Ours, Apache, Kafka, Nats)}
