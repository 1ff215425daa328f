"""What the tests of remoting share: both kinds of loop, a server with some handlers, a raw client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import uvloop

from skylark.errors import BrokerError
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand, TypedCommand, encode
from skylark.protocol.connection import Command, Connection, Limits
from skylark.protocol.frame_templates import SendReplies, plain_reply, pull_reply_head
from skylark.protocol.requests.offset import GetMaxOffset, GetMinOffset, OffsetReply, UpdateConsumerOffset
from skylark.protocol.requests.pull import PullMessage
from skylark.protocol.requests.send import SendMessageV2
from skylark.remoting.server import BatchRoute, Peer, RemotingServer, Routes, ServerGate, ServerLimits
from skylark.remoting.tls import ServerTls

HOST = "127.0.0.1"
SEND = SendMessageV2("g", "t", "TBW102", 4, 2, 0, 0, 0, body=b"x" * 100)
PULL = PullMessage("g", "t", 0, 0, 32, 0, 0, 0, 0)
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run_on(loop: str, scenario: Coroutine[Any, Any, None], *, timeout_s: float = 60) -> None:
    """Run a scenario on one kind of loop."""

    async def limited() -> None:
        async with asyncio.timeout(timeout_s):
            await scenario

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(limited())


async def until(condition: Callable[[], bool], *, timeout_s: float = 60) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (the condition is anything)
            await asyncio.sleep(0.005)


class Rig:
    """A server whose handlers record what they were given.

    30 answers the queue id as the offset; 17 is TOPIC_NOT_EXIST, 18 a bug, 19 waits for `gate`, 20 for ever.
    31 answers 0; 18 is a bug, and 21 an answer that cannot be written.
    """

    def __init__(
        self,
        limits: ServerLimits | None = None,
        tls: ServerTls | None = None,
        guard: ServerGate | None = None,
    ) -> None:
        self.gone: list[Peer] = []
        self.server = RemotingServer(limits, on_disconnect=self.gone.append, tls=tls, gate=guard)
        self.port = 0
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self.pulled = 0
        self.pull_answer = b"r" * 1000
        self.before_pull: Callable[[], None] = lambda: None
        self.replies = SendReplies()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def routes(self) -> Routes:
        return {
            RequestCode.SEND_MESSAGE_V2: BatchRoute(self.send),
            RequestCode.PULL_MESSAGE: BatchRoute(self.pull, commands_max=4),
            RequestCode.UPDATE_CONSUMER_OFFSET: BatchRoute(self.commit),
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
        }

    def send(self, peer: Peer, batch: list[TypedCommand[Any]]) -> None:
        self.batches.append(len(batch))
        frames = [
            self.replies.stored(command.opaque, b"00", command.request.queue_id, len(command.body))
            for command in batch
            if not command.is_oneway
        ]
        peer.write(*frames)

    def pull(self, peer: Peer, batch: list[TypedCommand[Any]]) -> None:
        for command in batch:
            self.before_pull()
            self.pulled += 1
            head = pull_reply_head(
                command.opaque,
                code=0,
                remark="FOUND",
                next_begin_offset=self.pulled,
                min_offset=0,
                max_offset=9,
                body_bytes=len(self.pull_answer),
            )
            peer.write(head, memoryview(self.pull_answer))

    def commit(self, peer: Peer, batch: list[TypedCommand[UpdateConsumerOffset]]) -> None:
        if any(command.request.commit_offset == 13 for command in batch):
            raise RuntimeError("bad luck")
        peer.write(*[plain_reply(command.opaque) for command in batch])

    def min_offset(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        match GetMinOffset.from_command(command).queue_id:
            case 18:
                raise ZeroDivisionError("another bug")
            case 21:
                return command.reply(remark="\ud800")
        return command.reply(fields={"offset": "0"})

    async def max_offset(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        request = GetMaxOffset.from_command(command)
        match request.queue_id:
            case 17:
                raise BrokerError.for_code(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
            case 18:
                raise ZeroDivisionError("a bug\nof two lines")
            case 19:
                await self.gate.wait()
            case 20:
                await asyncio.Event().wait()
        return command.reply(fields=OffsetReply(request.queue_id).to_fields())


@contextlib.asynccontextmanager
async def running(
    limits: ServerLimits | None = None, *, tls: ServerTls | None = None, guard: ServerGate | None = None
) -> AsyncIterator[Rig]:
    """Start a rig on a free port; afterwards nothing of it may be left."""
    rig = Rig(limits, tls, guard)
    rig.port = await rig.server.listen(HOST, 0, rig.routes())
    try:
        yield rig
    finally:
        await rig.server.close(drain_timeout_s=1)
    assert not rig.server.peers
    assert not rig.server.tasks
    assert rig.server.bytes_in_flight == 0


class RawClient:
    """A plain socket on the loop: sends any bytes, reads commands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._codec: Connection[None] = Connection(Limits(header_bytes_max=16 << 20))
        self._commands: list[Command] = []

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self) -> RemotingCommand:
        """Return the next command. Raises EOFError when the server closed."""
        while not self._commands:
            data = await self.reader.read(1 << 16)
            if not data:
                raise EOFError
            self._commands += self._codec.receive(data)
            assert self._codec.failure is None
        command = self._commands.pop(0)
        assert isinstance(command, RemotingCommand)
        return command

    async def is_closed(self, *, timeout_s: float = 30) -> bool:
        """Say whether the server closes within this time, whatever it sends before."""
        try:
            async with asyncio.timeout(timeout_s):
                while await self.reader.read(1 << 16):
                    pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def raw_client(port: int) -> AsyncIterator[RawClient]:
    """Open a raw client for a while."""
    client = RawClient(*await asyncio.open_connection(HOST, port, limit=1 << 16))
    try:
        yield client
    finally:
        await client.close()


def frame(command: RemotingCommand, opaque: int = 0) -> bytes:
    """Return the bytes of a request."""
    command.opaque = opaque
    return b"".join(encode(command))
