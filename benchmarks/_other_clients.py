"""Other people's clients, measured by programs of their own in processes that stay."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from benchmarks.peers import kafka, nats
from benchmarks.peers.apache import POM
from benchmarks.peers.java import fetch_jars, jvm_command
from skylark.processes import Server
from tests.support.foreign import virtualenv
from tests.support.java import compiled

HERE = Path(__file__).parent
JAVA_CELLS = ("one_in_flight", "many_in_flight", "batch")
OTHER_CELLS = ("1", "256", "4096", "backlog")
WARM_UP_S = 5.0
KAFKA_HEAP_MB = 1024
PARTITIONS = 4  # as many as our topic has queues


class ClientProcess:
    """A program that takes a cell and a number of seconds a line, and answers with a rate."""

    def __init__(self, name: str, command: Sequence[str], cells: Sequence[str], warm_up_s: float) -> None:
        self._name = name
        self._names = cells
        self._warm_up_s = warm_up_s
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __enter__(self) -> Self:
        for name in self._names:
            self.rate(name, self._warm_up_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process:
            pass

    def rate(self, cell: str, seconds: float) -> float:
        """Raises RuntimeError if the program has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{cell} {seconds}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # said below
        for line in self._process.stdout:
            if line.startswith("rate "):
                return float(line.split()[1])
        raise RuntimeError(f"the {self._name} client has ended")

    def cells(self) -> dict[str, Callable[[float], float]]:
        return {f"{self._name}-{name}": functools.partial(self.rate, name) for name in self._names}


def java_client(namesrv: str, topic: str, body_bytes: int, path: Path) -> ClientProcess:
    """The Java client, in a JVM that stays: it compiles itself only once. Raises if there is no Java."""
    classpath = compiled(POM, [HERE / "java" / "ClientRates.java"])
    # Both compilers: this client is to show what it can.
    options = ("-XX:TieredStopAtLevel=4",)
    arguments = [namesrv, topic, str(body_bytes)]
    command = jvm_command(classpath, "ClientRates", *arguments, home=path, heap_mb=512, options=options)
    return ClientProcess("java", command, JAVA_CELLS, WARM_UP_S)


def _kafka(home: Path) -> kafka.KafkaServer:
    settings: dict[str, str | int] = {"num.partitions": PARTITIONS}
    server = kafka.KafkaServer(fetch_jars(kafka.POM), home, heap_mb=KAFKA_HEAP_MB, settings=settings)
    server.format()
    return server


def _nats(home: Path) -> nats.NatsServer:
    return nats.NatsServer(nats.fetch_server(), home, sync=False)


SERVERS: dict[str, Callable[[Path], Server]] = {"aiokafka": _kafka, "nats-py": _nats}
"""The servers of other systems, by the client that is measured against them."""


@contextmanager
def other_client(name: str, body_bytes: int, path: Path) -> Iterator[ClientProcess]:
    """Another system's server and its asyncio client, fetched on first use. Raises if they cannot be."""
    directory = HERE / "python"
    python = virtualenv(directory / "requirements.txt")
    with ExitStack() as stack:
        server = stack.enter_context(SERVERS[name](path / name))
        command = [str(python), str(directory / "client_rates.py"), name, server.address, str(body_bytes)]
        warm_up_s = WARM_UP_S if name == "aiokafka" else 0.5  # the JVM of its server compiles itself first
        yield stack.enter_context(ClientProcess(name, command, OTHER_CELLS, warm_up_s))
