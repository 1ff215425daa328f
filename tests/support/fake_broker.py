"""A name server and a broker in one that do as a test says: for faults that real ones do not have.

Every request is kept in `asked`. A test answers a code itself by `answers[code] = function(command)`, which
returns the reply, None for none at all, or a coroutine of either; whatever is left out is answered sensibly.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from skylark.model.java import loads
from skylark.protocol.bodies import (
    BrokerData,
    ConsumerIdList,
    LockedQueues,
    LockRequest,
    QueueData,
    TopicRouteData,
    decode_body,
    encode_body,
)
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import SERVER_LANGUAGE, RemotingCommand
from skylark.protocol.connection import Limits
from skylark.protocol.requests.pull import PullReply
from skylark.remoting.link import Link, stop_listening

HOST = "127.0.0.1"
BROKER = "broker-a"

Answer = RemotingCommand | None
Answers = Callable[[RemotingCommand], Answer | Awaitable[Answer]]


class FakePeer(Link):
    """A client's connection. `call` asks the client something."""

    language = SERVER_LANGUAGE

    def __init__(self, fake: FakeBroker, tasks: set[asyncio.Task[None]]) -> None:
        super().__init__(Limits(), tasks=tasks, requests_in_flight_max=1000, write_high_water_bytes=1 << 20)
        self._fake = fake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._fake.peers.append(self)
        if self._fake.is_gone:  # it was accepted before, and comes after
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._fake.peers.remove(self)

    def data_received(self, data: bytes) -> None:
        for command in self._codec.receive(data):
            assert isinstance(command, RemotingCommand)
            if command.is_response:
                self._deliver(command)
            else:
                # The codec's buffer is reused: what is kept must be a copy.
                command.body = bytes(command.body)
                self._serve(self._fake.handle, command)
        self._flush()


class FakeBroker:
    """Answers on one port; `address` is both the name server's and the master's.

    `records` are the queue's by (topic, queue id), one record for each offset; a pull gets those from its
    offset on. `members` is what it says about every group beside those whose heartbeats it heard.
    """

    def __init__(self) -> None:
        self.address = ""
        self.asked: list[RemotingCommand] = []
        self.answers: dict[int, Answers] = {}
        self.queues: dict[str, int] = {"T": 1}
        self.replicas: dict[int, str] = {}
        self.filter_servers: dict[str, list[str]] = {}
        self.records: dict[tuple[str, int], list[bytes]] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.members: list[str] = []
        self.peers: list[FakePeer] = []
        self.is_gone = False
        self._changed = asyncio.Condition()

    def asked_for(self, code: int) -> list[RemotingCommand]:
        return [command for command in self.asked if command.code == code]

    async def put(self, topic: str, *records: bytes, queue_id: int = 0) -> None:
        """Add records to a queue; pulls that wait see them."""
        async with self._changed:
            self.records.setdefault((topic, queue_id), []).extend(records)
            self._changed.notify_all()

    def handle(self, peer: FakePeer, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        self.asked.append(command)
        own = getattr(self, f"_{RequestCode(command.code).name.lower()}", None)
        answer: Answers | None = self.answers.get(command.code, own)
        return command.reply() if answer is None else answer(command)

    def _get_routeinfo_by_topic(self, command: RemotingCommand) -> RemotingCommand:
        count = self.queues.get(command.fields["topic"])
        if count is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, "No topic route info in name server")
        route = TopicRouteData(
            broker_datas=[BrokerData(BROKER, "c", {0: self.address, **self.replicas})],
            queue_datas=[QueueData(BROKER, count, count, 6)],
            filter_server_table=self.filter_servers,
        )
        return command.reply(body=encode_body(route))

    def _heart_beat(self, command: RemotingCommand) -> RemotingCommand:
        client_id = loads(bytes(command.body))["clientID"]
        if client_id not in self.members:
            self.members.append(client_id)
        return command.reply()

    def _get_consumer_list_by_group(self, command: RemotingCommand) -> RemotingCommand:
        return command.reply(body=encode_body(ConsumerIdList(list(self.members))))

    def _query_consumer_offset(self, command: RemotingCommand) -> RemotingCommand:
        fields = command.fields
        known = self.offsets.get((fields["consumerGroup"], fields["topic"], int(fields["queueId"])))
        if known is None:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, "not found")
        return command.reply(fields={"offset": str(known)})

    def _update_consumer_offset(self, command: RemotingCommand) -> RemotingCommand:
        fields = command.fields
        key = (fields["consumerGroup"], fields["topic"], int(fields["queueId"]))
        self.offsets[key] = int(fields["commitOffset"])
        return command.reply()

    def _get_max_offset(self, command: RemotingCommand) -> RemotingCommand:
        count = len(self.records.get((command.fields["topic"], int(command.fields["queueId"])), []))
        return command.reply(fields={"offset": str(count)})

    def _lock_batch_mq(self, command: RemotingCommand) -> RemotingCommand:
        wanted = decode_body(command.body, LockRequest).mq_set
        return command.reply(body=encode_body(LockedQueues(wanted)))

    async def _pull_message(self, command: RemotingCommand) -> RemotingCommand:
        fields = command.fields
        key, start = (fields["topic"], int(fields["queueId"])), int(fields["queueOffset"])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(int(fields["suspendTimeoutMillis"]) / 1000), self._changed:
                await self._changed.wait_for(lambda: len(self.records.get(key, [])) > start)
        records = self.records.get(key, [])[start : start + int(fields["maxMsgNums"])]
        code = ResponseCode.SUCCESS if records else ResponseCode.PULL_NOT_FOUND
        return pull_reply(
            command, code, start + len(records), records, max_offset=len(self.records.get(key, []))
        )


def pull_reply(
    command: RemotingCommand,
    code: int,
    next_offset: int,
    records: list[bytes] | None = None,
    *,
    min_offset: int = 0,
    max_offset: int = 0,
    suggested: int = 0,
) -> RemotingCommand:
    """An answer to a pull."""
    reply = PullReply(suggested, next_offset, min_offset, max_offset)
    return command.reply(code, fields=reply.to_fields(), body=b"".join(records or []))


@contextlib.asynccontextmanager
async def fake_broker(**attributes: Any) -> AsyncIterator[FakeBroker]:
    """Run a fake broker on a free port."""
    fake = FakeBroker()
    for name, value in attributes.items():
        setattr(fake, name, value)
    tasks: set[asyncio.Task[None]] = set()
    server = await asyncio.get_running_loop().create_server(lambda: FakePeer(fake, tasks), HOST, 0)
    try:
        fake.address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        yield fake
    finally:
        fake.is_gone = True
        stop_listening(server)
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in list(fake.peers):
            peer.abort()
        await server.wait_closed()
