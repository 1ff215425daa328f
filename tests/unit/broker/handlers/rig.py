"""Handlers without sockets: a broker's tables, a store on a simulated disk, peers that keep what they get."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from skylark.broker.broker import Broker
from skylark.broker.registration import Registration
from skylark.errors import BrokerError
from skylark.model.message import PutMessage, StoredMessage
from skylark.protocol.bodies import TopicRouteData
from skylark.protocol.command import Encoding, RemotingCommand, decode_header, encode
from skylark.protocol.connection import Connection, Limits
from skylark.protocol.request import Request
from skylark.remoting.server import BatchRoute, Peer, RemotingServer, Routes
from skylark.settings import BrokerSettings
from skylark.store.append_result import AppendedRecord
from skylark.store.disk import Disk
from tests.support.clock import ManualClock
from tests.support.store import message, placed, read_queue, simulated_disk, small_settings

JAVA_VERSION = 479


class Wire(asyncio.Transport):
    """The other end of a peer's connection: keeps what is written."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self._codec: Connection[None] = Connection(Limits())
        self._closed = False
        self._received: list[RemotingCommand] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", self._port) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        for command in self._codec.receive(bytes(data)):
            assert isinstance(command, RemotingCommand)
            self._received.append(command)

    def take(self) -> list[RemotingCommand]:
        """Return what came since the last call."""
        received, self._received = self._received, []
        return received

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    def abort(self) -> None:
        self._closed = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class Client:
    """A connected peer, and what was written to it."""

    def __init__(self, server: RemotingServer, port: int, routes: Routes | None = None) -> None:
        self.wire = Wire(port)
        self.peer = Peer(server, routes or {})
        self.peer.connection_made(self.wire)

    def deliver(self, *commands: RemotingCommand) -> None:
        """Let the peer receive commands in one read."""
        self.peer.data_received(b"".join(part for command in commands for part in encode(command)))

    async def taken(self) -> list[RemotingCommand]:
        """Return what the broker has written, once the loop has come round."""
        await asyncio.sleep(0)
        return self.wire.take()


class RigRegistration(Registration):
    """Name servers as tests want them."""

    routes: Mapping[str, TopicRouteData] = {}
    settled: Callable[[], Awaitable[object]] | None = None

    async def route(self, topic: str) -> TopicRouteData | None:
        return self.routes.get(topic)

    async def settle(self) -> None:
        if self.settled is not None:
            await self.settled()


class RigBroker(Broker):
    registration: RigRegistration

    def _build_services(self, settings: BrokerSettings, disk: Disk) -> None:
        super()._build_services(settings, disk)
        self.registration = RigRegistration(
            self.live, self.clock, self.role, self.addresses, self.topics, self.tasks
        )

    def watermarks(self) -> dict[str, int]:
        return {"send": 3, "pull": 1}


class Rig:
    """A broker without a loop of its own, and clients that ask it."""

    def __init__(self, **changes: Any) -> None:
        self.clock = ManualClock()
        store = small_settings(**changes.pop("store", {}))
        settings = BrokerSettings(port=10911, store=store, **changes)
        self.broker = RigBroker(settings, clock=self.clock, disk=simulated_disk(self.clock))
        self.broker.store.open()
        self.routes = self.broker.main_routes()
        self._server = RemotingServer()
        self._ports = iter(range(40_000, 50_000))
        self.client = self.connect()

    def connect(self, routes: Routes | None = None) -> Client:
        """With routes, what the client sends is handled."""
        return Client(self._server, next(self._ports), routes)

    def close(self) -> None:
        self.broker.store.close()
        self.broker.readers.shutdown()

    async def ask(
        self,
        request: Request[Any] | RemotingCommand,
        *,
        client: Client | None = None,
        version: int = JAVA_VERSION,
        language: str = "JAVA",
    ) -> RemotingCommand:
        """Return the answer of a handler to a request that came over the wire."""
        command = request
        if isinstance(command, Request):
            command = command.to_command()
            command.version, command.language = version, language
        return await self._answer(received(command), client or self.client)

    async def _answer(self, command: RemotingCommand, client: Client) -> RemotingCommand:
        handler = self.routes[command.code]
        assert not isinstance(handler, BatchRoute)
        try:
            answer = handler(client.peer, command)
            if inspect.isawaitable(answer):
                answer = await answer
        except BrokerError as error:
            answer = command.reply(error.code, error.remark)
        assert isinstance(answer, RemotingCommand)
        return received(answer)

    # --- Messages ---

    def put(
        self, topic: str = "T", queue_id: int = 0, body: bytes = b"body", **members: Any
    ) -> AppendedRecord:
        """Store a message in a topic that is there afterwards."""
        self.broker.topics.ensure_topic(topic, 4, now_ms=self.clock.now_ms())
        return self.append(message(topic, queue_id, body, **members))

    def append(self, wanted: PutMessage) -> AppendedRecord:
        return placed(self.broker.store.append([wanted])[0])

    def stored(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        return read_queue(self.broker.store, topic, queue_id)


def received(command: RemotingCommand) -> RemotingCommand:
    """Return a command as the other side reads it."""
    head, *body = encode(command)
    read = decode_header(Encoding.JSON, memoryview(head)[8:])
    read.body = body[0] if body else b""
    return read


@contextlib.contextmanager
def rigged(**changes: Any) -> Iterator[Rig]:
    rig = Rig(**changes)
    try:
        yield rig
    finally:
        rig.close()


def outcome(answer: RemotingCommand) -> tuple[int, str | None]:
    """Code and remark."""
    return answer.code, answer.remark
