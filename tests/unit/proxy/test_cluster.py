"""Calls that wait for a broker without a task: replies, errors, and calls that were given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skylark.errors import BrokerError, ConnectionLost
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.offset import GetMaxOffset
from skylark.proxy import cluster as cluster_module
from skylark.proxy.cluster import Cluster, Posted
from skylark.remoting.connection_pool import ClientConnection
from skylark.remoting.nearby import NearbyServer
from skylark.remoting.server import Peer, RemotingServer
from skylark.settings.client import ClientSettings

ADDRESS = "127.0.0.1:10911"
REQUEST = GetMaxOffset("t", 7)


class Broker:
    """Answers with the queue id, with an error for queue 17, and when it is told to for queue 19."""

    def __init__(self) -> None:
        self.server = RemotingServer()
        self.late: list[tuple[Peer, RemotingCommand]] = []

    def answer(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        queue_id = command.fields["queueId"]
        if queue_id == "17":
            raise BrokerError.for_code(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        if queue_id == "19":
            self.late.append((peer, command))
            return None
        return command.reply(fields={"offset": queue_id})

    def answer_late(self) -> None:
        for peer, command in self.late:
            peer.reply(command.reply(fields={"offset": "19"}))


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Broker, Cluster, ClientConnection]]:
    broker = Broker()
    nearby = NearbyServer(ADDRESS, broker.server, {RequestCode.GET_MAX_OFFSET: broker.answer})
    cluster = Cluster(ClientSettings(name_servers="127.0.0.1:1"), 1000, nearby)
    await cluster.start()
    try:
        yield (
            broker,
            cluster,
            await cluster.open_pool(lambda *_: None, "JAVA", ("127.0.0.1", 1)).connection(ADDRESS),
        )
    finally:
        await cluster.close()
        await broker.server.close()


def words(result: Any) -> str:
    return f"read {result}"


async def test_replies_errors_and_lost_connections_are_read() -> None:
    async with connected() as (broker, cluster, connection):
        assert await cluster.post(connection, REQUEST, words) == "read 7"
        read: list[Any] = []
        await cluster.post(connection, GetMaxOffset("t", 17), read.append)
        lost = cluster.post(connection, GetMaxOffset("t", 19), read.append)
        await asyncio.sleep(0)
        await broker.server.close()
        await lost
        refused, gone = read
        assert (refused.code, refused.remark) == (ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        assert isinstance(gone, ConnectionLost)


async def test_a_reply_that_cannot_be_read_fails_its_call_alone() -> None:
    def fail(_: object) -> None:
        raise ValueError("unreadable")

    async with connected() as (_, cluster, connection):
        bad, good = (cluster.post(connection, REQUEST, read) for read in (fail, words))
        with pytest.raises(ValueError, match="unreadable"):
            await bad
        assert await good == "read 7"


async def given_up(broker: Broker, cluster: Cluster, connection: ClientConnection) -> Posted:
    posted = cluster.post(connection, GetMaxOffset("t", 19), words)
    while not broker.late:  # noqa: ASYNC110 (a turn at a time)
        await asyncio.sleep(0)
    assert posted.cancel()
    assert not posted.cancel()
    return posted


async def test_a_late_reply_to_a_call_that_was_given_up_is_dropped() -> None:
    async with connected() as (broker, cluster, connection):
        posted = await given_up(broker, cluster, connection)
        broker.answer_late()
        assert await cluster.post(connection, REQUEST, words) == "read 7"
        assert posted.cancelled() and not connection.is_closed


async def test_a_broker_that_is_silent_for_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "SUSPECT_S", 0.0)
    async with connected() as (broker, cluster, connection):
        connection.received_at = -1.0
        await given_up(broker, cluster, connection)
        assert connection.is_closed
